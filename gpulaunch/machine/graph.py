"""The door to networkx: graphs whose attributes are scalars, so that every file format of networkx can hold them."""
# pure: decides on plain values

from collections.abc import Iterable, Mapping
from numbers import Integral, Real

from gpulaunch.errors import FieldError, UsageError
from gpulaunch.files.fields import FieldTable, checked
from gpulaunch.typing import Any, Protocol

Attributes = Mapping[str, Any]

_MOST_DIGITS = 9  # of an index
_MOST_SHOWN = 40  # characters of a node's name
_MOST_REASON = 100  # characters of what networkx says is wrong, which may quote the file


class Graph(Protocol):
    """What we need of a networkx.Graph, so that nobody else has to import that package."""

    graph: dict[str, Any]
    nodes: Any
    edges: Any

    def __len__(self) -> int:
        """How many nodes."""

    def is_directed(self) -> bool:
        """Whether it is a DiGraph."""

    def is_multigraph(self) -> bool:
        """Whether two nodes can have several edges."""


def make_graph(
    nodes: Iterable[tuple[int | str, Attributes]],
    edges: Iterable[tuple[int | str, int | str, Attributes]],
    attributes: Attributes | None = None,
) -> Graph:
    """An undirected graph; attributes that are None are left out."""
    import networkx as nx  # type: ignore[import-untyped]

    made = nx.Graph(**_known(attributes or {}))
    made.add_nodes_from((node, _known(values)) for node, values in nodes)
    made.add_edges_from((a, b, _known(values)) for a, b, values in edges)
    graph: Graph = made
    return graph


def _known(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def read_attributes(graph: Graph, fields: FieldTable) -> Attributes:
    """Attributes of the graph itself; others than those of the table are not ours.

    Raises:
        UsageError: names the attribute that is wrong; or the graph has directions or several edges
            for a pair.
    """
    if graph.is_directed() or graph.is_multigraph():
        raise UsageError("graph: it must be undirected, with at most one edge for two nodes")
    return _checked(
        {name: value for name, value in graph.graph.items() if name in fields}, fields, "graph"
    )


def read_nodes(graph: Graph, fields: FieldTable) -> dict[int, Attributes]:
    """Attributes of all nodes by ascending index.

    Raises:
        UsageError: names the node, and what of it is wrong.
    """
    found = {_index(node): values for node, values in graph.nodes(data=True)}
    if len(found) < len(graph):
        raise UsageError("graph: two of its nodes are the same index")
    return {index: _checked(found[index], fields, f"node {index}") for index in sorted(found)}


def read_edges(graph: Graph, fields: FieldTable) -> dict[tuple[int, int], Attributes]:
    """Attributes of all edges by pair, the lower index first.

    Raises:
        UsageError: names the edge, and what of it is wrong.
    """
    found = {}
    for one, other, values in graph.edges(data=True):
        a, b = sorted((_index(one), _index(other)))
        if a == b:
            raise UsageError(f"edge {a}-{b}: it joins a GPU to itself")
        found[a, b] = _checked(values, fields, f"edge {a}-{b}")
    return found


def read_graphml(text: str, origin: str) -> Graph:
    """The graph of a GraphML document.

    Args:
        text: the document; of several graphs in it the first counts.
        origin: where it comes from, such as its path, for errors.

    Raises:
        UsageError: it is no GraphML, or has what networkx cannot read: hyperedges, some edges
            directed and some not.
    """
    from xml.etree.ElementTree import ParseError

    import networkx as nx

    try:
        graph: Graph = nx.parse_graphml(text)
    except ParseError as problem:
        reason = str(problem).rpartition(": line")[0]
        raise UsageError(
            f"{origin}:{problem.position[0]}: no XML that can be read: {reason}"
        ) from None
    except (
        nx.NetworkXException,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as problem:
        reason = str(problem)[:_MOST_REASON]
        raise UsageError(f"{origin}: no GraphML that networkx can read: {reason}") from None
    return graph


def read_weights(graph: Graph) -> tuple[list[int], list[tuple[int, int, object]]]:
    """The nodes of a graph of ranks, and each edge with its weight; of a directed or parallel edge each one.

    An edge without the attribute "weight" has the default that a GraphML document states for it,
    else 1.

    Raises:
        UsageError: a node is no rank, or two are the same.
    """
    ranks = {node: _index(node, "a rank") for node in graph.nodes}
    if len(set(ranks.values())) < len(ranks):
        raise UsageError("two of its nodes are the same rank")
    defaults = graph.graph.get("edge_default")
    usual = defaults.get("weight", 1.0) if isinstance(defaults, Mapping) else 1.0
    edges = graph.edges(data="weight", default=usual)
    return [*ranks.values()], [
        (ranks[one], ranks[other], _plain(weight)) for one, other, weight in edges
    ]


def _index(node: object, meaning: str = "the index of a GPU") -> int:
    """A node's name as an index; text files of graphs have it as text."""
    if isinstance(node, str) and node.isascii() and node.isdecimal() and len(node) <= _MOST_DIGITS:
        return int(node)
    index = _plain(node)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 10**_MOST_DIGITS:
        raise UsageError(f"node {_short(node)}: it must be {meaning}: 0, 1, 2 ...")
    return index


def _plain(value: object) -> object:
    """A number as one of Python's own: a graph may have those of numpy."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _short(node: object) -> str:
    try:
        text = repr(node)
    except ValueError:  # a number of thousands of digits
        text = f"of type {type(node).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def _checked(values: Attributes, fields: FieldTable, where: str) -> Attributes:
    try:
        return checked({name: _plain(value) for name, value in values.items()}, fields)
    except FieldError as problem:
        raise UsageError(f"{where}: {problem.message}") from None
    except (OverflowError, ValueError):
        raise UsageError(f"{where}: a number has more digits than can be read") from None
