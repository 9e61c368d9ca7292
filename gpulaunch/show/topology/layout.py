"""The layout of a picture of machines: rows of GPUs that face each other, sockets outside.

NVLinks have the space between two rows that face each other, PCIe the other sides, so neither
crosses a GPU.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpulaunch.machine.cards import Card, card_links, cards, several_models
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.link import Link
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record, replace
from gpulaunch.show.topology.text import socket_name

MARGIN = 28
PAD = 14  # of a socket's panel
SOCKET_BAR, LEVEL_BAR, _BAR_GAP = 24, 16, 14
FABRIC_BAR, _FABRIC_GAP = 30, 44
CELL = 22  # height of a MIG instance
SPINE = 16
NODE_HEAD, NODE_GAP = 30, 24  # above and below each of several machines
STUB = 20  # from the network to a machine
_CHARACTER = 0.62  # width of a letter, as a share of the font's size


class _Size(Record):
    """Sizes of the boxes, which are smaller on a big machine."""

    width: float
    height: float
    gap: float
    socket_gap: float


class Box(Record):
    """A card's place: its row, its place in the row, and its upper left corner."""

    card: Card
    row: int
    place: int
    x: float
    y: float
    width: float
    height: float

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


Curve = tuple[tuple[float, float], ...]
"""Points: both ends of a straight line, or the four of a cubic Bezier curve."""


class Picture(Record):
    """Everything that has a place in the picture of a machine.

    Attributes:
        rows: sockets in each row of GPUs; rows 0 and 1 face each other, as do 2 and 3.
        boxes: boxes by index of the card.
        depth: most bars one above the other between a socket's bar and its GPUs.
        width: width of all rows.
        bottom: lower end of the lowest row.
        short: whether the CPUs of some socket have no room beside its name.
        fabric: beginning of the bar of NVSwitches beside each row.
    """

    rows: list[list[Level]]
    boxes: dict[int, Box]
    depth: int
    width: float
    bottom: float
    short: bool
    fabric: list[float]


def laid_out(
    topology: Topology,
    found: Sequence[Card],
    links: Mapping[tuple[int, int], Link],
    top: float = 0.0,
    shift: float = 0.0,
) -> Picture:
    """Return the places of everything in the picture of a machine.

    Args:
        topology: the machine.
        found: its cards.
        links: links of every two cards, the lower index first.
        top: y of the uppermost row.
        shift: space between the left margin and everything else.
    """
    sockets = machine_tree(topology).sockets
    rows = _distribute(sockets, _count_rows(found, links, sockets))
    depth = max(_count_bars(socket) for socket in sockets)
    size = (
        _Size(72, 40, 10, 16)
        if len(found) > 16
        else _Size(98, 64 if several_models(found) else 50, 26, 30)
    )
    tall = size.height + max(
        (14 + CELL * len(card.instances) for card in found if card.instances), default=0
    )
    left: float = MARGIN + shift + (SPINE + 12 if len(rows) > 2 else 0)
    above = PAD + SOCKET_BAR + depth * (LEVEL_BAR + _BAR_GAP) + _BAR_GAP + 4
    boxes: dict[int, Box] = {}
    fabric: list[float] = []
    y, width = top, 0.0
    by_card = {card.index: card for card in found}
    for row, members in enumerate(rows):
        y += 0 if row % 2 else above
        x, place = left, 0
        for socket in members:
            x += PAD
            for index in socket.cards:
                boxes[index] = Box(by_card[index], row, place, x, y, size.width, tall)
                x += size.width + size.gap
                place += 1
            x += PAD - size.gap + size.socket_gap
        width = max(width, x - size.socket_gap - MARGIN)
        between = 0.0 if row % 2 else _height_between(rows, row, links)
        fabric.append(
            fabric[-1] if row % 2 else _fabric_top(y + tall, between, faces=row + 1 < len(rows))
        )
        y += tall + (above + 26 if row % 2 else between)
    last_faces = len(rows) % 2 == 0
    spans = ((part, span(part, boxes)) for row in rows for part in row)
    short = any(not fits(socket_name(part), right - left, 11) for part, (left, right) in spans)
    return Picture(rows, boxes, depth, width, y - (26 if last_faces else 0), short, fabric)


def laid_out_machines(parts: Mapping[int, Topology], top: float = 0.0) -> dict[int, Picture]:
    """Return the places in the pictures of machines, by node, each below the one before it.

    Several machines have the network at their left.
    """
    several = len(parts) > 1
    pictures: dict[int, Picture] = {}
    for node, part in parts.items():
        begin = top + (NODE_HEAD if several else 0)
        shift = SPINE + STUB + PAD if several else 0
        pictures[node] = laid_out(part, cards(part), card_links(part), begin, shift)
        top = pictures[node].bottom + PAD + NODE_GAP
    return pictures


def _fabric_top(y: float, between: float, *, faces: bool) -> float:
    """Return where the bar of NVSwitches begins: halfway to a facing row, else near."""
    return y + (between - FABRIC_BAR) / 2 if faces else y + _FABRIC_GAP


def span(level: Level, boxes: Mapping[int, Box]) -> tuple[float, float]:
    """Return where the boxes below a level begin and end."""
    last = boxes[level.cards[-1]]
    return boxes[level.cards[0]].x, last.x + last.width


def _count_rows(
    found: Sequence[Card], links: Mapping[tuple[int, int], Link], sockets: Sequence[Level]
) -> int:
    """Return the number of rows: two that face each other if NVLinks cross between sockets.

    A machine of many GPUs without direct NVLinks has one row for every 12 GPUs.
    """
    home = {index: i for i, socket in enumerate(sockets) for index in socket.cards}
    crossing = any(link.nvlink_count and home[a] != home[b] for (a, b), link in links.items())
    if len(found) > 16 and not any(link.kind == "nvlink" for link in links.values()):
        return -(-len(found) // 12)
    return 2 if len(found) > 8 or (crossing and len(found) > 4) else 1


def _distribute(sockets: Sequence[Level], count: int) -> list[list[Level]]:
    """Distribute the sockets evenly over at most this many rows.

    A socket that is too long for a row continues in the next.
    """
    gpus = sum(len(socket.cards) for socket in sockets)
    tries = (_fill_rows(sockets, most) for most in range(-(-gpus // count), gpus + 1))
    return next(rows for rows in tries if len(rows) <= count)


def _fill_rows(sockets: Sequence[Level], most: int) -> list[list[Level]]:
    """Distribute the sockets over rows of at most this many GPUs."""
    rows: list[list[Level]] = [[]]
    room = most
    for part in (part for socket in sockets for part in _split_socket(socket, most)):
        size = len(part.cards)
        if rows[-1] and size > room:
            rows.append([])
            room = most
        rows[-1].append(part)
        room -= size
    return rows


def _split_socket(socket: Level, most: int) -> Iterator[Level]:
    """Yield the parts of a socket that rows can hold, cut between its children."""
    if not socket.is_branch:
        yield socket
        return
    children: list[Level] = []
    for child in socket.children:
        if children and sum(len(one.cards) for one in (*children, child)) > most:
            yield _with_children(socket, children)
            children = []
        children.append(child)
    yield _with_children(socket, children)


def _with_children(level: Level, children: Sequence[Level]) -> Level:
    return replace(
        level,
        gpus=tuple(index for child in children for index in child.gpus),
        cards=tuple(index for child in children for index in child.cards),
        children=tuple(children),
    )


def _count_bars(socket: Level) -> int:
    """Return the number of bars that a socket needs besides its own."""
    deepest = max(
        (1 + _count_bars(child) for child in socket.children if child.is_branch), default=0
    )
    return deepest + hides_switch(socket)


def hides_switch(level: Level) -> bool:
    """Return whether all GPUs of a socket are on one switch, which has no level of its own."""
    return level.kind in ("socket", "machine") and level.path in ("PIX", "PXB") and level.is_branch


def _height_between(
    rows: Sequence[Sequence[Level]], row: int, links: Mapping[tuple[int, int], Link]
) -> float:
    """Return the height of the space for the NVLinks of a row and the row that faces it, if any."""
    joined = [(pair, link.kind) for pair, link in links.items() if link.nvlink_count]
    places = []  # of the cards in each row
    arcs = []  # height of the highest arc within each row
    for sockets in rows[row : row + 2]:
        cards_of_row = [index for socket in sockets for index in socket.cards]
        at = {index: place for place, index in enumerate(cards_of_row)}
        highest = 0.0
        for (a, b), kind in joined:
            if kind == "nvlink" and a in at and b in at:
                highest = max(highest, _arc_height(abs(at[a] - at[b])))
        places.append(at)
        arcs.append(highest)
    crossing = any((a in places[0]) != (b in places[0]) for (a, b), _ in joined)
    fabric = (
        FABRIC_BAR + _FABRIC_GAP * len(places)
        if any(kind == "nvswitch" for _, kind in joined)
        else 0
    )
    beyond_arcs = 70 if crossing else 2 * PAD
    if len(places) == 1:
        beyond_arcs = PAD
    return max(fabric, sum(arcs) + beyond_arcs)


def _arc_height(places: int) -> float:
    """Return how far an arc over this many places bulges; 0 for the line between neighbours."""
    return 14.0 + 15 * min(places, 8) + 4 * max(places - 8, 0) if places > 1 else 0.0


def offset(depth: int, level: int) -> float:
    """Return the distance from the boxes' outer edge to a bar; level 0 is the socket's bar."""
    return _BAR_GAP + 4 + (depth - level) * (LEVEL_BAR + _BAR_GAP)


def fits(text: str, width: float, size: float) -> bool:
    """Return whether a text fits, as far as one can tell without the font."""
    return len(text) * size * _CHARACTER <= width


def shortened(text: str, most: int) -> str:
    """Return a text cut to this many characters, with an ellipsis for the rest."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def cut(text: str, width: float, size: float) -> str:
    """Return as much of a text as fits."""
    return shortened(text, max(int(width / (size * _CHARACTER)), 1))


def nvlink_curves(
    picture: Picture, pairs: Collection[tuple[int, int]]
) -> dict[tuple[int, int], Curve]:
    """Return the line of each pair of cards: straight between neighbours, else where no PCIe is."""
    boxes = picture.boxes
    near = {
        (a, b): _straight_line(boxes[a], boxes[b])
        for a, b in pairs
        if _are_neighbours(boxes[a], boxes[b])
    }
    far = [pair for pair in pairs if pair not in near]
    ports = _place_ports(picture, far)
    return near | {(a, b): _bent_line(boxes[a], boxes[b], ports[a, b], ports[b, a]) for a, b in far}


def _are_neighbours(one: Box, other: Box) -> bool:
    return one.row == other.row and abs(one.place - other.place) == 1


def _place_ports(
    picture: Picture, pairs: Collection[tuple[int, int]]
) -> dict[tuple[int, int], float]:
    """Return where curves begin on the edges of boxes, so that those of one box do not cross."""
    targets: dict[int, list[int]] = {}
    for a, b in pairs:
        targets.setdefault(a, []).append(b)
        targets.setdefault(b, []).append(a)
    ports = {}
    for index, others in targets.items():
        box = picture.boxes[index]
        ordered = sorted(others, key=lambda other: _port_order(box, picture.boxes[other]))
        for i, other in enumerate(ordered):
            ports[index, other] = box.x + box.width * (i + 1) / (len(ordered) + 1)
    return ports


def _port_order(box: Box, other: Box) -> tuple[int, float]:
    """Return the order of a curve among those of its box, from left to right.

    Arcs to the left come first, the longest last; then crossing lines; then arcs to the right, the
    longest first.
    """
    if box.row != other.row:
        return 1, other.middle
    return (0, -other.middle) if other.middle < box.middle else (2, -other.middle)


def _straight_line(one: Box, other: Box) -> Curve:
    left, right = sorted((one, other), key=lambda box: box.x)
    y = left.y + left.height / 2
    return (left.x + left.width, y), (right.x, y)


def _bent_line(one: Box, other: Box, start: float, end: float) -> Curve:
    if one.row == other.row:
        inward = -1 if one.row % 2 else 1
        bulge = one.inner + inward * _arc_height(abs(one.place - other.place)) / 0.75
    else:
        bulge = (one.inner + other.inner) / 2
    return (start, one.inner), (start, bulge), (end, bulge), (end, other.inner)
