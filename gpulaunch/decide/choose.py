"""The sets of GPUs that a request could get, and whether the best of them will do."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.decide.needs import begun_beside, expected_slowdown, needs_of, unmet
from gpulaunch.decide.placement.choice import Choice, UtilitySetting
from gpulaunch.decide.placement.place import Placement, place
from gpulaunch.decide.placement.policies import POLICIES
from gpulaunch.decide.request import Request
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.machine.topology import Topology


def choose(
    request: Request,
    topology: Topology,
    free: Sequence[Gpu],
    choosable: Sequence[Gpu],
    count: int,
    leases: Sequence[Lease],
    scope: Sequence[Gpu] | None = None,
) -> Choice:
    """What there is to choose from.

    Args:
        request: what is asked.
        topology: the machine.
        free: GPUs that nobody uses.
        choosable: those of them that would do.
        count: how many are needed.
        leases: of other jobs.
        scope: all GPUs in reach, busy or not; None for those of the machine.
    """
    return Choice(
        topology,
        free=[gpu.index for gpu in free],
        admitted=[gpu.index for gpu in choosable],
        count=count,
        pattern=request.pattern,
        sensitive=request.bandwidth_sensitive,
        model=request.bandwidth_model,
        needs=needs_of(request, topology, choosable, count, leases),
        utility=_utility(request, topology, leases),
        scope=None if scope is None else [gpu.index for gpu in scope],
    )


def _utility(request: Request, topology: Topology, leases: Sequence[Lease]) -> UtilitySetting:
    slowdown = expected_slowdown(request, topology, leases)
    begun = begun_beside(topology, leases) if POLICIES[request.policy].goes_by_utility else {}
    return UtilitySetting(request.utility.weights, slowdown, request.utility.least, begun)


def best_of(request: Request, choice: Choice, machine: str | None = None) -> Placement | str:
    """The placement if it will do, else what it lacks, or why there is none.

    Args:
        request: what is asked.
        choice: what there is.
        machine: its name, if all of it is idle.
    """
    placement = place(choice, request.policy)
    if placement is None:
        return unmet(request, choice.count, choice, machine)
    if not POLICIES[request.policy].waits_for_utility:
        return placement
    least = request.utility.least
    if placement.utility is None or placement.utility >= least:
        return placement
    gpus = choice.named(placement.gpus)
    best = f"the best found{'' if machine is None else ' on the idle machine'}, {gpus}, has {placement.utility:.2f}"
    return f"{gpus_text(choice.count)} requested with a utility of {least:g}: {best}"
