"""Prediction of profiles at sizes that were not measured (mps-sharing-2024 IV.A, Table II)."""
# pure: decides on plain values

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import ceil, log

from gpulaunch.errors import FieldError
from gpulaunch.profiles.document.section import Key, Number, Part
from gpulaunch.profiles.profile import Profile
from gpulaunch.typing import Any

_SCALED = ("communication", "resources", "counters")
"""Sections whose figures grow with the problem size."""

MOST_TIMES = 100
"""Largest ratio of a size to the nearest measured one.

The value is ours.

Ours.
"""

_NOT_SCALED = ("weight", "samples", "bytes_per_access")
"""Numbers that do not depend on the problem size."""


def scaled(points: Mapping[float, Profile], size: float, parameter: str) -> dict[str, Any]:
    """Return a profile's sections at a size: as measured, or by a power law from two sizes.

    A figure y at sizes a and b has the exponent log(y_b / y_a) / log(b / a). Below the smallest and
    above the largest size the law of the nearest two is continued. A figure that is 0 at one size
    follows a straight line, and never falls below 0. Percentages end at 100, memory is rounded up
    to MiB. Values that are no figures stay if both sizes agree; a flag is set if either sets it.
    The rest is left out, and the source says "predicted".

    Args:
        points: size -> profile measured there, at least one.
        size: the size asked for, above 0.
        parameter: name of the size parameter.

    Raises:
        FieldError: the size was not measured, and only one was, through which no law goes; or it is
            more than MOST_TIMES away from all that were.

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
        name: _scale_section(one, other, name, law)
        for name in _SCALED
        if name in one.document and name in other.document
    }
    return {name: table for name, table in found.items() if table}


def _distance(size: float, low: float, high: float) -> float:
    """Return how far a size is outside an interval, on a log scale; 0 inside."""
    return max(0.0, log(low / size), log(size / high))


def _law(low: float, high: float, size: float) -> Callable[[float, float], float]:
    """Return a function from a figure at two sizes to the figure at this one."""
    share = log(size / low) / log(high / low)

    def at(one: float, other: float) -> float:
        if one > 0 and other > 0:
            return float(one * (other / one) ** share)
        return max(0.0, one + (other - one) * (size - low) / (high - low))

    return at


def _scale_section(
    one: Profile, other: Profile, name: str, law: Callable[[float, float], float]
) -> dict[str, Any]:
    """Return the values of a section that both profiles give, at the size of the law."""
    key = Profile.keys[name]
    assert isinstance(key, Part)  # noqa: S101  _SCALED names sections only
    left, right = one.document[name], other.document[name]
    both = {each: key.section.keys[each] for each in left if each in right and each != "source"}
    found = {
        each: _scale_value(each, rule, left[each], right[each], law) for each, rule in both.items()
    }
    found = {each: value for each, value in found.items() if value is not None}
    source = f"predicted: power law through {one.name} and {other.name} ({left['source']})"
    return {**found, "source": source} if found else {}


def _scale_value(
    name: str,
    key: Key[Any],
    one: Any,  # noqa: ANN401
    other: Any,  # noqa: ANN401
    law: Callable[[float, float], float],
) -> Any:  # noqa: ANN401
    """Return one value at the size of the law; None where it cannot be told."""
    if isinstance(one, bool):
        return one or other
    if not isinstance(key, Number) or name in _NOT_SCALED:
        return one if one == other else None
    value = min(max(law(one, other), key.least), key.most)
    return ceil(round(value, 6)) if isinstance(key.least, int) else float(f"{value:.6g}")
