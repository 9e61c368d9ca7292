"""The confidence of a conclusion, from the surest level down."""
# pure: decides on plain values

from collections.abc import Iterable
from typing import Literal

Confidence = Literal["certain", "likely", "guess"]

CONFIDENCES: tuple[Confidence, ...] = ("certain", "likely", "guess")
"""All values, surest first."""


def weakest(found: Iterable[Confidence]) -> Confidence:
    """Return the least sure of several: a conclusion is as sure as its weakest ground.

    Example:
        >>> weakest(["certain", "guess", "likely"]), weakest([])
        ('guess', 'certain')
    """
    return max(found, key=CONFIDENCES.index, default="certain")
