"""Tables of `gpulaunch status`."""

import shlex
from collections.abc import Sequence
from datetime import datetime

from gpulaunch.errors import printable
from gpulaunch.files.duration import format_duration
from gpulaunch.files.size import format_size
from gpulaunch.leases.lease import IDLE_AFTER_S
from gpulaunch.leases.who_has_what import age
from gpulaunch.machine.cpuset import format_cpuset
from gpulaunch.show import Document
from gpulaunch.show.terminal import Group, Table, Text, cut, make_table

_UUID_START = len("GPU-01234567")


def status_table(document: Document, now: datetime) -> Group:
    """Return the table of leases and the queue: user, GPUs, time and command.

    Args:
        document: the document from status_document.
        now: an aware time, up to which durations are counted.
    """
    gpus = document["gpus"]
    free = [gpu for gpu in gpus if gpu["free"]]
    lines: list[Table | Text] = []
    if document["leases"]:
        shares = ["share"] if any(lease["shared"] for lease in document["leases"]) else []
        table = make_table(
            "GPUs", *shares, "user", "since", "lease", "profile", "command", right=("since",)
        )
        for lease in _one_for_each_step(document["leases"]):
            held, *others = _lease_cells(lease, document["containers"], now)
            table.add_row(held, *([_share_cell(lease)] if shares else []), *others)
        lines += [table, Text()]
        lines += [
            Text(_left_over_note(lease, now), "yellow")
            for lease in document["leases"]
            if lease["left_over_pids"]
        ]
        notes = [
            Text(note, "yellow") for lease in document["leases"] if (note := _container_note(lease))
        ]
        notes += [
            Text(note, "yellow") for lease in document["leases"] if (note := _idle_note(lease, now))
        ]
        lines += [*notes, Text()] if notes else []
    if document["queue"]:
        table = make_table(
            "waiting",
            "GPUs",
            "user",
            "since",
            "ticket",
            "profile",
            "command",
            right=("waiting", "since"),
        )
        for ticket in document["queue"]:
            table.add_row(str(ticket["position"]), str(ticket["gpus"]), *_ticket_cells(ticket, now))
        lines += [table, Text()]
    lines += [
        Text(f"GPU {gpu['name']} is in use outside gpulaunch: {printable(gpu['outside'])}", "red")
        for gpu in gpus
        if gpu["state"] == "outside"
    ]
    lines += _service_notes(gpus, now)
    lines += [
        Text(note, "red" if container["leases"] else "yellow")
        for container in document["containers"]
        if (note := _running_container_note(container))
    ]
    lines.append(Text(f"free: {_format_names(free) or 'none'}", "green" if free else "yellow"))
    title = f"{document['topology']}: {len(free)} of {len(gpus)} GPUs free"
    models = {gpu["model"] for gpu in gpus}
    return Group(Text(f"{title} ({', '.join(map(printable, sorted(models)))})", "bold"), *lines)


def _service_notes(gpus: Sequence[Document], now: datetime) -> list[Table | Text]:
    """Return a line for each GPU that is out of service, or has something to be known."""
    lines: list[Table | Text] = []
    for gpu in gpus:
        name, mark = gpu["name"], gpu["drained"]
        if gpu["problems"]:
            lines.append(
                Text(f"GPU {name} is barred: {printable('; '.join(gpu['problems']))}", "red")
            )
        if mark:
            why = f": {mark['reason']}" if mark["reason"] else ""
            since = age(mark["since"], now)
            lines.append(
                Text(f"GPU {name} is drained by {printable(mark['by'])} for {since}{why}", "yellow")
            )
        if gpu["warnings"]:
            lines.append(Text(f"GPU {name}: {printable('; '.join(gpu['warnings']))}", "yellow"))
    return lines


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


def _left_over_note(lease: Document, now: datetime) -> str:
    """Return which processes hold a lease after its job, for how long, and to what use."""
    about = [f"pid {', '.join(map(str, lease['left_over_pids']))}"]
    if lease["left_over_since"]:
        about.append(f"for {age(lease['left_over_since'], now)}")
    if lease["left_over_uses_gpus"] is not None:
        about.append("using its GPUs" if lease["left_over_uses_gpus"] else "without using its GPUs")
    return (
        f"lease {lease['id']} is held by a left-over process of a job that has ended "
        f"({', '.join(about)}): 'gpulaunch free {lease['id']}' ends it"
    )


def _container_note(lease: Document) -> str:
    """Return why a lease stays whose container does not run, or whose engine does not answer."""
    if lease["container_problem"]:
        return (
            f"lease {lease['id']} stays until its engine tells of its container: "
            f"{lease['container_problem']}"
        )
    if lease["container_state"] in (None, "running"):
        return ""
    note = f"lease {lease['id']} stays: container {printable(lease['container_name'])} "
    if lease["container_state"] == "exited":
        return (
            f"{note}has ended, and its restart policy may start it: 'gpulaunch free {lease['id']}' "
            "ends that"
        )
    if lease["container_state"] == "created":
        return f"{note}is made, and not started yet"
    return f"{note}is {printable(lease['container_state'])}"


def _idle_note(lease: Document, now: datetime) -> str:
    """Return for how long a lease's GPUs have done nothing, if that is long."""
    since = lease["idle_since"]
    if since is None or (now - datetime.fromisoformat(since)).total_seconds() < IDLE_AFTER_S:
        return ""
    return f"lease {lease['id']} of {printable(lease['user'])} has been idle for {age(since, now)}"


def _running_container_note(container: Document) -> str:
    """Return what is to be known of a running container without a lease, beside its GPUs' lines."""
    name, program = container["name"], container["engine"]
    title = _title(container)
    if container["sees_all"]:
        return f"{title} sees all GPUs"
    gpus = f"GPU{'' if len(container['gpus']) == 1 else 's'} {','.join(container['gpu_names'])}"
    if container["leases"]:
        held = ", ".join(container["leases"])
        return f"{title} has {gpus} beside lease {held}: '{program} stop {name}' ends it"
    if container["made_under"] and not container["is_here"]:
        return (
            f"{title} has {gpus} without a lease: '{program} stop {name}', then "
            f"'gpulaunch {program} start {name}'"
        )
    return ""


def _title(container: Document) -> str:
    return f"container {container['name']} ({container['engine']})"


def _format_names(gpus: Sequence[Document]) -> str:
    """Return the names of GPUs: ranges of whole GPUs, then MIG instances."""
    whole = frozenset(gpu["index"] for gpu in gpus if gpu["name"] == str(gpu["index"]))
    return ",".join(
        filter(
            None,
            [format_cpuset(whole), *(gpu["name"] for gpu in gpus if gpu["index"] not in whole)],
        )
    )


def _lease_cells(
    lease: Document, containers: Sequence[Document], now: datetime
) -> list[str | Text]:
    profile = printable(lease["profile"] or "")
    # A single GPU has no traffic that could be assumed.
    if lease["assumed"] and len(lease["gpus"]) > 1:
        profile = f"{profile} (assumed)" if profile else "assumed"
    # A GPU that is out of service since, such as a lost one, has no index any more.
    gpus = ",".join(
        name or printable(uuid[:_UUID_START])
        for name, uuid in zip(lease["gpu_names"], lease["uuids"], strict=True)
    )
    inside = f"in {lease['parent']}: " if lease["parent"] else ""
    inside += _job_note(lease)
    inside += f"container {lease['container_name']}: " if lease["container_name"] else ""
    inside = f"stopped: {inside}" if lease["stopped"] else inside
    for container in containers:
        if container["id"] in lease["containers_beside"]:
            inside = f"beside {_title(container)}: {inside}"
    since = age(lease["started_at"], now)
    if lease["time_limit_s"] is not None:
        since += f" of {format_duration(lease['time_limit_s'])}"
    return [
        gpus,
        printable(lease["user"]),
        since,
        lease["id"],
        Text(profile),
        cut(inside + _describe_job(lease)),
    ]


def _share_cell(lease: Document) -> str:
    if not lease["shared"]:
        return "all"
    guest = ", guest" if lease["guest"] else ""
    pace = lease["promised_pace"]
    promise = "" if pace is None else f", pace {pace:.2f}"
    memory = format_size(lease["share_memory_bytes"])
    return f"{lease['sm_percentage']} %, {memory}{guest}{promise}"


def _ticket_cells(ticket: Document, now: datetime) -> list[str | Text]:
    stopped = (
        "stopped, so others pass: "
        if ticket["stopped"]
        else "choosy, so others may pass: " * ticket["choosy"]
    )
    since = age(ticket["since"], now)
    profile = printable(ticket["profile"] or "")
    return [
        printable(ticket["user"]),
        since,
        ticket["id"],
        Text(profile),
        cut(stopped + _describe_job(ticket)),
    ]


def _describe_job(record: Document) -> str:
    return record["name"] or " ".join(map(_quoted, record["command"]))


def _quoted(argument: str) -> str:
    return argument if argument.isalnum() else shlex.quote(argument)
