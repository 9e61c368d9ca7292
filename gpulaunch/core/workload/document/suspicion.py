"""What is odd about a profile, though it is well formed."""

from collections.abc import Iterator

from gpulaunch.core.fields import Path
from gpulaunch.core.workload.profile import Profile

_MAXIMA = (
    ("memory_mean_mib", "memory_mib"),
    ("sm_utilization_percentage", "sm_utilization_max_percentage"),
    ("memory_bandwidth_utilization_percentage", "memory_bandwidth_utilization_max_percentage"),
    ("power_w", "power_max_w"),
)


def suspicions(profile: Profile) -> Iterator[tuple[Path, str]]:
    """Where something stands that is legal and may mislead, and what it is."""
    resources = profile.resources
    if resources.incomplete:
        yield ("resources", "incomplete"), "incomplete: the job or the sampling broke off, so the figures are of a part"
    if resources.memory_is_reservation:
        yield (
            ("resources", "memory_is_reservation"),
            "memory_is_reservation: memory_mib is what an allocator set aside, so it rules no GPU out",
        )
    if resources.utilization == "time-active":
        yield (
            ("resources", "utilization"),
            "utilization: time in which any kernel ran is no share of the SMs: sharing is refused too often by it",
        )
    for average, most in _MAXIMA:
        one, other = getattr(resources, average), getattr(resources, most)
        if one is not None and other is not None and one > other:
            yield ("resources", most), f"{most}: {other:g} is less than {average}, {one:g}"
    if profile.shared_gpu.predicted_from:
        yield ("shared_gpu", "predicted_from"), "predicted_from: these slowdowns were not measured"
    if profile.runs.misfits:
        yield ("runs", "misfits"), f"misfits: {profile.runs.misfits} latest runs did not fit: measure anew"
