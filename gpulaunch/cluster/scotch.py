"""The door to Scotch, a library that maps graphs to trees (Pellegrini and Roman, HPCN 1996).

PyPI's pyscotch carries the library; its Python part is not used, since it imports numpy and prints
as it is imported. Else the system's is taken, such as Debian's libscotch.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec

from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import FailedError, UsageError
from gpulaunch.profiles.pattern import Edge
from gpulaunch.typing import Any

_LARGEST = 1000
"""Integer that the largest weight of edges becomes, and the longest way in the tree."""

_WHERE = (
    ("libscotcherr-7.0.so", "libscotch-7.0.so"),  # Debian's
    ("libscotcherr.so", "libscotch.so"),
)


def is_installed() -> bool:
    """Return whether Scotch can be loaded."""
    return _library() is not None


def map_by_scotch(
    ranks: int, edges: Sequence[Edge], tree: Tree, capacities: Sequence[int]
) -> list[int]:
    """Map ranks to the leaves of a tree with Scotch's default strategy, always alike.

    Args:
        ranks: number of ranks, as many as the capacities sum up to, or fewer.
        edges: what they exchange.
        tree: two leaves count as far from each other as 1 / bandwidth of all links between adds up.
        capacities: how many ranks each leaf takes.

    Returns:
        Position of the leaf of each rank. Scotch balances, but not exactly: a leaf may have more
        than it takes.

    Raises:
        UsageError: Scotch is not installed.
        FailedError: Scotch failed.
    """
    scotch = _library()
    if scotch is None:
        raise UsageError(
            "Scotch not found: neither pyscotch nor the system's libscotch can be loaded",
            "pip install 'gpulaunch[scotch]'",
        )
    if len(tree.leaves) < 2 or ranks < 2:
        return [0] * ranks
    call, number = scotch
    arch, graph, strategy = (_room(call, kind) for kind in ("arch", "graph", "strat"))
    call("randomReset")
    _build_graph(call, number, graph, ranks, edges)
    _build_arch(call, number, arch, tree, capacities)
    call("stratInit", strategy)
    parts = (number * ranks)()
    call("graphMap", graph, arch, strategy, parts)
    call("stratExit", strategy)
    call("archExit", arch)
    call("graphExit", graph)
    return list(parts)


Call = Callable[..., int]


@cache
def _library() -> tuple[Call, Any] | None:
    """Load Scotch; return a function that calls one of its own by name, and its integer type."""
    for errors, library in _candidates():
        try:
            ctypes.CDLL(errors, mode=ctypes.RTLD_GLOBAL)
            loaded = ctypes.CDLL(library)
        except OSError:
            continue
        suffix = "" if hasattr(loaded, "SCOTCH_graphMap") else "_32"
        if hasattr(loaded, f"SCOTCH_graphMap{suffix}"):
            return _caller(loaded, suffix)
    return None


def _candidates() -> list[tuple[str, str]]:
    found = find_spec("pyscotch")
    folders = list(found.submodule_search_locations or ()) if found else []
    carried = [
        (os.path.join(folder, "_libs/lib32", errors), os.path.join(folder, "_libs/lib32", library))
        for folder in folders
        for errors, library in _WHERE[1:]
    ]
    return [*carried, *_WHERE]


def _caller(loaded: ctypes.CDLL, suffix: str) -> tuple[Call, Any]:
    def call(name: str, *arguments: object) -> int:
        status: int = getattr(loaded, f"SCOTCH_{name}{suffix}")(*arguments)
        if status and not name.endswith(("Sizeof", "Exit", "Reset")):
            raise FailedError(f"Scotch: {name} returned {status}")
        return status

    return call, ctypes.c_int64 if call("numSizeof") == 8 else ctypes.c_int32


def _room(call: Call, kind: str) -> Any:
    """Return memory for one of Scotch's structures, set up as it wants it."""
    room = ctypes.create_string_buffer(call(f"{kind}Sizeof"))
    if kind != "strat":
        call(f"{kind}Init", room)
    return room


def _build_graph(
    call: Call,
    number: Any,
    graph: Any,
    ranks: int,
    edges: Sequence[Edge],
    capacities: Sequence[int] = (),
) -> None:
    rows: list[list[tuple[int, float]]] = [[] for _ in range(ranks)]
    for a, b, weight in edges:
        rows[a].append((b, weight))
        rows[b].append((a, weight))
    largest = max((weight for _, _, weight in edges), default=1.0)
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row))
    ends = [b for row in rows for b, _ in row]
    weights = [max(1, round(weight / largest * _LARGEST)) for row in rows for _, weight in row]
    loads = (number * ranks)(*capacities) if capacities else None
    # Scotch keeps pointers to the arrays: they live as long as the structure that has them.
    graph.arrays = (
        (number * (ranks + 1))(*starts),
        (number * max(1, len(ends)))(*ends),
        (number * max(1, len(ends)))(*weights),
        loads,
    )
    starts_, ends_, weights_, loads_ = graph.arrays
    call(
        "graphBuild",
        graph,
        number(0),
        number(ranks),
        starts_,
        None,
        loads_,
        None,
        number(len(ends)),
        ends_,
        weights_,
    )


def _build_arch(call: Call, number: Any, arch: Any, tree: Tree, capacities: Sequence[int]) -> None:
    """Describe the tree: by levels if each is alike, which is exact, else as a graph."""
    levels = _levels(tree) if len(set(capacities)) == 1 else None
    longest = max(_climb(tree, leaf) for leaf in tree.leaves)
    if levels:
        sizes, ways = zip(*levels, strict=True)
        count = len(levels)
        call(
            "archTleaf",
            arch,
            number(count),
            (number * count)(*sizes),
            (number * count)(*(max(1, round(way / longest * _LARGEST)) for way in ways)),
        )
        return
    target, strategy = _room(call, "graph"), _room(call, "strat")
    shares = [0] * len(tree.parents)
    for leaf, capacity in zip(tree.leaves, capacities, strict=True):
        shares[leaf] = capacity
    ways = [
        (parent, vertex, 1.0 / tree.gb_per_s[vertex])
        for vertex, parent in enumerate(tree.parents)
        if parent >= 0
    ]
    _build_graph(call, number, target, len(tree.parents), ways, shares)
    call("stratInit", strategy)  # one that was used for a mapping would not do
    leaves = (number * len(tree.leaves))(*tree.leaves)
    call("archBuild0", arch, target, number(len(tree.leaves)), leaves, strategy)
    call("stratExit", strategy)
    call("graphExit", target)


def _climb(tree: Tree, vertex: int) -> float:
    """Return how far a vertex is from the root."""
    way = 0.0
    while vertex:
        way += 1.0 / tree.gb_per_s[vertex]
        vertex = tree.parents[vertex]
    return way


def _levels(tree: Tree) -> list[tuple[int, float]] | None:
    """Return fan-out and way up to it of each level from the top, or None if they differ."""
    children = tree.children()
    level, levels = [0], list[tuple[int, float]]()
    if list(tree.leaves) != sorted(tree.leaves):
        return None
    while children[level[0]]:
        below = [child for vertex in level for child in children[vertex]]
        fans = {len(children[vertex]) for vertex in level}
        speeds = {tree.gb_per_s[child] for child in below}
        if len(fans) > 1 or len(speeds) > 1:
            return None
        levels.append((fans.pop(), _climb(tree, tree.leaves[0]) - _climb(tree, level[0])))
        level = below
    return levels if sorted(level) == list(tree.leaves) else None
