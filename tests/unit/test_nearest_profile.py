"""The nearest profile, which lends its pair data to a job without any."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.measure import nearest_profile as module
from gpulaunch.measure.nearest_profile import BOUND, SoloUse, distance_between, nearest_profile
from gpulaunch.records import replace

# mps-sharing-2024 Table II: SM %, memory bandwidth %, MiB of 81,920 (None: a reservation), W of 300
TABLE_2 = {
    "AthenaPK": ((7.54, 0.01, 563, 90.09), (30.29, 1.78, 2093, 88.86)),
    "Cholla-Gravity": ((13.6, 0.51, 615, 88.43), (45.16, 4.45, 5063, 138.75)),
    "Kripke": ((26.56, 0.27, 621, 123.3), (63.21, 3.78, 5481, 148.16)),
    "Cholla-MHD": ((72.58, 31.01, 2175, 234.24), (88.58, 41.29, 6753, 261.64)),
    "LAMMPS": ((63.0, 4.24, 2321, 196.79), (96.28, 7.13, 4977, 258.38)),
    "WarpX": ((33.29, 0.04, None, 117.14), (77.28, 19.75, None, 244.32)),
    "BerkeleyGW-Epsilon": ((9.04, 2.63, 30157, 94.41),),
}
PERCENTAGES = st.floats(0, 100)
SHARES = st.none() | st.floats(0, 1)
ANY = st.builds(
    SoloUse, st.sampled_from("abc"), PERCENTAGES, PERCENTAGES, SHARES, SHARES, st.none(), st.none()
)


def published(name: str, size: int) -> SoloUse:
    """Return a job of Table II: 0 at its smaller size, 1 at its larger."""
    sm, bandwidth, mib, watts = TABLE_2[name][size]
    return SoloUse(
        f"{name}-{size}", sm, bandwidth, None if mib is None else mib / 81920, watts / 300
    )


def test_nearest() -> None:
    """The profile whose figures differ least lends, and says by how much they do."""
    near, far = SoloUse("near", 84, 43), SoloUse("far", 72, 36)
    found = nearest_profile(SoloUse("mine", 80, 40), [far, near])
    assert (found.name, found.distance) == ("near", pytest.approx(((0.04**2 + 0.03**2) / 2) ** 0.5))
    want = (
        "nearest to 'near': SM utilization 80 against 84 %, memory bandwidth 40 against 43 %; "
        "distance 0.035"
    )
    assert found.because == want


def test_ties_go_by_name() -> None:
    """Among equally near profiles the first by name lends, whatever their order."""
    twins = [SoloUse("b", 50, 50), SoloUse("a", 50, 50)]
    assert [
        nearest_profile(SoloUse("mine", 52, 50), order).name for order in (twins, twins[::-1])
    ] == ["a", "a"]


@pytest.mark.parametrize(("sm", "want"), [(14.1, "other"), (14.2, None)])
def test_bound(sm: float, want: str | None) -> None:
    """A profile beyond the bound lends nothing: 14.14 points of one utilization, other equal."""
    found = nearest_profile(SoloUse("mine", 0, 50), [SoloUse("other", sm, 50)])
    assert (found and found.name) == want


def test_a_job_does_not_lend_to_itself() -> None:
    """The job's own name is no candidate."""
    job = SoloUse("mine", 50, 50)
    assert nearest_profile(job, [job]) is None


def test_nobody() -> None:
    """Without candidates there is none."""
    assert nearest_profile(SoloUse("mine", 50, 50), []) is None


@pytest.mark.parametrize("other", [SoloUse("other", None, 50), SoloUse("other", 50, None)])
def test_both_utilizations_are_needed(other: SoloUse) -> None:
    """A job of which only one utilization is known cannot be compared, in neither direction."""
    job = SoloUse("mine", 50, 50, 0.5, 0.5)
    assert (distance_between(job, other), distance_between(other, job)) == (None, None)


@pytest.mark.parametrize("key", ["intensity", "utilization"])
def test_what_contradicts(key: str) -> None:
    """Memory and compute intensity, or shares of SMs and time, never match; unknown fits both."""
    values = {"intensity": ("memory", "compute"), "utilization": ("share", "time-active")}[key]
    job, other = (
        replace(SoloUse(name, 50, 50), **{key: value})
        for name, value in zip("ab", values, strict=True)
    )
    assert distance_between(job, other) is None
    assert distance_between(job, replace(other, **{key: None})) == 0
    assert distance_between(job, replace(other, **{key: values[0]})) == 0


def test_missing_figures_are_left_out() -> None:
    """Memory and power count where both know them, and take nothing away where one does not."""
    job = SoloUse("mine", 50, 50, 0.2, 0.5)
    assert distance_between(job, SoloUse("other", 60, 50)) == pytest.approx((0.1**2 / 2) ** 0.5)
    assert distance_between(job, SoloUse("other", 60, 50, 0.4)) == pytest.approx(
        ((0.1**2 + 0.2**2) / 3) ** 0.5
    )
    found = nearest_profile(job, [SoloUse("other", 60, 50, 0.25, 0.45)])
    assert found.because.count(" against ") == 4


def test_bound_against_the_published_jobs() -> None:
    """No program of Table II is within the bound of itself at 4x the size; 10 of 13 find one."""
    pairs = [
        distance_between(published(name, 0), published(name, 1))
        for name in TABLE_2
        if len(TABLE_2[name]) > 1
    ]
    assert (len(pairs), min(pairs) > BOUND) == (6, True)
    assert (min(pairs), max(pairs)) == (
        pytest.approx(0.109, abs=5e-4),
        pytest.approx(0.371, abs=5e-4),
    )
    jobs = [published(name, size) for name, sizes in TABLE_2.items() for size in range(len(sizes))]
    assert (len(jobs), sum(nearest_profile(job, jobs) is not None for job in jobs)) == (13, 10)


@given(ANY, ANY)
def test_distance(a: SoloUse, b: SoloUse) -> None:
    """A distance is 0 to 1, the same in both directions, and 0 from a job to itself."""
    assert 0 <= distance_between(a, b) <= 1
    assert (distance_between(a, b), distance_between(a, a)) == (distance_between(b, a), 0)


def test_examples() -> None:
    """The examples in the docstrings are right."""
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
