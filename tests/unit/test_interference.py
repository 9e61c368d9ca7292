"""Which jobs may share a GPU, by the rule and figures of mps-sharing-2024, and what it brings."""

from itertools import permutations, product
from math import isclose
from statistics import linear_regression

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.leases.share import Client, Objective
from gpulaunch.machine.catalog import load_gpu_models
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

# Table II: profile, max memory in MiB, average memory-bandwidth and SM utilization in %, average
# power in W, energy, J
TABLE_2 = [
    ("athenapk-1x", 563, 0.01, 7.54, 90.09, 234.24),
    ("athenapk-4x", 2_093, 1.78, 30.29, 88.86, 5_407.36),
    ("berkeleygw-epsilon-1x", 30_157, 2.63, 9.04, 94.41, 319_448.05),
    ("cholla-gravity-1x", 615, 0.51, 13.60, 88.43, 309.51),
    ("cholla-gravity-4x", 5_063, 4.45, 45.16, 138.75, 20_285.80),
    ("kripke-1x", 621, 0.27, 26.56, 123.30, 382.24),
    ("kripke-4x", 5_481, 3.78, 63.21, 148.16, 12_467.54),
    ("cholla-mhd-1x", 2_175, 31.01, 72.58, 234.24, 9_849.99),
    ("cholla-mhd-4x", 6_753, 41.29, 88.58, 261.64, 127_249.21),
    ("lammps-1x", 2_321, 4.24, 63.00, 196.79, 580.54),
    ("lammps-4x", 4_977, 7.13, 96.28, 258.38, 29_390.48),
    ("warpx-1x", 61_453, 0.04, 33.29, 117.14, 2_588.80),
    ("warpx-4x", 61_453, 19.75, 77.28, 244.32, 85_756.49),
]
NAMES = [row[0] for row in TABLE_2]

# Table III, as far as Table II has its sizes: number, jobs in parallel, sums of SM and
# memory-bandwidth %, of MiB
TABLE_3 = [
    (1, ("athenapk-4x", "lammps-4x"), 126.57, 8.91, 7_070),
    (4, ("kripke-4x", "warpx-4x"), 140.49, 23.53, 66_934),
    (5, ("berkeleygw-epsilon-1x", "cholla-mhd-4x"), 97.62, 43.92, 36_910),
    (7, ("cholla-mhd-4x", "lammps-4x"), 184.86, 48.42, 11_730),
    (8, ("athenapk-1x", "cholla-gravity-1x") * 2, 42.28, 1.04, 2_356),
    (9, ("athenapk-1x", "cholla-gravity-1x"), 21.14, 0.52, 1_178),
    (10, ("cholla-mhd-4x", "lammps-4x") * 2, 369.72, 96.84, 23_460),
]
INTERFERING = {1, 4, 7, 10}  # what our rule says of them; the paper prints no verdicts


def shipped(name: str) -> Demand:
    """Return the demand that a shipped profile stands for."""
    profile = load_profile(name)
    return Demand(
        name,
        profile.resources.sm_utilization_percentage or 0.0,
        profile.resources.memory_bandwidth_utilization_percentage or 0.0,
        profile.memory_bytes or 0,
        profile.resources.power_w,
    )


def busy(
    sm: float, memory_bandwidth: float = 0.0, memory_bytes: int = 0, power_w: float | None = None
) -> Demand:
    return Demand(f"{sm:g}", sm, memory_bandwidth, memory_bytes, power_w)


def clients(*demands: Demand, objective: str = "energy", tolerance: float = 100.0) -> list[Client]:
    return [Client(demand, Objective(objective, 1.0, 1.0, tolerance)) for demand in demands]


@pytest.mark.parametrize("row", TABLE_2, ids=NAMES)
def test_profiles_are_table_2(row) -> None:
    """The shipped profiles hold Table II, and its energy is power x time."""
    name, memory_mib, memory_bandwidth, sm, power_w, energy_j = row
    profile = load_profile(name)
    assert shipped(name) == Demand(name, sm, memory_bandwidth, memory_mib << 20, power_w)
    assert profile.resources.energy_j == energy_j
    assert isclose(power_w * profile.resources.duration_s, energy_j, rel_tol=0.02)


def test_the_card_of_the_paper_is_the_shipped_one() -> None:
    """48 MPS clients and 300 W are what the GPU model says as well."""
    (card,) = [model for model in load_gpu_models() if "NVIDIA A100X" in model.models]
    assert (card.mps_clients, card.power_limit_w) == (A100X.most_clients, A100X.power_limit_w)


@pytest.mark.parametrize(("number", "names", "sm", "memory_bandwidth", "memory_mib"), TABLE_3)
def test_combinations_of_table_3(number, names, sm, memory_bandwidth, memory_mib) -> None:
    """SM utilization refuses exactly 1, 4, 7 and 10 of the combinations with known sizes."""
    verdict = judge(clients(*map(shipped, names)), A100X)
    assert (verdict.sums.sm_percentage, verdict.sums.memory_bandwidth_percentage) == (
        sm,
        memory_bandwidth,
    )
    assert verdict.sums.memory_bytes == memory_mib << 20
    assert verdict.compatible == (number not in INTERFERING)
    expected = f"average SM utilization {sm:g} % of at most 100 %"
    assert verdict.reasons == ((expected,) if number in INTERFERING else ())


@pytest.mark.parametrize(("one", "other"), [*product(TABLE_2, repeat=2)])
def test_pairs_of_table_2(one, other) -> None:
    """Of all ordered pairs those may share whose three sums stay within the bounds."""
    fits = (
        one[1] + other[1] <= A100X.memory_bytes >> 20
        and one[2] + other[2] <= 100
        and one[3] + other[3] <= 100
    )
    verdict = judge([Client(shipped(one[0])), Client(shipped(other[0]))], A100X)
    assert (verdict.compatible, verdict.decided_by) == (fits, "sums")


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        (("berkeleygw-epsilon-1x", "athenapk-4x"), "athenapk-8x"),
        (("kripke-4x",), "warpx-2x"),
        (("cholla-gravity-4x",), "kripke-2x"),
    ],
    ids=(2, 3, 6),
)
def test_combinations_without_figures(known, missing) -> None:
    """Combinations 2, 3 and 6 have unpublished sizes: what is known fits, the rest is unknown."""
    assert missing not in NAMES
    assert judge(clients(*map(shipped, known)), A100X).compatible


@pytest.mark.parametrize(
    ("demands", "reason"),
    [
        ((busy(60), busy(40)), None),
        (
            tuple(map(busy, (0.03, 0.03, 0.03, 2.24, 2.24, 95.43))),
            None,
        ),  # as binary fractions 100.00000000000001
        ((busy(60), busy(40.01)), "average SM utilization 100.01 % of at most 100 %"),
        ((busy(60), busy(40.001)), "average SM utilization 100.001 % of at most 100 %"),
        ((busy(1, 70), busy(1, 30)), None),
        (
            (busy(1, 70), busy(1, 30.5)),
            "average memory-bandwidth utilization 100.5 % of at most 100 %",
        ),
        ((busy(1, 1, 50 << 30), busy(1, 1, 30 << 30)), None),
        (
            (busy(1, 1, 50 << 30), busy(1, 1, 31 << 30)),
            "maximum memory 82944 MiB of at most 81920 MiB",
        ),
        ((busy(100, 100, 80 << 30),), None),
        ((busy(0, 0, 81 << 30),), "maximum memory 82944 MiB of at most 81920 MiB"),
    ],
)
def test_each_bound_is_inclusive(demands, reason) -> None:
    """What uses a bound to the full passes; the least beyond is refused, by name and figures."""
    assert judge(clients(*demands), A100X).reasons == ((reason,) if reason else ())


def test_every_exceeded_bound_is_named() -> None:
    """A refusal gives all its reasons, not the first alone."""
    verdict = judge(clients(busy(90, 80, 50 << 30), busy(90, 80, 50 << 30)), A100X)
    assert [reason.split()[1] for reason in verdict.reasons] == ["SM", "memory-bandwidth", "memory"]


def test_a_bound_itself_is_allowed() -> None:
    """Sums of exactly 100 %, and the GPU's memory to the last byte, still fit."""
    pair = clients(busy(60, 60, 50 << 30), busy(40, 40, 30 << 30))
    assert judge(pair, A100X).reasons == ()


@pytest.mark.parametrize(
    ("utilizations", "compatible"),
    [
        ((90,), True),
        ((40, 40), True),
        ((40, 20, 20), False),
        ((33.33, 33.33, 33.33), True),
        ((33.4, 20, 20), False),
        ((10, 10, 10, 10), False),
    ],
)
def test_throughput_wants_few(utilizations, compatible) -> None:
    """Throughput: two clients, or three if each takes a third of the SM bound at most."""
    assert (
        judge(clients(*map(busy, utilizations), objective="throughput"), A100X).compatible
        == compatible
    )


def test_one_for_throughput_is_enough() -> None:
    """A client that is there for throughput is not joined by a third, whatever that one wants."""
    crowd = [*clients(busy(40), objective="throughput"), *clients(busy(20), busy(20))]
    assert judge(crowd[:2], A100X).compatible
    assert judge(crowd, A100X).reasons == (
        "3 clients of at most 2 (3 if all are small) that objective throughput wants",
    )
    assert judge(clients(busy(40), busy(20), busy(20)), A100X).compatible


@pytest.mark.parametrize("objective", ["energy", "product"])
def test_energy_and_product_want_many(objective) -> None:
    """Energy and product: as many as MPS takes."""
    assert judge(clients(*[busy(1)] * 48, objective=objective), A100X).compatible
    assert judge(clients(*[busy(1)] * 49, objective=objective), A100X).reasons == (
        "49 clients of at most 48 that MPS takes",
    )


@pytest.mark.parametrize("objective", ["energy", "product"])
def test_until_the_worst_loses_too_much(objective) -> None:
    """Energy and product: the predicted largest loss stays within the smallest tolerance."""
    pair = clients(
        busy(50), busy(50), objective=objective, tolerance=20
    )  # each at 1 / (1 + 0.5 x 0.5) = 80 %
    assert judge(pair, A100X).compatible
    (strict,) = clients(busy(50), objective=objective, tolerance=19)
    strict_reasons = ("predicted throughput loss of 50 20 % of at most 19 %",)
    assert judge([pair[0], strict], A100X).reasons == strict_reasons
    trio = clients(
        busy(25), busy(25), busy(50), objective=objective, tolerance=19
    )  # 25 loses 15.8 %, 50 loses 20 %
    assert judge(trio, A100X).reasons == strict_reasons


def test_throughput_alone_tolerates() -> None:
    """If all clients want throughput, no tolerance applies: the number of clients is the limit."""
    assert judge(clients(busy(50), busy(50), objective="throughput", tolerance=0), A100X).compatible


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


def test_power_is_told_and_never_refused() -> None:
    """Clients that sum to more than the power limit may share; a note has the predicted draw."""
    hot = judge(clients(busy(30, power_w=250.0), busy(30, power_w=250.0)), A100X)
    assert hot.compatible
    assert hot.notes == (
        (
            "average power sums to 500 W (predicted draw 411 W), over the limit of 300 W: clocks "
            "may be lowered"
        ),
    )  # 57 + 2 x 193 / (1 + 0.3 x 0.3)
    small = judge(
        clients(*map(shipped, TABLE_3[4][1])), A100X
    )  # each counts the idle GPU's part again
    assert small.notes == (
        (
            "average power sums to 357 W (predicted draw 182 W), over the limit of 300 W: clocks "
            "may be lowered"
        ),
    )
    at_limit = judge(clients(busy(30, power_w=150.0), busy(30, power_w=150.0)), A100X)
    assert (at_limit.notes, at_limit.sums.power_w) == ((), 300)
    unknown = judge(clients(busy(30, power_w=400.0), busy(30)), A100X)
    assert (unknown.sums.power_w, unknown.sums.predicted_power_w, unknown.notes) == (None, None, ())


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
    """Adding a client never turns a refusal into a grant."""
    if judge([*crowd, another], capacity).compatible:
        assert judge(crowd, capacity).compatible


@given(st.lists(any_client, min_size=2, max_size=4), capacities)
def test_order_makes_no_difference(crowd, capacity) -> None:
    """All verdicts over one set of clients are the same to the letter."""
    verdicts = {repr(judge(order, capacity)) for order in permutations(crowd)}
    assert len(verdicts) == 1


@given(crowds, capacities)
def test_a_verdict_explains_itself(crowd, capacity) -> None:
    """A refusal has a reason, and a grant has none."""
    verdict = judge(crowd, capacity)
    assert verdict.compatible == (not verdict.reasons)


@given(st.lists(demands, min_size=1, max_size=7))
def test_rates_are_shares(crowd) -> None:
    """A rate is in (0, 1], alone it is 1, and together all do at least as much as one alone."""
    speeds = rates(crowd)
    assert all(0 < speed <= 1 for speed in speeds)
    assert rates(crowd[:1]) == (1.0,)
    assert sum(speeds) >= 1 - 1e-9


# predictions


def test_idle_share_is_the_intercept_of_table_2() -> None:
    """The estimated idle power is where the line through power over SM utilization meets 0 %."""
    line = linear_regression([row[3] for row in TABLE_2], [row[4] for row in TABLE_2])
    assert round(line.intercept / 300, 2) == IDLE_SHARE
    assert idle_power(A100X) == pytest.approx(57.0)
    assert idle_power(A100X, 40.0) == 40.0
    assert idle_power(Capacity(1, 1)) is None


def test_idle_power_is_below_all_of_table_2() -> None:
    """No task of Table II draws less than the estimated idle power of its card."""
    assert all(row[4] > IDLE_SHARE * 300 for row in TABLE_2)


def test_two_that_never_pause() -> None:
    """Two jobs that keep the GPU busy have half of it each: as time slicing gives them."""
    assert rates([busy(100), busy(100)]) == (0.5, 0.5)
    assert rates([busy(100), busy(0)]) == (1.0, 1.0)


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


@pytest.mark.parametrize(
    ("cap", "rate"), [(100, 1), (50, 0.8), (35, 0.6), (20, 0.4), (10, 0.2), (75, 0.9)]
)
def test_a_cap_is_read_off_the_curve(cap, rate) -> None:
    """Alone, a job is as fast under a cap as its curve says."""
    assert rates([replace(busy(50), curve=CURVE)], (cap,)) == (pytest.approx(rate),)


def test_a_cap_without_a_curve() -> None:
    """Where nothing says that fewer SMs are enough, kernels are slower by what is taken."""
    assert rates([busy(50)], (50,)) == (1 / (0.5 + 0.5 / 0.5),)


def test_kernels_that_leave_sms_idle() -> None:
    """Where share of SMs and busy time are known, kernels that fit beside each other do not meet.

    By hand: 40 % of the SMs in 80 % of the time are half of the SMs while a kernel runs. Two such
    fit, three do not: while both others run, which they do in 0.64 of the time, all take 1.5 times
    as long.
    """
    half = replace(busy(40), utilization="share", busy_percentage=80.0)
    assert rates([half, half]) == (1.0, 1.0)
    assert rates([half, half], (50, 50)) == (1.0, 1.0)
    stretch = 0.8 * (1 + 0.64 * 0.5) + 0.2
    assert rates([half] * 3) == pytest.approx([1 / stretch] * 3)


def test_bandwidth_that_runs_short() -> None:
    """Kernels that need few SMs slow each other where they use most of the bandwidth.

    By hand: 20 % of the SMs are enough, and 45 % of the bandwidth in half of the time are 90 %
    while a kernel runs. Both want 180 % then: 1.8 times as long, in half of the time.
    """
    flat = tuple(CurvePoint(p, min(p, 20)) for p in range(5, 101, 5))
    bound = replace(busy(50), memory_bandwidth_utilization_percentage=45.0, curve=flat)
    assert rates([bound, bound]) == pytest.approx([1 / (0.5 + 0.5 * 1.4)] * 2)
    light = replace(bound, memory_bandwidth_utilization_percentage=10.0)
    assert rates([light, light]) == (1.0, 1.0)


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
