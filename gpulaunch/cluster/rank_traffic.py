"""What the ranks of a job send each other."""
# pure: decides on plain values

from collections.abc import Sequence

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
