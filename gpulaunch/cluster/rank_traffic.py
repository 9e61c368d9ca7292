"""What the ranks of a job send each other."""
# pure: decides on plain values

from collections.abc import Iterable, Sequence

from gpulaunch.profiles.pattern import Edge
from gpulaunch.records import Record


class RankTraffic(Record):
    """The traffic among the ranks of a job.

    Attributes:
        ranks: number of ranks, 1 or more.
        edges: pairs that exchange data, the lower rank first, sorted, each once, with what they
            exchange in both directions together: above 0, in any unit, since only ratios matter.
    """

    ranks: int
    edges: tuple[Edge, ...]

    def neighbours(self) -> list[dict[int, float]]:
        """Return what each rank exchanges with each of its partners."""
        neighbours: list[dict[int, float]] = [{} for _ in range(self.ranks)]
        for a, b, weight in self.edges:
            neighbours[a][b] = neighbours[b][a] = weight
        return neighbours


def together(parts: Sequence[RankTraffic]) -> RankTraffic:
    """Return the sum of several kinds of traffic among the same ranks."""
    weights: dict[tuple[int, int], float] = {}
    for part in parts:
        for a, b, weight in part.edges:
            weights[a, b] = weights.get((a, b), 0.0) + weight
    ranks = {part.ranks for part in parts}
    assert len(ranks) == 1, ranks  # noqa: S101
    return RankTraffic(ranks.pop(), tuple((*pair, weights[pair]) for pair in sorted(weights)))


def summed(ranks: int, edges: Iterable[Edge]) -> RankTraffic:
    """Return the traffic of edges in any order and direction; those of one pair add up.

    Args:
        ranks: number of ranks.
        edges: two different ranks, and what they exchange, above 0.
    """
    weights: dict[tuple[int, int], float] = {}
    for one, other, weight in edges:
        pair = (one, other) if one < other else (other, one)
        weights[pair] = weights.get(pair, 0.0) + weight
    return RankTraffic(ranks, tuple((*pair, weights[pair]) for pair in sorted(weights)))


def scaled(traffic: RankTraffic, largest: float) -> RankTraffic:
    """Return the traffic in another unit, in which `largest` is 1."""
    return RankTraffic(
        traffic.ranks, tuple([(a, b, weight / largest) for a, b, weight in traffic.edges])
    )


def largest_weight(parts: Sequence[RankTraffic]) -> float:
    """Return the most that two ranks exchange, in one kind of traffic; 1 without any traffic."""
    return max([weight for part in parts for _, _, weight in part.edges], default=1.0)
