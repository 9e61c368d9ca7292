"""A machine -> a picture: one SVG document that needs nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree as ET

from gpulaunch.core.hardware.levels import Level
from gpulaunch.core.hardware.topology import Gpu, Link, Topology
from gpulaunch.core.size import format_size
from gpulaunch.errors import printable
from gpulaunch.render.layout import (
    CELL,
    FABRIC_BAR,
    LEVEL_BAR,
    MARGIN,
    PAD,
    SOCKET_BAR,
    SPINE,
    Box,
    Picture,
    card_indices,
    fits,
    hides_switch,
    is_branch,
    laid_out,
    offset,
    reach,
    span,
)
from gpulaunch.render.machine import (
    MEANINGS,
    Card,
    card_links,
    cards,
    link_classes,
    link_name,
    socket_name,
    title,
    wrapped,
)

StateKind = Literal["free", "leased", "shared", "outside", "drained"]


class GpuState(NamedTuple):
    """What a GPU is doing.

    Attributes:
        kind: also the class of its box in the picture.
        label: who has it, or another word for people; empty for none.
    """

    kind: StateKind
    label: str = ""


_STATES: dict[StateKind, tuple[str, str, str]] = {  # fill, stroke, meaning
    "free": ("#e3f4e6", "#2e7d32", "free"),
    "leased": ("#dbe8fd", "#1a56b0", "leased"),
    "shared": ("#ece3f8", "#6a3ab2", "leased and shared"),
    "outside": ("#fde4e1", "#c0392b", "in use outside gpulaunch"),
    "drained": ("#e6e8eb", "#6b7280", "drained"),
}
_PLAIN = ("#ffffff", "#4b5563")
_NVLINK_COLOURS = ("#0b7a3b", "#1585c9", "#d9780f", "#a43fb8", "#8b5a2b")  # of the fastest first
_PCIE, _INK, _PALE, _PANEL, _BAR = "#8b93a0", "#1f2933", "#5b6672", "#f3f5f8", "#d5dae2"
_FONT = "DejaVu Sans, Verdana, Arial, sans-serif"


def topology_svg(topology: Topology, states: Mapping[int, GpuState] | None = None) -> str:
    """A picture of the machine: sockets with their PCIe levels, GPUs, NVLinks, and who has which GPU.

    Args:
        topology: the machine.
        states: of GPUs by their index; one that is not listed is drawn without a state.

    Returns:
        An SVG document with a light ground of its own, no scripts, and no fonts or pictures from elsewhere. The group
        of a GPU is of class "gpu" and of its state's, the line of an NVLink of class "nvlink".
    """
    states = states or {}
    found, links = cards(topology), card_links(topology)
    of_index = {gpu.index: gpu for gpu in topology.gpus}
    picture = laid_out(topology, found, links)
    width = max(picture.width, 560.0) + 2 * MARGIN
    heading = wrapped(title(topology), int((width - 2 * MARGIN) / (18 * 0.63)))
    picture = laid_out(topology, found, links, top=34 + 24.0 * len(heading))
    colours = _colours(links)
    svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": _FONT, "role": "img"})
    _add(svg, "title", text=title(topology))
    ground = _add(svg, "rect", width="100%", height="100%", fill="#ffffff")
    for i, line in enumerate(heading):
        _text(svg, MARGIN, 36 + 24 * i, line, 18, weight="bold")
    for row, sockets in enumerate(picture.rows):
        for socket in sockets:
            _draw_socket(svg, picture, socket, row, of_index)
    _draw_fabric(svg, picture, found, links, colours)
    _draw_nvlinks(svg, picture, links, colours)
    mixed = len({card.model for card in found}) > 1
    for box in picture.boxes.values():
        _draw_card(svg, box, states, mixed=mixed)
    bottom = _draw_legend(svg, picture.bottom + 34, width, found, links, colours, states)
    for line in wrapped(f"Source: {printable(topology.source)}", int((width - 2 * MARGIN) / 5.6)):
        bottom += 14
        _text(svg, MARGIN, bottom, line, 9.5, fill=_PALE)
    height = bottom + 18
    ground.set("height", _number(height))
    for name, value in (
        ("width", _number(width)),
        ("height", _number(height)),
        ("viewBox", f"0 0 {_number(width)} {_number(height)}"),
    ):
        svg.set(name, value)
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _add(parent: ET.Element, tag: str, *, text: str | None = None, **attributes: object) -> ET.Element:
    """An element; `stroke_width` stands for stroke-width and `class_` for class."""
    values = {
        name.rstrip("_").replace("_", "-"): _number(value) if isinstance(value, (int, float)) else str(value)
        for name, value in attributes.items()
        if value is not None
    }
    element = ET.SubElement(parent, tag, values)
    element.text = text
    return element


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(
    parent: ET.Element,
    x: float,
    y: float,
    text: str,
    size: float,
    *,
    fill: str = _INK,
    anchor: str = "start",
    weight: str | None = None,
) -> None:
    _add(parent, "text", x=x, y=y, fill=fill, font_size=size, text_anchor=anchor, font_weight=weight, text=text)


def _cut(text: str, width: float, size: float) -> str:
    most = max(int(width / (size * 0.62)), 1)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _colours(links: Mapping[tuple[int, int], Link]) -> dict[float, str]:
    """A colour for each bandwidth of NVLinks."""
    bandwidths = sorted({link.bandwidth_gb_per_s for link in links.values() if link.nvlink_count}, reverse=True)
    last = len(_NVLINK_COLOURS) - 1
    return {bandwidth: _NVLINK_COLOURS[min(i, last)] for i, bandwidth in enumerate(bandwidths)}


def _stroke(count: int) -> float:
    """Thickness of so many NVLinks."""
    return min(1.0 + 1.2 * count, 6.5)


def _draw_socket(svg: ET.Element, picture: Picture, socket: Level, row: int, of_index: Mapping[int, Gpu]) -> None:
    """The panel, the bars of its levels, and the lines from there to the GPUs."""
    of_card = {index: gpu.card for index, gpu in of_index.items()}
    boxes = [picture.boxes[index] for index in card_indices(socket, of_card)]
    left, right = boxes[0].x - PAD, boxes[-1].x + boxes[-1].width + PAD
    outward = 1 if row % 2 else -1
    far = boxes[0].outer + outward * (offset(picture.depth, 0) + SOCKET_BAR + PAD)
    near = boxes[0].inner - outward * PAD
    group = _add(svg, "g", class_="socket")
    _add(group, "rect", x=left, y=min(far, near), width=right - left, height=abs(far - near), rx=10, fill=_PANEL)
    lines, bars = _add(group, "g", stroke=_PCIE, stroke_width=2), _add(group, "g")
    wires = _add(lines, "g", class_="cpu-links")
    _draw_level(lines, bars, picture, socket, 0, of_index)
    edge = boxes[0].outer + outward * offset(picture.depth, 0)
    for box in boxes:
        count = box.card.gpu.cpu_nvlinks
        if count:
            wire = _add(wires, "line", x1=box.middle + 12, y1=box.outer, x2=box.middle + 12, y2=edge, class_="cpu-link")
            wire.attrib |= {"stroke": _NVLINK_COLOURS[0], "stroke-width": _number(_stroke(count))}


def _draw_level(
    lines: ET.Element,
    bars: ET.Element,
    picture: Picture,
    level: Level,
    depth: int,
    of_index: Mapping[int, Gpu],
) -> None:
    of_card = {index: gpu.card for index, gpu in of_index.items()}
    _draw_bar(bars, picture, level, depth, of_index)
    edge = depth
    if depth == 0 and hides_switch(level):
        edge = 1
        _draw_bar(bars, picture, level._replace(kind="switch"), 1, of_index)
        _draw_line(lines, picture, level, (1, 0), of_card)
    for child in level.children or (level,):
        if child is not level and is_branch(child):
            _draw_level(lines, bars, picture, child, edge + 1, of_index)
            _draw_line(lines, picture, child, (edge + 1, edge), of_card)
        else:
            box = picture.boxes[of_card[child.gpus[0]]]
            end = box.outer + (1 if box.row % 2 else -1) * offset(picture.depth, edge)
            _add(lines, "line", x1=box.middle, y1=box.outer, x2=box.middle, y2=end)


def _draw_line(
    lines: ET.Element, picture: Picture, level: Level, depths: tuple[int, int], of_card: Mapping[int, int]
) -> None:
    """From a bar to the one above it."""
    boxes = [picture.boxes[index] for index in card_indices(level, of_card)]
    outward = 1 if boxes[0].row % 2 else -1
    middle = (boxes[0].x + boxes[-1].x + boxes[-1].width) / 2
    start, end = (boxes[0].outer + outward * offset(picture.depth, depth) for depth in depths)
    _add(lines, "line", x1=middle, y1=start, x2=middle, y2=end)


def _draw_bar(bars: ET.Element, picture: Picture, level: Level, depth: int, of_index: Mapping[int, Gpu]) -> None:
    of_card = {index: gpu.card for index, gpu in of_index.items()}
    box = picture.boxes[of_card[level.gpus[0]]]
    left, right = span(level, picture.boxes, of_card)
    thick = LEVEL_BAR if depth else SOCKET_BAR
    near = box.outer + (1 if box.row % 2 else -1) * offset(picture.depth, depth)
    y = near if box.row % 2 else near - thick
    name = _level_name(level) if depth else socket_name(level, of_index)
    text = name if depth else _socket_text(level, name, short=picture.short)
    size = 9.5 if depth else 11.0
    fill = "#e4e8ee" if depth else _BAR
    group = _add(bars, "g", class_=level.kind.replace(" ", "-") if depth else "cpu")
    _add(group, "title", text=name)
    _add(group, "rect", x=left, y=y, width=right - left, height=thick, rx=4, fill=fill, stroke=_PCIE, stroke_width=1)
    shown = _cut(text, right - left, size)
    _text(group, (left + right) / 2, y + thick / 2 + size * 0.36, shown, size, anchor="middle")


def _level_name(level: Level) -> str:
    """Of what stands between a socket and its GPUs."""
    if level.kind != "switch":
        return level.kind
    several = level.path == "PXB" and not any(map(is_branch, level.children))
    return "PCIe switches" if several else "PCIe switch"


def _socket_text(level: Level, name: str, *, short: bool) -> str:
    if level.numa_node is None:
        return "CPUs" if name == "socket" and level.kind == "machine" else name
    return f"NUMA {level.numa_node}" if short else name


def _draw_fabric(
    svg: ET.Element,
    picture: Picture,
    found: Sequence[Card],
    links: Mapping[tuple[int, int], Link],
    colours: Mapping[float, str],
) -> None:
    """One bar for all NVSwitches in each pair of rows, joined at the left if there are several."""
    switched = {index for pair, link in links.items() if link.kind == "nvswitch" for index in pair}
    if not switched:
        return
    best = max(link.bandwidth_gb_per_s for link in links.values() if link.kind == "nvswitch")
    colour = colours[best]
    group = _add(svg, "g", class_="nvswitch")
    boxes = [picture.boxes[card.index] for card in found if card.index in switched]
    tops = sorted({picture.fabric[box.row] for box in boxes})
    left, right = min(box.x for box in boxes), max(box.x + box.width for box in boxes)
    if len(tops) > 1:
        left -= PAD + SPINE + 8
        height = tops[-1] - tops[0] + FABRIC_BAR
        _add(group, "rect", x=left, y=tops[0], width=SPINE, height=height, rx=6, fill=colour)
    for box in boxes:
        top = picture.fabric[box.row]
        end = top if box.row % 2 == 0 else top + FABRIC_BAR
        line = _add(group, "line", x1=box.middle, y1=box.inner, x2=box.middle, y2=end, class_="uplink")
        line.attrib |= {"stroke": colour, "stroke-width": _number(_stroke(box.card.gpu.nvswitch_links))}
    counts = sorted({box.card.gpu.nvswitch_links for box in boxes})
    some = f"NVSwitch: {' or '.join(map(str, counts))} NVLinks"
    texts = (f"{some} from each GPU, {best:.4g} GB/s per direction", f"{some}, {best:.4g} GB/s", "NVSwitch")
    text = next((text for text in texts if fits(text, right - left - 16, 13)), texts[-1])
    for top in tops:
        _add(group, "rect", x=left, y=top, width=right - left, height=FABRIC_BAR, rx=6, fill=colour)
        _text(group, (left + right) / 2, top + 20, text, 13, fill="#ffffff", anchor="middle", weight="bold")


def _draw_nvlinks(
    svg: ET.Element, picture: Picture, links: Mapping[tuple[int, int], Link], colours: Mapping[float, str]
) -> None:
    """A line for each pair: straight between neighbours, else a curve that leaves the boxes where no PCIe is."""
    direct = {pair: link for pair, link in links.items() if link.kind == "nvlink"}
    ports = _ports(picture, list(direct))
    group = _add(svg, "g", fill="none", stroke_linecap="round")
    for (a, b), link in sorted(direct.items(), key=lambda item: item[1].nvlink_count):
        one, other = picture.boxes[a], picture.boxes[b]
        shape = _shape(one, other, ports.get((a, b), one.middle), ports.get((b, a), other.middle))
        path = _add(group, "path", class_="nvlink", d=shape, data_pair=f"{a}-{b}")
        colour, thickness = colours[link.bandwidth_gb_per_s], _number(_stroke(link.nvlink_count))
        path.attrib |= {"stroke": colour, "stroke-width": thickness}
        _add(path, "title", text=f"GPU {a} - GPU {b}: {link_name(link)}, {link.bandwidth_gb_per_s:.3g} GB/s")


def _neighbours(one: Box, other: Box) -> bool:
    return one.row == other.row and abs(one.place - other.place) == 1


def _ports(picture: Picture, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Where on the inner edge of a box the curve to another one begins, so that curves of one box do not cross."""
    targets: dict[int, list[int]] = {}
    for a, b in pairs:
        if not _neighbours(picture.boxes[a], picture.boxes[b]):
            targets.setdefault(a, []).append(b)
            targets.setdefault(b, []).append(a)
    ports = {}
    for index, others in targets.items():
        box = picture.boxes[index]
        ordered = sorted(others, key=lambda other: _turn(box, picture.boxes[other]))
        for i, other in enumerate(ordered):
            ports[index, other] = box.x + box.width * (i + 1) / (len(ordered) + 1)
    return ports


def _turn(box: Box, other: Box) -> tuple[int, float]:
    """From left to right: arcs to the left, the longest last; what crosses over; arcs to the right, longest first."""
    if box.row != other.row:
        return 1, other.middle
    return (0, -other.middle) if other.middle < box.middle else (2, -other.middle)


def _shape(one: Box, other: Box, start: float, end: float) -> str:
    if _neighbours(one, other):
        left, right = sorted((one, other), key=lambda box: box.x)
        y = left.y + left.height / 2
        return f"M{_number(left.x + left.width)} {_number(y)}H{_number(right.x)}"
    if one.row == other.row:
        inward = -1 if one.row % 2 else 1
        first = second = one.inner + inward * reach(abs(one.place - other.place)) / 0.75
    else:
        first = second = (one.inner + other.inner) / 2
    return (
        f"M{_number(start)} {_number(one.inner)}C{_number(start)} {_number(first)} "
        f"{_number(end)} {_number(second)} {_number(end)} {_number(other.inner)}"
    )


def _draw_card(svg: ET.Element, box: Box, states: Mapping[int, GpuState], *, mixed: bool) -> None:
    card = box.card
    if not card.instances:
        _draw_gpu(svg, box, card.gpu, states.get(card.gpu.index), mixed=mixed)
        return
    group = _add(svg, "g", class_="card")
    _add(group, "title", text=f"GPU {card.index}: {card.model}, in MIG mode")
    fill, stroke = _PLAIN
    frame: dict[str, Any] = {"x": box.x, "y": box.y, "width": box.width, "height": box.height, "rx": 8}
    _add(group, "rect", **frame, fill=fill, stroke=stroke, stroke_width=1.5, stroke_dasharray="5 3")
    _text(group, box.middle, box.y + 21, f"GPU {card.index}", 14, anchor="middle", weight="bold")
    _text(group, box.middle, box.y + 35, "MIG", 10, anchor="middle", fill=_PALE)
    for i, gpu in enumerate(card.instances):
        _draw_instance(svg, box, box.y + 44 + i * CELL, gpu, states.get(gpu.index))


def _draw_gpu(svg: ET.Element, box: Box, gpu: Gpu, state: GpuState | None, *, mixed: bool) -> None:
    group = _gpu_group(svg, gpu, state)
    fill, stroke = _STATES[state.kind][:2] if state else _PLAIN
    frame: dict[str, Any] = {"x": box.x, "y": box.y, "width": box.width, "height": box.height, "rx": 8}
    _add(group, "rect", **frame, fill=fill, stroke=stroke, stroke_width=2 if state else 1.5)
    notes = [printable(state.label) or state.kind] if state else []
    notes += [printable(gpu.model).removeprefix("NVIDIA ")] if mixed else []
    y = box.y + box.height / 2 + 5 - 7 * len(notes)
    _text(group, box.middle, y, f"GPU {gpu.name}", 14, anchor="middle", weight="bold")
    for i, note in enumerate(notes):
        _text(group, box.middle, y + 14 + 12 * i, _cut(note, box.width - 4, 10), 10, anchor="middle")


def _draw_instance(svg: ET.Element, box: Box, y: float, gpu: Gpu, state: GpuState | None) -> None:
    group = _gpu_group(svg, gpu, state)
    fill, stroke = _STATES[state.kind][:2] if state else _PLAIN
    frame: dict[str, Any] = {"x": box.x + 5, "y": y, "width": box.width - 10, "height": CELL - 4, "rx": 4}
    _add(group, "rect", **frame, fill=fill, stroke=stroke, stroke_width=1.2)
    note = printable(state.label) if state and state.label else printable(gpu.mig.profile) if gpu.mig else ""
    _text(group, box.middle, y + 13, _cut(f"{gpu.name} {note}", box.width - 8, 9.5), 9.5, anchor="middle")


def _gpu_group(svg: ET.Element, gpu: Gpu, state: GpuState | None) -> ET.Element:
    group = _add(svg, "g", class_=f"gpu {state.kind}" if state else "gpu", data_gpu=gpu.index)
    said = f", {_STATES[state.kind][2]}{f' ({printable(state.label)})' if state.label else ''}" if state else ""
    size = f", {format_size(gpu.memory_bytes)}" if gpu.memory_bytes else ""
    _add(group, "title", text=f"GPU {gpu.name}: {printable(gpu.model)}{size}{said}")
    return group


class _Item(NamedTuple):
    """A line of the legend: a stroke of some thickness, a box if that is 0, or text alone without a stroke."""

    text: str
    stroke: str
    thickness: float = 0.0
    fill: str = ""


def _draw_legend(
    svg: ET.Element,
    y: float,
    width: float,
    found: Sequence[Card],
    links: Mapping[tuple[int, int], Link],
    colours: Mapping[float, str],
    states: Mapping[int, GpuState],
) -> float:
    """What colours and lines mean; returns where it ends."""
    group = _add(svg, "g", class_="legend")
    rows = [_nvlink_items(found, links, colours), _pcie_items(links), _state_items(states)]
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
        _text(group, x, y, item.text, 11)
        return
    if item.thickness:
        _add(group, "line", x1=x, y1=y - 4, x2=x + 24, y2=y - 4, stroke=item.stroke, stroke_width=item.thickness)
    else:
        _add(group, "rect", x=x, y=y - 11, width=24, height=14, rx=4, fill=item.fill, stroke=item.stroke)
    _text(group, x + 31, y, item.text, 11)


def _nvlink_items(
    found: Sequence[Card], links: Mapping[tuple[int, int], Link], colours: Mapping[float, str]
) -> list[_Item]:
    joined = [link for link in links.values() if link.nvlink_count]
    items = [
        _Item(f"{name}: {bandwidth:.4g} GB/s per direction", colours[bandwidth], _stroke(int(name[2:])))
        for name, bandwidth in link_classes(joined)
    ]
    counts = sorted({card.gpu.cpu_nvlinks for card in found} - {0})
    return items + [_Item(f"{n} NVLinks to the CPU", _NVLINK_COLOURS[0], _stroke(n)) for n in counts]


def _pcie_items(links: Mapping[tuple[int, int], Link]) -> list[_Item]:
    """The PCIe paths that GPUs use, or could use besides their NVLinks."""
    figures = {link.pcie_path: link.pcie_gb_per_s for link in links.values()}
    texts = [f"{path} {figures[path]:.3g} GB/s ({text})" for path, text in MEANINGS.items() if path in figures]
    return [_Item(text if i else f"PCIe: {text}", "" if i else _PCIE, 2.0) for i, text in enumerate(texts)]


def _state_items(states: Mapping[int, GpuState]) -> list[_Item]:
    present = {state.kind for state in states.values()}
    return [_Item(text, stroke, fill=fill) for kind, (fill, stroke, text) in _STATES.items() if kind in present]
