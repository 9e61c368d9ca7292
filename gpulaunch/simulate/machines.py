"""Identical machines, and the GPUs that a job gets on them.

Machines in the same state are interchangeable, so a decision is made once for each state, not for
each machine, and is remembered.
"""
# pure: decides on plain values

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from heapq import heappop, heappush

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Grant, Refuse, Situation
from gpulaunch.decide.needs import admitted_gpus, pose_problem
from gpulaunch.decide.placement.fabric import UNIT, Fabric
from gpulaunch.decide.placement.place import Placement
from gpulaunch.decide.placement.policies import POLICIES, MachineFigure, utility_of
from gpulaunch.decide.request import Request
from gpulaunch.leases.lease import Lease
from gpulaunch.leases.ticket import Ticket
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record, replace
from gpulaunch.simulate.simulated_job import Signature, SimulatedJob, is_timed, lease_of, signature
from gpulaunch.simulate.yardstick import Yardstick

State = frozenset[object] | tuple[object, ...]
"""The leases of a machine, as far as they matter to decisions.

It is how many there are of each kind, or the leases in the order of their beginning.
"""


class Ahead:
    """Earlier requests that wait, at one time.

    Attributes:
        tickets: tickets in their order.
        summary: the facts about them that decisions without time limits depend on.
        found: decisions that depend on the time and on the order of the tickets, by their number,
            the kind of the request and the state of the machine.
    """

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.summary: frozenset[tuple[object, ...]] = frozenset()
        self.found: dict[object, _KnownDecisions] = {}

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


class Remembered:
    """Earlier decisions on identical machines, for one or several simulations to share.

    Args:
        topology: topology of the machines.

    Attributes:
        kinds: a number for each kind of request.
        found: decisions by kind, earlier requests and state.
        utilities: utilities of GPUs, by kind and state.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._yardsticks: dict[str, Yardstick] = {}
        self.kinds: dict[str, int] = {}
        self.found: dict[object, _KnownDecisions] = {}
        self.utilities: dict[object, float] = {}

    def yardstick(self, model: str) -> Yardstick:
        """Return the yardstick of a bandwidth model."""
        return self._yardsticks.setdefault(model, Yardstick(self._topology, model))


class SimulatedMachine:
    """One machine.

    Attributes:
        leases: leases of the jobs that run on it, by id, in the order of their beginning.
        state: state of these leases.
        free: number of GPUs without a lease.
    """

    def __init__(self, gpus: int) -> None:
        self.free = gpus
        self.leases: dict[str, Lease] = {}
        self.state: State = ()


class SimulatedMachines:
    """Identical machines.

    Args:
        topology: topology of each of them.
        count: number of machines.
        requests: requests of all jobs that will come.
        remembered: earlier decisions on such machines.

    Attributes:
        all: the machines, by number.
        sharing: whether a job shares GPUs.
        timed: whether decisions depend on the time.
    """

    def __init__(
        self, topology: Topology, count: int, requests: Iterable[Request], remembered: Remembered
    ) -> None:
        self.topology = topology
        self.all = [SimulatedMachine(len(topology.gpus)) for _ in range(count)]
        requests = list(requests)
        self._ordered = any(POLICIES[request.policy].goes_by_utility for request in requests)
        self._names = any(request.wishes.apart_from for request in requests)
        self._signature = signature(requests)
        self.sharing = any(request.sharing for request in requests)
        self.timed = any(map(is_timed, requests))
        self._uuid = {gpu.index: gpu.uuid for gpu in topology.gpus}
        gpus = len(topology.gpus)
        # Heaps of machines by number of free GPUs and by state; a heap may still contain machines
        # that have left its state.
        self._by_free: list[dict[State, list[int]]] = [{} for _ in range(gpus + 1)]
        self._by_free[gpus][()] = list(range(count))
        self._remembered = remembered
        fabric = Fabric(topology)
        position = {gpu.uuid: fabric.position[gpu.index] for gpu in topology.gpus}
        self._fabric = fabric
        self._position = position

    def kind_of(self, request: Request) -> int:
        """Return a number that is equal for requests alike but for least utility and time limit."""
        like = replace(
            request,
            utility=replace(request.utility, least=0.0),
            name=self._name_of(request),
            ends_within_s=None,
        )
        same = repr((request.is_choosy, like))  # decides whether others may pass it, and it others
        kinds = self._remembered.kinds
        return kinds.setdefault(same, len(kinds))

    def _name_of(self, request: Request) -> str | None:
        return request.name if self._names else None

    def refusal(self, request: Request) -> str | None:
        """Return why a job can never run on these machines; None if it can."""
        decision = decide(request, Situation(self.topology))
        return decision.reason if isinstance(decision, Refuse) else None

    def admitted(self, request: Request) -> tuple[str, ...]:
        """Return the UUIDs of the GPUs of a machine that the request admits."""
        return tuple(gpu.uuid for gpu in admitted_gpus(request, self.topology))

    def find(
        self, job: SimulatedJob, kind: int, ahead: Ahead, clock_s: float
    ) -> tuple[int, Found] | None:
        """Return the best machine for a job now, with its GPUs there; None if the job has to wait.

        Args:
            job: job to place.
            kind: kind of its request.
            ahead: earlier requests that wait.
            clock_s: the present time in seconds.
        """
        best: tuple[tuple[float, ...], int, Found] | None = None
        least = 0 if self.sharing else job.request.gpus or 0  # a job that shares needs no free GPU
        for alike in self._by_free[least:]:
            for state in list(alike):
                number = self._lowest(alike, state)
                if number is None:
                    continue
                found = self._find_in_state(job, kind, state, number, ahead, clock_s)
                if found and (best is None or (found.worth, -number) > (best[0], -best[1])):
                    best = found.worth, number, found
        return best and (best[1], best[2])

    def most_free(self) -> int:
        """Return the largest number of free GPUs on one machine."""
        if len(self.all) == 1:
            return self.all[0].free
        for free in reversed(range(len(self._by_free))):
            alike = self._by_free[free]
            if any(self._lowest(alike, state) is not None for state in list(alike)):
                return free
        return 0

    def _lowest(self, alike: dict[State, list[int]], state: State) -> int | None:
        """Return the first machine in a state, or None."""
        heap = alike[state]
        while heap and self.all[heap[0]].state != state:
            heappop(heap)
        if not heap:
            del alike[state]
            return None
        return heap[0]

    def _find_in_state(
        self,
        job: SimulatedJob,
        kind: int,
        state: State,
        number: int,
        ahead: Ahead,
        clock_s: float,
    ) -> Found | None:
        if self.timed and ahead.tickets:
            within_s = job.request.ends_within_s
            key: object = (kind, within_s, len(ahead.tickets), state)
            memory = ahead.found.setdefault(key, _KnownDecisions())
        else:  # time matters only to who may pass others
            key = (kind, ahead.summary, state)
            memory = self._remembered.found.setdefault(key, _KnownDecisions())
        patient = POLICIES[job.request.policy].waits_for_utility
        least = job.request.utility.least if patient else 0.0
        known, found = memory.look_up(least)
        if not known:
            leases = list(self.all[number].leases.values())
            decision = decide(
                job.request, Situation(self.topology, leases, ahead=ahead.tickets, clock_s=clock_s)
            )
            found = self._found_of(job, decision, leases) if isinstance(decision, Grant) else None
            memory.keep(least, found, patient=patient)
        return found

    def _found_of(self, job: SimulatedJob, grant: Grant, leases: Sequence[Lease]) -> Found:
        gpus = grant.placement.gpus
        lease = lease_of(job, grant, tuple(self._uuid[gpu] for gpu in gpus))
        return Found(gpus, lease, self._worth(job.request, grant, leases), grant.placement.utility)

    def utility(self, job: SimulatedJob, kind: int, number: int, found: Found) -> float:
        """Return the utility of GPUs to a job that is about to start there, under any policy."""
        if found.utility is not None:
            return found.utility
        machine = self.all[number]
        key = kind, machine.state, found.gpus
        utilities = self._remembered.utilities
        if key not in utilities:
            leases = list(machine.leases.values())
            free = [
                gpu
                for gpu in self.topology.gpus
                if not any(gpu.uuid in lease.uuids for lease in leases)
            ]
            problem = pose_problem(job.request, self.topology, free, free, len(found.gpus), leases)
            utilities[key] = utility_of(problem, found.gpus)
        return utilities[key]

    def _worth(self, request: Request, grant: Grant, leases: Sequence[Lease]) -> tuple[float, ...]:
        """Return the figures by which the request's policy compares this machine with others."""
        names = POLICIES[request.policy].compares_machines_by
        if names == ():
            return ()
        if names is None:
            names = grant.placement.by
        joins = float(bool(grant.share_option and grant.share_option.residents))
        taken = {uuid for lease in leases for uuid in lease.uuids}
        places = [place for uuid, place in self._position.items() if uuid not in taken]
        free, placement = self._fabric.mask(places), grant.placement
        return joins, *(self._machine_figure(name, placement, free) for name in names)

    def _machine_figure(self, name: MachineFigure, placement: Placement, free: int) -> float:
        """Return one figure of a placement on a machine; of two machines the larger figure wins.

        For preserved bandwidth it is the bandwidth lost, not the one left: that would always favour
        the emptiest machine.
        """
        if name == "fewest_free_gpus":
            return -float(free.bit_count())
        if name == "utility":
            return round(placement.utility or 0.0, 9)
        if name in ("sockets", "fragmentation"):
            return -float(getattr(placement.scores, name))
        value: float = getattr(placement.scores, name, None) or 0.0
        if name in ("preserved_bandwidth", "lasting_bandwidth"):
            value -= self._fabric.sum_among(free) / UNIT
        return round(value, 6)

    def start(self, number: int, lease: Lease) -> None:
        """Give a job its GPUs on a machine."""
        machine = self.all[number]
        for other in machine.leases.values():
            together = lease.share and other.share and lease.share.group == other.share.group
            assert together or set(lease.uuids).isdisjoint(other.uuids), (lease, other)  # noqa: S101  decide() guarantees this
        machine.leases[lease.id] = lease
        self._update_state(number)

    def end(self, number: int, lease: Lease) -> None:
        """Free the GPUs of a job on a machine."""
        del self.all[number].leases[lease.id]
        self._update_state(number)

    def _update_state(self, number: int) -> None:
        machine = self.all[number]
        held = {uuid for lease in machine.leases.values() for uuid in lease.uuids}
        machine.free = len(self.topology.gpus) - len(held)
        machine.state = self._state_of(
            [self._signature(lease) for lease in machine.leases.values()]
        )
        heappush(self._by_free[machine.free].setdefault(machine.state, []), number)

    def _state_of(self, signatures: Collection[Signature]) -> State:
        if self._ordered or not signatures:
            return tuple(signatures)
        return frozenset(Counter(signatures).items())


class _KnownDecisions:
    """Decisions for one kind of request in one state, by the least utility asked for.

    GPUs whose utility passes a threshold are also granted under any lower threshold down to the one
    that they were found for; a job that waits under a threshold waits under any higher one.
    """

    __slots__ = ("found", "waits_from")

    def __init__(self) -> None:
        self.found: list[tuple[float, float, Found]] = []
        self.waits_from = float("inf")

    def look_up(self, least: float) -> tuple[bool, Found | None]:
        """Return whether the answer is known, and the answer."""
        if least >= self.waits_from:
            return True, None
        for low, high, found in self.found:
            if low <= least <= high:
                return True, found
        return False, None

    def keep(self, least: float, found: Found | None, *, patient: bool) -> None:
        """Remember a decision, by a policy that waits for utility or not."""
        if found is None:
            self.waits_from = min(self.waits_from, least)
        else:
            enough = found.utility if patient and found.utility is not None else float("inf")
            self.found.append((least, enough, found))
