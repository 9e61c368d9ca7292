"""When tickets will start: the queue, replayed with one drawn run time after the other."""
# pure: decides on plain values

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from gpulaunch.leases.lease import Ticket
from gpulaunch.leases.queue import ENDLESS, QueueOrder
from gpulaunch.records import Record

DRAWS = 100
"""Number of replays."""

INSIDE = 0.78
"""Share of the replays that a range holds, around the median.

What is known of run times is less than it seems, and others come that may pass: of the starts, 80 %
are in such a range (tests/bench/when.py).
"""


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
        """The range in words, such as "in 10 to 40 min"."""
        return format_start(self.from_s, self.to_s)


_UNITS = ((2 * 86400, 86400, "d"), (2 * 3600, 3600, "h"), (120, 60, "min"), (0, 1, "s"))
"""Least seconds of a range's end for which a unit is taken, its seconds, and its name."""


def format_start(first_s: float, last_s: float) -> str:
    """Return the time in which a job starts, in words: "in 1.5 to 29 h", or "within 5 min"."""
    unit_s, unit = next(row[1:] for row in _UNITS if last_s >= row[0])
    first, last = _rounded(first_s / unit_s), _rounded(last_s / unit_s)
    if first_s < unit_s:
        return f"within {last} {unit}"
    return f"in {last} {unit}" if first == last else f"in {first} to {last} {unit}"


def _rounded(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{round(number, 1):g}"


Leased = Sequence[tuple[Sequence[str], Sequence[float]]]
"""Jobs that have GPUs: the UUIDs of these, and seconds that each still runs, in each replay."""

Queued = Sequence[tuple[Ticket, Sequence[float]]]
"""Jobs that wait, in their order: the ticket, and seconds that each will run, in each replay."""


def predict_starts(
    running: Leased,
    waiting: Queued,
    busy_until_s: Mapping[str, float],
    uuids: Sequence[str],
    clock_s: float,
) -> list[StartRange | None]:
    """Return for each job that waits when it probably starts.

    GPUs are counted, within what each ticket admits; which of them a job would like better is left
    aside. Nobody is expected to join the queue.

    Args:
        running: the jobs that have GPUs.
        waiting: the jobs that wait.
        busy_until_s: see queue.barring().
        uuids: UUIDs of the GPUs of the machine.
        clock_s: seconds since boot.

    Returns:
        A range for each; None if that cannot be told: it does not start in some of the replays, or
        it waits though enough GPUs are free, for a reason that others cannot see.
    """
    starts: list[list[float]] = [[] for _ in waiting]
    draws = len(waiting[0][1]) if waiting else 0
    for draw in range(draws):
        replay = _QueueReplay(running, waiting, busy_until_s, uuids, clock_s, draw)
        for at, start_s in replay.run().items():
            starts[at].append(start_s - clock_s)
    left_out = round(draws * (1 - INSIDE) / 2)
    ranges: list[StartRange | None] = []
    for found in map(sorted, starts):
        if len(found) < draws - left_out or found[draws // 2] <= 0:
            ranges.append(None)
        else:
            last = found[draws - 1 - left_out]
            ranges.append(StartRange(found[left_out], found[draws // 2], last))
    return ranges


class _QueueReplay:
    """One replay of the queue; the arguments are those of predict_starts, and a draw's number."""

    def __init__(
        self,
        running: Leased,
        waiting: Queued,
        busy_until_s: Mapping[str, float],
        uuids: Sequence[str],
        clock_s: float,
        draw: int,
    ) -> None:
        self._waiting, self._now, self._draw = waiting, clock_s, draw
        self._busy_until_s = dict(busy_until_s)
        self._free = {uuid for uuid in uuids if uuid not in busy_until_s}
        self._all = frozenset(uuids)
        self._holders = Counter(uuid for held, _ in running for uuid in held)
        self._ends: list[tuple[float, int, Sequence[str]]] = []
        for at, (held, remaining_s) in enumerate(running):
            self._ends.append((clock_s + remaining_s[draw], at, held))
        heapify(self._ends)
        self._pending = list(range(len(waiting)))
        self._starts: dict[int, float] = {}

    def run(self) -> dict[int, float]:
        """Return when each job starts, in seconds since boot, by its place; those that do."""
        self._start_some()
        while self._pending and self._ends:
            self._now = self._ends[0][0]
            before = len(self._free)
            while self._ends and self._ends[0][0] == self._now:
                for uuid in heappop(self._ends)[2]:
                    self._holders[uuid] -= 1
                    if not self._holders[uuid] and uuid in self._all:  # one out of service stays so
                        self._free.add(uuid)
                        del self._busy_until_s[uuid]
            if len(self._free) > before:  # hundreds of leases may have had the same GPU
                self._start_some()
        return self._starts

    def _start_some(self) -> None:
        """Start those that the queue's rule lets start."""
        order = QueueOrder(self._busy_until_s, self._now)
        left: list[int] = []
        unwanted = set(self._all)  # by those that go before
        for at in self._pending:
            ticket = self._waiting[at][0]
            limit_s = ticket.ends_within_s
            if not (unwanted or ticket.in_order) and (
                limit_s is None
                or len(self._free) < ticket.gpus
                or self._now + limit_s > order.latest_start_s
            ):
                left.append(at)  # those before it want all GPUs
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

    def _start(self, at: int, uuids: Sequence[str]) -> None:
        ticket, duration_s = self._waiting[at]
        self._starts[at] = self._now
        limit_s = ticket.ends_within_s
        for uuid in uuids:
            self._free.remove(uuid)
            self._holders[uuid] = 1
            self._busy_until_s[uuid] = ENDLESS if limit_s is None else self._now + limit_s
        ends_s = self._now + duration_s[self._draw]
        heappush(self._ends, (ends_s, len(self._holders) + at, tuple(uuids)))
