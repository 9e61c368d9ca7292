"""Traffic of named shapes: those of magc-2016, and every pattern of a job on one machine."""
# pure: decides on plain values

from collections.abc import Iterator
from itertools import combinations
from math import prod

from gpulaunch.cluster.rank_traffic import RankTraffic
from gpulaunch.errors import UsageError, quoted
from gpulaunch.profiles.pattern import PATTERNS, Edge, dimensions

MOST_EDGES = 1 << 22
"""Largest number of pairs that exchange data: all-to-all of 2,896 ranks."""

GRIDS = {"2d": ("stencil_2d", 2), "3d": ("stencil_3d", 3)}
"""Name in magc-2016 -> the same pattern here, and the dimensions of its grid."""

COLUMNS = "col"

SHAPES = (*GRIDS, COLUMNS, *PATTERNS)


def shape_traffic(name: str, ranks: int) -> RankTraffic | None:
    """Return the traffic of a named shape; None if there is none of this name.

    "2d" and "3d" are meshes of 5 and 7 points without wrap-around, "col" an all-to-all within each
    line along the first dimension of a 3D grid. Ranks are numbered in row-major order, so that the
    first dimension has the largest stride. "2d:3" weighs messages along the first dimension 3
    times.

    Args:
        name: a name of SHAPES, with "-" or "_"; a mesh with ":" and a weight, 1e-9 to 1e9.
        ranks: number of ranks.

    Raises:
        UsageError: the weight is wrong, or there are more than MOST_EDGES pairs.

    Source: magc-2016 V-A. Sizes of the grids, and that they do not wrap, are not said there; sizes
        are those of MPI_Dims_create.
    """
    shape, colon, weight = name.partition(":")
    shape = GRIDS.get(shape, (shape.replace("-", "_"), 0))[0]
    axes = dict(GRIDS.values()).get(shape, 0)
    if shape == COLUMNS and not colon:
        _refuse_many(name, ranks, dimensions(ranks, 3)[0])
        return RankTraffic(ranks, tuple(sorted(_columns(ranks))))
    if shape not in PATTERNS or (colon and not axes):
        return None
    if shape == "all_to_all":
        _refuse_many(name, ranks, ranks)
    edges = PATTERNS[shape].edges(ranks)
    if not colon:
        return RankTraffic(ranks, edges)
    factor = _read_weight(name, weight)
    stride = prod(dimensions(ranks, axes)[1:])
    return RankTraffic(
        ranks, tuple((a, b, factor if b - a == stride else 1.0) for a, b, _ in edges)
    )


def _columns(ranks: int) -> Iterator[Edge]:
    """Yield all pairs in each line along the first dimension of a 3D grid."""
    length, *others = dimensions(ranks, 3)
    stride = prod(others)
    for first in range(stride):
        for i, j in combinations(range(length), 2):
            yield first + i * stride, first + j * stride, 1.0


def _refuse_many(name: str, ranks: int, length: int) -> None:
    """Refuse an all-to-all within groups of this length that has too many pairs."""
    pairs = ranks * (length - 1) // 2
    if pairs > MOST_EDGES:
        raise UsageError(
            f"pattern {quoted(name)} of {ranks} ranks has {pairs} pairs: {MOST_EDGES} at most"
        )


def _read_weight(name: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 1e-9 <= weight <= 1e9:
        raise UsageError(
            f"pattern {quoted(name)}: {quoted(text)} is no weight above 0", "such as 2d:3"
        )
    return weight
