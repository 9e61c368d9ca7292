"""Predicted slowdowns of a job without pair data, borrowed from the nearest profile."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from gpulaunch.errors import UsageError
from gpulaunch.machine.catalog import load_gpu_models, memory_of
from gpulaunch.machine.gpu_model import GpuModel, find_gpu_model
from gpulaunch.measure.nearest_profile import SoloUse, nearest_profile
from gpulaunch.profiles.catalog import load_profile, profile_names
from gpulaunch.profiles.profile import Profile
from gpulaunch.typing import Any


def borrowed(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the [shared_gpu] section of the nearest profile; None if none is near.

    The section names the profile that it comes from and says that it is a prediction.

    Args:
        document: the document of the profile that lacks the section.
    """
    job, models = Profile(dict(document)), load_gpu_models()
    lenders = {profile.name: profile for profile in _find_lenders() if profile.name != job.name}
    found = nearest_profile(
        _figures_of(job, models), (_figures_of(profile, models) for profile in lenders.values())
    )
    if found is None:
        return None
    slowdowns = dict(lenders[found.name].shared_gpu.slowdown_percentage)
    source = f"predicted: {found.because}"
    return {"slowdown_percentage": slowdowns, "predicted_from": found.name, "source": source}


def _find_lenders() -> Iterator[Profile]:
    """Yield the known profiles whose slowdowns on a shared GPU were measured."""
    for name in profile_names():
        with suppress(UsageError):  # a broken profile must not fail the measuring of this job
            profile = load_profile(name)
            if profile.shared_gpu.slowdown_percentage and not profile.shared_gpu.predicted_from:
                yield profile


def _figures_of(profile: Profile, models: tuple[GpuModel, ...]) -> SoloUse:
    """Return what a profile knows of its job's use of one GPU, as shares of the GPU."""
    used = profile.resources
    model = find_gpu_model(models, used.measured_on or "")
    card_bytes = None if used.memory_is_reservation else memory_of(used.measured_on or "")
    memory = profile.memory_bytes / card_bytes if profile.memory_bytes and card_bytes else None
    power = used.power_w / model.power_limit_w if model and used.power_w is not None else None
    return SoloUse(
        profile.name,
        used.sm_utilization_percentage,
        used.memory_bandwidth_utilization_percentage,
        memory_share=memory,
        power_share=power,
        intensity=profile.classification.intensity,
        utilization=used.utilization,
    )
