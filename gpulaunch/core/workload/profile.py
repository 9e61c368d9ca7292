"""What is known about a job before it runs: the document of profiles/workloads/NAME.toml -> Profile."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpulaunch.core.fields import FieldTable, checked
from gpulaunch.core.workload.pattern import PATTERNS

_PROFILE: FieldTable = {"name": str, "description": str, "gpus": (1, 1 << 20), "communication": dict, "resources": dict}
_COMMUNICATION: FieldTable = {
    "pattern": tuple(PATTERNS),
    "bandwidth_sensitive": bool,
    "collective_calls_per_iteration": (0, 1 << 62),
    "source": str,
}
_RESOURCES: FieldTable = {
    "memory_mib": (1, 1 << 30),
    "memory_is_reservation": bool,
    "sm_utilization_percentage": (0.0, 100.0),
    "memory_bandwidth_utilization_percentage": (0.0, 100.0),
    "power_w": (0.0, 1e5),
    "energy_j": (0.0, 1e15),
    "duration_s": (0.0, 1e9),
    "measured_on": str,
    "source": str,
}


class Profile(NamedTuple):
    """A job's communication and its use of one GPU; None where nothing is known.

    Attributes:
        name: how the command line calls it.
        description: one line.
        gpus: how many it asks for when the command line does not say.
        pattern: name of its communication pattern.
        bandwidth_sensitive: whether faster links make it faster.
        collective_calls_per_iteration: of one GPU.
        communication_source: where these three come from.
        memory_bytes: most device memory it held on one GPU.
        memory_is_reservation: that figure is what an allocator set aside, not what the job needs.
        sm_utilization_percentage: average share of time, 0-100, in which a kernel ran.
        memory_bandwidth_utilization_percentage: average, 0-100.
        power_w: average.
        energy_j: of one run.
        duration_s: of one run.
        measured_on: GPU of the resource figures.
        resources_source: where they come from.
    """

    name: str
    description: str = ""
    gpus: int | None = None
    pattern: str | None = None
    bandwidth_sensitive: bool | None = None
    collective_calls_per_iteration: int | None = None
    communication_source: str | None = None
    memory_bytes: int | None = None
    memory_is_reservation: bool = False
    sm_utilization_percentage: float | None = None
    memory_bandwidth_utilization_percentage: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    duration_s: float | None = None
    measured_on: str | None = None
    resources_source: str | None = None


def parse_profile(document: Mapping[str, Any]) -> Profile:
    """Read a profile from its parsed TOML; the keys are explained in docs/profiles.md.

    Raises:
        FieldError: a key is unknown or missing, or its value has the wrong type or range.
    """
    top = checked(document, _PROFILE, required=("name",))
    communication = _section(top, "communication", _COMMUNICATION)
    resources = _section(top, "resources", _RESOURCES)
    memory_mib = resources.get("memory_mib")
    return Profile(
        name=top["name"],
        description=top.get("description", ""),
        gpus=top.get("gpus"),
        pattern=communication.get("pattern"),
        bandwidth_sensitive=communication.get("bandwidth_sensitive"),
        collective_calls_per_iteration=communication.get("collective_calls_per_iteration"),
        communication_source=communication.get("source"),
        memory_bytes=None if memory_mib is None else memory_mib << 20,
        memory_is_reservation=resources.get("memory_is_reservation", False),
        sm_utilization_percentage=resources.get("sm_utilization_percentage"),
        memory_bandwidth_utilization_percentage=resources.get("memory_bandwidth_utilization_percentage"),
        power_w=resources.get("power_w"),
        energy_j=resources.get("energy_j"),
        duration_s=resources.get("duration_s"),
        measured_on=resources.get("measured_on"),
        resources_source=resources.get("source"),
    )


def _section(top: Mapping[str, Any], name: str, fields: FieldTable) -> Mapping[str, Any]:
    """A table of the file; figures in it need a source."""
    return checked(top[name], fields, required=("source",), where=(name,)) if name in top else {}
