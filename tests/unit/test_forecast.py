"""Predicted starts: what is known of run times, and the queue that is replayed with it."""

import importlib.util
from pathlib import Path
from statistics import median

from values import ticket, uuids

from gpulaunch.history.forecast import (
    DRAWS,
    Experience,
    Relation,
    StartRange,
    draw_remaining,
    predict_starts,
    relations_of,
)
from gpulaunch.leases.queue import ENDLESS

TRAIN = relations_of(1000, ("python", "train.py"), None, None, 2)
OTHER = relations_of(1000, ("python", "other.py"), None, None, 2)
ALL = uuids(range(8))


def drawn(
    experience: Experience, of: list[Relation], ran_s: float = 0.0, limit_s: float | None = None
) -> list[float]:
    return draw_remaining(experience.of(of, limit_s), ran_s, limit_s, DRAWS, "x")


def test_runs_of_the_same_command_tell_how_long_it_takes() -> None:
    """After ten runs of 1,000 s and many of others, most draws are within a fifth of that."""
    past = [(OTHER, 10.0 + number) for number in range(50)]
    past += [(TRAIN, 1000.0 + number) for number in range(10)]
    found = drawn(Experience(past), TRAIN)
    assert sum(800 < seconds < 1250 for seconds in found) > 0.8 * DRAWS


def test_a_job_of_which_nothing_is_known_runs_on_the_longer_it_has_run() -> None:
    """The median of what is left grows with what has passed, and more than tenfold over a day."""
    empty = Experience([])
    left = [median(drawn(empty, TRAIN, ran_s)) for ran_s in (0.0, 600.0, 3600.0, 86400.0)]
    assert left[1] < left[2] < left[3]
    assert left[3] > 10 * left[1]


def test_no_job_runs_past_its_limit() -> None:
    """Nothing is drawn beyond the limit, and without other runs about half of it is used."""
    found = drawn(Experience([]), TRAIN, 100.0, 1000.0)
    assert max(found) <= 900.0
    assert 200.0 < median(found) < 700.0


def running(*gpus: int, seconds: float) -> tuple:
    return uuids(gpus), [seconds + draw for draw in range(DRAWS)]


def waiting(*asked: object, seconds: float = 50.0) -> list[tuple]:
    return [(one, [seconds] * DRAWS) for one in asked]


BUSY = dict.fromkeys(ALL, ENDLESS)


def test_a_range_leaves_out_the_earliest_and_the_latest() -> None:
    """Of 100 replays that start after 100 to 199 s the range holds those from 111 to 188."""
    (found,) = predict_starts([running(*range(8), seconds=100)], waiting(ticket(1)), BUSY, ALL, 5.0)
    assert found == StartRange(111.0, 150.0, 188.0)


def test_the_queue_keeps_its_order_and_its_rule() -> None:
    """A small job waits for the head before it, but passes if it ends before that can start."""
    lease = running(*range(6), seconds=1000)
    busy = dict.fromkeys(ALL[:6], 2000.0)  # by its limit, at which the head can start
    jobs = [ticket(1, 8), ticket(2, 1), ticket(3, 1, ends_within_s=500.0)]
    head, after, passing = predict_starts([lease], waiting(*jobs), busy, ALL, 0.0)
    assert (head.from_s, after.from_s) == (1011.0, 1061.0)
    assert passing is None  # it starts at once, so nobody would see it wait
    late = predict_starts([lease], waiting(ticket(1, 8), jobs[2]), busy, ALL, 1600.0)
    assert late[1].from_s > late[0].from_s


def test_what_cannot_be_told_is_none() -> None:
    """There is no range for a ticket that wants GPUs out of service, or that could have started."""
    lease = running(*range(1, 8), seconds=10)
    found = predict_starts(
        [lease],
        waiting(ticket(1, 1, only=[0]), ticket(2, 8), ticket(3, 1, only=[5])),
        BUSY,
        ALL[1:],
        0.0,
    )
    assert [one is None for one in found] == [True, True, True]
    busy = dict.fromkeys(ALL[1:], ENDLESS)
    assert predict_starts([lease], waiting(ticket(1, 1)), busy, ALL, 0.0) == [None]


def test_a_gpu_is_free_when_its_last_lease_ends() -> None:
    """Of two leases of one GPU, as of jobs that share it, the longer one counts."""
    leases = [running(*range(8), seconds=100), running(0, seconds=500)]
    (found,) = predict_starts(leases, waiting(ticket(1, 8)), BUSY, ALL, 0.0)
    assert found.from_s == 511.0


def test_predictions_on_replayed_traces() -> None:
    """On a trace of batches most starts are in their ranges."""
    path = Path(__file__).parents[1] / "bench" / "when.py"
    spec = importlib.util.spec_from_file_location("when", path)
    when = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(when)
    figures = when.figures([*when.predictions("poisson", 101, limits=True)])
    assert figures["told"] == 1.0
    assert figures["inside"] >= 0.7
    assert figures["error"] < figures["wait"] / 3
