"""Tables of `gpulaunch history`."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from gpulaunch.errors import printable
from gpulaunch.files.duration import format_duration
from gpulaunch.leases.state_directory import own_table
from gpulaunch.machine.cpuset import format_cpuset
from gpulaunch.process.system import parse_time
from gpulaunch.show import Document
from gpulaunch.show.terminal import Group, Text, cut, make_table


def history_table(
    document: Document,
    *,
    several_users: bool,
    elsewhere: Mapping[str, int] = {},
) -> Group:
    """Return the table of launches, or of their sums.

    Args:
        document: the document from history_document.
        several_users: whether to name the users.
        elsewhere: numbers of launches on described machines by the machine's name, told of where
            nothing ran here.
    """
    if "totals" in document and (document["totals"] or not elsewhere):
        return _totals_table(document)
    if not document.get("launches"):
        return Group(*_nothing_here(elsewhere))
    users = ["user"] if several_users else []
    names = ("began", *users, "ran", "GPUs", "GPU-h", "end", "job")
    table = make_table(*names, right=("ran", "GPU-h"), leave=("GPU-h", "began"))
    for launch in document["launches"]:
        cells: dict[str, str | Text] = {
            "began": _local_time(launch["started_at"] or launch["submitted_at"]),
            "user": printable(launch["user"]),
            "ran": _duration(launch),
            "GPUs": _gpus(launch),
            "GPU-h": _hours(launch["gpu_hours"]),
            "end": _ending(launch),
            "job": cut(_job(launch)),
        }
        table.add_row(*(cells[name] for name in names))
    notes = []
    unended = [one for one in document["launches"] if one["state"] not in ("ended", "killed")]
    for other in sorted({one["table"] or "" for one in unended} - {"", own_table()}):
        jobs = ", ".join(_job(one) for one in unended if one["table"] == other)
        notes.append(f"on another table, GPULAUNCH_STATE_DIR={printable(other)}: {jobs}")
    if document["earlier"]:
        notes.append(f"{document['earlier']} earlier: --all shows them")
    return Group(table, *(Text(f"\n{note}", "dim") for note in notes))


def _job(launch: Document) -> str:
    return printable(launch["name"] or shlex.join(launch["command"]))


def _nothing_here(elsewhere: Mapping[str, int]) -> list[Text]:
    lines = [Text("nothing ran here yet, as far as the history knows")]
    if elsewhere:
        machines = ", ".join(f"{printable(name)} ({n})" for name, n in sorted(elsewhere.items()))
        lines.append(Text(f"on described machines, which --topology shows: {machines}"))
    return lines


def _totals_table(document: Document) -> Group:
    table = make_table(
        *("GPU-h", "launches", "failed", "user", "job"),
        right=("GPU-h", "launches", "failed"),
        leave=("failed",),
    )
    rows = document["totals"]
    for row in rows:
        table.add_row(
            _hours(row["gpu_hours"]),
            str(row["launches"]),
            str(row["failed"]),
            printable(row["user"]),
            cut(row["job"]),
        )
    lines = [Text(f"\n{_sum(rows)}", "bold")]
    hours: Counter[str] = Counter()
    for row in rows:
        hours[row["user"]] += row["gpu_hours"]
    if len(hours) > 1:
        for user, _ in hours.most_common():
            own = [row for row in rows if row["user"] == user]
            lines.append(Text(f"{printable(user)}: {_sum(own)}"))
    return Group(table, *lines)


def _sum(rows: Sequence[Document]) -> str:
    """Return the GPU-hours and launches of some rows of totals, as text."""
    hours, count = sum(row["gpu_hours"] for row in rows), sum(row["launches"] for row in rows)
    return f"{_hours(hours)} GPU-hours in {count} launch{'' if count == 1 else 'es'}"


def _local_time(text: str) -> str:
    return parse_time(text).astimezone().strftime("%m-%d %H:%M")


def _duration(launch: Document) -> str:
    return "-" if launch["duration_s"] is None else format_duration(launch["duration_s"])


def _hours(hours: float) -> str:
    return f"{hours:.2f}" if hours >= 0.005 or not hours else "<0.01"


def _gpus(launch: Document) -> str:
    """Return the GPUs' names, those of whole GPUs as ranges; else how many it waits for."""
    names = launch["gpus"]
    if not names:
        return f"({launch['count'] or 'all'})"
    if all(name.isdecimal() for name in names):
        return format_cpuset(frozenset(map(int, names)))
    return ",".join(map(printable, names))


def _ending(launch: Document) -> Text:
    """Return the exit status, or what has become of a launch without one."""
    if launch["state"] == "ended":
        status = launch["exit_status"]
        return Text("?" if status is None else str(status), "red" if status else "green")
    return Text(launch["state"], "red" if launch["state"] == "killed" else "")
