"""Prediction of [resources] at problem sizes that were not measured (mps-sharing-2024 Table II)."""
# pure: decides on plain values

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import ceil, log

from gpulaunch.errors import FieldError
from gpulaunch.profiles.keys import Number, Resources
from gpulaunch.profiles.profile import Profile, Variant
from gpulaunch.typing import Any

MOST_TIMES = 100
"""Largest ratio of a size to the nearest measured one. Our choice."""


def scaled(points: Mapping[float, Profile], size: float, parameter: str) -> dict[str, Any]:
    """Return a profile's sections at a size: as measured, or by a power law from two sizes.

    A figure y at sizes a and b has the exponent log(y_b / y_a) / log(b / a). Below the smallest and
    above the largest size the law of the nearest two is continued. A figure that is 0 at one size
    follows a straight line, and never falls below 0. Percentages end at 100, memory is rounded up
    to MiB. Values that are not figures stay if both sizes agree; a flag is set if either sets it.
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
        measured = points[size].document
        return {key: value for key, value in measured.items() if key in Variant.keys}
    low, high = _neighbours(points, size, parameter)
    exponent = log(size / low) / log(high / low)
    left, right = points[low].resources, points[high].resources
    found: dict[str, Any] = {}
    for name, key in Resources.keys.items():
        one, other = left.document.get(name), right.document.get(name)
        if one is None or other is None or name == "source":
            continue
        if isinstance(one, bool):
            found[name] = one or other
        elif isinstance(key, Number):
            value = one + (other - one) * (size - low) / (high - low)
            if one > 0 and other > 0:
                value = one * (other / one) ** exponent
            found[name] = _rounded(key, min(max(value, key.least), key.most))
        elif one == other:
            found[name] = one
    if not found:
        return {}
    names = f"{points[low].name} and {points[high].name}"
    found["source"] = f"predicted: power law through {names} ({left.source})"
    return {"resources": found}


def _neighbours(sizes: Iterable[float], size: float, parameter: str) -> tuple[float, float]:
    """Return the two sizes that another one is between, or nearest to on a log scale."""
    measured = sorted(sizes)
    if len(measured) < 2:
        known = ", ".join(f"{parameter}={one:g}" for one in measured) or "nothing"
        raise FieldError(
            (), f"{parameter}={size:g} was not measured, and no law goes through {known} alone"
        )
    least, most = measured[0] / MOST_TIMES, measured[-1] * MOST_TIMES
    if not least <= size <= most:
        bounds = f"{parameter}={least:g} to {most:g} is within {MOST_TIMES} times what was measured"
        raise FieldError((), f"{parameter}={size:g} is extrapolated too far: {bounds}")
    return min(pairwise(measured), key=lambda pair: max(pair[0] / size, size / pair[1], 1.0))


def _rounded(key: Number[Any], value: float) -> float:
    return ceil(round(value, 6)) if isinstance(key.least, int) else float(f"{value:.6g}")
