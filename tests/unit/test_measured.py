"""Readings -> figures -> what a profile knows after one run and after many, without any process."""

from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import cases

from gpulaunch.lab.measure.run import GpuRun, Reading, Run, Usage, is_reservation
from gpulaunch.lab.measure.update_profile import percentile_95, resources_of, updated

GIB = 1 << 30
DATE = "2026-11-21T20:00:00Z"


def run(
    sm: float = 50.0,
    memory_mib: int = 4000,
    *,
    gpus: int = 1,
    status: int = 0,
    model: str = "V100",
    seconds: float = 10,
) -> Run:
    """Make a run of a job that uses its GPUs evenly."""
    usage = Usage(Reading(0.0, memory_bytes=0, energy_j=0.0))
    for second in range(1, 11):
        usage.add(
            Reading(
                second * seconds / 10,
                time_active_percentage=sm,
                memory_active_percentage=sm / 2,
                memory_bytes=memory_mib << 20 or None,
                energy_j=200.0 * second * seconds / 10,
            )
        )
    figures = usage.figures()
    cards = tuple(GpuRun(gpu, f"GPU-{gpu}", model, 16 * GIB, figures) for gpu in range(gpus))
    return Run(("job",), status, seconds, cards, DATE)


# ------------------------------------------------------------------------------ readings -> figures


def test_a_counter_that_steps_back_does_not_count() -> None:
    """Energy is that of the counter, and of the power where a driver has begun to count anew."""
    for last_j, want in ((5200.0, (50, 200)), (20.0, (70, 280))):
        usage = Usage(Reading(0.0, energy_j=5000.0))
        usage.add(Reading(1.0, power_w=40.0))
        usage.add(Reading(4.0, power_w=80.0, energy_j=last_j))
        figures = usage.figures()
        assert (figures["power_w"], figures["energy_j"]) == want


def test_memory_that_was_in_use_before_is_not_the_jobs() -> None:
    """What is in use when the job begins is left out."""
    usage = Usage(Reading(0.0, memory_bytes=GIB))
    usage.add(Reading(1.0, memory_bytes=3 * GIB))
    assert usage.figures()["memory_bytes"] == 2 * GIB


READING = st.tuples(st.floats(0.01, 5), st.floats(0, 100), st.integers(0, 80 * GIB))


@given(st.lists(READING, min_size=1, max_size=40))
def test_averages_are_those_of_all_readings(readings: list[tuple[float, float, int]]) -> None:
    """Averages are integrals over the time; steady memory is 0 to 100 %."""
    usage, at_s = Usage(Reading(0.0, memory_bytes=0)), 0.0
    for lasting_s, level, memory in readings:
        at_s += lasting_s
        usage.add(Reading(at_s, sm_percentage=level, memory_bytes=memory))
    figures = usage.figures()
    want = sum(lasting_s * level for lasting_s, level, _ in readings) / at_s
    assert figures["sm_percentage"] == pytest.approx(want, abs=1e-6)
    assert figures["memory_bytes"] == max(memory for _, _, memory in readings)
    assert 0 <= figures.get("memory_steady_percentage", 0) <= 100.0000001


LEVELS = {
    "after a context of 400 MiB three quarters": ((0.025, *(0.75,) * 9), True),
    "nine tenths": ((0.9,) * 10, True),
    "half of the card, whoever needs that": ((0.5,) * 10, False),
    "grown in steps up to three quarters": ((0.2, 0.4, 0.6, *(0.75,) * 7), False),
    "there for a moment only": ((0.3, 0.9, *(0.3,) * 8), False),
    "nothing": ((0.0,) * 10, False),
}


@cases(LEVELS, "levels", "want")
def test_what_a_framework_sets_aside(levels: tuple[float, ...], want: bool) -> None:
    """Memory that stands still at a share that frameworks take is a reservation, no other is."""
    usage = Usage(Reading(0.0, memory_bytes=0))
    for second, level in enumerate(levels, 1):
        usage.add(Reading(float(second), memory_bytes=int(level * 16 * GIB)))
    card = GpuRun(0, "GPU-0", "V100", 16 * GIB, usage.figures())
    assert is_reservation(Run(("job",), 0, 10.0, (card,), DATE)) is want


# ---------------------------------------------------------------------------- one run after another


def learned(*runs: Run) -> dict:
    """Return what a profile knows after these runs, one after the other."""
    known: dict = {}
    for one in runs:
        known, _ = updated(known, one, "here")
    return known


@given(st.lists(st.floats(45, 55), min_size=2, max_size=12))
def test_means_and_deviations_are_those_of_all_runs(levels: list[float]) -> None:
    """Run by run, mean, standard deviation and most memory are as if all runs had been kept."""
    known = learned(*(run(level, 3500 + int(10 * level)) for level in levels))
    assert known["runs"]["count"] == len(levels)
    assert known["resources"]["memory_mib"] == 3500 + int(10 * max(levels))
    assert known["resources"]["sm_utilization_percentage"] == pytest.approx(mean(levels), rel=1e-3)
    spread = known["runs"]["spread"]
    approximately = pytest.approx(stdev(levels), rel=2e-2, abs=2e-2)
    assert spread["sm_utilization_percentage"] == approximately
    assert "memory_mib" not in spread  # that is the most of all runs


def test_what_a_run_does_not_tell_stays() -> None:
    """Figures from elsewhere stay where a run does not tell them, and so does their source."""
    known = {"resources": {"memory_mib": 4000, "sm_occupancy_percentage": 3.0, "source": "paper X"}}
    after = updated(known, run(), "gpulaunch --record")[0]["resources"]
    assert (after["sm_occupancy_percentage"], after["memory_mib"]) == (3.0, 4000)
    assert after["source"] == "paper X; gpulaunch --record"


MISFITS = {
    "busier": (run(sm=61), "average SM utilization 61 % instead of 50 %"),
    "more memory": (run(memory_mib=5000), "maximum memory 5000 MiB instead of 4000 MiB"),
    "no memory at all": (run(memory_mib=0), "maximum memory 0 MiB instead of 4000 MiB"),
    "another GPU": (run(model="A100"), "measured on A100 instead of V100"),
    "more GPUs": (run(gpus=2), "on 2 GPUs instead of 1"),
}


@cases(MISFITS, "other", "want")
def test_misfits(other: Run, want: str) -> None:
    """A run that is another job's is told as such, and changes nothing but the count of misfits."""
    before = learned(run(), run())
    after, misfits = updated(before, other, "here")
    assert misfits == [f"does not fit this run: {want}"]
    assert after["resources"] == before["resources"]
    assert after["runs"] == {**before["runs"], "misfits": 1}
    after, misfits = updated(after, run(), "here")
    assert (misfits, after["runs"].get("misfits")) == ([], None)


def test_two_runs_make_no_spread() -> None:
    """How much runs differ counts from the third run on: two alone may differ by chance."""
    two = learned(run(sm=45), run(sm=55))
    want = ["does not fit this run: average SM utilization 62 % instead of 50 %"]
    assert updated(two, run(sm=62), "here")[1] == want
    three, _ = updated(two, run(sm=50), "here")
    assert updated(three, run(sm=62), "here")[1] == []


def test_runs_that_differ_may_differ() -> None:
    """What is far from the mean still fits if runs have differed so much before."""
    before = learned(run(sm=45), run(sm=55), run(sm=46), run(sm=54))
    assert updated(before, run(sm=62), "here")[1] == []
    assert len(updated(before, run(sm=75), "here")[1]) == 2  # SMs and memory bandwidth


def test_a_complete_run_replaces_an_incomplete_one() -> None:
    """Figures of a run that failed are not mixed with those of one that did not."""
    before = resources_of([run(sm=10, status=1)], "here")
    assert before["resources"]["incomplete"] is True
    after, _ = updated(before, run(sm=50), "here")
    assert (after["runs"]["count"], after["resources"]["sm_utilization_percentage"]) == (1, 50)
    assert "incomplete" not in after["resources"]


def test_the_95th_percentile_of_five() -> None:
    """The 95th percentile of five values is four fifths of the way from the fourth to the fifth."""
    assert percentile_95([5.0, 1.0, 4.0, 2.0, 3.0]) == 4.8
    assert percentile_95([7.0]) == 7.0
