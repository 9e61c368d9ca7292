"""What the ranks of a job send each other: by named shapes, and by sizes of parallelism."""
# pure: decides on plain values

import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from math import prod

from gpulaunch.errors import UsageError, quoted
from gpulaunch.profiles.pattern import PATTERNS, Edge, dimensions
from gpulaunch.records import Record

MOST_WEIGHT = 1e18
"""The most that two ranks exchange."""


class RankTraffic(Record):
    """The traffic among the ranks of a job.

    Attributes:
        edges: pairs that exchange data, the lower rank first, sorted, each once, with what they
            exchange in both directions together: above 0, in any unit, since only ratios matter.
    """

    ranks: int
    edges: tuple[Edge, ...]


Rows = Sequence[Sequence[tuple[int, float]]]
"""Neighbours of each vertex, and the weight of the edge to them."""


def rows_of(traffic: RankTraffic) -> list[list[tuple[int, float]]]:
    """Return the partners of each rank with what they exchange."""
    rows: list[list[tuple[int, float]]] = [[] for _ in range(traffic.ranks)]
    for a, b, weight in traffic.edges:
        rows[a].append((b, weight))
        rows[b].append((a, weight))
    return rows


def summed(ranks: int, edges: Iterable[Edge]) -> RankTraffic:
    """Return the traffic of edges in any order and direction; those of one pair add up.

    Args:
        edges: two different ranks, and what they exchange, above 0.
    """
    weights: dict[tuple[int, int], float] = {}
    for one, other, weight in edges:
        pair = (one, other) if one < other else (other, one)
        weights[pair] = weights.get(pair, 0.0) + weight
    return RankTraffic(ranks, tuple((*pair, weights[pair]) for pair in sorted(weights)))


def together(parts: Sequence[RankTraffic]) -> RankTraffic:
    """Return the sum of several kinds of traffic among the same ranks."""
    return summed(parts[0].ranks, [edge for part in parts for edge in part.edges])


def scaled(traffic: RankTraffic, largest: float) -> RankTraffic:
    """Return the traffic in another unit, in which `largest` is 1."""
    return RankTraffic(
        traffic.ranks, tuple([(a, b, weight / largest) for a, b, weight in traffic.edges])
    )


def largest_weight(parts: Sequence[RankTraffic]) -> float:
    """Return the most that two ranks exchange, in one kind of traffic; 1 without any traffic."""
    return max([weight for part in parts for _, _, weight in part.edges], default=1.0)


# ------------------------------------------------------------------------------------------ shapes

_GRIDS = {"2d": ("stencil_2d", 2), "3d": ("stencil_3d", 3)}
"""Name in magc-2016 -> the same pattern here, and the dimensions of its grid."""

_COLUMNS = "col"

SHAPES = (*_GRIDS, _COLUMNS, *PATTERNS)


def shape_traffic(name: str, ranks: int) -> RankTraffic | None:
    """Return the traffic of a named shape; None if there is none of this name.

    "2d" and "3d" are meshes of 5 and 7 points without wrap-around, "col" an all-to-all within each
    line along the first dimension of a 3D grid. Ranks are numbered in row-major order, so that the
    first dimension has the largest stride. "2d:3" weighs messages along the first dimension 3
    times.

    Args:
        name: a name of SHAPES, with "-" or "_"; a mesh with ":" and a weight, 1e-9 to 1e9.

    Raises:
        UsageError: the weight is wrong.

    Source: magc-2016 V-A. Sizes of the grids, and that they do not wrap, are not said there; sizes
        are those of MPI_Dims_create.
    """
    shape, colon, weight = name.partition(":")
    shape = _GRIDS.get(shape, (shape.replace("-", "_"), 0))[0]
    axes = dict(_GRIDS.values()).get(shape, 0)
    if shape == _COLUMNS and not colon:
        length, *others = dimensions(ranks, 3)
        stride = prod(others)
        pairs = [(i * stride, j * stride) for i, j in combinations(range(length), 2)]
        return summed(ranks, [(k + a, k + b, 1.0) for k in range(stride) for a, b in pairs])
    if shape not in PATTERNS or (colon and not axes):
        return None
    edges = PATTERNS[shape].edges(ranks)
    if not colon:
        return RankTraffic(ranks, edges)
    factor = _number(weight, 1e9)
    if factor is None:
        raise UsageError(
            f"pattern {quoted(name)}: {quoted(weight)} is no weight above 0", "such as 2d:3"
        )
    stride = prod(dimensions(ranks, axes)[1:])
    return RankTraffic(
        ranks, tuple((a, b, factor if b - a == stride else 1.0) for a, b, _ in edges)
    )


def _number(text: str, most: float) -> float | None:
    """Return a number from 1e-9 to a largest one; None for any other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 1e-9 <= value <= most else None


# ---------------------------------------------------------------------------- sizes of parallelism

DEFAULT_VOLUMES = {"tp": 42.0, "cp": 10.0, "dp": 2.0, "pp": 1.0}
"""What each rank sends for each kind, where the user does not say it: assumed, in any unit.

tp, dp and pp follow from the formulas of Narayanan et al. 2021 (arXiv 2104.04473) for GPT-3 with
96 layers, hidden size 12288, sequences of 2048, tp 8, pp 8 and 48 micro-batches: 84, 4.5 and 2
times the activations of a micro-batch, rounded. That cp is a quarter of tp is a guess.
"""

_SIZE = re.compile(r"(\w+)=([0-9]{1,7})(?::([0-9.eE+-]{1,32}))?", re.ASCII)


def is_sizes(text: str) -> bool:
    """Return whether a text is meant as sizes of parallelism."""
    return bool(re.match(r"(?:tp|cp|ep|dp|pp)=", text))


def parallel_traffic(text: str, ranks: int) -> RankTraffic:
    """Return the traffic of training with sizes of parallelism: tp, cp and dp rings, pp a chain.

    Ranks are numbered as Megatron does by default, tp-cp-dp-pp with tp fastest.

    Args:
        text: sizes in any order, such as "tp=8,pp=2"; a size may have a colon and a volume, what
            each rank sends for it, in any unit that is the same for all. A missing dp is what is
            left of the ranks.

    Raises:
        UsageError: a size is unknown, stands twice, or the sizes do not give this many ranks.

    Source: order and groups: initialize_model_parallel in Megatron Core's parallel_state.py.
    """
    sizes, volumes = _read_sizes(text)
    given = prod(sizes.values())
    if "dp" not in sizes and ranks % given == 0:
        sizes["dp"] = ranks // given
    if prod(sizes.values()) != ranks:
        named = " x ".join(f"{kind} {sizes[kind]}" for kind in volumes if sizes.get(kind, 1) > 1)
        total = prod(sizes.values())
        raise UsageError(
            f"{quoted(text)}: {named or 'no size'} is {total} ranks, and {ranks} are mapped"
        )
    edges: list[Edge] = []
    stride = 1
    for kind, volume in volumes.items():  # the fastest first
        size = sizes.get(kind, 1)
        for rank in range(ranks):
            last = rank // stride % size == size - 1
            successor = rank - (size - 1) * stride if last else rank + stride
            if size > 1 and not (last and kind == "pp"):
                edges.append((rank, successor, volume))
        stride *= size
    return summed(ranks, edges)


def _read_sizes(text: str) -> tuple[dict[str, int], dict[str, float]]:
    """Return the sizes that a text names, and the volume of every kind."""
    sizes: dict[str, int] = {}
    volumes = dict(DEFAULT_VOLUMES)
    for one in text.split(","):
        match = _SIZE.fullmatch(one)
        if not match or match[1] not in volumes or int(match[2]) < 1:
            raise UsageError(
                f"{quoted(text)}: {quoted(one)} is no size of parallelism",
                "sizes are such as tp=8,cp=1,dp=4,pp=2, or with volumes tp=8:42,dp=4:2",
            )
        if match[1] in sizes:
            raise UsageError(f"{quoted(text)}: {match[1]} stands twice")
        sizes[match[1]] = int(match[2])
        if match[3] is not None:
            volume = _number(match[3], MOST_WEIGHT)
            if volume is None:
                raise UsageError(f"{quoted(text)}: {quoted(match[3])} is no volume above 0")
            volumes[match[1]] = volume
    return sizes, volumes
