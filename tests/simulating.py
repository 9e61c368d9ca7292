"""What tests of the simulator share: small traces, and a check of every moment of a simulation."""

from collections.abc import Iterable, Sequence
from functools import cache

import gpulaunch
from gpulaunch.decide.request import Constraint, Request
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.simulate.event_loop import Rules, Stay, simulate
from gpulaunch.simulate.simulated_job import SimulatedJob


def job(
    number: int,
    gpus: int,
    arrival_s: float,
    duration_s: float,
    *,
    sensitive: bool = False,
    only: tuple[str, ...] = (),
    **more,
) -> SimulatedJob:
    """Make a job; an insensitive one has no pattern, so its GPUs stand in ascending order."""
    pattern = PATTERNS["ring" if sensitive else "none"]
    constraints = (Constraint("--only", frozenset(only)),) if only else ()
    request = Request(gpus, pattern, sensitive and gpus > 1, "preserve", "cut", constraints)
    return SimulatedJob(number, f"job{number}", request, arrival_s, duration_s, **more)


def jobs_of(rows: Iterable[dict]) -> list[SimulatedJob]:
    """Return the jobs that a generator made."""
    return [
        job(
            n,
            row["gpus"],
            row["arrival_s"],
            row["duration_s"],
            sensitive=row["bandwidth_sensitive"],
        )
        for n, row in enumerate(rows)
    ]


@cache
def generated(seed: int, count: int) -> tuple[SimulatedJob, ...]:
    """Make jobs by topo-aware-sc17's generator for a Minsky, with profiles and utilities."""
    trace = gpulaunch.generate_trace("poisson", seed, count)
    return gpulaunch.Simulator("power8-minsky").read_trace(trace).jobs


def check(jobs: Sequence[SimulatedJob], stays: Sequence[Stay]) -> None:
    """Check that all jobs have run, each once, and that none held a GPU that another had."""
    assert sorted(stay.job.id for stay in stays) == list(range(len(jobs)))
    starts = [stay.started_s for stay in stays]
    assert starts == sorted(starts)
    assert all(stay.job.arrival_s <= stay.started_s <= stay.ended_s for stay in stays)
    by_gpu: dict[tuple[int, int], list[Stay]] = {}
    for stay in stays:
        assert len(set(stay.gpus)) == len(stay.gpus)
        for gpu in stay.gpus:
            by_gpu.setdefault((stay.machine, gpu), []).append(stay)
    for own in by_gpu.values():
        all_end_s = alone_end_s = 0.0
        for stay in own:
            shares = stay.job.request.sharing is not None
            free_s = alone_end_s if shares else all_end_s
            assert stay.started_s >= free_s, "a GPU is held twice"
            all_end_s = max(all_end_s, stay.ended_s)
            if not shares:
                alone_end_s = stay.ended_s


def checked(topology: Topology, jobs: Sequence[SimulatedJob], rules: Rules) -> list[Stay]:
    """Simulate, and check what came of all jobs."""
    stays = simulate(topology, jobs, rules)
    check(jobs, stays)
    return stays


def log(stays: Iterable[Stay]) -> list[tuple[int, tuple[int, ...], float, float]]:
    """Return id, GPUs, start and end of each job, in the order of starts."""
    return [(stay.job.id, stay.gpus, stay.started_s, stay.ended_s) for stay in stays]
