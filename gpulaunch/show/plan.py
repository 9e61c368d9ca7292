"""A plan as a JSON document, whose predictions are under "predicted", and as a table."""

from collections.abc import Sequence

from gpulaunch.cli.screen import Grid, Parts, Text, figure, make_table
from gpulaunch.errors import counted, printable
from gpulaunch.files.units import format_duration
from gpulaunch.profiles.demand import tells_all
from gpulaunch.sharing.plan import Cost, Group, GroupMember, Plan, PlanSite
from gpulaunch.show import Document

_RATIOS = ("throughput", "energy_efficiency", "product")


def plan_document(plan: Plan, site: PlanSite, gpu_model: str) -> Document:
    """Return the document that `gpulaunch plan --json` prints."""
    gain, objective = plan.gain, site.objective
    product = None
    if gain.energy_efficiency is not None:
        product = gain.throughput**objective.throughput_weight
        product *= gain.energy_efficiency**objective.energy_weight
    return {
        "gpu_model": gpu_model,
        "gpus": site.gpus,
        "objective": objective.name,
        "idle_power_w": site.idle_w,
        "idle_power_estimated": site.idle_is_estimated,
        "sequential": _cost(plan.sequential),
        "predicted": {
            **_cost(plan.cost),
            "throughput": _rounded(gain.throughput),
            "energy_efficiency": _rounded(gain.energy_efficiency),
            "product": _rounded(product),
        },
        "groups": [_group(number, group) for number, group in enumerate(plan.groups, 1)],
    }


def _cost(cost: Cost) -> Document:
    return {"time_s": _rounded(cost.time_s), "energy_j": _rounded(cost.energy_j)}


def _group(number: int, group: Group) -> Document:
    return {
        "group": number,
        "gpu": group.gpu,
        "predicted": {
            "start_s": _rounded(group.start_s),
            **_cost(group.cost),
            "stp": _rounded(group.stp),
            "antt": _rounded(group.antt),
        },
        "jobs": [_member(member) for member in group.members],
        "notes": list(group.notes),
        "why_alone": group.why_alone,
    }


def _member(member: GroupMember) -> Document:
    return {
        "name": printable(member.job.name),
        "tasks": member.job.tasks,
        "sm_percentage": member.sm_percentage,
        "curve_estimated": not tells_all(member.job.demand.curve),
        "alone_s": _rounded(member.job.alone_s),
        "predicted_end_s": _rounded(member.end_s),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def plan_table(document: Document) -> Parts:
    """Return what to run together, and what alone and why.

    Args:
        document: the document from plan_document.
    """
    jobs = len({job["name"] for group in document["groups"] for job in group["jobs"]})
    counts = f"{counted(jobs, 'job')} in {counted(len(document['groups']), 'group')}"
    gpus = f"{counted(document['gpus'], 'GPU')} ({printable(document['gpu_model'])})"
    idle = ""
    if document["idle_power_w"] is not None:
        idle = f"; idle GPU: {document['idle_power_w']:.0f} W"
        idle += " (estimated)" if document["idle_power_estimated"] else ""
    return Parts(
        Text(f"{counts} on {gpus}", "bold"),
        Text(f"predicted:           {_cost_text(document['predicted'])}"),
        Text(f"one after the other: {_cost_text(document['sequential'])}"),
        Text(f"objective {document['objective']}: {_ratios(document['predicted'])}", "bold green"),
        Text(),
        *_group_parts(document["groups"]),
        Text(),
        Text(f"all predicted from the figures of each job alone{idle}", "dim"),
    )


def _group_parts(groups: Sequence[Document]) -> list[Grid | Text]:
    right = ("GPU", "start", "time", "STP", "ANTT", "energy")
    table = make_table("group", *right, "jobs (share of SMs, * estimated)", right=("group", *right))
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
    tasks = f" x{job['tasks']}" if job["tasks"] > 1 else ""
    estimated = "*" if job["curve_estimated"] else ""
    share = "alone" if job["sm_percentage"] is None else f"{job['sm_percentage']} %{estimated}"
    return f"{job['name']}{tasks} ({share})"


def _cost_text(cost: Document) -> str:
    return f"{format_duration(cost['time_s'])}, energy {_energy(cost['energy_j'])}"


def _energy(energy_j: float | None) -> str:
    return "unknown" if energy_j is None else f"{figure(energy_j / 1000)} kJ"


def _ratios(predicted: Document) -> str:
    parts = []
    for name in _RATIOS:
        value = predicted[name]
        parts.append(f"{name.replace('_', ' ')} {'-' if value is None else f'{value:.2f}'}")
    return ", ".join(parts)
