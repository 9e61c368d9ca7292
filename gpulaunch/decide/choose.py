"""The placement problem of a request, and its best placement if that meets the request."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.decide.needs import expected_slowdown, explain_unmet, latest_starts, needs_of
from gpulaunch.decide.placement.place import Placement, place
from gpulaunch.decide.placement.policies import CHEAPEST_POLICY, POLICIES, all_tried
from gpulaunch.decide.placement.problem import PlacementProblem
from gpulaunch.decide.request import Request, Unfit
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.records import replace


def pose_problem(
    request: Request,
    topology: Topology,
    free: Sequence[Gpu],
    choosable: Sequence[Gpu],
    count: int,
    leases: Sequence[Lease],
    scope: Sequence[Gpu] | None = None,
) -> PlacementProblem:
    """Return the placement problem that a request poses on a machine where jobs run.

    Args:
        request: what is asked.
        topology: the machine.
        free: GPUs that nobody uses.
        choosable: those of them that the request may get.
        count: the number of GPUs that it needs.
        leases: leases of other jobs.
        scope: all GPUs in reach, busy or not; None for those of the machine.
    """
    order = next((one.order for one in request.constraints if one.order), ())
    goes_by_utility = POLICIES[request.policy].goes_by_utility
    return PlacementProblem(
        topology,
        free=[gpu.index for gpu in free],
        admitted=[gpu.index for gpu in choosable],
        count=count,
        pattern=request.pattern,
        sensitive=request.bandwidth_sensitive,
        model=request.bandwidth_model,
        needs=needs_of(request, topology, choosable, count, leases),
        weights=request.utility.weights,
        slowdown=expected_slowdown(request, topology, leases),
        least_utility=request.utility.least,
        begun=latest_starts(topology, leases) if goes_by_utility else {},
        scope=None if scope is None else [gpu.index for gpu in scope],
        rank_order=[gpu.index for uuid in order for gpu in topology.gpus if gpu.uuid == uuid],
    )


def choose(
    request: Request, problem: PlacementProblem, machine: str | None = None
) -> Placement | Unfit:
    """Return the best placement by the request's policy, or why none will do.

    Args:
        request: what is asked.
        problem: its placement problem.
        machine: the machine's name, for the reason, if the problem is about the idle machine.
    """
    placement = place(problem, request.policy)
    if placement is None:
        untried = "; there are too many sets to try them all" if problem.too_many else ""
        return Unfit(explain_unmet(request, problem.count, problem, machine) + untried)
    least = request.utility.least
    waits = POLICIES[request.policy].waits_for_utility
    if not waits or placement.utility is None or placement.utility >= least:
        return placement
    gpus = problem.format_ranks(placement.gpus)
    where = "" if machine is None else " on the idle machine"
    best = f"the best found{where}, {gpus}, has {placement.utility:.2f}"
    tried = all_tried(problem)
    if not tried:
        best += "; there are too many placements to try them all"
    asked = f"{gpus_text(problem.count)} requested with a utility of {least:g}"
    return Unfit(f"{asked}: {best}", may_exist=not tried)


def why_hopeless(
    request: Request, topology: Topology, admitted: Sequence[Gpu], count: int
) -> str | None:
    """Return why not even the idle machine meets a request's wishes; None if it may.

    Args:
        request: what is asked.
        topology: the machine.
        admitted: GPUs that the request admits.
        count: the number of GPUs that it needs.
    """
    if not request.is_choosy:
        return None
    if not POLICIES[request.policy].waits_for_utility:
        request = replace(request, policy=CHEAPEST_POLICY)  # any set that fits will do
    problem = pose_problem(request, topology, topology.gpus, admitted, count, ())
    found = choose(request, problem, topology.name)
    return found.reason if isinstance(found, Unfit) and not found.may_exist else None
