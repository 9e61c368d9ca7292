"""A machine as a picture: one SVG document that needs no other file.

GPUs stand in rows, of which two face each other. NVLinks have the space between the two, sockets
and PCIe the outer sides, so neither crosses a GPU.
"""

from collections.abc import Mapping, Sequence
from typing import Literal
from xml.etree import ElementTree as ET

from gpulaunch.errors import printable
from gpulaunch.files.units import format_size
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.link import NETWORK_PATH, Link, PathType
from gpulaunch.machine.topology import Card, Topology, card_links, cards, machines, several_models
from gpulaunch.records import Record, replace
from gpulaunch.show.topology.text import (
    MEANINGS,
    link_classes,
    link_name,
    socket_name,
    title,
    wrapped,
)

StateKind = Literal["free", "leased", "shared", "outside", "drained", "barred"]
_Links = Mapping[tuple[int, int], Link]
_Entry = tuple[str, str, float, str]  # of the legend: text, stroke and thickness, fill of a box
_Points = tuple[float, float, float, float]  # x and y of one, then of the other


class GpuState(Record):
    """The state of a GPU.

    Attributes:
        kind: kind of the state; also the class of its box in the picture.
        label: the user, or another word for people; "" for none.
    """

    kind: StateKind
    label: str = ""


_STATES: dict[StateKind, tuple[str, str, str]] = {  # fill, stroke, meaning
    "free": ("#e3f4e6", "#2e7d32", "free"),
    "leased": ("#dbe8fd", "#1a56b0", "leased"),
    "shared": ("#ece3f8", "#6a3ab2", "leased and shared"),
    "outside": ("#fde4e1", "#c0392b", "in use outside gpulaunch"),
    "drained": ("#e6e8eb", "#6b7280", "drained"),
    "barred": ("#fbe3b8", "#9a3412", "barred by a fault"),
}
_NVLINKS = ("#0b7a3b", "#1585c9", "#d9780f", "#a43fb8", "#8b5a2b")  # fastest first
_INK, _PALE, _PAPER, _PLAIN = "#1f2933", "#5b6672", "#ffffff", "#4b5563"
_PANEL, _SOCKET, _SWITCH = "#f3f5f8", "#d5dae2", "#e4e8ee"
_PCIE, _NETWORK = "#8b93a0", "#4a5568"
_SWITCHES: dict[PathType, str] = {"PIX": "PCIe switch", "PXB": "PCIe switches"}
_FONT = "DejaVu Sans, Verdana, Arial, sans-serif"
_CHARACTER = 0.62  # width of a letter, as a share of the font's size

_MARGIN = 28
_PAD = 14  # of a socket's panel
_SOCKET_BAR, _LEVEL_BAR, _BAR_GAP = 24, 16, 14
_FABRIC_BAR, _FABRIC_GAP = 30, 44
_INSTANCE = 22  # height of a MIG instance
_SPINE = 16  # width of the network, and of what joins the bars of NVSwitches
_NODE_HEAD, _NODE_GAP = 30, 24  # above and below each of several machines
_STUB = 20  # from the network to a machine


def _add(parent: ET.Element, tag: str, text: object = None, **attributes: object) -> ET.Element:
    """Add an element; `stroke_width` stands for stroke-width and `class_` for class."""
    element = ET.SubElement(parent, tag)
    element.text = None if text is None else str(text)
    for name, value in attributes.items():
        shown = _number(value) if isinstance(value, (int, float)) else str(value)
        element.set(name.rstrip("_").replace("_", "-"), shown)
    return element


def _number(value: float) -> str:
    """Format a number with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _add_text(
    parent: ET.Element, x: float, y: float, text: str, size: float, **style: object
) -> None:
    """Add a line of text with its middle at `x`, or its beginning, and its baseline at `y`."""
    style = {"fill": _INK, "text_anchor": "middle", **style}
    _add(parent, "text", text, x=x, y=y, font_size=size, **style)


def _add_rect(
    parent: ET.Element, corners: _Points, radius: float, fill: str, **style: object
) -> None:
    """Add a rectangle between two corners."""
    left, right = sorted(corners[::2])
    top, bottom = sorted(corners[1::2])
    size = {"width": right - left, "height": bottom - top}
    _add(parent, "rect", x=left, y=top, **size, rx=radius, fill=fill, **style)


def _add_line(
    parent: ET.Element, ends: _Points, stroke: str, width: float, **style: object
) -> None:
    """Add a straight line between two points."""
    points = dict(zip(("x1", "y1", "x2", "y2"), ends, strict=True))
    _add(parent, "line", **points, stroke=stroke, stroke_width=width, **style)


def _fits(text: str, width: float, size: float) -> bool:
    """Return whether a text fits, as far as one can tell without the font."""
    return len(text) * size * _CHARACTER <= width


def _cut(text: str, width: float, size: float) -> str:
    """Return as much of a text as fits, with an ellipsis for the rest."""
    most = max(int(width / (size * _CHARACTER)), 1)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _paragraph(text: str, width: float, size: float) -> list[str]:
    """Break text into lines that fit; cut words that are longer."""
    most = int(width / (size * _CHARACTER))
    return [_cut(line, width, size) for line in wrapped(text, most)]


def _nvlink_width(count: int) -> float:
    """Return the line width for this many NVLinks."""
    return min(1.0 + 1.2 * count, 6.5)


class _CardBox(Record):
    """A card's place: its row, its place in the row, and its upper left corner."""

    card: Card
    row: int
    place: int
    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Right edge."""
        return self.x + self.width

    @property
    def middle(self) -> float:
        """Middle between its left and right edges."""
        return self.x + self.width / 2

    @property
    def outer(self) -> float:
        """Edge to which its PCIe leads: the upper one in the upper row of two."""
        return self.y + (self.height if self.row % 2 else 0)

    @property
    def inner(self) -> float:
        """Edge from which its NVLinks lead."""
        return self.y + (0 if self.row % 2 else self.height)

    @property
    def outward(self) -> int:
        """Direction from the box to its socket: 1 is down."""
        return 1 if self.row % 2 else -1

    def is_beside(self, other: "_CardBox") -> bool:
        """Return whether two boxes are neighbours in a row."""
        return self.row == other.row and abs(self.place - other.place) == 1


class _Machine:
    """The picture of a machine: the places of everything, and its drawing.

    Args:
        topology: the machine.
        top: y of the uppermost row.
        shift: space between the left margin and everything else.

    Attributes:
        boxes: boxes by index of the card.
        width: width of all rows.
        top: upper edge of the first socket.
        bottom: lower end of the lowest row.
    """

    def __init__(self, topology: Topology, top: float, shift: float) -> None:
        found, links = cards(topology), card_links(topology)
        sockets = [_with_switch(socket) for socket in machine_tree(topology).sockets]
        # rows 0 and 1 face each other, as do 2 and 3
        self._rows = _distribute(sockets, _count_rows(found, links, sockets))
        self._depth = max(_count_bars(socket) for socket in sockets)
        self._links = links
        self._fabric: list[float] = []  # beginning of the bar of NVSwitches beside each row
        self.boxes: dict[int, _CardBox] = {}
        self.top, self.width = top, 0.0
        width, height, gap, socket_gap = (98, 64 if several_models(found) else 50, 26, 30)
        self._small = len(found) > 16
        if self._small:
            width, height, gap, socket_gap = (72, 40, 10, 16)
        if most := max(len(card.instances) for card in found):
            height += 14 + _INSTANCE * most
        left = _MARGIN + shift + (_SPINE + 12 if len(self._rows) > 2 else 0)
        above = self._distance(0) + _SOCKET_BAR + _PAD
        by_index = {card.index: card for card in found}
        y = top
        for row, members in enumerate(self._rows):
            lower, faced = bool(row % 2), row + 1 < len(self._rows)
            y += 0 if lower else above
            x, place = left, 0
            for socket in members:
                x += _PAD
                for index in socket.cards:
                    self.boxes[index] = _CardBox(by_index[index], row, place, x, y, width, height)
                    x += width + gap
                    place += 1
                x += _PAD - gap + socket_gap
            self.width = max(self.width, x - socket_gap - _MARGIN)
            y += height
            if lower:
                self._fabric.append(self._fabric[-1])
                y += above + (26 if faced else 0)
            else:
                space = _space_between(self._rows[row : row + 2], links)
                # The bar of NVSwitches is halfway to a facing row, else near.
                self._fabric.append(y + ((space - _FABRIC_BAR) / 2 if faced else _FABRIC_GAP))
                y += space
        self.bottom = y

    def _distance(self, depth: int) -> float:
        """Return the distance from the boxes' outer edge to a bar; depth 0 is the socket's bar."""
        return _BAR_GAP + 4 + (self._depth - depth) * (_LEVEL_BAR + _BAR_GAP)

    def _edge(self, level: Level, depth: int) -> float:
        """Return y of the edge of a level's bar that faces its GPUs."""
        box = self.boxes[level.cards[0]]
        return box.outer + box.outward * self._distance(depth)

    def draw(self, svg: ET.Element, colours: Mapping[float, str]) -> None:
        """Draw everything but the GPUs; the colours are those of NVLinks by bandwidth."""
        for socket in [socket for row in self._rows for socket in row]:
            boxes = [self.boxes[index] for index in socket.cards]
            first, last, edge = boxes[0], boxes[-1], self._edge(socket, 0)
            far = edge + first.outward * (_SOCKET_BAR + _PAD)
            near = first.inner - first.outward * _PAD
            group = _add(svg, "g", class_="socket")
            _add_rect(group, (first.x - _PAD, far, last.right + _PAD, near), 10, _PANEL)
            for box in boxes:
                if count := box.card.gpu.cpu_nvlinks:
                    x, thick = box.middle + 12, _nvlink_width(count)
                    _add_line(group, (x, box.outer, x, edge), _NVLINKS[0], thick)
            self._draw_level(group, socket, 0)
        self._draw_switches(svg, colours)
        self._draw_nvlinks(svg, colours)

    def _draw_level(self, group: ET.Element, level: Level, depth: int) -> None:
        """Draw the bar of a level, and all that is below it, with lines up to the bar."""
        first, last = self.boxes[level.cards[0]], self.boxes[level.cards[-1]]
        edge, width = self._edge(level, depth), last.right - first.x
        thick, size, fill = (_LEVEL_BAR, 9.5, _SWITCH) if depth else (_SOCKET_BAR, 11.0, _SOCKET)
        far = edge + first.outward * thick
        name = socket_name(level) if depth == 0 else _SWITCHES.get(level.path, level.kind)
        if self._small or not _fits(name, width, size):
            name = name.partition(" (")[0]
        own = _add(group, "g", class_=level.kind.replace(" ", "-") if depth else "cpu")
        _add(own, "title", name)
        _add_rect(own, (first.x, edge, last.right, far), 4, fill, stroke=_PCIE, stroke_width=1)
        baseline = (edge + far) / 2 + size * 0.36
        _add_text(own, first.x + width / 2, baseline, _cut(name, width, size), size)
        for child in level.children or (level,):
            begin, end = self.boxes[child.cards[0]], self.boxes[child.cards[-1]]
            x, y = (begin.x + end.right) / 2, begin.outer
            if child is not level and child.is_branch:
                y = self._edge(child, depth + 1) + begin.outward * _LEVEL_BAR
                self._draw_level(group, child, depth + 1)
            _add_line(group, (x, y, x, edge), _PCIE, 2)

    def _draw_switches(self, svg: ET.Element, colours: Mapping[float, str]) -> None:
        """Draw a bar for all NVSwitches in each pair of rows; several are joined at the left."""
        switched: dict[int, float] = {}  # best bandwidth of each card through a switch
        for pair, link in self._links.items():
            for index in pair if link.kind == "nvswitch" else ():
                switched[index] = max(link.bandwidth_gb_per_s, switched.get(index, 0.0))
        if not switched:
            return
        best = max(switched.values())
        group = _add(svg, "g", class_="nvswitch")
        boxes = [box for index, box in self.boxes.items() if index in switched]
        tops = sorted({self._fabric[box.row] for box in boxes})
        left, right = min(box.x for box in boxes), max(box.right for box in boxes)
        if len(tops) > 1:
            left -= _PAD + _SPINE + 8
            spine = left, tops[0], left + _SPINE, tops[-1] + _FABRIC_BAR
            _add_rect(group, spine, 6, colours[best])
        for box in boxes:
            end = self._fabric[box.row] + (_FABRIC_BAR if box.row % 2 else 0)
            ends = box.middle, box.inner, box.middle, end
            thick = _nvlink_width(box.card.gpu.nvswitch_links)
            _add_line(group, ends, colours[switched[box.card.index]], thick, class_="uplink")
        counts = sorted({box.card.gpu.nvswitch_links for box in boxes})
        text = f"NVSwitch: {' or '.join(map(str, counts))} NVLink{'' if counts == [1] else 's'}"
        text += f", {best:.4g} GB/s" if len(counts) == 1 else " from each GPU"
        shown = text if _fits(text, right - left - 16, 13) else "NVSwitch"
        for top in tops:
            _add_rect(group, (left, top, right, top + _FABRIC_BAR), 6, colours[best])
            middle = (left + right) / 2
            _add_text(group, middle, top + 20, shown, 13, fill=_PAPER, font_weight="bold")

    def _draw_nvlinks(self, svg: ET.Element, colours: Mapping[float, str]) -> None:
        """Draw a line for each pair, the thickest ones on top."""
        direct = [pair for pair, link in self._links.items() if link.kind == "nvlink"]
        ports = self._place_ports(direct)
        group = _add(svg, "g", fill="none", stroke_linecap="round")
        for a, b in sorted(direct, key=lambda pair: self._links[pair].nvlink_count):
            link, one, other = self._links[a, b], self.boxes[a], self.boxes[b]
            if one.is_beside(other):
                left, right = sorted((one, other), key=lambda box: box.x)
                y = left.y + left.height / 2
                points = [(left.right, y), (right.x, y)]
            else:
                bulge = (one.inner + other.inner) / 2
                if one.row == other.row:
                    bulge -= one.outward * _arc_height(abs(one.place - other.place)) / 0.75
                start, end = ports[a, b], ports[b, a]
                points = [(start, one.inner), (start, bulge), (end, bulge), (end, other.inner)]
            begin, *rest = (f"{_number(x)} {_number(y)}" for x, y in points)
            data = f"M{begin}{'C' if len(rest) > 1 else 'L'}{' '.join(rest)}"
            path = _add(group, "path", class_="nvlink", d=data, data_pair=f"{a}-{b}")
            path.set("stroke", colours[link.bandwidth_gb_per_s])
            path.set("stroke-width", _number(_nvlink_width(link.nvlink_count)))
            carried = f"{link_name(link)}, {link.bandwidth_gb_per_s:.3g} GB/s"
            _add(path, "title", f"GPU {a} - GPU {b}: {carried}")

    def _place_ports(self, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], float]:
        """Return where curves begin on the edges of boxes, so that those of one box do not cross.

        From left to right: arcs to the left, the longest last; then lines to the facing row; then
        arcs to the right, the longest first.
        """
        orders: dict[int, list[tuple[int, float, int]]] = {}
        for pair in pairs:
            for index, other in (pair, pair[::-1]):
                box, target = self.boxes[index], self.boxes[other]
                side = 0 if target.x < box.x else 2
                order = (side, -target.middle) if box.row == target.row else (1, target.middle)
                if not box.is_beside(target):
                    orders.setdefault(index, []).append((*order, other))
        ports = {}
        for index, found in orders.items():
            box = self.boxes[index]
            for i, (_, _, other) in enumerate(sorted(found)):
                ports[index, other] = box.x + box.width * (i + 1) / (len(found) + 1)
        return ports


def _with_switch(socket: Level) -> Level:
    """Return a socket whose GPUs all meet on one switch, with a level for that switch."""
    if socket.path not in ("PIX", "PXB") or not socket.is_branch:
        return socket
    return replace(socket, children=(replace(socket, kind="switch"),))


def _count_rows(found: Sequence[Card], links: _Links, sockets: Sequence[Level]) -> int:
    """Return the number of rows: two that face each other if NVLinks cross between sockets.

    A machine of many GPUs without direct NVLinks has one row for every 12 GPUs.
    """
    home = {index: i for i, socket in enumerate(sockets) for index in socket.cards}
    crossing = any(link.nvlink_count and home[a] != home[b] for (a, b), link in links.items())
    if len(found) > 16 and not any(link.kind == "nvlink" for link in links.values()):
        return -(-len(found) // 12)
    return 2 if len(found) > 8 or (crossing and len(found) > 4) else 1


def _distribute(sockets: Sequence[Level], count: int) -> list[list[Level]]:
    """Distribute the sockets evenly over at most this many rows."""
    total = sum(len(socket.cards) for socket in sockets)
    rows: list[list[Level]] = []
    for most in range(-(-total // count), total + 1):
        rows, room = [[]], most
        for socket in sockets:
            if rows[-1] and len(socket.cards) > room:
                rows.append([])
                room = most
            rows[-1].append(socket)
            room -= len(socket.cards)
        if len(rows) <= count:
            break
    return rows


def _count_bars(level: Level) -> int:
    """Return the number of bars that a level needs below its own."""
    return max((1 + _count_bars(child) for child in level.children if child.is_branch), default=0)


def _space_between(rows: Sequence[Sequence[Level]], links: _Links) -> float:
    """Return the height of the space for the NVLinks of a row and the row that faces it, if any."""
    places: dict[int, tuple[int, int]] = {}
    for row, sockets in enumerate(rows):
        indices = [index for socket in sockets for index in socket.cards]
        places |= {index: (row, place) for place, index in enumerate(indices)}
    arcs = [0.0, 0.0]  # height of the highest arc within each row
    beyond_arcs, switches = (2 * _PAD if len(rows) > 1 else _PAD), 0
    for (a, b), link in links.items():
        if link.kind == "nvswitch":
            switches = _FABRIC_BAR + _FABRIC_GAP * len(rows)
        if link.kind != "nvlink" or a not in places or b not in places:
            continue
        (row, place), (other_row, other_place) = places[a], places[b]
        if row == other_row:
            arcs[row] = max(arcs[row], _arc_height(abs(place - other_place)))
        else:
            beyond_arcs = 70
    return max(switches, sum(arcs) + beyond_arcs)


def _arc_height(places: int) -> float:
    """Return how far an arc over this many places bulges; 0 for the line between neighbours."""
    return 14.0 + 15 * min(places, 8) + 4 * max(places - 8, 0) if places > 1 else 0.0


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
    parts = machines(topology)
    links = card_links(topology).values()
    bandwidths = {link.bandwidth_gb_per_s for link in links if link.nvlink_count}
    colours: dict[float, str] = {}
    for bandwidth in sorted(bandwidths, reverse=True):
        colours[bandwidth] = _NVLINKS[min(len(colours), len(_NVLINKS) - 1)]
    width = max(560.0, *(part.width for part in _lay_out_machines(parts, 0).values()))
    width += 2 * _MARGIN + (_PAD if len(parts) > 1 else 0)
    svg = ET.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": _FONT, "role": "img"}
    )
    _add(svg, "title", title(topology))
    _add(svg, "rect", width="100%", height="100%", fill=_PAPER)
    y = 12
    for line in _paragraph(title(topology), width - 2 * _MARGIN, 18):
        y += 24
        _add_text(svg, _MARGIN, y, line, 18, text_anchor="start", font_weight="bold")
    pictures = _lay_out_machines(parts, y + 22)
    if len(parts) > 1:
        _draw_network(svg, pictures, width - _MARGIN)
    mixed = several_models(cards(topology))
    for picture in pictures.values():
        picture.draw(svg, colours)
        for box in picture.boxes.values():
            _draw_card(svg, box, states, mixed=mixed)
    end = max(picture.bottom for picture in pictures.values()) + (_PAD if len(parts) > 1 else 0)
    bottom = _draw_legend(svg, end + 34, width, _legend_rows(topology, colours, states))
    for line in _paragraph(f"Source: {printable(topology.source)}", width - 2 * _MARGIN, 9.5):
        bottom += 14
        _add_text(svg, _MARGIN, bottom, line, 9.5, text_anchor="start", fill=_PALE)
    size = _number(width), _number(bottom + 18)
    svg.attrib |= {"width": size[0], "height": size[1], "viewBox": f"0 0 {size[0]} {size[1]}"}
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _lay_out_machines(parts: Mapping[int, Topology], top: float) -> dict[int, _Machine]:
    """Return the places in the pictures of machines, by node, each below the one before it."""
    if len(parts) == 1:
        return {node: _Machine(part, top, 0) for node, part in parts.items()}
    pictures = {}
    for node, part in parts.items():
        pictures[node] = _Machine(part, top + _NODE_HEAD, _SPINE + _STUB + _PAD)
        top = pictures[node].bottom + _PAD + _NODE_GAP
    return pictures


def _draw_network(svg: ET.Element, pictures: Mapping[int, _Machine], right: float) -> None:
    """Draw a named frame for each machine, and the network's bar at their left that joins them."""
    left = _MARGIN + _SPINE + _STUB
    group = _add(svg, "g", class_="network")
    frames = {}
    for node, picture in pictures.items():
        frames[node] = picture.top - _NODE_HEAD, picture.bottom + _PAD
    ends = [end for frame in frames.values() for end in frame]
    _add_rect(group, (_MARGIN, min(ends), _MARGIN + _SPINE, max(ends)), 6, _NETWORK)
    for node, (top, bottom) in frames.items():
        own, y = _add(group, "g", class_="node"), (top + bottom) / 2
        _add_line(own, (_MARGIN + _SPINE, y, left, y), _NETWORK, 4)
        _add_rect(own, (left, top, right, bottom), 12, "none", stroke=_NETWORK, stroke_width=1.5)
        _add_text(
            own, left + _PAD, top + 20, f"node {node}", 13, text_anchor="start", font_weight="bold"
        )


def _draw_card(
    svg: ET.Element, box: _CardBox, states: Mapping[int, GpuState], *, mixed: bool
) -> None:
    """Draw the box of a card, or that of a card in MIG mode around those of its instances."""
    card, corners = box.card, (box.x, box.y, box.right, box.y + box.height)
    if not card.instances:
        state = states.get(card.gpu.index)
        group = _add_gpu(svg, corners, card.gpu, state)
        notes = [printable(state.label) or state.kind] if state else []
        notes += [printable(card.model).removeprefix("NVIDIA ")] if mixed else []
        y = box.y + box.height / 2 + 5 - 7 * len(notes)
        _add_text(group, box.middle, y, f"GPU {card.index}", 14, font_weight="bold")
        for i, note in enumerate(notes):
            _add_text(group, box.middle, y + 14 + 12 * i, _cut(note, box.width - 4, 10), 10)
        return
    group = _add(svg, "g", class_="card")
    _add(group, "title", f"GPU {card.index}: {printable(card.model)}, in MIG mode")
    _add_rect(group, corners, 8, _PAPER, stroke=_PLAIN, stroke_dasharray="5 3")
    _add_text(group, box.middle, box.y + 21, f"GPU {card.index}", 14, font_weight="bold")
    _add_text(group, box.middle, box.y + 35, "MIG", 10, fill=_PALE)
    for i, gpu in enumerate(card.instances):
        state, y = states.get(gpu.index), box.y + 44 + i * _INSTANCE
        group = _add_gpu(svg, (box.x + 5, y, box.right - 5, y + _INSTANCE - 4), gpu, state)
        note = state.label if state and state.label else gpu.mig.profile if gpu.mig else ""
        text = _cut(f"{gpu.name} {printable(note)}", box.width - 8, 9.5)
        _add_text(group, box.middle, y + 13, text, 9.5)


def _add_gpu(svg: ET.Element, corners: _Points, gpu: Gpu, state: GpuState | None) -> ET.Element:
    """Add the group and the box of a GPU, which says all about it where the pointer rests."""
    group = _add(svg, "g", class_=f"gpu {state.kind}" if state else "gpu", data_gpu=gpu.index)
    fill, stroke, meaning = _STATES[state.kind] if state else (_PAPER, _PLAIN, "")
    text = f"GPU {gpu.name}: {printable(gpu.model)}"
    text += f", {format_size(gpu.memory_bytes)}" if gpu.memory_bytes else ""
    text += f", {meaning}" if meaning else ""
    text += f" ({printable(state.label)})" if state and state.label else ""
    _add(group, "title", text)
    _add_rect(group, corners, 8 if gpu.mig is None else 4, fill, stroke=stroke, stroke_width=1.5)
    return group


def _draw_legend(
    svg: ET.Element, y: float, width: float, rows: Sequence[Sequence[_Entry]]
) -> float:
    """Draw what colours and lines mean; return where the legend ends."""
    group = _add(svg, "g", class_="legend")
    for row in rows:
        x: float = _MARGIN
        for text, stroke, thickness, fill in row:
            needed = (42 if stroke else 14) + len(text) * 6.6
            if x > _MARGIN and x + needed > width - _MARGIN:
                x, y = _MARGIN if stroke else _MARGIN + 31, y + 20
            if thickness:
                _add_line(group, (x, y - 4, x + 24, y - 4), stroke, thickness)
            elif stroke:
                _add_rect(group, (x, y - 11, x + 24, y + 3), 4, fill, stroke=stroke)
            _add_text(group, x + 31 if stroke else x, y, text, 11, text_anchor="start")
            x += needed
        y += 20 if row else 0
    return y - 6


def _legend_rows(
    topology: Topology, colours: Mapping[float, str], states: Mapping[int, GpuState]
) -> list[list[_Entry]]:
    """Return the rows of the legend: NVLinks, PCIe, network, and states of GPUs."""
    links = card_links(topology).values()
    nvlinks: list[_Entry] = []
    for name, bandwidth in link_classes([link for link in links if link.nvlink_count]):
        text = f"{name}: {bandwidth:.4g} GB/s per direction"
        nvlinks.append((text, colours[bandwidth], _nvlink_width(int(name[2:])), ""))
    for n in sorted({gpu.cpu_nvlinks for gpu in topology.gpus} - {0}):
        text = f"{n} NVLink{'' if n == 1 else 's'} to the CPU"
        nvlinks.append((text, _NVLINKS[0], _nvlink_width(n), ""))
    pcie: list[_Entry] = []  # paths that GPUs use, or could use besides their NVLinks
    network: list[_Entry] = []
    for path, meaning in MEANINGS.items():
        found = [link.pcie_gb_per_s for link in links if link.pcie_path == path]
        if not found:
            continue
        figures = dict.fromkeys(f"{figure:.3g}" for figure in (min(found), max(found)))
        text = f"{path} {' to '.join(figures)} GB/s"
        if path == NETWORK_PATH:
            network.append((f"network: {text} per direction", _NETWORK, 4.0, ""))
        elif pcie:
            pcie.append((f"{text} ({meaning})", "", 0.0, ""))
        else:
            pcie.append((f"PCIe: {text} ({meaning})", _PCIE, 2.0, ""))
    present = {state.kind for state in states.values()}
    shown = [_STATES[kind] for kind in _STATES if kind in present]
    return [nvlinks, pcie, network, [(text, stroke, 0.0, fill) for fill, stroke, text in shown]]
