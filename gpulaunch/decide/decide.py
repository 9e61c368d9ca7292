"""A request meets the topology and the leases; out comes a decision."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.decide.choose import choose, pose_problem
from gpulaunch.decide.needs import gpus_to_avoid
from gpulaunch.decide.placement.place import Placement
from gpulaunch.decide.placement.policies import CHEAPEST_POLICY, POLICIES
from gpulaunch.decide.placement.problem import PlacementProblem
from gpulaunch.decide.request import Request, Unfit
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.queue import barring, competing
from gpulaunch.leases.ticket import Ticket
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record, replace
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:  # what few launches need, the others do not load
    from gpulaunch.decide.share_options import ShareOption, ShareSituation
    from gpulaunch.machine.driver import OutsideUse


class Situation(Record):
    """The machine as a request meets it.

    Attributes:
        topology: the machine.
        leases: all live leases of this machine's table.
        outside: use of GPUs that no lease explains.
        within: the live lease that this launch runs inside of, or None; its GPUs are then the whole
            machine.
        ahead: earlier requests in the queue, of whatever GPUs, in their order.
        clock_s: seconds since boot, for how long those may be passed.
    """

    topology: Topology
    leases: Sequence[Lease] = ()
    outside: "Sequence[OutsideUse]" = ()
    within: Lease | None = None
    ahead: Sequence[Ticket] = ()
    clock_s: float = 0.0

    @property
    def neighbours(self) -> list[Lease]:
        """The leases of other jobs; those that this launch runs inside of are its own."""
        own = (self.within.id, *self.within.ancestors) if self.within else ()
        return [lease for lease in self.leases if lease.id not in own]


class Grant(Record):
    """Yes: these GPUs.

    Attributes:
        reason: why these.
        placement: the GPUs with their scores.
        problem: the placement problem that they solve.
        share_option: the share group that they are, or become; None if the job has them to itself.
        exclusive_reason: why a job that would share has them to itself; None if it shares, or would
            not.
    """

    reason: str
    placement: Placement
    problem: PlacementProblem
    share_option: "ShareOption | None" = None
    exclusive_reason: str | None = None


class Wait(Record):
    """Not now: too few of the GPUs that would do are free, or earlier requests come first.

    Attributes:
        reason: what is missing.
        barred_by: the last of the earlier requests that this one may not pass, or None.
    """

    reason: str
    barred_by: Ticket | None = None


class Refuse(Record):
    """Never, on this machine with these constraints."""

    reason: str


Decision = Grant | Wait | Refuse


def admitted_gpus(request: Request, topology: Topology, within: Lease | None = None) -> list[Gpu]:
    """Return the GPUs that the request admits, busy or not.

    A MIG instance, a slice of a card, is for requests that no whole GPU would satisfy.

    Args:
        request: what is asked.
        topology: the machine.
        within: the lease that this launch runs inside of; only its GPUs are admitted.
    """
    found = []
    for gpu in topology.gpus:
        in_reach = within is None or gpu.uuid in within.uuids
        if in_reach and all(gpu.uuid in constraint.uuids for constraint in request.constraints):
            found.append(gpu)
    return [gpu for gpu in found if not gpu.mig] or found


def decide(request: Request, situation: Situation) -> Decision:
    """Decide whether the request can start now, and on which GPUs.

    Args:
        request: what is asked.
        situation: what it meets.
    """
    topology, within = situation.topology, situation.within
    admitted = admitted_gpus(request, topology, within)
    scope = [gpu for gpu in topology.gpus if within is None or gpu.uuid in within.uuids]
    count = len(admitted) if request.gpus is None else request.gpus
    if not 1 <= count <= len(admitted):
        return Refuse(_too_many_text(request, topology, len(scope), len(admitted), within))
    if count > 1 and admitted[0].mig:
        return Refuse(
            f"{gpus_text(count)} requested: a process can use one MIG instance at most, "
            "and only those would do"
        )

    state = _state_of(request, situation, scope)
    if not request.sharing:
        return _decide_exclusive(request, situation, state, admitted, count)
    shared = _decide_shared(request, situation, state, admitted, count)
    if isinstance(shared, Grant):
        return shared
    decision = _decide_exclusive(request, situation, state, admitted, count)
    if isinstance(decision, Grant):
        return _open_group(request, situation, decision)
    if isinstance(decision, Wait) and shared.reason:
        decision = replace(
            decision, reason=f"{decision.reason}; of those to share: {shared.reason}"
        )
    return decision


class _State(Record):
    """The GPUs in reach at the moment.

    Attributes:
        scope: all of them.
        used: who uses which of them without a lease, by UUID.
        apart: UUIDs of those beside a job that the request stays apart from.
        free: those that nobody uses.
    """

    scope: Sequence[Gpu]
    used: dict[str, str]
    apart: set[str]
    free: Sequence[Gpu]


def _state_of(request: Request, situation: Situation, scope: Sequence[Gpu]) -> _State:
    leased = leased_uuids(situation.topology, situation.leases, situation.within)
    used = used_outside(situation, leased)
    apart = gpus_to_avoid(request, situation.topology, situation.neighbours)
    free = [gpu for gpu in scope if gpu.uuid not in leased and gpu.uuid not in used]
    return _State(scope, used, apart, free)


def _decide_exclusive(
    request: Request, situation: Situation, state: _State, admitted: Sequence[Gpu], count: int
) -> Decision:
    """Decide about GPUs for the job alone."""
    free = {gpu.uuid for gpu in state.free}
    choosable = [gpu for gpu in admitted if gpu.uuid in free and gpu.uuid not in state.apart]
    rivals = competing(situation.ahead, situation.within, [gpu.uuid for gpu in admitted])
    bar = barring(rivals, count, free, situation.clock_s, choosy=request.is_choosy)
    narrowed = len(admitted) < len(state.scope)
    if count > len(choosable):
        kept = sum(gpu.uuid in free and gpu.uuid in state.apart for gpu in admitted)
        users = [state.used[gpu.uuid] for gpu in admitted if gpu.uuid in state.used]
        reason = _too_few_text(count, len(choosable), len(admitted), users, kept, narrowed=narrowed)
    elif bar:
        reason = _queued_text(count, len(choosable), len(admitted), rivals, narrowed=narrowed)
    else:
        found = _grant_free(request, situation, state, choosable, count)
        if isinstance(found, Grant):
            return found
        reason = found.reason
    return _refuse_if_hopeless(request, situation.topology, admitted, count) or Wait(reason, bar)


def _grant_free(
    request: Request, situation: Situation, state: _State, choosable: Sequence[Gpu], count: int
) -> Grant | Unfit:
    """Grant free GPUs; a request that would share tries those first that can be shared."""
    shareable: Sequence[Gpu] = ()
    if request.sharing:
        shareable = [gpu for gpu in choosable if gpu.uuid not in request.sharing.unfit]
    if len(shareable) >= count:
        found = _grant_some(request, situation, state, shareable, count)
        if isinstance(found, Grant):
            return found
    return _grant_some(request, situation, state, choosable, count)


def _grant_some(
    request: Request, situation: Situation, state: _State, choosable: Sequence[Gpu], count: int
) -> Grant | Unfit:
    problem = pose_problem(
        request,
        situation.topology,
        state.free,
        choosable,
        count,
        situation.neighbours,
        state.scope,
    )
    found = choose(request, problem)
    if isinstance(found, Unfit):
        return found
    return Grant(_best_text(found, request.policy, problem), found, problem)


def _decide_shared(
    request: Request, situation: Situation, state: _State, admitted: Sequence[Gpu], count: int
) -> Grant | Unfit:
    """Grant GPUs that other jobs of the same user share, or say why none of those will do."""
    from gpulaunch.decide.share_options import best_option  # late: few launches share

    found = best_option(request, _share_situation(request, situation, state, admitted), count)
    if isinstance(found, Unfit):
        return found
    beside = ", ".join(_job_text(lease) for lease in found.option.residents)
    return Grant(f"shared with {beside}", found.placement, found.problem, found.option)


def _share_situation(
    request: Request, situation: Situation, state: _State, admitted: Sequence[Gpu]
) -> "ShareSituation":
    from gpulaunch.decide.share_options import ShareSituation

    free = {gpu.uuid for gpu in state.free}

    def is_barred(uuids: Sequence[str]) -> bool:
        rivals = competing(situation.ahead, situation.within, uuids)
        return barring(rivals, 0, free, situation.clock_s, choosy=request.is_choosy) is not None

    return ShareSituation(
        situation.topology,
        situation.neighbours,
        [gpu for gpu in admitted if gpu.uuid not in state.apart],
        state.free,
        state.used,
        is_barred,
    )


def assess_share_groups(request: Request, situation: Situation) -> "list[tuple[ShareOption, str]]":
    """Return each share group that a request could join, the best first, with its GPUs' names.

    Args:
        request: one that shares.
        situation: what it meets.
    """
    from gpulaunch.decide.share_options import assess_options, gpu_names_of

    topology = situation.topology
    admitted = admitted_gpus(request, topology, situation.within)
    state = _state_of(request, situation, admitted)
    meets = _share_situation(request, situation, state, admitted)
    groups = []
    for option, found in assess_options(request, meets, request.gpus or len(admitted)):
        refusal = found.reason if isinstance(found, Unfit) else None
        groups.append((replace(option, refusal=refusal), gpu_names_of(topology, option)))
    return groups


def _open_group(request: Request, situation: Situation, grant: Grant) -> Grant:
    """Return a grant of free GPUs with the share group that they become, if they can be shared."""
    from gpulaunch.decide.share_options import new_group  # late: few launches share

    uuids = [gpu.uuid for gpu in situation.topology.gpus if gpu.index in grant.placement.gpus]
    option = new_group(request, uuids, situation.neighbours)
    if option.refusal:
        return replace(grant, exclusive_reason=option.refusal)
    return replace(grant, share_option=option)


def _job_text(lease: Lease) -> str:
    return f"{lease.name or lease.profile or 'a job'} ({lease.id})"


def _refuse_if_hopeless(
    request: Request, topology: Topology, admitted: Sequence[Gpu], count: int
) -> Refuse | None:
    """Refuse a request whose wishes not even the idle machine meets."""
    if not request.is_choosy:
        return None
    if not POLICIES[request.policy].waits_for_utility:
        request = replace(request, policy=CHEAPEST_POLICY)  # any set that fits will do
    problem = pose_problem(request, topology, topology.gpus, admitted, count, ())
    found = choose(request, problem, topology.name)
    return Refuse(found.reason) if isinstance(found, Unfit) else None


def leased_uuids(
    topology: Topology, leases: Sequence[Lease], within: Lease | None = None
) -> set[str]:
    """Return the UUIDs of GPUs that others hold.

    A card that was leased before it was split into MIG instances is held with all of these.

    Args:
        topology: the machine.
        leases: all live leases.
        within: the lease that this launch runs inside of; then others are those inside it.
    """
    own = (within.id, *within.ancestors) if within else ()
    leased: set[str] = set()
    for lease in leases:
        if lease.id not in own and (within is None or lease.user_id in within.insiders):
            leased.update(lease.uuids)
    split = {gpu.uuid for gpu in topology.gpus if gpu.mig and gpu.mig.card_uuid in leased}
    return leased | split


def used_outside(situation: Situation, leased: set[str]) -> dict[str, str]:
    """Return who uses which GPU without a lease, by UUID; inside a lease nobody does."""
    if situation.within:
        return {}
    return {use.uuid: use.who for use in situation.outside if use.uuid not in leased}


def _too_many_text(
    request: Request, topology: Topology, scope: int, admitted: int, within: Lease | None
) -> str:
    asked = f"{'every GPU' if request.gpus is None else gpus_text(request.gpus)} requested"
    if request.pattern.ranks:
        asked = f"pattern {request.pattern.name} has {request.pattern.ranks} ranks"
    place_name = f"lease {within.id}" if within else topology.name
    if admitted == scope:
        return f"{asked}: {place_name} has {scope}"
    some = f"{asked}: {admitted} of {place_name}'s {scope}"
    options = ", ".join(constraint.text for constraint in request.constraints)
    if not options:
        return f"{some} are whole GPUs, the others MIG instances"
    return f"{some} satisfy {options}"


def _free_text(free: int, admitted: int, *, narrowed: bool) -> str:
    of_all = f"{free} of {admitted}{' admitted' if narrowed else ''}"
    return f"{of_all} {'is' if free == 1 else 'are'} free"


def _queued_text(
    count: int, free: int, admitted: int, rivals: Sequence[Ticket], *, narrowed: bool
) -> str:
    earlier = "an earlier request" if len(rivals) == 1 else f"{len(rivals)} earlier requests"
    wanted = gpus_text(sum(ticket.gpus for ticket in rivals))
    verb = "waits" if len(rivals) == 1 else "wait"
    found = _free_text(free, admitted, narrowed=narrowed)
    return f"{gpus_text(count)} requested: {found}, but {earlier} for {wanted} {verb}"


def _too_few_text(
    count: int, free: int, admitted: int, users: Sequence[str], kept: int, *, narrowed: bool
) -> str:
    leased = admitted - free - len(users) - kept
    found = _free_text(free, admitted, narrowed=narrowed)
    parts = [found.replace(" free", " to be had") if kept else found]
    if leased:
        parts.append(f"{leased} {'is' if leased == 1 else 'are'} leased")
    if users:
        verb = "is" if len(users) == 1 else "are"
        names = "; ".join(dict.fromkeys(users))
        parts.append(f"{len(users)} {verb} in use outside gpulaunch ({names})")
    if kept:
        parts.append(f"{kept} {'is' if kept == 1 else 'are'} next to a job to stay apart from")
    return f"{gpus_text(count)} requested: {', '.join(parts)}"


def _best_text(placement: Placement, policy: str, problem: PlacementProblem) -> str:
    of_all = f"{placement.candidates} candidates"
    if placement.candidates == 1:
        return "the only choice"
    if placement.chosen_by_policy:
        useful = "" if placement.utility is None else f", utility {placement.utility:.2f}"
        return f"what policy {policy.replace('_', '-')} makes of {of_all}{useful}"
    if not placement.by:
        return f"lowest indices of {of_all}"
    value = getattr(placement.scores, placement.by[0])
    if value is None:
        return f"as good as any of {of_all}"
    word = placement.by[0].replace("_", " ")
    if problem.too_many:
        return f"a good {word}, of {of_all} too many to compare: {value:.4g} GB/s"
    return f"best {word} of {of_all}: {value:.4g} GB/s"
