"""Who talks to whom, in a picture: ranks joined by lines, and a matrix with figures where somebody has measured."""

from math import cos, pi, sin, sqrt
from xml.etree import ElementTree as ET

from gpulaunch.profiles.pattern import dimensions
from gpulaunch.show.profile.svg_ink import BLUE, LIGHT, RULE
from gpulaunch.show.profile.view import Graph
from gpulaunch.show.topology.element import PALE, add_element, add_text
from gpulaunch.show.topology.layout import fits

_HIGH = 190
_FLAT = 50  # height of a line of ranks
_MOST_DRAWN = 32  # ranks that are joined by lines
_MOST_IN_MATRIX = 64
_NODE = 12.0  # radius of a rank, at most
# of a step to the right, where one goes back: no rank of the fewer than four rows hides another
_BACK = 0.36
_HEAD = 16  # numbers of the ranks beside a matrix

Point = tuple[float, float]


def draw_graph(svg: ET.Element, x: float, y: float, width: float, graph: Graph) -> float:
    """Draw it; returns where it ends.

    Args:
        svg: the element to draw in.
        x: of the left edge.
        y: of the upper edge.
        width: to keep to.
        graph: ranks and edges; nothing is drawn of one that is too large.
    """
    measured = bool(graph.unit and graph.edges)
    has_matrix, has_lines = measured and graph.ranks <= _MOST_IN_MATRIX, graph.ranks <= _MOST_DRAWN
    room = (width - 20) / 2 if has_matrix else width
    if has_lines:
        _draw_lines(svg, x, y, room, graph)
    if has_matrix:
        _draw_matrix(svg, x + (width - room if has_lines else 0), y, min(room, _HIGH), graph)
    high = _FLAT if graph.shape == "line" else _HIGH
    return y + high if has_matrix or has_lines else y


def _draw_lines(svg: ET.Element, x: float, y: float, width: float, graph: Graph) -> None:
    """A circle for each rank, a line for each edge: the thicker, the more goes over it."""
    at, radius = _places(graph, x, y, width)
    group = add_element(svg, "g", class_="graph", stroke=BLUE, stroke_opacity=0.75)
    for a, b, weight in sorted(graph.edges, key=lambda edge: edge[2]):
        (x1, y1), (x2, y2) = at[a], at[b]
        wide = 1 + 4 * weight / graph.heaviest if graph.unit else 2
        line = add_element(
            group, "line", class_="edge", x1=x1, y1=y1, x2=x2, y2=y2, stroke_width=wide
        )
        if graph.unit:
            add_element(line, "title", text=f"ranks {a} and {b}: {weight:.3g} {graph.unit}")
    ranks = add_element(svg, "g", class_="ranks")
    for rank, (cx, cy) in enumerate(at):
        add_element(
            ranks, "circle", cx=cx, cy=cy, r=radius, fill=LIGHT, stroke=BLUE, stroke_width=1.5
        )
        size = min(11.0, radius * 1.1)
        add_text(ranks, cx, cy + size * 0.36, str(rank), size, anchor="middle")


def _places(graph: Graph, x: float, y: float, width: float) -> tuple[list[Point], float]:
    """Where the middle of each rank lies, and how large they are."""
    middle, down = x + width / 2, y + (_FLAT if graph.shape == "line" else _HIGH) / 2
    if graph.shape == "circle":
        around = min(width, _HIGH) / 2 - _NODE - 3
        radius = min(_NODE, 0.8 * around * sin(pi / max(graph.ranks, 2)))
        angles = [2 * pi * rank / graph.ranks - pi / 2 for rank in range(graph.ranks)]
        return [
            (middle + around * cos(angle), down + around * sin(angle)) for angle in angles
        ], radius
    if graph.shape == "block":
        return _block(graph.ranks, middle, down, width)
    rows, columns = (1, graph.ranks) if graph.shape == "line" else dimensions(graph.ranks, 2)
    step = min(
        (width - 2 * _NODE) / max(columns - 1, 1), (_HIGH - 2 * _NODE - 6) / max(rows - 1, 1), 60.0
    )
    left, top = middle - step * (columns - 1) / 2, down - step * (rows - 1) / 2
    return [
        (left + step * (i % columns), top + step * (i // columns)) for i in range(graph.ranks)
    ], min(_NODE, 0.35 * step)


def _block(ranks: int, middle: float, down: float, width: float) -> tuple[list[Point], float]:
    """A block in oblique projection: its longest side lies across, the shortest goes back, which is up to the right."""
    across, high, deep = dimensions(ranks, 3)
    wide, tall = across - 1 + _BACK * (deep - 1), high - 1 + _BACK * (deep - 1)
    step = min((width - 2 * _NODE) / max(wide, 1), (_HIGH - 2 * _NODE - 6) / max(tall, 1), 90.0)
    left, bottom = middle - step * wide / 2, down + step * tall / 2
    at = [(rank // deep // high, rank // deep % high, rank % deep) for rank in range(ranks)]
    points = [
        (left + step * (x + _BACK * z), bottom - step * (high - 1 - y + _BACK * z))
        for x, y, z in at
    ]
    return points, min(_NODE, 0.18 * step if deep > 1 else 0.35 * step)


def _draw_matrix(svg: ET.Element, x: float, y: float, size: float, graph: Graph) -> None:
    """A cell for each two ranks, the darker the more they exchange, with its figure where that fits."""
    group = add_element(svg, "g", class_="matrix")
    cell = (size - _HEAD) / graph.ranks
    every = next(step for step in (1, 2, 4, 8, 16) if cell * step >= 13)
    for rank in range(0, graph.ranks, every):
        middle = _HEAD + cell * (rank + 0.5)
        add_text(group, x + middle, y + _HEAD - 5, str(rank), 9, anchor="middle", fill=PALE)
        add_text(group, x + _HEAD - 4, y + middle + 3, str(rank), 9, anchor="end", fill=PALE)
    weights = graph.weights
    for row in range(graph.ranks):
        for column in range(graph.ranks):
            weight = weights.get((row, column), 0.0)
            left, top = x + _HEAD + cell * column, y + _HEAD + cell * row
            share = sqrt(weight / graph.heaviest)
            square = add_element(
                group, "rect", x=left, y=top, width=cell, height=cell, fill=_shade(share)
            )
            square.attrib |= {"stroke": RULE, "stroke-width": "0.5"}
            text, font = f"{weight:.3g}", min(10.0, cell * 0.3)
            if weight and font >= 7 and fits(text, cell, font):
                ink = "#ffffff" if share > 0.7 else "#1f2933"
                add_text(
                    group,
                    left + cell / 2,
                    top + cell / 2 + font * 0.36,
                    text,
                    font,
                    anchor="middle",
                    fill=ink,
                )


def _shade(share: float) -> str:
    """From white to the blue of the lines; the root of the share is taken, so that little is still seen."""
    ends = [(255, int(BLUE[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(white + (full - white) * share):02x}" for white, full in ends)
