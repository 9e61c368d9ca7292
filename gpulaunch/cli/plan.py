"""`gpulaunch plan FILE`: predict which jobs of a queue to run together."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.output import Document, print_json, rounded
from gpulaunch.cli.screen import Grid, Parts, Text, draw, figure
from gpulaunch.errors import FieldError, UsageError, counted, printable, quoted
from gpulaunch.files.document import read_document
from gpulaunch.files.fields import FieldTable, ListOf, Path, RowOf, checked
from gpulaunch.files.units import format_duration, parse_size
from gpulaunch.leases.lease import OBJECTIVES, Client, Objective
from gpulaunch.machine.catalog import load_gpu_models
from gpulaunch.machine.gpu import named_gpu_model
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.demand import tells_all
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import replace
from gpulaunch.sharing.interference import judge
from gpulaunch.sharing.plan import Cost, Plan, PlannedJob, PlanSite, make_plan
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


def main(arguments: Sequence[str]) -> int:
    """Print the plan of one queue file."""
    options = make_parser().parse_args(arguments)
    file = read_document(options.file)
    try:
        gpu_model, site, jobs = _read_queue(file.data)
    except FieldError as problem:
        raise file.error(problem) from None
    document = plan_document(make_plan(jobs, site), site, gpu_model)
    if options.json:
        print_json(document)
    else:
        _draw_plan(document)
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


def _read_queue(document: Mapping[str, Any]) -> tuple[str, PlanSite, list[PlannedJob]]:
    """Return the name of the GPU model, the GPUs that the jobs will run on, and the jobs in order.

    Raises:
        FieldError: the file is wrong; docs/guides/plan.md explains the keys.
    """
    top = checked(document, _QUEUE, required=("gpu", "gpu_memory", "job"))
    if not top["job"]:
        raise FieldError(("job",), "job: there is none")
    model = _parsed(partial(named_gpu_model, load_gpu_models()), top["gpu"], ("gpu",))
    memory_bytes = _parsed(parse_size, top["gpu_memory"], ("gpu_memory",)).of_gpu_bytes
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


def _parsed(parse: Callable[[str], _Value], text: str, where: Path) -> _Value:
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
        profile = _parsed(load_profile, table["profile"], (*where, "profile"))
    name = table.get("name", profile.name)
    if not name:
        raise FieldError(where, "job: it has neither a name nor a profile")
    own = {profile_key: table[key] for key, profile_key in _FIGURES.items() if key in table}
    if "memory" in table:  # rounded up to MiB
        own["memory_mib"] = -(-_parsed(parse_size, table["memory"], (*where, "memory")) >> 20)
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


def plan_document(plan: Plan, site: PlanSite, gpu_model: str) -> Document:
    """Return the document that `gpulaunch plan --json` prints."""
    gain, objective = plan.gain, site.objective
    product = None
    if gain.energy_efficiency is not None:
        product = gain.throughput**objective.throughput_weight
        product *= gain.energy_efficiency**objective.energy_weight
    groups = []
    for number, group in enumerate(plan.groups, 1):
        predicted = {
            "start_s": rounded(group.start_s),
            **_cost(group.cost),
            "stp": rounded(group.stp),
            "antt": rounded(group.antt),
        }
        jobs = [
            {
                "name": printable(member.job.name),
                "tasks": member.job.tasks,
                "sm_percentage": member.sm_percentage,
                "curve_estimated": not tells_all(member.job.demand.curve),
                "alone_s": rounded(member.job.alone_s),
                "predicted_end_s": rounded(member.end_s),
            }
            for member in group.members
        ]
        document = {"group": number, "gpu": group.gpu, "predicted": predicted, "jobs": jobs}
        groups.append({**document, "notes": [*group.notes], "why_alone": group.why_alone})
    return {
        "gpu_model": gpu_model,
        "gpus": site.gpus,
        "objective": objective.name,
        "idle_power_w": site.capacity.idle_w,
        "idle_power_estimated": site.capacity.measured_idle_w is None,
        "sequential": _cost(plan.sequential),
        "predicted": {
            **_cost(plan.cost),
            "throughput": rounded(gain.throughput),
            "energy_efficiency": rounded(gain.energy_efficiency),
            "product": rounded(product),
        },
        "groups": groups,
    }


def _cost(cost: Cost) -> Document:
    return {"time_s": rounded(cost.time_s), "energy_j": rounded(cost.energy_j)}


def _draw_plan(document: Document) -> None:
    predicted, groups = document["predicted"], document["groups"]
    jobs = len({job["name"] for group in groups for job in group["jobs"]})
    counts = f"{counted(jobs, 'job')} in {counted(len(groups), 'group')}"
    gpus = f"{counted(document['gpus'], 'GPU')} ({printable(document['gpu_model'])})"
    ratios = []
    for name in ("throughput", "energy_efficiency", "product"):
        value = "-" if predicted[name] is None else f"{predicted[name]:.2f}"
        ratios.append(f"{name.replace('_', ' ')} {value}")
    parts: list[Text | Grid] = [
        Text(f"{counts} on {gpus}", "bold"),
        Text(f"predicted:           {_cost_text(predicted)}"),
        Text(f"one after the other: {_cost_text(document['sequential'])}"),
        Text(f"objective {document['objective']}: {', '.join(ratios)}", "bold green"),
        Text(),
    ]
    right = ("group", "GPU", "start", "time", "STP", "ANTT", "energy")
    table = Grid(*right, "jobs (share of SMs, * estimated)", right=right)
    parts.append(table)
    alone = Grid("alone", "because")
    for group in groups:
        cost = group["predicted"]
        table.add_row(
            str(group["group"]),
            str(group["gpu"]),
            format_duration(cost["start_s"]),
            format_duration(cost["time_s"]),
            f"{cost['stp']:.2f}",
            f"{cost['antt']:.2f}",
            _energy(cost),
            ", ".join(map(_member_text, group["jobs"])),
        )
        said = f"group {group['group']}: "
        parts += [Text(said + printable(note), "yellow") for note in group["notes"]]
        if group["why_alone"]:
            alone.add_row(group["jobs"][0]["name"], group["why_alone"])
    if any(group["why_alone"] for group in groups):
        parts += [Text(), alone]
    idle = ""
    if document["idle_power_w"] is not None:
        idle = f"; idle GPU: {document['idle_power_w']:.0f} W"
        idle += " (estimated)" if document["idle_power_estimated"] else ""
    parts += [Text(), Text(f"all predicted from the figures of each job alone{idle}", "dim")]
    draw(Parts(*parts), sys.stdout)


def _member_text(job: Document) -> str:
    tasks = f" x{job['tasks']}" if job["tasks"] > 1 else ""
    estimated = "*" if job["curve_estimated"] else ""
    share = "alone" if job["sm_percentage"] is None else f"{job['sm_percentage']} %{estimated}"
    return f"{job['name']}{tasks} ({share})"


def _cost_text(cost: Document) -> str:
    return f"{format_duration(cost['time_s'])}, energy {_energy(cost)}"


def _energy(cost: Document) -> str:
    return "unknown" if cost["energy_j"] is None else f"{figure(cost['energy_j'] / 1000)} kJ"
