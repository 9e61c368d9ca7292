"""The queue as plain values: which requests compete or pass, a ticket's record, and durations.

A random crowd of launches and its queue is in test_model.py.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from values import box, cases, lease, request, ticket, uuids

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Constraint, Grant, Refuse, Request, State, Wait
from gpulaunch.errors import FieldError, UsageError
from gpulaunch.files.units import format_duration, parse_duration
from gpulaunch.launch.options import SETTINGS
from gpulaunch.leases.lease import Lease, Ticket, parse_ticket
from gpulaunch.leases.queue import (
    ENDLESS,
    barring,
    competing,
    first_to_try,
    leaves_some,
    queued,
)
from gpulaunch.leases.record import WRITTEN_BYTES
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.process import Process
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


INSIDE_A = ticket(1, within="a")
RIVALS = {
    "by number": ([ticket(7), ticket(12), ticket(3)], None, ALL, [3, 7, 12]),
    "one GPU in common is enough": ([ticket(1, only=(0, 1, 2))], None, (2, 3), [1]),
    "none in common": ([ticket(1, only=(0, 1)), ticket(2, only=(2, 3))], None, (2, 3), [2]),
    "what is wanted inside a lease is nobody's outside": ([INSIDE_A, ticket(2)], None, ALL, [2]),
    "and the other way round": ([INSIDE_A, ticket(2)], "a", (0, 1), [1]),
    "nobody else is inside": ([ticket(1, within="a", user_id=7)], "a", ALL, []),
}


@cases(RIVALS, "tickets", "within", "only", "want")
def test_competing(
    tickets: list[Ticket], within: str | None, only: Sequence[int], want: list[int]
) -> None:
    """Tickets compete, in order, for some of the same GPUs of one lease, or outside all leases."""
    inside = lease(within, *ALL) if within else None
    assert [found.number for found in competing(queued(tickets, inside), uuids(only))] == want


LATER = ticket(9, 1)
HOUR = ticket(9, 1, ends_within_s=3600.0)
CHOOSY = ticket(1, gpus=4, choosy=True, passable_until_s=NOW_S + 1)
BIG = ticket(1, 8)
MINUTE = {"ends_within_s": 60.0}


def busy(*ends_in_s: float | None) -> dict[str, float]:
    """Return until when GPUs 0, 1, ... are busy, in seconds from now; None for no limit."""
    ends = (ENDLESS if within_s is None else NOW_S + within_s for within_s in ends_in_s)
    return dict(zip(uuids(ALL), ends, strict=False))


HALF, FIVE, FULL = (busy(*[None] * count) for count in (4, 5, 8))
PASSES = {
    "first in, first out bars what would fit": ([BIG], LATER, busy(None), [1]),
    "a limit that ends when the head can start": ([BIG], HOUR, busy(3600), []),
    "and one that ends later": ([BIG], HOUR, busy(3599), [1]),
    "the head waits for the last of those that run": ([BIG], HOUR, busy(1, 3600), []),
    "without a limit those that run are endless": ([BIG], HOUR, busy(None), []),
    "a head that can start now": ([ticket(1, 4)], HOUR, busy(None, None), [1]),
    "what is overdue may end now": ([BIG], HOUR, busy(-5), [1]),
    "what is long overdue never ends": ([BIG], HOUR, busy(-61), []),
    "who comes behind the head is passed with it": ([BIG, ticket(2, 4)], HOUR, busy(None), []),
    "unless just enough is free for it": ([BIG, ticket(2, 4, **MINUTE)], HOUR, HALF, [2]),
    "which it cannot with too few free": ([BIG, ticket(2, 4, **MINUTE)], HOUR, FIVE, []),
    "who wants a GPU that nobody before it wants is a head": (
        [ticket(1, 2, (0, 1)), ticket(2, 2, (1, 2))], HOUR, busy(3600), [2],
    ),
    "who keeps the order passes nobody": ([BIG], replace(HOUR, in_order=True), busy(None), [1]),
    "and is passed by nobody": ([ticket(1, 8, in_order=True)], HOUR, busy(None), [1]),
    "behind others neither": ([BIG, ticket(2, 8, in_order=True)], HOUR, busy(None), [2]),
    "a choosy one is passed although enough is free": ([CHOOSY], LATER, {}, []),
    "at its limit no more": ([replace(CHOOSY, passable_until_s=NOW_S)], LATER, {}, [1]),
    "the choosy keep their order": ([CHOOSY], ticket(9, 1, choosy=True), {}, [1]),
    "and the larger ones": ([CHOOSY], ticket(9, 4, choosy=True), FIVE, [1]),
    "but for a smaller one while the other has too few": (
        [CHOOSY], ticket(9, 3, choosy=True), FIVE, [],
    ),
    "one behind a choosy one is the head for others": ([CHOOSY, ticket(2, 8)], HOUR, busy(60), [2]),
}  # fmt: skip


@cases(PASSES, "ahead", "later", "busy_until_s", "want")
def test_barring(
    ahead: list[Ticket], later: Ticket, busy_until_s: dict[str, float], want: list[int]
) -> None:
    """A request passes those that it cannot delay, by the limits of what runs, and choosy ones."""
    bars = barring(ahead, uuids(ALL), later, later.gpus, busy_until_s, NOW_S)
    assert [one.number for one in bars] == want


def test_who_waits_behind_others_that_do_not_compete_is_no_head() -> None:
    """The whole queue tells who is a head, and not only the tickets that compete."""
    ahead = [ticket(1, 2, (0, 1)), ticket(2, 2, (2, 3)), ticket(3, 1, (1, 2))]
    until_s = dict.fromkeys(uuids((0, 3)), NOW_S + 100)
    assert barring(ahead, uuids((1,)), ticket(9, 1, ends_within_s=50.0), 1, until_s, NOW_S) == []


NEXT = {
    "without a limit nobody passes": ([ticket(2)], busy(None), None),
    "the first that fits": ([ticket(2, 7, **MINUTE), ticket(3, 3, **MINUTE)], HALF, 3),
    "and ends in time": ([ticket(2, ends_within_s=61.0), ticket(3, **MINUTE)], busy(60), 3),
    "who may join others looks itself": ([ticket(2), ticket(3, may_join=True)], FULL, 3),
    "not who keeps the order": ([ticket(2, in_order=True, **MINUTE)], HALF, None),
    "nor who is behind that": ([ticket(2, 8, in_order=True), ticket(3, **MINUTE)], HALF, None),
}


@cases(NEXT, "later", "busy_until_s", "want")
def test_first_to_try(later: list[Ticket], busy_until_s: dict[str, float], want: object) -> None:
    """Who was woken in vain wakes the first of the later ones that might start."""
    sharers = {one.user_id for one in later}
    found = first_to_try([BIG], later, busy_until_s, NOW_S, sharers=sharers)
    assert (found and found.number) == want


def test_gpus_that_no_earlier_request_wants_are_tried() -> None:
    """They are for whoever comes next, with or without a limit; the choosy are no hindrance."""
    ahead = [ticket(1, 4, range(4)), replace(CHOOSY, number=2)]
    later = [ticket(3, 5), ticket(4, 4)]
    assert first_to_try(ahead, later, busy(None), NOW_S) is None  # 4 is behind 3
    assert first_to_try(ahead, later[1:], busy(None), NOW_S) == later[1]
    assert first_to_try(ahead, later[1:], busy(None), NOW_S, skipped={later[1].id}) is None
    assert leaves_some(ahead, uuids(ALL), NOW_S)
    assert not leaves_some(ahead, uuids((0, 1)), NOW_S)


BUSY = [lease("a", 0, 1, 2, 3, 4)]
ENDING = [lease("a", 0, 1, 2, 3, 4, clock_s=NOW_S, ends_within_s=60.0)]
FOUR = [ticket(1, 4, only=(0, 1, 2, 5))]
ADMITTED = "1 GPU requested: 2 of 2 admitted are free, but 3 earlier requests for 10 GPUs wait"


def free(asked: str, ahead: str) -> tuple[object, ...]:
    return (Wait, f"{asked} requested: 3 of 8 are free, but {ahead}", 1)


DECISIONS = {
    "one earlier request": (
        asking(2), BUSY, [BIG], free("2 GPUs", "an earlier request for 8 GPUs waits"),
    ),
    "among the GPUs that would do": (
        asking(1, (5, 6)), BUSY, [BIG, ticket(2), ticket(3, only=(6,))], (Wait, ADMITTED, 3),
    ),
    "one that ends in time passes": (asking(2, within_s=60), ENDING, [BIG], (Grant, (5, 6))),
    "what the earlier one cannot use": (asking(2), BUSY, FOUR, (Grant, (6, 7))),
    "and not more than that": (
        asking(3), BUSY, FOUR, free("3 GPUs", "an earlier request for 4 GPUs waits"),
    ),
    "what can never be": (asking(9), BUSY, [BIG], (Refuse, "9 GPUs requested: box has 8")),
}  # fmt: skip


def outcome(asked: Request, state: State) -> tuple[object, ...]:
    """Return kind and reason, and the ticket that it comes after; of a grant the GPUs."""
    decision = decide(asked, state)
    if isinstance(decision, Grant):
        return (Grant, decision.placement.gpus)
    bar = (decision.behind.number,) if isinstance(decision, Wait) and decision.behind else ()
    return (type(decision), decision.reason, *bar)


@cases(DECISIONS, "asked", "leases", "ahead", "want")
def test_decision_with_a_queue(
    asked: Request, leases: list[Lease], ahead: list[Ticket], want: tuple[object, ...]
) -> None:
    """An earlier competing request that may not be passed makes a later one wait, and is named."""
    assert outcome(asked, State(BOX, leases, ahead=ahead, clock_s=NOW_S)) == want


def test_use_outside_is_endless() -> None:
    """What others use is not free, so an earlier request that would need it is passed."""
    used = [OutsideUse("GPU-7", "pid 1, bob")]
    state = State(BOX, outside=used, ahead=[BIG], clock_s=NOW_S)
    assert outcome(asking(1, within_s=60), state) == (Grant, (0,))


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


def test_the_record_of_a_container_stays_small() -> None:
    """The record of a container's lease is cut to what is read of it once nobody holds it."""
    long = lease("a", 0, command=("docker", "run", *["-e", "NAME=\x1bvalue"] * 2000))
    assert len(json.dumps(long.to_document())) > 4096
    document = replace(long, engine="NXUF").to_document()
    assert len(json.dumps(document)) <= 4096
    assert document["command"][:2] == ["docker", "run"]


NO_TICKETS = {
    "a later version": ({"version": 2}, "it needs a gpulaunch that reads version 2 of the records"),
    "an id for a terminal": ({"id": "\x1b[31m"}, "id: '\\x1b[31m' is no lease's id"),
    "a number before the first": ({"number": 0}, "number: 0 is not within 1 to 1073741824"),
    "text for a list": ({"uuids": "GPU-3"}, "uuids: 'GPU-3' is not a list"),
    "no GPUs": ({"uuids": None}, "key 'uuids' is missing"),
    "a list for a lease": ({"within": ["ab12"]}, "within: ['ab12'] is not text"),
}


@cases(NO_TICKETS, "change", "want")
def test_ticket_with_a_wrong_needed_value(change: dict[str, object], want: str) -> None:
    """A ticket of which it is unclear whom it bars is not understood, and the key is named."""
    with pytest.raises(FieldError) as problem:
        parse_ticket(written(ticket(1)) | change, 1000)
    assert problem.value.message == want


FORMS = {
    "passable for ever": ({"passable_until_s": float("inf")}, {"passable_until_s": 0.0}),
    "a pid alone": ({"launcher": [4000]}, {"launcher": Process(0, 0)}),
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


TIMES = {
    "0.5s": 0.5, ".5s": 0.5, "10min": 600, "1.5h": 5400, " 1 H 30 Min ": 5400, "2d": 172800,
    "1d2h3m4s": 93784, "9999999999s": 9999999999, "90:00": 5400, "0:30": 30, "01:30:00": 5400,
    "1-0": 86400, "1-02:30": 95400, " 1-02:30:00 ": 95400,
}  # fmt: skip
NO_TIMES = (
    *("", "0", "0h0m", "-1s", "1h30", "30 5", "s", "1w", "1,5h", "1.5.5", "1e3", "nan", "0:00"),
    *("10000000000s", "1:2:3:4", "1-", "1-2-3", "1d-2", "1::2", "9" * 400, "1s\x00"),
)
IN_WORDS = {
    -5: "0 s", 0.05: "0.05 s", 1.5: "1.5 s", 9.0: "9 s", 10.9: "10 s", 59.9: "59 s", 60: "1 min",
    61: "1 min 01 s", 599: "9 min 59 s", 600: "10 min", 659: "10 min", 3599: "59 min",
    3600: "1 h 00 min", 86399: "23 h 59 min", 86400: "1 d 0 h", 1e10: "115740 d 17 h",
}  # fmt: skip


def test_length_of_time() -> None:
    """Units go alone or together, in any case; clocks are read as Slurm reads them."""
    assert {text: parse_duration(text) for text in TIMES} == TIMES


def test_no_length_of_time() -> None:
    """What is not positive, has no known unit, or reads in two ways is no length of time."""
    for text in NO_TIMES:
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
