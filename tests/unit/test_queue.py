"""The queue as plain values: which requests compete or pass, a ticket's record, and durations."""

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from values import box, cases, lease, request, ticket, uuids

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Grant, Refuse, Situation, Wait
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.decide.request import Constraint, Request
from gpulaunch.errors import FieldError, UsageError
from gpulaunch.files.duration import format_duration, parse_duration
from gpulaunch.launch.options import SETTINGS
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.queue import (
    ENDLESS,
    Claim,
    barring,
    competing,
    first_to_try,
    last_before,
    leaves_some,
    queued,
)
from gpulaunch.leases.record_fields import UNKNOWN_TIME, WRITTEN_BYTES
from gpulaunch.leases.ticket import Ticket, parse_ticket
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.process.identity import Process
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.records import replace

ALL = range(8)
BOX = box()
NOW_S = 1000.0


def asking(gpus: int | None, only: Sequence[int] = ALL, within_s: float | None = None) -> Request:
    """Return a request for so many of some GPUs, whose job has ended within some seconds."""
    constraints = [] if only == ALL else [Constraint("--only", frozenset(uuids(only)))]
    fields = {"bandwidth_sensitive": False, "constraints": constraints, "ends_within_s": within_s}
    return request(gpus, pattern=PATTERNS["none"], **fields)


# ------------------------------------------------------------------------------------- who competes

INSIDE_A = ticket(1, within="a")
RIVALS = {
    "all want anything": ([ticket(1), ticket(2)], None, ALL, [1, 2]),
    "by number": ([ticket(7), ticket(12), ticket(3)], None, ALL, [3, 7, 12]),
    "one GPU in common is enough": ([ticket(1, only=(0, 1, 2))], None, (2, 3), [1]),
    "none in common": ([ticket(1, only=(0, 1)), ticket(2, only=(2, 3))], None, (2, 3), [2]),
    "what is wanted inside a lease is nobody's outside": ([INSIDE_A, ticket(2)], None, ALL, [2]),
    "and the other way round": ([INSIDE_A, ticket(2)], "a", (0, 1), [1]),
    "nobody else is inside": ([ticket(1, within="a", user_id=7)], "a", ALL, []),
    "two leases are apart": ([INSIDE_A, ticket(2, within="b")], "b", ALL, [2]),
}


@cases(RIVALS, "tickets", "within", "only", "want")
def test_competing(
    tickets: list[Ticket], within: str | None, only: Sequence[int], want: list[int]
) -> None:
    """Tickets compete, in order, for some of the same GPUs of one lease, or outside all leases."""
    inside = lease(within, *ALL) if within else None
    assert [found.number for found in competing(queued(tickets, inside), uuids(only))] == want


HOUR = Claim(ends_s=NOW_S + 3600)
CHOOSY = ticket(1, gpus=4, choosy=True, passable_until_s=NOW_S + 1)
BIG = ticket(1, 8)
MINUTE = {"ends_within_s": 60.0}


def busy(*ends_in_s: float | None) -> dict[str, float]:
    """Return until when GPUs 0, 1, ... are busy, in seconds from now; None for no limit."""
    ends = (ENDLESS if within_s is None else NOW_S + within_s for within_s in ends_in_s)
    return dict(zip(uuids(ALL), ends, strict=False))


HALF, FIVE, FULL = (busy(*[None] * count) for count in (4, 5, 8))
PASSES = {
    "first in, first out bars what would fit": ([BIG], Claim(), busy(None), [1]),
    "of all that come first": ([ticket(1), ticket(2)], Claim(), {}, [1, 2]),
    "a limit that ends when the head can start": ([BIG], HOUR, busy(3600), []),
    "and one that ends later": ([BIG], HOUR, busy(3599), [1]),
    "the head waits for the last of those that run": ([BIG], HOUR, busy(1, 3600), []),
    "as many as it needs": ([ticket(1, 7)], HOUR, busy(1, 3600), [1]),
    "without a limit those that run are endless": ([BIG], HOUR, busy(None), []),
    "a head that can start now": ([ticket(1, 4)], HOUR, busy(None, None), [1]),
    "where it may go": ([ticket(1, 2, (0, 1))], HOUR, busy(None, None), []),
    "what is overdue may end now": ([BIG], HOUR, busy(-5), [1]),
    "what is long overdue never ends": ([BIG], HOUR, busy(-61), []),
    "who comes behind the head is passed with it": ([BIG, ticket(2, 4)], HOUR, busy(None), []),
    "unless just enough is free for it": ([BIG, ticket(2, 4, **MINUTE)], HOUR, HALF, [2]),
    "which it cannot with too few free": ([BIG, ticket(2, 4, **MINUTE)], HOUR, FIVE, []),
    "nor with a limit that delays the head": (
        [BIG, ticket(2, 4, ends_within_s=7200.0)], HOUR, busy(3600), [],
    ),
    "who wants a GPU that nobody before it wants is a head": (
        [ticket(1, 2, (0, 1)), ticket(2, 2, (1, 2))], HOUR, busy(3600), [2],
    ),
    "who keeps the order passes nobody": ([BIG], replace(HOUR, in_order=True), busy(None), [1]),
    "and is passed by nobody": ([ticket(1, 8, in_order=True)], HOUR, busy(None), [1]),
    "behind others neither": ([BIG, ticket(2, 8, in_order=True)], HOUR, busy(None), [2]),
    "more than there is is never to be had": ([ticket(1, 99)], HOUR, {}, []),
    "a choosy one is passed although enough is free": ([CHOOSY], Claim(), {}, []),
    "at its limit no more": ([replace(CHOOSY, passable_until_s=NOW_S)], Claim(), {}, [1]),
    "the choosy keep their order": ([CHOOSY], Claim(choosy=True), {}, [1]),
    "and the larger ones": ([CHOOSY], Claim(4, choosy=True), FIVE, [1]),
    "but for a smaller one while the other has too few": (
        [CHOOSY], Claim(3, choosy=True), FIVE, [],
    ),
    "one behind a choosy one is the head for others": ([CHOOSY, ticket(2, 8)], HOUR, busy(60), [2]),
}  # fmt: skip


@cases(PASSES, "ahead", "claim", "busy_until_s", "want")
def test_barring(
    ahead: list[Ticket], claim: Claim, busy_until_s: dict[str, float], want: list[int]
) -> None:
    """A request passes those that it cannot delay, by the limits of what runs, and choosy ones."""
    assert [one.number for one in barring(ahead, uuids(ALL), claim, busy_until_s, NOW_S)] == want


def test_who_waits_behind_others_that_do_not_compete_is_no_head() -> None:
    """The whole queue tells who is a head, and not only the tickets that compete."""
    ahead = [ticket(1, 2, (0, 1)), ticket(2, 2, (2, 3)), ticket(3, 1, (1, 2))]
    until_s = dict.fromkeys(uuids((0, 3)), NOW_S + 100)
    assert barring(ahead, uuids((1,)), Claim(ends_s=NOW_S + 50), until_s, NOW_S) == []


LAST = {
    "nobody": ([], Claim(), None),
    "the last of several": ([ticket(1), ticket(2)], Claim(), 2),
    "whom one may pass, too": ([BIG], HOUR, 1),
    "but no choosy one": ([ticket(1), replace(CHOOSY, number=2)], Claim(), 1),
    "unless one is choosy, too": ([CHOOSY], Claim(choosy=True), 1),
}


@cases(LAST, "ahead", "claim", "want")
def test_last_before(ahead: list[Ticket], claim: Claim, want: int | None) -> None:
    """Each sleeps on the last that comes before it, so that an end wakes one and not all."""
    found = last_before(ahead, claim, NOW_S)
    assert (found and found.number) == want


def brief(number: int, gpus: int = 1, **fields: Any) -> Ticket:
    return ticket(number, gpus, **(MINUTE | fields))


NEXT = {
    "nobody": ([], {}, None),
    "without a limit nobody passes": ([ticket(2)], busy(None), None),
    "the first that fits": ([brief(2, 7), brief(3, 3), brief(4)], HALF, 3),
    "and ends in time": ([brief(2, ends_within_s=61.0), brief(3)], busy(60), 3),
    "who may join others looks itself": ([ticket(2), ticket(3, may_join=True)], FULL, 3),
    "not who keeps the order": ([brief(2, in_order=True)], HALF, None),
    "nor who is behind that": ([ticket(2, 8, in_order=True), brief(3)], HALF, None),
}


@cases(NEXT, "later", "busy_until_s", "want")
def test_first_to_try(later: list[Ticket], busy_until_s: dict[str, float], want: object) -> None:
    """Who was woken in vain wakes the first of the later ones that might start."""
    sharers = {one.user_id for one in later}
    found = first_to_try([BIG], later, busy_until_s, NOW_S, sharers=sharers)
    assert (found and found.number) == want


def test_nobody_can_join_where_nobody_shares() -> None:
    """Users share GPUs among their own jobs only."""
    later = [ticket(2, may_join=True, user_id=7)]
    assert first_to_try([BIG], later, FULL, NOW_S, sharers={8}) is None
    assert first_to_try([BIG], later, FULL, NOW_S, sharers={7}) == later[0]


def test_gpus_that_no_earlier_request_wants_are_tried() -> None:
    """They are for whoever comes next, with or without a limit; the choosy are no hindrance."""
    ahead = [ticket(1, 4, range(4)), replace(CHOOSY, number=2)]
    later = [ticket(3, 5), ticket(4, 4)]
    assert first_to_try(ahead, later, busy(None), NOW_S) is None  # 4 is behind 3
    assert first_to_try(ahead, later[1:], busy(None), NOW_S) == later[1]
    assert first_to_try(ahead, later[1:], busy(None), NOW_S, skipped={later[1].id}) is None
    assert leaves_some(ahead, uuids(ALL), NOW_S)
    assert not leaves_some(ahead, uuids((0, 1)), NOW_S)


# ---------------------------------------------------------------------------------------- decisions

BUSY = [lease("a", 0, 1, 2, 3, 4)]
ENDING = [lease("a", 0, 1, 2, 3, 4, clock_s=NOW_S, ends_within_s=60.0)]
FOUR = [ticket(1, 4, only=(0, 1, 2, 5))]
ADMITTED = "1 GPU requested: 2 of 2 admitted are free, but 3 earlier requests for 10 GPUs wait"


def free(asked: str, ahead: str, last: int = 1) -> tuple[object, ...]:
    return (Wait, f"{asked} requested: 3 of 8 are free, but {ahead}", last)


DECISIONS = {
    "one earlier request": (
        asking(2), BUSY, [BIG], free("2 GPUs", "an earlier request for 8 GPUs waits"),
    ),
    "several": (
        asking(2), BUSY, [BIG, ticket(2, 4)],
        free("2 GPUs", "2 earlier requests for 12 GPUs wait", 2),
    ),
    "among the GPUs that would do": (
        asking(1, (5, 6)), BUSY, [BIG, ticket(2), ticket(3, only=(6,))], (Wait, ADMITTED, 3),
    ),
    "where GPUs are missing, that is the reason": (
        asking(4), BUSY, [BIG], (Wait, "4 GPUs requested: 3 of 8 are free, 5 are leased", 1),
    ),
    "one that ends in time passes": (asking(2, within_s=60), ENDING, [BIG], (Grant, (5, 6))),
    "one that does not waits": (
        asking(2, within_s=61), ENDING, [BIG],
        free("2 GPUs", "an earlier request for 8 GPUs waits"),
    ),
    "what the earlier one cannot use": (asking(2), BUSY, FOUR, (Grant, (6, 7))),
    "and not more than that": (
        asking(3), BUSY, FOUR, free("3 GPUs", "an earlier request for 4 GPUs waits"),
    ),
    "in order nothing is left for who comes later": (
        replace(asking(2), in_order=True), BUSY, FOUR,
        free("2 GPUs", "an earlier request for 4 GPUs waits"),
    ),
    "what can never be": (asking(9), BUSY, [BIG], (Refuse, "9 GPUs requested: box has 8")),
}  # fmt: skip


def outcome(asked: Request, situation: Situation) -> tuple[object, ...]:
    """Return kind and reason, and the ticket that it comes after; of a grant the GPUs."""
    decision = decide(asked, situation)
    if isinstance(decision, Grant):
        return (Grant, decision.placement.gpus)
    bar = (decision.behind.number,) if isinstance(decision, Wait) and decision.behind else ()
    return (type(decision), decision.reason, *bar)


@cases(DECISIONS, "asked", "leases", "ahead", "want")
def test_decision_with_a_queue(
    asked: Request, leases: list[Lease], ahead: list[Ticket], want: tuple[object, ...]
) -> None:
    """An earlier competing request that may not be passed makes a later one wait, and is named."""
    assert outcome(asked, Situation(BOX, leases, ahead=ahead, clock_s=NOW_S)) == want


def test_decision_within_a_lease_with_a_queue() -> None:
    """Inside a lease only those bar that wait inside the same lease, whoever waits outside."""
    parent = lease("a", 0, 1, 2)
    others = [BIG, ticket(3, 2, (0, 1, 2), within="b")]
    inside_it = ticket(2, 2, (0, 1, 2), within="a")
    situation = Situation(BOX, [parent], within=parent, ahead=others)
    assert outcome(asking(1), situation) == (Grant, (0,))
    reason = "1 GPU requested: 3 of 3 are free, but an earlier request for 2 GPUs waits"
    want = (Wait, reason, 2)
    assert outcome(asking(1), replace(situation, ahead=[*others, inside_it])) == want


def test_use_outside_is_endless() -> None:
    """What others use is not free, so an earlier request that would need it is passed."""
    used = [OutsideUse("GPU-7", "pid 1, bob")]
    situation = Situation(BOX, outside=used, ahead=[BIG], clock_s=NOW_S)
    assert outcome(asking(1, within_s=60), situation) == (Grant, (0,))


def test_the_queue_is_about_the_gpus_that_would_do() -> None:
    """A ticket's GPUs are those that its request admits, within the lease that it runs in."""
    parent = lease("a", 1, 2, 3)
    assert [gpu.index for gpu in admitted_gpus(asking(1, (2, 3, 4)), BOX)] == [2, 3, 4]
    assert [gpu.index for gpu in admitted_gpus(asking(1, (2, 3, 4)), BOX, parent)] == [2, 3]


# ----------------------------------------------------------------------------------- many at random


class Crowd:
    """A machine under random arrivals and ends, where every start goes through decide().

    Args:
        seed: of its chances.
        limited_share: share of the requests that have a time limit.
        early: whether jobs end before their limits.

    Attributes:
        queue: tickets that wait, with their requests.
        running: leases, each with the clock at its end.
        started: the clock at which each ticket got its GPUs, by its number.
        passed: how often one started before an earlier one that wants one of its GPUs.
    """

    def __init__(self, seed: int, *, limited_share: float, early: bool) -> None:
        self.chance = random.Random(seed)
        self.limited_share, self.early = limited_share, early
        self.clock_s = 0.0
        self.queue: list[tuple[Ticket, Request]] = []
        self.running: list[tuple[float, Lease]] = []
        self.started: dict[int, float] = {}
        self.passed = 0

    def arrive(self, number: int) -> None:
        chance = self.chance
        only = ALL if chance.random() < 0.6 else sorted(chance.sample(ALL, chance.randint(1, 6)))
        limit_s = chance.uniform(1, 30) if chance.random() < self.limited_share else None
        asked = asking(chance.randint(1, len(only)), only, limit_s)
        self.queue.append((ticket(number, asked.gpus, only, ends_within_s=limit_s), asked))

    def all_look(self) -> None:
        """Let all who wait look in a random order, until none finds anything."""
        started = True
        while started:
            started = False
            for one, asked in self.chance.sample(self.queue, len(self.queue)):
                ahead = [other for other, _ in self.queue if other.number < one.number]
                leases = [held for _, held in self.running]
                situation = Situation(BOX, leases, ahead=ahead, clock_s=self.clock_s)
                decision = decide(asked, situation)
                if isinstance(decision, Grant):
                    self.start(one, asked, decision.placement.gpus)
                    self.passed += len(competing(ahead, one.uuids))
                    started = True

    def start(self, one: Ticket, asked: Request, gpus: Sequence[int]) -> None:
        taken = {uuid for _, held in self.running for uuid in held.uuids}
        assert len(set(gpus)) == one.gpus
        assert set(uuids(gpus)) <= set(one.uuids) - taken
        self.queue.remove((one, asked))
        self.started[one.number] = self.clock_s
        length_s = one.ends_within_s or self.chance.uniform(1, 20)
        if self.early:
            length_s *= self.chance.random()
        limits = {"clock_s": self.clock_s, "ends_within_s": one.ends_within_s}
        self.running.append((self.clock_s + length_s, lease(one.id, *gpus, **limits)))

    def run(self, arrivals: int = 30) -> dict[int, float]:
        """Serve all; return when each that was a head could start at the latest, by its number."""
        promised: dict[int, float] = {}
        arrived = 0
        while self.queue or arrived < arrivals:
            self.clock_s += 1.0
            assert self.clock_s < 2000, "somebody waits for ever"
            self.running = [one for one in self.running if one[0] > self.clock_s]
            for _ in range(self.chance.choice([0, 0, 1, 2]) if arrived < arrivals else 0):
                arrived += 1
                self.arrive(arrived)
            self.all_look()
            ends_s = {uuid: end_s for end_s, held in self.running for uuid in held.uuids}
            wanted: set[str] = set()
            for one, _ in self.queue:
                if wanted.isdisjoint(one.uuids):
                    start_s = sorted(ends_s.get(uuid, 0.0) for uuid in one.uuids)[one.gpus - 1]
                    assert start_s > self.clock_s, "GPUs are free, and the first does not start"
                    promised.setdefault(one.number, start_s)
                wanted.update(one.uuids)
        assert len(self.started) == arrived
        return promised


def test_backfill_delays_no_head() -> None:
    """The first of those that compete starts no later than it could when it became the first.

    All have limits and run for as long: so the limits tell when it can start at the latest.
    """
    passed = 0
    for seed in range(4):
        crowd = Crowd(seed, limited_share=1.0, early=False)
        for number, start_s in crowd.run().items():
            assert crowd.started[number] <= math.ceil(start_s), f"{number} of seed {seed}"
        passed += crowd.passed
    assert passed > 8, "so few that this shows nothing"


def test_jobs_that_end_early_starve_nobody() -> None:
    """With and without limits, and with ends before them, all are served."""
    for seed in range(3):
        Crowd(seed, limited_share=0.6, early=True).run()


# ------------------------------------------------------------------------------- tickets as records


def written(record: Ticket) -> Any:
    """Return what is read back from the text of a record."""
    return json.loads(json.dumps(record.to_document()))


BARE = {"table": None, "profile": None, "name": None}
TICKETS = {
    "everything set": [
        ticket(3, within="ab12", passable_until_s=1234.5, choosy=True, in_order=True)
    ],
    "nothing set that need not be": [ticket(1, only=(), launcher=Process(1, 0), **BARE)],
    "bytes that no text has": [
        ticket(1, command=("cat", "na\udcefve", "\x1b\x00\n"), name="\udc80")
    ],
    "one that may pass others": [ticket(1 << 30, 1 << 30, ends_within_s=60.5, may_join=True)],
}


@cases(TICKETS, "record")
def test_ticket_round_trip(record: Ticket) -> None:
    """A ticket that was written to JSON and read again is the same ticket, of the file's owner."""
    document = written(record)
    assert parse_ticket(document, record.user_id) == record
    assert ("user_id" in document, document["version"]) == (False, 1)
    assert parse_ticket(document, 77).user_id == 77


def test_the_long_command_of_a_ticket_is_cut() -> None:
    """A ticket keeps the beginning of a long command, as a lease does."""
    document = written(ticket(1, command=("x" * 20_000, "y")))
    (kept,) = parse_ticket(document, 1000).command
    assert WRITTEN_BYTES / 2 < len(json.dumps(document)) <= WRITTEN_BYTES
    assert kept == "x" * (len(kept) - 3) + "..."


NO_TICKETS = {
    "a later version": ({"version": 2}, "it needs a gpulaunch that reads version 2 of the records"),
    "a version that is only like 1": ({"version": True}, "version: True is not a whole number"),
    "an id for a terminal": ({"id": "\x1b[31m"}, "id: '\\x1b[31m' is no lease's id"),
    "an id for another directory": ({"id": "../x"}, "id: '../x' is no lease's id"),
    "a number before the first": ({"number": 0}, "number: 0 is not within 1 to 1073741824"),
    "no number": ({"number": None}, "key 'number' is missing"),
    "text for a list": ({"uuids": "GPU-3"}, "uuids: 'GPU-3' is not a list"),
    "no GPUs": ({"uuids": None}, "key 'uuids' is missing"),
    "no GPU wanted": ({"gpus": 0}, "gpus: 0 is not within 1 to 2147483648"),
    "text for a table": ({"table": "box"}, "table: 'box' is not a list"),
    "a list for a lease": ({"within": ["ab12"]}, "within: ['ab12'] is not text"),
}


@cases(NO_TICKETS, "change", "want")
def test_ticket_with_a_wrong_needed_value(change: dict[str, object], want: str) -> None:
    """A ticket of which it is unclear whom it bars is not understood, and the key is named."""
    with pytest.raises(FieldError) as problem:
        parse_ticket(written(ticket(1)) | change, 1000)
    assert problem.value.message == want


def test_what_is_no_ticket_at_all() -> None:
    """JSON that is no object is not understood, nor is the record of a lease."""
    for document in (None, ["version"], json.loads(json.dumps(lease("a", 0).to_document()))):
        with pytest.raises(FieldError):
            parse_ticket(document, 1000)


FORMS = {
    "passable for ever": ({"passable_until_s": float("inf")}, {"passable_until_s": 0.0}),
    "passable until no time": ({"passable_until_s": float("nan")}, {"passable_until_s": 0.0}),
    "a pid alone": ({"launcher": [4000]}, {"launcher": Process(0, 0)}),
    "a list in the command": ({"command": [["ls"]]}, {"command": ()}),
    "a day for a time": ({"since": "2026-01-02"}, {"since": UNKNOWN_TIME}),
    "a number for a truth": ({"choosy": 1}, {"choosy": False}),
    "a key that nobody knows": ({"priority": 9}, {}),
}


@cases(FORMS, "change", "want")
def test_ticket_of_another_version(change: dict[str, object], want: dict[str, Any]) -> None:
    """What another version writes differently is left out; all else of the ticket is read."""
    assert parse_ticket(written(ticket(1)) | change, 1000) == replace(ticket(1), **want)


def test_place_of_a_ticket_is_given_by_the_kernel() -> None:
    """Tickets stand in the order in which their files appeared, whatever number they claim."""
    early = replace(ticket(1 << 30), linked_ns=100)
    late = replace(ticket(1), linked_ns=101)
    tied = replace(ticket(2), linked_ns=101)
    assert queued([tied, early, late], None) == [early, late, tied]
    assert parse_ticket(written(early), early.user_id, 100) == early
    assert "linked_ns" not in written(early)


# ---------------------------------------------------------------------------------- lengths of time

TIMES = {
    "0.5s": 0.5, ".5s": 0.5, "10min": 600, "1.5h": 5400, " 1 H 30 Min ": 5400, "2d": 172800,
    "1d2h3m4s": 93784, "9999999999s": 9999999999, "90:00": 5400, "0:30": 30, "01:30:00": 5400,
    "1-0": 86400, "1-02:30": 95400, " 1-02:30:00 ": 95400,
}  # fmt: skip
NO_TIMES = [
    "", "0", "0h0m", "-1", "-1s", "1h30", "30 5", "s", "1w", "1,5h", "1.5.5", "1e3", "nan",
    "10000000000s", "0:00", "1:2:3:4", "1-", "1-2-3", "1d-2", "1::2", "9" * 400, "1s\x00",
]  # fmt: skip
IN_WORDS = {
    -5: "0 s", 0.05: "0.05 s", 1.5: "1.5 s", 9.0: "9 s", 10.9: "10 s", 59.9: "59 s", 60: "1 min",
    61: "1 min 01 s", 599: "9 min 59 s", 600: "10 min", 659: "10 min", 3599: "59 min",
    3600: "1 h 00 min", 86399: "23 h 59 min", 86400: "1 d 0 h", 1e10: "115740 d 17 h",
}  # fmt: skip


def test_length_of_time() -> None:
    """Units go alone or together, in any case; clocks are read as Slurm reads them."""
    assert {text: parse_duration(text) for text in TIMES} == TIMES


@pytest.mark.parametrize("text", NO_TIMES)
def test_no_length_of_time(text: str) -> None:
    """What is not positive, has no known unit, or reads in two ways is no length of time."""
    with pytest.raises(UsageError, match="is no length of time such as 90s, 10m or 1h30m"):
        parse_duration(text)


def test_every_time_needs_a_unit() -> None:
    """A number without a unit is refused: to Slurm it would be minutes, to timeout seconds."""
    times = {name for name, row in SETTINGS.items() if row.parse is parse_duration}
    assert times >= {"wait_timeout", "time_limit", "idle_after", "grace"}
    for name in times:
        with pytest.raises(UsageError, match=r"^' 0.5 ' has no unit: write 0.5s, 0.5m or 0.5h$"):
            SETTINGS[name].parse(" 0.5 ")


def test_length_of_time_in_words() -> None:
    """A length of time is told in at most two units."""
    assert {seconds: format_duration(seconds) for seconds in IN_WORDS} == IN_WORDS
