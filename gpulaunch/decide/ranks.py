"""The GPUs of a step's ranks on one node: as many for each, in the order of local ranks.

Every rank's launcher decides by itself, and all come to the same: the first one decides for all, by
the request of one job with all of the GPUs, and the others find its decision in its lease.
"""
# pure: decides on plain values

from collections.abc import Sequence
from typing import TypeVar

from gpulaunch.decide.request import Request, Unfit
from gpulaunch.leases.engine_job import EngineJob
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_names import gpus_text

T = TypeVar("T")


def count_for_all(request: Request, job: EngineJob, admitted: Sequence[Gpu]) -> int | Unfit:
    """Return how many GPUs the ranks on this node have together: as many for each.

    Args:
        request: that of all ranks.
        job: their step.
        admitted: the GPUs that the request admits; if it asks for all, the ranks divide these.
    """
    ranks = f"the {job.ranks} ranks of {job.title} on this node"
    count = len(admitted) if request.gpus is None else request.gpus
    if count % job.ranks or not count:
        return Unfit(
            f"{gpus_text(count)} cannot be divided evenly among {ranks}: -n says how many each gets"
        )
    if count > len(admitted):
        each = gpus_text(count // job.ranks)
        return Unfit(f"{ranks} ask for {each} each, {count} in all: there are {len(admitted)}")
    return count


def group_of(job: EngineJob, leases: Sequence[Lease], count: int) -> tuple[str, ...] | Unfit:
    """Return the UUIDs of the GPUs that a step's ranks have here already; empty if none has begun.

    Args:
        job: the step.
        leases: all live leases.
        count: number of GPUs that all of its ranks ask for.
    """
    for lease in leases:
        if lease.is_of(job) and lease.engine_job and lease.engine_job.group:
            group = lease.engine_job.group
            if len(group) == count:
                return group
            return Unfit(
                f"{job.title} has {gpus_text(len(group))} here for its {job.ranks} ranks, and this "
                f"one asks for {count} in all: every rank has to ask for as many"
            )
    return ()


def own_part(job: EngineJob, group: Sequence[T]) -> Sequence[T]:
    """Return those of a step's GPUs, in rank order, that the launch's own rank has."""
    each = len(group) // job.ranks
    return group[job.local_rank * each : (job.local_rank + 1) * each]
