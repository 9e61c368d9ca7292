"""The CPUs and NUMA nodes behind the connections of a row of `nvidia-smi topo -m`."""
# pure: decides on plain values

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from gpulaunch.errors import quoted
from gpulaunch.machine.cpuset import parse_cpuset
from gpulaunch.machine.pasted_text import TextError

TITLES = {"cpu": "CPU Affinity", "numa": "NUMA Affinity", "own": "GPU NUMA ID"}
AFFINITY = re.compile(r"[0-9][0-9,-]*|N/A")
_MAX_SHOWN = 40

Affinity = tuple[frozenset[int], int | None]


def shorten(word: str) -> str:
    """Return a word of the text between quotes, or its beginning."""
    return quoted(word if len(word) <= _MAX_SHOWN else f"{word[:_MAX_SHOWN]}...")


def read_affinity(number: int, name: str, tail: str, titles: Sequence[str]) -> Affinity:
    """Read the CPUs and the NUMA node behind the connections of a row.

    Tabs around an empty cell show that it is there. A value narrower than its title may have a
    second tab after it: so only the first column can contain the first value, and any other value
    may belong further left than it stands.
    """
    pieces = tail.split("\t")
    tabbed = not pieces[0].strip() and all(len(piece.split()) < 2 for piece in pieces)
    values = [(place, piece.strip()) for place, piece in enumerate(pieces[1:]) if piece.strip()]
    if not tabbed:
        values = [(-1, word) for word in tail.split()]
    sets = [_read_cpus(number, name, word) for _, word in values]
    if len(values) > len(titles):
        extra = " ".join(word for _, word in values)
        raise TextError(
            number,
            f"row {name} has {shorten(extra)} after its connections, for {len(titles)} columns",
        )

    def fits(place: int, column: int) -> bool:
        return (
            not tabbed
            or len(values) == len(titles)
            or (column <= place and (column == 0) == (place == 0))
        )

    places = [place for place, _ in values]
    readings = set()
    for columns in combinations(range(len(titles)), len(values)):
        if all(map(fits, places, columns)):
            names = [titles[column] for column in columns]
            readings.add(_interpret_affinity(dict(zip(names, sets, strict=True))))
    if len(readings) != 1:
        cells = shorten(" ".join(word for _, word in values))
        raise TextError(
            number, f"row {name}: which of {', '.join(titles)} {cells} is cannot be told"
        )
    return readings.pop()


def _read_cpus(number: int, name: str, word: str) -> frozenset[int]:
    try:
        if AFFINITY.fullmatch(word):
            return frozenset() if word == "N/A" else parse_cpuset(word)
    except ValueError:
        pass
    raise TextError(
        number,
        f"row {name}: {shorten(word)} after its connections is no list such as 0-19,40-59, nor N/A",
    )


def _interpret_affinity(cells: Mapping[str, frozenset[int]]) -> Affinity:
    """Return the CPUs, and the node that has them.

    On Grace the list has the node of the CPUs, which is the lowest, and those of GPU memory, which
    stand apart from it or are named by the last column. Any other list is of several nodes.
    """
    nodes = cells.get(TITLES["numa"], frozenset())
    cpus = cells.get(TITLES["cpu"], frozenset())
    if not nodes:
        return cpus, None
    lowest = min(nodes)
    has_memory_nodes = bool(cells.get(TITLES["own"])) or lowest + 1 not in nodes
    return cpus, lowest if len(nodes) == 1 or has_memory_nodes else None


def nodes_by_cpus(
    cpusets: Sequence[frozenset[int]],
    nodes: Sequence[int | None],
    far: Sequence[tuple[int, int]],
) -> tuple[int | None, ...]:
    """Return the NUMA node of each GPU, also of those whose node the text does not name.

    GPUs with equal CPU lists are in one node. If the text names no node at all, the lists are
    counted from 0 in the order of their CPUs, unless they overlap or contradict the connections.

    Args:
        cpusets: CPUs next to each GPU; empty if unknown.
        nodes: node that the text names for each GPU, or None.
        far: pairs of GPUs whose connection crosses NUMA nodes.
    """
    named: dict[frozenset[int], set[int]] = {}
    for cpus, node in zip(cpusets, nodes, strict=True):
        if cpus and node is not None:
            named.setdefault(cpus, set()).add(node)
    if any(node is not None for node in nodes):
        only = {cpus: min(found) for cpus, found in named.items() if len(found) == 1}
        return tuple(
            only.get(cpus) if node is None else node
            for cpus, node in zip(cpusets, nodes, strict=True)
        )
    lists = sorted({cpus for cpus in cpusets if cpus}, key=min)
    overlap = any(a & b for a, b in combinations(lists, 2))
    contradicted = any(cpusets[a] and cpusets[a] == cpusets[b] for a, b in far)
    if overlap or contradicted or len(cpusets) == 1:
        return tuple(nodes)
    return tuple(lists.index(cpus) if cpus else None for cpus in cpusets)
