"""A job without pair data borrows that of the nearest profile; what comes of it is a prediction, and is called one."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from gpulaunch.errors import UsageError
from gpulaunch.machine.catalog import load_gpu_models, memory_of
from gpulaunch.machine.gpu_model import GpuModel, find_gpu_model
from gpulaunch.measure.nearest_profile import Figures, nearest_profile
from gpulaunch.profiles.catalog import load_profile, profile_names
from gpulaunch.profiles.profile import Profile
from gpulaunch.typing import Any


def borrowed(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The [shared_gpu] that the nearest profile lends; None if none is near.

    Args:
        document: of the profile that lacks it.
    """
    job, models = Profile(dict(document)), load_gpu_models()
    lenders = {profile.name: profile for profile in _lenders() if profile.name != job.name}
    found = nearest_profile(
        _figures(job, models), (_figures(profile, models) for profile in lenders.values())
    )
    if found is None:
        return None
    slowdowns = dict(lenders[found.name].shared_gpu.slowdown_percentage)
    source = f"predicted: {found.because}"
    return {"slowdown_percentage": slowdowns, "predicted_from": found.name, "source": source}


def _lenders() -> Iterator[Profile]:
    """The profiles in reach whose slowdowns on a shared GPU were measured."""
    for name in profile_names():
        with suppress(UsageError):  # somebody's broken profile is not this job's problem
            profile = load_profile(name)
            if profile.shared_gpu.slowdown_percentage and not profile.shared_gpu.predicted_from:
                yield profile


def _figures(profile: Profile, models: tuple[GpuModel, ...]) -> Figures:
    used = profile.resources
    model = find_gpu_model(models, used.measured_on or "")
    card_bytes = None if used.memory_is_reservation else memory_of(used.measured_on or "")
    power = used.power_w / model.power_limit_w if model and used.power_w is not None else None
    return Figures(
        profile.name,
        used.sm_utilization_percentage,
        used.memory_bandwidth_utilization_percentage,
        memory_share=profile.memory_bytes / card_bytes
        if profile.memory_bytes and card_bytes
        else None,
        power_share=power,
        intensity=profile.classification.intensity,
        utilization=used.utilization,
    )
