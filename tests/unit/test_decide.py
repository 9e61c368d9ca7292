"""Decisions: a request, a topology and leases as plain values, and the outcome word for word."""

from collections.abc import Sequence

import pytest
from values import box, lease, request, ticket, uuids

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, Refuse, Situation, Wait
from gpulaunch.decide.request import Constraint
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.records import replace


def only(*indices: int) -> Constraint:
    return Constraint(f"--only {','.join(map(str, indices))}", frozenset(uuids(indices)))


def outside(**users: str) -> list[OutsideUse]:
    """Make uses outside gpulaunch from gpu3="who"."""
    return [OutsideUse(gpu.replace("gpu", "GPU-"), who) for gpu, who in users.items()]


def outcome(decision: Decision) -> tuple[object, ...]:
    """Return kind and reason, and of a grant the GPUs too."""
    gpus = (decision.placement.gpus,) if isinstance(decision, Grant) else ()
    return (type(decision), decision.reason, *gpus)


ALICE = "pid 4123, alice"


@pytest.mark.parametrize(
    ("sentence", "gpus", "constraints", "leases", "in_use", "want"),
    [
        (
            "an idle machine grants",
            2,
            [],
            [],
            {},
            (Grant, "lowest indices of 28 candidates", (0, 1)),
        ),
        (
            "what is leased is passed over",
            2,
            [],
            [(0, 2)],
            {},
            (Grant, "lowest indices of 15 candidates", (1, 3)),
        ),
        (
            "so is what a constraint leaves out",
            1,
            [only(5)],
            [],
            {},
            (Grant, "the only choice", (5,)),
        ),
        ("all eight", 8, [], [], {}, (Grant, "the only choice", tuple(range(8)))),
        (
            "a wait counts who has the GPUs",
            4,
            [],
            [(0, 1, 2), (3, 4)],
            {"gpu5": ALICE},
            (
                Wait,
                (
                    "4 GPUs requested: 2 of 8 are free, 5 are leased, 1 is in use outside "
                    "gpulaunch (pid 4123, alice)"
                ),
            ),
        ),
        (
            "a user of several GPUs is named once",
            8,
            [],
            [],
            {"gpu1": ALICE, "gpu6": ALICE},
            (
                Wait,
                (
                    "8 GPUs requested: 6 of 8 are free, 2 are in use outside gpulaunch (pid 4123, "
                    "alice)"
                ),
            ),
        ),
        (
            "outside use of a leased GPU is the lease's",
            8,
            [],
            [(1,)],
            {"gpu1": ALICE},
            (Wait, "8 GPUs requested: 7 of 8 are free, 1 is leased"),
        ),
        ("nine of eight", 9, [], [], {}, (Refuse, "9 GPUs requested: box has 8")),
        (
            "more than a constraint admits",
            3,
            [only(0, 1)],
            [],
            {},
            (Refuse, "3 GPUs requested: 2 of box's 8 satisfy --only 0,1"),
        ),
        ("all of an idle machine", None, [], [], {}, (Grant, "the only choice", tuple(range(8)))),
        (
            "all while one is busy",
            None,
            [],
            [(7,)],
            {},
            (Wait, "8 GPUs requested: 7 of 8 are free, 1 is leased"),
        ),
        (
            "all that a constraint admits, whoever has the rest",
            None,
            [only(2, 3)],
            [(0, 1)],
            {"gpu4": ALICE},
            (Grant, "the only choice", (2, 3)),
        ),
        (
            "all of none",
            None,
            [Constraint("--gpu-model T4", frozenset(), "they are V100")],
            [],
            {},
            (Refuse, "every GPU requested: 0 of box's 8 satisfy --gpu-model T4: they are V100"),
        ),
    ],
)
def test_decision(
    sentence: str,
    gpus: int | None,
    constraints: Sequence[Constraint],
    leases: Sequence[tuple[int, ...]],
    in_use: dict[str, str],
    want: tuple[object, ...],
) -> None:
    """A request is granted, has to wait or is refused, with the reason in these words."""
    held = [lease(f"lease-{number}", *indices) for number, indices in enumerate(leases)]
    decision = decide(
        request(gpus, constraints=constraints), Situation(box(), held, outside(**in_use))
    )
    assert outcome(decision) == want, sentence


OUTER = lease("outer", 0, 1, 2, 3)
INNER = lease("inner", 1, 2, within=OUTER)
INNERMOST = lease("innermost", 2, within=INNER)
STRANGER = lease("stranger", 6, 7)


@pytest.mark.parametrize(
    ("sentence", "gpus", "constraints", "leases", "within", "want"),
    [
        (
            "all of a lease is that lease's GPUs",
            None,
            [],
            [OUTER, STRANGER],
            OUTER,
            (Grant, "the only choice", (0, 1, 2, 3)),
        ),
        (
            "a choice is made inside the lease",
            2,
            [],
            [OUTER, STRANGER],
            OUTER,
            (Grant, "lowest indices of 6 candidates", (0, 1)),
        ),
        (
            "more than the lease has",
            5,
            [],
            [OUTER],
            OUTER,
            (Refuse, "5 GPUs requested: lease outer has 4"),
        ),
        (
            "what a child has is not there",
            3,
            [],
            [OUTER, INNER],
            OUTER,
            (Wait, "3 GPUs requested: 2 of 4 are free, 2 are leased"),
        ),
        (
            "what a child leaves is",
            2,
            [],
            [OUTER, INNER],
            OUTER,
            (Grant, "the only choice", (0, 3)),
        ),
        (
            "three deep",
            1,
            [],
            [INNERMOST, STRANGER, OUTER, INNER],
            INNERMOST,
            (Grant, "the only choice", (2,)),
        ),
        (
            "a grandchild whose parent has ended still has its GPU",
            4,
            [],
            [OUTER, INNERMOST],
            OUTER,
            (Wait, "4 GPUs requested: 3 of 4 are free, 1 is leased"),
        ),
        (
            "a child that outlives its parent has its GPUs against everybody",
            7,
            [],
            [INNER],
            None,
            (Wait, "7 GPUs requested: 6 of 8 are free, 2 are leased"),
        ),
    ],
)
def test_decision_within_a_lease(
    sentence: str,
    gpus: int | None,
    constraints: Sequence[Constraint],
    leases: Sequence[Lease],
    within: Lease | None,
    want: tuple[object, ...],
) -> None:
    """A launch inside a lease takes GPUs of that lease that earlier ones inside it have left."""
    assert (
        outcome(
            decide(request(gpus, constraints=constraints), Situation(box(), leases, within=within))
        )
        == want
    ), sentence


def test_use_inside_a_lease_is_its_own() -> None:
    """What already runs on a lease's GPUs does not keep a launch inside it from starting."""
    decision = decide(request(4), Situation(box(), [OUTER], outside(gpu0=ALICE, gpu3=ALICE), OUTER))
    assert outcome(decision) == (Grant, "the only choice", (0, 1, 2, 3))


def test_a_use_that_names_no_gpu_of_the_machine_is_ignored() -> None:
    """Leases and uses of GPUs that this machine does not have change nothing."""
    decision = decide(request(8), Situation(box(), [lease("elsewhere", 98)], outside(gpu99=ALICE)))
    assert outcome(decision) == (Grant, "the only choice", tuple(range(8)))


@pytest.mark.parametrize(
    ("sentence", "gpus", "policy", "want"),
    [
        (
            "a sensitive job",
            3,
            "preserve",
            "60 GB/s effective bandwidth, the most of 56 candidates",
        ),
        # all 28 pairs have 744 GB/s, of which every GPU takes away 2 x 50, 2 x 25 and 3 x 12, now
        # and later
        (
            "one GPU is insensitive",
            1,
            "preserve",
            "1116 GB/s lasting bandwidth, the most of 8 candidates",
        ),
        ("greedy", 3, "greedy", "125 GB/s aggregate bandwidth, the most of 56 candidates"),
        ("baseline", 3, "baseline", "lowest indices of 56 candidates"),
        ("nothing to choose", 8, "preserve", "the only choice"),
    ],
)
def test_reason_of_a_grant(sentence: str, gpus: int, policy: str, want: str) -> None:
    """A grant says what made this set the best, on an idle DGX-1 V100."""
    decision = decide(
        request(gpus, policy=policy), Situation(load_described_machine("dgx1-v100")[0])
    )
    assert isinstance(decision, Grant)
    assert decision.reason == want, sentence


def test_preserved_bandwidth_counts_what_is_free() -> None:
    """Preserved bandwidth counts all free GPUs, including those that the request excludes."""
    topology, _ = load_described_machine("dgx1-v100")
    taken = topology.gpus[4].uuid
    both = frozenset({topology.gpus[0].uuid, topology.gpus[3].uuid})
    decision = decide(
        request(2, constraints=[Constraint("--only 0,3", both)]),
        Situation(topology, [lease("other", uuids=(taken,))]),
    )
    assert isinstance(decision, Grant)
    assert decision.placement.gpus == (0, 3)
    # 1, 2, 5, 6 and 7 stay: double 1-2, 1-5, 5-6, 6-7, single 2-6, 5-7, PCIe 1-6, 1-7, 2-5, 2-7
    assert decision.placement.scores.preserved_bandwidth == 4 * 50 + 2 * 25 + 4 * 12


def test_inside_a_lease_nothing_outside_counts_as_left() -> None:
    """What an insensitive job inside a lease leaves is counted over that lease's GPUs alone."""
    topology, _ = load_described_machine("dgx1-v100")
    outer = lease("outer", uuids=tuple(topology.gpus[gpu].uuid for gpu in (0, 1, 2, 7)))
    asked = replace(request(2, policy="preserve"), bandwidth_sensitive=False)
    decision = decide(asked, Situation(topology, [outer], within=outer))
    assert isinstance(decision, Grant)
    left = sorted({0, 1, 2, 7} - set(decision.placement.gpus))
    assert (left, decision.placement.scores.lasting_bandwidth) == ([1, 2], 2 * 50)


@pytest.mark.parametrize(
    ("sentence", "least", "most", "busy", "want"),
    [
        ("the most, if it is free", 2, 4, (), (Grant, (0, 1, 2, 3))),
        ("else what is free", 2, 4, range(5), (Grant, (5, 6, 7))),
        (
            "under the least it waits for that",
            3,
            5,
            range(6),
            (Wait, "at least 3 GPUs requested: 2 of 8 are free, 6 are leased"),
        ),
        (
            "more than there are can never be",
            9,
            12,
            (),
            (Refuse, "at least 9 GPUs requested: box has 8"),
        ),
    ],
)
def test_a_range(
    sentence: str, least: int, most: int, busy: Sequence[int], want: tuple[object, object]
) -> None:
    """Of a range the most is granted that can be had now."""
    leases = [lease("a", *busy)] if busy else []
    found = decide(request(most, least_gpus=least), Situation(box(), leases))
    got = found.placement.gpus if isinstance(found, Grant) else found.reason
    assert (type(found), got) == want, sentence


def test_a_range_passes_nobody_in_the_queue() -> None:
    """Earlier requests keep their GPUs from a range, which takes what these do not want."""
    situation = Situation(box(), [lease("a", 0, 1)], ahead=[ticket(1, 4, only=range(2, 6))])
    found = decide(request(6, least_gpus=1), situation)
    assert isinstance(found, Grant)
    assert found.placement.gpus == (6, 7)
