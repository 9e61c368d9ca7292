"""The table with a row for each GPU, in its place in the machine."""

from collections.abc import Callable, Sequence
from datetime import datetime

from gpulaunch.errors import printable
from gpulaunch.show import Document
from gpulaunch.show.gpu_places import GpuPlace
from gpulaunch.show.status_cells import (
    busy_cell,
    describe_job,
    idle_text,
    left_cell,
    memory_cell,
    power_cell,
    since_cell,
    temperature_cell,
)
from gpulaunch.show.status_notes import dependent_notes, lease_notes, machine_notes
from gpulaunch.show.status_table import queue_table, status_title
from gpulaunch.show.terminal import Cell, Grid, Group, Text, cut, make_table

LEAVE = ("model", "power", "°C", "since", "memory", "left")
"""Columns that go where the terminal is narrow, in this order."""


def gpus_view(
    document: Document, places: Sequence[GpuPlace], now: datetime, only: str | None = None
) -> Group:
    """Return the view of `gpulaunch status --gpus`.

    Args:
        document: the document from status_document.
        places: the machine's GPUs.
        now: an aware time, up to which durations are counted.
        only: user to whose GPUs it is limited, or None.
    """
    lines: list[Grid | Text] = [gpus_table(document, places, now, only), Text()]
    lines += lease_notes(document["leases"], now)
    if document["queue"]:
        lines += [queue_table(document, now), Text()]
    lines += dependent_notes(document)
    lines += machine_notes(document, now)
    return Group(Text(status_title(document), "bold"), *lines)


def gpus_table(
    document: Document,
    places: Sequence[GpuPlace],
    now: datetime,
    only: str | None = None,
    style: Callable[[Document], str] = lambda _: "",
) -> Grid:
    """Return the table of GPUs, with a heading for each place; columns that are unknown are absent.

    Args:
        document: the document from status_document.
        places: the machine's GPUs.
        now: an aware time, up to which durations are counted.
        only: user to whose GPUs it is limited, or None.
        style: returns the style of the GPUs of a lease.
    """
    gpus = {gpu["index"]: gpu for gpu in document["gpus"]}
    leases = {lease["id"]: lease for lease in document["leases"]}
    columns = gpu_columns(document)
    table = make_table(
        *columns,
        right=("use", "memory", "power", "°C", "since", "left"),
        leave=[name for name in LEAVE if name in columns],
    )
    for place in places:
        here = [gpus[index] for index in place.gpus if index in gpus]
        rows = [(gpu, [leases[one] for one in gpu["leases"] if one in leases]) for gpu in here]
        rows = [(gpu, held) for gpu, held in rows if only is None or held]
        if rows and place.title:
            table.add_row(Text(place.title, "dim"))
        for gpu, held in rows:
            cells = gpu_cells(gpu, held, now)
            table.add_row(*(cells[name] for name in columns), style=" ".join(map(style, held)))
    return table


def gpu_columns(document: Document) -> list[str]:
    """Return the headings of the columns that tell something; a title names an only model."""
    gpus = document["gpus"]
    told = {
        "use": "utilization_percentage",
        "memory": "memory_used_bytes",
        "power": "power_w",
        "°C": "temperature_c",
    }
    known = [name for name, key in told.items() if any(gpu[key] is not None for gpu in gpus)]
    left = ["left"] if any(lease["ends_at"] for lease in document["leases"]) else []
    models = ["model"] if len({gpu["model"] for gpu in gpus}) > 1 else []
    return ["GPU", *models, *known, "user", "since", *left, "job"]


def gpu_cells(gpu: Document, held: Sequence[Document], now: datetime) -> dict[str, Cell]:
    """Return the cells of a GPU by their headings.

    Args:
        gpu: entry of the document.
        held: entries of the leases on it that are to be shown.
        now: an aware time.
    """
    marked = bool(gpu["problems"] or gpu["warnings"] or gpu["drained"])
    oldest = min(held, key=lambda lease: lease["started_at"], default=None)
    limits = [lease for lease in held if lease["ends_at"]]
    last = max(limits, key=lambda lease: lease["ends_at"], default=None)
    return {
        "GPU": Text(f"{gpu['name']}!" if marked else gpu["name"], "yellow" if marked else ""),
        "model": Text(printable(gpu["model"])),
        "use": busy_cell([gpu]),
        "memory": memory_cell([gpu]),
        "power": power_cell(gpu),
        "°C": temperature_cell(gpu),
        "user": Text(", ".join(dict.fromkeys(printable(lease["user"]) for lease in held))),
        "since": since_cell(oldest["started_at"], now) if oldest else "",
        "left": left_cell(last, now) if last and len(limits) == len(held) else "",
        "job": _job_cell(gpu, held, now),
    }


def _job_cell(gpu: Document, held: Sequence[Document], now: datetime) -> Text:
    """Return what a GPU is used for, or why nobody has it."""
    if held:
        return cut(" + ".join(f"{job_prefix(lease, now)}{describe_job(lease)}" for lease in held))
    if gpu["strays"]:
        return _styled(f"in use by {gpu['strays'][0]['who']}", "red")
    if gpu["state"] == "outside":
        return _styled(f"outside gpulaunch: {gpu['outside']}", "red")
    if gpu["state"] == "barred":
        return _styled(": ".join(filter(None, ("barred", "; ".join(gpu["problems"])))), "red")
    if gpu["state"] == "drained":
        why = gpu["drained"]["reason"]
        return _styled(f"drained by {gpu['drained']['by']}{f': {why}' if why else ''}", "yellow")
    return _styled("free", "green") if gpu["free"] else Text("of another user", "dim")


def job_prefix(lease: Document, now: datetime) -> str:
    """Return what is to be known of a job before its name or command."""
    marks = ["stopped"] if lease["stopped"] else []
    marks += ["left over"] if lease["left_over_pids"] else []
    marks += filter(None, [idle_text(lease, now)])
    return f"{', '.join(marks)}: " if marks else ""


def _styled(text: str, style: str) -> Text:
    cell = cut(text)
    cell.stylize(style)
    return cell
