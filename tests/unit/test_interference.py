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
from gpulaunch.sharing.interference import MOST_SLOWDOWN_PERCENTAGE, judge, rank_group
from gpulaunch.sharing.prediction import (
    IDLE_SHARE,
    Gain,
    drawn_power,
    idle_power,
    normalized_turnaround,
    pace,
    predict,
    rates,
    run_together,
    steady_gain,
    system_throughput,
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


HALVES = (busy(50), busy(50))
SM = "average SM utilization {} % of at most 100 %"
BANDWIDTH = "average memory-bandwidth utilization {} % of at most 100 %"
MEMORY = "maximum memory 82944 MiB of at most 81920 MiB"
LOSS = "predicted throughput loss of 50 20 % of at most 19 %"
MOST = "49 clients of at most 48 that MPS takes"
MANY = "{} clients of at most 2 (3 if all are small) that objective throughput wants"


@pytest.mark.parametrize(
    ("sentence", "group", "reasons"),
    [
        ("all of the SMs", clients(busy(60), busy(40)), []),
        (
            "as binary fractions 100.00000000000001",
            clients(*map(busy, (0.03, 0.03, 0.03, 2.24, 2.24, 95.43))),
            [],
        ),
        ("a little more", clients(busy(60), busy(40.001)), [SM.format("100.001")]),
        ("all of the bandwidth", clients(busy(1, 70), busy(1, 30)), []),
        ("more of it", clients(busy(1, 70), busy(1, 30.5)), [BANDWIDTH.format("100.5")]),
        ("all of the memory", clients(busy(1, 1, 50 << 30), busy(1, 1, 30 << 30)), []),
        ("more of it", clients(busy(1, 1, 50 << 30), busy(1, 1, 31 << 30)), [MEMORY]),
        ("one has all", clients(busy(100, 100, 80 << 30)), []),
        ("one needs more", clients(busy(0, 0, 81 << 30)), [MEMORY]),
        (
            "every bound that is exceeded is named",
            clients(busy(90, 80, 40 << 30), busy(90, 80, 41 << 30)),
            [SM.format(180), BANDWIDTH.format(160), MEMORY],
        ),
        ("two for throughput", clients(busy(40), busy(40), objective="throughput"), []),
        (
            "three that are not small",
            clients(busy(33.4), busy(20), busy(20), objective="throughput"),
            [MANY.format(3)],
        ),
        ("three small ones", clients(*[busy(33.33)] * 3, objective="throughput"), []),
        (
            "four",
            clients(*[busy(10)] * 4, objective="throughput"),
            ["4 clients of at most 3 that objective throughput wants"],
        ),
        (
            "one that is there for throughput is enough",
            [*clients(busy(40), objective="throughput"), *clients(busy(20), busy(20))],
            [MANY.format(3)],
        ),
        (
            "throughput tolerates any loss",
            clients(*HALVES, objective="throughput", tolerance=0),
            [],
        ),
        ("energy wants many", clients(*[busy(1)] * 48), []),
        ("as many as MPS takes", clients(*[busy(1)] * 49), [MOST]),
        ("so does product", clients(*[busy(1)] * 48, objective="product"), []),
        # Each at 1 / (1 + 0.5 x 0.5) = 80 %.
        ("a loss that all tolerate", clients(*HALVES, tolerance=20), []),
        (
            "the smallest tolerance counts",
            [*clients(busy(50), tolerance=20), *clients(busy(50), tolerance=19)],
            [LOSS],
        ),
        # 25 loses 15.8 %, 50 loses 20 %.
        ("the largest loss counts", clients(busy(25), busy(25), busy(50), tolerance=19), [LOSS]),
        ("also for product", clients(*HALVES, objective="product", tolerance=19), [LOSS]),
    ],
)  # fmt: skip
def test_who_may_share(sentence: str, group: list[Client], reasons: list[str]) -> None:
    """Bounds may be used to the full, and what exceeds one is refused by name and figures."""
    verdict = judge(group, A100X)
    assert (verdict.reasons, verdict.compatible) == (tuple(reasons), not reasons), sentence


def test_the_default_tolerance_leaves_it_to_the_sums() -> None:
    """At 100 % SM utilization nobody is predicted to lose more than the default tolerance."""
    tolerance = Objective().throughput_tolerance_percentage
    losses = [100 * (1 - min(rates([busy(sm), busy(100 - sm)]))) for sm in range(101)]
    assert round(max(losses), 9) == tolerance
    assert 1 / (1 - tolerance / 100) - 1 == MOST_SLOWDOWN_PERCENTAGE / 100


def test_measured_slowdowns() -> None:
    """Among clients measured beside each other, the one that suffers most must bear it."""
    victim = Client(busy(10), slowdowns={"20": 0.25, "30": 0.1})
    calm = [Client(busy(20), slowdowns={"10": 0.05}), Client(busy(30))]
    fits = judge([victim, calm[0]], A100X)
    assert (fits.compatible, fits.sums.interference) == (
        True,
        pytest.approx(0.15),
    )  # Eq. 4: the mean of 25 and 5 %
    assert judge([victim, *calm], A100X).reasons == (
        "measured slowdown of 10 35 % of at most 25 %",
    )
    assert judge(calm, A100X).sums.interference is None


def test_copies_of_one_job_slow_each_other() -> None:
    """A slowdown beside its own kind counts between two copies, and not for one alone."""
    copy = Client(busy(10), slowdowns={"10": 0.3})
    assert judge([copy], A100X).compatible
    assert judge([copy, copy], A100X).reasons == ("measured slowdown of 10 30 % of at most 25 %",)


@pytest.mark.parametrize(
    ("group", "want"),
    [
        # 57 + 2 x 193 / (1 + 0.3 x 0.3)
        ((busy(30, power_w=250.0),) * 2, (500.0, 411)),
        ((busy(30, power_w=150.0),) * 2, (300.0, None)),
        ((busy(30, power_w=400.0), busy(30)), (None, None)),
    ],
)
def test_power_is_told_and_never_refused(
    group: tuple[Demand, ...], want: tuple[float | None, int | None]
) -> None:
    """Clients that sum to more than the power limit may share; a note has the predicted draw."""
    sum_w, drawn_w = want
    found = judge(clients(*group), A100X)
    note = (
        f"average power sums to {sum_w:g} W (predicted draw {drawn_w} W), over the limit of 300 W: "
        "clocks may be lowered"
        if drawn_w
        else None
    )
    assert (found.compatible, found.sums.power_w) == (True, sum_w)
    assert found.notes == ((note,) if note else ())


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


def test_power_together() -> None:
    """Idle power counts once, the rest of each at its rate; a lower draw than idle lowers idle."""
    pair = [busy(50, power_w=157.0), busy(50, power_w=107.0)]
    assert drawn_power(pair, (0.8, 0.8), 57.0) == pytest.approx(57 + 0.8 * (100 + 50))
    assert drawn_power([busy(50, power_w=30.0), pair[1]], (0.9, 0.9), 57.0) == pytest.approx(
        30 + 0.9 * 77
    )
    assert drawn_power([busy(50)], (1.0,), 57.0) is None


def test_a_run_by_hand() -> None:
    """Two halves slow each other to 0.8 until the short one ends; then the long one has it all."""
    jobs = [busy(50, power_w=157.0), busy(50, power_w=157.0)]
    ends_s, energy_j = run_together(jobs, (8.0, 16.0), A100X, idle_w=57.0)
    assert ends_s == pytest.approx((10.0, 18.0))  # 10 s at 0.8 leave 8 s
    assert energy_j == pytest.approx(10 * (57 + 160) + 8 * 157)
    assert system_throughput((8, 16), ends_s) == pytest.approx(0.8 + 16 / 18)
    assert normalized_turnaround((8, 16), ends_s) == pytest.approx((1.25 + 18 / 16) / 2)


def test_a_run_is_held_to_the_power_limit() -> None:
    """Beyond the card's limit all slow down to meet it, and nobody gets energy for nothing."""
    hot = [busy(0, power_w=250.0)] * 2
    held = pace(rates(hot), hot, A100X, 50.0)
    assert as_list(held) == [(0.625, 0.625), 300.0]  # 250 W of 400
    assert run_together(hot, (10.0, 10.0), A100X, idle_w=50.0) == ((16.0, 16.0), 4800.0)
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


CURVE = (CurvePoint(20, 40.0), CurvePoint(50, 80.0), CurvePoint(100, 100.0))


FLAT = tuple(CurvePoint(p, min(p, 20)) for p in range(5, 101, 5))
HALF_OF_THE_SMS = replace(busy(40), utilization="share", busy_percentage=80.0)
BOUND = replace(busy(50), memory_bandwidth_utilization_percentage=45.0, curve=FLAT)


@pytest.mark.parametrize(
    ("sentence", "group", "caps", "want"),
    [
        ("two that never pause have half each", [busy(100)] * 2, (), [0.5] * 2),
        ("one that does nothing is no matter", [busy(100), busy(0)], (), [1, 1]),
        ("a cap at a point of the curve", [replace(busy(50), curve=CURVE)], (50,), [0.8]),
        ("between two", [replace(busy(50), curve=CURVE)], (35,), [0.6]),
        ("before the first", [replace(busy(50), curve=CURVE)], (10,), [0.2]),
        ("all", [replace(busy(50), curve=CURVE)], (100,), [1]),
        ("without a curve kernels lose what is taken", [busy(50)], (50,), [1 / (0.5 + 0.5 / 0.5)]),
        # 40 % of the SMs in 80 % of the time are half of the SMs while a kernel runs. While both
        # others run, which they do in 0.64 of the time, all take 1.5 times as long.
        ("two kernels fit beside each other", [HALF_OF_THE_SMS] * 2, (), [1, 1]),
        ("also with caps that are enough", [HALF_OF_THE_SMS] * 2, (50, 50), [1, 1]),
        ("three do not", [HALF_OF_THE_SMS] * 3, (), [1 / (0.8 * (1 + 0.64 * 0.5) + 0.2)] * 3),
        # 20 % of the SMs are enough, and 45 % of the bandwidth in half of the time are 90 % while a
        # kernel runs. Both want 180 % then: 1.8 times as long, in half of the time.
        ("bandwidth runs short", [BOUND] * 2, (), [1 / (0.5 + 0.5 * 1.4)] * 2),
        (
            "and suffices",
            [replace(BOUND, memory_bandwidth_utilization_percentage=10.0)] * 2,
            (),
            [1, 1],
        ),
    ],
)
def test_rates_by_hand(
    sentence: str, group: list[Demand], caps: tuple[int, ...], want: list[float]
) -> None:
    """Jobs slow each other while their kernels want more than there is."""
    assert rates(group, caps) == pytest.approx(want), sentence


def test_prediction_of_a_group() -> None:
    """STP is the sum of speeds, ANTT the mean of slowdowns, at caps and within the power limit."""
    pair = [replace(busy(50), curve=CURVE), busy(50)]
    found = predict(pair, A100X, (35, 65))
    capped = 1 / (0.5 + 0.5 / 0.65)
    assert found.speeds == pytest.approx((0.6, capped))
    assert (found.stp, found.antt) == pytest.approx((0.6 + capped, (1 / 0.6 + 1 / capped) / 2))
    hot = [busy(50, power_w=300.0), busy(50, power_w=300.0)]
    speeds = pace(rates(hot), hot, A100X, idle_power(A100X)).speeds
    assert sum(speeds) < 1.6
    assert predict(hot, A100X, (100, 100)).stp == pytest.approx(sum(speeds))


def test_gain() -> None:
    """Throughput and energy efficiency of a steady mix, and their product by weights."""
    pair = [busy(50, power_w=157.0), busy(50, power_w=157.0)]
    gain = steady_gain(pair, A100X)
    assert as_list(gain) == pytest.approx([1.6, 0.8 * 2 * 157 / (57 + 160)])
    assert gain.product(2, 1) == pytest.approx(gain.throughput**2 * gain.energy_efficiency)
    assert steady_gain([busy(50)], A100X) == Gain(1.0, None)
    assert Gain(1.6, None).product(1, 1) is None


# what outweighs sums


def curved(sm: float, knee: int, **options) -> Demand:
    """Return a job that no more SMs than its knee make faster."""
    points = tuple(CurvePoint(p, min(p, knee)) for p in range(5, 101, 5))
    return replace(busy(sm, **options), name=f"{sm}-{knee}", curve=points)


def verdict(*demands: Demand, **options) -> tuple[bool, str]:
    found = judge([Client(demand) for demand in demands], A100X, **options)
    return found.compatible, found.decided_by


def test_curves_outweigh_the_sum_of_sms() -> None:
    """Two jobs that never pause share a GPU if their curves say that it pays by 10 %."""
    linear, flat = curved(95, 100), curved(95, 30)
    assert verdict(linear, flat) == (True, "curves")
    assert verdict(linear, linear) == (False, "sums")
    assert verdict(replace(linear, curve=()), flat) == (False, "sums")
    (note,) = judge([Client(linear), Client(flat)], A100X).notes
    assert note == (
        "average SM utilization 190 % of at most 100 %, but by their curves they reach 1.71 of one "
        "after the other"
    )


def test_caps_that_are_held_count() -> None:
    """Beside a resident that was capped too low a curve promises less than before it came."""
    linear, flat = curved(95, 100), curved(95, 30)
    free = judge([Client(linear), Client(flat)], A100X)
    held = judge([Client(linear), Client(flat)], A100X, held=(50, None))
    assert "reach 1.71 " in free.notes[0]
    assert "reach 1.5 " in held.notes[0]


def test_curves_outweigh_neither_bandwidth_nor_memory() -> None:
    """Bandwidth that is short, and memory, count whatever curves say; so do sums of three."""
    linear, flat = curved(95, 100), curved(95, 30)
    loud = [replace(one, memory_bandwidth_utilization_percentage=60.0) for one in (linear, flat)]
    large = [replace(one, memory_bytes=50 << 30) for one in (linear, flat)]
    assert verdict(*loud) == (False, "sums")
    assert verdict(*large) == (False, "curves")
    assert verdict(linear, flat, busy(1)) == (False, "sums")


def test_a_measured_pair_outweighs_bandwidth() -> None:
    """A pair that was measured to gain 10 % shares a GPU, whatever sums to over 100 %."""
    one, other = (
        replace(busy(70), name=name, memory_bandwidth_utilization_percentage=60.0) for name in "ab"
    )

    def judged(slowdown: float, *, on_one_gpu: bool = True) -> tuple[bool, str]:
        clients = [
            Client(
                own,
                slowdowns={beside.name: slowdown},
                on_one_gpu=(beside.name,) if on_one_gpu else (),
            )
            for own, beside in ((one, other), (other, one))
        ]
        found = judge(clients, A100X)
        return found.compatible, found.decided_by

    assert judged(0.25) == (True, "measured")
    assert judged(0.8) == (False, "measured")  # not by the sums: each is slowed down too much
    assert judged(0.9) == (False, "sums")
    assert judged(0.25, on_one_gpu=False) == (False, "sums")  # on one socket, or predicted


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


def test_bandwidth_beyond_busy_time_stays() -> None:
    """A share of the bandwidth that is more than the busy time is not made less."""
    loud = replace(busy(20, 80.0), name="loud", utilization="share", busy_percentage=30.0)
    timed = replace(busy(5, 5.0), name="timed", utilization="time-active")
    assert judge([Client(loud), Client(busy(20, 30.0)), Client(timed)], A100X).compatible is False


# rank_group


def best(request: Demand, choices: list[list[Demand]], objective: str = "throughput") -> int:
    """Return the index of the residents that a job likes best."""
    keys = [rank_group(request, residents, Objective(objective), A100X) for residents in choices]
    return keys.index(min(keys))


def test_lowest_utilization_first() -> None:
    """The GPU with the lowest utilization is preferred, whatever its power."""
    assert (
        best(
            busy(5, power_w=90.0), [[busy(50, power_w=290.0)], [busy(20, power_w=90.0)], [busy(70)]]
        )
        == 1
    )
    assert best(busy(5), [[busy(2), busy(2)], []]) == 1


def test_opposing_power_is_paired() -> None:
    """Among GPUs that are about as busy, low power goes to high, and high to low."""
    low, high = busy(42, power_w=90.0), busy(48, power_w=250.0)
    assert best(busy(5, power_w=100.0), [[low], [high]]) == 1
    assert best(busy(5, power_w=240.0), [[high], [low]]) == 1
    assert best(busy(5), [[high], [low]]) == 1  # its power unknown: the less busy


def test_product_prefers_the_largest_product() -> None:
    """For product the GPU is preferred where all are predicted to reach the largest product."""
    request, few, many = busy(5, power_w=90.0), [busy(4, power_w=90.0)], [busy(6, power_w=90.0)] * 3
    assert best(request, [few, many]) == 0
    assert best(request, [few, many], "product") == 1
