"""`gpulaunch plan FILE`: predict which jobs of a queue to run together."""

import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.output import Document, print_json, rounded
from gpulaunch.cli.screen import Grid, Parts, Text, draw, figure
from gpulaunch.errors import counted, printable
from gpulaunch.files.units import format_duration
from gpulaunch.lab.queue_file import read_queue
from gpulaunch.profiles.demand import tells_all
from gpulaunch.sharing.plan import Cost, Plan, PlanSite, make_plan


def main(arguments: Sequence[str]) -> int:
    """Print the plan of one queue file."""
    options = make_parser().parse_args(arguments)
    gpu_model, site, jobs = read_queue(options.file)
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
