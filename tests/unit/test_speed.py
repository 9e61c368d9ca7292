"""How fast each job on a GPU is, and which caps are best: by hand, as measured, in a model."""

import random
import re
from collections.abc import Iterator, Sequence
from math import fsum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.leases.lease import Objective
from gpulaunch.profiles.catalog import load_profile, profile_names
from gpulaunch.profiles.demand import CurvePoint, Demand, saturates, tells_all
from gpulaunch.records import as_list, replace
from gpulaunch.sharing.caps import best_caps, knee_of
from gpulaunch.sharing.speed import Capacity, is_memory_bound, kernels_of, pace, speeds

THROUGHPUT = Objective()
UNCOUNTED = Capacity(memory_bytes=1 << 34, most_clients=48)
"""Without a number of SMs all is in percent."""

PAGE = Path(__file__).parents[2] / "docs/results/sharing-measured.md"


def job(name: str, points: Sequence[tuple[float, float]] = ()) -> Demand:
    curve = tuple(CurvePoint(*point) for point in points)
    return Demand(name, 100.0, 0.0, 1 << 30, curve=curve)


def busy(sm: float, bandwidth: float = 0.0, **fields: object) -> Demand:
    return replace(Demand(f"{sm:g}", sm, bandwidth, 0), **fields)


def flat_from(percentage: int) -> list[tuple[float, float]]:
    return [(p, min(p, percentage)) for p in range(5, 101, 5)]


LINEAR, FLAT, FLATTER = (job(name, flat_from(p)) for name, p in (("l", 100), ("f", 20), ("g", 10)))
UNKNOWN = job("unknown")


# ------------------------------------------------------------------------------------------- curves


@pytest.mark.parametrize(
    ("sentence", "points", "want"),
    [
        ("half of linear is still linear", [(50, 1.0), (100, 1.5)], False),
        ("less is not", [(50, 1.0), (100, 1.49)], True),
        ("falling", [(10, 1.0), (50, 3.0), (100, 2.0)], True),
        ("few points: 24 times would be linear", [(4, 1.0), (96, 10.0)], True),
        ("few points, nearly linear", [(4, 1.0), (96, 20.0)], False),
    ],
)
def test_saturation(sentence: str, points: list[tuple[float, float]], want: bool | None) -> None:
    """A curve saturates if it gains less than half of linear growth from the middle to its end."""
    assert saturates(job("", points).curve) is want, sentence


def test_what_a_curve_must_reach() -> None:
    """A point alone, and a curve that ends below 90 %, tell nothing of the whole GPU."""
    for points, want in (([(100, 1.0)], False), ([(50, 1.0), (89, 1.0)], False)):
        assert tells_all(job("", points).curve) is want
    assert tells_all(job("", [(50, 1.0), (90, 1.0)]).curve)


CARD = Capacity(1 << 34, 48, 24)


def test_who_is_asked_of_the_class() -> None:
    """A curve counts, then what somebody says, then half of the bandwidth."""
    said = replace(job("", flat_from(100)), intensity="memory")
    assert is_memory_bound(said) is False
    said = replace(said, curve=said.curve[:1])  # a point tells nothing
    assert is_memory_bound(said) is True
    for sm, bandwidth, want in ((100, 50, False), (100, 51, True), (60, 31, True), (60, 30, False)):
        assert is_memory_bound(busy(sm, bandwidth)) is want


@pytest.mark.parametrize(
    ("sentence", "points", "want"),
    [
        ("flat from 20 %: 95 % of that", flat_from(20), 19),
        ("falling: of the best, not of the last", [(10, 1.0), (40, 4.0), (100, 1.0)], 38),
        ("falling: the fewest", [(20, 3.9), (40, 4.0), (100, 1.0)], 20),
        ("a single point: an estimated line", [(50, 7.0)], 95),
    ],
)
def test_knee(sentence: str, points: list[tuple[float, float]], want: int) -> None:
    """The knee is the smallest share of the SMs within 5 % of the best throughput."""
    assert knee_of(job("", points), UNCOUNTED) == want, sentence


# ------------------------------------------------------------------------------------------- speeds

CURVED = busy(50, curve=job("", [(20, 40.0), (50, 80.0), (100, 100.0)]).curve)
HALF = busy(40, utilization="share", busy_percentage=80.0)
"""40 % of the SMs in 80 % of the time are half of the SMs while a kernel runs."""
STREAM = busy(100, 90)
FULL = replace(UNCOUNTED, sms_fill_memory=0.25)


@pytest.mark.parametrize(
    ("sentence", "group", "caps", "want"),
    [
        ("two that never pause have half each", [busy(100)] * 2, (), [0.5] * 2),
        ("two halves: 1.5 times as long in half of the time", [busy(50)] * 2, (), [0.8] * 2),
        ("one that does nothing is no matter", [busy(100), busy(0)], (), [1 / 1.001, 1 / 1.001]),
        ("a cap at a point of the curve", [CURVED], (50,), [0.8]),
        ("before the first", [CURVED], (10,), [1 / (0.5 + 0.5 / (0.25 / 2))]),
        ("a line", [busy(50)], (50,), [1 / (0.5 + 0.5 / 0.5)]),
        ("a kernel that fills half of the SMs loses nothing there", [HALF], (50,), [1]),
        # They fit beside each other, and meet in the caches in 0.8 of the time.
        ("but for caches", [HALF] * 2, (50, 50), [1 / (0.2 + 0.8 * 1.2)] * 2),
        ("a stream has all on a quarter of the SMs", [STREAM], (25,), [1]),
        ("and half on half of that", [STREAM], (12.5,), [0.5]),
        # 90 x 2 % are offered on the half, 90 x 1 on the quarter: of 100 they get 67 and 33.
        ("memory goes by what is offered", [STREAM] * 2, (50, 25), [0.667 / 0.9, 0.333 / 0.9]),
        # In 5/9 of its time it waits for memory, and the rest is on a line.
        ("some wait for memory in part", [busy(100, 51)], (50,), [1 / (0.5667 + 0.4333 * 2)]),
    ],
)
def test_speeds_by_hand(
    sentence: str, group: list[Demand], caps: tuple[int, ...], want: list[float]
) -> None:
    """Jobs slow each other while their kernels want more than there is."""
    assert speeds(group, FULL, caps) == pytest.approx(want, abs=2e-3), sentence


def test_what_was_measured_of_feeling_and_pressing_goes_first() -> None:
    """A job that feels 0.5 takes 1.15 times as long beside one that presses with 0.3."""
    a, b = busy(100, 60, feels=0.5, presses=0.1), busy(100, 60, feels=0.2, presses=0.3)
    assert speeds([a, b], UNCOUNTED, (50, 50)) == pytest.approx([0.5 / 1.15, 0.5 / 1.02])
    unknown = replace(b, presses=None)
    assert speeds([a, unknown], UNCOUNTED, (50, 50))[0] == pytest.approx(0.5 / 1.25)


def test_power_is_held_to_the_limit() -> None:
    """Beyond the card's limit all slow down to meet it, and nobody gets energy for nothing."""
    card = Capacity(80 << 30, 48, power_limit_w=300.0, measured_idle_w=50.0)
    hot = [busy(0, power_w=250.0)] * 2
    at = pace(hot, card)
    assert (at.speeds, at.power_w) == (pytest.approx([0.625] * 2, rel=2e-3), 300.0)  # 250 W of 400
    foreign = [busy(0, power_w=500.0), busy(0, power_w=50.0)]  # 500 W were drawn on another card
    assert pace(foreign, card).speeds == speeds(foreign, card)
    below = [busy(0, power_w=30.0), busy(0, power_w=107.0)]  # the idle card draws no more than 30
    assert pace(below, card).power_w == pytest.approx(30 + 77, rel=2e-3)
    assert pace([*hot, busy(0)], card).power_w is None


# -------------------------------------------------------------------------------- what was measured


def tables(columns: str) -> Iterator[list[str]]:
    """Yield the rows of the page's table that begins with these columns."""
    rows = PAGE.read_text().split(f"| {columns} ")[1].split("\n\n")[0].splitlines()[2:]
    for row in rows:
        yield [cell.strip() for cell in row.strip("|").split("|")]


def measured_jobs() -> tuple[Demand, Demand]:
    """Return the two jobs of the H100 with their curves."""
    memory, compute = (row[1:] for row in tables("% of SMs | 10"))
    shares = (10, 20, 30, 40, 50, 60, 80, 100)
    return tuple(
        replace(
            job(name, [(share, float(cell)) for share, cell in zip(shares, row, strict=True)]),
            memory_bandwidth_utilization_percentage=bandwidth,
            power_w=power_w,
        )
        for name, row, bandwidth, power_w in (
            ("memory", memory, 89.0, 400.0),
            ("compute", compute, 26.0, 702.0),
        )
    )


H100 = Capacity(80 << 30, 48, sm_count=132, power_limit_w=700.0, sms_fill_memory=0.2)
COLD = replace(H100, measured_idle_w=133.0)
CURVES = {
    "[6]": [(50, 0.95), (100, 1.0)],
    "[7]": [(10, 1 / 57.6), (20, 1 / 30.8), (80, 1 / 14.3), (90, 1 / 14.1), (100, 1 / 14.1)],
}
CARDS = {
    "[5]": replace(H100, power_limit_w=300.0),
    "[6]": Capacity(1, 48, power_limit_w=300.0, measured_idle_w=53.0),
}


def published() -> Iterator[tuple[float, float, float]]:
    """Yield system throughput as measured, as predicted, and as the page says of the prediction."""
    where = ""
    for name, counts, time, sms, bandwidth, power_w, caps, measured, said in tables("jobs, GPU"):
        where = next(iter(re.findall(r"\[\d\]", name)), where)
        one = busy(
            float(sms or time),
            float(bandwidth or 0),
            power_w=float(power_w) if power_w else None,
            curve=job("", CURVES.get(where, [])).curve,
            utilization="share" if sms else "time-active",
            busy_percentage=float(time) if sms else None,
        )
        card = CARDS.get(where, H100)
        own = tuple(map(float, caps.split(" + "))) if caps else ()
        columns = (text.split(", ") for text in (counts, measured, said))
        for count, want, shown in zip(*columns, strict=True):
            at = pace([one] * int(count), card, own)
            yield float(want), at.stp, float(shown)


def test_published_figures() -> None:
    """System throughput as published is predicted within 12 % in the mean, and as the page says.

    Where curve and power are known, it is 6 %.
    """
    known = list(published())
    pair = measured_jobs()
    capped = [
        (sum(want), pace(pair, COLD, caps).stp)
        for caps, want in (((50, 50), (0.858, 0.251)), ((20, 80), (0.744, 0.605)))
    ]
    free = [(0.171 + 0.909, pace(pair, COLD).stp)]
    assert [said for *_, said in known] == [round(got, 2) for _, got, _ in known]
    errors = [abs(got / want - 1) for want, got in [*(row[:2] for row in known), *capped, *free]]
    assert fsum(errors) / len(errors) < 0.12
    best = [abs(got / want - 1) for want, got in [*(row[:2] for row in known[14:18]), *capped]]
    assert fsum(best) / len(best) < 0.06
    mean, of_best = (round(100 * fsum(some) / len(some), 1) for some in (errors, best))
    assert f"is {mean} %, and {of_best} % where" in " ".join(PAGE.read_text().split())


def test_speeds_as_measured() -> None:
    """With caps each job's speed is predicted within 25 %, and the sum of an H100's within 10."""
    rows = list(tables("caps | memory: measured, predicted"))
    for row in rows:
        caps = tuple(map(float, row[0].split(" + ")))
        got = pace(measured_jobs(), COLD, caps).speeds
        want, said = zip(*(map(float, cell.split()) for cell in row[1:]), strict=True)
        assert [round(speed, 3) for speed in got] == list(said)
        assert all(abs(one / other - 1) < 0.25 for one, other in zip(got, want, strict=True))
        assert abs(fsum(got) / fsum(want) - 1) < 0.1
    dense = replace(busy(99), curve=job("", CURVES["[7]"]).curve)
    for caps, times_ms in (((10, 90), (85.1, 15.1)), ((20, 80), (46.5, 16.3))):
        got = speeds([dense] * 2, UNCOUNTED, caps)
        want = [14.1 / time_ms for time_ms in times_ms]
        assert all(abs(one / other - 1) < 0.25 for one, other in zip(got, want, strict=True))
    assert best_caps(measured_jobs(), H100, THROUGHPUT) == (23, 78)


# --------------------------------------------------------------------------------------------- caps


@pytest.mark.parametrize(
    ("sentence", "jobs", "held", "want"),
    [
        ("one that saturates gets its knee", [FLAT], (), (19,)),
        ("one that does not leaves some for others", [LINEAR], (), (80,)),
        ("mixed, in either order", [LINEAR, FLAT], (), (80, 20)),
        ("memory-intensive: no more than they can use", [FLAT, FLATTER], (), (20, 10)),
        ("compute-intensive", [LINEAR, LINEAR], (), (50, 50)),
        ("nothing is known of them", [UNKNOWN, UNKNOWN], (), (50, 50)),
        ("unknown counts as using all SMs", [UNKNOWN, FLAT], (), (80, 20)),
        ("what is left", [LINEAR, LINEAR], (70, None), (70, 30)),
        ("light ones may overlap", [busy(40), busy(40)], (), (79, 79)),
    ],
)
def test_caps(
    sentence: str, jobs: list[Demand], held: tuple[int | None, ...], want: tuple[int, ...]
) -> None:
    """A group is divided by its curves, measured or estimated; what residents have is given."""
    assert best_caps(jobs, UNCOUNTED, THROUGHPUT, held) == want, sentence


def test_busy_jobs_are_never_left_to_themselves() -> None:
    """Caps of jobs that are busy for more than half of the time sum to 100 at most."""
    for some in ([51, 60], [90, 95, 30], [100, 100, 100], [55, 20, 10, 70]):
        jobs = [busy(one) for one in some]
        caps = best_caps(jobs, UNCOUNTED, THROUGHPUT)
        assert sum(cap for cap, one in zip(caps, some, strict=True) if one > 50) <= 100
        assert max(caps) <= 80


def test_estimated_curves() -> None:
    """A job that streams gets the SMs that fill the memory, another one the rest."""
    stream, compute = busy(95, 90), busy(95, 5)
    assert best_caps([stream, compute], FULL, THROUGHPUT) == (25, 75)
    assert best_caps([stream], FULL, THROUGHPUT) == (24,)
    assert [kernels_of(one, UNCOUNTED).curve for one in (stream, compute)] == [
        (CurvePoint(100.0, 1.0),)
    ] * 2  # a GPU of which nothing is known


# --------------------------------------------------------------------------------------- properties


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    """Draw demands with any curve, of few points or none, and sometimes power."""
    shares = sorted(draw(st.sets(st.integers(1, 100), max_size=8)))
    throughputs = draw(st.lists(st.integers(1, 1000), min_size=len(shares), max_size=len(shares)))
    one = job(
        draw(st.sampled_from("abc")),
        list(zip(map(float, shares), map(float, throughputs), strict=True)),
    )
    return replace(
        one,
        sm_utilization_percentage=draw(st.floats(0, 100)),
        memory_bandwidth_utilization_percentage=draw(st.floats(0, 100)),
        power_w=draw(st.none() | st.floats(10, 400)),
    )


GROUPS = st.lists(demands(), min_size=1, max_size=4)
CAPACITIES = st.sampled_from([UNCOUNTED, CARD, FULL, H100])
OBJECTIVES = st.sampled_from([Objective(name) for name in ("throughput", "energy", "product")])


@given(GROUPS, CAPACITIES, OBJECTIVES, st.data())
def test_a_group(
    group: list[Demand], gpu: Capacity, objective: Objective, data: st.DataObject
) -> None:
    """Caps are whole, 1 to 100, whatever the unit of curves; the order does not matter.

    What residents have stays. All speeds are above 0.
    """
    held = [data.draw(st.none() | st.integers(1, 100)) for _ in group]
    caps = best_caps(group, gpu, objective, held)
    assert all(type(cap) is int and 1 <= cap <= 100 for cap in caps)
    assert all(own in (None, cap) for own, cap in zip(held, caps, strict=True))
    assert min(pace(group, gpu, caps).speeds) > 0
    scaled = [
        replace(one, curve=tuple(CurvePoint(p, t * 1024) for p, t in map(as_list, one.curve)))
        for one in group
    ]
    assert best_caps(scaled, gpu, objective, held) == caps
    turned = best_caps(group[::-1], gpu, objective, held[::-1])
    # Sorted: jobs that are equal in everything may have each other's shares.
    got = zip(map(repr, group[::-1]), turned, strict=True)
    assert sorted(got) == sorted(zip(map(repr, group), caps, strict=True))


@pytest.mark.parametrize("name", ["throughput", "energy", "product"])
def test_knowing_more_never_hurts(name: str) -> None:
    """Caps chosen with curves are no worse, by what these say, than caps chosen without."""
    rng = random.Random(1)
    for _ in range(100):
        known = []
        for knee in (rng.uniform(10, 40), rng.uniform(50, 140)):
            points = [(p, min(1.0, p / knee)) for p in (10, 20, 30, 50, 70, 100)]
            bandwidth = rng.uniform(50, 90) if knee < 45 else rng.uniform(3, 40)
            power_w = None if name == "throughput" else rng.uniform(150, 400)
            used = rng.uniform(55, 100)
            known.append(busy(used, bandwidth, curve=job("", points).curve, power_w=power_w))
        blind = [replace(one, curve=()) for one in known]
        objective = Objective(name)
        got, other = (
            pace(known, H100, best_caps(some, H100, objective)).worth(objective)
            for some in (known, blind)
        )
        assert got >= 0.99 * other  # caps are whole percent, and SMs whole


@given(st.lists(st.floats(0, 100), min_size=1, max_size=7))
def test_speeds_are_shares(utilizations: list[float]) -> None:
    """A speed is in (0, 1], alone it is 1, and together all do at least as much as one alone."""
    crowd = [busy(one) for one in utilizations]
    found = speeds(crowd, UNCOUNTED)
    assert all(0 < speed <= 1 for speed in found)
    assert speeds(crowd[:1], UNCOUNTED) == (1.0,)
    assert fsum(found) >= 1 - 1e-9


def test_shipped_profiles_leave_sms_to_others() -> None:
    """Each shipped profile that can share gets a cap that differs from 100 %."""
    demands = [demand for name in profile_names() if (demand := load_profile(name).demand)]
    assert len(demands) > 10
    assert all(best_caps([demand], H100, THROUGHPUT)[0] <= 80 for demand in demands)
