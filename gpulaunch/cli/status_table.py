"""The tables of `gpulaunch status`, a row for each job or for each GPU, and the notes below them.

Colour adds to the words and never replaces them. `top` shows the same. A document is that of
Status; `now` is an aware time, up to which durations are counted.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from gpulaunch.cli.output import Document
from gpulaunch.cli.screen import Grid, Parts, Text, cut
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

GpuPlace = tuple[str, tuple[int, ...]]
"""GPUs that are near each other: a title, "" if the machine has no parts, and their indices."""

RowStyle = Callable[[Document], str]
"""What returns the style of the row of a lease, ticket or dependent launch."""

_LONGEST_NAME = 24
_UUID_START = len("GPU-01234567")
_MOST_PROBLEMS = 5
_GIB = 1 << 30
_STYLES = {"stopped": "yellow", "left over": "red", "idle": "yellow", "waiting": "dim"}
_GPU_COLUMNS = ("GPU", "MODEL", "USE", "MEMORY", "POWER", "°C", "USER", "TIME", "LEFT", "JOB")
_GPU_COLUMNS_LEAVE = ("MODEL", "POWER", "°C", "TIME", "MEMORY", "LEFT")  # in this order
_LOAD_KEYS = {
    "USE": "utilization_percentage",
    "MEMORY": "memory_used_bytes",
    "POWER": "power_w",
    "°C": "temperature_c",
}


def status_table(document: Document, now: datetime) -> Parts:
    """Return the title, the table of jobs, and notes."""
    leases = sorted(_one_for_each_step(document["leases"]), key=_by_gpus)
    jobs = jobs_table(document, [*leases, *waiting(document)], now)
    notes = [*job_notes(document, now), *machine_notes(document, now)]
    if any(_indices(lease) != _by_gpus(lease) for lease in leases):
        notes.insert(0, Text("GPUs are in rank order: the first is the job's GPU 0", "dim"))
    parts: list[Grid | Text] = [Text(_title(document), "bold")]
    if jobs.row_count:
        parts.append(jobs)
    if jobs.row_count and notes:
        parts.append(Text())
    return Parts(*parts, *notes)


def gpus_view(
    document: Document, places: Sequence[GpuPlace], now: datetime, only: str | None = None
) -> Parts:
    """Return the title, the table of GPUs, those who wait, and notes; see gpus_table."""
    parts: list[Grid | Text] = [Text(_title(document), "bold")]
    parts += [gpus_table(document, places, now, only), Text()]
    if ahead := waiting(document):
        parts += [jobs_table(document, ahead, now), Text()]
    return Parts(*parts, *job_notes(document, now), *machine_notes(document, now))


def _title(document: Document) -> str:
    models = ", ".join(map(printable, sorted({gpu["model"] for gpu in document["gpus"]})))
    return f"{free_gpus(document)} ({models})"


def free_gpus(document: Document) -> str:
    """Return the machine, and how many and which of its GPUs are free."""
    gpus = document["gpus"]
    free = [gpu for gpu in gpus if gpu["free"]]
    title = f"{document['topology']}: {len(free)} of {len(gpus)} GPUs free"
    if not free:
        return title
    whole = frozenset(gpu["index"] for gpu in free if gpu["name"] == str(gpu["index"]))
    names = [format_cpuset(whole)] if whole else []
    names += [gpu["name"] for gpu in free if gpu["index"] not in whole]  # MIG instances
    return f"{title}: {','.join(names)}"


def waiting(document: Document) -> list[Document]:
    """Return those who wait: in the order of the queue, then those who wait for others first."""
    return [*document["queue"], *document["dependent"]]


# Jobs


def jobs_table(
    document: Document, records: Sequence[Document], now: datetime, style: RowStyle | None = None
) -> Grid:
    """Return the table of jobs, with a row for each of these records of the document."""
    names = job_names(document)
    starts = ["STARTS"] if any(starts_cell(record, now) for record in records) else []
    columns = ("NAME", "STATE", "USER", "GPUS", "TIME", *starts, "COMMAND")
    table = Grid(*columns, leave=("TIME", *starts, "COMMAND", "USER"))
    for record in records:
        state = state_of(record, now)
        cells: dict[str, str | Text] = {
            "NAME": names.get(record.get("id", "")) or printable(record["name"] or ""),
            "STATE": Text(state, _STYLES.get(state, "")),
            "USER": printable(record["user"]),
            "GPUS": gpus_cell(record),
            "TIME": time_cell(record, now),
            "STARTS": starts_cell(record, now),
            "COMMAND": _command_cell(record, names),
        }
        table.add_row(*(cells[name] for name in columns), style=style(record) if style else "")
    return table


def _one_for_each_step(leases: Sequence[Document]) -> list[Document]:
    """Return the leases, with one in place of those of all ranks of a step.

    It is that of the lowest rank, with the GPUs of all and since when the first one runs.
    """
    rows: list[Document] = []
    steps: dict[object, list[Document]] = {}
    for lease in leases:
        job = lease["engine_job"]
        if job is None or job["ranks"] == 1 or lease["parent"]:
            rows.append(lease)
        else:
            steps.setdefault((job["engine"], job["id"], lease["user"]), []).append(lease)
    for ranks in steps.values():
        ranks.sort(key=_rank_of)
        names: dict[str, str | None] = {}
        for lease in ranks:
            names |= zip(lease["uuids"], lease["gpu_names"], strict=True)
        merged = {
            "ranks_here": len(ranks),
            "gpus": [gpu for lease in ranks for gpu in lease["gpus"]],
            "uuids": list(names),
            "gpu_names": list(names.values()),
            "started_at": min(lease["started_at"] for lease in ranks),
        }
        rows.append(ranks[0] | merged)
    return rows


def _rank_of(lease: Document) -> int:
    return lease["engine_job"]["rank"] or 0


def _indices(lease: Document) -> list[int]:
    """Return the GPUs of a lease in rank order; one that is not there any more is GPU -1."""
    return [-1 if index is None else index for index in lease["gpus"]]


def _by_gpus(lease: Document) -> list[int]:
    return sorted(_indices(lease))


def _command_cell(record: Document, names: Mapping[str, str]) -> Text:
    """Return a command, after what it runs in: a job's lease, an engine's job, a container."""
    parts = []
    if parent := record.get("parent"):
        parts.append(f"in {names.get(parent, parent)}")
    if job := record.get("engine_job"):
        title = f"{job['engine']} {job['id']}"
        if "ranks_here" in record:
            title += f", {record['ranks_here']} of {job['ranks']} ranks"
        parts.append(f"{title}, shared by it" if job["shared"] else title)
    if record.get("container_name"):
        parts.append(f"container {record['container_name']}")
    return cut(": ".join([*parts, shlex.join(record["command"])]))


def _short_ids(document: Document) -> dict[str, str]:
    """Return the beginning of the id of each lease and ticket; all of it if others begin so."""
    ids = [record["id"] for record in (*document["leases"], *document["queue"])]
    uses = Counter(one[:LEAST_CHARACTERS] for one in ids)
    short = {}
    for one in ids:
        beginning = one[:LEAST_CHARACTERS]
        short[one] = beginning if uses[beginning] == 1 else one
    return short


def job_names(document: Document) -> dict[str, str]:
    """Return the name of each job by the id of its lease or ticket; a short id if it has none.

    A name that is long, that several jobs of a user have, or that is a short id of another, is
    followed by the short id.
    """
    names, records = _short_ids(document), (*document["leases"], *document["queue"])
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


def left_cell(ends_at: str | None, now: datetime) -> str:
    """Return the time until a lease ends at most; empty without a limit."""
    if ends_at is None:
        return ""
    left_s = (parse_time(ends_at) - now).total_seconds()
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


def _idle_text(lease: Document, now: datetime) -> str:
    """Return for how long a lease's GPUs have done nothing, if that is long."""
    since = lease["idle_since"]
    if since is None or (now - parse_time(since)).total_seconds() < IDLE_AFTER_S:
        return ""
    return f"idle for {age(since, now)}"


# GPUs


def gpu_places(topology: Topology) -> list[GpuPlace]:
    """Return the sockets of a machine, or of several, each with its GPUs by card.

    Titles tell of NVLinks only where they do not join all GPUs.
    """
    tree = machine_tree(topology)
    order = {card: place for place, card in enumerate(tree.cards)}
    placed = sorted(topology.gpus, key=lambda gpu: (order[gpu.card], gpu.index))
    islands = _islands(tree)
    if len(islands) == 1 and len(islands[0]) == len(topology.gpus):
        islands = []  # nothing to be told apart
    places = []
    for titles, socket in _sockets(tree):
        joined = [
            gpu_names(gpu for gpu in placed if gpu.index in island)
            for island in islands
            if island.intersection(socket.gpus)
        ]
        if joined:
            titles.append(f"NVLink joins {'; '.join(joined)}")
        gpus = tuple(gpu.index for gpu in placed if gpu.index in socket.gpus)
        places.append((", ".join(titles), gpus))
    return places


def _sockets(tree: Level) -> Iterator[tuple[list[str], Level]]:
    """Yield each socket with what names it: its machine and itself, where there are several."""
    machines = tree.children if tree.kind == "network" else (tree,)
    for machine in machines:
        for number, socket in enumerate(machine.sockets):
            titles = [f"machine {machine.node}"] if len(machines) > 1 else []
            if len(machine.sockets) > 1:
                node = socket.numa_node
                titles.append(f"socket {number}" if node is None else f"NUMA node {node}")
            yield titles, socket


def _islands(tree: Level) -> list[set[int]]:
    """Return the groups of GPUs that NVLinks join, directly or through others, ascending."""
    found: list[set[int]] = []
    for pair in tree.nvlinks:
        met = [island for island in found if island & set(pair)]
        found = [island for island in found if island not in met]
        found.append(set(pair).union(*met))
    return sorted(found, key=min)


def gpus_table(
    document: Document,
    places: Sequence[GpuPlace],
    now: datetime,
    only: str | None = None,
    style: RowStyle | None = None,
) -> Grid:
    """Return the table of GPUs, with a heading for each place; columns that are unknown are absent.

    With `only` it has the GPUs of that user, whose leases alone are then in the document. A row has
    the styles of all leases of its GPU.
    """
    gpus = {gpu["index"]: gpu for gpu in document["gpus"]}
    leases = {lease["id"]: lease for lease in document["leases"]}
    names = job_names(document)
    columns = _known_columns(document)
    leave = [name for name in _GPU_COLUMNS_LEAVE if name in columns]
    table = Grid(*columns, right=("USE", "MEMORY", "POWER", "°C", "TIME", "LEFT"), leave=leave)
    for title, indices in places:
        rows = []
        for gpu in (gpus[index] for index in indices if index in gpus):
            held = [leases[one] for one in gpu["leases"] if one in leases]
            if held or only is None:
                rows.append((gpu, held))
        if rows and title:
            table.add_row(Text(title, "dim"))
        for gpu, held in rows:
            cells = _gpu_cells(gpu, held, names, now)
            styles = map(style, held) if style else ()
            table.add_row(*(cells[name] for name in columns), style=" ".join(styles))
    return table


def _known_columns(document: Document) -> list[str]:
    """Return the headings of the columns that say something; the title names an only model."""
    gpus = document["gpus"]
    absent = set()
    for name, key in _LOAD_KEYS.items():
        if all(gpu[key] is None for gpu in gpus):
            absent.add(name)
    if not any(lease["ends_at"] for lease in document["leases"]):
        absent.add("LEFT")
    if len({gpu["model"] for gpu in gpus}) <= 1:
        absent.add("MODEL")
    return [name for name in _GPU_COLUMNS if name not in absent]


def _gpu_cells(
    gpu: Document, held: Sequence[Document], names: Mapping[str, str], now: datetime
) -> dict[str, str | Text]:
    """Return the cells of a GPU by their headings, with those of its leases that are shown."""
    is_marked = gpu["problems"] or gpu["warnings"] or gpu["drained"]
    used, total = gpu["memory_used_bytes"], gpu["memory_total_bytes"] or 0
    ends = [lease["ends_at"] for lease in held]
    return {
        "GPU": Text(f"{gpu['name']}!", "yellow") if is_marked else gpu["name"],
        "MODEL": printable(gpu["model"]),
        "USE": _known(gpu["utilization_percentage"], " %"),
        "MEMORY": "" if used is None else f"{used / _GIB:.1f}/{total / _GIB:.0f} GiB",
        "POWER": _known(gpu["power_w"], " W"),
        "°C": _known(gpu["temperature_c"], ""),
        "USER": ", ".join(dict.fromkeys(printable(lease["user"]) for lease in held)),
        "TIME": age(min(lease["started_at"] for lease in held), now) if held else "",
        "LEFT": left_cell(max(ends), now) if ends and all(ends) else "",
        "JOB": _job_cell(gpu, held, names, now),
    }


def _known(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f}{unit}"


def _job_cell(
    gpu: Document, held: Sequence[Document], names: Mapping[str, str], now: datetime
) -> Text:
    """Return what a GPU is used for, or why nobody has it."""
    if held:
        jobs = []
        for lease in held:
            state = state_of(lease, now)
            job = names[lease["id"]]
            if not lease["name"]:
                job += f" {shlex.join(lease['command'])}"
            jobs.append(job if state == "running" else f"{state}: {job}")
        return cut(" + ".join(jobs))
    text, style = "of another user", "dim"
    if gpu["strays"]:
        text, style = f"in use by {gpu['strays'][0]['who']}", "red"
    elif gpu["state"] == "outside":
        text, style = f"outside gpulaunch: {gpu['outside']}", "red"
    elif gpu["state"] == "barred":
        text, style = ": ".join(filter(None, ("barred", "; ".join(gpu["problems"])))), "red"
    elif gpu["state"] == "drained":
        why = gpu["drained"]["reason"]
        text, style = f"drained by {gpu['drained']['by']}" + (f": {why}" if why else ""), "yellow"
    elif not gpu["leases"]:
        text, style = ("free", "green") if gpu["free"] else ("granted to nobody now", "red")
    return cut(text, style)


# Notes


def job_notes(document: Document, now: datetime) -> list[Text]:
    """Return lines on jobs: left over, held by a container, idle, or choosy."""
    names, ids = job_names(document), _short_ids(document)
    lines = []
    for lease in document["leases"]:
        name, way_out = names[lease["id"]], f"'gpulaunch free {ids[lease['id']]}'"
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
        why = f"has ended, and a restart policy may start it again: {way_out} ends that"
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
