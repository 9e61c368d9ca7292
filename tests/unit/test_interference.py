"""Which jobs may share a GPU, by the rule and figures of mps-sharing-2024, and what it brings."""

from itertools import permutations
from statistics import linear_regression

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.leases.share import Client, Objective
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.demand import CurvePoint, Demand
from gpulaunch.records import as_list, replace
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.interference import judge, rank_group
from gpulaunch.sharing.prediction import (
    IDLE_SHARE,
    drawn_power,
    idle_power,
    pace,
    predict,
    rates,
    run_together,
)

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
    idle_w = [idle_power(A100X), idle_power(A100X, 40.0), idle_power(Capacity(1, 1))]
    assert idle_w == [pytest.approx(57.0), 40.0, None]


SM = "average SM utilization {} % of at most 100 %"
BANDWIDTH = "average memory-bandwidth utilization {} % of at most 100 %"
MEMORY = "maximum memory 82944 MiB of at most 81920 MiB"
LOSS = "predicted throughput loss of 50 20 % of at most 19 %"
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
    ("throughput may lose any", clients(*[busy(50)] * 2, objective="throughput", tolerance=0), []),
    ("energy and product want many", clients(*[busy(1)] * 48, objective="product"), []),
    ("as many as MPS takes", clients(*[busy(1)] * 49), [MOST]),
    # Each at 1 / (1 + 0.5 x 0.5) = 80 %.
    ("a loss that all tolerate", clients(*[busy(50)] * 2, tolerance=20), []),
    (
        "the smallest tolerance counts",
        [*clients(busy(50), tolerance=20), *clients(busy(50), tolerance=19)],
        [LOSS],
    ),
    # 25 loses 15.8 %, 50 loses 20 %.
    ("the largest loss counts", clients(busy(25), busy(25), busy(50), tolerance=19), [LOSS]),
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
    fits = judge([victim, calm[0]], A100X)
    # Eq. 4: the mean of 25 and 5 %.
    assert (fits.compatible, fits.sums.interference) == (True, pytest.approx(0.15))
    suffers = "measured slowdown of 10 {} % of at most 25 %"
    assert judge([victim, *calm], A100X).reasons == (suffers.format(35),)
    assert judge([victim, victim], A100X).reasons == (suffers.format(30),)  # beside its own kind
    assert judge(calm, A100X).sums.interference is None


def test_power_is_told_and_never_refused() -> None:
    """Clients that sum to more than the power limit may share; a note has the predicted draw."""
    # 57 + 2 x 193 / (1 + 0.3 x 0.3)
    note = (
        "average power sums to 500 W (predicted draw 411 W), over the limit of 300 W: clocks may "
        "be lowered"
    )
    for powers, sum_w, notes in (
        ((250.0, 250.0), 500.0, (note,)),
        ((150.0, 150.0), 300.0, ()),
        ((400.0, None), None, ()),
    ):
        found = judge(clients(*(busy(30, power_w=power_w) for power_w in powers)), A100X)
        assert (found.compatible, found.sums.power_w, found.notes) == (True, sum_w, notes)


# properties

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
crowds = st.lists(any_client, min_size=1, max_size=7)
capacities = st.builds(
    Capacity, st.just(80 << 30), st.integers(1, 6), st.none(), st.none() | st.just(300.0)
)


@given(crowds, any_client, capacities)
def test_one_more_never_helps(crowd, another, capacity) -> None:
    """A refusal has a reason, a grant has none, and one more client never turns it into a grant."""
    verdict = judge(crowd, capacity)
    assert verdict.compatible == (not verdict.reasons)
    if judge([*crowd, another], capacity).compatible:
        assert verdict.compatible


@given(st.lists(any_client, min_size=2, max_size=4), capacities)
def test_order_makes_no_difference(crowd, capacity) -> None:
    """All verdicts over one set of clients are the same to the letter."""
    verdicts = {repr(judge(order, capacity)) for order in permutations(crowd)}
    assert len(verdicts) == 1


@given(st.lists(demands, min_size=1, max_size=7))
def test_rates_are_shares(crowd) -> None:
    """A rate is in (0, 1], alone it is 1, and together all do at least as much as one alone."""
    speeds = rates(crowd)
    assert all(0 < speed <= 1 for speed in speeds)
    assert rates(crowd[:1]) == (1.0,)
    assert sum(speeds) >= 1 - 1e-9


# predictions


def test_a_run_by_hand() -> None:
    """Two halves slow each other to 0.8 until the short one ends; then the long one has it all.

    Idle power counts once, the rest of each at its rate; a lower draw than idle lowers idle.
    """
    jobs = [busy(50, power_w=157.0), busy(50, power_w=157.0)]
    ends_s, energy_j = run_together(jobs, (8.0, 16.0), A100X, idle_w=57.0)
    assert ends_s == pytest.approx((10.0, 18.0))  # 10 s at 0.8 leave 8 s
    assert energy_j == pytest.approx(10 * (57 + 160) + 8 * 157)
    below = [busy(50, power_w=30.0), busy(50, power_w=107.0)]
    assert drawn_power(below, (0.9, 0.9), 57.0) == pytest.approx(30 + 0.9 * 77)


def test_a_run_is_held_to_the_power_limit() -> None:
    """Beyond the card's limit all slow down to meet it, and nobody gets energy for nothing."""
    hot = [busy(0, power_w=250.0)] * 2
    assert as_list(pace(rates(hot), hot, A100X, 50.0)) == [(0.625, 0.625), 300.0]  # 250 W of 400
    assert run_together(hot, (10.0, 10.0), A100X, idle_w=50.0) == ((16.0, 16.0), 4800.0)
    assert predict(hot, A100X, (100, 100)).stp == pytest.approx(2 * 243 / 386)  # 57 W when idle
    foreign = [busy(0, power_w=500.0), busy(0, power_w=50.0)]
    ends_s, _ = run_together(foreign, (10.0, 10.0), A100X, idle_w=50.0)
    assert ends_s == (10.0, 10.0)  # 500 W were drawn on another card
    _, energy_j = run_together([*hot, busy(0)], (10.0, 10.0, 1.0), A100X, idle_w=50.0)
    assert energy_j is None


@given(st.lists(st.tuples(demands, st.floats(0.01, 1e6)), min_size=1, max_size=8))
def test_a_run_ends(jobs) -> None:
    """No job ends before it would alone, and all end before they would one after the other."""
    durations_s = [duration_s for _, duration_s in jobs]
    ends_s, _ = run_together([demand for demand, _ in jobs], durations_s, A100X, idle_w=50.0)
    assert all(
        end >= duration_s * (1 - 1e-6) for duration_s, end in zip(durations_s, ends_s, strict=True)
    )
    assert max(ends_s) <= sum(durations_s) * (1 + 1e-6)


CURVED = replace(
    busy(50), curve=(CurvePoint(20, 40.0), CurvePoint(50, 80.0), CurvePoint(100, 100.0))
)
FLAT = tuple(CurvePoint(p, min(p, 20)) for p in range(5, 101, 5))
HALF_OF_THE_SMS = replace(busy(40), utilization="share", busy_percentage=80.0)
BOUND = replace(busy(50, 45.0), curve=FLAT)


@pytest.mark.parametrize(
    ("sentence", "group", "caps", "want"),
    [
        ("two that never pause have half each", [busy(100)] * 2, (), [0.5] * 2),
        ("one that does nothing is no matter", [busy(100), busy(0)], (), [1, 1]),
        ("a cap at a point of the curve", [CURVED], (50,), [0.8]),
        ("between two", [CURVED], (35,), [0.6]),
        ("before the first", [CURVED], (10,), [0.2]),
        ("without a curve kernels lose what is taken", [busy(50)], (50,), [1 / (0.5 + 0.5 / 0.5)]),
        # 40 % of the SMs in 80 % of the time are half of the SMs while a kernel runs. While both
        # others run, which they do in 0.64 of the time, all take 1.5 times as long.
        ("two kernels fit beside each other", [HALF_OF_THE_SMS] * 2, (50, 50), [1, 1]),
        ("three do not", [HALF_OF_THE_SMS] * 3, (), [1 / (0.8 * (1 + 0.64 * 0.5) + 0.2)] * 3),
        # 20 % of the SMs are enough, and 45 % of the bandwidth in half of the time are 90 % while a
        # kernel runs. Both want 180 % then: 1.8 times as long, in half of the time.
        ("bandwidth runs short", [BOUND] * 2, (), [1 / (0.5 + 0.5 * 1.4)] * 2),
        ("and suffices", [replace(busy(50, 10.0), curve=FLAT)] * 2, (), [1, 1]),
    ],
)
def test_rates_by_hand(
    sentence: str, group: list[Demand], caps: tuple[int, ...], want: list[float]
) -> None:
    """Jobs slow each other while their kernels want more than there is."""
    assert rates(group, caps) == pytest.approx(want), sentence


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
    note = (
        "average SM utilization 190 % of at most 100 %, but by their curves they reach {} of one "
    )
    note += "after the other"
    assert judge(pair, A100X).notes == (note.format(1.71),)
    # Beside a resident that was capped too low they reach less.
    assert judge(pair, A100X, held=(50, None)).notes == (note.format(1.5),)


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


def test_whom_a_job_likes_best() -> None:
    """The GPU with the lowest utilization is preferred, whatever its power; product prefers gain.

    Among GPUs that are about as busy, low power goes to high, and high to low.
    """
    low, high = busy(42, power_w=90.0), busy(48, power_w=250.0)
    few, many = [busy(4, power_w=90.0)], [busy(6, power_w=90.0)] * 3
    cool, hot = busy(5, power_w=90.0), busy(5, power_w=240.0)
    for request, choices, objective, want in (
        (cool, [[high], [busy(20, power_w=90.0)], [busy(70)]], "throughput", 1),
        (busy(5), [[busy(2), busy(2)], []], "throughput", 1),
        (cool, [[low], [high]], "throughput", 1),
        (hot, [[high], [low]], "throughput", 1),
        (busy(5), [[high], [low]], "throughput", 1),  # its power unknown: the less busy
        (cool, [few, many], "throughput", 0),
        (cool, [few, many], "product", 1),
    ):
        keys = [rank_group(request, one, Objective(objective), A100X) for one in choices]
        assert keys.index(min(keys)) == want
