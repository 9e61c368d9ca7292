"""When tickets will start: the queue, replayed with one drawn run time after the other."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import ceil

from gpulaunch.files.duration import format_duration
from gpulaunch.leases.queue import ENDLESS, QueueOrder
from gpulaunch.leases.ticket import Ticket
from gpulaunch.records import Record

DRAWS = 100
"""Number of replays."""

INSIDE = 0.82
"""Share of the replays that a range holds, around the median.

What is known of run times is less than it seems, and others come that may pass: of the starts, 80 %
are in such a range (tests/bench/when.py).
"""


class Running(Record):
    """A job that has GPUs.

    Attributes:
        uuids: UUIDs of the GPUs.
        remaining_s: seconds that it still runs, in each replay.
    """

    uuids: tuple[str, ...]
    remaining_s: Sequence[float]


class Waiting(Record):
    """A job that waits.

    Attributes:
        ticket: its ticket.
        duration_s: seconds that it will run, in each replay.
    """

    ticket: Ticket
    duration_s: Sequence[float]


class StartRange(Record):
    """When a job probably starts, in seconds from now.

    Attributes:
        from_s: beginning of the range.
        median_s: the start that as many replays come before as after.
        to_s: end of the range.
    """

    from_s: float
    median_s: float
    to_s: float

    @property
    def text(self) -> str:
        """The range in words: "in 10 min to 40 min"."""
        if self.from_s < _AT_ONCE_S:
            return f"within {format_duration(ceil(self.to_s))}"
        first, last = format_duration(round(self.from_s)), format_duration(ceil(self.to_s))
        return f"in {first}" if first == last else f"in {first} to {last}"


_AT_ONCE_S = 1.0


def predict_starts(
    running: Sequence[Running],
    waiting: Sequence[Waiting],
    busy_until_s: Mapping[str, float],
    uuids: Sequence[str],
    clock_s: float,
) -> list[StartRange | None]:
    """Return for each job that waits when it probably starts.

    GPUs are counted, within what each ticket admits; which of them a job would like better is left
    aside. Nobody is expected to join the queue.

    Args:
        running: the jobs that have GPUs.
        waiting: the jobs that wait, in their order.
        busy_until_s: see queue.barring().
        uuids: UUIDs of the GPUs of the machine.
        clock_s: seconds since boot.

    Returns:
        A range for each; None if that cannot be told: it does not start in some of the replays, or
        it waits though enough GPUs are free, for a reason that others cannot see.
    """
    starts: list[list[float]] = [[] for _ in waiting]
    draws = min(len(one) for one in _draws_of(running, waiting)) if waiting else 0
    for draw in range(draws):
        replay = _Replay(running, waiting, busy_until_s, uuids, clock_s, draw)
        for at, start_s in replay.starts().items():
            starts[at].append(start_s - clock_s)
    return [_range_of(sorted(found), draws) for found in starts]


def _draws_of(running: Sequence[Running], waiting: Sequence[Waiting]) -> list[Sequence[float]]:
    return [*(one.remaining_s for one in running), *(one.duration_s for one in waiting)]


def _range_of(starts: Sequence[float], draws: int) -> StartRange | None:
    """Return the range of the starts, which are sorted, without the earliest and latest ones."""
    left_out = round(draws * (1 - INSIDE) / 2)
    if len(starts) < draws - left_out or starts[draws // 2] <= 0:
        return None
    return StartRange(starts[left_out], starts[draws // 2], starts[draws - 1 - left_out])


class _Replay:
    """One replay of the queue.

    Args:
        draw: its number among the drawn run times; the others as for predict_starts().
    """

    def __init__(
        self,
        running: Sequence[Running],
        waiting: Sequence[Waiting],
        busy_until_s: Mapping[str, float],
        uuids: Sequence[str],
        clock_s: float,
        draw: int,
    ) -> None:
        self._waiting, self._now, self._draw = waiting, clock_s, draw
        self._busy_until_s = dict(busy_until_s)
        self._free = {uuid for uuid in uuids if uuid not in busy_until_s}
        self._all = set(uuids)
        self._holders: dict[str, int] = {}
        self._ends: list[tuple[float, int, tuple[str, ...]]] = []
        for at, one in enumerate(running):
            for uuid in one.uuids:
                self._holders[uuid] = self._holders.get(uuid, 0) + 1
            self._ends.append((clock_s + one.remaining_s[draw], at, one.uuids))
        heapify(self._ends)
        self._pending = list(range(len(waiting)))
        self._starts: dict[int, float] = {}

    def starts(self) -> dict[int, float]:
        """Return when each job starts, in seconds since boot, by its place; those that do."""
        self._start_some()
        while self._pending and self._ends:
            self._now = self._ends[0][0]
            before = len(self._free)
            while self._ends and self._ends[0][0] == self._now:
                self._release(heappop(self._ends)[2])
            if len(self._free) > before:  # hundreds of leases may have had the same GPU
                self._start_some()
        return self._starts

    def _release(self, uuids: Sequence[str]) -> None:
        for uuid in uuids:
            self._holders[uuid] -= 1
            if not self._holders[uuid] and uuid in self._all:  # one out of service stays so
                self._free.add(uuid)
                del self._busy_until_s[uuid]

    def _start_some(self) -> None:
        """Start those that the queue's rule lets start."""
        if not self._free:
            return
        order = QueueOrder(self._busy_until_s, self._now)
        left: list[int] = []
        unwanted = set(self._all)  # by those that go before
        for at in self._pending:
            ticket = self._waiting[at].ticket
            if not (unwanted or ticket.in_order) and self._must_wait(ticket, order.latest_start_s):
                left.append(at)
                continue
            free = order.free_for(ticket)
            if len(free) >= ticket.gpus:
                self._start(at, sorted(free)[: ticket.gpus])
                continue
            left.append(at)
            if not (ticket.choosy and self._now < ticket.passable_until_s):
                order.add(ticket)
                unwanted.difference_update(ticket.uuids)
        self._pending = left

    def _must_wait(self, ticket: Ticket, latest_start_s: float) -> bool:
        """Return whether a ticket cannot start now if those before it want all GPUs."""
        limit_s = ticket.ends_within_s
        if limit_s is None or len(self._free) < ticket.gpus:
            return True
        return self._now + limit_s > latest_start_s

    def _start(self, at: int, uuids: Sequence[str]) -> None:
        one = self._waiting[at]
        self._starts[at] = self._now
        ends_s = self._now + one.duration_s[self._draw]
        limit_s = one.ticket.ends_within_s
        for uuid in uuids:
            self._free.remove(uuid)
            self._holders[uuid] = 1
            self._busy_until_s[uuid] = ENDLESS if limit_s is None else self._now + limit_s
        heappush(self._ends, (ends_s, len(self._holders) + at, tuple(uuids)))
