"""The table with a row for each GPU, in its place in the machine."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from gpulaunch.errors import printable
from gpulaunch.leases.holders import age
from gpulaunch.machine.gpu import gpu_names
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record
from gpulaunch.show import Document
from gpulaunch.show.status_table import (
    job_names,
    job_notes,
    jobs_table,
    left_cell,
    machine_notes,
    state_of,
    status_title,
    waiting,
)
from gpulaunch.show.terminal import Grid, Parts, Text, cut, make_table

LEAVE = ("MODEL", "POWER", "°C", "TIME", "MEMORY", "LEFT")
"""Columns that go where the terminal is narrow, in this order."""

_GIB = 1 << 30


class GpuPlace(Record):
    """GPUs that are near each other.

    Attributes:
        title: the socket, and what NVLinks join there; empty if the machine has no parts.
        gpus: their indices, in the order of the cards.
    """

    title: str
    gpus: tuple[int, ...]


def gpu_places(topology: Topology) -> list[GpuPlace]:
    """Return the sockets of a machine, or of several, each with its GPUs.

    NVLinks are told of only where they do not join all GPUs.
    """
    tree = machine_tree(topology)
    islands = _islands(tree)
    order = {card: place for place, card in enumerate(tree.cards)}
    placed = sorted(topology.gpus, key=lambda gpu: (order[gpu.card], gpu.index))
    places = []
    if len(islands) == 1 and len(islands[0]) == len(topology.gpus):
        islands = []  # nothing to be told apart
    for title, socket in _sockets(tree):
        joined = "; ".join(
            gpu_names(gpu for gpu in placed if gpu.index in island)
            for island in islands
            if island & set(socket.gpus)
        )
        nvlink = f"NVLink joins {joined}" if joined else ""
        gpus = tuple(gpu.index for gpu in placed if gpu.index in socket.gpus)
        places.append(GpuPlace(", ".join(filter(None, (title, nvlink))), gpus))
    return places


def _sockets(tree: Level) -> Iterator[tuple[str, Level]]:
    machines = tree.children if tree.kind == "network" else (tree,)
    for machine in machines:
        sockets = machine.sockets
        where = f"machine {machine.node}" if len(machines) > 1 else ""
        for number, socket in enumerate(sockets):
            node = socket.numa_node
            socket_name = f"socket {number}" if node is None else f"NUMA node {node}"
            parts = (where, socket_name if len(sockets) > 1 else "")
            yield ", ".join(filter(None, parts)), socket


def _islands(tree: Level) -> list[set[int]]:
    """Return the groups of GPUs that NVLinks join, directly or through others, ascending."""
    found: list[set[int]] = []
    for pair in tree.nvlinks:
        met = [island for island in found if island & set(pair)]
        found = [island for island in found if island not in met]
        found.append(set(pair).union(*met))
    return sorted(found, key=min)


def gpus_view(
    document: Document, places: Sequence[GpuPlace], now: datetime, only: str | None = None
) -> Parts:
    """Return the view of `gpulaunch status --gpus`.

    Args:
        document: the document from status_document.
        places: the machine's GPUs.
        now: an aware time, up to which durations are counted.
        only: user to whose GPUs it is limited, or None.
    """
    lines: list[Grid | Text] = [gpus_table(document, places, now, only), Text()]
    if ahead := waiting(document):
        lines += [jobs_table(document, ahead, now), Text()]
    lines += [*job_notes(document, now), *machine_notes(document, now)]
    return Parts(Text(status_title(document), "bold"), *lines)


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
    names = job_names(document)
    columns = gpu_columns(document)
    table = make_table(
        *columns,
        right=("USE", "MEMORY", "POWER", "°C", "TIME", "LEFT"),
        leave=[name for name in LEAVE if name in columns],
    )
    for place in places:
        here = [gpus[index] for index in place.gpus if index in gpus]
        rows = [(gpu, [leases[one] for one in gpu["leases"] if one in leases]) for gpu in here]
        rows = [(gpu, held) for gpu, held in rows if only is None or held]
        if rows and place.title:
            table.add_row(Text(place.title, "dim"))
        for gpu, held in rows:
            cells = gpu_cells(gpu, held, names, now)
            table.add_row(*(cells[name] for name in columns), style=" ".join(map(style, held)))
    return table


def gpu_columns(document: Document) -> list[str]:
    """Return the headings of the columns that tell something; a title names an only model."""
    gpus = document["gpus"]
    told = {
        "USE": "utilization_percentage",
        "MEMORY": "memory_used_bytes",
        "POWER": "power_w",
        "°C": "temperature_c",
    }
    known = [name for name, key in told.items() if any(gpu[key] is not None for gpu in gpus)]
    left = ["LEFT"] if any(lease["ends_at"] for lease in document["leases"]) else []
    models = ["MODEL"] if len({gpu["model"] for gpu in gpus}) > 1 else []
    return ["GPU", *models, *known, "USER", "TIME", *left, "JOB"]


def gpu_cells(
    gpu: Document, held: Sequence[Document], names: Mapping[str, str], now: datetime
) -> dict[str, str | Text]:
    """Return the cells of a GPU by their headings.

    Args:
        gpu: entry of the document.
        held: entries of the leases on it that are to be shown.
        names: of all jobs, from job_names.
        now: an aware time.
    """
    marked = bool(gpu["problems"] or gpu["warnings"] or gpu["drained"])
    oldest = min(held, key=lambda lease: lease["started_at"], default=None)
    limits = [lease for lease in held if lease["ends_at"]]
    last = max(limits, key=lambda lease: lease["ends_at"], default=None)
    return {
        "GPU": Text(f"{gpu['name']}!" if marked else gpu["name"], "yellow" if marked else ""),
        "MODEL": printable(gpu["model"]),
        "USE": _known(gpu["utilization_percentage"], " %"),
        "MEMORY": _memory_cell(gpu),
        "POWER": _known(gpu["power_w"], " W"),
        "°C": _known(gpu["temperature_c"], ""),
        "USER": ", ".join(dict.fromkeys(printable(lease["user"]) for lease in held)),
        "TIME": age(oldest["started_at"], now) if oldest else "",
        "LEFT": left_cell(last, now) if last and len(limits) == len(held) else "",
        "JOB": _job_cell(gpu, held, names, now),
    }


def _known(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f}{unit}"


def _memory_cell(gpu: Document) -> str:
    """Return how much of the memory of a GPU is in use; empty if unknown."""
    used, total = gpu["memory_used_bytes"], gpu["memory_total_bytes"]
    return "" if used is None else f"{used / _GIB:.1f}/{(total or 0) / _GIB:.0f} GiB"


def _job_cell(
    gpu: Document, held: Sequence[Document], names: Mapping[str, str], now: datetime
) -> Text:
    """Return what a GPU is used for, or why nobody has it."""
    if held:
        jobs = []
        for lease in held:
            state = state_of(lease, now)
            name = names[lease["id"]]
            job = name if lease["name"] else f"{name} {shlex.join(lease['command'])}"
            jobs.append(job if state == "running" else f"{state}: {job}")
        return cut(" + ".join(jobs))
    if gpu["strays"]:
        return cut(f"in use by {gpu['strays'][0]['who']}", "red")
    if gpu["state"] == "outside":
        return cut(f"outside gpulaunch: {gpu['outside']}", "red")
    if gpu["state"] == "barred":
        return cut(": ".join(filter(None, ("barred", "; ".join(gpu["problems"])))), "red")
    if gpu["state"] == "drained":
        why = gpu["drained"]["reason"]
        return cut(f"drained by {gpu['drained']['by']}{f': {why}' if why else ''}", "yellow")
    return cut("free", "green") if gpu["free"] else Text("of another user", "dim")
