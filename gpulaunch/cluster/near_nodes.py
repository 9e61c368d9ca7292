"""Which nodes a job takes if it does not need all: few, and near each other."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.cluster.branch import Branch, branches
from gpulaunch.cluster.tree import Tree


def sizes_in_use(network: Tree, slots: Sequence[int], ranks: int) -> list[int]:
    """Return the slots of each node that a job uses, 0 of one that it does not.

    They are as few as can be if all nodes are alike, below as deep a switch as has so many; of
    several such switches, the smallest. Where it takes nodes of several switches, it takes whole
    switches, the largest first, and the rest of the smallest one that has it.

    Args:
        network: its leaves are the nodes.
        slots: number of ranks that each node takes.
        ranks: number of ranks, at most the sum of slots.
    """
    used = set(_take(branches(network, slots), ranks))
    return [size if position in used else 0 for position, size in enumerate(slots)]


def _take(branch: Branch, ranks: int) -> list[int]:
    """Return the leaves that take so many ranks."""
    if branch.leaf is not None:
        return [branch.leaf]
    if all(child.leaf is not None for child in branch.children):
        return _few(branch.children, ranks)
    few = _count(branch, ranks)
    whole = [child for child in branch.children if child.size >= ranks]
    alone = [child for child in whole if _count(child, ranks) == few]
    if alone:
        return _take(min(alone, key=lambda child: child.size), ranks)
    largest = max(branch.children, key=lambda child: min(child.size, ranks))
    taken = _take(largest, min(largest.size, ranks))
    others = tuple(child for child in branch.children if child is not largest)
    left = ranks - largest.size
    if left <= 0:
        return taken
    rest = Branch(0.0, branch.size - largest.size, None, others)
    return taken + _take(rest if len(others) > 1 else others[0], left)


def _few(nodes: Sequence[Branch], ranks: int) -> list[int]:
    """Return the largest nodes, of equals the first, until all ranks have a place."""
    taken = []
    for node in sorted(nodes, key=lambda node: -node.size):
        if ranks <= 0:
            break
        taken.append(node.leaf)
        ranks -= node.size
    return [leaf for leaf in taken if leaf is not None]


def _count(branch: Branch, ranks: int) -> int:
    """Return the fewest leaves that take so many ranks."""
    return len(_few(_leaves(branch), ranks))


def _leaves(branch: Branch) -> list[Branch]:
    if branch.leaf is not None:
        return [branch]
    return [leaf for child in branch.children for leaf in _leaves(child)]
