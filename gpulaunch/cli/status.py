"""`gpulaunch status`: print who has which GPUs, since when, doing what."""

import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpulaunch.cli.arguments import Namespace, Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, warn
from gpulaunch.containers.life import Standing
from gpulaunch.errors import UsageError
from gpulaunch.history.read import read_dependent
from gpulaunch.launch.outside_use import find_strays, read_containers, with_containers
from gpulaunch.launch.past import before_queue
from gpulaunch.launch.surroundings import read_shown
from gpulaunch.leases.holders import LeftOver, left_over_holders
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.find import ask_apart, look_again, read_health, read_load
from gpulaunch.process.system import is_stopped, user_name
from gpulaunch.show import Document
from gpulaunch.show.status import of_user, status_document

if TYPE_CHECKING:
    from gpulaunch.errors import FailedError
    from gpulaunch.history.forecast import StartRange
    from gpulaunch.machine.driver import OutsideUse

_SLOW_S = 5.0
"""Time between two looks at what costs more, such as health, use outside and containers."""


class StatusReader:
    """A reader of the table and the GPUs of the machine that a command is to show.

    Args:
        topology: value of --topology, or None.
    """

    def __init__(self, topology: str | None) -> None:
        ask_apart()
        shown, self.table = read_shown(topology, warn)
        self.machine = shown.machine
        self._containers = shown.containers
        self._health = read_health(self.machine)
        self._left_over: dict[str, LeftOver] = {}
        self._strays: list[OutsideUse] = []
        self._looked_at: set[str] | None = None
        self._starts: dict[str, StartRange] = {}
        self._read_s = time.monotonic()

    def read(self) -> Document:
        """Return the document of this moment.

        Raises:
            FailedError: the driver fails.
        """
        if time.monotonic() - self._read_s > _SLOW_S:
            self._containers = read_containers(self.machine)
            self.machine = with_containers(look_again(self.machine), self._containers)
            self._health = read_health(self.machine)
            self._looked_at = None
            self._read_s = time.monotonic()
        problems: list[FailedError] = []
        seen = self.table.peek(problems=problems).of(self.machine)
        stopped = {ticket.id for ticket in seen.tickets if is_stopped(ticket.launcher)}
        stopped |= {lease.id for lease in seen.leases if is_stopped(lease.job)}
        self._look_slowly(seen, stopped)
        return status_document(
            self.machine.topology,
            seen.leases,
            self.machine.outside,
            user_name,
            seen.tickets,
            self._left_over,
            stopped,
            _find_standings(seen),
            self._containers,
            self._health,
            seen.drained,
            read_load(self.machine),
            self._starts,
            before_queue(read_dependent(), seen.tickets, self.machine),
            problems,
            self._strays,
        )

    def _look_slowly(self, seen: Snapshot, stopped: set[str]) -> None:
        """Find left-overs, strays and probable starts, anew for other leases or another queue.

        With 100 waiting the starts take 0.15 s.
        """
        ids = {one.id for one in seen.leases} | {one.id for one in seen.tickets}
        if ids == self._looked_at:
            return
        self._looked_at = ids
        self._left_over = left_over_holders(self.table, seen.leases)
        self._strays = find_strays(self.machine.topology, self.machine.outside, seen.leases)
        self._starts = {}
        if seen.tickets:
            from gpulaunch.launch.predict import predicted_starts  # late: often nobody waits

            self._starts = predicted_starts(self.machine, seen, stopped)


def _find_standings(seen: Snapshot) -> dict[str, Standing]:
    """Return container states by lease, without permission errors for leases held by processes."""
    leases = [lease for lease in seen.leases if lease.engine is not None]
    if not leases:
        return {}
    from gpulaunch.containers.standings import standings_of  # late: few leases need it

    found = standings_of(leases)
    return {
        key: standing
        for key, standing in found.items()
        if key in seen.unlocked or not standing.forbidden
    }


def main(arguments: Sequence[str]) -> int:
    """Print the allocation table of one machine."""
    options = _parse(arguments)
    reader = StatusReader(options.topology)
    user = user_name(os.geteuid()) if options.mine else options.user
    document, now = reader.read(), datetime.now(timezone.utc)
    if user is not None:
        document = of_user(document, user)
    if options.json:
        print_json(document)
    elif options.openmetrics:
        from gpulaunch.show.openmetrics import openmetrics_text

        print(openmetrics_text(document), end="")
    elif options.gpus:
        from gpulaunch.show.gpu_table import gpu_places, gpus_view
        from gpulaunch.show.terminal import draw

        draw(gpus_view(document, gpu_places(reader.machine.topology), now, user), sys.stdout)
    else:
        from gpulaunch.show.status_table import status_table
        from gpulaunch.show.terminal import draw

        draw(status_table(document, now), sys.stdout)
    return 0


def _parse(arguments: Sequence[str]) -> Namespace:
    options = make_parser().parse_args(arguments)
    if options.json + options.openmetrics + options.gpus > 1:
        raise UsageError("--gpus, --json and --openmetrics do not go together")
    if options.mine and options.user:
        raise UsageError("--mine and --user do not go together")
    return options


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch status", "Who has which GPUs, since when, doing what.")
    parser.add_argument("--gpus", action="store_true", help="a row for each GPU")
    parser.add_argument("--mine", action="store_true", help="only your jobs")
    parser.add_argument("--user", metavar="NAME", help="only those of one user")
    parser.add_argument(
        "--openmetrics",
        action="store_true",
        help="print metrics, such as for node_exporter's textfile collector",
    )
    add_topology(parser)
    add_json(parser)
    return parser
