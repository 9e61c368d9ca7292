"""Run times of jobs: slowed down by their links, their neighbours, and clients on the same GPUs.

Placements of all policies are measured on one scale, the yardstick, whatever a policy itself uses.

A slowdown of 0 is the time that the job would take alone on the best GPUs of the idle machine.
docs/guides/simulate.md gives the source of each model, and what it leaves out.
"""
# pure: decides on plain values

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Literal

from gpulaunch.decide.decision import Request
from gpulaunch.lab.simulate.machines import SimulatedJob
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.topology import Topology
from gpulaunch.placement.fabric import UNIT, Fabric
from gpulaunch.placement.mapping import Mapper
from gpulaunch.placement.problem import PlacementProblem, Scores
from gpulaunch.profiles.pattern import PATTERNS, Pattern
from gpulaunch.sharing.speed import least_of, speeds

MODELS = ("fixed", "bandwidth", "interference", "sharing")
"""Names of the time models; `fixed` means none of the others."""

COMMUNICATION_SHARE = 0.63
"""Share of its time that a bandwidth-sensitive job waits for the best links.

Source: mapa-sc21 Figure 2b and 2.1: VGG-16 is up to 3 times as fast over a double NVLink (50 GB/s)
as over PCIe (12). If a share s of the time is inversely proportional to the bandwidth, 1 + s (50/12
- 1) = 3; by the cut model, which has 40 GB/s for a double NVLink, PCIe takes 2.5 times as long.
Estimated for all networks but that one: they gain less.
"""

ENOUGH_GB_PER_S = 50.0
"""Effective bandwidth in GB/s above which jobs gain almost nothing (mapa-sc21 4.2, Figure 16)."""

Bandwidth = Literal["effective_bandwidth", "aggregate_bandwidth"]


class Yardstick:
    """A measure of placements on one machine, by one bandwidth model."""

    def __init__(self, topology: Topology, model: str) -> None:
        self._topology = topology
        self._model = model
        self.scores = lru_cache(maxsize=None)(self._scores)  # there are few patterns, and few sets
        self.best = lru_cache(maxsize=None)(self._best)
        self.has_nvlink_ring = lru_cache(maxsize=None)(self._has_nvlink_ring)
        self._problem = lru_cache(maxsize=None)(self._problem_of)
        self._fabric = Fabric(topology)

    @cached_property
    def socket_of(self) -> dict[str, int]:
        """Socket of each GPU, by UUID."""
        fabric = self._fabric
        return {gpu.uuid: fabric.socket[fabric.position[gpu.index]] for gpu in self._topology.gpus}

    def _has_nvlink_ring(self, gpus: frozenset[int]) -> bool:
        positions = sorted(self._fabric.position[gpu] for gpu in gpus)
        nvlink = self._fabric.kind_count
        mapper = Mapper(self._fabric.kind, PATTERNS["ring"].edges(len(positions)), nvlink, nvlink)
        return mapper.best(positions, slowest_first=True).slowest > 0

    def _problem_of(self, pattern: Pattern, count: int) -> PlacementProblem:
        indices = [gpu.index for gpu in self._topology.gpus]
        return PlacementProblem(
            self._topology,
            free=indices,
            admitted=indices,
            count=count,
            pattern=pattern,
            sensitive=True,
            model=self._model,
        )

    def _scores(self, pattern: Pattern, gpus: tuple[int, ...]) -> Scores:
        """Return all scores of GPUs in rank order, by index."""
        problem = self._problem(pattern, len(gpus))
        positions = [problem.fabric.position[gpu] for gpu in gpus]
        return problem.scores(problem.mapper.figures(positions))

    def _best(self, pattern: Pattern, count: int, figure: Bandwidth) -> float | None:
        """Return the largest bandwidth of any set of the idle machine, GB/s; None without any."""
        if not pattern.edges(count):
            return None
        problem = self._problem(pattern, count)
        best = next(problem.ranked((figure,)))
        return problem.scores_by(best, (figure,))[0] / UNIT


@lru_cache
def yardstick_of(topology: Topology, model: str) -> Yardstick:
    """Return the yardstick of a machine, which all replays on it share."""
    return Yardstick(topology, model)


class TimeModel:
    """The slowdown of jobs on one kind of machine by some of MODELS; () for "fixed"."""

    def __init__(self, names: Sequence[str], yardstick: Yardstick) -> None:
        self._bandwidth = "bandwidth" in names
        self._interference = "interference" in names
        self._sharing = "sharing" in names
        self._yardstick = yardstick
        self.depends_on_company = self._interference or self._sharing

    def slowdown(
        self, job: SimulatedJob, gpus: tuple[int, ...], lease: Lease, company: Sequence[Lease]
    ) -> float:
        """Return how much longer the job takes than at its best; 0.25 is 25 %.

        Of its links and its neighbours the larger slowdown counts, as in the published code of
        topo-aware-sc17: a time measured beside a neighbour was measured on some links, too. Sharing
        GPUs stretches that.

        Args:
            gpus: indices of its GPUs, in rank order.
            company: leases of all other jobs on the machine.
        """
        links = self._slowdown_of_links(job, gpus, lease) if self._bandwidth else 0.0
        neighbours = (
            self._slowdown_of_neighbours(job.request, lease, company) if self._interference else 0.0
        )
        return (1 + max(links, neighbours)) / (
            _speed_beside(job.request, lease, company) if self._sharing else 1.0
        ) - 1

    def _slowdown_of_links(self, job: SimulatedJob, gpus: tuple[int, ...], lease: Lease) -> float:
        """Return how much longer a job takes on links slower than the best.

        A measured slowdown is used if there is one, else the share of its time that it waits for
        links.
        """
        if job.split_slowdown is not None:
            return job.split_slowdown if len(self._sockets(lease)) > 1 else 0.0
        share = job.communication_share
        if share is None:
            share = COMMUNICATION_SHARE if job.request.bandwidth_sensitive else 0.0
        best = self._yardstick.best(job.request.pattern, len(gpus), "effective_bandwidth")
        if not share or not best:
            return 0.0
        got = self._yardstick.scores(job.request.pattern, gpus).effective_bandwidth or 0.0
        return share * (min(best, ENOUGH_GB_PER_S) / max(min(got, best, ENOUGH_GB_PER_S), 1e-6) - 1)

    def _slowdown_of_neighbours(
        self, request: Request, lease: Lease, company: Sequence[Lease]
    ) -> float:
        """Return the worst slowdown measured beside jobs on its sockets (topo-aware-sc17 4.2)."""
        slowdowns: Mapping[str, tuple[float, float]] = request.slowdowns
        if not slowdowns:
            return 0.0
        sockets = self._sockets(lease)
        beside = [other for other in company if sockets & self._sockets(other)]
        return max(
            (slowdowns.get(other.profile or "", (0.0, 0.0))[0] for other in beside), default=0.0
        )

    def _sockets(self, lease: Lease) -> set[int]:
        return {self._yardstick.socket_of[uuid] for uuid in lease.uuids}


def _speed_beside(request: Request, lease: Lease, company: Sequence[Lease]) -> float:
    """Return the speed of a job beside those on its GPUs, as a share of its speed alone."""
    own = lease.share
    if own is None or request.sharing is None:
        return 1.0
    others = [other.share for other in company if other.share and other.share.group == own.group]
    shares = [own, *others]
    capacity = least_of(request.sharing.capacities, own.group)
    demands = [share.client.demand for share in shares]
    return speeds(demands, capacity, [share.sm_percentage for share in shares])[0]
