"""A tree as one goes down it: how many ranks each part takes."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.cluster.tree import Tree
from gpulaunch.records import Record


class Branch(Record):
    """A vertex of a tree with what is below it.

    Attributes:
        gb_per_s: bandwidth of the link upward; 0 at the root.
        size: number of ranks that its leaves take.
        leaf: position of the leaf that it is; None if it is none.
        children: those with leaves that take ranks; not just one.
    """

    gb_per_s: float
    size: int
    leaf: int | None = None
    children: "tuple[Branch, ...]" = ()

    @property
    def is_uniform(self) -> bool:
        """True if all children are alike in bandwidth and size."""
        return len({(child.gb_per_s, child.size) for child in self.children}) == 1


def branches(tree: Tree, sizes: Sequence[int]) -> Branch:
    """Return a tree whose leaves take so many ranks each; what takes none is left out.

    Links in a chain have the same load, so that the slowest stands for all.
    """
    below: list[list[Branch]] = [[] for _ in tree.parents]
    for position, vertex in enumerate(tree.leaves):
        if sizes[position]:
            below[vertex].append(Branch(0.0, sizes[position], position))
    for vertex in range(len(tree.parents) - 1, 0, -1):
        if below[vertex]:
            below[tree.parents[vertex]].insert(0, _with_link(below[vertex], tree.gb_per_s[vertex]))
    return _with_link(below[0], 0.0)


def _with_link(children: list[Branch], gb_per_s: float) -> Branch:
    if len(children) > 1:
        return Branch(gb_per_s, sum(child.size for child in children), None, tuple(children))
    only = children[0]
    slowest = min(gb_per_s or only.gb_per_s, only.gb_per_s or gb_per_s)
    return Branch(slowest, only.size, only.leaf, only.children)
