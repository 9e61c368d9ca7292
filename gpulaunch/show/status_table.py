"""Tables of `gpulaunch status`."""

from collections.abc import Callable, Sequence
from datetime import datetime

from gpulaunch.errors import printable
from gpulaunch.files.duration import format_duration
from gpulaunch.files.size import format_size
from gpulaunch.machine.cpuset import format_cpuset
from gpulaunch.show import Document
from gpulaunch.show.status_cells import (
    busy_cell,
    describe_job,
    gpus_cell,
    is_assumed,
    legends,
    memory_cell,
    short_ids,
    since_cell,
    starts_cell,
)
from gpulaunch.show.status_notes import container_title, dependent_notes, lease_notes, machine_notes
from gpulaunch.show.terminal import Cell, Grid, Group, Text, cut, make_table


def status_table(document: Document, now: datetime) -> Group:
    """Return the table of leases and the queue: user, GPUs, time and command.

    Args:
        document: the document from status_document.
        now: an aware time, up to which durations are counted.
    """
    gpus = document["gpus"]
    free = [gpu for gpu in gpus if gpu["free"]]
    lines: list[Grid | Text] = []
    if document["leases"]:
        lines += [_leases_table(document, now)]
        lines += [Text(legend, "dim") for legend in legends(document["leases"])]
        lines += [Text()]
        notes = lease_notes(document["leases"], now)
        lines += [*notes, Text()] if notes else []
    if document["queue"]:
        lines += [queue_table(document, now), Text()]
    if document["dependent"]:
        lines += [*dependent_notes(document), Text()]
    lines += machine_notes(document, now)
    lines.append(Text(f"free: {_format_names(free) or 'none'}", "green" if free else "yellow"))
    return Group(Text(status_title(document), "bold"), *lines)


def status_title(document: Document) -> str:
    """Return the machine, how many of its GPUs are free, and their models."""
    gpus = document["gpus"]
    free = sum(gpu["free"] for gpu in gpus)
    models = ", ".join(map(printable, sorted({gpu["model"] for gpu in gpus})))
    return f"{document['topology']}: {free} of {len(gpus)} GPUs free ({models})"


def _leases_table(document: Document, now: datetime) -> Grid:
    leases = _one_for_each_step(document["leases"])
    gpus_of = {
        lease["id"]: [gpu for gpu in document["gpus"] if gpu["uuid"] in lease["uuids"]]
        for lease in leases
    }
    shares = ["share"] if any(lease["shared"] for lease in leases) else []
    known = any(gpu["utilization_percentage"] is not None for gpu in document["gpus"])
    use = ["use"] if known else []
    known = any(gpu["memory_used_bytes"] is not None for gpu in document["gpus"])
    memory = ["memory"] if known else []
    table = make_table(
        *("GPUs", *shares, "user", "since", *use, *memory, "lease", "profile", "command"),
        right=("since", "use", "memory"),
        leave=("profile", *memory, "since", *shares, *use),
    )
    short = short_ids(document)
    for lease in leases:
        held = gpus_of[lease["id"]]
        table.add_row(
            gpus_cell(lease),
            *([_share_cell(lease)] if shares else []),
            printable(lease["user"]),
            _since_cell(lease, now),
            *([busy_cell(held)] if use else []),
            *([memory_cell(held)] if memory else []),
            (lease["id"], short[lease["id"]]),
            _profile_cell(lease),
            cut(_lease_prefix(lease, document["containers"]) + describe_job(lease)),
        )
    return table


def queue_table(
    document: Document, now: datetime, style: Callable[[Document], str] = lambda _: ""
) -> Grid:
    """Return the table of those who wait.

    Args:
        document: the document from status_document.
        now: an aware time, up to which durations are counted.
        style: returns the style of a ticket's row.
    """
    starts = ["starts"] if any(one.get("predicted_start") for one in document["queue"]) else []
    table = make_table(
        *("waiting", "GPUs", "user", "since", *starts, "ticket", "profile", "command"),
        right=("waiting", "since"),
        leave=("profile", "since", *starts, "ticket"),
    )
    short = short_ids(document)
    for ticket in document["queue"]:
        table.add_row(
            str(ticket["position"]),
            str(ticket["gpus"]),
            printable(ticket["user"]),
            since_cell(ticket["since"], now),
            *([starts_cell(ticket, now)] if starts else []),
            (ticket["id"], short[ticket["id"]]),
            Text(printable(ticket["profile"] or "")),
            cut(ticket_prefix(ticket) + describe_job(ticket)),
            style=style(ticket),
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


def _since_cell(lease: Document, now: datetime) -> Cell:
    """Return for how long a job has run, and of how long it may."""
    long, short = since_cell(lease["started_at"], now)
    if lease["time_limit_s"] is None:
        return long, short
    return f"{long} of {format_duration(lease['time_limit_s'])}", short


def _profile_cell(lease: Document) -> Text:
    profile = printable(lease["profile"] or "")
    if is_assumed(lease):
        profile = f"{profile} (assumed)" if profile else "assumed"
    return Text(profile)


def _lease_prefix(lease: Document, containers: Sequence[Document]) -> str:
    """Return what is to be known of a job before its command."""
    prefix = ""
    for container in containers:
        if container["id"] in lease["containers_beside"]:
            prefix = f"beside {container_title(container)}: {prefix}"
    prefix += "stopped: " if lease["stopped"] else ""
    prefix += f"in {lease['parent']}: " if lease["parent"] else ""
    prefix += _job_note(lease)
    return prefix + (f"container {lease['container_name']}: " if lease["container_name"] else "")


def _share_cell(lease: Document) -> str:
    if not lease["shared"]:
        return "all"
    guest = ", guest" if lease["guest"] else ""
    pace = lease["promised_pace"]
    promise = "" if pace is None else f", pace {pace:.2f}"
    memory = format_size(lease["share_memory_bytes"])
    return f"{lease['sm_percentage']} %, {memory}{guest}{promise}"


def ticket_prefix(ticket: Document) -> str:
    """Return what is to be known of a place in the queue before its command."""
    if ticket["stopped"]:
        return "stopped, so others pass: "
    return "choosy, so others may pass: " if ticket["choosy"] else ""
