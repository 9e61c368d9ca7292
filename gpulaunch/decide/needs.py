"""What a request needs of a machine in use, and the best placement that meets it."""
# pure: decides on plain values

from collections.abc import Collection, Sequence

from gpulaunch.decide.decision import Request, State, Unfit
from gpulaunch.leases.lease import EngineJob, Lease
from gpulaunch.leases.queue import ENDLESS
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.gpu import Gpu, gpus_text, size_order
from gpulaunch.machine.topology import Topology
from gpulaunch.placement.policies import CHEAPEST_POLICY, POLICIES, Placement, all_tried, place
from gpulaunch.placement.problem import PlacementProblem
from gpulaunch.records import Record, replace

_LEAST_SLOWDOWN = 0.02
"""Slowdowns below are taken for noise of measurement."""


def _group_by_numa_node(topology: Topology) -> tuple[frozenset[int], ...]:
    groups: dict[int, set[int]] = {}
    for gpu in topology.gpus:
        if gpu.numa_node is not None:
            groups.setdefault(gpu.numa_node, set()).add(gpu.index)
    return tuple(frozenset(group) for group in groups.values())


def admitted_gpus(request: Request, topology: Topology, within: Lease | None = None) -> list[Gpu]:
    """Return the GPUs that the request admits, busy or not.

    A MIG instance, a slice of a card, is for requests that no whole GPU would satisfy.

    Args:
        within: the lease that this launch runs inside of; only its GPUs are admitted.
    """
    found = []
    for gpu in topology.gpus:
        in_reach = within is None or gpu.uuid in within.uuids
        if in_reach and all(gpu.uuid in constraint.uuids for constraint in request.constraints):
            found.append(gpu)
    return [gpu for gpu in found if not gpu.mig] or found


def instances_by_size(gpus: Sequence[Gpu]) -> list[list[Gpu]]:
    """Return MIG instances in groups of one size, smallest first; [] for whole GPUs.

    Of one memory, those with fewer slices come first.
    """
    if not any(gpu.mig for gpu in gpus):
        return []
    groups: dict[tuple[int, tuple[int, int, bool]], list[Gpu]] = {}
    for gpu in gpus:
        if gpu.mig:
            size = gpu.memory_bytes, size_order(gpu.mig.profile)
            groups.setdefault(size, []).append(gpu)
    return [groups[size] for size in sorted(groups)]


def leased_until_s(
    topology: Topology,
    leases: Sequence[Lease],
    within: Lease | None = None,
    job: EngineJob | None = None,
) -> dict[str, float]:
    """Return when the GPUs that others hold are free at the latest, by UUID; see Lease.ends_s.

    A card that was leased before it was split into MIG instances is held with all of these.

    Args:
        within: the lease that this launch runs inside of; then others are those inside it.
        job: the job of a cluster engine that this launch is part of; None for that of `within`.
    """
    own = (within.id, *within.ancestors) if within else ()
    job = job or (within.engine_job if within else None)
    until_s: dict[str, float] = {}
    for lease in leases:
        if lease.id not in own and (within is None or lease.user_id in within.insiders):
            for uuid in lease.held_from(job):
                until_s[uuid] = max(until_s.get(uuid, 0.0), lease.ends_s)
    for gpu in topology.gpus:
        if gpu.mig and gpu.mig.card_uuid in until_s:
            until_s[gpu.uuid] = max(until_s.get(gpu.uuid, 0.0), until_s[gpu.mig.card_uuid])
    return until_s


class Reach(Record):
    """The GPUs in reach of a request at the moment.

    Attributes:
        admitted: those that the request admits, busy or not.
        used: the use of some of them without a lease, by UUID.
        unfit: why some that nobody holds are out of service, by UUID.
        busy_until_s: seconds since boot at which the others are free at the latest, by UUID.
    """

    scope: Sequence[Gpu]
    admitted: Sequence[Gpu]
    used: dict[str, OutsideUse]
    unfit: dict[str, str]
    free: Sequence[Gpu]
    busy_until_s: dict[str, float]


def reach_of(
    request: Request, state: State, scope: Sequence[Gpu], admitted: Sequence[Gpu]
) -> Reach:
    """Return what a request can reach of some GPUs, in the state that it meets."""
    job = request.engine_job
    leased = leased_until_s(state.topology, state.leases, state.within, job)
    # What an engine shares is in use by others of its jobs, whether or not they have a lease.
    taken = used_outside(state, leased)
    unfit = {uuid: why for uuid, why in out_of_service(state).items() if uuid in taken}
    used = {} if job and job.shared else {u: use for u, use in taken.items() if u not in unfit}
    busy_until_s = leased | dict.fromkeys((*used, *unfit), ENDLESS)
    free = [gpu for gpu in scope if gpu.uuid not in busy_until_s]
    return Reach(scope, admitted, used, unfit, free, busy_until_s)


def used_outside(state: State, leased: Collection[str]) -> dict[str, OutsideUse]:
    """Return the use of GPUs without a lease, by UUID, or why one is out of service.

    Inside a lease nobody uses its GPUs, and a drain lets it go on; a GPU that a fault bars does not
    work there either.
    """
    return {
        use.uuid: use
        for use in state.outside
        if use.uuid not in leased and (state.within is None or use.state == "barred")
    }


def out_of_service(state: State) -> dict[str, str]:
    """Return why GPUs are out of service, leased or not, by UUID: "GPU 3: drained by root"."""
    names = {gpu.uuid: gpu.name for gpu in state.topology.gpus}
    return {
        use.uuid: f"GPU {names.get(use.uuid, use.uuid)}: {use.who}"
        for use in state.outside
        if use.state == "barred" or (use.state == "drained" and state.within is None)
    }


def expected_slowdown(
    request: Request, topology: Topology, leases: Sequence[Lease]
) -> dict[int, float]:
    """Return the mean slowdown that each GPU would bring to the jobs on its socket and to this one.

    Source: topo-aware-sc17 Eq. 4. Departure: as printed, with the time alone on top, it falls as
        interference grows, so that minimising it would seek interference.
    """
    slowdowns = request.slowdowns
    if not slowdowns:
        return {}
    socket_of = {gpu.uuid: gpu.numa_node for gpu in topology.gpus}
    met: dict[int | None, list[tuple[float, float]]] = {}
    for lease in leases:
        for socket in {socket_of[uuid] for uuid in lease.uuids if uuid in socket_of}:
            met.setdefault(socket, []).append(slowdowns.get(lease.profile or "", (0.0, 0.0)))
    expected = {}
    for gpu in topology.gpus:
        pairs = met.get(gpu.numa_node)
        if pairs:
            own = max(own for own, _ in pairs)
            expected[gpu.index] = mean_slowdown([own, *(theirs for _, theirs in pairs)])
    return expected


def latest_starts(topology: Topology, leases: Sequence[Lease]) -> dict[int, int]:
    """Return for each GPU on a used socket which job began last there.

    Jobs are counted from 1, in the order of their leases, in which they began.
    """
    socket_of = {gpu.uuid: gpu.numa_node for gpu in topology.gpus}
    latest: dict[int | None, int] = {}
    for number, lease in enumerate(leases, 1):
        for uuid in lease.uuids:
            if uuid in socket_of:
                latest[socket_of[uuid]] = number
    starts = {}
    for gpu in topology.gpus:
        if socket_of[gpu.uuid] in latest:
            starts[gpu.index] = latest[socket_of[gpu.uuid]]
    return starts


def _explain_unmet(request: Request, problem: PlacementProblem, machine: str | None) -> str:
    """Return why no set of enough GPUs is what the job needs; see choose()."""
    count = problem.count
    asked = f"{gpus_text(count)} requested"
    where = "free" if machine is None else f"that {machine} has"
    among = f"{len(problem.admitted)} {where}"
    missing = sorted(problem.required.difference(problem.admitted))
    if request.required and missing:
        verb = "is" if len(missing) == 1 else "are"
        state = "free" if machine is None else "admitted"
        named = problem.format_ranks(missing)
        return f"{asked} with {request.required.text}: {named} {verb} not {state}"
    so = _together_text(request)
    if request.least_gb_per_s:
        best = problem.best_effective_bandwidth()
        if best is not None:
            least = f"{request.least_gb_per_s:g} GB/s at least"
            comma = "," if so else ""
            return f"{asked}{so}{comma} with {least}: the best of the {among} reach {best:.4g}"
    if count == 1:
        return f"{asked}{so}: none of the {among} is"
    return f"{asked}{so}: no {count} of the {among} are"


def _together_text(request: Request) -> str:
    """Return what the chosen GPUs must be together, in words."""
    words = []
    if request.required:
        words.append(f"with {request.required.text}")
    if request.nvlink:
        words.append("joined by NVLink")
    if request.one_numa_node:
        words.append("in one NUMA node")
    return f" {', '.join(words)}" if words else ""


def pose_problem(
    request: Request,
    state: State,
    free: Sequence[Gpu],
    choosable: Sequence[Gpu],
    count: int,
    scope: Sequence[Gpu] | None = None,
) -> PlacementProblem:
    """Return the placement problem that a request poses on a machine where jobs run.

    Args:
        choosable: those of them that the request may get.
        scope: all GPUs in reach, busy or not; None for those of the machine.
    """
    topology, leases = state.topology, state.neighbours
    order = next((one.order for one in request.constraints if one.order), ())
    asked = request.required.uuids if request.required else ()
    required = frozenset(gpu.index for gpu in topology.gpus if gpu.uuid in asked)
    goes_by_utility = POLICIES[request.policy].goes_by_utility
    return PlacementProblem(
        topology,
        free=[gpu.index for gpu in free],
        admitted=[gpu.index for gpu in choosable],
        count=count,
        pattern=request.pattern,
        sensitive=request.bandwidth_sensitive,
        model=request.bandwidth_model,
        required=required,
        within=_group_by_numa_node(topology) if request.one_numa_node else (),
        nvlink=request.nvlink,
        least_gb_per_s=request.least_gb_per_s,
        weights=request.weights,
        slowdown=expected_slowdown(request, topology, leases),
        least_utility=request.least_utility,
        begun=latest_starts(topology, leases) if goes_by_utility else {},
        scope=None if scope is None else [gpu.index for gpu in scope],
        rank_order=[gpu.index for uuid in order for gpu in topology.gpus if gpu.uuid == uuid],
    )


def choose(
    request: Request, problem: PlacementProblem, machine: str | None = None
) -> Placement | Unfit:
    """Return the best placement by the request's policy, or why none will do.

    Args:
        machine: the machine's name, for the reason, if the problem is about the idle machine; None
            if it is about the GPUs that are free now.
    """
    placement = place(problem, request.policy)
    if placement is None:
        untried = "; there are too many sets to try them all" if problem.too_many else ""
        return Unfit(_explain_unmet(request, problem, machine) + untried)
    least = request.least_utility
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
    """Return why not even the idle machine has what a request asks for; None if it may."""
    if not request.choosy:
        return None
    if not POLICIES[request.policy].waits_for_utility:
        request = replace(request, policy=CHEAPEST_POLICY)  # any set that fits will do
    problem = pose_problem(request, State(topology), topology.gpus, admitted, count)
    found = choose(request, problem, topology.name)
    return found.reason if isinstance(found, Unfit) and not found.may_exist else None


def mean_slowdown(slowdowns: Sequence[float]) -> float:
    """Return the mean of slowdowns, of which those under 2 % count as none; 0 if there are none.

    Args:
        slowdowns: of each job that a placement affects, its time with the others / alone - 1.
    """
    if not slowdowns:
        return 0.0
    return sum(slowdown for slowdown in slowdowns if slowdown >= _LEAST_SLOWDOWN) / len(slowdowns)
