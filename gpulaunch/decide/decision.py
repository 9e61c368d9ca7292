"""What a request meets, and what comes of it: Grant, Wait or Refuse."""
# pure: decides on plain values

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulaunch.decide.placement.place import Placement
from gpulaunch.decide.placement.problem import PlacementProblem
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record

if TYPE_CHECKING:  # what few launches need, the others do not load
    from gpulaunch.machine.driver import OutsideUse
    from gpulaunch.sharing.interference import Verdict


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


class ShareOption(Record):
    """GPUs that a job could share, and what becomes of them if it does.

    Attributes:
        group: UUIDs of the GPUs, ascending.
        residents: leases of the jobs that share them already; empty for a new group.
        verdict: what the interference rule says of residents and newcomer together, in this order.
        refusal: why the job must not share them; None if it may.
    """

    group: tuple[str, ...]
    residents: tuple[Lease, ...]
    verdict: "Verdict"
    refusal: str | None


class Grant(Record):
    """Yes: these GPUs.

    Attributes:
        reason: why these.
        placement: the GPUs with their scores.
        problem: the placement problem that they solve.
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
    def gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs that the launch has, in rank order."""
        return self.placement.gpus if self.own is None else self.own


class Wait(Record):
    """Not now: too few of the GPUs that would do are free, or earlier requests come first.

    Attributes:
        reason: what is missing.
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
