"""What a request meets, and what comes of it: Grant, Wait or Refuse, with the words for why."""
# pure: decides on plain values

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulaunch.decide.request import Request
from gpulaunch.leases.lease import Lease, Share, Ticket
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.gpu import Gpu, gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.placement.policies import Placement
from gpulaunch.placement.problem import PlacementProblem
from gpulaunch.records import Record

if TYPE_CHECKING:  # few launches share
    from gpulaunch.sharing.interference import Verdict


class State(Record):
    """The machine as a request meets it.

    Attributes:
        outside: use of GPUs that no lease explains.
        within: the live lease that this launch runs inside of, or None; its GPUs are then the whole
            machine.
        ahead: earlier requests in the queue, of whatever GPUs, in their order.
        clock_s: seconds since boot, for how long those may be passed.
        unlocked: ids of the leases that no process holds any more, but a container may hold.
    """

    topology: Topology
    leases: Sequence[Lease] = ()
    outside: Sequence[OutsideUse] = ()
    within: Lease | None = None
    ahead: Sequence[Ticket] = ()
    clock_s: float = 0.0
    unlocked: frozenset[str] = frozenset()

    @property
    def neighbours(self) -> list[Lease]:
        """The leases of other jobs; those that this launch runs inside of are its own."""
        own = (self.within.id, *self.within.ancestors) if self.within else ()
        return [lease for lease in self.leases if lease.id not in own]


class ShareOption(Record):
    """GPUs that a job could share, and what becomes of them if it does.

    Attributes:
        group: UUIDs of the GPUs, ascending.
        residents: leases of the jobs that share them already; empty for a new group.
        verdict: what the interference rule says of residents and newcomer together, in this order.
        refusal: why the job must not share them; None if it may.
        share: what it would have of them then, as its lease records it, without the directory of
            the MPS daemon; None if it must not share them.
    """

    group: tuple[str, ...]
    residents: tuple[Lease, ...]
    verdict: "Verdict"
    refusal: str | None
    share: Share | None = None


class Grant(Record):
    """Yes: these GPUs.

    Attributes:
        share_option: the share group that they are, or become; None if the job has them to itself.
        exclusive_reason: why a job that would share has them to itself; None if it shares, or would
            not.
        own: indices of those that the launch's rank has, if the placement is that of all ranks of a
            step; None if the launch has them all.
    """

    reason: str
    placement: Placement
    problem: PlacementProblem
    share_option: ShareOption | None = None
    exclusive_reason: str | None = None
    own: tuple[int, ...] | None = None

    @property
    def indices(self) -> tuple[int, ...]:
        """Indices of the GPUs that the launch has, in rank order."""
        return self.placement.gpus if self.own is None else self.own

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs that the launch has, in rank order."""
        by_index = {gpu.index: gpu for gpu in self.problem.topology.gpus}
        return [by_index[index] for index in self.indices]

    @property
    def names(self) -> str:
        """Their names, as people write them: "3,0,1"."""
        return ",".join(gpu.name for gpu in self.gpus)


class Wait(Record):
    """Not now: too few of the GPUs that would do are free, or earlier requests come first.

    Attributes:
        behind: the earlier request that this one comes after, or None.
        is_barred: whether enough GPUs are free, and only earlier requests are in the way.
    """

    reason: str
    behind: Ticket | None = None
    is_barred: bool = False


class Refuse(Record):
    """Never, on this machine with these constraints."""

    reason: str


Decision = Grant | Wait | Refuse


def too_many_text(
    request: Request, topology: Topology, scope: int, admitted: int, within: Lease | None
) -> str:
    """Return why a request for more GPUs than there are can never start.

    Args:
        admitted: number of those that satisfy the request's constraints.
    """
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
    found = "; ".join(one.instead for one in request.constraints if not one.uuids and one.instead)
    return f"{some} satisfy {options}{': ' if found else ''}{found}"


def _free_text(free: int, admitted: int, *, narrowed: bool) -> str:
    of_all = f"{free} of {admitted}{' admitted' if narrowed else ''}"
    return f"{of_all} {'is' if free == 1 else 'are'} free"


def queued_text(
    count: int, free: int, admitted: int, rivals: Sequence[Ticket], *, narrowed: bool
) -> str:
    """Return why a request waits although enough GPUs are free."""
    earlier = "an earlier request" if len(rivals) == 1 else f"{len(rivals)} earlier requests"
    wanted = gpus_text(sum(ticket.gpus for ticket in rivals))
    verb = "waits" if len(rivals) == 1 else "wait"
    found = _free_text(free, admitted, narrowed=narrowed)
    return f"{gpus_text(count)} requested: {found}, but {earlier} for {wanted} {verb}"


def too_few_text(
    count: int,
    free: int,
    admitted: int,
    users: Sequence[OutsideUse],
    *,
    narrowed: bool,
    unfit: Sequence[str] = (),
) -> str:
    """Return why too few GPUs can be had.

    Args:
        free: number of those that would do and can be had.
        admitted: number of those that would do.
        users: the use of GPUs without a lease that has them, once for each GPU.
        narrowed: whether constraints exclude some GPUs in reach.
        unfit: why GPUs that nobody holds are out of service, once for each.
    """
    leased = admitted - free - len(users) - len(unfit)
    parts = [_free_text(free, admitted, narrowed=narrowed)]
    if leased:
        parts.append(f"{leased} {'is' if leased == 1 else 'are'} leased")
    for is_stray, where in ((False, "outside gpulaunch ({})"), (True, "by {}")):
        some = [use.who for use in users if bool(use.stray) == is_stray]
        if some:
            verb = "is" if len(some) == 1 else "are"
            names = "; ".join(dict.fromkeys(some))
            parts.append(f"{len(some)} {verb} in use {where.format(names)}")
    if unfit:
        verb = "is" if len(unfit) == 1 else "are"
        parts.append(f"{len(unfit)} {verb} out of service ({'; '.join(unfit)})")
    return f"{gpus_text(count)} requested: {', '.join(parts)}"


def best_text(placement: Placement, policy: str, problem: PlacementProblem) -> str:
    """Return why these GPUs were chosen."""
    of_all = f"{placement.candidates:,} candidates"
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
    most = "the most of those tried of" if problem.too_many else "the most of"
    return f"{value:.4g} GB/s {placement.by[0].replace('_', ' ')}, {most} {of_all}"
