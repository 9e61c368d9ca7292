"""The door to Scotch, a library that maps graphs to trees (Pellegrini and Roman, HPCN 1996).

PyPI's pyscotch carries the library, which is taken without its Python part: that imports numpy and
prints as it is imported. Else the system's is taken, such as Debian's libscotch-7.0.
"""

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import FailedError, UsageError
from gpulaunch.files.extras import install_hint
from gpulaunch.profiles.pattern import Edge
from gpulaunch.typing import Any

_LARGEST = 1000
"""Integer that the largest weight becomes: Scotch has no others."""

_SYSTEM = (
    ("libscotcherr-7.0.so", "libscotch-7.0.so"),  # Debian's names
    ("libscotcherr.so", "libscotch.so"),
)


def is_installed() -> bool:
    """Return whether Scotch can be loaded."""
    return _load() is not None


def refuse_without_scotch() -> None:
    """Raise UsageError if Scotch is not installed."""
    if not is_installed():
        raise UsageError(
            "Scotch not found: neither pyscotch nor the system's libscotch can be loaded",
            install_hint("scotch"),
        )


def map_by_scotch(ranks: int, edges: Sequence[Edge], tree: Tree, sizes: Sequence[int]) -> list[int]:
    """Map ranks to the leaves of a tree with Scotch's default strategy.

    It is alike each time if Scotch has one thread.

    Args:
        ranks: number of ranks, at most the sum of sizes.
        edges: what they exchange.
        tree: two leaves count as far from each other as 1 / bandwidth of all links between adds up.
        sizes: how many ranks each leaf takes, 1 or more.

    Returns:
        Position of the leaf of each rank. Scotch balances, but not exactly: a leaf may have more
        than it takes.

    Raises:
        FailedError: Scotch failed, or is not installed.
    """
    library = _load()
    if library is None:
        raise FailedError("Scotch is not installed")
    if len(tree.leaves) < 2 or ranks < 2:
        return [0] * ranks
    library.call("randomReset")
    places = sum(sizes)  # with fewer vertices than that, Scotch can crash
    graph, arrays = library.graph(places, edges)
    (arch, terminals), strategy = library.arch(tree, sizes), library.room("strat")
    found = library.numbers([0] * places)
    library.call("graphMap", graph, arch, strategy, found)
    for room, kind in ((strategy, "strat"), (arch, "arch"), (graph, "graph")):
        library.call(f"{kind}Exit", room)
    del arrays
    positions = {terminal: position for position, terminal in enumerate(terminals)}
    return [positions[terminal] for terminal in found][:ranks]


class _Library:
    """Scotch, loaded.

    Args:
        loaded: the library.
        suffix: what follows the names of its functions.
    """

    def __init__(self, loaded: ctypes.CDLL, suffix: str) -> None:
        self.loaded, self.suffix = loaded, suffix
        self.number = ctypes.c_int64 if self.call("numSizeof") == 8 else ctypes.c_int32

    def call(self, name: str, *arguments: object) -> int:
        """Call a function by the name that comes after SCOTCH_."""
        status: int = getattr(self.loaded, f"SCOTCH_{name}{self.suffix}")(*arguments)
        if status and not name.endswith(("Sizeof", "Exit", "Reset")):
            raise FailedError(f"Scotch: {name} returned {status}")
        return status

    def numbers(self, values: Sequence[int]) -> "ctypes.Array[Any]":
        """Return an array of Scotch's integers; one more where it would have no length."""
        return (self.number * max(1, len(values)))(*values)

    def room(self, kind: str) -> "ctypes.Array[ctypes.c_char]":
        """Return memory for one of Scotch's structures, initialised."""
        room = ctypes.create_string_buffer(self.call(f"{kind}Sizeof"))
        self.call(f"{kind}Init", room)
        return room

    def graph(
        self, vertices: int, edges: Sequence[Edge], shares: Sequence[int] = ()
    ) -> "tuple[ctypes.Array[ctypes.c_char], object]":
        """Build a graph; return it with the arrays that have to live as long.

        Args:
            vertices: their number.
            edges: two vertices and a weight.
            shares: weights of the vertices, if they have any.
        """
        rows: list[list[tuple[int, float]]] = [[] for _ in range(vertices)]
        for a, b, weight in edges:
            rows[a].append((b, weight))
            rows[b].append((a, weight))
        starts = [0]
        for row in rows:
            starts.append(starts[-1] + len(row))
        arrays = (
            self.numbers(starts),
            self.numbers([other for row in rows for other, _ in row]),
            self.numbers(_integers([weight for row in rows for _, weight in row])),
            self.numbers(shares) if shares else None,
        )
        begins, ends, weights, loads = arrays
        graph, number = self.room("graph"), self.number
        self.call(
            "graphBuild",
            graph,
            number(0),
            number(vertices),
            begins,
            None,
            loads,
            None,
            number(starts[-1]),
            ends,
            weights,
        )
        return graph, arrays

    def arch(
        self, tree: Tree, sizes: Sequence[int]
    ) -> "tuple[ctypes.Array[ctypes.c_char], Sequence[int]]":
        """Describe a tree: level by level if all is alike, which is exact, else as a graph.

        Returns:
            The description, and Scotch's number for each leaf.
        """
        arch = self.room("arch")
        levels = _levels(tree) if len(set(sizes)) == 1 else None
        if levels:
            fans = self.numbers([fan for fan, _ in levels])
            ways = self.numbers(_integers([way for _, way in levels]))
            self.call("archTleaf", arch, self.number(len(levels)), fans, ways)
            return arch, range(len(tree.leaves))
        shares = dict(zip(tree.leaves, sizes, strict=True))
        edges = [
            (parent, vertex, 1.0 / tree.gb_per_s[vertex])
            for vertex, parent in enumerate(tree.parents)
            if vertex
        ]
        count = len(tree.parents)
        graph, arrays = self.graph(count, edges, [shares.get(v, 0) for v in range(count)])
        strategy = self.room("strat")  # none that was used to map: it would crash
        leaves = self.numbers(tree.leaves)
        self.call("archBuild0", arch, graph, self.number(len(tree.leaves)), leaves, strategy)
        self.call("stratExit", strategy)
        self.call("graphExit", graph)
        del arrays
        return arch, tree.leaves


@cache
def _load() -> _Library | None:
    found = find_spec("pyscotch")
    folders = list(found.submodule_search_locations or ()) if found else []
    carried = [os.path.join(folder, "_libs", "lib32") for folder in folders]
    names = [
        *((os.path.join(c, "libscotcherr.so"), os.path.join(c, "libscotch.so")) for c in carried),
        *_SYSTEM,
    ]
    for errors, name in names:
        try:
            ctypes.CDLL(errors, mode=ctypes.RTLD_GLOBAL)
            loaded = ctypes.CDLL(name)
        except OSError:
            continue
        for suffix in ("", "_32"):
            if hasattr(loaded, f"SCOTCH_graphMap{suffix}"):
                return _Library(loaded, suffix)
    return None


def _integers(weights: Sequence[float]) -> list[int]:
    largest = max(weights, default=1.0)
    return [max(1, round(weight / largest * _LARGEST)) for weight in weights]


def _levels(tree: Tree) -> list[tuple[int, float]] | None:
    """Return fan-out of each level, from the top, and the way up to it; None if they differ."""
    children = tree.children()
    level, links = [0], list[tuple[int, float]]()
    while children[level[0]]:
        below = [child for vertex in level for child in children[vertex]]
        kinds = {len(children[vertex]) for vertex in level}
        speeds = {tree.gb_per_s[child] for child in below}
        if len(kinds) > 1 or len(speeds) > 1:
            return None
        links.append((kinds.pop(), 1.0 / speeds.pop()))
        level = below
    if tuple(level) != tree.leaves:
        return None
    return [  # a level of single children can crash Scotch
        (fan, sum(way for _, way in links[number:]))
        for number, (fan, _) in enumerate(links)
        if fan > 1
    ]
