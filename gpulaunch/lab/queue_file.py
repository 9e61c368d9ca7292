"""The queue of jobs that `gpulaunch plan` plans, from a TOML file."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from gpulaunch.errors import FieldError, UsageError, quoted
from gpulaunch.files.document import parsed, read_document
from gpulaunch.files.fields import FieldTable, ListOf, Path, RowOf, checked
from gpulaunch.files.units import parse_size
from gpulaunch.leases.lease import OBJECTIVES, Client, Objective
from gpulaunch.machine.catalog import load_gpu_models
from gpulaunch.machine.gpu import named_gpu_model
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import replace
from gpulaunch.sharing.interference import judge
from gpulaunch.sharing.plan import PlannedJob, PlanSite
from gpulaunch.sharing.speed import capacity_by, with_headroom

_Value = TypeVar("_Value")

_QUEUE: FieldTable = {
    "gpu": str,
    "gpu_memory": str,
    "gpus": (1, 1024),
    "objective": OBJECTIVES,
    "weights": RowOf((0.0, 10.0), (0.0, 10.0)),
    "throughput_tolerance_percentage": (0.0, 100.0),
    "idle_power_w": (0.0, 1e5),
    "job": list,
}
_JOB: FieldTable = {
    "name": str,
    "profile": str,
    "sm": (0.0, 100.0),
    "memory_bandwidth": (0.0, 100.0),
    "memory": str,
    "power_w": (0.0, 1e5),
    "duration_s": (0.001, 1e9),
    "repetitions": (1, 1_000_000),
    "after": ListOf(str),
}
_FIGURES = {
    "sm": "sm_utilization_percentage",
    "memory_bandwidth": "memory_bandwidth_utilization_percentage",
    "power_w": "power_w",
    "duration_s": "duration_s",
}
"""Keys of a job -> those of a profile that they take the place of."""

_NAMES = {
    "sm": "average SM utilization",
    "memory_bandwidth": "average memory-bandwidth utilization",
    "memory": "maximum memory",
}
"""Keys of a job -> what a profile calls them."""


def read_queue(path: str) -> tuple[str, PlanSite, list[PlannedJob]]:
    """Return the name of the GPU model, the GPUs that the jobs will run on, and the jobs in order.

    Raises:
        UsageError: the file is wrong; docs/guides/plan.md explains the keys.
    """
    return parsed(read_document(path), _read_queue)


def _read_queue(document: Mapping[str, Any]) -> tuple[str, PlanSite, list[PlannedJob]]:
    top = checked(document, _QUEUE, required=("gpu", "gpu_memory", "job"))
    if not top["job"]:
        raise FieldError(("job",), "job: there is none")
    model = _meaning(partial(named_gpu_model, load_gpu_models()), top["gpu"], ("gpu",))
    memory_bytes = _meaning(parse_size, top["gpu_memory"], ("gpu_memory",)).of_gpu_bytes
    capacity = capacity_by(model, memory_bytes, model.mps_clients)
    capacity = replace(capacity, measured_idle_w=top.get("idle_power_w"))
    usual = Objective()
    throughput_weight, energy_weight = top.get("weights", (1.0, 1.0))
    if not throughput_weight and not energy_weight:
        raise FieldError(("weights",), "weights: one of them must be above 0")
    objective = Objective(
        top.get("objective", usual.name),
        throughput_weight,
        energy_weight,
        top.get("throughput_tolerance_percentage", usual.throughput_tolerance_percentage),
    )
    site = PlanSite(capacity, top.get("gpus", 1), objective)
    jobs: list[PlannedJob] = []
    for place, entry in enumerate(top["job"]):
        where: Path = ("job", place)
        job = _job(entry, where, site)
        before = [one.name for one in jobs]
        if job.name in before:
            raise FieldError((*where, "name"), f"name: there are two jobs {quoted(job.name)}")
        for name in job.after:
            if name not in before:
                raise FieldError(
                    (*where, "after"),
                    f"after: no job before this one in the file is called {quoted(name)}",
                )
        jobs.append(job)
    return model.name, site, jobs


def _meaning(parse: Callable[[str], _Value], text: str, where: Path) -> _Value:
    """Return what a text of the file means to a function that refuses others."""
    try:
        return parse(text)
    except UsageError as problem:
        hint = f": {problem.hint}" if problem.hint else ""
        raise FieldError(where, f"{where[-1]}: {problem.message}{hint}") from None


def _job(entry: object, where: Path, site: PlanSite) -> PlannedJob:
    table = checked(entry, _JOB, where=where)
    profile = Profile()
    if "profile" in table:
        profile = _meaning(load_profile, table["profile"], (*where, "profile"))
    name = table.get("name", profile.name)
    if not name:
        raise FieldError(where, "job: it has neither a name nor a profile")
    own = {profile_key: table[key] for key, profile_key in _FIGURES.items() if key in table}
    if "memory" in table:  # rounded up to MiB
        own["memory_mib"] = -(-_meaning(parse_size, table["memory"], (*where, "memory")) >> 20)
    known = profile.but(name=profile.name or name, resources=own)
    if known.demand is None or not known.resources.duration_s:
        missing = [key for key, name in _NAMES.items() if name in known.missing_demand]
        missing += [] if known.resources.duration_s else ["duration_s"]
        raise FieldError(where, f"job {quoted(name)}: nobody says its {', '.join(missing)}")
    demand = known.demand
    if "memory" not in table:
        limit = with_headroom(demand.memory_bytes, [site.capacity.memory_bytes])
        demand = replace(demand, memory_bytes=limit)
    client = Client(demand, site.objective, known.gpu_slowdowns, known.measured_on_one_gpu)
    alone = judge([client], site.capacity)
    if not alone.compatible:
        raise FieldError(
            where, f"job {quoted(name)} does not fit on the GPU: {'; '.join(alone.reasons)}"
        )
    tasks, after = table.get("repetitions", 1), tuple(table.get("after", ()))
    return PlannedJob(name, client, known.resources.duration_s, tasks, after)
