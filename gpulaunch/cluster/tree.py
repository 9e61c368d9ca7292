"""Links that form a tree: a cluster's network, and what is inside its nodes."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.records import Record


class Tree(Record):
    """A tree whose leaves take ranks, or nodes, and whose other vertices are switches and the like.

    Attributes:
        parents: parent of each vertex, which comes before it; -1 for the root, vertex 0.
        gb_per_s: bandwidth of the link from each vertex to its parent, per direction; 0 for the
            root.
        names: name of each vertex, such as "leaf1", "n1", "n1 socket 0" or "n1 GPU 2".
        leaves: vertices that take ranks or nodes, by their number: position i is slot i.
    """

    parents: tuple[int, ...]
    gb_per_s: tuple[float, ...]
    names: tuple[str, ...]
    leaves: tuple[int, ...]

    def children(self) -> list[list[int]]:
        """Return the children of each vertex, ascending."""
        children: list[list[int]] = [[] for _ in self.parents]
        for vertex, parent in enumerate(self.parents[1:], 1):
            children[parent].append(vertex)
        return children

    def depths(self) -> list[int]:
        """Return the number of links from each vertex to the root."""
        depths = [0] * len(self.parents)
        for vertex, parent in enumerate(self.parents[1:], 1):
            depths[vertex] = depths[parent] + 1
        return depths


def grafted(trunk: Tree, branches: Sequence[Tree]) -> Tree:
    """Return a tree in which each leaf of a trunk is the root of a branch.

    Args:
        trunk: a network; its leaves are nodes.
        branches: what is inside each node, in the order of the leaves. The leaf keeps its name and
            its link; the branch's root adds nothing.
    """
    parents, gb_per_s, names = list(trunk.parents), list(trunk.gb_per_s), list(trunk.names)
    leaves: list[int] = []
    for leaf, branch in zip(trunk.leaves, branches, strict=True):
        shift = len(parents) - 1  # vertex 1 of the branch comes next; its root is the leaf
        parents += [leaf if parent == 0 else parent + shift for parent in branch.parents[1:]]
        gb_per_s += branch.gb_per_s[1:]
        names += branch.names[1:]
        leaves += [leaf if slot == 0 else slot + shift for slot in branch.leaves]
    return Tree(tuple(parents), tuple(gb_per_s), tuple(names), tuple(leaves))
