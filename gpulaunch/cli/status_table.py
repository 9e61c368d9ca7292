"""The table of `gpulaunch status`, its cells, and the notes below it, which `top` has, too.

Colour adds to the words and never replaces them.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from os.path import commonprefix

from gpulaunch.cli.screen import Grid, Parts, Text, cut, make_table
from gpulaunch.errors import printable
from gpulaunch.files.units import format_duration
from gpulaunch.history.forecast import format_start
from gpulaunch.history.past_launch import LEAST_CHARACTERS
from gpulaunch.leases.holders import age
from gpulaunch.leases.lease import IDLE_AFTER_S
from gpulaunch.machine.gpu import format_cpuset, gpu_names, names_in_order
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.topology import Topology
from gpulaunch.process.system import parse_time
from gpulaunch.records import Record
from gpulaunch.show import Document

_LONGEST_NAME = 24
_UUID_START = len("GPU-01234567")
_MOST_PROBLEMS = 5
_STYLES = {"stopped": "yellow", "left over": "red", "idle": "yellow", "waiting": "dim"}


def status_table(document: Document, now: datetime) -> Parts:
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
    return Parts(Text(status_title(document), "bold"), *lines, *notes)


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
            cut(_command_prefix(record, names) + shlex.join(record["command"])),
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


def short_ids(document: Document) -> dict[str, str]:
    """Return the shortest unique beginning of the id of each lease and ticket."""
    ids = sorted(record["id"] for record in (*document["leases"], *document["queue"]))
    # In this order no id begins more like another than like its neighbours.
    shared = [0, *(len(commonprefix(pair)) for pair in pairwise(ids)), 0]  # noqa: RUF071  no paths
    lengths = [max(LEAST_CHARACTERS, before + 1, after + 1) for before, after in pairwise(shared)]
    return {one: one[:length] for one, length in zip(ids, lengths, strict=False)}


def job_names(document: Document) -> dict[str, str]:
    """Return the name of each job by the id of its lease or ticket; a short id if it has none.

    A name that is long, that several jobs of a user have, or that is a short id of another, is
    followed by the short id.
    """
    names, records = short_ids(document), (*document["leases"], *document["queue"])
    # The leases of all ranks of a step are one job.
    jobs = {(one["user"], one["name"], (one.get("engine_job") or one)["id"]) for one in records}
    uses, shown_ids = Counter(job[:2] for job in jobs), set(names.values())
    for record in records:
        name = printable(record["name"] or "")
        is_unclear = uses[record["user"], record["name"]] > 1 or name in shown_ids
        if len(name) > _LONGEST_NAME or is_unclear:
            name = f"{name[: _LONGEST_NAME - 7]} ({names[record['id']]})" if name else ""
        names[record["id"]] = name or names[record["id"]]
    return names


def state_of(record: Document, now: datetime) -> str:
    """Return the state of a lease, a ticket or a dependent launch in one or two words."""
    if record.get("left_over_pids"):
        return "left over"
    if record.get("stopped"):
        return "stopped"
    if "started_at" not in record:
        return "waiting"
    if record["command"][:1] == ["reserve"] and record["pid"] == record["job_pid"]:
        return "reserved"
    return "idle" if idle_text(record, now) else "running"


def gpus_cell(record: Document) -> str:
    """Return the GPUs of a lease in rank order, such as "0-3,7,6"; how many others wait for."""
    if "started_at" not in record:
        return f"any {record['gpus']}" if record["gpus"] else "all"
    # A GPU that is out of service since, such as a lost one, has no index any more.
    named = zip(record["gpu_names"], record["uuids"], strict=True)
    gpus = names_in_order(name or printable(uuid[:_UUID_START]) for name, uuid in named)
    if not record["shared"]:
        return gpus
    part = record["sm_percentage"]
    share = "shared" if part is None or part == 100 else f"{part} %"
    if record["pace"] is not None:
        share += f", pace {record['pace']:.2f}"
    return f"{gpus} ({share}, guest)" if record["guest"] else f"{gpus} ({share})"


def time_cell(record: Document, now: datetime) -> str:
    """Return for how long a job has run, and of how long it may; for how long others wait."""
    if "started_at" not in record:
        return age(record["since"], now)
    limit_s = record["time_limit_s"]
    limit = "" if limit_s is None else f" of {format_duration(limit_s).removesuffix(' 00 min')}"
    return age(record["started_at"], now) + limit


def left_cell(lease: Document, now: datetime) -> str:
    """Return the time until a lease ends at most; empty without a limit."""
    if lease["ends_at"] is None:
        return ""
    left_s = (parse_time(lease["ends_at"]) - now).total_seconds()
    return format_duration(int(left_s)) if left_s > 0 else "over"


def starts_cell(record: Document, now: datetime) -> str:
    """Return when a job that waits probably starts, or after which others; empty if unknown."""
    if record.get("after"):
        return f"after {', '.join(record['after'])}"
    predicted = record.get("predicted_start")
    if not predicted:
        return ""
    first_s, last_s = (
        max(0.0, (parse_time(predicted[key]) - now).total_seconds()) for key in ("from", "to")
    )
    return format_start(first_s, last_s)


def idle_text(lease: Document, now: datetime) -> str:
    """Return for how long a lease's GPUs have done nothing, if that is long."""
    since = lease["idle_since"]
    if since is None or (now - parse_time(since)).total_seconds() < IDLE_AFTER_S:
        return ""
    return f"idle for {age(since, now)}"


def job_notes(document: Document, now: datetime) -> list[Text]:
    """Return lines on jobs: left over, held by a container, idle, or choosy."""
    names, ids, leases = job_names(document), short_ids(document), document["leases"]
    lines = []
    for lease in leases:
        name, way_out = names[lease["id"]], f"'gpulaunch free {ids[lease['id']]}'"
        if lease["left_over_pids"]:
            lines.append(_left_over_note(lease, name, way_out, now))
        if note := _container_note(lease, name, way_out):
            lines.append(note)
        if idle := idle_text(lease, now):
            lines.append(f"{name} of {printable(lease['user'])} has been {idle}")
    lines += [
        f"{names[ticket['id']]} is choosy about its GPUs, so others may pass it"
        for ticket in document["queue"]
        if ticket["choosy"]
    ]
    return [Text(line, "yellow") for line in lines]


def machine_notes(document: Document, now: datetime) -> Iterator[Text]:
    """Yield lines on what stops all launches, on use outside, GPUs out of service, containers."""
    for problem in document["problems"][:_MOST_PROBLEMS]:
        yield Text(f"nobody can launch: {problem}", "red")
    if len(document["problems"]) > _MOST_PROBLEMS:
        yield Text(f"and {len(document['problems']) - _MOST_PROBLEMS} more such records", "red")
    for gpu in document["gpus"]:
        for job in dict.fromkeys(stray["who"] for stray in gpu["strays"]):
            yield Text(f"GPU {gpu['name']} is in use by {job}", "red")
        if gpu["state"] == "outside" and not gpu["strays"]:
            who = printable(gpu["outside"])
            yield Text(f"GPU {gpu['name']} is in use outside gpulaunch: {who}", "red")
    yield from _service_notes(document["gpus"], now)
    for container in document["containers"]:
        note = running_container_note(container)
        if note:
            yield Text(note, "red" if container["leases"] else "yellow")


def _service_notes(gpus: Sequence[Document], now: datetime) -> list[Text]:
    """Return a line for each GPU that is out of service, or has something to be known."""
    lines: list[Text] = []
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


def _left_over_note(lease: Document, name: str, way_out: str, now: datetime) -> str:
    """Return which processes hold GPUs after their job, for how long, and to what use."""
    about = [f"pid {', '.join(map(str, lease['left_over_pids']))}"]
    if lease["left_over_since"]:
        about.append(f"for {age(lease['left_over_since'], now)}")
    if lease["left_over_uses_gpus"] is not None:
        about.append("using its GPUs" if lease["left_over_uses_gpus"] else "without using its GPUs")
    return (
        f"{name} has ended, but a left-over process keeps its GPUs ({', '.join(about)}): "
        f"{way_out} ends it"
    )


def _container_note(lease: Document, name: str, way_out: str) -> str:
    """Return why a job keeps GPUs whose container does not run, or whose engine does not answer."""
    if lease["container_problem"]:
        return (
            f"{name} keeps its GPUs until its engine reports on its container: "
            f"{lease['container_problem']}"
        )
    if lease["container_state"] in (None, "running"):
        return ""
    note = f"{name} keeps its GPUs: container {printable(lease['container_name'])} "
    if lease["container_state"] == "exited":
        return f"{note}has ended, and a restart policy may start it again: {way_out} ends that"
    if lease["container_state"] == "created":
        return f"{note}is made, and not started yet"
    return f"{note}is {printable(lease['container_state'])}"


def running_container_note(container: Document) -> str:
    """Return what is to be known of a running container without a lease, beside its GPUs' lines."""
    name, program = container["name"], container["engine"]
    title = container_title(container)
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


def container_title(container: Document) -> str:
    """Return the name of a container and its engine."""
    return f"container {container['name']} ({container['engine']})"


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
