"""The tables of `gpulaunch status`, a row for each job or for each GPU, and the notes below them.

Colour adds to the words and never replaces them. `top` shows the same. A document is that of
Status; `now` is an aware time, up to which durations are counted.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from gpulaunch.cli.output import Document, format_start
from gpulaunch.cli.screen import Grid, Text, cut
from gpulaunch.errors import printable
from gpulaunch.files.units import format_duration
from gpulaunch.history.past_launch import LEAST_CHARACTERS
from gpulaunch.leases.holders import age
from gpulaunch.leases.lease import IDLE_AFTER_S
from gpulaunch.machine.gpu import format_cpuset, names_in_order
from gpulaunch.process.system import parse_time

RowStyle = Callable[[Document], str]
"""What returns the style of the row of a lease, ticket or dependent launch."""

_LONGEST_NAME = 24
_UUID_START = len("GPU-01234567")
_MOST_PROBLEMS = 5
_GIB = 1 << 30
_STYLES = {"stopped": "yellow", "left over": "red", "idle": "yellow", "waiting": "dim"}
_GPU_COLUMNS = ("GPU", "MODEL", "NUMA", "USE", "MEMORY", "POWER", "°C", "USER", "TIME", "JOB")
_GPU_COLUMNS_LEAVE = ("MODEL", "NUMA", "POWER", "°C", "TIME", "MEMORY")  # in this order


def status_table(document: Document, now: datetime) -> list[Grid | Text]:
    """Return the table of jobs, and notes."""
    leases = sorted(document["leases"], key=_lowest_gpu)
    jobs = [*leases, *waiting(document)]
    parts: list[Grid | Text] = [jobs_table(document, jobs, now)] if jobs else []
    notes = [*job_notes(document, now), *machine_notes(document, now)]
    if parts and notes:
        parts.append(Text())
    return [*parts, *notes]


def gpus_view(
    document: Document, now: datetime, only: str | None = None, style: RowStyle | None = None
) -> list[Grid | Text]:
    """Return the table of GPUs, notes, and the table of those who wait; see gpus_table."""
    parts: list[Grid | Text] = [gpus_table(document, now, only, style)]
    parts += [*job_notes(document, now), *machine_notes(document, now)]
    if ahead := waiting(document):
        parts += [Text(), jobs_table(document, ahead, now, style)]
    return parts


def title_of(document: Document) -> str:
    """Return the machine, how many and which of its GPUs are free, and their models."""
    gpus = document["gpus"]
    free = [gpu for gpu in gpus if gpu["free"]]
    title = f"{document['topology']}: {len(free)} of {len(gpus)} GPUs free"
    if free:
        whole = frozenset(gpu["index"] for gpu in free if gpu["name"] == str(gpu["index"]))
        names = [format_cpuset(whole)] if whole else []
        names += [gpu["name"] for gpu in free if gpu["index"] not in whole]  # MIG instances
        title += f": {','.join(names)}"
    models = ", ".join(map(printable, sorted({gpu["model"] for gpu in gpus})))
    return f"{title} ({models})"


def waiting(document: Document) -> list[Document]:
    """Return those who wait: in the order of the queue, then those who wait for others first."""
    return [*document["queue"], *document["dependent"]]


# Jobs


def jobs_table(
    document: Document, records: Sequence[Document], now: datetime, style: RowStyle | None = None
) -> Grid:
    """Return the table of jobs, with a row for each of these records of the document."""
    names = job_names(document)
    rows = [_job_cells(record, names, now) for record in records]
    starts = ["STARTS"] if any(row["STARTS"] for row in rows) else []
    columns = ("NAME", "STATE", "USER", "GPUS", "TIME", *starts, "COMMAND")
    table = Grid(*columns, leave=("TIME", *starts, "COMMAND", "USER"))
    for record, row in zip(records, rows, strict=True):
        table.add_row(*(row[name] for name in columns), style=style(record) if style else "")
    return table


def _job_cells(record: Document, names: Mapping[str, str], now: datetime) -> dict[str, str | Text]:
    state = job_state(record, now)
    return {
        "NAME": names.get(record.get("id", "")) or printable(record["name"] or ""),
        "STATE": Text(state, _STYLES.get(state, "")),
        "USER": printable(record["user"]),
        "GPUS": gpus_cell(record),
        "TIME": time_cell(record, now),
        "STARTS": starts_cell(record, now),
        "COMMAND": _command_cell(record, names),
    }


def job_in_full(document: Document, record: Document, now: datetime) -> str:
    """Return the id and all cells of a lease or ticket, since columns may have had to go."""
    cells = _job_cells(record, job_names(document), now)
    return ", ".join([record["id"], *(str(cell) for cell in cells.values() if str(cell))])


def _lowest_gpu(lease: Document) -> int:
    gpus = [-1 if index is None else index for index in lease["gpus"]]  # None: it is gone
    return min(gpus, default=-1)


def _command_cell(record: Document, names: Mapping[str, str]) -> Text:
    """Return a command, after what it runs in: a job's lease, an engine's job, a container."""
    parts = []
    if parent := record.get("parent"):
        parts.append(f"in {names.get(parent, parent)}")
    if job := record.get("engine_job"):
        title = f"{job['engine']} {job['id']}"
        if job["ranks"] > 1 and not record["parent"]:
            title += f", rank {job['rank']} of {job['ranks']}"
        parts.append(f"{title}, shared by it" if job["shared"] else title)
    if record.get("container_name"):
        parts.append(f"container {record['container_name']}")
    return cut(": ".join([*parts, shlex.join(record["command"])]))


def job_names(document: Document) -> dict[str, str]:
    """Return the name of each job by the id of its lease or ticket; a short id if it has none.

    A name that is long, that several jobs of a user have, or that is a short id of another, is
    followed by the short id.
    """
    records = (*document["leases"], *document["queue"])
    beginnings = Counter(one["id"][:LEAST_CHARACTERS] for one in records)
    names = {}
    for one in records:
        short = one["id"][:LEAST_CHARACTERS]
        names[one["id"]] = short if beginnings[short] == 1 else one["id"]
    uses = Counter((one["user"], one["name"]) for one in records)
    shown_ids = set(names.values())
    for record in records:
        name = printable(record["name"] or "")
        is_unclear = uses[record["user"], record["name"]] > 1 or name in shown_ids
        if len(name) > _LONGEST_NAME or is_unclear:
            name = f"{name[: _LONGEST_NAME - 7]} ({names[record['id']]})" if name else ""
        names[record["id"]] = name or names[record["id"]]
    return names


def job_state(record: Document, now: datetime) -> str:
    """Return the state of a lease, a ticket or a dependent launch in one or two words."""
    if record.get("left_over_pids"):
        return "left over"
    if record.get("stopped"):
        return "stopped"
    if "started_at" not in record:
        return "waiting"
    if record["command"][:1] == ["reserve"] and record["pid"] == record["job_pid"]:
        return "reserved"
    return "idle" if _idle_text(record, now) else "running"


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


def _idle_text(lease: Document, now: datetime) -> str:
    """Return for how long a lease's GPUs have done nothing, if that is long."""
    since = lease["idle_since"]
    if since is None or (now - parse_time(since)).total_seconds() < IDLE_AFTER_S:
        return ""
    return f"idle for {age(since, now)}"


# GPUs


def gpus_table(
    document: Document,
    now: datetime,
    only: str | None = None,
    style: RowStyle | None = None,
) -> Grid:
    """Return the table of GPUs, without the columns that say nothing.

    With `only` it has the GPUs of that user, whose leases alone are then in the document. A row has
    the styles of all leases of its GPU.
    """
    leases = {lease["id"]: lease for lease in document["leases"]}
    names = job_names(document)
    gpus = sorted(document["gpus"], key=_by_card)
    differing = [key for key in ("model", "numa_node") if len({gpu[key] for gpu in gpus}) > 1]
    rows = []
    for gpu in gpus:
        held = [leases[one] for one in gpu["leases"] if one in leases]
        if held or only is None:
            styles = map(style, held) if style else ()
            rows.append((_gpu_cells(gpu, held, names, differing, now), " ".join(styles)))
    columns = [name for name in _GPU_COLUMNS if any(cells[name] for cells, _ in rows)]
    leave = [name for name in _GPU_COLUMNS_LEAVE if name in columns]
    table = Grid(*columns, right=("NUMA", "USE", "MEMORY", "POWER", "°C", "TIME"), leave=leave)
    for cells, row_style in rows:
        table.add_row(*(cells[name] for name in columns), style=row_style)
    return table


def _by_card(gpu: Document) -> list[int]:
    """Return a key that sorts the instances of a card, such as 1:0, where the card would be."""
    return [int(number) for number in gpu["name"].split(":")]


def _gpu_cells(
    gpu: Document,
    held: Sequence[Document],
    names: Mapping[str, str],
    differing: Sequence[str],
    now: datetime,
) -> dict[str, str | Text]:
    """Return the cells of a GPU by their headings, with those of its leases that are shown.

    Args:
        differing: keys of which the GPUs of the machine do not all have the same value.
    """
    is_marked = gpu["problems"] or gpu["warnings"] or gpu["drained"]
    used, total = gpu["memory_used_bytes"], gpu["memory_total_bytes"] or 0
    return {
        "GPU": Text(f"{gpu['name']}!", "yellow") if is_marked else gpu["name"],
        "MODEL": printable(gpu["model"]) if "model" in differing else "",
        "NUMA": _known(gpu["numa_node"], "") if "numa_node" in differing else "",
        "USE": _known(gpu["utilization_percentage"], " %"),
        "MEMORY": "" if used is None else f"{used / _GIB:.1f}/{total / _GIB:.0f} GiB",
        "POWER": _known(gpu["power_w"], " W"),
        "°C": _known(gpu["temperature_c"], ""),
        "USER": ", ".join(dict.fromkeys(printable(lease["user"]) for lease in held)),
        "TIME": time_cell(held[0], now) if held else "",
        "JOB": _use_cell(gpu, held, names, now),
    }


def _known(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f}{unit}"


def _use_cell(
    gpu: Document, held: Sequence[Document], names: Mapping[str, str], now: datetime
) -> Text:
    """Return the jobs that have a GPU, or its state, about which a note says more."""
    if held:
        jobs = []
        for lease in held:
            state = job_state(lease, now)
            job = names[lease["id"]]
            if not lease["name"]:
                job += f" {shlex.join(lease['command'])}"
            jobs.append(job if state == "running" else f"{state}: {job}")
        return cut(" + ".join(jobs))
    if gpu["free"]:
        return Text("free", "green")
    if gpu["leases"]:
        return Text("of another user", "dim")
    return Text("granted to nobody now" if gpu["state"] == "free" else gpu["state"], "red")


# Notes


def job_notes(document: Document, now: datetime) -> list[Text]:
    """Return lines on jobs: left over, held by a container, idle, or choosy."""
    names = job_names(document)
    lines = []
    for lease in document["leases"]:
        name, way_out = names[lease["id"]], f"'gpulaunch free {lease['id']}'"
        if lease["left_over_pids"]:
            lines.append(
                f"{name} has ended, but a left-over process keeps its GPUs "
                f"({_left_over_text(lease, now)}): {way_out} ends it"
            )
        if why := _container_text(lease, way_out):
            lines.append(f"{name} keeps its GPUs{why}")
        if idle := _idle_text(lease, now):
            lines.append(f"{name} of {printable(lease['user'])} has been {idle}")
    choosy = [names[ticket["id"]] for ticket in document["queue"] if ticket["choosy"]]
    lines += [f"{name} is choosy about its GPUs, so others may pass it" for name in choosy]
    return [Text(line, "yellow") for line in lines]


def _left_over_text(lease: Document, now: datetime) -> str:
    parts = [f"pid {', '.join(map(str, lease['left_over_pids']))}"]
    if lease["left_over_since"]:
        parts.append(f"for {age(lease['left_over_since'], now)}")
    if lease["left_over_uses_gpus"] is not None:
        parts.append("using its GPUs" if lease["left_over_uses_gpus"] else "without using its GPUs")
    return ", ".join(parts)


def _container_text(lease: Document, way_out: str) -> str:
    """Return why a lease stays whose container does not run, or whose engine does not answer."""
    state, name = lease["container_state"], lease["container_name"]
    if lease["container_problem"]:
        return f" until its engine reports on its container: {lease['container_problem']}"
    if state == "exited":
        why = f"has ended, and may be started again: {way_out} ends that"
    elif state == "created":
        why = "is made, and not started yet"
    else:
        why = f"is {printable(state or '')}"
    return "" if state in (None, "running") else f": container {printable(name)} {why}"


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
        if note := _running_container_note(container):
            yield Text(note, "red" if container["leases"] else "yellow")


def _service_notes(gpus: Sequence[Document], now: datetime) -> Iterator[Text]:
    for gpu in gpus:
        name, mark = gpu["name"], gpu["drained"]
        if gpu["problems"]:
            yield Text(f"GPU {name} is barred: {printable('; '.join(gpu['problems']))}", "red")
        if mark:
            why = f": {mark['reason']}" if mark["reason"] else ""
            since = age(mark["since"], now)
            yield Text(
                f"GPU {name} is drained by {printable(mark['by'])} for {since}{why}", "yellow"
            )
        if gpu["warnings"]:
            yield Text(f"GPU {name}: {printable('; '.join(gpu['warnings']))}", "yellow")


def _running_container_note(container: Document) -> str:
    """Return what is to be known of a running container without a lease, beside its GPUs' lines."""
    name, program = container["name"], container["engine"]
    title = f"container {name} ({program})"
    if container["sees_all"]:
        return f"{title} sees all GPUs"
    gpus = f"GPU{'' if len(container['gpus']) == 1 else 's'} {','.join(container['gpu_names'])}"
    if container["leases"]:
        held = ", ".join(container["leases"])
        return f"{title} has {gpus} beside lease {held}: '{program} stop {name}' ends it"
    if container["made_under"] and not container["is_here"]:
        again = f"'gpulaunch {program} start {name}'"
        return f"{title} has {gpus} without a lease: '{program} stop {name}', then {again}"
    return ""
