"""A profile as a JSON document."""

from gpulaunch.profiles.catalog import is_benchmark
from gpulaunch.profiles.layers import variants_of
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import as_dict
from gpulaunch.show import Document

_COMMUNICATION = ("pattern", "bandwidth_sensitive", "collective_calls_per_iteration")
_RESOURCES = (
    *("sm_utilization_percentage", "memory_bandwidth_utilization_percentage"),
    *("power_w", "energy_j", "duration_s", "measured_on"),
)


def profile_document(profile: Profile, path: str) -> Document:
    """Return the document that `gpulaunch profiles show NAME --json` prints.

    The key "document" has everything, as in a file; the keys beside it are older than that and are
    kept for compatibility.
    """
    communication, resources, counters = (
        profile.communication,
        profile.resources,
        profile.llc_counters,
    )
    return {
        "name": profile.name,
        "description": profile.description,
        "benchmark": is_benchmark(path),
        "gpus": profile.gpus,
        **{key: getattr(communication, key) for key in _COMMUNICATION},
        "communication_share": profile.communication_share,
        "split_slowdown": profile.split_slowdown,
        "communication_source": communication.source,
        **{
            key: getattr(profile.placement, key)
            for key in ("min_bandwidth_gb_per_s", "min_utility")
        },
        **{key: bool(getattr(profile.placement, key)) for key in ("single_node", "one_per_node")},
        "host_gb_per_s": profile.placement.host_gb_per_s,
        "slowdowns": profile.slowdowns,
        "collocation_source": profile.collocation.source,
        "memory_bytes": profile.memory_bytes,
        "memory_is_reservation": bool(resources.memory_is_reservation),
        **{key: getattr(resources, key) for key in _RESOURCES},
        "resources_source": resources.source,
        "share": profile.sharing.share,
        "sm_percentage": profile.sharing.sm_percentage,
        "sm_curve": [as_dict(point) for point in profile.curve],
        "sm_curve_source": profile.sm_curve.source,
        "counters": as_dict(counters) if counters else None,
        "counters_source": profile.counters.source,
        "variants": [f"{profile.name}@{variant}" for variant in variants_of(profile)],
        "document": profile.document,
        "path": path,
    }
