"""The meaning of colours and lines in a picture, and the legend that shows it."""

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from gpulaunch.machine.cards import Card
from gpulaunch.machine.link import Link
from gpulaunch.machine.link_bandwidth import NETWORK_PATH, PathType
from gpulaunch.records import Record
from gpulaunch.show.topology.element import add_element, add_text
from gpulaunch.show.topology.layout import MARGIN
from gpulaunch.show.topology.text import MEANINGS, link_classes
from gpulaunch.typing import Literal

StateKind = Literal["free", "leased", "shared", "outside", "drained", "barred"]


class GpuState(Record):
    """The state of a GPU.

    Attributes:
        kind: kind of the state; also the class of its box in the picture.
        label: the user, or another word for people; "" for none.
    """

    kind: StateKind
    label: str = ""


STATES: dict[StateKind, tuple[str, str, str]] = {  # fill, stroke, meaning
    "free": ("#e3f4e6", "#2e7d32", "free"),
    "leased": ("#dbe8fd", "#1a56b0", "leased"),
    "shared": ("#ece3f8", "#6a3ab2", "leased and shared"),
    "outside": ("#fde4e1", "#c0392b", "in use outside gpulaunch"),
    "drained": ("#e6e8eb", "#6b7280", "drained"),
    "barred": ("#fbe3b8", "#9a3412", "barred by a fault"),
}
PLAIN = ("#ffffff", "#4b5563")
NVLINK_COLOURS = ("#0b7a3b", "#1585c9", "#d9780f", "#a43fb8", "#8b5a2b")  # fastest first
PCIE = "#8b93a0"
NETWORK = "#4a5568"


def nvlink_colours(links: Mapping[tuple[int, int], Link]) -> dict[float, str]:
    """Return a colour for each bandwidth of NVLinks."""
    bandwidths = sorted(
        {link.bandwidth_gb_per_s for link in links.values() if link.nvlink_count}, reverse=True
    )
    last = len(NVLINK_COLOURS) - 1
    return {bandwidth: NVLINK_COLOURS[min(i, last)] for i, bandwidth in enumerate(bandwidths)}


def nvlink_width(count: int) -> float:
    """Return the line width for this many NVLinks."""
    return min(1.0 + 1.2 * count, 6.5)


class _Item(Record):
    """An entry of the legend: a line, a box if the thickness is 0, or text without a stroke."""

    text: str
    stroke: str
    thickness: float = 0.0
    fill: str = ""


def draw_legend(
    svg: ET.Element,
    y: float,
    width: float,
    found: Sequence[Card],
    links: Mapping[tuple[int, int], Link],
    colours: Mapping[float, str],
    states: Mapping[int, GpuState],
) -> float:
    """Draw the meaning of colours and lines; return where the legend ends."""
    group = add_element(svg, "g", class_="legend")
    rows = [
        _nvlink_items(found, links, colours),
        _pcie_items(links),
        _network_items(links),
        _state_items(states),
    ]
    for items in filter(None, rows):
        x: float = MARGIN
        for item in items:
            needed = (42 if item.stroke else 14) + len(item.text) * 6.6
            if x > MARGIN and x + needed > width - MARGIN:
                x, y = MARGIN if item.stroke else MARGIN + 31, y + 20
            _draw_item(group, x, y, item)
            x += needed
        y += 20
    return y - 6


def _draw_item(group: ET.Element, x: float, y: float, item: _Item) -> None:
    if not item.stroke:
        add_text(group, x, y, item.text, 11)
        return
    if item.thickness:
        add_element(
            group,
            "line",
            x1=x,
            y1=y - 4,
            x2=x + 24,
            y2=y - 4,
            stroke=item.stroke,
            stroke_width=item.thickness,
        )
    else:
        add_element(
            group,
            "rect",
            x=x,
            y=y - 11,
            width=24,
            height=14,
            rx=4,
            fill=item.fill,
            stroke=item.stroke,
        )
    add_text(group, x + 31, y, item.text, 11)


def _nvlink_items(
    found: Sequence[Card], links: Mapping[tuple[int, int], Link], colours: Mapping[float, str]
) -> list[_Item]:
    joined = [link for link in links.values() if link.nvlink_count]
    items = [
        _Item(
            f"{name}: {bandwidth:.4g} GB/s per direction",
            colours[bandwidth],
            nvlink_width(int(name[2:])),
        )
        for name, bandwidth in link_classes(joined)
    ]
    counts = sorted({card.gpu.cpu_nvlinks for card in found} - {0})
    return items + [
        _Item(f"{n} NVLink{'' if n == 1 else 's'} to the CPU", NVLINK_COLOURS[0], nvlink_width(n))
        for n in counts
    ]


def _pcie_items(links: Mapping[tuple[int, int], Link]) -> list[_Item]:
    """Return the PCIe paths that GPUs use, or could use besides their NVLinks."""
    present = {link.pcie_path for link in links.values() if link.kind != "network"}
    texts = [
        f"{path} {_pcie_figures(path, links)} GB/s ({MEANINGS[path]})"
        for path in MEANINGS
        if path in present
    ]
    items = [_Item(text, "", 2.0) for text in texts]
    if items:
        items[0] = _Item(f"PCIe: {texts[0]}", PCIE, 2.0)
    return items


def _network_items(links: Mapping[tuple[int, int], Link]) -> list[_Item]:
    present = any(link.kind == "network" for link in links.values())
    figures = _pcie_figures(NETWORK_PATH, links) if present else ""
    return (
        [_Item(f"network: {NETWORK_PATH} {figures} GB/s per direction", NETWORK, 4.0)]
        if present
        else []
    )


def _pcie_figures(path: PathType, links: Mapping[tuple[int, int], Link]) -> str:
    """Return the bandwidth of a path, such as "12", or "6 to 12" if the pairs differ."""
    found = [link.pcie_gb_per_s for link in links.values() if link.pcie_path == path]
    return " to ".join(dict.fromkeys(f"{figure:.3g}" for figure in (min(found), max(found))))


def _state_items(states: Mapping[int, GpuState]) -> list[_Item]:
    present = {state.kind for state in states.values()}
    return [
        _Item(text, stroke, fill=fill)
        for kind, (fill, stroke, text) in STATES.items()
        if kind in present
    ]
