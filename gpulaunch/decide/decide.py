"""A request meets the topology and the leases; out comes a decision."""
# pure: decides on plain values

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

from gpulaunch.decide.decision import (
    Decision,
    Grant,
    Refuse,
    ShareOption,
    State,
    Wait,
    best_text,
    queued_text,
    too_few_text,
    too_many_text,
)
from gpulaunch.decide.needs import (
    admitted_gpus,
    choose,
    gpus_to_avoid,
    instances_by_size,
    leased_until_s,
    pose_problem,
    why_hopeless,
)
from gpulaunch.decide.request import Request, Unfit, with_count
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.queue import ENDLESS, Claim, barring, competing, last_before, queued
from gpulaunch.machine.gpu import Gpu, gpus_text
from gpulaunch.records import Record, replace

if TYPE_CHECKING:  # what few launches need, the others do not load
    from gpulaunch.decide.share_options import ShareReach
    from gpulaunch.leases.lease import EngineJob
    from gpulaunch.machine.driver import OutsideUse


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

    reach = _reach_of(request, state, scope)
    if not request.sharing:
        return _decide_exclusive(request, state, reach, admitted, count)
    shared = _decide_shared(request, state, reach, admitted, count)
    if isinstance(shared, Grant):
        return shared
    decision = _decide_exclusive(request, state, reach, admitted, count)
    if isinstance(decision, Grant):
        return _open_group(request, state, decision)
    if isinstance(decision, Wait) and shared.reason:
        decision = replace(
            decision, reason=f"{decision.reason}; of those to share: {shared.reason}"
        )
    return decision


def _decide_for_rank(request: Request, job: "EngineJob", state: State) -> Decision:
    """Decide for one of several ranks that divide GPUs: as the first did, if it has begun."""
    topology = state.topology
    admitted = admitted_gpus(request, topology, state.within)
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
        request: that of all ranks.
        state: what it meets.
        admitted: GPUs that the request admits.
        group: UUIDs of the ranks' GPUs.
        must_be_free: those of them that nobody else may have.
    """
    by_uuid = {gpu.uuid: gpu for gpu in admitted}
    gpus = [by_uuid[uuid] for uuid in group if uuid in by_uuid]
    if len(gpus) < len(group):
        return Refuse(
            f"{gpus_text(len(group))} are set for these ranks: {len(gpus)} of them are admitted"
        )
    topology = state.topology
    reach = _reach_of(request, state, gpus)
    busy = [uuid for uuid in must_be_free if uuid in reach.busy_until_s]
    if busy:
        users = [reach.used[uuid] for uuid in busy if uuid in reach.used]
        unfit = [reach.unfit[uuid] for uuid in busy if uuid in reach.unfit]
        count = len(must_be_free)
        free = count - len(busy)
        return Wait(too_few_text(count, free, count, users, 0, narrowed=True, unfit=unfit))
    problem = pose_problem(request, topology, gpus, gpus, len(gpus), state.neighbours)
    found = choose(request, problem)
    if isinstance(found, Unfit):
        return Wait(found.reason)
    placement = replace(found, gpus=tuple(gpu.index for gpu in gpus))
    return Grant("as is set for its ranks", placement, problem)


def _count_for_all(request: Request, job: "EngineJob", admitted: Sequence[Gpu]) -> int | Unfit:
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


def _group_of(job: "EngineJob", leases: Sequence[Lease], count: int) -> tuple[str, ...] | Unfit:
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


def _own_part(job: "EngineJob", group: Sequence[T]) -> Sequence[T]:
    """Return those of a step's GPUs, in rank order, that the launch's own rank has."""
    each = len(group) // job.ranks
    return group[job.local_rank * each : (job.local_rank + 1) * each]


class _Reach(Record):
    """The GPUs in reach at the moment.

    Attributes:
        scope: all of them.
        used: the use of some of them without a lease, by UUID.
        unfit: why some that nobody holds are out of service, by UUID.
        apart: UUIDs of those beside a job that the request stays apart from.
        free: those that nobody uses.
        busy_until_s: seconds since boot at which the others are free at the latest, by UUID.
    """

    scope: Sequence[Gpu]
    used: "dict[str, OutsideUse]"
    unfit: dict[str, str]
    apart: set[str]
    free: Sequence[Gpu]
    busy_until_s: dict[str, float]


def _reach_of(request: Request, state: State, scope: Sequence[Gpu]) -> _Reach:
    job = request.engine_job
    leased = leased_until_s(state.topology, state.leases, state.within, job)
    # What an engine shares is in use by others of its jobs, whether or not they have a lease.
    taken = used_outside(state, leased)
    unfit = {uuid: why for uuid, why in out_of_service(state).items() if uuid in taken}
    used = {} if job and job.shared else {u: use for u, use in taken.items() if u not in unfit}
    apart = gpus_to_avoid(request, state.topology, state.neighbours)
    busy_until_s = leased | dict.fromkeys((*used, *unfit), ENDLESS)
    free = [gpu for gpu in scope if gpu.uuid not in busy_until_s]
    return _Reach(scope, used, unfit, apart, free, busy_until_s)


def _decide_exclusive(
    request: Request, state: State, reach: _Reach, admitted: Sequence[Gpu], count: int
) -> Decision:
    """Decide about GPUs for the job alone."""
    free = {gpu.uuid for gpu in reach.free}
    choosable = [gpu for gpu in admitted if gpu.uuid in free and gpu.uuid not in reach.apart]
    ahead, uuids = queued(state.ahead, state.within), [gpu.uuid for gpu in admitted]
    claim = _claim_of(request, state, count)
    bars = barring(ahead, uuids, claim, reach.busy_until_s, state.clock_s)
    wanted = {uuid for ticket in bars for uuid in ticket.uuids}
    unwanted = [gpu for gpu in choosable if gpu.uuid not in wanted]
    is_barred = count > len(unwanted) or (request.in_order and bool(bars))
    narrowed = len(admitted) < len(reach.scope)
    if count > len(choosable):
        kept = sum(gpu.uuid in free and gpu.uuid in reach.apart for gpu in admitted)
        users = [reach.used[gpu.uuid] for gpu in admitted if gpu.uuid in reach.used]
        unfit = [reach.unfit[gpu.uuid] for gpu in admitted if gpu.uuid in reach.unfit]
        reason = too_few_text(
            count, len(choosable), len(admitted), users, kept, narrowed=narrowed, unfit=unfit
        )
    elif is_barred:
        reason = queued_text(count, len(choosable), len(admitted), bars, narrowed=narrowed)
    else:
        found = _grant_free(request, state, reach, unwanted, count)
        if isinstance(found, Grant):
            return found
        reason = found.reason
    behind = last_before(competing(ahead, uuids), claim, state.clock_s)
    hopeless = why_hopeless(request, state.topology, admitted, count)
    if hopeless:
        return Refuse(hopeless)
    return Wait(reason, behind, is_barred=is_barred and count <= len(choosable))


def _claim_of(request: Request, state: State, count: int) -> Claim:
    """Return what the request asks of the queue if it starts now."""
    within_s = request.ends_within_s
    ends_s = ENDLESS if within_s is None else state.clock_s + within_s
    return Claim(count, ends_s, request.is_choosy, request.in_order)


def _grant_free(
    request: Request, state: State, reach: _Reach, choosable: Sequence[Gpu], count: int
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
    request: Request, state: State, reach: _Reach, choosable: Sequence[Gpu], count: int
) -> Grant | Unfit:
    problem = pose_problem(
        request,
        state.topology,
        reach.free,
        choosable,
        count,
        state.neighbours,
        reach.scope,
    )
    found = choose(request, problem)
    if isinstance(found, Unfit):
        return found
    return Grant(best_text(found, request.policy, problem), found, problem)


def _decide_shared(
    request: Request, state: State, reach: _Reach, admitted: Sequence[Gpu], count: int
) -> Grant | Unfit:
    """Grant GPUs that other jobs of the same user share, or say why none of those will do."""
    from gpulaunch.decide.share_options import best_option  # late: few launches share

    return best_option(request, _share_reach(request, state, reach, admitted), count)


def _share_reach(
    request: Request, state: State, reach: _Reach, admitted: Sequence[Gpu]
) -> "ShareReach":
    from gpulaunch.decide.share_options import ShareReach

    # It takes no GPU from those that wait for free ones.
    claim, ahead = _claim_of(request, state, 0), queued(state.ahead, state.within)
    unfit = out_of_service(state)

    def is_barred(uuids: Sequence[str]) -> bool:
        if request.in_order:
            uuids = [gpu.uuid for gpu in admitted]
        return bool(barring(ahead, uuids, claim, reach.busy_until_s, state.clock_s))

    return ShareReach(
        state.topology,
        state.neighbours,
        [gpu for gpu in admitted if gpu.uuid not in reach.apart and gpu.uuid not in unfit],
        reach.free,
        reach.used,
        is_barred,
    )


def assess_share_groups(request: Request, state: State) -> list[tuple[ShareOption, str]]:
    """Return each share group that a request could join, the best first, with its GPUs' names."""
    from gpulaunch.decide.share_options import assess_options, gpu_names_of

    topology = state.topology
    admitted = admitted_gpus(request, topology, state.within)
    reach = _reach_of(request, state, admitted)
    meets = _share_reach(request, state, reach, admitted)
    groups = []
    for option, found in assess_options(request, meets, request.gpus or len(admitted)):
        refusal = found.reason if isinstance(found, Unfit) else None
        groups.append((replace(option, refusal=refusal), gpu_names_of(topology, option)))
    return groups


def _open_group(request: Request, state: State, grant: Grant) -> Grant:
    """Return a grant of free GPUs with the share group that they become, if they can be shared."""
    from gpulaunch.decide.share_options import new_group  # late: few launches share

    uuids = [gpu.uuid for gpu in state.topology.gpus if gpu.index in grant.placement.gpus]
    option = new_group(request, uuids, state.neighbours)
    if option.refusal:
        return replace(grant, exclusive_reason=option.refusal)
    return replace(grant, share_option=option)


def used_outside(state: State, leased: Collection[str]) -> "dict[str, OutsideUse]":
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
