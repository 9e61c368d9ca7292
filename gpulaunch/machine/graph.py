"""The door to networkx: machines as graphs, and graphs of ranks from GraphML."""
# pure: decides on plain values

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from gpulaunch.errors import UsageError
from gpulaunch.machine.gpu import Gpu, format_cpuset
from gpulaunch.machine.link import Link
from gpulaunch.records import as_dict

Graph = Any
"""A networkx graph: the package has no types, and few launches import it."""

_MOST_DIGITS = 9  # of an index
_MOST_SHOWN = 40  # characters of a node's name
_MOST_REASON = 100  # characters of networkx's message, which may quote the file


def write_machine(facts: Mapping[str, Any], gpus: Iterable[Gpu], links: Iterable[Link]) -> Graph:
    """Return the graph of a machine: its GPUs as nodes, its links as edges; see to_networkx."""
    import networkx as nx  # type: ignore[import-untyped]

    graph = nx.Graph(**_without_none(facts))
    for gpu in gpus:
        values = as_dict(gpu) | {"cpuset": format_cpuset(gpu.cpuset) or None}
        del values["index"], values["mig"]
        if gpu.mig:
            values |= {f"mig_{name}": value for name, value in as_dict(gpu.mig).items()}
        graph.add_node(gpu.index, **_without_none(values))
    for link in links:
        values = as_dict(link) | {"path": link.path, "bandwidth_gb_per_s": link.bandwidth_gb_per_s}
        del values["a"], values["b"]
        graph.add_edge(link.a, link.b, **_without_none(values), weight=link.bandwidth_gb_per_s)
    return graph


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


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
        return nx.parse_graphml(text)
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


def read_weights(graph: Graph) -> tuple[list[int], list[tuple[int, int, object]]]:
    """Return the nodes of a graph of ranks, and each of its edges with its weight.

    Directed and parallel edges are returned one by one. An edge without the attribute "weight" has
    the default of its GraphML document, else 1.

    Raises:
        UsageError: a node is no rank, or two nodes are the same rank.
    """
    ranks = {node: _to_index(node) for node in graph.nodes}
    if len(set(ranks.values())) < len(ranks):
        raise UsageError("two of its nodes are the same rank")
    defaults = graph.graph.get("edge_default")
    usual = defaults.get("weight", 1.0) if isinstance(defaults, Mapping) else 1.0
    edges = graph.edges(data="weight", default=usual)
    return [*ranks.values()], [
        (ranks[one], ranks[other], _to_plain(weight)) for one, other, weight in edges
    ]


def _to_index(node: object) -> int:
    """Return a node's name as a rank or an index of a GPU; text formats have it as text."""
    if isinstance(node, str) and node.isascii() and node.isdecimal() and len(node) <= _MOST_DIGITS:
        return int(node)
    index = _to_plain(node)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 10**_MOST_DIGITS:
        raise UsageError(f"node {_repr_short(node)}: it must be a rank: 0, 1, 2 ...")
    return index


def _repr_short(node: object) -> str:
    try:
        text = repr(node)
    except ValueError:  # a number of thousands of digits
        text = f"of type {type(node).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def _to_plain(value: object) -> object:
    """Convert a number, which may be numpy's, to one of Python's own."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)
