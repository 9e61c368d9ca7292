"""When those that wait will start: how long jobs run, and the queue replayed many times.

Each job has a distribution of run times, from earlier runs of the same and of other jobs.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import exp, log, sqrt
from random import Random
from statistics import NormalDist

from gpulaunch.leases.lease import Ticket
from gpulaunch.leases.queue import ENDLESS, QueueOrder
from gpulaunch.records import Record

_SHORTEST_S = 1.0  # what was shorter counts as so long: logarithms tell such times apart too well
_NORMAL = NormalDist()


Relation = tuple[object, ...]
"""What launches have in common: its kind, then values, such as ("name", 1000, "exp7")."""


class Component(Record):
    """One lognormal distribution of a mixture.

    Attributes:
        weight: its weight beside the others, above 0.
        mean: mean of the logarithm of the seconds.
        relation: what the jobs that it comes from have in common.
        doubt: standard deviation of the error of the mean, which is common to all jobs of the
            relation.
    """

    weight: float
    mean: float
    deviation: float
    relation: Relation = ()
    doubt: float = 0.0

    def share_beyond(self, seconds: float) -> float:
        """Return the share of the jobs of this part that run longer than so many seconds."""
        if seconds <= 0:
            return 1.0
        return _NORMAL.cdf((self.mean - log(seconds)) / self.deviation)


PRIOR = ((874.0, 18006.055), (206.0, 6651.681), (480.667, 4787.109))
"""Median and mean run times in seconds of three clusters, for jobs of which nothing is known.

They are so different that the time which one still runs grows with the time which it has run.
Source: Philly, Helios and PAI in cluster_summary.csv of AcmeTrace (NSDI'24); that they are
lognormal is assumed.
"""

_PRIOR_DOUBT = 0.5  # of the logarithm: how far jobs here may differ from those clusters'; assumed


def relations_of(
    user_id: int, command: tuple[str, ...], name: str | None, profile: str | None, gpus: int
) -> list[Relation]:
    """Return what a job has in common with others, by which it is known: the closest first.

    Args:
        command: argv as it is published; empty if nothing is.
    """
    kinds: list[Relation] = []
    if command:
        kinds.append(("command", user_id, command, gpus))
    if name:
        kinds.append(("name", user_id, name))
    if profile:
        kinds.append(("profile", profile))
    return [*kinds, ("user", user_id), ("all",)]


_NEEDED = {"command": 0.5, "name": 1.0, "profile": 2.0, "user": 8.0, "all": 8.0}
"""Number of runs of each relation that weigh as much as all that is more remote."""

_SPREAD = {"command": 0.3, "name": 0.5, "profile": 0.5, "user": 1.0, "all": 1.0}
"""Standard deviation of the logarithm that is assumed of runs of each relation."""

_LATEST = 20  # runs of each relation that count

_BY_LIMIT = 0.8
"""Weight of a time limit beside what else is known of a job whose like has not run."""

_SHARES_OF_LIMIT = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
"""Shares of their time limits that jobs use: evenly from 0 to all.

Source: about what Mu'alem and Feitelson (IEEE TPDS 12(6), 2001) found of users' estimates.
"""


class Experience:
    """Known run times of jobs, from which those of others are estimated.

    Args:
        past: relations of jobs that have ended, in their order, and the seconds that each ran.
    """

    def __init__(self, past: Iterable[tuple[Sequence[Relation], float]]) -> None:
        self._logs: dict[Relation, list[float]] = {}
        for relations, duration_s in past:
            value = log(max(duration_s, _SHORTEST_S))
            for key in relations:
                self._logs.setdefault(key, []).append(value)

    def of(self, relations: Sequence[Relation], limit_s: float | None = None) -> list[Component]:
        """Return the distribution of the run time of a job, as a mixture.

        Args:
            limit_s: its time limit in seconds, or None.
        """
        left = 1.0
        parts: list[Component] = []
        for key in relations:
            kind = str(key[0])
            if kind == "user" and limit_s:
                part = left * _BY_LIMIT / len(_SHARES_OF_LIMIT)
                left -= left * _BY_LIMIT
                means = [log(used * limit_s) for used in _SHARES_OF_LIMIT]
                parts += [Component(part, mean, 0.2, ("limit",), 0.3) for mean in means]
            logs = self._logs.get(key, [])[-_LATEST:]
            if not logs:
                continue
            mean = sum(logs) / len(logs)
            # what the values show, beside one value's worth of what is assumed
            squares = _SPREAD[kind] ** 2 + sum((value - mean) ** 2 for value in logs)
            deviation = sqrt(squares / len(logs))
            share = left * len(logs) / (len(logs) + _NEEDED[kind])
            parts.append(Component(share, mean, deviation, key, deviation / sqrt(len(logs))))
            left -= share
        for median_s, mean_s in PRIOR:
            deviation = sqrt(2 * log(mean_s / median_s))
            share, mean = left / len(PRIOR), log(median_s)
            parts.append(Component(share, mean, deviation, ("published",), _PRIOR_DOUBT))
        return parts


def draw_remaining(
    parts: Sequence[Component], ran_s: float, limit_s: float | None, count: int, seed: str
) -> list[float]:
    """Draw the seconds that a job still runs.

    The error of what is known is the same for all jobs of a relation in one draw.

    Args:
        parts: distribution of its whole run time, with the published ones, which never end.
        ran_s: seconds that it has run.
        limit_s: its time limit in seconds, or None.
    """
    draw = Random(seed)  # noqa: S311
    beyond = [part.share_beyond(ran_s) for part in parts]
    weights = [part.weight * share for part, share in zip(parts, beyond, strict=True)]
    errors = {part.relation: Random(repr(part.relation)) for part in parts}  # noqa: S311
    most = float("inf") if limit_s is None else limit_s - ran_s
    found = []
    for _ in range(count):
        error = {relation: one.gauss(0.0, 1.0) for relation, one in errors.items()}
        at = draw.choices(range(len(parts)), weights)[0]
        part = parts[at]
        # The share of this part's jobs that run longer than the one drawn.
        longer = min(max(beyond[at] * draw.random(), 1e-12), 1 - 1e-12)
        seconds = exp(part.mean - part.deviation * _NORMAL.inv_cdf(longer)) - ran_s
        seconds *= exp(part.doubt * error[part.relation])
        found.append(max(0.0, min(seconds, most)))
    return found


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
        median_s: the start that as many replays come before as after.
    """

    from_s: float
    median_s: float
    to_s: float


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
        busy_until_s: see queue.barring().
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
            ticket, duration_s = self._waiting[at]
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
                self._starts[at] = self._now
                taken = tuple(sorted(free)[: ticket.gpus])
                for uuid in taken:
                    self._free.remove(uuid)
                    self._holders[uuid] = 1
                    self._busy_until_s[uuid] = ENDLESS if limit_s is None else self._now + limit_s
                end = (self._now + duration_s[self._draw], len(self._holders) + at, taken)
                heappush(self._ends, end)
                continue
            left.append(at)
            if not (ticket.choosy and self._now < ticket.passable_until_s):
                order.add(ticket)
                unwanted.difference_update(ticket.uuids)
        self._pending = left
