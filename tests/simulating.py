"""What tests of the simulator share: small traces, and a check of every moment of a simulation."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

import gpulaunch
from gpulaunch.decide.request import Constraint, Request
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.simulate.event_loop import Moment, Rules, Stay, simulate
from gpulaunch.simulate.machines import Remembered
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


class Conservation:
    """A check of every moment: no GPU twice, free and used are all, no job lost, time runs on.

    Args:
        jobs: how many there are.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._last = Moment(float("-inf"), 0, 0, 0, None)
        self.moments = 0

    def __call__(self, moment: Moment) -> None:
        self.moments += 1
        gpus = {gpu.uuid for gpu in moment.machines.topology.gpus}
        running = 0
        for one in moment.machines.all:
            held = Counter(uuid for lease in one.leases.values() for uuid in lease.uuids)
            groups = [lease.share.group for lease in one.leases.values() if lease.share]
            twice = {uuid for uuid, count in held.items() if count > 1}
            assert all(any(uuid in group for group in groups) for uuid in twice), (
                "a GPU is held twice"
            )
            assert all(
                lease.share for lease in one.leases.values() if twice.intersection(lease.uuids)
            )
            assert held.keys() <= gpus
            assert one.free + len(held) == len(gpus), "free and used GPUs are not all"
            running += len(one.leases)
        assert running == moment.running
        assert moment.time_s > self._last.time_s
        assert moment.ended >= self._last.ended
        assert moment.waiting + moment.running + moment.ended <= self._jobs
        self._last = moment

    def finish(self, stays: Sequence[Stay]) -> None:
        """Check that all jobs have ended, each once."""
        assert (self._last.waiting, self._last.running, self._last.ended) == (0, 0, self._jobs)
        assert sorted(stay.job.id for stay in stays) == list(range(self._jobs))
        assert [stay.place for stay in stays] == list(range(self._jobs))
        assert all(stay.job.arrival_s <= stay.started_s <= stay.ended_s for stay in stays)


def checked(
    topology: Topology,
    jobs: Sequence[SimulatedJob],
    rules: Rules,
    remembered: Remembered | None = None,
) -> list[Stay]:
    """Simulate, and look at every moment."""
    conservation = Conservation(len(jobs))
    stays = simulate(topology, jobs, rules, conservation, remembered)
    conservation.finish(stays)
    return stays


def log(stays: Iterable[Stay]) -> list[tuple[int, tuple[int, ...], float, float]]:
    """Return id, GPUs, start and end of each job, in the order of starts."""
    return [(stay.job.id, stay.gpus, stay.started_s, stay.ended_s) for stay in stays]
