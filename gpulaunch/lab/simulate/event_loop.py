"""The simulator's engine of discrete events.

Jobs arrive, start when decide() grants them GPUs, run for as long as the time model says, and end.
"""
# pure: decides on plain values

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Refuse, Request, State
from gpulaunch.decide.needs import admitted_gpus
from gpulaunch.errors import UsageError, printable
from gpulaunch.lab.simulate.machines import Ahead, Found, SimulatedJob, SimulatedMachines, ticket_of
from gpulaunch.lab.simulate.time_model import TimeModel, yardstick_of
from gpulaunch.leases.lease import Lease, Ticket
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record, replace

_NONE = -1  # number for no event
_DIGITS = 9  # of a time: two that differ only by rounding are the same


class Rules(Record):
    """The rules of a replay.

    Attributes:
        queue: "backfill", in which jobs pass others that they do not delay, "fifo", or "first_fit",
            in which a job starts as soon as it fits, like the published simulator of
            topo-aware-sc17: it keeps nothing free for those before it.
        time_models: names of models in time_model; () for fixed times.
        lasting: whether a job stays as slow as its worst neighbours made it; else it speeds up
            again.
        tick_s: period of the scheduler in seconds; it starts no job in a step in which another
            ends, like the published simulator of topo-aware-sc17; 0: it acts at once.
    """

    policy: str
    model: str
    machines: int = 1
    queue: str = "backfill"
    time_models: tuple[str, ...] = ()
    lasting: bool = False
    tick_s: float = 0.0


@dataclass(slots=True)
class Stay:
    """The stay of a job on its GPUs.

    Attributes:
        machine: number of the machine, from 0.
        gpus: indices of its GPUs, in rank order.
        started_s: start, in seconds from the beginning of the trace.
        utility: utility to the job, 0 to 1, at its start (topo-aware-sc17 Eq. 2); None if none was
            asked for.
        left_s: remaining time in seconds at its best speed.
        since_s: time at which that and the slowdown were set.
        event: number of the event that ends it; any other is out of date.
        ended_s: end, in seconds from the beginning of the trace; 0 before.
    """

    job: SimulatedJob
    machine: int
    gpus: tuple[int, ...]
    lease: Lease
    started_s: float
    utility: float | None
    left_s: float
    since_s: float
    slowdown: float = 0.0
    event: int = _NONE
    ended_s: float = 0.0


def simulate(topology: Topology, jobs: Sequence[SimulatedJob], rules: Rules) -> list[Stay]:
    """Replay jobs on machines, and return the stays of all jobs, in the order of starts.

    Args:
        topology: the machine, or each of several identical ones.
        jobs: jobs in any order of arrival; ids are their places.

    Raises:
        UsageError: a job can never run there.
    """
    return _Simulation(topology, jobs, rules).run()


class _Simulation:
    def __init__(self, topology: Topology, jobs: Sequence[SimulatedJob], rules: Rules) -> None:
        requests: dict[int, Request] = {}  # by id: the jobs of a trace often share theirs

        def ruled(job: SimulatedJob) -> SimulatedJob:
            if id(job.request) not in requests:
                requests[id(job.request)] = replace(
                    job.request,
                    policy=rules.policy,
                    bandwidth_model=rules.model,
                    in_order=rules.queue == "fifo",
                )
            arrival_s = round(job.arrival_s, _DIGITS)
            return replace(job, arrival_s=arrival_s, request=requests[id(job.request)])

        self._jobs = [ruled(job) for job in jobs]
        self._rules = rules
        self._machines = SimulatedMachines(topology, rules.machines, requests.values())
        self._times = TimeModel(rules.time_models, yardstick_of(topology, "cut"))
        kinds = {id(request): self._machines.kind_of(request) for request in requests.values()}
        self._kind = [kinds[id(job.request)] for job in self._jobs]
        self._admitted: dict[int, tuple[str, ...]] = {}
        self._queue: list[tuple[SimulatedJob, Ticket]] = []
        self._running: dict[int, dict[str, Stay]] = {}
        self._events: list[tuple[float, int, SimulatedJob | Stay | None]] = []
        self._numbers = 0
        self._started: list[Stay] = []
        self._topology = topology

    def run(self) -> list[Stay]:
        self._refuse_impossible()
        for job in sorted(self._jobs, key=lambda job: (job.arrival_s, job.id)):
            self._add_event(job.arrival_s, job)
        while self._events:
            self._process_time()
        return self._started

    def _refuse_impossible(self) -> None:
        """Refuse jobs that would wait for ever.

        Of jobs that differ only in their least utility the most demanding one is tried: if it can
        run, all can.
        """
        same: dict[int, list[SimulatedJob]] = {}
        for job, kind in zip(self._jobs, self._kind, strict=True):
            same.setdefault(kind, []).append(job)
        for kind, jobs in same.items():
            admitted = admitted_gpus(jobs[0].request, self._topology)
            self._admitted[kind] = tuple(gpu.uuid for gpu in admitted)
            hardest = max(jobs, key=lambda job: job.request.least_utility)
            decision = decide(hardest.request, State(self._topology))
            if isinstance(decision, Refuse):
                name = f"job {hardest.id} ({printable(hardest.name)})"
                raise UsageError(f"{name} can never run: {decision.reason}")

    def _add_event(self, time_s: float, about: SimulatedJob | Stay | None) -> int:
        """Add an event: a job arrives or ends, or (None) the queue is tried; return its number."""
        tick = self._rules.tick_s
        time_s = ceil(round(time_s / tick, _DIGITS)) * tick if tick else time_s
        self._numbers += 1
        heappush(self._events, (round(time_s, _DIGITS), self._numbers, about))
        return self._numbers

    def _process_time(self) -> None:
        now = self._events[0][0]
        ends: list[Stay] = []
        while self._events and self._events[0][0] == now:
            _, number, about = heappop(self._events)
            if isinstance(about, Stay):
                if about.event == number:
                    ends.append(about)
            elif isinstance(about, SimulatedJob):
                kind = self._kind[about.id]
                self._queue.append((about, ticket_of(about, self._admitted[kind])))
        if self._rules.tick_s:
            self._start_some(now)
            self._end(ends, now)
            if ends and self._queue:
                self._add_event(now + self._rules.tick_s, None)
        else:
            self._end(ends, now)
            self._start_some(now)

    def _end(self, ends: Sequence[Stay], now: float) -> None:
        for one in ends:
            one.event = _NONE  # also of one whose end was put off by a new neighbour in this step
            self._machines.end(one.machine, one.lease)
            del self._running[one.machine][one.lease.id]
            one.ended_s = now
        for machine in dict.fromkeys(one.machine for one in ends):
            self._update_slowdowns(machine, now)

    def _start_some(self, now: float) -> None:
        """Start the jobs that the queue and decide() let start, in the order of the queue.

        A job of the same kind as one that was sent back may not pass it; but where GPUs are shared,
        it may join others. In a first-fit queue nobody is in the way of anybody.
        """
        first_fit = self._rules.queue == "first_fit"
        sharing = self._machines.sharing
        ahead, left = Ahead(), []
        sent_back: set[tuple[int, float | None]] = set()  # kinds with time limits
        most = self._machines.most_free()
        rest = iter(self._queue)
        for job, ticket in rest:
            kind = self._kind[job.id]
            timed_kind = kind, job.request.ends_within_s
            may_pass = first_fit or timed_kind not in sent_back
            if sharing or (ticket.gpus <= most and may_pass):
                found = self._machines.find(job, kind, ahead, now)
                if found:
                    self._begin(job, *found, now)
                    most = self._machines.most_free()
                    continue
                sent_back.add(timed_kind)
            left.append((job, ticket))
            if first_fit:
                continue
            ahead.add(ticket, now)
            bars_all = ticket.passable_until_s <= now and len(ticket.uuids) == len(
                self._topology.gpus
            )
            if (bars_all and not self._machines.timed) or not (most or sharing):
                left.extend(rest)
        self._queue = left

    def _begin(self, job: SimulatedJob, machine: int, found: Found, now: float) -> None:
        utility = None
        if job.request.least_utility:
            utility = self._machines.utility(job, machine, found)
        lease = replace(
            found.lease,
            id=f"job{job.id}",
            name=job.request.name,
            clock_s=now,
            ends_within_s=job.request.ends_within_s,
        )
        one = Stay(job, machine, found.gpus, lease, now, utility, job.duration_s, now)
        self._started.append(one)
        self._machines.start(machine, lease)
        self._running.setdefault(machine, {})[lease.id] = one
        if self._times.depends_on_company:
            self._update_slowdowns(machine, now)
        else:
            self._set_slowdown(one, now)

    def _update_slowdowns(self, machine: int, now: float) -> None:
        if self._times.depends_on_company:
            for one in self._running[machine].values():
                self._set_slowdown(one, now)

    def _set_slowdown(self, one: Stay, now: float) -> None:
        """Set the speed of a job from now on, and replace its expected end."""
        company = [
            lease
            for lease in self._machines.all[one.machine].leases.values()
            if lease is not one.lease
        ]
        slowdown = self._times.slowdown(one.job, one.gpus, one.lease, company)
        if one.event != _NONE and slowdown == one.slowdown:
            return
        if self._rules.lasting:
            one.slowdown = max(slowdown, one.slowdown)
            ends_s = one.started_s + one.job.duration_s * (1 + one.slowdown)
        else:
            one.left_s -= (now - one.since_s) / (1 + one.slowdown)
            one.slowdown, one.since_s = slowdown, now
            ends_s = now + one.left_s * (1 + slowdown)
        one.event = self._add_event(max(ends_s, now), one)
