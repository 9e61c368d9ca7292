"""The door to networkx: graphs with scalar attributes, which every file format can hold."""
# pure: decides on plain values

from collections.abc import Iterable, Mapping
from numbers import Integral, Real

from gpulaunch.errors import FieldError, UsageError
from gpulaunch.files.fields import FieldTable, checked
from gpulaunch.typing import Any, Protocol

Attributes = Mapping[str, Any]

_MOST_DIGITS = 9  # of an index
_MOST_SHOWN = 40  # characters of a node's name
_MOST_REASON = 100  # characters of networkx's message, which may quote the file


class Graph(Protocol):
    """The part of networkx.Graph that is used here, so that no other file imports that package."""

    graph: dict[str, Any]
    nodes: Any
    edges: Any

    def __len__(self) -> int:
        """Return the number of nodes."""

    def is_directed(self) -> bool:
        """Return whether this is a DiGraph."""

    def is_multigraph(self) -> bool:
        """Return whether two nodes can have several edges."""


def make_graph(
    nodes: Iterable[tuple[int | str, Attributes]],
    edges: Iterable[tuple[int | str, int | str, Attributes]],
    attributes: Attributes | None = None,
) -> Graph:
    """Build an undirected graph; attributes that are None are left out."""
    import networkx as nx  # type: ignore[import-untyped]

    made = nx.Graph(**_without_none(attributes or {}))
    made.add_nodes_from((node, _without_none(values)) for node, values in nodes)
    made.add_edges_from((a, b, _without_none(values)) for a, b, values in edges)
    graph: Graph = made
    return graph


def _without_none(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def read_attributes(graph: Graph, fields: FieldTable) -> Attributes:
    """Return the graph's own attributes that the table names; others are ignored.

    Raises:
        UsageError: names the attribute that is wrong; or the graph is directed, or has several
            edges for a pair.
    """
    if graph.is_directed() or graph.is_multigraph():
        raise UsageError("graph: it must be undirected, with at most one edge for two nodes")
    return _checked(
        {name: value for name, value in graph.graph.items() if name in fields}, fields, "graph"
    )


def read_nodes(graph: Graph, fields: FieldTable) -> dict[int, Attributes]:
    """Return the attributes of all nodes by ascending index.

    Raises:
        UsageError: names the node and its wrong attribute.
    """
    found = {_to_index(node): values for node, values in graph.nodes(data=True)}
    if len(found) < len(graph):
        raise UsageError("graph: two of its nodes are the same index")
    return {index: _checked(found[index], fields, f"node {index}") for index in sorted(found)}


def read_edges(graph: Graph, fields: FieldTable) -> dict[tuple[int, int], Attributes]:
    """Return the attributes of all edges by pair, the lower index first.

    Raises:
        UsageError: names the edge and its wrong attribute.
    """
    found = {}
    for one, other, values in graph.edges(data=True):
        a, b = sorted((_to_index(one), _to_index(other)))
        if a == b:
            raise UsageError(f"edge {a}-{b}: it joins a GPU to itself")
        found[a, b] = _checked(values, fields, f"edge {a}-{b}")
    return found


def read_graphml(text: str, origin: str) -> Graph:
    """Parse a GraphML document.

    Args:
        text: the document; if it contains several graphs, the first counts.
        origin: source of the text for errors, such as its path.

    Raises:
        UsageError: the text is no GraphML, or has what networkx cannot read: hyperedges, or a mix
            of directed and undirected edges.
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
    """Return the nodes of a graph of ranks, and each of its edges with its weight.

    Directed and parallel edges are returned one by one. An edge without the attribute "weight" has
    the default of its GraphML document, else 1.

    Raises:
        UsageError: a node is no rank, or two nodes are the same rank.
    """
    ranks = {node: _to_index(node, "a rank") for node in graph.nodes}
    if len(set(ranks.values())) < len(ranks):
        raise UsageError("two of its nodes are the same rank")
    defaults = graph.graph.get("edge_default")
    usual = defaults.get("weight", 1.0) if isinstance(defaults, Mapping) else 1.0
    edges = graph.edges(data="weight", default=usual)
    return [*ranks.values()], [
        (ranks[one], ranks[other], _to_plain(weight)) for one, other, weight in edges
    ]


def _to_index(node: object, meaning: str = "the index of a GPU") -> int:
    """Return a node's name as an index; text formats have it as text."""
    if isinstance(node, str) and node.isascii() and node.isdecimal() and len(node) <= _MOST_DIGITS:
        return int(node)
    index = _to_plain(node)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 10**_MOST_DIGITS:
        raise UsageError(f"node {_repr_short(node)}: it must be {meaning}: 0, 1, 2 ...")
    return index


def _to_plain(value: object) -> object:
    """Convert a number, which may be numpy's, to one of Python's own."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _repr_short(node: object) -> str:
    try:
        text = repr(node)
    except ValueError:  # a number of thousands of digits
        text = f"of type {type(node).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def _checked(values: Attributes, fields: FieldTable, where: str) -> Attributes:
    try:
        return checked({name: _to_plain(value) for name, value in values.items()}, fields)
    except FieldError as problem:
        raise UsageError(f"{where}: {problem.message}") from None
    except (OverflowError, ValueError):
        raise UsageError(f"{where}: a number has more digits than can be read") from None
