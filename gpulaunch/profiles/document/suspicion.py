"""Values of a profile that are well formed and still suspicious."""
# pure: decides on plain values

from collections.abc import Iterator

from gpulaunch.files.fields import Path
from gpulaunch.profiles.document.sections import Sensitivity
from gpulaunch.profiles.profile import Profile

_MAXIMA = (
    ("memory_mean_mib", "memory_mib"),
    ("sm_utilization_percentage", "sm_utilization_max_percentage"),
    ("memory_bandwidth_utilization_percentage", "memory_bandwidth_utilization_max_percentage"),
    ("power_w", "power_max_w"),
)
_POWER_TOLERANCE = 1.02  # the average comes from an energy counter, the maximum from samples
_SLOWDOWN_TOLERANCE = 1.0  # percentage points, since papers round


def suspicions(profile: Profile) -> Iterator[tuple[Path, str]]:
    """Yield the place of each value that is legal but may mislead, and why."""
    resources = profile.resources
    if resources.incomplete:
        yield (
            ("resources", "incomplete"),
            "incomplete: the job or the sampling broke off, so the figures are of a part",
        )
    for name in ("sm_curve", "collocation", "shared_gpu"):
        if getattr(profile, name).incomplete:
            yield (name, "incomplete"), "incomplete: the job failed before all was measured"
    if resources.memory_is_reservation:
        yield (
            ("resources", "memory_is_reservation"),
            (
                "memory_is_reservation: memory_mib is what an allocator set aside, "
                "so it rules no GPU out"
            ),
        )
    if resources.utilization == "time-active":
        yield (
            ("resources", "utilization"),
            (
                "utilization: time in which any kernel ran is no share of the SMs: "
                "sharing is refused too often by it"
            ),
        )
    for average, most in _MAXIMA:
        one, other = getattr(resources, average), getattr(resources, most)
        tolerance = _POWER_TOLERANCE if average == "power_w" else 1
        if one is not None and other is not None and one > other * tolerance:
            yield ("resources", most), f"{most}: {other:g} is less than {average}, {one:g}"
    yield from _check_sensitivity(profile.sensitivity)
    if profile.shared_gpu.predicted_from:
        yield ("shared_gpu", "predicted_from"), "predicted_from: these slowdowns were not measured"
    if profile.runs.misfits:
        yield (
            ("runs", "misfits"),
            f"misfits: {profile.runs.misfits} latest runs did not fit: measure anew",
        )


def _check_sensitivity(measured: Sensitivity) -> Iterator[tuple[Path, str]]:
    best, worst, said = measured.best_s, measured.worst_s, measured.slowdown_percentage
    if best and worst is not None and said is not None:
        slowdown = 100 * (worst / best - 1)
        if abs(slowdown - said) > _SLOWDOWN_TOLERANCE:
            what = (
                f"slowdown_percentage: {said:g}, and worst_s / best_s is {slowdown:.4g} % more "
                "than 1"
            )
            yield ("sensitivity", "slowdown_percentage"), what
    best, worst = measured.best_gb_per_s, measured.worst_gb_per_s
    if best is not None and worst is not None and best < worst:
        yield (
            ("sensitivity", "best_gb_per_s"),
            f"best_gb_per_s: {best:g} is less than worst_gb_per_s, {worst:g}",
        )
