"""A table for a terminal about the document of a plan."""

from collections.abc import Sequence

from gpulaunch.errors import counted, printable
from gpulaunch.files.duration import format_duration
from gpulaunch.show import Document
from gpulaunch.show.terminal import Grid, Group, Text, figure, make_table


def plan_table(document: Document) -> Group:
    """Return what to run together, what alone and why, and how to divide repeated jobs.

    Args:
        document: the document from plan_document.
    """
    right = ("GPU", "start", "time", "STP", "ANTT", "energy")
    groups = make_table("group", *right, "jobs (share of SMs)", right=("group", *right))
    for group in document["groups"]:
        groups.add_row(
            str(group["group"]),
            str(group["gpu"]),
            *_group_cells(group["predicted"]),
            _members(group),
        )
    notes = [
        Text(f"group {group['group']}: {printable(note)}", "yellow")
        for group in document["groups"]
        for note in group["notes"]
    ]
    estimated = " (estimated)" if document["idle_power_estimated"] else ""
    idle = (
        ""
        if document["idle_power_w"] is None
        else f"; idle GPU: {document['idle_power_w']:.0f} W{estimated}"
    )
    return Group(
        *_plan_title(document),
        Text(),
        groups,
        *notes,
        *_alone_parts(document["groups"]),
        *_configuration_parts(document["configurations"]),
        Text(),
        Text(f"all predicted from the figures of each job alone{idle}", "dim"),
    )


def _plan_title(document: Document) -> list[Text]:
    jobs = len({job["name"] for group in document["groups"] for job in group["jobs"]})
    counts = f"{counted(jobs, 'job')} in {counted(len(document['groups']), 'group')}"
    gpus = f"{counted(document['gpus'], 'GPU')} ({printable(document['gpu_model'])})"
    return [
        Text(f"{counts} on {gpus}", "bold"),
        Text(f"predicted:           {_cost(document['predicted'])}"),
        Text(f"one after the other: {_cost(document['sequential'])}"),
        Text(f"objective {document['objective']}: {_gains(document['predicted'])}", "bold green"),
    ]


def _cost(cost: Document) -> str:
    return f"{format_duration(cost['time_s'])}, energy {_energy(cost['energy_j'])}"


def _gains(predicted: Document) -> str:
    names = ("throughput", "energy_efficiency", "product")
    return ", ".join(f"{name.replace('_', ' ')} {_ratio(predicted[name])}" for name in names)


def _group_cells(predicted: Document) -> list[str]:
    times = [format_duration(predicted[key]) for key in ("start_s", "time_s")]
    return [
        *times,
        f"{predicted['stp']:.2f}",
        f"{predicted['antt']:.2f}",
        _energy(predicted["energy_j"]),
    ]


def _members(group: Document) -> str:
    return ", ".join(map(_member, group["jobs"]))


def _member(job: Document) -> str:
    part = f" {job['workflow']}/{job['workflows']}" if job["workflows"] > 1 else ""
    tasks = f" x{job['tasks']}" if job["tasks"] > 1 else ""
    share = "alone" if job["sm_percentage"] is None else f"{job['sm_percentage']} %"
    return f"{job['name']}{part}{tasks} ({share})"


def _alone_parts(groups: Sequence[Document]) -> list[Grid | Text]:
    table = make_table("alone", "because")
    for group in groups:
        if group["why_alone"]:
            table.add_row(group["jobs"][0]["name"], group["why_alone"])
    return [Text(), table] if table.row_count else []


def _configuration_parts(configurations: Sequence[Document]) -> list[Grid | Text]:
    columns = ("tasks x workflows", "time", "throughput", "efficiency", "product")
    table = make_table("", "job", *columns, right=columns)
    limits = make_table("most workflows", "because")
    for entry in configurations:
        choices = entry["choices"]
        if entry["limits"]:
            limits.add_row(
                f"{entry['job']}: {choices[-1]['workflows']}",
                "; ".join(map(printable, entry["limits"])),
            )
        for choice in choices if len(choices) > 1 else []:
            best = choice["workflows"] == entry["best"]["workflows"]
            name = entry["job"] if choice is choices[0] else ""
            table.add_row(
                ">" if best else "",
                name,
                *_choice_cells(choice),
                style="bold green" if best else "",
            )
    title = Text("all tasks of one job on one GPU:", "bold")
    parts: list[Grid | Text] = [Text(), title, table] if table.row_count else []
    return [*parts, Text(), limits] if limits.row_count else parts


def _choice_cells(choice: Document) -> list[str]:
    predicted = choice["predicted"]
    ratios = [_ratio(predicted[name]) for name in ("throughput", "energy_efficiency", "product")]
    return [
        f"{choice['tasks']} x {choice['workflows']}",
        format_duration(predicted["time_s"]),
        *ratios,
    ]


def _energy(energy_j: float | None) -> str:
    return "unknown" if energy_j is None else f"{figure(energy_j / 1000)} kJ"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
