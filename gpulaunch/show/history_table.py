"""Tables of `gpulaunch history`."""

import shlex
from collections import Counter
from collections.abc import Sequence

from gpulaunch.errors import printable
from gpulaunch.files.units import format_duration
from gpulaunch.machine.gpu import names_in_order
from gpulaunch.process.system import parse_time
from gpulaunch.show import Document
from gpulaunch.show.terminal import Parts, Text, cut, make_table


def history_table(document: Document, *, several_users: bool) -> Parts:
    """Return the table of launches, or of their sums.

    Args:
        document: the document that `gpulaunch history --json` prints.
        several_users: whether to name the users.
    """
    if "totals" in document:
        return _totals_table(document)
    if not document["launches"]:
        return Parts(Text("nothing ran here yet, as far as the history knows"))
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
            "job": cut(launch["name"] or shlex.join(launch["command"])),
        }
        table.add_row(*(cells[name] for name in names))
    if document["earlier"]:
        return Parts(table, Text(f"\n{document['earlier']} earlier: --all shows them", "dim"))
    return Parts(table)


def _totals_table(document: Document) -> Parts:
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
    return Parts(table, *lines)


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
    """Return the GPUs' names in rank order; else how many it waits for."""
    if not launch["gpus"]:
        return f"({launch['count'] or 'all'})"
    return names_in_order(map(printable, launch["gpus"]))


def _ending(launch: Document) -> Text:
    """Return the exit status, or what has become of a launch without one."""
    if launch["state"] == "ended":
        status = launch["exit_status"]
        return Text("?" if status is None else str(status), "red" if status else "green")
    return Text(launch["state"], "red" if launch["state"] == "killed" else "")
