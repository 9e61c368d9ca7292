"""A profile -> a picture for a report: one SVG document that needs nothing else."""

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

from gpulaunch.show.profile.svg_graph import draw_graph
from gpulaunch.show.profile.svg_ink import ALARM, ALARM_EDGE, BLUE, PANEL, RULE, TRACK
from gpulaunch.show.profile.svg_plot import draw_plot
from gpulaunch.show.profile.svg_width import cut_to, lines_of, width_of
from gpulaunch.show.profile.view import Bar, Fact, ProfileView, Section, kept_whole
from gpulaunch.show.topology.element import INK, PALE, add_element, add_text, as_number

_FONT = "DejaVu Sans, Verdana, Arial, sans-serif"
_WIDTH = 860
_MARGIN, _GAP, _PAD = 28, 16, 14
_TEXT, _LINE = 10.5, 15.0  # size, and from one line to the next
_LABELS = 112  # room for the labels of facts, at most
_THICK = 12  # of a bar
_STACKED = 500  # width under which a bar's label and figure stand above it
_BAR_LABELS, _BAR_FIGURES = 150, 230  # else beside it
_MOST_LINES = 12  # of one fact


class _Place(NamedTuple):
    """A part of the page: its upper left corner, and how wide it is."""

    x: float
    y: float
    width: float


def profile_svg(view: ProfileView) -> str:
    """A picture of everything that stands in a profile.

    Bars come first and are as wide as the page; the other sections lie in two columns.

    Args:
        view: from view_of.

    Returns:
        An SVG document with a light ground of its own, no scripts, and no fonts or pictures from
        elsewhere. The same profile gives the same text. The group of a section is of class
        "section".
    """
    svg = ET.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": _FONT, "role": "img"}
    )
    add_element(
        svg, "title", text=f"{view.name}: {view.description}" if view.description else view.name
    )
    ground = add_element(svg, "rect", width="100%", height="100%", fill="#ffffff")
    page = _Place(_MARGIN, _MARGIN, _WIDTH - 2 * _MARGIN)
    y = _draw_head(svg, page, view)
    wide = _in_full_width(view.sections)
    first, others = view.sections[:wide], view.sections[wide:]
    for section in first:
        y = _draw_section(svg, page._replace(y=y), section) + _GAP
    half = (page.width - _GAP) / 2
    ends = [y, y]
    for section in others:
        column = ends.index(min(ends))
        place = _Place(page.x + column * (half + _GAP), ends[column], half)
        ends[column] = _draw_section(svg, place, section) + _GAP
    size = {"width": _WIDTH, "height": max(ends) - _GAP + _MARGIN}
    ground.set("height", as_number(size["height"]))
    for name, value in size.items():
        svg.set(name, as_number(value))
    svg.set("viewBox", f"0 0 {as_number(size['width'])} {as_number(size['height'])}")
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _in_full_width(sections: Sequence[Section]) -> int:
    """How many of the first: one with several bars, and any that would be alone in its row."""
    wide = int(bool(sections) and len(sections[0].bars) > 1)
    return len(sections) if len(sections) - wide == 1 else wide


def _draw_head(svg: ET.Element, page: _Place, view: ProfileView) -> float:
    """Name, description, facts and warnings; returns where the sections begin."""
    y = page.y
    for text, size, weight in ((view.name, 20.0, "bold"), (view.description, 13.0, None)):
        for line in lines_of(text, page.width, size, bold=weight == "bold"):
            y += size * 1.4
            add_text(svg, page.x, y, line, size, weight=weight)
    y = _draw_facts(svg, page._replace(y=y + 8), view.facts) + _GAP
    return _draw_warnings(svg, page._replace(y=y), view.warnings) if view.warnings else y


def _draw_warnings(svg: ET.Element, page: _Place, warnings: Sequence[str]) -> float:
    lines = [
        line for text in warnings for line in lines_of(f"! {text}", page.width - 2 * _PAD, 11.5)
    ]
    height = 17 * len(lines) + 14
    group = add_element(svg, "g", class_="warnings")
    _add_frame(group, page, height, ALARM, ALARM_EDGE)
    for i, line in enumerate(lines):
        add_text(group, page.x + _PAD, page.y + 20 + 17 * i, line, 11.5)
    return page.y + height + _GAP


def _draw_section(svg: ET.Element, place: _Place, section: Section) -> float:
    """A panel with everything of a section; returns where it ends."""
    group = add_element(svg, "g", class_="section")
    frame = _add_frame(group, place, 0, PANEL, RULE)
    inner = _Place(place.x + _PAD, place.y + 24, place.width - 2 * _PAD)
    add_text(
        group,
        inner.x,
        inner.y,
        cut_to(section.title, inner.width, 13, bold=True),
        13,
        weight="bold",
    )
    y = inner.y + 10
    for bar in section.bars:
        y = _draw_bar(group, inner._replace(y=y), bar)
    for line in _lines(section.note, inner.width, 9.5):
        y += 13
        add_text(group, inner.x, y, line, 9.5, fill=PALE)
    if section.graph:
        y = draw_graph(group, inner.x, y + 8, inner.width, section.graph)
    if section.plot:
        y = draw_plot(group, inner.x, y + 4, inner.width, section.plot)
    y = _draw_facts(group, inner._replace(y=y + 6), section.facts) + _PAD - 2
    frame.set("height", as_number(y - place.y))
    return y


def _add_frame(
    group: ET.Element, place: _Place, height: float, fill: str, stroke: str
) -> ET.Element:
    return add_element(
        group,
        "rect",
        x=place.x,
        y=place.y,
        width=place.width,
        height=height,
        rx=8,
        fill=fill,
        stroke=stroke,
    )


def _draw_bar(group: ET.Element, place: _Place, bar: Bar) -> float:
    """A bar with label and figure, beside it or above it; a line marks the largest value.

    Returns where it ends.
    """
    stacked = place.width < _STACKED
    left, wide = place.x, place.width
    line = place.y + 14
    if stacked:
        figures = width_of(bar.text, _TEXT)
        add_text(group, left, line, cut_to(bar.label, wide - figures - 8, _TEXT), _TEXT)
        add_text(group, left + wide, line, cut_to(bar.text, wide, _TEXT), _TEXT, anchor="end")
        top = line + 5
    else:
        add_text(group, left, line, cut_to(bar.label, _BAR_LABELS - 6, _TEXT), _TEXT)
        add_text(
            group,
            left + wide - _BAR_FIGURES + 10,
            line,
            cut_to(bar.text, _BAR_FIGURES - 10, _TEXT),
            _TEXT,
        )
        left, wide, top = left + _BAR_LABELS, wide - _BAR_LABELS - _BAR_FIGURES, line - 10
    share = min(max(bar.share, 0.0), 1.0)
    own = add_element(group, "g", class_="bar")
    add_element(own, "rect", x=left, y=top, width=wide, height=_THICK, rx=2, fill=TRACK)
    if share:
        add_element(
            own, "rect", x=left, y=top, width=max(wide * share, 1), height=_THICK, rx=2, fill=BLUE
        )
    if bar.mark is not None:
        x = left + wide * min(max(bar.mark, 0.0), 1.0)
        add_element(
            own, "line", x1=x, y1=top - 2, x2=x, y2=top + _THICK + 2, stroke=INK, stroke_width=2
        )
    return top + _THICK + (2 if stacked else 4)


def _draw_facts(group: ET.Element, place: _Place, facts: Sequence[Fact]) -> float:
    """Label and text of each; returns where they end."""
    y = place.y
    labels = min(max((width_of(fact.label, _TEXT) for fact in facts), default=0) + 10, _LABELS)
    for fact in facts:
        lines = _lines(fact.text, place.width - labels, _TEXT)
        cut_off = [*lines[: _MOST_LINES - 1], "…"]
        for i, line in enumerate(lines if len(lines) <= _MOST_LINES else cut_off):
            y += _LINE
            if i == 0:
                add_text(group, place.x, y, cut_to(fact.label, labels - 6, _TEXT), _TEXT, fill=PALE)
            add_text(group, place.x + labels, y, line, _TEXT)
    return y


def _lines(text: str, width: float, size: float) -> list[str]:
    return kept_whole(text, lambda whole: lines_of(whole, width, size))
