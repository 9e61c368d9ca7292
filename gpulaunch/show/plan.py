"""A plan as a JSON document, whose predictions are under "predicted", and as a table."""

from collections.abc import Sequence

from gpulaunch.errors import counted, printable
from gpulaunch.files.duration import format_duration
from gpulaunch.sharing.plan import Configurations, Group, GroupMember, Plan
from gpulaunch.sharing.plan_file import Queue
from gpulaunch.sharing.prediction import Gain
from gpulaunch.sharing.workload import Cost, PlanSite
from gpulaunch.show import Document
from gpulaunch.show.terminal import Grid, Text, figure, make_table
from gpulaunch.show.terminal import Group as Parts

_RATIOS = ("throughput", "energy_efficiency", "product")


def plan_document(plan: Plan, queue: Queue) -> Document:
    """Return the document that `gpulaunch plan --json` prints."""
    site = queue.site
    return {
        "gpu_model": queue.gpu_model,
        "gpus": site.gpus,
        "objective": site.objective.name,
        "throughput_weight": site.objective.throughput_weight,
        "energy_weight": site.objective.energy_weight,
        "throughput_tolerance_percentage": site.objective.throughput_tolerance_percentage,
        "idle_power_w": site.idle_w,
        "idle_power_estimated": queue.idle_estimated,
        "sequential": _cost(plan.sequential),
        "predicted": _predicted(plan.cost, plan.gain, site),
        "groups": [_group(number, group, site) for number, group in enumerate(plan.groups, 1)],
        "configurations": [_configurations(entry, site) for entry in plan.configurations],
    }


def _cost(cost: Cost) -> Document:
    return {"time_s": _rounded(cost.time_s), "energy_j": _rounded(cost.energy_j)}


def _predicted(cost: Cost, gain: Gain, site: PlanSite) -> Document:
    product = gain.product(site.objective.throughput_weight, site.objective.energy_weight)
    ratios = (gain.throughput, gain.energy_efficiency, product)
    return _cost(cost) | dict(zip(_RATIOS, map(_rounded, ratios), strict=True))


def _group(number: int, group: Group, site: PlanSite) -> Document:
    return {
        "group": number,
        "gpu": group.gpu,
        "predicted": {
            "start_s": _rounded(group.start_s),
            **_predicted(group.cost, group.gain, site),
            "stp": _rounded(group.stp),
            "antt": _rounded(group.antt),
        },
        "jobs": [_member(member) for member in group.members],
        "notes": list(group.notes),
        "why_alone": group.why_alone,
    }


def _member(member: GroupMember) -> Document:
    flow = member.workflow
    return {
        "name": printable(flow.job.name),
        "workflow": flow.number,
        "workflows": flow.job.parallel,
        "tasks": flow.tasks,
        "sm_percentage": member.sm_percentage,
        "alone_s": _rounded(flow.alone_s),
        "predicted_end_s": _rounded(member.end_s),
    }


def _configurations(entry: Configurations, site: PlanSite) -> Document:
    choices = [
        {
            "tasks": choice.tasks,
            "workflows": choice.workflows,
            "predicted": _predicted(choice.cost, choice.gain, site),
        }
        for choice in entry.choices
    ]
    return {
        "job": printable(entry.job.name),
        "repetitions": entry.job.repetitions,
        "choices": choices,
        "best": {"tasks": entry.best.tasks, "workflows": entry.best.workflows},
        "limits": list(entry.limits),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def plan_table(document: Document) -> Parts:
    """Return what to run together, what alone and why, and how to divide repeated jobs.

    Args:
        document: the document from plan_document.
    """
    jobs = len({job["name"] for group in document["groups"] for job in group["jobs"]})
    counts = f"{counted(jobs, 'job')} in {counted(len(document['groups']), 'group')}"
    gpus = f"{counted(document['gpus'], 'GPU')} ({printable(document['gpu_model'])})"
    ratios = zip(_RATIOS, _ratios(document["predicted"]), strict=True)
    gains = ", ".join(f"{name.replace('_', ' ')} {ratio}" for name, ratio in ratios)
    idle = ""
    if document["idle_power_w"] is not None:
        estimated = " (estimated)" if document["idle_power_estimated"] else ""
        idle = f"; idle GPU: {document['idle_power_w']:.0f} W{estimated}"
    return Parts(
        Text(f"{counts} on {gpus}", "bold"),
        Text(f"predicted:           {_cost_text(document['predicted'])}"),
        Text(f"one after the other: {_cost_text(document['sequential'])}"),
        Text(f"objective {document['objective']}: {gains}", "bold green"),
        Text(),
        *_group_parts(document["groups"]),
        *_configuration_parts(document["configurations"]),
        Text(),
        Text(f"all predicted from the figures of each job alone{idle}", "dim"),
    )


def _group_parts(groups: Sequence[Document]) -> list[Grid | Text]:
    right = ("GPU", "start", "time", "STP", "ANTT", "energy")
    table = make_table("group", *right, "jobs (share of SMs)", right=("group", *right))
    notes: list[Text] = []
    alone = make_table("alone", "because")
    for group in groups:
        predicted = group["predicted"]
        table.add_row(
            str(group["group"]),
            str(group["gpu"]),
            format_duration(predicted["start_s"]),
            format_duration(predicted["time_s"]),
            f"{predicted['stp']:.2f}",
            f"{predicted['antt']:.2f}",
            _energy(predicted["energy_j"]),
            ", ".join(map(_member_text, group["jobs"])),
        )
        said = f"group {group['group']}: "
        notes += [Text(said + printable(note), "yellow") for note in group["notes"]]
        if group["why_alone"]:
            alone.add_row(group["jobs"][0]["name"], group["why_alone"])
    parts: list[Grid | Text] = [table, *notes]
    return [*parts, Text(), alone] if alone.row_count else parts


def _member_text(job: Document) -> str:
    part = f" {job['workflow']}/{job['workflows']}" if job["workflows"] > 1 else ""
    tasks = f" x{job['tasks']}" if job["tasks"] > 1 else ""
    share = "alone" if job["sm_percentage"] is None else f"{job['sm_percentage']} %"
    return f"{job['name']}{part}{tasks} ({share})"


def _configuration_parts(configurations: Sequence[Document]) -> list[Grid | Text]:
    columns = ("tasks x workflows", "time", "throughput", "efficiency", "product")
    table = make_table("", "job", *columns, right=columns)
    limits = make_table("most workflows", "because")
    for entry in configurations:
        choices = entry["choices"]
        if entry["limits"]:
            most = f"{entry['job']}: {choices[-1]['workflows']}"
            limits.add_row(most, "; ".join(map(printable, entry["limits"])))
        for choice in choices if len(choices) > 1 else []:
            best = choice["workflows"] == entry["best"]["workflows"]
            table.add_row(
                ">" if best else "",
                entry["job"] if choice is choices[0] else "",
                f"{choice['tasks']} x {choice['workflows']}",
                format_duration(choice["predicted"]["time_s"]),
                *_ratios(choice["predicted"]),
                style="bold green" if best else "",
            )
    title = Text("all tasks of one job on one GPU:", "bold")
    parts: list[Grid | Text] = [Text(), title, table] if table.row_count else []
    return [*parts, Text(), limits] if limits.row_count else parts


def _cost_text(cost: Document) -> str:
    return f"{format_duration(cost['time_s'])}, energy {_energy(cost['energy_j'])}"


def _energy(energy_j: float | None) -> str:
    return "unknown" if energy_j is None else f"{figure(energy_j / 1000)} kJ"


def _ratios(predicted: Document) -> list[str]:
    values = [predicted[name] for name in _RATIOS]
    return ["-" if value is None else f"{value:.2f}" for value in values]
