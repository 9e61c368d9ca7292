"""Readings of one machine's table and GPUs as the document of `gpulaunch status`."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpulaunch.containers.life import Standing
from gpulaunch.launch.outside_use import read_containers, with_containers
from gpulaunch.launch.strays import find_strays
from gpulaunch.launch.surroundings import read_shown
from gpulaunch.leases.holders import LeftOver, left_over_holders
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.find import ask_apart, look_again, read_health, read_load
from gpulaunch.process.system import is_stopped, user_name
from gpulaunch.show import Document
from gpulaunch.show.status import status_document

if TYPE_CHECKING:
    from gpulaunch.errors import FailedError
    from gpulaunch.forecast.starts import StartRange
    from gpulaunch.history.past_launch import PastLaunch
    from gpulaunch.machine.driver import OutsideUse

SLOW_S = 5.0
"""Time between two looks at what costs more: health, use outside, containers, left-overs."""

_FORECAST_S = 15.0


class StatusReader:
    """A reader of the table and the GPUs of the machine that a command is to show.

    Args:
        topology: value of --topology, or None.
        warn: called with each warning of the first reading.
    """

    def __init__(self, topology: str | None, warn: Callable[[str], None]) -> None:
        ask_apart()
        shown, self.table = read_shown(topology, warn)
        self.machine = shown.machine
        self._containers = shown.containers
        self._health = read_health(self.machine)
        self._left_over: dict[str, LeftOver] = {}
        self._strays: list[OutsideUse] = []
        self._looked_at: set[str] = set()
        self._starts: dict[str, StartRange] = {}
        self._predicted_for: tuple[str, ...] = ()
        self._predicted_s = -_FORECAST_S
        self._read_s = time.monotonic()

    def read(self) -> Document:
        """Return the document of this moment.

        Raises:
            FailedError: the driver fails.
        """
        if time.monotonic() - self._read_s > SLOW_S:
            self._containers = read_containers(self.machine)
            self.machine = with_containers(look_again(self.machine), self._containers)
            self._health = read_health(self.machine)
            self._looked_at = set()
            self._read_s = time.monotonic()
        problems: list[FailedError] = []
        seen = self.table.peek(problems=problems).of(self.machine)
        stopped = {ticket.id for ticket in seen.tickets if is_stopped(ticket.launcher)}
        stopped |= {lease.id for lease in seen.leases if is_stopped(lease.job)}
        self._look_at_processes(seen)
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
            self._predict_starts(seen, stopped),
            self._find_dependent(seen),
            problems,
            self._strays,
        )

    def _find_dependent(self, seen: Snapshot) -> "list[PastLaunch]":
        """Return the user's launches that wait for the end of others, and not in the queue yet."""
        from gpulaunch.history.read import read_dependent  # late: only screens need them
        from gpulaunch.launch.past_end import before_queue

        return before_queue(read_dependent(), seen.tickets, self.machine)

    def _look_at_processes(self, seen: Snapshot) -> None:
        """Find left-overs and strays, anew with what is slow, or for other leases."""
        ids = {lease.id for lease in seen.leases}
        if ids != self._looked_at:
            self._left_over = left_over_holders(self.table, seen.leases)
            self._strays = find_strays(self.machine.topology, self.machine.outside, seen.leases)
            self._looked_at = ids

    def _predict_starts(self, seen: Snapshot, stopped: set[str]) -> "dict[str, StartRange]":
        """Return when those that wait will probably start.

        With 100 waiting it takes 0.15 s, so it is predicted anew every _FORECAST_S, and after
        SLOW_S for another queue.
        """
        if not seen.tickets:
            return {}
        ids = (*(one.id for one in seen.leases), *(one.id for one in seen.tickets))
        age_s = time.monotonic() - self._predicted_s
        if age_s >= (_FORECAST_S if ids == self._predicted_for else SLOW_S):
            from gpulaunch.launch.predict import predicted_starts  # late: often nobody waits

            self._starts = predicted_starts(self.machine, seen, stopped)
            self._predicted_for, self._predicted_s = ids, time.monotonic()
        return self._starts


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
