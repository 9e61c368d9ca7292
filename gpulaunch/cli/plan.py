"""`gpulaunch plan FILE`: predict which jobs of a queue to run together."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.output import print_json
from gpulaunch.errors import FieldError, UsageError, quoted
from gpulaunch.files.document import read_document
from gpulaunch.files.fields import FieldTable, ListOf, Path, RowOf, checked
from gpulaunch.files.units import parse_size
from gpulaunch.leases.lease import OBJECTIVES, Client, Objective
from gpulaunch.machine.catalog import load_gpu_models
from gpulaunch.machine.gpu_model import named_gpu_model
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import replace
from gpulaunch.sharing.interference import judge
from gpulaunch.sharing.plan import PlannedJob, PlanSite, make_plan
from gpulaunch.sharing.speed import capacity_by, idle_power, with_headroom

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
    "parallel": (1, 1024),
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


def main(arguments: Sequence[str]) -> int:
    """Print the plan of one queue file."""
    options = make_parser().parse_args(arguments)
    gpu_model, site, jobs = _load_queue(options.file)
    plan = make_plan(jobs, site)
    from gpulaunch.cli.screen import draw
    from gpulaunch.show.plan import plan_document, plan_table

    document = plan_document(plan, site, gpu_model)
    if options.json:
        print_json(document)
    else:
        draw(plan_table(document), sys.stdout)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch plan",
        "Which jobs of a queue to run together on a GPU, through CUDA MPS: a prediction.",
    )
    parser.add_argument("file", metavar="FILE", help="the queue, in TOML (see docs/guides/plan.md)")
    add_json(parser)
    return parser


def _load_queue(path: str) -> tuple[str, PlanSite, tuple[PlannedJob, ...]]:
    """Read a queue file; the keys are explained in docs/guides/plan.md.

    Returns:
        The name of the GPU model, the GPUs that the jobs will run on, and the jobs in order.

    Raises:
        UsageError: it cannot be read, or is wrong; with path and line.
    """
    document = read_document(path)
    try:
        return _read_queue(document.data)
    except FieldError as problem:
        raise document.error(problem) from None


def _read_queue(document: Mapping[str, Any]) -> tuple[str, PlanSite, tuple[PlannedJob, ...]]:
    top = checked(document, _QUEUE, required=("gpu", "gpu_memory", "job"))
    if not top["job"]:
        raise FieldError(("job",), "job: there is none")
    model = _parsed(partial(named_gpu_model, load_gpu_models()), top["gpu"], ("gpu",))
    memory_bytes = _parsed(parse_size, top["gpu_memory"], ("gpu_memory",)).of_gpu_bytes
    capacity = capacity_by(model, memory_bytes, model.mps_clients)
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
    idle_w = idle_power(capacity, top.get("idle_power_w"))
    is_estimated = "idle_power_w" not in top
    site = PlanSite(capacity, top.get("gpus", 1), objective, idle_w, is_estimated)
    jobs: list[PlannedJob] = []
    workflows: dict[str, list[str]] = {}  # what the workflows of each job are called
    taken: set[str] = set()
    for place, entry in enumerate(top["job"]):
        where: Path = ("job", place)
        job, parallel = _job(entry, where, site)
        after: list[str] = []
        for name in job.after:
            if name not in workflows:
                raise FieldError(
                    (*where, "after"),
                    f"after: no job before this one in the file is called {quoted(name)}",
                )
            after += workflows[name]
        names = [job.name]
        if parallel > 1:
            names = [f"{job.name} {number}/{parallel}" for number in range(1, parallel + 1)]
        for name in (job.name, *names):
            if name in taken:
                raise FieldError((*where, "name"), f"name: there are two jobs {quoted(name)}")
        taken.update((job.name, *names))
        workflows[job.name] = names
        jobs += [replace(job, name=name, after=tuple(after)) for name in names]
    return model.name, site, tuple(jobs)


def _parsed(parse: Callable[[str], _Value], text: str, where: Path) -> _Value:
    """Return what a text of the file means to a function that refuses others."""
    try:
        return parse(text)
    except UsageError as problem:
        hint = f": {problem.hint}" if problem.hint else ""
        raise FieldError(where, f"{where[-1]}: {problem.message}{hint}") from None


def _job(entry: object, where: Path, site: PlanSite) -> tuple[PlannedJob, int]:
    """Return one workflow of a job, with the name of the job, and how many there are."""
    table = checked(entry, _JOB, where=where)
    profile = Profile()
    if "profile" in table:
        profile = _parsed(load_profile, table["profile"], (*where, "profile"))
    name = table.get("name", profile.name)
    if not name:
        raise FieldError(where, "job: it has neither a name nor a profile")
    known = _corrected(profile.but(name=profile.name or name), table, where)
    if known.demand is None or not known.resources.duration_s:
        missing = [key for key, name in _NAMES.items() if name in known.missing_demand]
        missing += [] if known.resources.duration_s else ["duration_s"]
        raise FieldError(where, f"job {quoted(name)}: nobody says its {', '.join(missing)}")
    demand = known.demand
    if "memory" not in table:
        sizes = [site.capacity.memory_bytes]
        limit = with_headroom(demand.memory_bytes, sizes)
        demand = replace(demand, memory_bytes=limit)
    client = Client(
        demand,
        site.objective,
        known.gpu_slowdowns,
        known.measured_on_one_gpu,
    )
    alone = judge([client], site.capacity)
    if not alone.compatible:
        raise FieldError(
            where, f"job {quoted(name)} does not fit on the GPU: {'; '.join(alone.reasons)}"
        )
    repetitions, parallel = table.get("repetitions", 1), table.get("parallel", 1)
    if repetitions % parallel:
        raise FieldError(
            (*where, "parallel"),
            f"parallel: {parallel} workflows cannot share {repetitions} tasks evenly",
        )
    after = tuple(table.get("after", ()))
    tasks = repetitions // parallel
    return PlannedJob(name, client, known.resources.duration_s, tasks, after), parallel


def _corrected(profile: Profile, table: Mapping[str, Any], where: Path) -> Profile:
    """Return a profile with the job's own figures in place of others.

    Memory is rounded up to MiB.
    """
    own = {profile_key: table[key] for key, profile_key in _FIGURES.items() if key in table}
    if "memory" in table:
        own["memory_mib"] = -(-_parsed(parse_size, table["memory"], (*where, "memory")) >> 20)
    return profile.but(resources=own)
