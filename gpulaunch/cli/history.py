"""`gpulaunch history`: what ran, on which GPUs, for how long, and how it ended."""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json, add_topology, value_by, whole_number
from gpulaunch.cli.output import Document, print_json, rounded, warn
from gpulaunch.cli.screen import Grid, Parts, Text, cut, draw
from gpulaunch.errors import FailedError, printable
from gpulaunch.files.units import format_duration, parse_duration
from gpulaunch.history.line import has_common
from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.history.read import read_history
from gpulaunch.launch.past import launch_documents
from gpulaunch.launch.surroundings import shown_settings
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import names_in_order
from gpulaunch.process.system import parse_time, user_name

_SHOWN = 20
_MOST = 1 << 20
_COMMON_HINT = "where 'gpulaunch setup --history' has been run"


def main(arguments: Sequence[str]) -> int:
    """Print the history of one machine."""
    options = make_parser().parse_args(arguments)
    everyone = options.everyone or options.user is not None
    launches = _past_launches(options.topology, options.since, everyone=everyone)
    if options.user is not None:
        names = {launch.user_id: user_name(launch.user_id) for launch in launches}
        launches = [launch for launch in launches if names[launch.user_id] == options.user]
    shown = options.count or (len(launches) if options.all or options.totals else _SHOWN)
    earlier = max(0, len(launches) - shown)
    launches = launches[earlier:]
    documents = launch_documents(launches, warn, options.topology)
    if options.totals:
        document: Document = {"totals": _totals(documents)}
    else:
        document = {"launches": documents, "earlier": earlier}
    if options.json:
        print_json(document)
    else:
        draw(history_table(document, several_users=everyone), sys.stdout)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch history",
        "What ran, on which GPUs, for how long, and how it ended; the newest stand last.",
    )
    parser.add_argument(
        "-n",
        dest="count",
        metavar="N",
        type=whole_number(_MOST),
        help=f"the last N launches (default: {_SHOWN}; with --totals all)",
    )
    parser.add_argument("--all", action="store_true", help="all that are known")
    parser.add_argument(
        "--since",
        metavar="TIME",
        type=value_by(parse_duration),
        help="only launches of this last time, such as 12h or 7d",
    )
    parser.add_argument("--user", metavar="NAME", help=f"those of another user ({_COMMON_HINT})")
    parser.add_argument(
        "--everyone", action="store_true", help=f"those of all users ({_COMMON_HINT})"
    )
    parser.add_argument(
        "--totals", action="store_true", help="launches and GPU-hours of each user and job"
    )
    add_topology(parser)
    add_json(parser)
    return parser


def _past_launches(
    topology: str | None, since_s: float | None, *, everyone: bool
) -> list[PastLaunch]:
    """Return the launches of the last `since_s` on one machine, in the order of their beginning."""
    if everyone and not has_common():
        raise FailedError(
            "each user's history is his own here, so those of others cannot be read",
            "sudo gpulaunch setup --history makes a place for all, from then on",
        )
    wanted = shown_settings(topology).topology
    name = None if wanted is None else load_described_machine(wanted)[0].name
    earliest_s = 0.0 if since_s is None else time.time() - since_s
    found = []
    for launch in read_history(everyone=everyone):
        is_here = launch.topology == name if launch.described else name is None
        if is_here and launch.submitted_s >= earliest_s:
            found.append(launch)
    return found


def _totals(launches: Sequence[Document]) -> list[Document]:
    """Return the sums of each user's launches of one job, those with most GPU-hours first."""
    rows: dict[tuple[str, str], Document] = {}
    for one in launches:
        user, job = one["user"], _job_of(one)
        new = {"user": user, "job": job, "launches": 0, "failed": 0, "gpu_hours": 0.0}
        row = rows.setdefault((user, job), new)
        row["launches"] += 1
        row["failed"] += one["state"] == "killed" or bool(one["exit_status"])
        row["gpu_hours"] += one["gpu_hours"]
    for row in rows.values():
        row["gpu_hours"] = rounded(row["gpu_hours"])
    return sorted(rows.values(), key=_by_hours)


def _by_hours(row: Document) -> tuple[float, str, str]:
    return -row["gpu_hours"], row["user"], row["job"]


def _job_of(launch: Document) -> str:
    """Return what launches of one job have in common: the name, else the program and its script.

    Example: `python train.py` for /usr/bin/python -u train.py --lr 0.1
    """
    if launch["name"]:
        return printable(launch["name"])
    words = [os.path.basename(word) for word in launch["command"][:1]]
    words += [word for word in launch["command"][1:] if not word.startswith("-")][:1]
    return " ".join(words) or "?"


def history_table(document: Document, *, several_users: bool) -> Parts:
    """Return the table of launches or of their sums, with the users if there may be several."""
    if "totals" in document:
        return _totals_table(document["totals"])
    if not document["launches"]:
        return Parts(Text("nothing ran here yet, as far as the history knows"))
    users = ["user"] if several_users else []
    names = ("began", *users, "ran", "GPUs", "GPU-h", "end", "job")
    table = Grid(*names, right=("ran", "GPU-h"), leave=("GPU-h", "began"))
    for launch in document["launches"]:
        began = parse_time(launch["started_at"] or launch["submitted_at"]).astimezone()
        ran_s, gpus = launch["duration_s"], names_in_order(map(printable, launch["gpus"]))
        cells: dict[str, str | Text] = {
            "began": began.strftime("%m-%d %H:%M"),
            "user": printable(launch["user"]),
            "ran": "-" if ran_s is None else format_duration(ran_s),
            "GPUs": gpus or f"({launch['count'] or 'all'})",  # as many as it waits for
            "GPU-h": _hours(launch["gpu_hours"]),
            "end": _end_cell(launch),
            "job": cut(launch["name"] or shlex.join(launch["command"])),
        }
        table.add_row(*(cells[name] for name in names))
    if document["earlier"]:
        return Parts(table, Text(f"\n{document['earlier']} earlier: --all shows them", "dim"))
    return Parts(table)


def _end_cell(launch: Document) -> Text:
    """Return the exit status, or what has become of a launch without one."""
    if launch["state"] == "ended":
        status = launch["exit_status"]
        return Text("?" if status is None else str(status), "red" if status else "green")
    return Text(launch["state"], "red" if launch["state"] == "killed" else "")


def _totals_table(rows: Sequence[Document]) -> Parts:
    names = ("GPU-h", "launches", "failed", "user", "job")
    table = Grid(*names, right=names[:3], leave=("failed",))
    rows_of: dict[str, list[Document]] = {}
    hours_of: Counter[str] = Counter()
    for row in rows:
        counts = str(row["launches"]), str(row["failed"])
        user = printable(row["user"])
        table.add_row(_hours(row["gpu_hours"]), *counts, user, cut(row["job"]))
        rows_of.setdefault(user, []).append(row)
        hours_of[user] += row["gpu_hours"]
    lines = [Text(f"\n{_sum_text(rows)}", "bold")]
    if len(hours_of) > 1:
        lines += [Text(f"{user}: {_sum_text(rows_of[user])}") for user, _ in hours_of.most_common()]
    return Parts(table, *lines)


def _sum_text(rows: Sequence[Document]) -> str:
    hours, count = sum(row["gpu_hours"] for row in rows), sum(row["launches"] for row in rows)
    launches = "1 launch" if count == 1 else f"{count} launches"
    return f"{_hours(hours)} GPU-hours in {launches}"


def _hours(hours: float) -> str:
    return f"{hours:.2f}" if hours >= 0.005 or not hours else "<0.01"
