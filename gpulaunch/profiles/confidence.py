"""How sure one can be of what was concluded, from the surest down."""
# pure: decides on plain values

from collections.abc import Iterable

from gpulaunch.typing import Literal

Confidence = Literal["certain", "likely", "guess"]

CONFIDENCES: tuple[Confidence, ...] = ("certain", "likely", "guess")
"""From the surest down."""


def weakest(found: Iterable[Confidence]) -> Confidence:
    """The least sure of several, since a conclusion is as sure as the weakest thing that it rests on.

    Example:
        >>> weakest(["certain", "guess", "likely"]), weakest([])
        ('guess', 'certain')
    """
    return max(found, key=CONFIDENCES.index, default="certain")
