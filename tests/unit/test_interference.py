"""Which jobs may share a GPU, by the rule and figures of mps-sharing-2024, and what it brings."""

import random
from itertools import permutations
from statistics import linear_regression

import pytest
from corun import BENCHMARKS, Machine, sms_of
from hypothesis import assume, given
from hypothesis import strategies as st

from gpulaunch.leases.lease import Client, Objective
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.demand import CurvePoint, Demand
from gpulaunch.records import replace
from gpulaunch.sharing.caps import best_caps
from gpulaunch.sharing.interference import judge
from gpulaunch.sharing.speed import IDLE_SHARE, Capacity, speeds

A100X = Capacity(memory_bytes=80 << 30, most_clients=48, power_limit_w=300)

TABLE_2 = """
    athenapk-1x athenapk-4x berkeleygw-epsilon-1x cholla-gravity-1x cholla-gravity-4x kripke-1x
    kripke-4x cholla-mhd-1x cholla-mhd-4x lammps-1x lammps-4x warpx-1x warpx-4x
"""


def busy(
    sm: float, memory_bandwidth: float = 0.0, memory_bytes: int = 0, power_w: float | None = None
) -> Demand:
    return Demand(f"{sm:g}", sm, memory_bandwidth, memory_bytes, power_w)


def clients(*demands: Demand, objective: str = "energy", tolerance: float = 100.0) -> list[Client]:
    return [Client(demand, Objective(objective, 1.0, 1.0, tolerance)) for demand in demands]


def test_shipped_profiles_of_the_paper() -> None:
    """The energy of Table II is power x time, and its line meets 0 % utilization at IDLE_SHARE."""
    rows = [load_profile(name).resources for name in TABLE_2.split()]
    for row in rows:
        assert row.power_w * row.duration_s == pytest.approx(row.energy_j, rel=0.02)
    line = linear_regression(
        [row.sm_utilization_percentage for row in rows], [row.power_w for row in rows]
    )
    assert round(line.intercept / 300, 2) == IDLE_SHARE
    measured = replace(A100X, measured_idle_w=40.0)
    idle_w = [card.idle_w for card in (A100X, measured, Capacity(1, 1))]
    assert idle_w == [pytest.approx(57.0), 40.0, None]


SM = "average SM utilization {} % of at most 100 %"
BANDWIDTH = "average memory-bandwidth utilization {} % of at most 100 %"
MEMORY = "maximum memory 82944 MiB of at most 81920 MiB"
LOSS = "predicted loss of {} % of at most {} %"
MOST = "49 clients of at most 48 that MPS takes"
THREE = "{} clients of at most 2 (3 if all are small) that objective throughput wants"
FOUR = "4 clients of at most 3 that objective throughput wants"
HUNDRED = (0.03, 0.03, 0.03, 2.24, 2.24, 95.43)
"""Their sum is 100.00000000000001 in binary fractions."""

WHO_MAY_SHARE = [
    ("all of the SMs", clients(*map(busy, HUNDRED)), []),
    ("a little more", clients(busy(60), busy(40.001)), [SM.format("100.001")]),
    ("all of the bandwidth", clients(busy(1, 70), busy(1, 30)), []),
    ("more of it", clients(busy(1, 70), busy(1, 30.5)), [BANDWIDTH.format("100.5")]),
    ("all of the memory", clients(busy(1, 1, 50 << 30), busy(1, 1, 30 << 30)), []),
    ("one needs more", clients(busy(0, 0, 81 << 30)), [MEMORY]),
    (
        "every bound that is exceeded is named",
        clients(busy(90, 80, 40 << 30), busy(90, 80, 41 << 30)),
        [SM.format(180), BANDWIDTH.format(160), MEMORY],
    ),
    (
        "three that are not small, where one is there for throughput",
        [*clients(busy(33.4), objective="throughput"), *clients(busy(20), busy(20))],
        [THREE.format(3)],
    ),
    ("three small ones", clients(*[busy(33.33)] * 3, objective="throughput"), []),
    ("four", clients(*[busy(10)] * 4, objective="throughput"), [FOUR]),
    ("energy and product want many", clients(*[busy(1)] * 48, objective="product"), []),
    ("as many as MPS takes", clients(*[busy(1)] * 49), [MOST]),
    # At 78 % of the SMs each is at 0.88 alone, at 0.8 beside the other: 8.7 % less.
    ("a loss that all tolerate", clients(*[busy(50)] * 2, tolerance=8.9), []),
    (
        "one that tolerates less",
        [*clients(busy(50), tolerance=20), *clients(busy(50), tolerance=8)],
        [LOSS.format("50 8.72", 8)],
    ),
]


@pytest.mark.parametrize(("sentence", "group", "reasons"), WHO_MAY_SHARE)
def test_who_may_share(sentence: str, group: list[Client], reasons: list[str]) -> None:
    """Bounds may be used to the full, and what exceeds one is refused by name and figures."""
    verdict = judge(group, A100X)
    assert (verdict.reasons, verdict.compatible) == (tuple(reasons), not reasons), sentence


def test_measured_slowdowns() -> None:
    """Among clients measured beside each other, the one that suffers most must bear it."""
    victim = Client(busy(10), slowdowns={"10": 0.3, "20": 0.25, "30": 0.1})
    calm = [Client(busy(20), slowdowns={"10": 0.05}), Client(busy(30))]
    assert judge([victim, calm[0]], A100X).compatible  # 25 % longer is 20 % slower
    suffers = "measured loss of 10 {} % of at most 20 %"
    assert judge([victim, *calm], A100X).reasons == (suffers.format(25.93),)
    assert judge([victim, victim], A100X).reasons == (suffers.format(23.08),)  # its own kind


def test_power_is_told_and_never_refused() -> None:
    """Clients that sum to more than the power limit may share; a note says so."""
    note = "predicted to draw all that its limit of 300 W allows"
    for powers, sum_w, notes in (
        ((250.0, 250.0), 500.0, (note,)),
        ((150.0, 150.0), 300.0, ()),
        ((400.0, None), None, ()),
    ):
        found = judge(clients(*(busy(30, power_w=power_w) for power_w in powers)), A100X)
        assert (found.compatible, found.sums.power_w, found.notes) == (True, sum_w, notes)


percentages = st.floats(0, 100)
demands = st.builds(
    Demand,
    st.sampled_from("abc"),
    percentages | st.floats(0, 20),
    percentages | st.floats(0, 20),
    st.integers(0, 90 << 30) | st.integers(0, 1 << 30),
    st.none() | st.floats(0, 400),
)
objectives = st.builds(
    Objective,
    st.sampled_from(("throughput", "energy", "product")),
    throughput_tolerance_percentage=percentages,
)
any_client = st.builds(
    Client, demands, objectives, st.dictionaries(st.sampled_from("abc"), st.floats(0, 0.5))
)
capacities = st.builds(
    Capacity, st.just(80 << 30), st.integers(1, 6), st.none(), st.none() | st.just(300.0)
)


@given(st.lists(any_client, min_size=2, max_size=4), capacities)
def test_order_makes_no_difference(crowd, capacity) -> None:
    """All verdicts over one set of clients are the same, but for who has which cap."""
    assume(len({repr(one.demand) for one in crowd}) == len(crowd))
    verdicts = (judge(order, capacity) for order in permutations(crowd))
    fields = {repr((one.reasons, one.notes, one.sums, one.decided_by)) for one in verdicts}
    assert len(fields) == 1


# what outweighs sums


def curved(knee: int, *demand: float) -> Demand:
    """Return a job that never pauses, and that no more SMs than its knee make faster."""
    points = tuple(CurvePoint(p, min(p, knee)) for p in range(5, 101, 5))
    return replace(busy(95, *demand), name=f"95-{knee}", curve=points)


def verdict(*demands: Demand) -> tuple[bool, str]:
    found = judge([Client(demand) for demand in demands], A100X)
    return found.compatible, found.decided_by


def test_curves_outweigh_the_sum_of_sms() -> None:
    """Two jobs that never pause share a GPU if their curves say that it pays by 10 %.

    Bandwidth that is short, and memory, count whatever curves say; so do sums of three.
    """
    linear, flat = curved(100), curved(30)
    assert verdict(linear, flat) == (True, "curves")
    assert verdict(linear, linear) == (False, "sums")
    assert verdict(replace(linear, curve=()), flat) == (False, "sums")
    assert verdict(curved(100, 60.0), curved(30, 60.0)) == (False, "sums")
    assert verdict(curved(100, 0.0, 50 << 30), curved(30, 0.0, 50 << 30)) == (False, "curves")
    assert verdict(linear, flat, busy(1)) == (False, "sums")
    pair = [Client(linear), Client(flat)]
    note = "average SM utilization 190 % of at most 100 %, but by their curves they reach {} of "
    note += "one after the other"
    assert judge(pair, A100X).notes == (note.format(1.39),)
    # Beside a resident that was capped too low they reach less.
    assert judge(pair, A100X, held=(50, None)).notes == (note.format(1.22),)
    squeezed = judge(pair[::-1], A100X, held=(60, None))  # with caps to choose it had twice that
    assert squeezed.reasons == ("predicted loss of 95-100 43.02 % of at most 20 %",)


def test_a_measured_pair_outweighs_bandwidth() -> None:
    """A pair that was measured to gain 10 % shares a GPU, whatever sums to over 100 %."""
    one, other = (replace(busy(70, 60.0), name=name) for name in "ab")
    for slowdown, where, want in (
        (0.25, "ab", (True, "measured")),
        (0.8, "ab", (False, "measured")),  # not by the sums: each is slowed down too much
        (0.9, "ab", (False, "sums")),
        (0.25, "", (False, "sums")),  # on one socket, or predicted
        (0.25, "a", (False, "sums")),  # one of them was
    ):
        known = {"slowdowns": dict.fromkeys("ab", slowdown), "on_one_gpu": tuple(where)}
        found = judge([Client(one, **known), Client(other, **known)], A100X)
        assert (found.compatible, found.decided_by) == want


# figures of two kinds


def test_time_and_share_are_never_added() -> None:
    """A share of the SMs is turned into busy time beside jobs that tell that, or refused."""
    timed = replace(busy(50), name="timed", utilization="time-active")
    shared = replace(busy(45), name="shared", utilization="share")
    known = replace(shared, busy_percentage=100.0)
    assert verdict(timed, timed) == (True, "sums")
    assert verdict(shared, shared) == (True, "sums")
    assert verdict(busy(50), shared) == (True, "sums")
    found = judge([Client(timed), Client(known)], A100X)
    assert found.reasons[0] == "average SM utilization 150 % of at most 100 %"
    found = judge([Client(timed), Client(shared)], A100X)
    assert found.reasons[0] == (
        "utilization of shared is a share of the SMs and that of others of the time: its busy time "
        "is not known"
    )
    # A share of the bandwidth that is more than the busy time is not made less.
    loud = replace(busy(20, 80.0), utilization="share", busy_percentage=30.0)
    short = replace(busy(5, 5.0), utilization="time-active")
    assert verdict(loud, busy(20, 30.0), short) == (False, "sums")


def test_residents_keep_their_pace() -> None:
    """Of 300 random pairs none is granted in which a resident is predicted to lose over 20 %.

    In a model that the prediction knows nothing of, 77 of them gain: as many as were granted when
    nothing bounded what a resident loses.
    """
    paper, rng, gains = Machine(), random.Random(42), 0
    card = Capacity(1 << 34, 48, sm_count=paper.sm_count, sms_fill_memory=0.2)
    for _ in range(300):
        pair = [rng.choice(list(BENCHMARKS.values())) for _ in range(2)]
        first, second = (
            replace(
                paper.demand(one),
                name=f"{one.name} {i}",
                sm_utilization_percentage=95.0,
                memory_bandwidth_utilization_percentage=0.7
                * paper.demand(one).memory_bandwidth_utilization_percentage,
            )
            for i, one in enumerate(pair)
        )
        first = replace(first, curve=()) if rng.random() < 0.3 else first
        second = replace(second, curve=()) if rng.random() < 0.3 else second
        cap = best_caps([first], card, Objective())[0]
        found = judge([Client(first), Client(second)], card, [cap, None])
        if found.pace is None:
            continue
        assert found.pace.speeds[0] >= 0.8 * speeds([first], card, [cap])[0]
        gains += paper.stp(pair, sms_of(found.caps, paper.sm_count)) > 1.05
    assert gains >= 77
