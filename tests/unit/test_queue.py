"""The queue as plain values: which requests compete or pass, a ticket's record, and durations."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from values import box, lease, request, ticket, uuids

from gpulaunch.decide.decide import Decision, Grant, Refuse, Situation, Wait, admitted_gpus, decide
from gpulaunch.decide.request import Constraint, Request
from gpulaunch.errors import FieldError
from gpulaunch.files.duration import format_duration, parse_duration
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.queue import barring, competing
from gpulaunch.leases.record_fields import MAX_COMMAND_CHARACTERS
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
    """Return kind and reason, and the ticket that bars it; of a grant the GPUs."""
    if isinstance(decision, Grant):
        return (Grant, decision.placement.gpus)
    bar = (decision.barred_by.number,) if isinstance(decision, Wait) and decision.barred_by else ()
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
    assert [found.number for found in competing(tickets, inside, uuids(only))] == want, sentence


LIMIT_S = 100.0
PASSABLE = ticket(1, gpus=4, passable_until_s=LIMIT_S)
CHOOSY = replace(PASSABLE, choosy=True)


@pytest.mark.parametrize(
    ("sentence", "ahead", "gpus", "free", "clock_s", "want"),
    [
        ("nobody is ahead", [], 8, ALL, 0, None),
        ("first in, first out bars what would fit", [ticket(1, gpus=8)], 1, (0, 1), 0, 1),
        ("and what is as large", [ticket(1)], 1, (0,), 0, 1),
        (
            "the last of several is the one to wait for",
            [ticket(1), ticket(2), ticket(3)],
            1,
            ALL,
            0,
            3,
        ),
        ("a smaller one passes", [PASSABLE], 3, (0, 1, 2), 0, None),
        ("one of the same size does not", [PASSABLE], 4, (0, 1, 2), 0, 1),
        ("nor does a larger one", [PASSABLE], 5, (0, 1, 2), 0, 1),
        ("nor if the earlier one can start", [PASSABLE], 1, (0, 1, 2, 3), 0, 1),
        (
            "what is free counts where the earlier one may go",
            [replace(PASSABLE, uuids=uuids((0, 1, 2, 3)))],
            1,
            (3, 4, 5, 6, 7),
            0,
            None,
        ),
        ("just before the limit", [PASSABLE], 1, (), 99.999, None),
        ("at the limit no more", [PASSABLE], 1, (), LIMIT_S, 1),
        ("nor after it", [PASSABLE], 1, (), 1e9, 1),
        (
            "all of them have to let it pass",
            [ticket(1, gpus=8), replace(PASSABLE, number=2)],
            1,
            (0,),
            0,
            1,
        ),
        ("in whatever order", [PASSABLE, ticket(2, gpus=8)], 1, (0,), 0, 2),
        ("and if all do", [PASSABLE, replace(PASSABLE, number=2)], 1, (0,), 0, None),
        ("a choosy one is passed although enough is free", [CHOOSY], 1, (0, 1, 2, 3), 0, None),
        ("by one of the same size", [CHOOSY], 4, (0, 1, 2, 3), 0, None),
        ("and by a larger one", [CHOOSY], 5, ALL, 0, None),
        ("and if too little is free for it anyway", [CHOOSY], 5, (0,), 0, None),
        ("just before its limit", [CHOOSY], 1, ALL, 99.999, None),
        ("at its limit it bars like any other", [CHOOSY], 1, ALL, LIMIT_S, 1),
        ("even what is smaller while it cannot start", [CHOOSY], 1, (0,), LIMIT_S, 1),
        ("one without a limit bars at once", [replace(CHOOSY, passable_until_s=0.0)], 1, ALL, 0, 1),
        (
            "an earlier one that is not choosy still bars",
            [ticket(1, gpus=8), replace(CHOOSY, number=2)],
            1,
            ALL,
            0,
            1,
        ),
    ],
)
def test_barring(
    sentence: str,
    ahead: list[Ticket],
    gpus: int,
    free: Sequence[int],
    clock_s: float,
    want: int | None,
) -> None:
    """Until its limit, smaller requests pass one that cannot start, and all pass a choosy one."""
    bar = barring(ahead, gpus, uuids(free), clock_s)
    assert (bar and bar.number) == want, sentence


@pytest.mark.parametrize(
    ("sentence", "ahead", "gpus", "free", "want"),
    [
        ("one that is as choosy comes after it", [CHOOSY], 4, ALL, 1),
        ("unless it is smaller, and the other cannot start", [CHOOSY], 3, (0, 1, 2), None),
        ("it passes whom others pass", [PASSABLE], 3, (0, 1, 2), None),
        ("and nobody whom they do not", [ticket(1, gpus=8)], 1, ALL, 1),
    ],
)
def test_the_choosy_keep_their_order(
    sentence: str, ahead: list[Ticket], gpus: int, free: Sequence[int], want: int | None
) -> None:
    """Two requests that wait for better GPUs may want the same ones, so they keep their order."""
    bar = barring(ahead, gpus, uuids(free), 0, choosy=True)
    assert (bar and bar.number) == want, sentence


# ---------------------------------------------------------------------------------------- decisions

BIG = ticket(1, gpus=8)
WILLING = replace(BIG, passable_until_s=LIMIT_S)
BUSY = [lease("a", 0, 1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("sentence", "asked", "leases", "ahead", "clock_s", "want"),
    [
        ("an empty queue", asking(1), [], [], 0, (Grant, (0,))),
        (
            "one earlier request",
            asking(2),
            BUSY,
            [BIG],
            0,
            (Wait, "2 GPUs requested: 3 of 8 are free, but an earlier request for 8 GPUs waits", 1),
        ),
        (
            "one for one GPU, of which one is free",
            asking(1),
            [lease("a", *range(7))],
            [ticket(4)],
            0,
            (Wait, "1 GPU requested: 1 of 8 is free, but an earlier request for 1 GPU waits", 4),
        ),
        (
            "several",
            asking(2),
            BUSY,
            [BIG, ticket(2, gpus=4)],
            0,
            (Wait, "2 GPUs requested: 3 of 8 are free, but 2 earlier requests for 12 GPUs wait", 2),
        ),
        (
            "among the GPUs that would do",
            asking(1, (5, 6)),
            BUSY,
            [BIG, ticket(2), ticket(3, only=(6,))],
            0,
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
            0,
            (Wait, "1 GPU requested: 8 of 8 are free, but an earlier request for 1 GPU waits", 1),
        ),
        (
            "where GPUs are missing, that is the reason",
            asking(4),
            BUSY,
            [BIG],
            0,
            (Wait, "4 GPUs requested: 3 of 8 are free, 5 are leased", 1),
        ),
        (
            "and nobody bars it who could be passed",
            asking(4),
            BUSY,
            [WILLING],
            0,
            (Wait, "4 GPUs requested: 3 of 8 are free, 5 are leased"),
        ),
        ("a smaller one passes", asking(2), BUSY, [WILLING], 0, (Grant, (5, 6))),
        (
            "but not after the limit",
            asking(2),
            BUSY,
            [WILLING],
            LIMIT_S,
            (Wait, "2 GPUs requested: 3 of 8 are free, but an earlier request for 8 GPUs waits", 1),
        ),
        (
            "nor where the earlier one can start",
            asking(2),
            [],
            [WILLING],
            0,
            (Wait, "2 GPUs requested: 8 of 8 are free, but an earlier request for 8 GPUs waits", 1),
        ),
        (
            "every GPU is not fewer than 8",
            asking(None),
            [],
            [WILLING],
            0,
            (Wait, "8 GPUs requested: 8 of 8 are free, but an earlier request for 8 GPUs waits", 1),
        ),
        (
            "willing and unwilling ones",
            asking(2),
            BUSY,
            [ticket(1, gpus=6), replace(WILLING, number=2)],
            0,
            (Wait, "2 GPUs requested: 3 of 8 are free, but 2 earlier requests for 14 GPUs wait", 1),
        ),
        (
            "GPUs that nobody else wants",
            asking(2, (5, 6)),
            BUSY,
            [ticket(1, gpus=5, only=range(5))],
            0,
            (Grant, (5, 6)),
        ),
        (
            "requests inside a lease",
            asking(2),
            BUSY,
            [ticket(1, 4, (0, 1, 2, 3), within="a")],
            0,
            (Grant, (5, 6)),
        ),
        (
            "what can never be, queue or not",
            asking(9),
            BUSY,
            [BIG],
            0,
            (Refuse, "9 GPUs requested: box has 8"),
        ),
    ],
)
def test_decision_with_a_queue(
    sentence: str,
    asked: Request,
    leases: list[Lease],
    ahead: list[Ticket],
    clock_s: float,
    want: tuple[object, ...],
) -> None:
    """An earlier competing request that may not be passed makes a later one wait, and is named."""
    assert outcome(decide(asked, Situation(BOX, leases, ahead=ahead, clock_s=clock_s))) == want, (
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


def test_use_outside_keeps_an_earlier_request_from_starting() -> None:
    """What others use is not free, so a willing earlier request that would need it is passed."""
    used = [OutsideUse("GPU-7", "pid 1, bob")]
    assert outcome(decide(asking(1), Situation(BOX, outside=used, ahead=[WILLING]))) == (
        Grant,
        (0,),
    )


# ----------------------------------------------------------------------------------- many at random


ARRIVALS = 30


class Crowd:
    """A machine under random arrivals and ends, where every start goes through decide().

    Attributes:
        queue: tickets that wait.
        started: tickets that got GPUs, with the clock then.
    """

    def __init__(self, seed: int, backfill_share: float) -> None:
        self.chance = random.Random(seed)
        self.backfill_share = backfill_share
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
        limit_s = (
            self.clock_s + chance.uniform(1, 40) if chance.random() < self.backfill_share else 0.0
        )
        count = asked.gpus or len(only)
        self.requests[self.arrived] = asked
        self.queue.append(ticket(self.arrived, count, only, passable_until_s=limit_s))

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
                until_s = self.clock_s + self.chance.uniform(1, 20)
                self.running.append((until_s, lease(one.id, *decision.placement.gpus)))
                found = True

    def free(self) -> set[str]:
        return {gpu.uuid for gpu in BOX.gpus} - {
            uuid for _, lease in self.running for uuid in lease.uuids
        }

    def run(self, check: Callable[[Ticket, list[Ticket], set[str]], None]) -> None:
        """Let all arrive, and go on until the queue is empty."""
        while self.queue or self.arrived < ARRIVALS:
            self.clock_s += 1.0
            assert self.clock_s < 2000, "somebody waits for ever"
            self.end_what_is_over()
            for _ in range(self.chance.choice([0, 0, 1, 2]) if self.arrived < ARRIVALS else 0):
                self.arrive()
            self.all_look(check)
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

    Crowd(seed, backfill_share=0).run(in_order)


@pytest.mark.parametrize("crowds", [4])
def test_backfill_starves_nobody(crowds: int) -> None:
    """A request is passed only by smaller ones, while it cannot start and before its limit."""
    passes = 0

    def fair(one: Ticket, ahead: list[Ticket], free: set[str]) -> None:
        nonlocal passes
        for other in ahead:
            passes += 1
            assert crowd.clock_s < other.passable_until_s, (
                f"{one.number} passed {other.number} after its limit"
            )
            assert one.gpus < other.gpus
            assert len(free & set(other.uuids)) < other.gpus, f"{other.number} could have started"

    for seed in range(crowds):
        crowd = Crowd(seed, backfill_share=0.8)
        crowd.run(fair)
    assert passes > 2 * crowds, "so few that this shows nothing"


def test_a_stream_of_small_requests_ends_at_the_limit() -> None:
    """Under endless single-GPU requests, one for all GPUs starts soon after its limit.

    It starts once those before its limit have ended.

    Without the limit it would never start: the same stream, with a limit that does not come, keeps
    it waiting.
    """

    def waited_s(limit_s: float) -> float | None:
        running: list[tuple[float, Lease]] = [(3.0, lease("first", 0))]
        big = ticket(1, gpus=8, passable_until_s=limit_s)
        for clock in range(1, 200):
            running = [(until_s, one) for until_s, one in running if until_s > clock]
            leases = [one for _, one in running]
            if isinstance(decide(asking(8), Situation(BOX, leases, clock_s=clock)), Grant):
                return clock
            small = decide(asking(1), Situation(BOX, leases, ahead=[big], clock_s=clock))
            if isinstance(small, Grant):
                running.append((clock + 5.0, lease(f"s{clock}", *small.placement.gpus)))
        return None

    assert waited_s(limit_s=50.0) == 54  # the last of them started at 49 and runs for 5 s
    assert waited_s(limit_s=1e9) is None


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
    kept = parse_ticket(
        written(ticket(1, command=("x" * MAX_COMMAND_CHARACTERS, "y"))), 1000
    ).command
    assert kept == ("x" * MAX_COMMAND_CHARACTERS, "...")


KEYS = [
    "version",
    "id",
    "number",
    "uuids",
    "gpus",
    "passable_until_s",
    "launcher",
    "command",
    "since",
    "boot_id",
]


@pytest.mark.parametrize("key", KEYS)
def test_ticket_without_a_key(key: str) -> None:
    """A record that lacks a key, or has null for it, is not understood."""
    document = written(ticket(1))
    with pytest.raises(FieldError):
        parse_ticket(document | {key: None}, 1000)
    del document[key]
    with pytest.raises(FieldError) as problem:
        parse_ticket(document, 1000)
    assert problem.value.message == f"key '{key}' is missing"


@pytest.mark.parametrize(
    ("sentence", "change", "want"),
    [
        ("a later version", {"version": 2}, "version: 2 is not within 1 to 1"),
        ("a version that is only like 1", {"version": True}, "version: True is not a whole number"),
        ("a number for text", {"id": 7}, "id: 7 is not text"),
        ("an id for a terminal", {"id": "\x1b[31m"}, "id: '\\x1b[31m' is no lease's id"),
        ("an id for another directory", {"id": "../x"}, "id: '../x' is no lease's id"),
        ("an empty id", {"id": ""}, "id: '' is no lease's id"),
        ("a place before the first", {"number": 0}, "number: 0 is not within 1 to 1073741824"),
        ("a place below zero", {"number": -1}, "number: -1 is not within 1 to 1073741824"),
        (
            "a place that is too high",
            {"number": (1 << 30) + 1},
            "number: 1073741825 is not within 1 to 1073741824",
        ),
        ("a fraction for a place", {"number": 1.0}, "number: 1.0 is not a whole number"),
        ("text for a place", {"number": "1"}, "number: '1' is not a whole number"),
        ("a truth for a place", {"number": True}, "number: True is not a whole number"),
        ("text for a list", {"uuids": "GPU-3"}, "uuids: 'GPU-3' is not a list"),
        ("a number for a UUID", {"uuids": ["GPU-3", 0]}, "uuids: ['GPU-3', 0] is no list of texts"),
        ("no GPU wanted", {"gpus": 0}, "gpus: 0 is not within 1 to 2147483648"),
        ("all for a number", {"gpus": "all"}, "gpus: 'all' is not a whole number"),
        ("half a GPU", {"gpus": 0.5}, "gpus: 0.5 is not a whole number"),
        (
            "passable for ever",
            {"passable_until_s": float("inf")},
            "passable_until_s: inf is not within 0 to 9007199254740992",
        ),
        (
            "passable until no time at all",
            {"passable_until_s": float("nan")},
            "passable_until_s: nan is not within 0 to 9007199254740992",
        ),
        (
            "before the boot",
            {"passable_until_s": -1},
            "passable_until_s: -1 is not within 0 to 9007199254740992",
        ),
        ("text for a clock", {"passable_until_s": "1"}, "passable_until_s: '1' is not a number"),
        (
            "a truth for a clock",
            {"passable_until_s": True},
            "passable_until_s: True is not a number",
        ),
        ("a pid alone", {"launcher": [4000]}, "launcher: [4000] is not [pid, start time]"),
        ("a pid below zero", {"launcher": [-1, 2]}, "launcher: [-1, 2] is not [pid, start time]"),
        (
            "a truth for a pid",
            {"launcher": [True, 2]},
            "launcher: [True, 2] is not [pid, start time]",
        ),
        ("a number for a process", {"launcher": 4001}, "launcher: 4001 is not a list"),
        ("a list in the command", {"command": [["ls"]]}, "command: [['ls']] is no list of texts"),
        ("text for a command", {"command": "ls"}, "command: 'ls' is not a list"),
        ("text for a table", {"table": "box"}, "table: 'box' is not a list"),
        (
            "a table without a file",
            {"table": ["box", "00"]},
            "table: ['box', '00'] is no list of texts",
        ),
        ("a list for a lease", {"within": ["ab12"]}, "within: ['ab12'] is not text"),
        ("a number for a profile", {"profile": 16}, "profile: 16 is not text"),
        ("a number for a name", {"name": 0}, "name: 0 is not text"),
        (
            "a day for a time",
            {"since": "2026-01-02"},
            "since: '2026-01-02' is no time such as 2026-01-31T23:59:59Z",
        ),
        ("a number for a time", {"since": 1}, "since: 1 is not text"),
        ("a number for a boot", {"boot_id": 1}, "boot_id: 1 is not text"),
        ("a number for a truth", {"choosy": 1}, "choosy: 1 is not true or false"),
    ],
)
def test_ticket_with_a_wrong_value(sentence: str, change: dict[str, object], want: str) -> None:
    """A record with a value of the wrong kind is not understood, and the key is named."""
    with pytest.raises(FieldError) as problem:
        parse_ticket(written(ticket(1)) | change, 1000)
    assert problem.value.message == want, sentence
    assert problem.value.path == (next(iter(change)),)


def test_ticket_of_an_earlier_version() -> None:
    """A record from before tickets could be choosy is understood: it is not."""
    document = written(ticket(1, choosy=True))
    del document["choosy"]
    assert parse_ticket(document, 1000) == ticket(1)


def test_ticket_with_an_unknown_key() -> None:
    """A record with a key that this version does not know is not understood."""
    with pytest.raises(FieldError) as problem:
        parse_ticket(written(ticket(1)) | {"priority": 9}, 1000)
    assert problem.value.message.startswith(
        "unknown key 'priority': known here are version, id, number"
    )


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
        ("90", 90),
        ("90s", 90),
        ("0.5", 0.5),
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
        ("9999999999", 9999999999),
    ],
)
def test_length_of_time(text: str, want: float) -> None:
    """Days, hours, minutes and seconds go alone or together, in any case; a number is seconds."""
    assert parse_duration(text) == want


WRONG_TIMES = [
    "", " ", "0", "0s", "0h0m", "-1", "+1", "-1s", "1h30", "30 5", "abc", "s", "h", "1y",
    "1w", "1ms", "1hour", "1,5h", "1.5.5", "1.", "1e3", "nan", "inf", "1:30", "10000000000",
    "9" * 400, "1s\x00", "1s;2s",
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG_TIMES)
def test_no_length_of_time(text: str) -> None:
    """What is not positive, has no known unit, or reads in two ways is no length of time."""
    with pytest.raises(ValueError, match=r".*"):
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
