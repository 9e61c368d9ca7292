"""A machine's history as a trace of jobs, and as a replay of what was."""
# pure: decides on plain values

from collections.abc import Iterable, Sequence

from gpulaunch.history.past_launch import PastLaunch
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import PATTERNS
from gpulaunch.records import replace
from gpulaunch.simulate.event_loop import Rules, Stay
from gpulaunch.simulate.generate import Row
from gpulaunch.simulate.simulated_job import SimulatedJob
from gpulaunch.simulate.time_model import TimeModel

AS_IT_RAN = "as_it_ran"
"""What stands in place of a policy in the replay of what was."""


def replayable(launches: Iterable[PastLaunch], topology: Topology) -> list[PastLaunch]:
    """Return the launches that can be replayed on a machine.

    They have ended, had GPUs of their own, and fit.
    """
    return [
        launch
        for launch in launches
        if launch.duration_s
        and launch.sm_percentage is None
        and 0 < len(launch.gpus) <= len(topology.gpus)
    ]


def rows_of(launches: Sequence[PastLaunch]) -> list[Row]:
    """Return the jobs of a file of jobs, in which they arrive as they were launched.

    Their run times are those that they had, on whatever GPUs. A pattern that is no built-in one is
    left out.
    """
    first_s = min(launch.submitted_s for launch in launches)
    rows: list[Row] = []
    for launch in launches:
        row: Row = {
            "name": launch.name or launch.profile or " ".join(launch.command[:2]) or "job",
            "gpus": len(launch.gpus),
            "arrival_s": launch.submitted_s - first_s,
            "duration_s": max(1e-3, launch.duration_s or 0.0),
        }
        if launch.pattern in PATTERNS:
            row["pattern"] = launch.pattern
        if launch.bandwidth_sensitive is not None:
            row["bandwidth_sensitive"] = launch.bandwidth_sensitive
        rows.append(row)
    return rows


def stays_of(
    launches: Sequence[PastLaunch],
    jobs: Sequence[SimulatedJob],
    topology: Topology,
    times: TimeModel,
) -> list[Stay] | None:
    """Return the stays that the jobs had; None if a GPU that they had is not there any more.

    The time model tells how long the jobs would have taken on the best GPUs, which is their run
    time in other replays.

    Args:
        launches: the launches.
        jobs: the jobs of their rows.
        topology: the machine that they ran on.
        times: time model of the replays.
    """
    index_of = {gpu.name: gpu.index for gpu in topology.gpus}
    if not all(name in index_of for launch in launches for name in launch.gpus):
        return None
    stays = []
    for launch, job in zip(launches, jobs, strict=True):
        started_s = job.arrival_s + (launch.started_s or 0.0) - launch.submitted_s
        gpus = tuple(index_of[name] for name in launch.gpus)
        at_best = replace(job, duration_s=job.duration_s / (1 + times.links(job, gpus)))
        stays.append(Stay(at_best, 0, gpus, started_s, started_s + job.duration_s, None, job.id))
    return sorted(stays, key=lambda stay: stay.started_s)


def rules_of_the_past(rules: Rules) -> Rules:
    """Return rules for the measures of what was, beside a replay by other rules."""
    return replace(rules, policy=AS_IT_RAN, model=rules.yardstick)
