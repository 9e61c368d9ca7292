"""The elements of a picture, for svg.py and legend.py."""

from xml.etree import ElementTree as ET

INK, PALE = "#1f2933", "#5b6672"


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
