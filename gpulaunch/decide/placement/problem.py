"""One placement to be decided, with everything that a policy may ask about it."""
# pure: decides on plain values

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from gpulaunch.decide.placement.fabric import UNIT, Fabric, fabric_of
from gpulaunch.decide.placement.scores import ScoreName, Scorer
from gpulaunch.decide.placement.search import Criterion, Limits, enumerate_sets, grow_sets, ranked
from gpulaunch.decide.placement.utility import Weights
from gpulaunch.machine.gpu_names import gpu_names
from gpulaunch.machine.topology import Topology
from gpulaunch.profiles.pattern import Pattern
from gpulaunch.records import Record


class Needs(Record):
    """Requirements on a set of GPUs besides its size; GPUs are indices.

    Attributes:
        required: GPUs that must be in it.
        within: groups of which it must lie in one; empty for anywhere.
        at_most: groups of which it may have only so many GPUs.
        nvlink: NVLink must connect it.
        least_gb_per_s: least effective bandwidth; 0 for any.
    """

    required: frozenset[int] = frozenset()
    within: tuple[frozenset[int], ...] = ()
    at_most: tuple[tuple[frozenset[int], int], ...] = ()
    nvlink: bool = False
    least_gb_per_s: float = 0.0


class UtilitySetting(Record):
    """Further input of the policies that use utility (topo-aware-sc17).

    Attributes:
        weights: weights of communication, interference and fragmentation.
        slowdown: by index, what a GPU's neighbours and this job would suffer, 0.1 is 10 %; missing
            is none.
        least: under this utility the job would wait.
        begun: by index, how late the last job on the GPU's socket began, as a place in the order of
            all; missing is 0.
    """

    weights: Weights = Weights()
    slowdown: Mapping[int, float] = {}
    least: float = 0.0
    begun: Mapping[int, int] = {}


class PlacementProblem:
    """One placement to be decided: the machine, the GPUs to choose from and what the job needs.

    Args:
        topology: the machine.
        free: indices of all GPUs that are free; what is preserved is counted over these.
        admitted: those of them that the request admits.
        count: number of GPUs, 1 to len(admitted).
        pattern: which ranks talk to which.
        sensitive: whether the job's speed depends on its links; without traffic between GPUs it
            does not.
        model: name of the effective-bandwidth model.
        needs: what a set must have besides its size.
        utility: what policies that go by utility need.
        scope: indices of all GPUs in reach, busy or not; None for those of the machine.
        rank_order: GPUs by index in the order that their ranks are to have; empty for the best.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        free: Sequence[int],
        admitted: Sequence[int],
        count: int,
        pattern: Pattern,
        sensitive: bool,
        model: str,
        needs: Needs = Needs(),  # noqa: B008  # it is frozen
        utility: UtilitySetting = UtilitySetting(),  # noqa: B008
        scope: Sequence[int] | None = None,
        rank_order: Sequence[int] = (),
    ) -> None:
        self.topology = topology
        self.free = tuple(sorted(free))
        self.admitted = tuple(sorted(admitted))
        self.count = count
        self.pattern = pattern
        self.sensitive = sensitive and bool(pattern.edges(count))
        self.model = model
        self.needs = needs
        self.utility = utility
        self.rank_order = rank_order
        self._scope = scope

    @cached_property
    def fabric(self) -> Fabric:
        """The machine's links."""
        return fabric_of(self.topology)

    def format_ranks(self, gpus: Sequence[int]) -> str:
        """Return GPUs by index as people name them, in their order: "3,0,1"."""
        names = {gpu.index: gpu.name for gpu in self.topology.gpus}
        return ",".join(names[gpu] for gpu in gpus)

    def format_set(self, gpus: Sequence[int]) -> str:
        """Return GPUs by index as people name them, without an order: "0-1,3"."""
        return gpu_names(gpu for gpu in self.topology.gpus if gpu.index in gpus)

    @cached_property
    def groups(self) -> list[tuple[int, ...]]:
        """The admitted GPUs of each group that a set may lie in and that has enough of them."""
        if not self.needs.within:
            return [self.admitted]
        groups = []
        for group in self.needs.within:
            gpus = tuple(gpu for gpu in self.admitted if gpu in group)
            if self.needs.required <= group and len(gpus) >= self.count:
                groups.append(gpus)
        return groups

    def split_by_socket(self, gpus: Sequence[int]) -> list[tuple[int, ...]]:
        """Return GPUs by index, one tuple for each socket, in the order of sockets."""
        found: dict[int, list[int]] = {}
        for gpu in gpus:
            found.setdefault(self.fabric.socket[self.fabric.position[gpu]], []).append(gpu)
        return [tuple(found[number]) for number in sorted(found)]

    def count_free_beside(self, gpus: Sequence[int]) -> int:
        """Return how many GPUs are free on the sockets of these."""
        socket, position = self.fabric.socket, self.fabric.position
        touched = {socket[position[gpu]] for gpu in gpus}
        return sum(socket[position[gpu]] in touched for gpu in self.free)

    def mask(self, gpus: Iterable[int]) -> int:
        """Return GPUs by index as a mask."""
        return self.fabric.mask([self.fabric.position[gpu] for gpu in gpus])

    @cached_property
    def _limits(self) -> Limits:
        needs, every = self.needs, frozenset(self.fabric.gpus)
        admitted = frozenset(self.admitted)
        groups = [group & admitted for group in needs.within or (admitted,)]
        possible = needs.required <= admitted
        return Limits(
            admitted=self.mask(admitted),
            required=self.mask(needs.required & every),
            groups=tuple(
                self.mask(group) for group in groups if possible and needs.required <= group
            ),
            at_most=tuple((self.mask(group & every), most) for group, most in needs.at_most),
        )

    @cached_property
    def candidates(self) -> int:
        """The number of sets to choose from, alike or not."""
        return self._limits.count(self.count)

    @cached_property
    def _sets(self) -> list[int] | None:
        return enumerate_sets(self.fabric, self.mask(self.free), self.count, self._limits)

    @property
    def too_many(self) -> bool:
        """Return whether there are more sets than can be compared."""
        return self._sets is None

    @cached_property
    def scorer(self) -> Scorer:
        """Weighs the candidates."""
        position = self.fabric.position
        scope = self.fabric.gpus if self._scope is None else self._scope
        return Scorer(
            self.fabric,
            [position[gpu] for gpu in self.free],
            self.count,
            self.pattern,
            self.model,
            [position[gpu] for gpu in self.fabric.gpus if gpu in scope],
        )

    def ranked(self, by: Sequence[ScoreName]) -> Iterator[int]:
        """Return the candidates as masks, the best first, one of those that are alike.

        Where they are too many to compare, they are some good ones. What the job needs comes before
        all scores: candidates that lack it come last, see meets().

        Args:
            by: the scores that decide, the first one first; the lowest indices decide last.
        """
        sets = self._sets
        if sets is None:
            sets = [mask for mask in self._grow(by) if self._limits.allow(mask)]
        names = [name for name in (*self.musts, *by) if self.scorer.tells_apart(name)]
        return ranked(sets, self._figures(names))

    def _grow(self, by: Sequence[ScoreName]) -> list[int]:
        """Return sets that grew, where all are too many: compact ones, or such as spare others."""
        own, worth = self.scorer.guide(by[0] if by else None)
        return grow_sets(self.fabric, self.count, self._limits, own, worth)

    def _figures(self, by: Sequence[ScoreName]) -> list[Criterion]:
        minimum = round(self.needs.least_gb_per_s * UNIT)
        return [self.scorer.figure(name, (*self.musts, *by), minimum) for name in by]

    @cached_property
    def musts(self) -> tuple[ScoreName, ...]:
        """The scores that say whether a candidate has what the job needs."""
        nvlink: tuple[ScoreName, ...] = ("nvlink",) if self.needs.nvlink and self.count > 1 else ()
        talks = bool(self.pattern.edges(self.count))
        return (*nvlink, "adequate_bandwidth") if self.needs.least_gb_per_s and talks else nvlink

    def allows(self, gpus: Sequence[int]) -> bool:
        """Return whether a set of GPUs by index has what the job needs."""
        mask = self.mask(gpus)
        return self._limits.allow(mask) and self.meets(mask)

    def scores_by(self, mask: int, by: Sequence[ScoreName]) -> tuple[int, ...]:
        """Return the exact scores of a set, by name."""
        return tuple(figure.value(mask) for figure in self._figures(by))

    def meets(self, mask: int) -> bool:
        """Return whether a candidate has what the job needs."""
        least = {"nvlink": 1, "adequate_bandwidth": round(self.needs.least_gb_per_s * UNIT)}
        figures = self.scores_by(mask, self.musts)
        return all(figure >= least[name] for name, figure in zip(self.musts, figures, strict=True))

    def best_effective_bandwidth(self) -> float | None:
        """Return the largest effective bandwidth of sets that meet all other needs, GB/s.

        Returns:
            None if no set meets them.
        """
        best = next(self.ranked(("effective_bandwidth",)), None)
        if best is None:
            return None
        by: tuple[ScoreName, ...] = (*self.musts, "effective_bandwidth")
        figures = dict(zip(by, self.scores_by(best, by), strict=True))
        return figures["effective_bandwidth"] / UNIT if figures.get("nvlink", 1) else None
