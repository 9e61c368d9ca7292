"""The door to gmap, the program of Scotch (Pellegrini and Roman, HPCN 1996) that maps to a tree."""

import os
import shutil
import subprocess
from collections import Counter

from gpulaunch.errors import FailedError, UsageError
from gpulaunch.lab.cluster.cluster import Tree
from gpulaunch.lab.cluster.traffic import RankTraffic, rows_of

_UNEVEN = "Scotch maps to even trees only: here nodes or switches differ, or are out of order"


def find_gmap() -> str | None:
    """Return the path of gmap, which Debian calls scotch_gmap; None if it is not installed."""
    return shutil.which("scotch_gmap") or shutil.which("gmap")


def map_by_scotch(traffic: RankTraffic, tree: Tree, size: int) -> list[int]:
    """Return the leaf of each rank by Scotch's default strategy.

    Args:
        traffic: what the ranks exchange.
        tree: all vertices of a level have as many children, over links of one bandwidth. Two leaves
            count as far from each other as 1 / bandwidth of all links between adds up.
        size: how many ranks each leaf takes.

    Raises:
        UsageError: gmap is not installed, or the tree is another one.
        FailedError: gmap failed, or gave a leaf more ranks than it takes.
    """
    gmap = find_gmap()
    if gmap is None:
        raise UsageError("Scotch's program gmap not found", "Debian has it in package scotch")
    levels = _levels(tree)
    if not levels or traffic.ranks < 2:
        return [0] * traffic.ranks
    rows = [*rows_of(traffic), *[[]] * (size * len(tree.leaves) - traffic.ranks)]
    largest = max([weight for _, _, weight in traffic.edges], default=1.0)
    lines = ["0", f"{len(rows)} {2 * len(traffic.edges)}", "0 010"]  # 010: edges have weights
    for row in rows:
        ends = (f"{_integer(weight, largest)} {other}" for other, weight in row)
        lines.append(" ".join([str(len(row)), *ends]))
    ways = (f"{fan} {_integer(way, levels[0][1])}" for fan, way in levels)
    lines.append(" ".join(["tleaf", str(len(levels)), *ways]))
    one_thread = {**os.environ, "SCOTCH_PTHREAD_NUMBER": "1"}  # several map by chance
    text = "\n".join(lines) + "\n"
    for balance in ([], ["-b0"]):  # by default a leaf may get a rank too many
        argv = [gmap, *balance, "-", "-", "-"]
        done = subprocess.run(  # noqa: S603  nothing of the user's is in it but numbers
            argv, input=text, env=one_thread, capture_output=True, text=True, check=False
        )
        pairs = map(str.split, done.stdout.splitlines()[1:])
        found = {int(vertex): int(leaf) for vertex, leaf in pairs}
        if len(found) == len(rows) and max(Counter(found.values()).values()) <= size:
            return [found[rank] for rank in range(traffic.ranks)]
    raise FailedError(f"Scotch: no mapping of {traffic.ranks} ranks, status {done.returncode}")


def _integer(weight: float, largest: float) -> int:
    """Return a weight as Scotch has them: an integer, 1,000 for the largest."""
    return max(1, round(weight / largest * 1000))


def _levels(tree: Tree) -> list[tuple[int, float]]:
    """Return the fan-out of each level from the top, and the way up from its lowest vertices."""
    children = tree.children()
    level, links = [0], list[tuple[int, float]]()
    while any(children[vertex] for vertex in level):
        speeds = {tuple(tree.gb_per_s[child] for child in children[vertex]) for vertex in level}
        first = next(iter(speeds))
        if len(speeds) > 1 or len(set(first)) > 1:
            raise UsageError(_UNEVEN)
        links.append((len(first), 1.0 / first[0]))
        level = [child for vertex in level for child in children[vertex]]
    if tuple(level) != tree.leaves:
        raise UsageError(_UNEVEN)
    ways = [sum(way for _, way in links[number:]) for number in range(len(links))]
    return [(fan, way) for (fan, _), way in zip(links, ways, strict=True) if fan > 1]
