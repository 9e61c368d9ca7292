"""A machine as a picture: one SVG document that needs no other file."""

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from gpulaunch.errors import printable
from gpulaunch.files.size import format_size
from gpulaunch.machine.cards import Card, card_links, cards, several_models
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.levels import Level
from gpulaunch.machine.link import Link
from gpulaunch.machine.topology import Topology, machines
from gpulaunch.records import replace
from gpulaunch.show.topology.element import PALE, add_element, add_text, as_number
from gpulaunch.show.topology.layout import (
    CELL,
    FABRIC_BAR,
    LEVEL_BAR,
    MARGIN,
    NODE_HEAD,
    PAD,
    SOCKET_BAR,
    SPINE,
    STUB,
    Box,
    Curve,
    Picture,
    cut,
    fits,
    hides_switch,
    laid_out_machines,
    nvlink_curves,
    offset,
    shortened,
    span,
)
from gpulaunch.show.topology.legend import (
    NETWORK,
    NVLINK_COLOURS,
    PCIE,
    PLAIN,
    STATES,
    GpuState,
    draw_legend,
    nvlink_colours,
    nvlink_width,
)
from gpulaunch.show.topology.text import link_name, socket_name, title, wrapped
from gpulaunch.typing import Any

_PANEL, _BAR = "#f3f5f8", "#d5dae2"
_FONT = "DejaVu Sans, Verdana, Arial, sans-serif"


def topology_svg(topology: Topology, states: Mapping[int, GpuState] | None = None) -> str:
    """Return a picture of the machine: sockets, PCIe levels, GPUs, NVLinks and the users of GPUs.

    Several machines are drawn one below the other, each in a frame, with the network beside them.

    Args:
        topology: the machine.
        states: states of GPUs by index; a GPU that is not listed is drawn without a state.

    Returns:
        An SVG document with a light background, without scripts, and without fonts or pictures from
        elsewhere. The group of a GPU has the classes "gpu" and that of its state, the line of an
        NVLink the class "nvlink".
    """
    states = states or {}
    found, links, parts = cards(topology), card_links(topology), machines(topology)
    width = (
        max(560.0, *(picture.width for picture in laid_out_machines(parts).values())) + 2 * MARGIN
    )
    width += PAD if len(parts) > 1 else 0
    heading = _paragraph(title(topology), int((width - 2 * MARGIN) / (18 * 0.63)))
    pictures = laid_out_machines(parts, top=34 + 24.0 * len(heading))
    colours = nvlink_colours(links)
    svg = ET.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": _FONT, "role": "img"}
    )
    add_element(svg, "title", text=title(topology))
    ground = add_element(svg, "rect", width="100%", height="100%", fill="#ffffff")
    for i, line in enumerate(heading):
        add_text(svg, MARGIN, 36 + 24 * i, line, 18, weight="bold")
    if len(parts) > 1:
        _draw_network(svg, pictures)
    mixed = several_models(found)
    for node, part in parts.items():
        _draw_machine(svg, pictures[node], part, colours, states, mixed=mixed)
    end = max(picture.bottom for picture in pictures.values()) + (PAD if len(parts) > 1 else 0)
    bottom = draw_legend(svg, end + 34, width, found, links, colours, states)
    for line in _paragraph(
        f"Source: {printable(topology.source)}", int((width - 2 * MARGIN) / 5.6)
    ):
        bottom += 14
        add_text(svg, MARGIN, bottom, line, 9.5, fill=PALE)
    height = bottom + 18
    ground.set("height", as_number(height))
    for name, value in (
        ("width", as_number(width)),
        ("height", as_number(height)),
        ("viewBox", f"0 0 {as_number(width)} {as_number(height)}"),
    ):
        svg.set(name, value)
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _paragraph(text: str, most: int) -> list[str]:
    """Break text into lines of at most this many characters; cut words that are longer."""
    return [shortened(line, most) for line in wrapped(text, most)]


def _draw_network(svg: ET.Element, pictures: Mapping[int, Picture]) -> None:
    """Draw a named frame for each machine, and the network's bar at their left that joins them."""
    right = max(picture.width for picture in pictures.values()) + MARGIN + PAD
    left = MARGIN + SPINE + STUB
    group = add_element(svg, "g", class_="network")
    frames = {
        node: (_frame_top(picture), picture.bottom + PAD) for node, picture in pictures.items()
    }
    ends = [end for frame in frames.values() for end in frame]
    bar = add_element(
        group,
        "rect",
        x=MARGIN,
        y=min(ends),
        width=SPINE,
        height=max(ends) - min(ends),
        rx=6,
        fill=NETWORK,
    )
    add_element(bar, "title", text="network")
    for node, (top, bottom) in frames.items():
        y = (top + bottom) / 2
        frame: dict[str, Any] = {
            "x": left,
            "y": top,
            "width": right - left,
            "height": bottom - top,
            "rx": 12,
        }
        own = add_element(group, "g", class_="node")
        add_element(
            own, "line", x1=MARGIN + SPINE, y1=y, x2=left, y2=y, stroke=NETWORK, stroke_width=4
        )
        add_element(own, "rect", **frame, fill="none", stroke=NETWORK, stroke_width=1.5)
        add_text(own, left + PAD, top + 20, f"node {node}", 13, weight="bold")


def _frame_top(picture: Picture) -> float:
    """Return where the frame of a machine begins."""
    first = min(picture.boxes.values(), key=lambda box: box.y)
    return first.y - offset(picture.depth, 0) - SOCKET_BAR - PAD - NODE_HEAD


def _draw_machine(
    svg: ET.Element,
    picture: Picture,
    machine: Topology,
    colours: Mapping[float, str],
    states: Mapping[int, GpuState],
    *,
    mixed: bool,
) -> None:
    links = card_links(machine)
    for row, sockets in enumerate(picture.rows):
        for socket in sockets:
            _draw_socket(svg, picture, socket, row)
    _draw_fabric(svg, picture, cards(machine), links, colours)
    _draw_nvlinks(svg, picture, links, colours)
    for box in picture.boxes.values():
        _draw_card(svg, box, states, mixed=mixed)


def _draw_socket(svg: ET.Element, picture: Picture, socket: Level, row: int) -> None:
    """Draw the panel, the bars of its levels, and the lines from there to the GPUs."""
    boxes = [picture.boxes[index] for index in socket.cards]
    left, right = boxes[0].x - PAD, boxes[-1].x + boxes[-1].width + PAD
    outward = 1 if row % 2 else -1
    far = boxes[0].outer + outward * (offset(picture.depth, 0) + SOCKET_BAR + PAD)
    near = boxes[0].inner - outward * PAD
    group = add_element(svg, "g", class_="socket")
    add_element(
        group,
        "rect",
        x=left,
        y=min(far, near),
        width=right - left,
        height=abs(far - near),
        rx=10,
        fill=_PANEL,
    )
    lines, bars = add_element(group, "g", stroke=PCIE, stroke_width=2), add_element(group, "g")
    wires = add_element(lines, "g", class_="cpu-links")
    _draw_level(lines, bars, picture, socket, 0)
    edge = boxes[0].outer + outward * offset(picture.depth, 0)
    for box in boxes:
        count = box.card.gpu.cpu_nvlinks
        if count:
            wire = add_element(
                wires,
                "line",
                x1=box.middle + 12,
                y1=box.outer,
                x2=box.middle + 12,
                y2=edge,
                class_="cpu-link",
            )
            wire.attrib |= {
                "stroke": NVLINK_COLOURS[0],
                "stroke-width": as_number(nvlink_width(count)),
            }


def _draw_level(
    lines: ET.Element,
    bars: ET.Element,
    picture: Picture,
    level: Level,
    depth: int,
) -> None:
    _draw_bar(bars, picture, level, depth)
    edge = depth
    if depth == 0 and hides_switch(level):
        edge = 1
        _draw_bar(bars, picture, replace(level, kind="switch"), 1)
        _draw_line(lines, picture, level, (1, 0))
    for child in level.children or (level,):
        if child is not level and child.is_branch:
            _draw_level(lines, bars, picture, child, edge + 1)
            _draw_line(lines, picture, child, (edge + 1, edge))
        else:
            box = picture.boxes[child.cards[0]]
            end = box.outer + (1 if box.row % 2 else -1) * offset(picture.depth, edge)
            add_element(lines, "line", x1=box.middle, y1=box.outer, x2=box.middle, y2=end)


def _draw_line(lines: ET.Element, picture: Picture, level: Level, depths: tuple[int, int]) -> None:
    """Draw a line from a bar to the one above it."""
    boxes = [picture.boxes[index] for index in level.cards]
    outward = 1 if boxes[0].row % 2 else -1
    middle = (boxes[0].x + boxes[-1].x + boxes[-1].width) / 2
    start, end = (boxes[0].outer + outward * offset(picture.depth, depth) for depth in depths)
    add_element(lines, "line", x1=middle, y1=start, x2=middle, y2=end)


def _draw_bar(bars: ET.Element, picture: Picture, level: Level, depth: int) -> None:
    box = picture.boxes[level.cards[0]]
    left, right = span(level, picture.boxes)
    thick = LEVEL_BAR if depth else SOCKET_BAR
    near = box.outer + (1 if box.row % 2 else -1) * offset(picture.depth, depth)
    y = near if box.row % 2 else near - thick
    name = _level_name(level) if depth else socket_name(level)
    text = name if depth else _socket_text(level, name, short=picture.short)
    size = 9.5 if depth else 11.0
    fill = "#e4e8ee" if depth else _BAR
    group = add_element(bars, "g", class_=level.kind.replace(" ", "-") if depth else "cpu")
    add_element(group, "title", text=name)
    add_element(
        group,
        "rect",
        x=left,
        y=y,
        width=right - left,
        height=thick,
        rx=4,
        fill=fill,
        stroke=PCIE,
        stroke_width=1,
    )
    shown = cut(text, right - left, size)
    add_text(group, (left + right) / 2, y + thick / 2 + size * 0.36, shown, size, anchor="middle")


def _level_name(level: Level) -> str:
    """Return the name of a level between a socket and its GPUs."""
    if level.kind != "switch":
        return level.kind
    several = level.path == "PXB" and not any(child.is_branch for child in level.children)
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
    """Draw a bar for all NVSwitches in each pair of rows; several bars are joined at the left."""
    switched: dict[int, float] = {}  # best bandwidth of each card through a switch
    for pair, link in links.items():
        for index in pair if link.kind == "nvswitch" else ():
            switched[index] = max(link.bandwidth_gb_per_s, switched.get(index, 0.0))
    if not switched:
        return
    best = max(switched.values())
    colour = colours[best]
    group = add_element(svg, "g", class_="nvswitch")
    boxes = [picture.boxes[card.index] for card in found if card.index in switched]
    tops = sorted({picture.fabric[box.row] for box in boxes})
    left, right = min(box.x for box in boxes), max(box.x + box.width for box in boxes)
    if len(tops) > 1:
        left -= PAD + SPINE + 8
        height = tops[-1] - tops[0] + FABRIC_BAR
        add_element(group, "rect", x=left, y=tops[0], width=SPINE, height=height, rx=6, fill=colour)
    for box in boxes:
        top = picture.fabric[box.row]
        end = top if box.row % 2 == 0 else top + FABRIC_BAR
        line = add_element(
            group, "line", x1=box.middle, y1=box.inner, x2=box.middle, y2=end, class_="uplink"
        )
        own = colours[switched[box.card.index]]
        line.attrib |= {
            "stroke": own,
            "stroke-width": as_number(nvlink_width(box.card.gpu.nvswitch_links)),
        }
    counts = sorted({box.card.gpu.nvswitch_links for box in boxes})
    some = f"NVSwitch: {' or '.join(map(str, counts))} NVLink{'' if counts == [1] else 's'}"
    carried = f", {best:.4g} GB/s" if len(counts) == 1 else ""
    each = f"{some} from each GPU{carried}{' per direction' if carried else ''}"
    texts = (each, f"{some}{carried}", "NVSwitch")
    text = next((text for text in texts if fits(text, right - left - 16, 13)), texts[-1])
    for top in tops:
        add_element(
            group, "rect", x=left, y=top, width=right - left, height=FABRIC_BAR, rx=6, fill=colour
        )
        add_text(
            group,
            (left + right) / 2,
            top + 20,
            text,
            13,
            fill="#ffffff",
            anchor="middle",
            weight="bold",
        )


def _draw_nvlinks(
    svg: ET.Element,
    picture: Picture,
    links: Mapping[tuple[int, int], Link],
    colours: Mapping[float, str],
) -> None:
    """Draw a line for each pair, the thickest ones on top."""
    direct = {pair: link for pair, link in links.items() if link.kind == "nvlink"}
    curves = nvlink_curves(picture, direct)
    group = add_element(svg, "g", fill="none", stroke_linecap="round")
    for (a, b), link in sorted(direct.items(), key=lambda item: item[1].nvlink_count):
        path = add_element(
            group, "path", class_="nvlink", d=_path_data(curves[a, b]), data_pair=f"{a}-{b}"
        )
        path.set("stroke", colours[link.bandwidth_gb_per_s])
        path.set("stroke-width", as_number(nvlink_width(link.nvlink_count)))
        add_element(
            path,
            "title",
            text=f"GPU {a} - GPU {b}: {link_name(link)}, {link.bandwidth_gb_per_s:.3g} GB/s",
        )


def _path_data(curve: Curve) -> str:
    """Return a curve as the `d` attribute of a path."""
    start, *others = (" ".join(map(as_number, point)) for point in curve)
    return f"M{start}{'C' if len(others) > 1 else 'L'}{' '.join(others)}"


def _draw_card(svg: ET.Element, box: Box, states: Mapping[int, GpuState], *, mixed: bool) -> None:
    card = box.card
    if not card.instances:
        _draw_gpu(svg, box, card.gpu, states.get(card.gpu.index), mixed=mixed)
        return
    group = add_element(svg, "g", class_="card")
    add_element(group, "title", text=f"GPU {card.index}: {printable(card.model)}, in MIG mode")
    fill, stroke = PLAIN
    frame: dict[str, Any] = {
        "x": box.x,
        "y": box.y,
        "width": box.width,
        "height": box.height,
        "rx": 8,
    }
    add_element(
        group, "rect", **frame, fill=fill, stroke=stroke, stroke_width=1.5, stroke_dasharray="5 3"
    )
    add_text(group, box.middle, box.y + 21, f"GPU {card.index}", 14, anchor="middle", weight="bold")
    add_text(group, box.middle, box.y + 35, "MIG", 10, anchor="middle", fill=PALE)
    for i, gpu in enumerate(card.instances):
        _draw_instance(svg, box, box.y + 44 + i * CELL, gpu, states.get(gpu.index))


def _draw_gpu(svg: ET.Element, box: Box, gpu: Gpu, state: GpuState | None, *, mixed: bool) -> None:
    group = _gpu_group(svg, gpu, state)
    fill, stroke = STATES[state.kind][:2] if state else PLAIN
    frame: dict[str, Any] = {
        "x": box.x,
        "y": box.y,
        "width": box.width,
        "height": box.height,
        "rx": 8,
    }
    add_element(group, "rect", **frame, fill=fill, stroke=stroke, stroke_width=2 if state else 1.5)
    notes = [printable(state.label) or state.kind] if state else []
    notes += [printable(gpu.model).removeprefix("NVIDIA ")] if mixed else []
    y = box.y + box.height / 2 + 5 - 7 * len(notes)
    add_text(group, box.middle, y, f"GPU {gpu.name}", 14, anchor="middle", weight="bold")
    for i, note in enumerate(notes):
        add_text(
            group, box.middle, y + 14 + 12 * i, cut(note, box.width - 4, 10), 10, anchor="middle"
        )


def _draw_instance(svg: ET.Element, box: Box, y: float, gpu: Gpu, state: GpuState | None) -> None:
    group = _gpu_group(svg, gpu, state)
    fill, stroke = STATES[state.kind][:2] if state else PLAIN
    frame: dict[str, Any] = {
        "x": box.x + 5,
        "y": y,
        "width": box.width - 10,
        "height": CELL - 4,
        "rx": 4,
    }
    add_element(group, "rect", **frame, fill=fill, stroke=stroke, stroke_width=1.2)
    note = ""
    if state and state.label:
        note = printable(state.label)
    elif gpu.mig:
        note = printable(gpu.mig.profile)
    add_text(
        group,
        box.middle,
        y + 13,
        cut(f"{gpu.name} {note}", box.width - 8, 9.5),
        9.5,
        anchor="middle",
    )


def _gpu_group(svg: ET.Element, gpu: Gpu, state: GpuState | None) -> ET.Element:
    group = add_element(
        svg, "g", class_=f"gpu {state.kind}" if state else "gpu", data_gpu=gpu.index
    )
    said = (
        f", {STATES[state.kind][2]}{f' ({printable(state.label)})' if state.label else ''}"
        if state
        else ""
    )
    size = f", {format_size(gpu.memory_bytes)}" if gpu.memory_bytes else ""
    add_element(group, "title", text=f"GPU {gpu.name}: {printable(gpu.model)}{size}{said}")
    return group
