"""The table of `gpulaunch status`."""

from collections.abc import Callable, Sequence
from datetime import datetime

from gpulaunch.errors import printable
from gpulaunch.machine.gpu import format_cpuset
from gpulaunch.show import Document
from gpulaunch.show.status_cells import (
    describe_command,
    gpus_cell,
    job_names,
    starts_cell,
    state_of,
    time_cell,
)
from gpulaunch.show.status_notes import job_notes, machine_notes
from gpulaunch.show.terminal import Grid, Group, Text, cut, make_table

_STYLES = {"stopped": "yellow", "left over": "red", "idle": "yellow", "waiting": "dim"}


def status_table(document: Document, now: datetime) -> Group:
    """Return the title, the table of jobs, and notes.

    Args:
        document: the document from status_document.
        now: an aware time, up to which durations are counted.
    """
    leases = sorted(_one_for_each_step(document["leases"]), key=lambda one: sorted(_indices(one)))
    jobs = jobs_table(document, [*leases, *waiting(document)], now)
    notes = [*job_notes(document, now), *machine_notes(document, now)]
    if any(gpus != sorted(gpus) for gpus in map(_indices, leases)):
        notes.insert(0, Text("GPUs are in rank order: the first is the job's GPU 0", "dim"))
    lines: list[Grid | Text] = [jobs] if jobs.row_count else []
    lines += [Text()] if lines and notes else []
    return Group(Text(status_title(document), "bold"), *lines, *notes)


def status_title(document: Document) -> str:
    """Return the machine, which of its GPUs are free, and their models."""
    gpus = document["gpus"]
    models = ", ".join(map(printable, sorted({gpu["model"] for gpu in gpus})))
    return f"{free_gpus(document)} ({models})"


def free_gpus(document: Document) -> str:
    """Return the machine, and how many and which of its GPUs are free."""
    gpus = document["gpus"]
    free = [gpu for gpu in gpus if gpu["free"]]
    which = f": {_format_names(free)}" if free else ""
    return f"{document['topology']}: {len(free)} of {len(gpus)} GPUs free{which}"


def waiting(document: Document) -> list[Document]:
    """Return those who wait: in the order of the queue, then those who wait for others first."""
    return [*document["queue"], *document["dependent"]]


def jobs_table(
    document: Document,
    records: Sequence[Document],
    now: datetime,
    style: Callable[[Document], str] = lambda _: "",
) -> Grid:
    """Return the table of jobs.

    Args:
        document: the document from status_document.
        records: those of its leases, tickets and dependent launches that get a row.
        now: an aware time, up to which durations are counted.
        style: returns the style of a row.
    """
    names = job_names(document)
    starts = ["STARTS"] if any(starts_cell(record, now) for record in records) else []
    columns = ("NAME", "STATE", "USER", "GPUS", "TIME", *starts, "COMMAND")
    table = make_table(*columns, leave=("TIME", *starts, "COMMAND", "USER"))
    for record in records:
        state = state_of(record, now)
        table.add_row(
            names.get(record.get("id", "")) or printable(record["name"] or ""),
            Text(state, _STYLES.get(state, "")),
            printable(record["user"]),
            gpus_cell(record),
            time_cell(record, now),
            *([starts_cell(record, now)] if starts else []),
            cut(_command_prefix(record, names) + describe_command(record)),
            style=style(record),
        )
    return table


def _one_for_each_step(leases: Sequence[Document]) -> list[Document]:
    """Return the leases, with one in place of those of all ranks of a step.

    It is that of the lowest rank, with the GPUs of all and since when the first one runs.
    """
    rows: list[Document] = []
    places: dict[tuple[str, str, str], int] = {}
    for lease in leases:
        job = lease["engine_job"]
        if job is None or job["ranks"] == 1 or lease["parent"]:
            rows.append(lease)
            continue
        at = places.setdefault((job["engine"], job["id"], lease["user"]), len(rows))
        if at == len(rows):
            rows.append(lease | {"of_ranks": [lease]})
        else:
            rows[at] = _row_of_ranks([*rows[at]["of_ranks"], lease])
    return rows


def _row_of_ranks(ranks: Sequence[Document]) -> Document:
    """Return one lease in place of those of some ranks."""
    ordered = sorted(ranks, key=_rank_of)
    names = {
        uuid: name
        for lease in ordered
        for uuid, name in zip(lease["uuids"], lease["gpu_names"], strict=True)
    }
    return ordered[0] | {
        "of_ranks": ordered,
        "gpus": [gpu for lease in ordered for gpu in lease["gpus"]],
        "uuids": list(names),
        "gpu_names": list(names.values()),
        "started_at": min(lease["started_at"] for lease in ordered),
    }


def _rank_of(lease: Document) -> int:
    return lease["engine_job"]["rank"] or 0


def _indices(lease: Document) -> list[int]:
    """Return the GPUs of a lease in rank order; one that is not there any more is GPU -1."""
    return [-1 if index is None else index for index in lease["gpus"]]


def _command_prefix(record: Document, names: dict[str, str]) -> str:
    """Return what a command runs in: another job's lease, a cluster engine's job, a container."""
    if "started_at" not in record:
        return ""
    parent = record["parent"]
    prefix = f"in {names.get(parent, parent)}: " if parent else ""
    prefix += _job_note(record)
    return prefix + (f"container {record['container_name']}: " if record["container_name"] else "")


def _job_note(lease: Document) -> str:
    """Return the job of a cluster engine, and how many of its ranks a row stands for."""
    job = lease["engine_job"]
    if job is None:
        return ""
    title = f"{job['engine']} {job['id']}"
    ranks = f", {len(lease['of_ranks'])} of {job['ranks']} ranks" if "of_ranks" in lease else ""
    shared = ", shared by it" if job["shared"] else ""
    return f"{title}{ranks}{shared}: "


def _format_names(gpus: Sequence[Document]) -> str:
    """Return the names of GPUs: ranges of whole GPUs, then MIG instances."""
    whole = frozenset(gpu["index"] for gpu in gpus if gpu["name"] == str(gpu["index"]))
    return ",".join(
        filter(
            None,
            [format_cpuset(whole), *(gpu["name"] for gpu in gpus if gpu["index"] not in whole)],
        )
    )
