"""A profile at a problem size that nobody has measured, from those of other sizes (mps-sharing-2024 IV.A, Table II)."""
# pure: decides on plain values

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import ceil, log

from gpulaunch.errors import FieldError
from gpulaunch.profiles.document.section import Key, Number, Part
from gpulaunch.profiles.profile import Profile
from gpulaunch.typing import Any

_SCALED = ("communication", "resources", "counters")
"""Sections whose figures grow with the problem."""

MOST_TIMES = 100
"""A size may be so many times the largest that was measured, or so small a part of the smallest.

Ours.
"""

_NOT_SCALED = ("weight", "samples", "bytes_per_access")
"""Numbers that are no figures of the problem."""


def scaled(points: Mapping[float, Profile], size: float, parameter: str) -> dict[str, Any]:
    """What a profile of that size says: as measured, or predicted by a power law between the nearest two sizes.

    A figure y at sizes a and b has the exponent log(y_b / y_a) / log(b / a); under the smallest
    size and above the largest the law of the two that are nearest goes on. Where a figure is 0 it
    runs along a straight line instead, and never under 0. Percentages end at 100, memory is rounded
    up to MiB. What both sizes say and is no figure stays if both say the same; what is true of one
    is true. The rest is left out, and the source says "predicted".

    Args:
        points: size -> profile measured there, one at least.
        size: that is asked for, above 0.
        parameter: what sizes are called.

    Raises:
        FieldError: it was not measured, and fewer than two sizes were: no law goes through one
            point. Or it is more than MOST_TIMES away from all that were.

    Source: mps-sharing-2024 Table II has two sizes of each workload, and Table III uses others; the
        law between them is ours. It keeps energy = power x time.
    """
    if size in points:
        return {
            key: value
            for key, value in points[size].document.items()
            if key not in ("name", "base", "variants")
        }
    if len(points) < 2:
        known = ", ".join(f"{parameter}={one:g}" for one in sorted(points)) or "nothing"
        raise FieldError(
            (), f"{parameter}={size:g} was not measured, and no law goes through {known} alone"
        )
    least, most = min(points) / MOST_TIMES, max(points) * MOST_TIMES
    if not least <= size <= most:
        bounds = f"{parameter}={least:g} to {most:g} is within {MOST_TIMES} times what was measured"
        raise FieldError((), f"{parameter}={size:g} is extrapolated too far: {bounds}")
    low, high = min(pairwise(sorted(points)), key=lambda pair: _distance(size, *pair))
    law = _law(low, high, size)
    one, other = points[low], points[high]
    found = {
        name: _section(one, other, name, law)
        for name in _SCALED
        if name in one.document and name in other.document
    }
    return {name: table for name, table in found.items() if table}


def _distance(size: float, low: float, high: float) -> float:
    """How far a size is outside of two others; 0 between them."""
    return max(0.0, log(low / size), log(size / high))


def _law(low: float, high: float, size: float) -> Callable[[float, float], float]:
    """A figure at the size from those at two others."""
    share = log(size / low) / log(high / low)

    def at(one: float, other: float) -> float:
        if one > 0 and other > 0:
            return float(one * (other / one) ** share)
        return max(0.0, one + (other - one) * (size - low) / (high - low))

    return at


def _section(
    one: Profile, other: Profile, name: str, law: Callable[[float, float], float]
) -> dict[str, Any]:
    """What both say in a section, at the size of the law."""
    key = Profile.keys[name]
    assert isinstance(key, Part)  # noqa: S101  these are sections all
    left, right = one.document[name], other.document[name]
    both = {each: key.section.keys[each] for each in left if each in right and each != "source"}
    found = {each: _value(each, rule, left[each], right[each], law) for each, rule in both.items()}
    found = {each: value for each, value in found.items() if value is not None}
    source = f"predicted: power law through {one.name} and {other.name} ({left['source']})"
    return {**found, "source": source} if found else {}


def _value(
    name: str,
    key: Key[Any],
    one: Any,  # noqa: ANN401
    other: Any,  # noqa: ANN401
    law: Callable[[float, float], float],
) -> Any:  # noqa: ANN401
    """One value at the size of the law; None where nobody can tell."""
    if isinstance(one, bool):
        return one or other
    if not isinstance(key, Number) or name in _NOT_SCALED:
        return one if one == other else None
    value = min(max(law(one, other), key.least), key.most)
    return ceil(round(value, 6)) if isinstance(key.least, int) else float(f"{value:.6g}")
