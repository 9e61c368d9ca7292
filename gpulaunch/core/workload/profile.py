"""What is known about a job before it runs: the document of profiles/workloads/NAME.toml -> Profile."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from gpulaunch.core.fields import FieldTable, checked
from gpulaunch.core.sharing.demand import Counters, CurvePoint, Demand
from gpulaunch.core.workload.pattern import PATTERNS
from gpulaunch.errors import FieldError

_PROFILE: FieldTable = {
    "name": str,
    "description": str,
    "gpus": (1, 1 << 20),
    "communication": dict,
    "placement": dict,
    "collocation": dict,
    "resources": dict,
    "sharing": dict,
    "sm_curve": dict,
    "counters": dict,
}
_COMMUNICATION: FieldTable = {
    "pattern": tuple(PATTERNS),
    "bandwidth_sensitive": bool,
    "collective_calls_per_iteration": (0, 1 << 62),
    "time_percentage": (0.0, 100.0),
    "split_slowdown_percentage": (0.0, 1e4),
    "source": str,
}
_PLACEMENT: FieldTable = {
    "min_bandwidth_gb_per_s": (0.001, 1e6),
    "min_utility": (0.0, 1.0),
    "single_node": bool,
    "one_per_node": bool,
    "host_gb_per_s": (0.001, 1e6),
}
_COLLOCATION: FieldTable = {"slowdown_percentage": dict, "source": str}
_SLOWDOWN = (0.0, 1e4)
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
_SHARING: FieldTable = {"share": bool, "sm_percentage": (1, 100)}
_SM_CURVE: FieldTable = {"sm_percentage": list, "throughput": list, "measured_on": str, "source": str}
_MOST_POINTS = 100
_COUNTERS: FieldTable = {
    "llc_accesses_per_kilo_instruction": (0.0, 1e6),
    "llc_hit_rate_percentage": (0.0, 100.0),
    "bytes_per_access": (1, 1024),
    "measured_on": str,
    "source": str,
}


class Profile(NamedTuple):
    """A job's communication, what it needs of a placement, and its use of one GPU; None where nothing is known.

    Attributes:
        name: how the command line calls it.
        description: one line.
        gpus: how many it asks for when the command line does not say.
        pattern: name of its communication pattern.
        bandwidth_sensitive: whether faster links make it faster.
        collective_calls_per_iteration: of one GPU.
        communication_share: share of its time, 0 to 1, in which it waits for its links on the best GPUs.
        split_slowdown: how much longer it takes with its GPUs on several sockets; 0.25 is 25 %.
        communication_source: where these five come from.
        min_bandwidth_gb_per_s: least effective bandwidth that it is to start with.
        min_utility: under this utility, 0 to 1, topo_aware_p lets it wait.
        single_node: all its GPUs must be in one machine.
        one_per_node: each must be in a machine of its own.
        host_gb_per_s: what the process of each GPU moves in its socket's memory.
        slowdowns: name of another profile, and how much longer this job takes beside that one on the same socket, for
            each that is known: its time there divided by its time alone, less 1.
        collocation_source: where they come from.
        memory_bytes: most device memory it held on one GPU.
        memory_is_reservation: that figure is what an allocator set aside, not what the job needs.
        sm_utilization_percentage: average share of time, 0-100, in which a kernel ran.
        memory_bandwidth_utilization_percentage: average, 0-100.
        power_w: average.
        energy_j: of one run.
        duration_s: of one run.
        measured_on: GPU of the resource figures.
        resources_source: where they come from.
        share: whether it is to share GPUs when the command line does not say.
        sm_percentage: share of SMs that it is to have then, 1-100.
        sm_curve: throughput over the share of SMs, by ascending share; empty if nobody has measured it.
        sm_curve_source: where that comes from.
        counters: for the off-SM bandwidth model.
        counters_source: where they come from.
    """

    name: str
    description: str = ""
    gpus: int | None = None
    pattern: str | None = None
    bandwidth_sensitive: bool | None = None
    collective_calls_per_iteration: int | None = None
    communication_share: float | None = None
    split_slowdown: float | None = None
    communication_source: str | None = None
    min_bandwidth_gb_per_s: float | None = None
    min_utility: float | None = None
    single_node: bool = False
    one_per_node: bool = False
    host_gb_per_s: float | None = None
    slowdowns: tuple[tuple[str, float], ...] = ()
    collocation_source: str | None = None
    memory_bytes: int | None = None
    memory_is_reservation: bool = False
    sm_utilization_percentage: float | None = None
    memory_bandwidth_utilization_percentage: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    duration_s: float | None = None
    measured_on: str | None = None
    resources_source: str | None = None
    share: bool | None = None
    sm_percentage: int | None = None
    sm_curve: tuple[CurvePoint, ...] = ()
    sm_curve_source: str | None = None
    counters: Counters | None = None
    counters_source: str | None = None

    @property
    def missing_demand(self) -> list[str]:
        """Figures without which nobody can tell whether the job may share a GPU."""
        figures = {
            "average SM utilization": self.sm_utilization_percentage,
            "average memory-bandwidth utilization": self.memory_bandwidth_utilization_percentage,
            "maximum memory": self.memory_bytes,
        }
        return [name for name, value in figures.items() if value is None]

    @property
    def demand(self) -> Demand | None:
        """What the job uses of one GPU; None while any figure is missing."""
        sm, bandwidth, memory = (
            self.sm_utilization_percentage,
            self.memory_bandwidth_utilization_percentage,
            self.memory_bytes,
        )
        if sm is None or bandwidth is None or memory is None:
            return None
        return Demand(self.name, sm, bandwidth, memory, self.power_w, self.sm_curve, self.counters)


def parse_profile(document: Mapping[str, Any]) -> Profile:
    """Read a profile from its parsed TOML; the keys are explained in docs/profiles.md.

    Raises:
        FieldError: a key is unknown or missing, or its value has the wrong type or range.
    """
    top = checked(document, _PROFILE, required=("name",))
    communication = _section(top, "communication", _COMMUNICATION)
    placement = _placement(top)
    resources = _section(top, "resources", _RESOURCES)
    sharing = checked(top.get("sharing", {}), _SHARING, where=("sharing",))
    memory_mib = resources.get("memory_mib")
    return Profile(
        name=top["name"],
        description=top.get("description", ""),
        gpus=top.get("gpus"),
        pattern=communication.get("pattern"),
        bandwidth_sensitive=communication.get("bandwidth_sensitive"),
        collective_calls_per_iteration=communication.get("collective_calls_per_iteration"),
        communication_share=_share(communication, "time_percentage"),
        split_slowdown=_share(communication, "split_slowdown_percentage"),
        communication_source=communication.get("source"),
        min_bandwidth_gb_per_s=placement.get("min_bandwidth_gb_per_s"),
        min_utility=placement.get("min_utility"),
        single_node=placement.get("single_node", False),
        one_per_node=placement.get("one_per_node", False),
        host_gb_per_s=placement.get("host_gb_per_s"),
        slowdowns=_slowdowns(top),
        collocation_source=top.get("collocation", {}).get("source"),
        memory_bytes=None if memory_mib is None else memory_mib << 20,
        memory_is_reservation=resources.get("memory_is_reservation", False),
        sm_utilization_percentage=resources.get("sm_utilization_percentage"),
        memory_bandwidth_utilization_percentage=resources.get("memory_bandwidth_utilization_percentage"),
        power_w=resources.get("power_w"),
        energy_j=resources.get("energy_j"),
        duration_s=resources.get("duration_s"),
        measured_on=resources.get("measured_on"),
        resources_source=resources.get("source"),
        share=sharing.get("share"),
        sm_percentage=sharing.get("sm_percentage"),
        sm_curve=_curve(top),
        sm_curve_source=top.get("sm_curve", {}).get("source"),
        counters=_counters(top),
        counters_source=top.get("counters", {}).get("source"),
    )


def _placement(top: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the job needs: whoever writes the profile decides that, so it has no source."""
    placement = checked(top.get("placement", {}), _PLACEMENT, where=("placement",))
    if placement.get("single_node") and placement.get("one_per_node"):
        problem = "true, and so is single_node: GPUs in one machine are not each in a machine of its own"
        raise FieldError(("placement", "one_per_node"), f"one_per_node: {problem}")
    return placement


def _slowdowns(top: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Slowdowns as fractions, as topo-aware-sc17 4.2 and 5.1 measure them."""
    percentages = _section(top, "collocation", _COLLOCATION).get("slowdown_percentage", {})
    where = ("collocation", "slowdown_percentage")
    checked(percentages, dict.fromkeys(percentages, _SLOWDOWN), where=where)
    return tuple((other, percentage / 100) for other, percentage in percentages.items())


def _curve(top: Mapping[str, Any]) -> tuple[CurvePoint, ...]:
    """Throughput over the share of SMs (cd-search-ics18 Figure 7, mps-sharing-2024 Figure 1), shares ascending."""
    section = _section(top, "sm_curve", _SM_CURVE)
    if not section:
        return ()
    for key in ("sm_percentage", "throughput"):
        if key not in section:
            raise FieldError(("sm_curve",), f"key {key!r} is missing in sm_curve")
    shares = _numbers(section, "sm_percentage", 100.0)
    throughputs = _numbers(section, "throughput", 1e15)
    if len(shares) != len(throughputs):
        problem = f"{len(throughputs)} values for {len(shares)} shares"
        raise FieldError(("sm_curve", "throughput"), f"throughput: {problem}")
    if any(one >= other for one, other in pairwise(shares)):
        raise FieldError(("sm_curve", "sm_percentage"), "sm_percentage: the shares do not ascend")
    return tuple(map(CurvePoint, shares, throughputs))


def _numbers(section: Mapping[str, Any], key: str, most: float) -> list[float]:
    values = section[key]
    if not 1 <= len(values) <= _MOST_POINTS:
        raise FieldError(("sm_curve", key), f"{key}: {len(values)} values, 1 to {_MOST_POINTS} are needed")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            raise FieldError(("sm_curve", key), f"{key}: {value!r} is no number above 0, {most:g} at most")
    return [float(value) for value in values]


def _counters(top: Mapping[str, Any]) -> Counters | None:
    section = _section(top, "counters", _COUNTERS)
    needed = ("llc_accesses_per_kilo_instruction", "llc_hit_rate_percentage")
    if not section:
        return None
    checked(section, _COUNTERS, required=needed, where=("counters",))
    accesses, hit_rate = (section[key] for key in needed)
    return Counters(
        accesses, hit_rate / 100, section.get("bytes_per_access", Counters._field_defaults["bytes_per_access"])
    )


def _share(section: Mapping[str, Any], key: str) -> float | None:
    """A percentage as a fraction."""
    return section[key] / 100 if key in section else None


def _section(top: Mapping[str, Any], name: str, fields: FieldTable) -> Mapping[str, Any]:
    """A table of the file; figures in it need a source."""
    return checked(top[name], fields, required=("source",), where=(name,)) if name in top else {}
