"""One scale for the placements of all policies, whatever a policy itself uses."""
# pure: decides on plain values

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Literal

from gpulaunch.machine.topology import Topology
from gpulaunch.placement.fabric import UNIT, Fabric
from gpulaunch.placement.mapping import Mapper
from gpulaunch.placement.problem import PlacementProblem, Scores
from gpulaunch.profiles.pattern import PATTERNS, Pattern

Bandwidth = Literal["effective_bandwidth", "aggregate_bandwidth"]


class Yardstick:
    """A measure of placements on one machine, by one bandwidth model.

    Args:
        topology: the machine.
        model: name of the bandwidth model.
    """

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

    @cached_property
    def socket(self) -> dict[int, int]:
        """Socket of each GPU, by index."""
        return {gpu.index: self.socket_of[gpu.uuid] for gpu in self._topology.gpus}

    def _has_nvlink_ring(self, gpus: frozenset[int]) -> bool:
        positions = sorted(self._fabric.position[gpu] for gpu in gpus)
        nvlink = [kind.count for kind in self._fabric.kinds]
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
        """Return the largest bandwidth of any set of the idle machine, GB/s; None if none exists.

        Args:
            pattern: communication pattern of the ranks.
            count: number of GPUs.
            figure: the bandwidth.
        """
        if not pattern.edges(count):
            return None
        problem = self._problem(pattern, count)
        best = next(problem.ranked((figure,)))
        return problem.scores_by(best, (figure,))[0] / UNIT

    def are_split(self, gpus: Sequence[int]) -> bool:
        """Return whether GPUs, by index, are on several sockets."""
        return len({self.socket[gpu] for gpu in gpus}) > 1


@lru_cache
def yardstick_of(topology: Topology, model: str) -> Yardstick:
    """Return the yardstick of a machine, which all replays on it share."""
    return Yardstick(topology, model)
