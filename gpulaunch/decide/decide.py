"""A request meets the topology and the leases; out comes a decision."""
# pure: decides on plain values

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpulaunch.decide.choose import best_of, choose
from gpulaunch.decide.needs import kept_apart
from gpulaunch.decide.placement.choice import Choice
from gpulaunch.decide.placement.place import Placement
from gpulaunch.decide.placement.policies import CHEAPEST_POLICY, POLICIES
from gpulaunch.decide.request import Request
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.queue import barring, competing
from gpulaunch.leases.ticket import Ticket
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.machine.outside_use import OutsideUse
from gpulaunch.machine.topology import Topology

if TYPE_CHECKING:  # what few launches need, the others do not load
    from gpulaunch.decide.share_candidates import Place
    from gpulaunch.decide.share_options import Joining


class Situation(NamedTuple):
    """What a request meets.

    Attributes:
        topology: the machine.
        leases: all live ones of this machine's table.
        outside: use that no lease explains.
        within: the live lease that this launch runs inside of, or None; its GPUs are then the whole
            machine.
        ahead: earlier requests in the queue, of whatever GPUs, in their order.
        clock_s: seconds since boot, for how long those may be passed.
    """

    topology: Topology
    leases: Sequence[Lease] = ()
    outside: Sequence[OutsideUse] = ()
    within: Lease | None = None
    ahead: Sequence[Ticket] = ()
    clock_s: float = 0.0

    @property
    def neighbours(self) -> list[Lease]:
        """The leases of other jobs; those that this launch runs inside of are its own."""
        own = (self.within.id, *self.within.ancestors) if self.within else ()
        return [lease for lease in self.leases if lease.id not in own]


class Grant(NamedTuple):
    """Yes: these GPUs.

    Attributes:
        reason: why these.
        placement: the GPUs with their scores.
        choice: what they were chosen from.
        joining: with whom they are shared, or will be; None if they are the job's own.
        own_because: why they are, although the job would share; None if it would not.
    """

    reason: str
    placement: Placement
    choice: Choice
    joining: "Joining | None" = None
    own_because: str | None = None


class Wait(NamedTuple):
    """Not now: enough GPUs would do, but too few of them are free, or earlier requests have a right to them.

    Attributes:
        reason: what is missing.
        barred_by: the last of the earlier requests that this one may not pass, or None.
    """

    reason: str
    barred_by: Ticket | None = None


class Refuse(NamedTuple):
    """Never, on this machine with these constraints."""

    reason: str


Decision = Grant | Wait | Refuse


def admitted_gpus(request: Request, topology: Topology, within: Lease | None = None) -> list[Gpu]:
    """The GPUs that would do, busy or not: within the lease that this launch runs inside of, if there is one.

    A MIG instance, a slice of a card, is for requests that no whole GPU would satisfy.
    """
    found = [
        gpu
        for gpu in topology.gpus
        if (within is None or gpu.uuid in within.uuids)
        and all(gpu.uuid in c.uuids for c in request.constraints)
    ]
    return [gpu for gpu in found if not gpu.mig] or found


def decide(request: Request, situation: Situation) -> Decision:
    """Whether the request can start now, and on which GPUs.

    Args:
        request: what is asked.
        situation: what it meets.
    """
    topology, within = situation.topology, situation.within
    admitted = admitted_gpus(request, topology, within)
    scope = [gpu for gpu in topology.gpus if within is None or gpu.uuid in within.uuids]
    count = len(admitted) if request.gpus is None else request.gpus
    if not 1 <= count <= len(admitted):
        return Refuse(_too_many(request, topology, len(scope), len(admitted), within))
    if count > 1 and admitted[0].mig:
        return Refuse(
            f"{gpus_text(count)} requested: a process can use one MIG instance at most, and only those would do"
        )

    state = _state(request, situation, scope)
    if not request.sharing:
        return _own(request, situation, state, admitted, count)
    joined = _joined(request, situation, state, admitted, count)
    if isinstance(joined, Grant):
        return joined
    decision = _own(request, situation, state, admitted, count)
    if isinstance(decision, Grant):
        return _opened(request, situation, decision)
    return (
        decision._replace(reason=decision.reason + joined)
        if isinstance(decision, Wait)
        else decision
    )


class _State(NamedTuple):
    """What the GPUs in reach are at the moment.

    Attributes:
        scope: all of them.
        used: who uses what without a lease, by UUID.
        apart: UUIDs of those where a job runs beside that is to be stayed apart from.
        free: those that nobody uses.
    """

    scope: Sequence[Gpu]
    used: dict[str, str]
    apart: set[str]
    free: Sequence[Gpu]


def _state(request: Request, situation: Situation, scope: Sequence[Gpu]) -> _State:
    leased = leased_uuids(situation.topology, situation.leases, situation.within)
    used = used_outside(situation, leased)
    apart = kept_apart(request, situation.topology, situation.neighbours)
    return _State(
        scope,
        used,
        apart,
        [gpu for gpu in scope if gpu.uuid not in leased and gpu.uuid not in used],
    )


def _own(
    request: Request, situation: Situation, state: _State, admitted: Sequence[Gpu], count: int
) -> Grant | Wait | Refuse:
    """GPUs for the job alone."""
    topology = situation.topology
    free = {gpu.uuid for gpu in state.free}
    choosable = [gpu for gpu in admitted if gpu.uuid in free and gpu.uuid not in state.apart]
    rivals = competing(situation.ahead, situation.within, [gpu.uuid for gpu in admitted])
    bar = barring(rivals, count, free, situation.clock_s, choosy=request.is_choosy)
    narrowed = len(admitted) < len(state.scope)
    if count > len(choosable):
        kept = sum(gpu.uuid in free and gpu.uuid in state.apart for gpu in admitted)
        users = [state.used[gpu.uuid] for gpu in admitted if gpu.uuid in state.used]
        reason = _too_few(count, len(choosable), len(admitted), users, kept, narrowed=narrowed)
        return _hopeless(request, topology, admitted, count) or Wait(reason, bar)
    if bar:
        reason = _queued(count, len(choosable), len(admitted), rivals, narrowed=narrowed)
        return _hopeless(request, topology, admitted, count) or Wait(reason, bar)

    for some in (_fit(request, choosable), choosable):
        if len(some) < count:
            continue
        choice = choose(
            request, topology, state.free, some, count, situation.neighbours, state.scope
        )
        found = best_of(request, choice)
        if not isinstance(found, str):
            return Grant(_best(found, request.policy, choice), found, choice)
    return _hopeless(request, topology, admitted, count) or Wait(str(found))


def _fit(request: Request, gpus: Sequence[Gpu]) -> Sequence[Gpu]:
    """Those that can be shared, if the request would like to; they are tried first."""
    return [gpu for gpu in gpus if gpu.uuid not in request.sharing.unfit] if request.sharing else ()


def _joined(
    request: Request, situation: Situation, state: _State, admitted: Sequence[Gpu], count: int
) -> Grant | str:
    """The grant of GPUs that others of the same user have, or why there is none, to be added to a reason."""
    from gpulaunch.decide.share_candidates import Joined, join  # late: few launches share

    found = join(request, _place(request, situation, state, admitted), count)
    if isinstance(found, Joined):
        beside = ", ".join(_job(lease) for lease in found.joining.residents)
        return Grant(f"shared with {beside}", found.placement, found.choice, found.joining)
    return f"; of those to share: {'; '.join(found)}" if found else ""


def _place(
    request: Request, situation: Situation, state: _State, admitted: Sequence[Gpu]
) -> "Place":
    from gpulaunch.decide.share_candidates import Place

    free = {gpu.uuid for gpu in state.free}

    def barred(uuids: Sequence[str]) -> bool:
        rivals = competing(situation.ahead, situation.within, uuids)
        return barring(rivals, 0, free, situation.clock_s, choosy=request.is_choosy) is not None

    near = [gpu for gpu in admitted if gpu.uuid not in state.apart]
    return Place(situation.topology, situation.neighbours, near, state.free, state.used, barred)


def share_groups(request: Request, situation: Situation) -> "list[tuple[Joining, str]]":
    """Every share group that a request which shares could join, and what its GPUs are called; the best first.

    Args:
        request: one that shares.
        situation: what it meets.
    """
    from gpulaunch.decide.share_candidates import named, tried

    admitted = admitted_gpus(request, situation.topology, situation.within)
    place = _place(request, situation, _state(request, situation, admitted), admitted)
    return [
        (
            one._replace(problem=found if isinstance(found, str) else None),
            named(situation.topology, one),
        )
        for one, found in tried(request, place, request.gpus or len(admitted))
    ]


def _opened(request: Request, situation: Situation, grant: Grant) -> Grant:
    """GPUs that were free, to be shared by those who come later, if they can be."""
    from gpulaunch.decide.share_candidates import opened  # late: few launches share

    uuids = [gpu.uuid for gpu in situation.topology.gpus if gpu.index in grant.placement.gpus]
    found = opened(request, uuids, situation.neighbours)
    return (
        grant._replace(own_because=found.problem)
        if found.problem
        else grant._replace(joining=found)
    )


def _job(lease: Lease) -> str:
    return f"{lease.name or lease.profile or 'a job'} ({lease.id})"


def _hopeless(
    request: Request, topology: Topology, admitted: Sequence[Gpu], count: int
) -> Refuse | None:
    """The refusal, if not even the idle machine has GPUs that are what the job needs together."""
    if not request.is_choosy:
        return None
    if not POLICIES[request.policy].waits_for_utility:
        request = request._replace(policy=CHEAPEST_POLICY)  # any set that fits will do
    found = best_of(
        request, choose(request, topology, topology.gpus, admitted, count, ()), topology.name
    )
    return Refuse(found) if isinstance(found, str) else None


def leased_uuids(
    topology: Topology, leases: Sequence[Lease], within: Lease | None = None
) -> set[str]:
    """GPUs that others have; inside a lease, others inside it.

    A card that was leased before it was split is theirs.
    """
    own = (within.id, *within.ancestors) if within else ()
    others = [
        lease
        for lease in leases
        if lease.id not in own and (within is None or lease.user_id in within.insiders)
    ]
    leased = {uuid for lease in others for uuid in lease.uuids}
    return leased | {gpu.uuid for gpu in topology.gpus if gpu.mig and gpu.mig.card_uuid in leased}


def used_outside(situation: Situation, leased: set[str]) -> dict[str, str]:
    """Who uses what without a lease, by UUID; inside a lease nobody does."""
    if situation.within:
        return {}
    return {use.uuid: use.who for use in situation.outside if use.uuid not in leased}


def _too_many(
    request: Request, topology: Topology, scope: int, admitted: int, within: Lease | None
) -> str:
    asked = f"{'every GPU' if request.gpus is None else gpus_text(request.gpus)} requested"
    if request.pattern.ranks:
        asked = f"pattern {request.pattern.name} has {request.pattern.ranks} ranks"
    place_name = f"lease {within.id}" if within else topology.name
    if admitted == scope:
        return f"{asked}: {place_name} has {scope}"
    options = ", ".join(constraint.text for constraint in request.constraints)
    if not options:
        return f"{asked}: {admitted} of {place_name}'s {scope} are whole GPUs, the others MIG instances"
    return f"{asked}: {admitted} of {place_name}'s {scope} satisfy {options}"


def _free(free: int, admitted: int, *, narrowed: bool) -> str:
    return (
        f"{free} of {admitted}{' admitted' if narrowed else ''} {'is' if free == 1 else 'are'} free"
    )


def _queued(
    count: int, free: int, admitted: int, rivals: Sequence[Ticket], *, narrowed: bool
) -> str:
    earlier = "an earlier request" if len(rivals) == 1 else f"{len(rivals)} earlier requests"
    wanted = gpus_text(sum(ticket.gpus for ticket in rivals))
    verb = "waits" if len(rivals) == 1 else "wait"
    found = _free(free, admitted, narrowed=narrowed)
    return f"{gpus_text(count)} requested: {found}, but {earlier} for {wanted} {verb}"


def _too_few(
    count: int, free: int, admitted: int, users: Sequence[str], kept: int, *, narrowed: bool
) -> str:
    leased = admitted - free - len(users) - kept
    found = _free(free, admitted, narrowed=narrowed)
    parts = [found.replace(" free", " to be had") if kept else found]
    if leased:
        parts.append(f"{leased} {'is' if leased == 1 else 'are'} leased")
    if users:
        verb = "is" if len(users) == 1 else "are"
        parts.append(
            f"{len(users)} {verb} in use outside gpulaunch ({'; '.join(dict.fromkeys(users))})"
        )
    if kept:
        parts.append(f"{kept} {'is' if kept == 1 else 'are'} next to a job to stay apart from")
    return f"{gpus_text(count)} requested: {', '.join(parts)}"


def _best(placement: Placement, policy: str, choice: Choice) -> str:
    of_all = f"{placement.candidates} candidates"
    if placement.candidates == 1:
        return "the only choice"
    if placement.made:
        useful = "" if placement.utility is None else f", utility {placement.utility:.2f}"
        return f"what policy {policy.replace('_', '-')} makes of {of_all}{useful}"
    if not placement.by:
        return f"lowest indices of {of_all}"
    value = getattr(placement.scores, placement.by[0])
    if value is None:
        return f"as good as any of {of_all}"
    word = placement.by[0].replace("_", " ")
    if choice.too_many:
        return f"a good {word}, of {of_all} too many to compare: {value:.4g} GB/s"
    return f"best {word} of {of_all}: {value:.4g} GB/s"
