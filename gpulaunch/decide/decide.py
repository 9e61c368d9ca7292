"""A request meets the topology and the leases; out comes a decision."""
# pure: decides on plain values

from collections.abc import Sequence
from typing import TypeVar

from gpulaunch.decide.decision import (
    Decision,
    Grant,
    Refuse,
    Request,
    State,
    Unfit,
    Wait,
    best_text,
    queued_text,
    too_few_text,
    too_many_text,
    with_count,
)
from gpulaunch.decide.needs import (
    Reach,
    admitted_gpus,
    choose,
    instances_by_size,
    out_of_service,
    pose_problem,
    reach_of,
    why_hopeless,
)
from gpulaunch.leases.lease import EngineJob, Lease
from gpulaunch.leases.queue import barring, competing, last_before, queued
from gpulaunch.machine.gpu import Gpu, gpus_text
from gpulaunch.records import replace

T = TypeVar("T")


def decide(request: Request, state: State) -> Decision:
    """Decide whether the request can start now, and on which GPUs."""
    if request.least_gpus:
        return _decide_range(request, state, request.least_gpus)
    within, job = state.within, request.engine_job
    if job and job.is_divided and not (within and within.is_of(job)):
        return _decide_for_rank(request, job, state)
    return _decide_alone(request, state)


def _decide_range(request: Request, state: State, least: int) -> Decision:
    """Grant as many GPUs as can be had now; if not even the least number, decide about that."""
    most = min(request.gpus or least, max(least, len(state.topology.gpus)))
    found = decide(with_count(request, most), state)
    for count in range(most - 1, least - 1, -1):
        if isinstance(found, Grant):
            return found
        lesser = decide(with_count(request, count), state)
        if not isinstance(lesser, Refuse) or isinstance(found, Refuse):
            found = lesser
    if found.reason.startswith(f"{gpus_text(least)} requested"):
        return replace(found, reason=f"at least {found.reason}")
    return found


def _decide_alone(request: Request, state: State) -> Decision:
    """Decide about a request for all of a job's GPUs on this machine."""
    topology, within = state.topology, state.within
    admitted = admitted_gpus(request, topology, within)
    scope = [gpu for gpu in topology.gpus if within is None or gpu.uuid in within.uuids]
    unfit = out_of_service(state)
    in_service = sum(gpu.uuid not in unfit for gpu in admitted) or len(admitted)
    count = in_service if request.gpus is None else request.gpus
    if not 1 <= count <= len(admitted):
        return Refuse(too_many_text(request, topology, len(scope), len(admitted), within))
    if count > 1 and admitted[0].mig:
        return Refuse(
            f"{gpus_text(count)} requested: a process can use one MIG instance at most, "
            "and only those would do"
        )

    reach = reach_of(request, state, scope, admitted)
    if not request.sharing:
        return _decide_exclusive(request, state, reach, count)
    from gpulaunch.decide import share_options  # late: few launches share

    # Of GPUs that other jobs of the same user share.
    shared = share_options.best_option(request, state, reach, count)
    if isinstance(shared, Grant):
        return shared
    decision = _decide_exclusive(request, state, reach, count)
    if isinstance(decision, Grant):
        return share_options.open_group(request, state, decision)
    if isinstance(decision, Wait) and shared.reason:
        decision = replace(
            decision, reason=f"{decision.reason}; of those to share: {shared.reason}"
        )
    return decision


def _decide_for_rank(request: Request, job: EngineJob, state: State) -> Decision:
    """Decide for one of several ranks that divide GPUs: as the first did, if it has begun."""
    admitted = admitted_gpus(request, state.topology, state.within)
    count = _count_for_all(request, job, admitted)
    if isinstance(count, Unfit):
        return Refuse(count.reason)
    begun = _group_of(job, state.leases, count)
    if isinstance(begun, Unfit):
        return Refuse(begun.reason)
    group = begun or job.group
    if group:
        must_be_free = _own_part(job, group) if begun else group
        found = _grant_group(request, state, admitted, group, must_be_free)
    else:
        found = _decide_alone(replace(request, gpus=count), state)
    if not isinstance(found, Grant):
        return found
    number = "?" if job.rank is None else job.rank
    reason = f"rank {number} of {job.title}, of {job.ranks} on this node: {found.reason}"
    return replace(found, own=tuple(_own_part(job, found.placement.gpus)), reason=reason)


def _grant_group(
    request: Request,
    state: State,
    admitted: Sequence[Gpu],
    group: Sequence[str],
    must_be_free: Sequence[str],
) -> Decision:
    """Grant the GPUs of a step's ranks that are known already, in their order.

    Args:
        must_be_free: those of them that nobody else may have.
    """
    by_uuid = {gpu.uuid: gpu for gpu in admitted}
    gpus = [by_uuid[uuid] for uuid in group if uuid in by_uuid]
    if len(gpus) < len(group):
        return Refuse(
            f"{gpus_text(len(group))} are set for these ranks: {len(gpus)} of them are admitted"
        )
    reach = reach_of(request, state, gpus, gpus)
    busy = [uuid for uuid in must_be_free if uuid in reach.busy_until_s]
    if busy:
        users = [reach.used[uuid] for uuid in busy if uuid in reach.used]
        unfit = [reach.unfit[uuid] for uuid in busy if uuid in reach.unfit]
        count = len(must_be_free)
        free = count - len(busy)
        return Wait(too_few_text(count, free, count, users, narrowed=True, unfit=unfit))
    problem = pose_problem(request, state, gpus, gpus, len(gpus))
    found = choose(request, problem)
    if isinstance(found, Unfit):
        return Wait(found.reason)
    placement = replace(found, gpus=tuple(gpu.index for gpu in gpus))
    return Grant("as is set for its ranks", placement, problem)


def _count_for_all(request: Request, job: EngineJob, admitted: Sequence[Gpu]) -> int | Unfit:
    """Return how many GPUs the ranks on this node have together: as many for each.

    Args:
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


def _group_of(job: EngineJob, leases: Sequence[Lease], count: int) -> tuple[str, ...] | Unfit:
    """Return the UUIDs of the GPUs that a step's ranks have here; empty if none has begun."""
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


def _own_part(job: EngineJob, group: Sequence[T]) -> Sequence[T]:
    """Return those of a step's GPUs, in rank order, that the launch's own rank has."""
    each = len(group) // job.ranks
    return group[job.local_rank * each : (job.local_rank + 1) * each]


def _decide_exclusive(request: Request, state: State, reach: Reach, count: int) -> Decision:
    """Decide about GPUs for the job alone."""
    admitted = reach.admitted
    free = {gpu.uuid for gpu in reach.free}
    choosable = [gpu for gpu in admitted if gpu.uuid in free]
    ahead, uuids = queued(state.ahead, state.within), [gpu.uuid for gpu in admitted]
    bars = barring(ahead, uuids, request, count, reach.busy_until_s, state.clock_s)
    wanted = {uuid for ticket in bars for uuid in ticket.uuids}
    unwanted = [gpu for gpu in choosable if gpu.uuid not in wanted]
    is_barred = count > len(unwanted) or (request.in_order and bool(bars))
    narrowed = len(admitted) < len(reach.scope)
    if count > len(choosable):
        users = [reach.used[gpu.uuid] for gpu in admitted if gpu.uuid in reach.used]
        unfit = [reach.unfit[gpu.uuid] for gpu in admitted if gpu.uuid in reach.unfit]
        reason = too_few_text(
            count, len(choosable), len(admitted), users, narrowed=narrowed, unfit=unfit
        )
    elif is_barred:
        reason = queued_text(count, len(choosable), len(admitted), bars, narrowed=narrowed)
    else:
        found = _grant_free(request, state, reach, unwanted, count)
        if isinstance(found, Grant):
            return found
        reason = found.reason
    behind = last_before(competing(ahead, uuids), request, state.clock_s)
    hopeless = why_hopeless(request, state.topology, admitted, count)
    if hopeless:
        return Refuse(hopeless)
    return Wait(reason, behind, is_barred=is_barred and count <= len(choosable))


def _grant_free(
    request: Request, state: State, reach: Reach, choosable: Sequence[Gpu], count: int
) -> Grant | Unfit:
    """Grant free GPUs: of MIG instances the smallest that will do.

    A request that would share tries those GPUs first that can be shared.
    """
    for instances in instances_by_size(choosable):
        found = _grant_some(request, state, reach, instances, count)
        if isinstance(found, Grant):
            return found
    shareable: Sequence[Gpu] = ()
    if request.sharing:
        shareable = [gpu for gpu in choosable if gpu.uuid not in request.sharing.unfit]
    if len(shareable) >= count:
        found = _grant_some(request, state, reach, shareable, count)
        if isinstance(found, Grant):
            return found
    return _grant_some(request, state, reach, choosable, count)


def _grant_some(
    request: Request, state: State, reach: Reach, choosable: Sequence[Gpu], count: int
) -> Grant | Unfit:
    problem = pose_problem(request, state, reach.free, choosable, count, reach.scope)
    found = choose(request, problem)
    if isinstance(found, Unfit):
        return found
    return Grant(best_text(found, request.policy, problem), found, problem)
