"""A curve in a picture: throughput over the share of SMs, the proportional line, and the knee."""

from xml.etree import ElementTree as ET

from gpulaunch.profiles.demand import CurvePoint
from gpulaunch.show.profile.svg_ink import BLUE, ORANGE, RULE
from gpulaunch.show.profile.svg_width import cut_to
from gpulaunch.show.profile.view import Plot
from gpulaunch.show.terminal import figure
from gpulaunch.show.topology.element import PALE, add_element, add_text, as_number

_HIGH = 150
_LEFT = 42  # room for the numbers of the axis
_SIZE = 9.5  # of numbers
_MARKED = 30  # points that are marked


def draw_plot(svg: ET.Element, x: float, y: float, width: float, plot: Plot) -> float:
    """Draw it; returns where it ends.

    Args:
        svg: the element to draw in.
        x: of the left edge.
        y: of the upper edge.
        width: to keep to.
        plot: its points.
    """
    group = add_element(svg, "g", class_="plot")
    add_text(group, x, y + 10, cut_to(plot.unit, width, _SIZE), _SIZE, fill=PALE)
    left, top, wide = (
        x + _LEFT,
        y + (34 if plot.knee_percentage is not None else 20),
        width - _LEFT - 14,
    )
    floor = top + _HIGH

    def place(point: CurvePoint) -> tuple[float, float]:
        return left + wide * point.sm_percentage / 100, floor - _HIGH * point.throughput / plot.top

    _draw_axes(group, left, top, wide, plot)
    (x1, y1), (x2, y2) = map(place, plot.proportional)
    add_element(
        group,
        "line",
        class_="proportional",
        x1=x1,
        y1=y1,
        x2=x2,
        y2=y2,
        stroke=PALE,
        stroke_dasharray="2 4",
    )
    if plot.knee_percentage is not None:
        _draw_knee(group, left, top, wide, plot.knee_percentage)
    at = [place(point) for point in plot.points]
    line = " ".join(f"{as_number(a)},{as_number(b)}" for a, b in at)
    add_element(
        group, "polyline", class_="curve", points=line, fill="none", stroke=BLUE, stroke_width=2
    )
    for (cx, cy), point in zip(at, plot.points, strict=True) if len(at) <= _MARKED else ():
        dot = add_element(group, "circle", cx=cx, cy=cy, r=3, fill=BLUE)
        add_element(
            dot,
            "title",
            text=f"{figure(point.sm_percentage)} % of the SMs: {figure(point.throughput)}",
        )
    add_text(
        group, left + wide / 2, floor + 30, "share of the SMs, %", _SIZE, fill=PALE, anchor="middle"
    )
    add_text(group, x, floor + 46, "dotted: throughput in proportion to the SMs", _SIZE, fill=PALE)
    return floor + 52


def _draw_axes(group: ET.Element, left: float, top: float, wide: float, plot: Plot) -> None:
    floor = top + _HIGH
    for share in (0.0, 0.5, 1.0):
        y = floor - _HIGH * share
        add_element(group, "line", x1=left, y1=y, x2=left + wide, y2=y, stroke=RULE, stroke_width=1)
        add_text(group, left - 5, y + 3.5, plot.tick(share), _SIZE, anchor="end", fill=PALE)
    for percentage in range(0, 101, 20):
        x = left + wide * percentage / 100
        add_element(group, "line", x1=x, y1=floor, x2=x, y2=floor + 4, stroke=PALE, stroke_width=1)
        add_text(group, x, floor + 15, str(percentage), _SIZE, anchor="middle", fill=PALE)


def _draw_knee(group: ET.Element, left: float, top: float, wide: float, percentage: float) -> None:
    x = left + wide * percentage / 100
    add_element(
        group,
        "line",
        class_="knee",
        x1=x,
        y1=top,
        x2=x,
        y2=top + _HIGH,
        stroke=ORANGE,
        stroke_dasharray="6 3",
    )
    late = percentage > 50
    text = f"knee: {figure(percentage)} %"
    add_text(
        group, x, top - 5, text, 10.5, fill=ORANGE, anchor="end" if late else "start", weight="bold"
    )
