"""The queue as plain values: which requests compete or pass, a ticket's record, and durations."""

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from values import box, lease, request, ticket, uuids

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, Refuse, Situation, Wait
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


def asking(gpus: int | None, only: Sequence[int] = ALL) -> Request:
    constraints = [] if only == ALL else [Constraint("--only", frozenset(uuids(only)))]
    return request(
        gpus, pattern=PATTERNS["none"], bandwidth_sensitive=False, constraints=constraints
    )


def outcome(decision: Decision) -> tuple[object, ...]:
    """Return kind and reason, and the ticket that it comes after; of a grant the GPUs."""
    if isinstance(decision, Grant):
        return (Grant, decision.placement.gpus)
    bar = (decision.behind.number,) if isinstance(decision, Wait) and decision.behind else ()
    return (type(decision), decision.reason, *bar)


# ------------------------------------------------------------------------------------- who competes


@pytest.mark.parametrize(
    ("sentence", "tickets", "within", "only", "want"),
    [
        ("nobody waits", [], None, ALL, []),
        ("all want anything", [ticket(1), ticket(2)], None, ALL, [1, 2]),
        (
            "by number, however they are listed",
            [ticket(7), ticket(12), ticket(3)],
            None,
            ALL,
            [3, 7, 12],
        ),
        ("one GPU in common is enough", [ticket(1, only=(0, 1, 2))], None, (2, 3), [1]),
        (
            "none in common is no competition",
            [ticket(1, only=(0, 1)), ticket(2, only=(2, 3))],
            None,
            (2, 3),
            [2],
        ),
        (
            "what is wanted inside a lease is nobody's outside",
            [ticket(1, within="a"), ticket(2)],
            None,
            ALL,
            [2],
        ),
        ("and the other way round", [ticket(1, within="a"), ticket(2)], "a", (0, 1), [1]),
        ("nobody else is inside a lease", [ticket(1, within="a", user_id=7)], "a", ALL, []),
        ("two leases are apart", [ticket(1, within="a"), ticket(2, within="b")], "b", ALL, [2]),
    ],
)
def test_competing(
    sentence: str, tickets: list[Ticket], within: str | None, only: Sequence[int], want: list[int]
) -> None:
    """Tickets compete, in order, for some of the same GPUs of one lease, or outside all leases."""
    inside = lease(within, *ALL) if within else None
    assert [found.number for found in competing(queued(tickets, inside), uuids(only))] == want, (
        sentence
    )


NOW_S = 1000.0
HOUR = Claim(ends_s=NOW_S + 3600)
CHOOSY = ticket(1, gpus=4, choosy=True, passable_until_s=NOW_S + 1)
OVERDUE = NOW_S - 5


def busy(*ends_in_s: float | None) -> dict[str, float]:
    """Return until when GPUs 0, 1, ... are busy, in seconds from now; None for no limit."""
    ends = (ENDLESS if within_s is None else NOW_S + within_s for within_s in ends_in_s)
    return dict(zip(uuids(ALL), ends, strict=False))


@pytest.mark.parametrize(
    ("sentence", "ahead", "claim", "busy_until_s", "want"),
    [
        ("nobody is ahead", [], Claim(), {}, []),
        ("first in, first out bars what would fit", [ticket(1, 8)], Claim(), busy(None), [1]),
        ("of all that come first", [ticket(1), ticket(2)], Claim(), {}, [1, 2]),
        ("a limit that ends when the head can start", [ticket(1, 8)], HOUR, busy(3600), []),
        ("and one that ends later", [ticket(1, 8)], HOUR, busy(3599), [1]),
        ("the head waits for the last of those that run", [ticket(1, 8)], HOUR, busy(1, 3600), []),
        ("as many as it needs", [ticket(1, 7)], HOUR, busy(1, 3600), [1]),
        ("without a limit those that run are endless", [ticket(1, 8)], HOUR, busy(None), []),
        ("a head that can start now", [ticket(1, 4)], HOUR, busy(None, None), [1]),
        ("where it may go", [ticket(1, 2, (0, 1))], HOUR, busy(None, None), []),
        ("what is overdue may end now", [ticket(1, 8)], HOUR, {"GPU-0": OVERDUE}, [1]),
        (
            "who comes behind the head is passed with it",
            [ticket(1, 8), ticket(2, 4)],
            HOUR,
            busy(None),
            [],
        ),
        (
            "unless it can start now itself",
            [ticket(1, 8), ticket(2, 4, ends_within_s=60.0)],
            HOUR,
            busy(None),
            [2],
        ),
        (
            "which it cannot with too few free GPUs",
            [ticket(1, 8), ticket(2, 4, ends_within_s=60.0)],
            HOUR,
            busy(*[None] * 5),
            [],
        ),
        (
            "nor with a limit that delays the head",
            [ticket(1, 8), ticket(2, 4, ends_within_s=7200.0)],
            HOUR,
            busy(3600),
            [],
        ),
        (
            "who wants a GPU that nobody before it wants is a head",
            [ticket(1, 2, (0, 1)), ticket(2, 2, (1, 2))],
            HOUR,
            busy(3600),
            [2],
        ),
        (
            "who keeps the order passes nobody",
            [ticket(1, 8)],
            replace(HOUR, in_order=True),
            busy(None),
            [1],
        ),
        ("and is passed by nobody", [ticket(1, 8, in_order=True)], HOUR, busy(None), [1]),
        (
            "behind others neither",
            [ticket(1, 8), ticket(2, 8, in_order=True)],
            HOUR,
            busy(None),
            [2],
        ),
        ("more than there is is never to be had", [ticket(1, 99)], HOUR, {}, []),
        ("a choosy one is passed although enough is free", [CHOOSY], Claim(), {}, []),
        ("at its limit no more", [replace(CHOOSY, passable_until_s=NOW_S)], Claim(), {}, [1]),
        ("one without a limit", [replace(CHOOSY, passable_until_s=0.0)], Claim(), {}, [1]),
        (
            "an earlier one that is not choosy still bars",
            [ticket(1, gpus=8), replace(CHOOSY, number=2)],
            Claim(),
            {},
            [1],
        ),
        ("the choosy keep their order", [CHOOSY], Claim(choosy=True), {}, [1]),
        ("and the larger ones", [CHOOSY], Claim(4, choosy=True), busy(*[None] * 5), [1]),
        (
            "but for a smaller one while the other has too few",
            [CHOOSY],
            Claim(3, choosy=True),
            busy(*[None] * 5),
            [],
        ),
        (
            "though one that ends in time passes another",
            [CHOOSY],
            replace(HOUR, choosy=True),
            busy(*[None] * 5),
            [],
        ),
        (
            "one behind a choosy one is the head for the others",
            [CHOOSY, ticket(2, 8)],
            HOUR,
            busy(60),
            [2],
        ),
    ],
)
def test_barring(
    sentence: str,
    ahead: list[Ticket],
    claim: Claim,
    busy_until_s: dict[str, float],
    want: list[int],
) -> None:
    """A request passes those that it cannot delay, by the limits of what runs, and choosy ones."""
    assert [one.number for one in barring(ahead, uuids(ALL), claim, busy_until_s, NOW_S)] == want, (
        sentence
    )


@pytest.mark.parametrize(
    ("sentence", "ahead", "claim", "want"),
    [
        ("nobody", [], Claim(), None),
        ("the last of several", [ticket(1), ticket(2)], Claim(), 2),
        ("whom one may pass, too", [ticket(1, 8)], HOUR, 1),
        ("but no choosy one", [ticket(1), replace(CHOOSY, number=2)], Claim(), 1),
        ("unless one is choosy, too", [CHOOSY], Claim(choosy=True), 1),
    ],
)
def test_last_before(sentence: str, ahead: list[Ticket], claim: Claim, want: int | None) -> None:
    """Each sleeps on the last that comes before it, so that an end wakes one and not all."""
    found = last_before(ahead, claim, NOW_S)
    assert (found and found.number) == want, sentence


BIG_WAITS = [ticket(1, 8)]
FULL = busy(*[None] * 8)
HALF = busy(*[None] * 4)


def brief(number: int, gpus: int = 1, **fields: Any) -> Ticket:
    return ticket(number, gpus, **{"ends_within_s": 60.0, **fields})


@pytest.mark.parametrize(
    ("sentence", "later", "busy_until_s", "want"),
    [
        ("nobody", [], {}, None),
        ("without a limit nobody passes", [ticket(2)], busy(None), None),
        ("the first that fits", [brief(2, 7), brief(3, 3), brief(4)], HALF, 3),
        ("and ends in time", [brief(2, ends_within_s=61.0), brief(3)], busy(60), 3),
        ("who may join others looks itself", [ticket(2), ticket(3, may_join=True)], FULL, 3),
        ("not who keeps the order", [brief(2, in_order=True)], HALF, None),
        ("nor who is behind that", [ticket(2, 8, in_order=True), brief(3)], HALF, None),
    ],
)
def test_first_to_try(
    sentence: str, later: list[Ticket], busy_until_s: dict[str, float], want: int | None
) -> None:
    """Who was woken in vain wakes the first of the later ones that might start."""
    sharers = {one.user_id for one in later}
    found = first_to_try(BIG_WAITS, later, busy_until_s, NOW_S, sharers=sharers)
    assert (found and found.number) == want, sentence


def test_who_waits_behind_others_that_do_not_compete_is_no_head() -> None:
    """The whole queue tells who is a head, and not only the tickets that compete."""
    ahead = [ticket(1, 2, (0, 1)), ticket(2, 2, (2, 3)), ticket(3, 1, (1, 2))]
    until_s = dict.fromkeys(uuids((0, 3)), NOW_S + 100)
    assert barring(ahead, uuids((1,)), Claim(ends_s=NOW_S + 50), until_s, NOW_S) == []


def test_what_is_long_overdue_is_endless() -> None:
    """A lease that nobody ends in time is no promise any more."""
    until_s = {"GPU-0": NOW_S - 61}
    assert barring([ticket(1, 8)], uuids(ALL), HOUR, until_s, NOW_S) == []


def test_nobody_can_join_where_nobody_shares() -> None:
    """Users share GPUs among their own jobs only."""
    later = [ticket(2, may_join=True, user_id=7)]
    assert first_to_try(BIG_WAITS, later, FULL, NOW_S, sharers={8}) is None
    assert first_to_try(BIG_WAITS, later, FULL, NOW_S, sharers={7}) == later[0]


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

BIG = ticket(1, gpus=8)
BUSY = [lease("a", 0, 1, 2, 3, 4)]
ENDING = [lease("a", 0, 1, 2, 3, 4, clock_s=NOW_S, ends_within_s=60.0)]


def within(seconds: float, asked: Request) -> Request:
    return replace(asked, ends_within_s=seconds)


@pytest.mark.parametrize(
    ("sentence", "asked", "leases", "ahead", "want"),
    [
        ("an empty queue", asking(1), [], [], (Grant, (0,))),
        (
            "one earlier request",
            asking(2),
            BUSY,
            [BIG],
            (Wait, "2 GPUs requested: 3 of 8 are free, but an earlier request for 8 GPUs waits", 1),
        ),
        (
            "one for one GPU, of which one is free",
            asking(1),
            [lease("a", *range(7))],
            [ticket(4)],
            (Wait, "1 GPU requested: 1 of 8 is free, but an earlier request for 1 GPU waits", 4),
        ),
        (
            "several",
            asking(2),
            BUSY,
            [BIG, ticket(2, gpus=4)],
            (Wait, "2 GPUs requested: 3 of 8 are free, but 2 earlier requests for 12 GPUs wait", 2),
        ),
        (
            "among the GPUs that would do",
            asking(1, (5, 6)),
            BUSY,
            [BIG, ticket(2), ticket(3, only=(6,))],
            (
                Wait,
                (
                    "1 GPU requested: 2 of 2 admitted are free, but 3 earlier requests for 10 "
                    "GPUs wait"
                ),
                3,
            ),
        ),
        (
            "first come, first served even if all is free",
            asking(1),
            [],
            [ticket(1)],
            (Wait, "1 GPU requested: 8 of 8 are free, but an earlier request for 1 GPU waits", 1),
        ),
        (
            "where GPUs are missing, that is the reason",
            asking(4),
            BUSY,
            [BIG],
            (Wait, "4 GPUs requested: 3 of 8 are free, 5 are leased", 1),
        ),
        (
            "whom it may pass, too",
            within(60, asking(4)),
            BUSY,
            [BIG],
            (Wait, "4 GPUs requested: 3 of 8 are free, 5 are leased", 1),
        ),
        ("one that ends in time passes", within(60, asking(2)), ENDING, [BIG], (Grant, (5, 6))),
        (
            "one that does not waits",
            within(61, asking(2)),
            ENDING,
            [BIG],
            (Wait, "2 GPUs requested: 3 of 8 are free, but an earlier request for 8 GPUs waits", 1),
        ),
        ("those that run without a limit", within(9e9, asking(2)), BUSY, [BIG], (Grant, (5, 6))),
        (
            "what the earlier one cannot use",
            asking(2),
            BUSY,
            [ticket(1, 4, only=(0, 1, 2, 5))],
            (Grant, (6, 7)),
        ),
        (
            "and not more than that",
            asking(3),
            BUSY,
            [ticket(1, 4, only=(0, 1, 2, 5))],
            (Wait, "3 GPUs requested: 3 of 8 are free, but an earlier request for 4 GPUs waits", 1),
        ),
        (
            "in order nothing is left for who comes later",
            replace(asking(2), in_order=True),
            BUSY,
            [ticket(1, 4, only=(0, 1, 2, 5))],
            (Wait, "2 GPUs requested: 3 of 8 are free, but an earlier request for 4 GPUs waits", 1),
        ),
        (
            "GPUs that nobody else wants",
            asking(2, (5, 6)),
            BUSY,
            [ticket(1, gpus=5, only=range(5))],
            (Grant, (5, 6)),
        ),
        (
            "requests inside a lease",
            asking(2),
            BUSY,
            [ticket(1, 4, (0, 1, 2, 3), within="a")],
            (Grant, (5, 6)),
        ),
        (
            "what can never be, queue or not",
            asking(9),
            BUSY,
            [BIG],
            (Refuse, "9 GPUs requested: box has 8"),
        ),
    ],
)
def test_decision_with_a_queue(
    sentence: str,
    asked: Request,
    leases: list[Lease],
    ahead: list[Ticket],
    want: tuple[object, ...],
) -> None:
    """An earlier competing request that may not be passed makes a later one wait, and is named."""
    assert outcome(decide(asked, Situation(BOX, leases, ahead=ahead, clock_s=NOW_S))) == want, (
        sentence
    )


def test_decision_within_a_lease_with_a_queue() -> None:
    """Inside a lease only those bar that wait inside the same lease, whoever waits outside."""
    parent = lease("a", 0, 1, 2)
    outside_it = ticket(1, gpus=8)
    inside_it = ticket(2, 2, (0, 1, 2), within="a")
    in_another = ticket(3, 2, (0, 1, 2), within="b")

    def got(*ahead: Ticket) -> tuple[object, ...]:
        return outcome(decide(asking(1), Situation(BOX, [parent], within=parent, ahead=ahead)))

    assert got(outside_it, in_another) == (Grant, (0,))
    reason = "1 GPU requested: 3 of 3 are free, but an earlier request for 2 GPUs waits"
    assert got(outside_it, inside_it, in_another) == (Wait, reason, 2)


def test_use_outside_is_endless() -> None:
    """What others use is not free, so an earlier request that would need it is passed."""
    used = [OutsideUse("GPU-7", "pid 1, bob")]
    situation = Situation(BOX, outside=used, ahead=[BIG], clock_s=NOW_S)
    assert outcome(decide(within(60, asking(1)), situation)) == (Grant, (0,))


# ----------------------------------------------------------------------------------- many at random


ARRIVALS = 30


class Crowd:
    """A machine under random arrivals and ends, where every start goes through decide().

    Args:
        seed: of its chances.
        limited_share: share of the requests that have a time limit; 0 for a queue in order.
        early: whether jobs end before their limits.

    Attributes:
        queue: tickets that wait.
        started: tickets that got GPUs, with the clock then.
    """

    def __init__(self, seed: int, limited_share: float, *, early: bool = True) -> None:
        self.early = early
        self.chance = random.Random(seed)
        self.limited_share = limited_share
        self.clock_s = 0.0
        self.arrived = 0
        self.queue: list[Ticket] = []
        self.requests: dict[int, Request] = {}
        self.running: list[tuple[float, Lease]] = []
        self.started: dict[int, float] = {}

    def arrive(self) -> None:
        chance = self.chance
        self.arrived += 1
        only = ALL if chance.random() < 0.6 else sorted(chance.sample(ALL, chance.randint(1, 6)))
        asked = asking(chance.choice([None, *range(1, len(only) + 1)]), only)
        if not self.limited_share:
            asked = replace(asked, in_order=True)
        if chance.random() < self.limited_share:
            asked = within(chance.uniform(1, 30), asked)
        count = asked.gpus or len(only)
        self.requests[self.arrived] = asked
        self.queue.append(ticket(self.arrived, count, only, ends_within_s=asked.ends_within_s))

    def end_what_is_over(self) -> None:
        self.running = [
            (until_s, lease) for until_s, lease in self.running if until_s > self.clock_s
        ]

    def all_look(self, check: Callable[[Ticket, list[Ticket], set[str]], None]) -> None:
        """Let all waiting tickets look in a random order, until none finds anything.

        Args:
            check: told of each start: the ticket, the earlier ones that still wait and compete,
                what was free.
        """
        found = True
        while found:
            found = False
            for one in self.chance.sample(self.queue, len(self.queue)):
                leases = [lease for _, lease in self.running]
                ahead = [other for other in self.queue if other.number < one.number]
                decision = decide(
                    self.requests[one.number],
                    Situation(BOX, leases, ahead=ahead, clock_s=self.clock_s),
                )
                if not isinstance(decision, Grant):
                    assert isinstance(decision, Wait)
                    continue
                taken = {uuid for lease in leases for uuid in lease.uuids}
                free = {gpu.uuid for gpu in BOX.gpus} - taken
                gpus = uuids(decision.placement.gpus)
                assert len(gpus) == one.gpus
                assert set(gpus) <= free & set(one.uuids), (
                    "a GPU with two owners, or one that was not asked for"
                )
                check(one, [other for other in ahead if set(other.uuids) & set(one.uuids)], free)
                self.queue.remove(one)
                self.started[one.number] = self.clock_s
                runs_s = one.ends_within_s or self.chance.uniform(1, 20)
                if self.early:
                    runs_s *= self.chance.random()
                held = lease(
                    one.id,
                    *decision.placement.gpus,
                    clock_s=self.clock_s,
                    ends_within_s=one.ends_within_s,
                )
                self.running.append((self.clock_s + runs_s, held))
                found = True

    def free(self) -> set[str]:
        return {gpu.uuid for gpu in BOX.gpus} - {
            uuid for _, lease in self.running for uuid in lease.uuids
        }

    def run(
        self,
        check: Callable[[Ticket, list[Ticket], set[str]], None],
        after_each_look: Callable[[], None] = lambda: None,
    ) -> None:
        """Let all arrive, and go on until the queue is empty."""
        while self.queue or self.arrived < ARRIVALS:
            self.clock_s += 1.0
            assert self.clock_s < 2000, "somebody waits for ever"
            self.end_what_is_over()
            for _ in range(self.chance.choice([0, 0, 1, 2]) if self.arrived < ARRIVALS else 0):
                self.arrive()
            self.all_look(check)
            after_each_look()
            self.no_gpu_is_lost()
        assert sorted(self.started) == list(range(1, self.arrived + 1))

    def no_gpu_is_lost(self) -> None:
        """Check that tickets without an earlier competitor wait only for lack of GPUs."""
        for one in self.queue:
            if not any(
                set(other.uuids) & set(one.uuids)
                for other in self.queue
                if other.number < one.number
            ):
                assert len(self.free() & set(one.uuids)) < one.gpus


@pytest.mark.parametrize("seed", range(4))
def test_first_in_first_out(seed: int) -> None:
    """The earlier of competing requests starts first, each GPU has one owner, none is lost."""

    def in_order(one: Ticket, ahead: list[Ticket], _: set[str]) -> None:
        assert ahead == [], f"{one.number} started before {[other.number for other in ahead]}"

    Crowd(seed, limited_share=0).run(in_order)


@pytest.mark.parametrize("crowds", [6])
def test_backfill_delays_no_head(crowds: int) -> None:
    """The first of those that compete starts no later than it could when it became the first.

    All have limits and run for as long: so the limits tell when it can start at the latest.
    """
    passes = 0

    def promise(_: object = None, ahead: Sequence[Ticket] = (), *__: object) -> None:
        nonlocal passes
        passes += len(ahead)

    for seed in range(crowds):
        crowd = Crowd(seed, limited_share=1.0, early=False)
        promised: dict[int, float] = {}

        def look(crowd: Crowd = crowd, promised: dict[int, float] = promised) -> None:
            for one in crowd.queue:
                earlier = [two for two in crowd.queue if two.number < one.number]
                if any(set(two.uuids) & set(one.uuids) for two in earlier):
                    continue
                ends = {uuid: until_s for until_s, held in crowd.running for uuid in held.uuids}
                start_s = sorted(ends.get(uuid, 0.0) for uuid in one.uuids)[one.gpus - 1]
                promised.setdefault(one.number, start_s)

        crowd.run(promise, after_each_look=look)
        for number, start_s in promised.items():
            assert crowd.started[number] <= math.ceil(start_s), f"{number} of seed {seed}"
    assert passes > 2 * crowds, "so few that this shows nothing"


def test_jobs_that_end_early_starve_nobody() -> None:
    """With and without limits, and with ends before them, all are served."""
    for seed in range(4):
        Crowd(seed, limited_share=0.6).run(lambda *_: None)


def test_the_queue_is_about_the_gpus_that_would_do() -> None:
    """A ticket's GPUs are those that its request admits, within the lease that it runs in."""
    parent = lease("a", 1, 2, 3)
    assert [gpu.index for gpu in admitted_gpus(asking(1, (2, 3, 4)), BOX)] == [2, 3, 4]
    assert [gpu.index for gpu in admitted_gpus(asking(1, (2, 3, 4)), BOX, parent)] == [2, 3]


# ------------------------------------------------------------------------------- tickets as records


def written(record: Ticket) -> Any:
    """Return what is read back from the text of a record."""
    return json.loads(json.dumps(record.to_document()))


@pytest.mark.parametrize(
    ("sentence", "record"),
    [
        ("everything set", ticket(3, within="ab12", passable_until_s=1234.5)),
        (
            "nothing set that need not be",
            ticket(1, table=None, within=None, profile=None, name=None),
        ),
        (
            "bytes that no text has",
            ticket(1, command=("cat", "na\udcefve", "\udcff"), name="\udc80"),
        ),
        (
            "control characters and other scripts",
            ticket(1, command=("echo", "\x1b[2J\x00\n", "größe", "🚀")),
        ),
        ("no start time", ticket(1, launcher=Process(1, 0))),
        ("the highest number", ticket(1 << 30, gpus=1 << 30)),
        ("no GPU would do", ticket(1, only=())),
        ("a choosy one", ticket(1, choosy=True)),
        ("one that may pass others", ticket(1, ends_within_s=60.5, may_join=True)),
        ("one that keeps the order", ticket(1, in_order=True)),
        ("another user", ticket(1, user_id=0)),
    ],
)
def test_ticket_round_trip(sentence: str, record: Ticket) -> None:
    """A ticket that was written to JSON and read again is the same ticket."""
    assert parse_ticket(written(record), record.user_id) == record, sentence


def test_user_is_not_in_the_ticket() -> None:
    """A ticket does not name its user: the file's owner tells."""
    document = written(ticket(1))
    assert "user_id" not in document
    assert document["version"] == 1
    assert parse_ticket(document, 77).user_id == 77


def test_the_long_command_of_a_ticket_is_cut() -> None:
    """A ticket keeps the beginning of a long command, as a lease does."""
    document = written(ticket(1, command=("x" * 20_000, "y")))
    (kept,) = parse_ticket(document, 1000).command
    assert WRITTEN_BYTES / 2 < len(json.dumps(document)) <= WRITTEN_BYTES
    assert kept == "x" * (len(kept) - 3) + "..."


@pytest.mark.parametrize("key", ["version", "id", "number", "uuids", "gpus"])
def test_ticket_without_a_needed_key(key: str) -> None:
    """A record without what tells whom it bars, or with null for it, is not understood."""
    document = written(ticket(1))
    for without in (document | {key: None}, {k: v for k, v in document.items() if k != key}):
        with pytest.raises(FieldError) as problem:
            parse_ticket(without, 1000)
        assert problem.value.message == f"key '{key}' is missing"


@pytest.mark.parametrize(
    ("sentence", "change", "want"),
    [
        (
            "a later version",
            {"version": 2},
            "it needs a gpulaunch that reads version 2 of the records",
        ),
        ("a version that is only like 1", {"version": True}, "version: True is not a whole number"),
        ("a number for text", {"id": 7}, "id: 7 is not text"),
        ("an id for a terminal", {"id": "\x1b[31m"}, "id: '\\x1b[31m' is no lease's id"),
        ("an id for another directory", {"id": "../x"}, "id: '../x' is no lease's id"),
        ("an empty id", {"id": ""}, "id: '' is no lease's id"),
        ("a number before the first", {"number": 0}, "number: 0 is not within 1 to 1073741824"),
        (
            "a number that is too high",
            {"number": (1 << 30) + 1},
            "number: 1073741825 is not within 1 to 1073741824",
        ),
        ("a fraction for a number", {"number": 1.0}, "number: 1.0 is not a whole number"),
        ("a truth for a number", {"number": True}, "number: True is not a whole number"),
        ("text for a list", {"uuids": "GPU-3"}, "uuids: 'GPU-3' is not a list"),
        ("no GPU wanted", {"gpus": 0}, "gpus: 0 is not within 1 to 2147483648"),
        ("all for a number", {"gpus": "all"}, "gpus: 'all' is not a whole number"),
        ("text for a table", {"table": "box"}, "table: 'box' is not a list"),
        ("a list for a lease", {"within": ["ab12"]}, "within: ['ab12'] is not text"),
    ],
)
def test_ticket_with_a_wrong_needed_value(
    sentence: str, change: dict[str, object], want: str
) -> None:
    """A ticket of which it is unclear whom it bars is not understood, and the key is named."""
    with pytest.raises(FieldError) as problem:
        parse_ticket(written(ticket(1)) | change, 1000)
    assert problem.value.message == want, sentence


@pytest.mark.parametrize(
    ("sentence", "change", "want"),
    [
        ("passable for ever", {"passable_until_s": float("inf")}, {"passable_until_s": 0.0}),
        ("passable until no time", {"passable_until_s": float("nan")}, {"passable_until_s": 0.0}),
        ("before the boot", {"passable_until_s": -1}, {"passable_until_s": 0.0}),
        ("a pid alone", {"launcher": [4000]}, {"launcher": Process(0, 0)}),
        ("a list in the command", {"command": [["ls"]]}, {"command": ()}),
        ("a number for a profile", {"profile": 16}, {"profile": None}),
        ("a day for a time", {"since": "2026-01-02"}, {"since": UNKNOWN_TIME}),
        ("a number for a boot", {"boot_id": 1}, {"boot_id": ""}),
        ("a number for a truth", {"choosy": 1}, {"choosy": False}),
        ("a key that nobody knows", {"priority": 9}, {}),
    ],
)
def test_ticket_of_another_version(
    sentence: str, change: dict[str, object], want: dict[str, Any]
) -> None:
    """What another version writes differently is left out; all else of the ticket is read."""
    wanted = replace(ticket(1), **want)
    assert parse_ticket(written(ticket(1)) | change, 1000) == wanted, sentence


def test_place_of_a_ticket_is_given_by_the_kernel() -> None:
    """Tickets stand in the order in which their files appeared, whatever number they claim."""
    early = replace(ticket(1 << 30), linked_ns=100)
    late = replace(ticket(1), linked_ns=101)
    tied = replace(ticket(2), linked_ns=101)
    assert queued([tied, early, late], None) == [early, late, tied]
    assert parse_ticket(written(early), early.user_id, 100) == early
    assert "linked_ns" not in written(early)


@pytest.mark.parametrize("document", [None, 1, "ticket", [], ["version"]])
def test_what_is_no_ticket_at_all(document: object) -> None:
    """JSON that is no object is not understood."""
    with pytest.raises(FieldError) as problem:
        parse_ticket(document, 1000)
    assert problem.value.message == f"{document!r} is not a table"


def test_a_lease_is_no_ticket() -> None:
    """The record of a lease under a ticket's name is not understood."""
    with pytest.raises(FieldError):
        parse_ticket(json.loads(json.dumps(lease("a", 0).to_document())), 1000)


# ---------------------------------------------------------------------------------- lengths of time


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("90s", 90),
        ("0.5s", 0.5),
        (".5s", 0.5),
        ("10m", 600),
        ("10min", 600),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        (" 1 H 30 Min ", 5400),
        ("2d", 172800),
        ("1d2h3m4s", 93784),
        ("1m0s", 60),
        ("0h1s", 1),
        ("9999999999s", 9999999999),
        ("90:00", 5400),
        ("0:30", 30),
        ("2:00:00", 7200),
        ("01:30:00", 5400),
        ("1-0", 86400),
        ("1-02:30", 95400),
        ("1-00:00:00", 86400),
        (" 1-02:30:00 ", 95400),
    ],
)
def test_length_of_time(text: str, want: float) -> None:
    """Units go alone or together, in any case; clocks are read as Slurm reads them."""
    assert parse_duration(text) == want


@pytest.mark.parametrize("text", ["2", " 90 ", "0.5", ".5", "0012", "1234567890123456"])
def test_number_without_unit(text: str) -> None:
    """A number without a unit is refused: to Slurm it would be minutes, to timeout seconds."""
    number = text.strip()
    with pytest.raises(UsageError, match=f"'{re.escape(text)}' has no unit: write {number}s, "):
        parse_duration(text)


def test_every_time_needs_a_unit() -> None:
    """Each setting that is a length of time refuses a number without a unit, and reads Slurm's."""
    times = {name for name, row in SETTINGS.items() if row.parse is parse_duration}
    assert times == {
        "wait_timeout",
        "time_limit",
        "idle_after",
        "idle_limit",
        "grace",
        "leftover_timeout",
        "mps_timeout",
    }
    for name in times:
        with pytest.raises(UsageError, match=r"^'2' has no unit: write 2s, 2m or 2h$"):
            SETTINGS[name].parse("2")
        assert SETTINGS[name].parse("1-00:00:00") == 86400


WRONG_TIMES = [
    "", " ", "0", "0s", "0h0m", "-1", "+1", "-1s", "1h30", "30 5", "abc", "s", "h", "1y",
    "1w", "1ms", "1hour", "1,5h", "1.5.5", "1.", "1e3", "nan", "inf", "10000000000s", "0:00",
    "1:2:3:4", "1-", "-1:30", "1-2-3", "1:30s", "1d-2", ":30", "1::2", "9999999999:00",
    "9" * 400, "1s\x00", "1s;2s",
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG_TIMES)
def test_no_length_of_time(text: str) -> None:
    """What is not positive, has no known unit, or reads in two ways is no length of time."""
    with pytest.raises(UsageError, match="is no length of time such as 90s, 10m or 1h30m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (0.05, "0.05 s"),
        (0.5, "0.5 s"),
        (1, "1 s"),
        (1.5, "1.5 s"),
        (5, "5 s"),
        (9.0, "9 s"),
        (10.9, "10 s"),
        (59, "59 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (61, "1 min 01 s"),
        (90, "1 min 30 s"),
        (180, "3 min"),
        (599, "9 min 59 s"),
        (600, "10 min"),
        (659, "10 min"),
        (3599, "59 min"),
        (3600, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (86399, "23 h 59 min"),
        (86400, "1 d 0 h"),
        (273600, "3 d 4 h"),
        (1e10, "115740 d 17 h"),
    ],
)
def test_length_of_time_in_words(seconds: float, want: str) -> None:
    """A length of time is told in at most two units."""
    assert format_duration(seconds) == want
