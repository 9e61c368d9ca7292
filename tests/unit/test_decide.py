"""Decisions: a request, a topology and leases as plain values; outcome and reason word for word."""

import io
from collections.abc import Sequence

from rich.console import Console
from values import box, cases, lease, machine, request, ticket, uuids

from gpulaunch.cli.explain import explanation_table
from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Constraint, Decision, Grant, Request, State
from gpulaunch.decide.explain import explain
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.records import replace

ALL = tuple(range(8))


def asking(gpus: int | None, *only: int) -> Request:
    """Ask for GPUs of a box, if so said of some of them only."""
    text = f"--only {','.join(map(str, only))}"
    return request(gpus, constraints=(Constraint(text, frozenset(uuids(only))),) if only else ())


def alice(*gpus: int) -> list[OutsideUse]:
    """Return what Alice uses outside gpulaunch."""
    return [OutsideUse(uuid, "pid 4123, alice") for uuid in uuids(gpus)]


def outcome(decision: Decision) -> tuple[int, ...] | str:
    """Return the GPUs of a grant; else "Wait: " or "Refuse: " and the reason."""
    if isinstance(decision, Grant):
        return decision.placement.gpus
    return f"{type(decision).__name__}: {decision.reason}"


DECISIONS = {
    "a wait counts who has the GPUs, and names a user of several once": (
        *(asking(4), [(0, 1, 2), (3,)], alice(5, 6)),
        (
            "Wait: 4 GPUs requested: 2 of 8 are free, 4 are leased, 2 are in use outside "
            "gpulaunch (pid 4123, alice)"
        ),
    ),
    "outside use of a leased GPU is the lease's": (
        *(asking(8), [(1,)], alice(1)),
        "Wait: 8 GPUs requested: 7 of 8 are free, 1 is leased",
    ),
    "what the machine has not got does not count": (asking(8), [(98,)], alice(99), ALL),
    "more than a constraint admits": (
        *(asking(3, 0, 1), [], []),
        "Refuse: 3 GPUs requested: 2 of box's 8 satisfy --only 0,1",
    ),
    "all that a constraint admits, whoever has the rest": (
        *(asking(None, 2, 3), [(0, 1)], alice(4)),
        (2, 3),
    ),
    "all of none": (
        *(asking(None, 9), [], []),
        "Refuse: every GPU requested: 0 of box's 8 satisfy --only 9",
    ),
    "more than the least of a range that can ever be": (
        *(replace(asking(12), least_gpus=9), [], []),
        "Refuse: at least 9 GPUs requested: box has 8",
    ),
    "the most of a range is cut to the machine": (replace(asking(12), least_gpus=7), [], [], ALL),
}


@cases(DECISIONS, "asked", "leases", "in_use", "want")
def test_decision(
    asked: Request,
    leases: Sequence[Sequence[int]],
    in_use: Sequence[OutsideUse],
    want: tuple[int, ...] | str,
) -> None:
    held = [lease(f"lease-{number}", *indices) for number, indices in enumerate(leases)]
    assert outcome(decide(asked, State(box(), held, in_use))) == want


OUTER = lease("outer", 0, 1, 2, 3)
INNER = lease("inner", 1, 2, within=OUTER)
INNERMOST = lease("innermost", 2, within=INNER)
STRANGER = lease("stranger", 6, 7)
INSIDE = {
    "all of a lease is that lease's GPUs": (None, [OUTER, STRANGER], OUTER, (0, 1, 2, 3)),
    "what a child leaves is there": (2, [OUTER, INNER], OUTER, (0, 3)),
    "three deep": (1, [INNERMOST, STRANGER, OUTER, INNER], INNERMOST, (2,)),
    "a grandchild whose parent has ended still has its GPU": (
        *(4, [OUTER, INNERMOST], OUTER),
        "Wait: 4 GPUs requested: 3 of 4 are free, 1 is leased",
    ),
    "a child that outlives its parent has its GPUs against everybody": (
        *(7, [INNER], None),
        "Wait: 7 GPUs requested: 6 of 8 are free, 2 are leased",
    ),
}


@cases(INSIDE, "gpus", "leases", "within", "want")
def test_decision_within_a_lease(
    gpus: int | None, leases: Sequence[Lease], within: Lease | None, want: tuple[int, ...] | str
) -> None:
    """A launch inside a lease takes GPUs of that lease that earlier ones inside it have left."""
    assert outcome(decide(request(gpus), State(box(), leases, within=within))) == want


def test_use_inside_a_lease_is_its_own() -> None:
    """What already runs on a lease's GPUs does not keep a launch inside it from starting."""
    decision = decide(request(4), State(box(), [OUTER], alice(0, 3), OUTER))
    assert outcome(decision) == (0, 1, 2, 3)


def test_inside_a_lease_nothing_outside_counts_as_left() -> None:
    """What an insensitive job inside a lease leaves is counted over that lease's GPUs alone."""
    dgx1 = machine("dgx1-v100")
    outer = lease("outer", uuids=tuple(dgx1.gpus[gpu].uuid for gpu in (0, 1, 2, 7)))
    asked = request(2, policy="preserve", bandwidth_sensitive=False)
    decision = decide(asked, State(dgx1, [outer], within=outer))
    assert isinstance(decision, Grant)
    left = sorted({0, 1, 2, 7} - set(decision.placement.gpus))
    assert (left, decision.placement.scores.lasting_bandwidth) == ([1, 2], 2 * 50)


def test_a_range_passes_nobody_in_the_queue() -> None:
    """Earlier requests keep their GPUs from a range, which takes what these do not want."""
    state = State(box(), [lease("a", 0, 1)], ahead=[ticket(1, 4, only=range(2, 6))])
    assert outcome(decide(request(6, least_gpus=1), state)) == (6, 7)


WON = {
    "the first score": (
        *("summit", (0, 1, 2, 3), 2, True),
        ("effective",),
        "0-1: the most effective bandwidth (40 GB/s); next is 0,3 with 12",
    ),
    "what others have begun": (
        *("dgx1-v100", (3, 5, 7), 1, False),
        ("lasting", "fragmentation"),
        (
            "3: the most lasting bandwidth (583 GB/s); 5 has as much, but on emptier sockets (25 % "
            "free instead of 0 %)"
        ),
    ),
}


@cases(WON, "name", "free", "gpus", "sensitive", "columns", "want")
def test_why_these(
    name: str,
    free: Sequence[int],
    gpus: int,
    columns: tuple[str, ...],
    want: str,
    *,
    sensitive: bool,
) -> None:
    """A sentence compares winner and runner-up; columns are the scores that ordered the listed.

    A line says of each column what is better, on a narrow terminal, too.
    """
    asked = request(gpus, policy="preserve", bandwidth_sensitive=sensitive)
    busy = [OutsideUse(gpu.uuid, "") for gpu in machine(name).gpus if gpu.index not in free]
    state = State(machine(name), outside=busy)
    decision = decide(asked, state)
    found = explain(asked, state, decision, 5, str)
    assert found.reason == want
    stream = io.StringIO()
    table = explanation_table(asked, decision, found)
    Console(file=stream, width=40, highlight=False, markup=False).print(table)
    lines = stream.getvalue().splitlines()
    header = next(line for line in lines if line.endswith("GPUs"))
    assert tuple(header.split()[:-1]) == columns
    assert [column for column in columns if f"{column} " not in " ".join(lines)] == []
    assert max(map(len, lines)) <= 40
