"""How to choose: each policy is one function from a choice to the scores that decide it, in order of weight.

The candidates of a choice are all sets of its free GPUs of the right size. The first score is maximised, the next one
breaks its ties, and so on; what is still equal then is decided by the lowest indices, so nothing is left to chance.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import combinations, islice
from math import comb
from typing import Literal, NamedTuple

from gpulaunch.core.hardware.topology import Topology
from gpulaunch.core.placement.scores import (
    BANDWIDTH_MODELS,
    Fabric,
    Scores,
    aggregate_bandwidth,
    internal_bandwidth,
    mapped,
    preserved_bandwidth,
)
from gpulaunch.errors import FailedError

MAX_CANDIDATES = 20_000
"""So many sets are weighed in seconds; 8 of 16 GPUs are 12,870."""

ScoreName = Literal["aggregate_bandwidth", "effective_bandwidth", "preserved_bandwidth"]
Candidate = tuple[int, ...]


class Choice:
    """One placement to be decided.

    Args:
        topology: the machine.
        free: indices of all GPUs that are free; what is preserved is counted over these.
        admitted: those of them that the request admits.
        count: how many GPUs, 1 to len(admitted).
        pattern: name of the communication pattern.
        sensitive: whether the job's speed depends on its links; a single GPU has none.
        model: name of the effective-bandwidth model.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        free: Sequence[int],
        admitted: Sequence[int],
        count: int,
        pattern: str,
        sensitive: bool,
        model: str,
    ) -> None:
        self.free = tuple(sorted(free))
        self.admitted = tuple(sorted(admitted))
        self.count = count
        self.pattern = pattern
        self.sensitive = sensitive and count > 1
        self.model = model
        self.topology = topology

    @cached_property
    def fabric(self) -> Fabric:
        """The machine's links."""
        return Fabric(self.topology)

    @cached_property
    def _names(self) -> dict[int, str]:
        return {gpu.index: gpu.name for gpu in self.topology.gpus}

    def named(self, gpus: Sequence[int]) -> str:
        """GPUs by index as people name them, in their order."""
        return ",".join(self._names[gpu] for gpu in gpus)

    def candidates(self) -> Iterator[Candidate]:
        """All sets of the right size, in order of their indices."""
        return combinations(self.admitted, self.count)

    def scores(self, candidate: Candidate) -> Scores:
        """All scores of a candidate."""
        return Scores(
            aggregate_bandwidth(self.fabric, candidate, self.pattern),
            BANDWIDTH_MODELS[self.model](self.fabric, candidate),
            preserved_bandwidth(self.fabric, self.free, candidate),
        )

    def weigh(self, candidate: Candidate, score: ScoreName) -> float:
        """One score as the policies compare it: rounded, so that the order of a sum makes no difference.

        A pattern without edges counts every pair instead, so that such jobs stay compact too.
        """
        value: float | None
        if score == "effective_bandwidth":
            value = BANDWIDTH_MODELS[self.model](self.fabric, candidate)
        elif score == "preserved_bandwidth":
            value = preserved_bandwidth(self.fabric, self.free, candidate)
        else:
            value = aggregate_bandwidth(self.fabric, candidate, self.pattern)
            if value is None:
                value = internal_bandwidth(self.fabric, candidate)
        return round(value or 0.0, 6)


class Placement(NamedTuple):
    """The chosen GPUs.

    Attributes:
        gpus: indices in rank order.
        scores: of the set.
        by: the scores that decided, in order of weight.
        candidates: how many sets there were.
    """

    gpus: tuple[int, ...]
    scores: Scores
    by: tuple[ScoreName, ...]
    candidates: int


def baseline(choice: Choice) -> tuple[ScoreName, ...]:  # noqa: ARG001
    """The lowest indices, as docker run --gpus N takes them: no score (mapa-sc21 4)."""
    return ()


def greedy(choice: Choice) -> tuple[ScoreName, ...]:  # noqa: ARG001
    """Aggregate bandwidth; nothing is kept for others (mapa-sc21 4)."""
    return ("aggregate_bandwidth",)


def preserve(choice: Choice) -> tuple[ScoreName, ...]:
    """Sensitive jobs: effective, preserved, aggregate bandwidth. Insensitive ones: preserved, aggregate.

    The rule of mapa-sc21 Algorithm 1, with ties chosen instead of left to the order of enumeration: insensitive jobs
    stay compact, and sensitive ones spoil no more than they must.
    """
    if choice.sensitive:
        return ("effective_bandwidth", "preserved_bandwidth", "aggregate_bandwidth")
    return ("preserved_bandwidth", "aggregate_bandwidth")


POLICIES: dict[str, Callable[[Choice], tuple[ScoreName, ...]]] = {
    "baseline": baseline,
    "greedy": greedy,
    "preserve": preserve,
}


def place(choice: Choice, policy: str) -> Placement:
    """The best candidate by a policy, mapped to ranks.

    Each score is computed only for the candidates that the scores before it left tied.

    Args:
        choice: what is to be decided.
        policy: a key of POLICIES.

    Raises:
        FailedError: there are more than MAX_CANDIDATES sets.
    """
    by = POLICIES[policy](choice)
    count = comb(len(choice.admitted), choice.count)
    if not by:
        return _placement(choice, choice.admitted[: choice.count], by, count)
    if count > MAX_CANDIDATES:
        asked = f"{choice.count} of {len(choice.admitted)} GPUs"
        raise FailedError(
            f"{asked} are {count} candidates: more than {MAX_CANDIDATES}, the most that policy {policy} can weigh",
            "narrow the choice with --only, or take --policy baseline",
        )
    tied = list(choice.candidates())
    for score in by:
        if len(tied) == 1:
            break
        weights = [choice.weigh(candidate, score) for candidate in tied]
        best = max(weights)
        tied = [candidate for candidate, weight in zip(tied, weights, strict=True) if weight == best]
    return _placement(choice, tied[0], by, count)


def _placement(choice: Choice, winner: Candidate, by: tuple[ScoreName, ...], candidates: int) -> Placement:
    return Placement(mapped(choice.fabric, winner, choice.pattern), choice.scores(winner), by, candidates)


def ranking(choice: Choice, policy: str, limit: int) -> list[tuple[Candidate, Scores]]:
    """The best candidates by a policy, best first, with all their scores: what --explain shows.

    Args:
        choice: what is to be decided.
        policy: a key of POLICIES.
        limit: how many to return.
    """
    by = POLICIES[policy](choice)
    candidates = choice.candidates()
    if by:  # without a score the order of enumeration is the order, and there may be too many to list
        candidates = iter(sorted(candidates, key=lambda candidate: [-choice.weigh(candidate, score) for score in by]))
    return [(candidate, choice.scores(candidate)) for candidate in islice(candidates, limit)]
