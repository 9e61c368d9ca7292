"""Jobs of a trace, identical machines, and the GPUs that a job gets on them.

Machines in the same state are interchangeable, so a decision is made once for each state, not for
each machine, and is remembered.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Iterable, Sequence

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Grant, Request, State
from gpulaunch.decide.needs import pose_problem
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.leases.queue import CHOOSY_S
from gpulaunch.machine.topology import Topology
from gpulaunch.placement.fabric import UNIT, Fabric
from gpulaunch.placement.policies import POLICIES, MachineFigure, Placement, utility_of
from gpulaunch.placement.problem import sum_over_pairs
from gpulaunch.records import Record, replace

_LOWEST_UTILITY = 1e-9


class SimulatedJob(Record):
    """One job.

    Attributes:
        id: place in the trace, from 0.
        name: name of the job, not necessarily unique.
        arrival_s: arrival, in seconds from the beginning of the trace.
        duration_s: run time in seconds, alone on the best GPUs of the idle machine.
        communication_share: share of that time spent waiting for links, 0 to 1; None if unknown.
        split_slowdown: measured slowdown with its GPUs on several sockets, as a fraction (0.25 is
            25 %); None if not measured.
    """

    id: int
    name: str
    request: Request
    arrival_s: float
    duration_s: float
    communication_share: float | None = None
    split_slowdown: float | None = None


def lease_of(job: SimulatedJob, grant: Grant, uuids: tuple[str, ...]) -> Lease:
    """Return the lease that the launcher would record for a job that starts.

    Args:
        uuids: UUIDs of its GPUs, in rank order.
    """
    request = job.request
    return Lease(
        id=f"job{job.id}",
        user_id=request.sharing.user_id if request.sharing else 0,
        uuids=uuids,
        ancestors=(),
        profile=request.profile,
        name=request.name,
        share=grant.share_option.share if grant.share_option else None,
        ends_within_s=request.ends_within_s,
    )


def ticket_of(job: SimulatedJob, uuids: tuple[str, ...]) -> Ticket:
    """Return the ticket that the launcher would record for a job that joins the queue.

    Args:
        job: the job; its number in the queue is its place in the trace.
    """
    choosy = job.request.choosy
    return Ticket(
        id=f"job{job.id}",
        user_id=0,
        number=job.id + 1,
        uuids=uuids,
        gpus=job.request.gpus or len(uuids),
        passable_until_s=job.arrival_s + CHOOSY_S if choosy else 0.0,
        choosy=choosy,
        ends_within_s=job.request.ends_within_s,
        in_order=job.request.in_order,
    )


Held = frozenset[object] | tuple[object, ...]
"""The leases of a machine, as far as they matter to decisions.

It is how many there are of each kind, or the leases in the order of their beginning.
"""


class Ahead:
    """Earlier requests that wait, at one time.

    Attributes:
        summary: the facts about them that decisions without time limits depend on.
    """

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.summary: frozenset[tuple[object, ...]] = frozenset()

    def add(self, ticket: Ticket, clock_s: float) -> None:
        """Add one more ticket at the end."""
        self.tickets.append(ticket)
        self.summary |= {
            (ticket.uuids, ticket.gpus, ticket.choosy, clock_s < ticket.passable_until_s)
        }


class Found(Record):
    """The GPUs for a job on machines in one state.

    Attributes:
        gpus: indices of the GPUs, in rank order.
        lease: lease that the job would hold, without id and name.
        worth: figures by which machines are compared; larger is better.
        utility: utility to the job, if the policy knows one.
    """

    gpus: tuple[int, ...]
    lease: Lease
    worth: tuple[float, ...]
    utility: float | None


class SimulatedMachine:
    """One machine.

    Attributes:
        leases: leases of the jobs that run on it, by id, in the order of their beginning.
        free: number of GPUs without a lease.
    """

    def __init__(self, gpus: int) -> None:
        self.free = gpus
        self.leases: dict[str, Lease] = {}
        self.state: Held = ()


class SimulatedMachines:
    """Identical machines.

    Attributes:
        timed: whether decisions depend on the time.
    """

    def __init__(self, topology: Topology, count: int, requests: Iterable[Request]) -> None:
        self.topology = topology
        self.all = [SimulatedMachine(len(topology.gpus)) for _ in range(count)]
        requests = list(requests)
        self._ordered = any(POLICIES[request.policy].goes_by_utility for request in requests)
        self._profiles = any(request.slowdowns for request in requests)
        self.sharing = any(request.sharing for request in requests)
        self.timed = False
        for request in requests:
            self.timed |= request.ends_within_s is not None and not request.in_order
        self._uuid = {gpu.index: gpu.uuid for gpu in topology.gpus}
        self._alike: dict[Held, set[int]] = {(): set(range(count))}  # machines by their state
        self._kinds: dict[str, int] = {}
        # by kind, earlier requests, state and least utility
        self._found: dict[tuple[object, ...], Found | None] = {}
        self._fabric = Fabric(topology)

    def kind_of(self, request: Request) -> int:
        """Return a number that is equal for requests alike but for least utility and time limit."""
        like = replace(request, least_utility=0.0, name=None, ends_within_s=None)
        same = repr((request.choosy, like))  # decides whether others may pass it, and it others
        return self._kinds.setdefault(same, len(self._kinds))

    def find(
        self, job: SimulatedJob, kind: int, ahead: Ahead, clock_s: float
    ) -> tuple[int, Found] | None:
        """Return the best machine for a job now, with its GPUs there; None if the job waits."""
        best: tuple[tuple[float, ...], int, Found] | None = None
        least = 0 if self.sharing else job.request.gpus or 0  # a job that shares needs no free GPU
        for state, numbers in self._alike.items():
            number = min(numbers)
            if self.all[number].free < least:
                continue
            found = self._find_in_state(job, kind, state, number, ahead, clock_s)
            if found and (best is None or (found.worth, -number) > (best[0], -best[1])):
                best = found.worth, number, found
        return best and (best[1], best[2])

    def most_free(self) -> int:
        """Return the largest number of free GPUs on one machine."""
        return max(self.all[next(iter(numbers))].free for numbers in self._alike.values())

    def _find_in_state(
        self,
        job: SimulatedJob,
        kind: int,
        state: Held,
        number: int,
        ahead: Ahead,
        clock_s: float,
    ) -> Found | None:
        patient = POLICIES[job.request.policy].waits_for_utility
        least = job.request.least_utility if patient else 0.0
        # Almost every job has a least utility of its own. What a policy chooses under the lowest
        # bound, it chooses under each one that this meets, too.
        for bound in (min(least, _LOWEST_UTILITY), least):
            key = kind, ahead.summary, state, bound
            by_time = self.timed and ahead.tickets  # who may pass others depends on the time
            if by_time or key not in self._found:
                leases = list(self.all[number].leases.values())
                decision = decide(
                    replace(job.request, least_utility=bound),
                    State(self.topology, leases, ahead=ahead.tickets, clock_s=clock_s),
                )
                self._found[key] = self._found_of(job, decision, leases)
            found = self._found[key]
            if found is None or found.utility is None or found.utility >= least:
                break
        return found

    def _found_of(
        self, job: SimulatedJob, decision: Decision, leases: Sequence[Lease]
    ) -> Found | None:
        if not isinstance(decision, Grant):
            return None
        gpus = decision.placement.gpus
        lease = lease_of(job, decision, tuple(self._uuid[gpu] for gpu in gpus))
        worth = self._worth(job.request, decision, leases)
        return Found(gpus, lease, worth, decision.placement.utility)

    def utility(self, job: SimulatedJob, number: int, found: Found) -> float:
        """Return the utility of GPUs to a job that is about to start there, under any policy."""
        if found.utility is not None:
            return found.utility
        leases = list(self.all[number].leases.values())
        taken = {uuid for lease in leases for uuid in lease.uuids}
        free = [gpu for gpu in self.topology.gpus if gpu.uuid not in taken]
        state = State(self.topology, leases)
        problem = pose_problem(job.request, state, free, free, len(found.gpus))
        return utility_of(problem, found.gpus)

    def _worth(self, request: Request, grant: Grant, leases: Sequence[Lease]) -> tuple[float, ...]:
        """Return the figures by which the request's policy compares this machine with others."""
        names = POLICIES[request.policy].compares_machines_by
        if names == ():
            return ()
        if names is None:
            names = grant.placement.by
        joins = float(bool(grant.share_option and grant.share_option.residents))
        taken = {uuid for lease in leases for uuid in lease.uuids}
        untaken = [gpu.index for gpu in self.topology.gpus if gpu.uuid not in taken]
        free = [self._fabric.position[index] for index in untaken]
        placement = grant.placement
        return joins, *(self._machine_figure(name, placement, free) for name in names)

    def _machine_figure(
        self, name: MachineFigure, placement: Placement, free: Sequence[int]
    ) -> float:
        """Return one figure of a placement on a machine; of two machines the larger figure wins.

        For preserved bandwidth it is the bandwidth lost, not the one left: that would always favour
        the emptiest machine.
        """
        if name == "fewest_free_gpus":
            return -float(len(free))
        if name == "utility":
            return round(placement.utility or 0.0, 9)
        if name in ("sockets", "fragmentation"):
            return -float(getattr(placement.scores, name))
        value: float = getattr(placement.scores, name, None) or 0.0
        if name in ("preserved_bandwidth", "lasting_bandwidth"):
            value -= sum_over_pairs(self._fabric.weight, free) / UNIT
        return round(value, 6)

    def start(self, number: int, lease: Lease) -> None:
        """Give a job its GPUs on a machine."""
        self.all[number].leases[lease.id] = lease
        self._update_state(number)

    def end(self, number: int, lease: Lease) -> None:
        """Free the GPUs of a job on a machine."""
        del self.all[number].leases[lease.id]
        self._update_state(number)

    def _update_state(self, number: int) -> None:
        machine = self.all[number]
        before = self._alike[machine.state]
        before.remove(number)
        if not before:
            del self._alike[machine.state]
        held = {uuid for lease in machine.leases.values() for uuid in lease.uuids}
        machine.free = len(self.topology.gpus) - len(held)
        signatures = [self._signature(lease) for lease in machine.leases.values()]
        if self._ordered or not signatures:
            machine.state = tuple(signatures)
        else:
            machine.state = frozenset(Counter(signatures).items())
        self._alike.setdefault(machine.state, set()).add(number)

    def _signature(self, lease: Lease) -> tuple[object, ...]:
        """Return the part of a lease that decisions about other jobs depend on."""
        return (
            lease.uuids if lease.share else tuple(sorted(lease.uuids)),
            lease.profile if self._profiles else None,
            lease.share and repr(lease.share),
            lease.ends_s if self.timed else 0.0,
        )
