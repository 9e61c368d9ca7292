"""`gpulaunch history`: what ran, on which GPUs, for how long, and how it ended."""

import sys
import time
from collections import Counter
from collections.abc import Sequence

from gpulaunch.cli.arguments import ArgumentTypeError, Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, warn
from gpulaunch.errors import FailedError, UsageError, quoted
from gpulaunch.files.duration import parse_duration
from gpulaunch.history.line import has_common
from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.history.read import read_history
from gpulaunch.launch.past_end import is_elsewhere
from gpulaunch.launch.surroundings import shown_settings, shown_table
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.process.system import boot_id, state_of, user_name
from gpulaunch.show.history import history_document

_SHOWN = 20
_MOST = 1 << 20


def main(arguments: Sequence[str]) -> int:
    """Print the history of one machine."""
    options = make_parser().parse_args(arguments)
    everyone = options.everyone or options.user is not None
    launches = _past_launches(options.topology, options.since, everyone=everyone)
    launches = _of_user(options.user, launches)
    elsewhere: Counter[str] = Counter()
    if not launches and shown_settings(options.topology).get("topology").value is None:
        others = _of_user(options.user, _latest(options.since, everyone=everyone))
        elsewhere.update(one.topology for one in others)
    shown = len(launches) if options.all or options.totals else _SHOWN
    shown = options.count or shown
    earlier = max(0, len(launches) - shown)
    launches = launches[earlier:]
    states = states_of(launches, options.topology)
    document = history_document(
        launches, states, user_name, time.time(), earlier=earlier, totals=options.totals
    )
    if options.json:
        print_json(document)
    else:
        from gpulaunch.show.history_table import history_table
        from gpulaunch.show.terminal import draw

        table = history_table(document, several_users=everyone, elsewhere=elsewhere)
        draw(table, sys.stdout)
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
        type=_parse_count,
        help=f"the last N launches (default: {_SHOWN}; with --totals all)",
    )
    parser.add_argument("--all", action="store_true", help="all that are known")
    parser.add_argument(
        "--since",
        metavar="TIME",
        type=_parse_time,
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


_COMMON_HINT = "where 'gpulaunch setup --history' has been run"


def _past_launches(
    topology: str | None, since_s: float | None, *, everyone: bool
) -> list[PastLaunch]:
    """Return the launches on one machine, in the order of their beginning.

    Args:
        topology: value of --topology, or None.
        since_s: how long ago they began at most, in seconds, or None.
        everyone: whether to return those of all users.

    Raises:
        UsageError: there is no such description.
        FailedError: all are wanted, and the users' histories are not in one place.
    """
    if everyone and not has_common():
        raise FailedError(
            "each user's history is his own here, so those of others cannot be read",
            "sudo gpulaunch setup --history makes a place for all, from then on",
        )
    wanted = shown_settings(topology).get("topology").value
    found = _latest(since_s, everyone=everyone)
    if wanted is None:
        return [launch for launch in found if not launch.described]
    name = load_described_machine(wanted)[0].name
    return [launch for launch in found if launch.described and launch.topology == name]


def _latest(since_s: float | None, *, everyone: bool) -> list[PastLaunch]:
    earliest_s = 0.0 if since_s is None else time.time() - since_s
    return [one for one in read_history(everyone=everyone) if one.submitted_s >= earliest_s]


def _of_user(name: str | None, launches: list[PastLaunch]) -> list[PastLaunch]:
    """Return the launches of a user; all of them if the name is None."""
    if name is None:
        return launches
    name_of = {launch.user_id: user_name(launch.user_id) for launch in launches}
    return [one for one in launches if name == name_of[one.user_id]]


def states_of(launches: Sequence[PastLaunch], topology: str | None) -> dict[str, str]:
    """Return what has become of the launches without an end, by their keys.

    What neither waits nor runs was killed, or is unknown if its lease may be in another table.

    Args:
        launches: launches on one machine.
        topology: value of --topology, or None.
    """
    unended = [launch for launch in launches if launch.ended_s is None]
    if not unended:
        return {}
    table = shown_table(shown_settings(topology), described=unended[0].described, warn=warn)
    leases = {lease.id for lease in table.peek(problems=[]).leases}
    boot = boot_id()
    states = {}
    for launch in unended:
        elsewhere = is_elsewhere(launch)
        may_live = elsewhere or (launch.started_s is None and launch.boot_id == boot)
        if launch.id in leases or (may_live and state_of(launch.launcher)):
            states[launch.key] = "waiting" if launch.started_s is None else "running"
        else:
            states[launch.key] = "unknown" if elsewhere else "killed"
    return states


def _parse_time(text: str) -> float:
    try:
        return parse_duration(text)
    except UsageError as problem:
        raise ArgumentTypeError(problem.message) from None


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _MOST):
        raise ArgumentTypeError(f"{quoted(text)} is no whole number from 1 to {_MOST}")
    return int(text)
