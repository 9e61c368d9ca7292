"""A profile made ready to be looked at: what stands on the page, in words and shares, before anybody draws it.

The terminal (text.py) and the picture (picture.py) draw the same view.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from math import floor, log10
from typing import NamedTuple

from gpulaunch.profiles.demand import CurvePoint
from gpulaunch.profiles.pattern import Edge, dimensions

_TOPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)  # halves of them are short, too
_AXES = {"grid": 2, "block": 3}
_NAMED = 6  # pairs of a graph that a line has room for


class Fact(NamedTuple):
    """A line of text.

    Attributes:
        label: what it is about.
        text: with units; safe for a terminal.
        whole: whether it is to stand on one line, however long, so that it can be copied.
    """

    label: str
    text: str
    whole: bool = False


def kept_whole(text: str, wrap: Callable[[str], list[str]]) -> list[str]:
    """Lines of a text in which no figure is parted from its unit.

    Args:
        text: safe for a terminal.
        wrap: makes lines of a text, which it breaks at blanks only.
    """
    return [line.replace(_JOINED, " ") for line in wrap(_BEFORE_UNIT.sub(_JOINED, text))]


_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGT]?i?B|GB/s|W|k?J|s|min)(?:[,;:)]|\s|$))")
_JOINED = "\0"  # in place of a blank at which no line is broken


class Bar(NamedTuple):
    """A figure that has an end to be measured against.

    Attributes:
        label: what it is.
        share: of that end, 0 to 1.
        text: the figure, with its unit.
        mark: where the largest value lies, 0 to 1; None if that is not known.
    """

    label: str
    share: float
    text: str
    mark: float | None = None


class Graph(NamedTuple):
    """Who talks to whom.

    Attributes:
        ranks: how many there are.
        edges: each pair once, the lower rank first.
        unit: of the weights, where they were measured; None where all count the same.
        shape: how the ranks are best laid out: "circle", "line", "grid" (of two dimensions) or
            "block" (of three).
    """

    ranks: int
    edges: tuple[Edge, ...]
    unit: str | None = None
    shape: str = "circle"

    @property
    def weights(self) -> dict[tuple[int, int], float]:
        """Of each pair, in either order."""
        return {pair: weight for a, b, weight in self.edges for pair in ((a, b), (b, a))}

    @property
    def heaviest(self) -> float:
        """Largest weight; 1 if there is no edge."""
        return max((weight for *_, weight in self.edges), default=1.0)


class Plot(NamedTuple):
    """A curve of throughput over the share of SMs.

    Attributes:
        points: one or more, by ascending share.
        unit: of throughput, or words in its place.
        knee_percentage: share of SMs from which on more bring little; None if nobody has looked for
            it.
    """

    points: tuple[CurvePoint, ...]
    unit: str
    knee_percentage: float | None = None

    @property
    def top(self) -> float:
        """A round number that no point lies above: where the axis ends."""
        power = 10.0 ** floor(log10(self._most))
        return next(
            (step * power for step in _TOPS if step * power >= self._most * (1 - 1e-9)), 10 * power
        )

    def tick(self, share: float) -> str:
        """The number beside the axis of throughput, at so much of its length."""
        value = self.top * share
        return f"{value:.0f}" if 1000 <= value < 1e6 else f"{value:.4g}"

    @property
    def proportional(self) -> tuple[CurvePoint, CurvePoint]:
        """Both ends of the line on which throughput grows as the share of SMs does, up to the most of the curve."""
        return CurvePoint(0.0, 0.0), CurvePoint(self.points[-1].sm_percentage, self._most)

    @property
    def _most(self) -> float:
        return max(point.throughput for point in self.points)


class Section(NamedTuple):
    """What belongs together.

    Attributes:
        title: of it.
        note: what the bars mean.
        bars: figures with an end.
        graph: who talks to whom.
        plot: the curve.
        facts: everything else.
    """

    title: str
    note: str = ""
    bars: tuple[Bar, ...] = ()
    graph: Graph | None = None
    plot: Plot | None = None
    facts: tuple[Fact, ...] = ()


class ProfileView(NamedTuple):
    """Everything that is shown of a profile; all of its texts are safe for a terminal.

    Attributes:
        name: of the profile.
        description: a line, or nothing.
        facts: what it is about.
        warnings: what to know before one trusts the figures.
        sections: what is recorded, those without anything left out.
    """

    name: str
    description: str
    facts: tuple[Fact, ...]
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]


def sketch(graph: Graph) -> str:
    """A graph in one line: a way through all ranks where it is one, else its heaviest pairs.

    Example:
        >>> sketch(Graph(3, ((0, 1, 1.0), (0, 2, 1.0), (1, 2, 1.0))))
        '0 - 1 - 2 - 0'
    """
    pairs = {(a, b) for a, b, _ in graph.edges}
    if not pairs:
        return "no rank talks to another"
    walk = _walk(graph)
    if walk:
        return " - ".join(map(str, walk))
    if graph.shape in _AXES:
        sizes = " x ".join(map(str, dimensions(graph.ranks, _AXES[graph.shape])))
        return f"{sizes} {graph.shape}, each with its neighbours"
    if pairs == {(0, rank) for rank in range(1, graph.ranks)}:
        return f"0 with each of 1 to {graph.ranks - 1}"
    if len(pairs) == graph.ranks * (graph.ranks - 1) // 2 and not graph.unit:
        return "each rank with every other"
    ordered = sorted(graph.edges, key=lambda edge: (-edge[2], edge[:2]))
    named = ", ".join(_pair(edge, graph.unit) for edge in ordered[:_NAMED])
    more = len(ordered) - _NAMED
    return f"{named} and {more} more" if more > 0 else named


def _pair(edge: Edge, unit: str | None) -> str:
    a, b, weight = edge
    return f"{a}-{b} {weight:.3g} {unit}" if unit else f"{a}-{b}"


def _walk(graph: Graph) -> list[int]:
    """Ranks along a ring of all of them, back to the first, or along a chain; [] if the graph is neither."""
    around: dict[int, list[int]] = {rank: [] for rank in range(graph.ranks)}
    for a, b, _ in graph.edges:
        around[a].append(b)
        around[b].append(a)
    ends = [rank for rank, others in around.items() if len(others) == 1]
    if len(ends) not in (0, 2) or any(len(others) not in (1, 2) for others in around.values()):
        return []
    walk = [ends[0] if ends else 0]
    while len(walk) <= graph.ranks:
        before = walk[-2] if len(walk) > 1 else None
        ahead = [other for other in sorted(around[walk[-1]]) if other != before]
        if not ahead:
            break
        walk.append(ahead[0])
    return walk if len(set(pairwise(walk))) == len(graph.edges) and set(walk) == set(around) else []
