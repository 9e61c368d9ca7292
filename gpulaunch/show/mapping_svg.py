"""A mapping as a picture: the tree of links with their loads, one SVG document."""

from collections.abc import Iterator, Mapping
from xml.etree import ElementTree as ET

from gpulaunch.cluster.cluster import Cluster
from gpulaunch.cluster.judge import Judgement, LinkLoad, TreeKind
from gpulaunch.cluster.mapping import Place
from gpulaunch.cluster.tree import Tree
from gpulaunch.cluster.trees import whole_trees
from gpulaunch.errors import counted, printable
from gpulaunch.records import Record
from gpulaunch.show.topology.text import wrapped

INK, PALE = "#1f2933", "#5b6672"

_FONT = "DejaVu Sans, Verdana, Arial, sans-serif"
_MARGIN, _HEAD = 24.0, 86.0
_COLUMN, _GAP = 132.0, 24.0
_ROW, _LEAST_ROW, _TEXT_ROW = 16.0, 3.0, 11.0
_MOST_HEIGHT = 8000.0
_BAND_GAP = 6.0  # between nodes
_COOL, _HOT, _IDLE = (255, 247, 224), (201, 42, 42), "#eef0f3"
_WHITE_TEXT_FROM = 0.6  # of the largest congestion

_TITLES: dict[TreeKind, str] = {"network": "network", "GPU": "to GPUs", "CPU": "to cores"}

_Rows = Mapping[int, tuple[float, float]]
"""Upper and lower edge of each vertex."""


class _Box(Record):
    """A link and where it is drawn."""

    link: LinkLoad
    column: int
    top: float
    bottom: float
    text: str


def mapping_svg(cluster: Cluster, mapping: tuple[Place, ...], judgement: Judgement) -> str:
    """Return a picture of the links that a mapping uses.

    Each box is a link, with what is below it at its right: first the network, then for each node
    the way to its GPUs and, beyond the gap, that to its cores. Its colour is its congestion as a
    part of the largest one; links that carry nothing are grey. GPUs and cores without a rank are
    left out.

    Args:
        cluster: the cluster.
        mapping: the place of each rank.
        judgement: the load of each link.

    Returns:
        An SVG document with a light background, without scripts, and without fonts or pictures from
        elsewhere. A box has the class "link".
    """
    row = max(_LEAST_ROW, min(_ROW, _MOST_HEIGHT / len(mapping)))
    boxes = list(_boxes(cluster, mapping, judgement, row))
    gap_at = min((box.column for box in boxes if box.link.tree == "CPU"), default=0)
    width = 2 * _MARGIN + (max(box.column for box in boxes) + 1) * _COLUMN + _GAP
    svg = ET.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": _FONT, "role": "img"}
    )
    heading = f"{counted(len(mapping), 'rank')} on {printable(cluster.name)}"
    add_element(svg, "title", text=heading)
    add_element(svg, "rect", width="100%", height="100%", fill="#ffffff")
    add_text(svg, _MARGIN, 34, heading, 18, weight="bold")
    add_text(svg, _MARGIN, 54, _worst(judgement), 11, fill=PALE)
    for kind, title in _TITLES.items():
        first = min((box.column for box in boxes if box.link.tree == kind), default=None)
        if first is not None:
            add_text(svg, _left(first, gap_at) + 4, _HEAD - 5, title, 9.5, fill=PALE)
    for box in boxes:
        left = _left(box.column, gap_at)
        _draw(svg, box, left, judgement.maximum)
    bottom = max(box.bottom for box in boxes) + 10
    for line in wrapped(f"Source: {printable(cluster.source)}", int((width - 2 * _MARGIN) / 5.6)):
        bottom += 14
        add_text(svg, _MARGIN, bottom, line, 9.5, fill=PALE)
    size = {"width": as_number(width), "height": as_number(bottom + 16)}
    for name, value in (*size.items(), ("viewBox", f"0 0 {size['width']} {size['height']}")):
        svg.set(name, value)
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _left(column: int, gap_at: int) -> float:
    return _MARGIN + column * _COLUMN + (_GAP if column >= gap_at else 0)


def _worst(judgement: Judgement) -> str:
    link = judgement.worst
    if link is None or not link.load:
        return "no link carries anything"
    return (
        f"darkest: {printable(link.name)}, {link.load:.4g} over {link.gb_per_s:.4g} GB/s; traffic "
        "is in the unit of the patterns"
    )


def _boxes(
    cluster: Cluster, mapping: tuple[Place, ...], judgement: Judgement, row: float
) -> Iterator[_Box]:
    """Yield the boxes of all links that lead to a rank."""
    trees = whole_trees(cluster)
    links = {(link.tree, link.vertex): link for link in judgement.links}
    network = cluster.network
    bands = _bands(cluster, mapping, row)
    depths = network.depths()
    for vertex, (top, bottom) in _spans(network, bands).items():
        if vertex:
            link = links["network", vertex]
            yield _Box(link, depths[vertex] - 1, top, bottom, network.names[vertex])
    first = max(depths)
    inner: tuple[tuple[TreeKind, Tree], ...] = (("GPU", trees.gpu), ("CPU", trees.cpu))
    for kind, tree in inner:
        ranks = _ranks_of_leaves(cluster, mapping, kind, tree)
        spans = _spans(tree, _rows(tree, ranks, bands, row, network))
        depths = tree.depths()
        inside = [vertex for vertex in spans if vertex >= len(network.parents)]
        above = {vertex: _node_above(tree, vertex, network) for vertex in inside}
        for vertex in inside:
            node = above[vertex]
            name = tree.names[vertex].removeprefix(f"{tree.names[node]} ")
            text = f"{name}: rank {ranks[vertex]}" if vertex in ranks else name
            column = first + depths[vertex] - depths[node] - 1
            yield _Box(links[kind, vertex], column, *spans[vertex], text)
        first += max((depths[vertex] - depths[above[vertex]] for vertex in inside), default=0)


def _bands(cluster: Cluster, mapping: tuple[Place, ...], row: float) -> _Rows:
    """Return the rows of each node with ranks, by its vertex in the network."""
    counts = dict.fromkeys(range(len(cluster.nodes)), 0)
    for place in mapping:
        counts[place.node] += 1
    number = {leaf: node for node, leaf in enumerate(cluster.network.leaves)}
    bands, top = {}, _HEAD
    for leaf in _in_order(cluster.network):
        if leaf in number and counts[number[leaf]]:
            bottom = top + max(row * counts[number[leaf]], _TEXT_ROW)
            bands[leaf] = (top, bottom)
            top = bottom + _BAND_GAP
    return bands


def _in_order(tree: Tree) -> Iterator[int]:
    """Yield the vertices, each before what is below it, and all that before its next sibling."""
    children = tree.children()
    waiting = [0]
    while waiting:
        vertex = waiting.pop()
        yield vertex
        waiting += reversed(children[vertex])


def _ranks_of_leaves(
    cluster: Cluster, mapping: tuple[Place, ...], kind: TreeKind, tree: Tree
) -> dict[int, int]:
    """Return the rank of each leaf of a whole tree that has one."""
    places = [
        (number, slot)
        for number, node in enumerate(cluster.nodes)
        for slot in (
            sum(node.sockets, ()) if kind == "CPU" else [gpu.index for gpu in node.topology.gpus]
        )
    ]
    leaf_of = dict(zip(places, tree.leaves, strict=True))
    return {
        leaf_of[place.node, place.core if kind == "CPU" else place.gpu]: rank
        for rank, place in enumerate(mapping)
    }


def _rows(tree: Tree, ranks: Mapping[int, int], bands: _Rows, row: float, network: Tree) -> _Rows:
    """Return the row of each leaf that has a rank, from the top of its node's band down."""
    next_top = {node: top for node, (top, _) in bands.items()}
    rows = {}
    for leaf in _in_order(tree):
        if leaf in ranks:
            node = _node_above(tree, leaf, network)
            rows[leaf] = (next_top[node], next_top[node] + row)
            next_top[node] += row
    return rows


def _node_above(tree: Tree, vertex: int, network: Tree) -> int:
    """Return the node that a vertex is inside of; the network's vertices come first in a tree."""
    while vertex >= len(network.parents):
        vertex = tree.parents[vertex]
    return vertex


def _spans(tree: Tree, rows: _Rows) -> _Rows:
    """Return the rows of all vertices that lead to these, which span those below them."""
    spans = dict(rows)
    for leaf, (top, bottom) in rows.items():
        vertex = leaf
        while vertex:
            vertex = tree.parents[vertex]
            known = spans.get(vertex, (top, bottom))
            spans[vertex] = (min(known[0], top), max(known[1], bottom))
    return spans


def _draw(svg: ET.Element, box: _Box, left: float, maximum: float) -> None:
    link = box.link
    share = link.congestion / maximum if maximum else 0.0
    group = add_element(svg, "g", class_="link")
    add_element(
        group,
        "title",
        text=f"{printable(link.name)} ({link.tree}): {link.load:.4g} over {link.gb_per_s:.4g} GB/s "
        f"= {link.congestion:.4g}",
    )
    add_element(
        group,
        "rect",
        x=left,
        y=box.top,
        width=_COLUMN - 2,
        height=max(box.bottom - box.top - 1, 1),
        rx=2,
        fill=_colour(share),
    )
    height = box.bottom - box.top
    lines = [printable(box.text), f"{link.load:.4g} over {link.gb_per_s:.4g} GB/s"]
    lines = lines[: int(height // _TEXT_ROW)]
    fill = "#ffffff" if share > _WHITE_TEXT_FROM else INK
    middle = (box.top + box.bottom) / 2 + 3
    for i, line in enumerate(lines):
        y = middle + (i - (len(lines) - 1) / 2) * 12
        add_text(group, left + 4, y, _cut(line, _COLUMN - 8, 9.5), 9.5, fill=fill)


def _colour(share: float) -> str:
    """Return the colour of a congestion, 0 to 1 of the largest."""
    if not share:
        return _IDLE
    parts = (round(cool + (hot - cool) * share) for cool, hot in zip(_COOL, _HOT, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


def add_element(
    parent: ET.Element, tag: str, *, text: str | None = None, **attributes: object
) -> ET.Element:
    """Add an element; `stroke_width` stands for stroke-width and `class_` for class."""
    values = {}
    for name, value in attributes.items():
        if value is not None:
            shown = as_number(value) if isinstance(value, (int, float)) else str(value)
            values[name.rstrip("_").replace("_", "-")] = shown
    element = ET.SubElement(parent, tag, values)
    element.text = text
    return element


def as_number(value: float) -> str:
    """Format a number with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def add_text(
    parent: ET.Element,
    x: float,
    y: float,
    text: str,
    size: float,
    *,
    fill: str = INK,
    anchor: str = "start",
    weight: str | None = None,
) -> None:
    """Add a line of text with its baseline at `y`."""
    add_element(
        parent,
        "text",
        x=x,
        y=y,
        fill=fill,
        font_size=size,
        text_anchor=anchor,
        font_weight=weight,
        text=text,
    )


def _cut(text: str, width: float, size: float) -> str:
    """Return as much of a text as fits, as far as one can tell without the font."""
    most = max(int(width / (size * 0.62)), 1)
    return text if len(text) <= most else f"{text[: most - 1]}…"
