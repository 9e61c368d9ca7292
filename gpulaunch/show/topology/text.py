"""Lines that show machines: the link matrix, then sockets and PCIe levels.

Rich is not used: importing it takes longer than everything else that `gpulaunch topo` does. Colour
adds to the words and never replaces them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from gpulaunch.errors import printable
from gpulaunch.files.size import format_size
from gpulaunch.machine.gpu import Gpu, format_cpuset
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.link import Link
from gpulaunch.machine.link_bandwidth import NETWORK_PATH, PathType
from gpulaunch.machine.topology import Card, Topology, card_links, cards, several_models
from gpulaunch.records import Record

_MOST_WITH_BANDWIDTH = 8  # cards whose links are shown with their bandwidth in every cell
_MOST_IN_MATRIX = 16  # cards that have a matrix at all: 100 columns
_MOST_SOCKETS = 8  # sockets with a line each
_MOST_NODES = 8  # machines whose sockets are shown

_BOLD, _DIM = "1", "2"
_SHADES = ("1;32", "32", "36", "33", "35", "31")  # fastest links first

MEANINGS: dict[PathType, str] = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "through a host bridge",
    "NODE": "between host bridges of a NUMA node",
    "SYS": "between NUMA nodes",
    "NET": "over the network",
}
_TOGETHER: dict[PathType, str] = {
    "PIX": " on one PCIe switch",
    "PXB": " below one tree of PCIe switches",
    "PHB": " on one host bridge",
    "NODE": " on host bridges of their own",
    "SYS": "",
}


def link_name(link: Link) -> str:
    """Return the name of a link: "NV2" for two NVLinks, or the PCIe path."""
    return f"NV{link.nvlink_count}" if link.nvlink_count else link.path


def link_classes(links: Collection[Link]) -> dict[tuple[str, float], int]:
    """Count the links of each name and bandwidth, the fastest first."""
    found: dict[tuple[str, float], int] = {}
    for link in links:
        key = (link_name(link), link.bandwidth_gb_per_s)
        found[key] = found.get(key, 0) + 1
    return dict(sorted(found.items(), key=lambda item: (-item[0][1], item[0][0])))


def title(topology: Topology) -> str:
    """Return a machine's name and GPUs, such as "box: 8 x Tesla V100-SXM2-16GB, 15.78 GiB"."""
    found = cards(topology)
    models = {printable(card.model) for card in found}
    sizes = {card.memory_bytes for card in found} - {0}
    split = sum(bool(card.instances) for card in found)
    what = f"{len(found)} x {models.pop()}" if len(models) == 1 else f"{len(found)} GPUs"
    size = f", {format_size(sizes.pop())}" if len(sizes) == 1 and not models else ""
    mig = f", {'' if split == len(found) else f'{split} of them '}in MIG mode" if split else ""
    nodes = len({gpu.node for gpu in topology.gpus})
    return (
        f"{printable(topology.name)}: {what}{size}{mig}{f', on {nodes} nodes' if nodes > 1 else ''}"
    )


def wrapped(text: str, width: int | None) -> list[str]:
    """Break text at blanks into lines of at most this many columns; one line if width is None."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if width is None or len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def topology_lines(topology: Topology, *, colour: bool, width: int | None = None) -> list[str]:
    """Return the link matrix as `nvidia-smi topo -m` prints it, a tree of levels, and a legend.

    For several machines the matrix says which node each GPU is in, and the tree has a part for
    each.

    Args:
        topology: the machine.
        colour: whether to mark links by their bandwidth with terminal escape codes (SGR).
        width: columns to keep to where possible; None for no limit.
    """
    pen = _Pen(colour=colour)
    found, links = cards(topology), card_links(topology)
    classes = link_classes(links.values())
    detail = _choose_detail(found, links, width)
    head = (
        _summary_lines(found, classes, pen)
        if detail == "sum"
        else _matrix_lines(found, links, pen, wide=detail == "bandwidth")
    )
    tree = _tree_lines(topology, found)
    legend = _legend_lines(classes, links.values(), in_cells=detail == "bandwidth")
    foot = [*legend, f"source: {printable(topology.source)}"]
    below = [pen(line, _DIM) for text in foot for line in wrapped(text, width)]
    return [pen(title(topology), _BOLD), *head, *([""] if tree else []), *tree, "", *below]


class _Pen(Record):
    """A pen that writes text in a colour, or without colours."""

    colour: bool

    def __call__(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code else text


def _choose_detail(
    found: Sequence[Card], links: Mapping[tuple[int, int], Link], width: int | None
) -> Literal["bandwidth", "name", "sum"]:
    """Return how much of each link can be shown."""
    if len(found) > _MOST_IN_MATRIX:
        return "sum"
    several = _several_nodes(found)

    def fits(*, wide: bool) -> bool:
        gap = 1 + wide
        cells = max((len(_format_cell(link, wide=wide)) for link in links.values()), default=1)
        columns = (
            len("GPU")
            + len(found) * (gap + cells)
            + gap
            + len("NUMA")
            + several * (gap + len("node"))
        )
        return width is None or columns <= width

    if len(found) <= _MOST_WITH_BANDWIDTH and fits(wide=True):
        return "bandwidth"
    return "sum" if several and not fits(wide=False) else "name"


def _matrix_lines(
    found: Sequence[Card], links: Mapping[tuple[int, int], Link], pen: _Pen, *, wide: bool
) -> list[str]:
    """Return a row for each card, and below it one for each of its MIG instances."""
    shades = _choose_shades(links.values())
    texts = {pair: _format_cell(link, wide=wide) for pair, link in links.items()}
    cells = max(map(len, texts.values()), default=1)
    gap = "  " if wide else " "
    mixed, several = several_models(found), _several_nodes(found)
    header = gap.join(str(card.index).ljust(cells) for card in found)
    lines = [
        pen(
            f"GPU{gap}{header}"
            f"{f'{gap}node' if several else ''}{gap}NUMA{gap + 'model' if mixed else ''}",
            _BOLD,
        )
    ]
    for card in found:
        pairs = [(min(card.index, other.index), max(card.index, other.index)) for other in found]
        row = []
        for pair in pairs:
            if pair in links:
                shade = shades[links[pair].bandwidth_gb_per_s]
                row.append(pen(texts[pair].ljust(cells), shade))
            else:
                row.append(pen("X".ljust(cells), _DIM))
        node = "?" if card.gpu.numa_node is None else str(card.gpu.numa_node)
        end = f"{node:<4}{gap}{_describe_card(card)}" if mixed else node
        home = f"{gap}{card.gpu.node:<4}" if several else ""
        lines.append(f"{card.index:>3}{gap}{gap.join(row)}{home}{gap}{end}")
        lines += [f"{gpu.name:>5} MIG {_describe_instance(gpu)}" for gpu in card.instances]
    return lines


def _several_nodes(found: Sequence[Card]) -> bool:
    return len({card.gpu.node for card in found}) > 1


def _format_cell(link: Link, *, wide: bool) -> str:
    return f"{link_name(link)} {link.bandwidth_gb_per_s:.3g}" if wide else link_name(link)


def _choose_shades(links: Collection[Link]) -> dict[float, str]:
    """Return a colour for each bandwidth."""
    bandwidths = sorted({link.bandwidth_gb_per_s for link in links}, reverse=True)
    return {bandwidth: _SHADES[min(i, len(_SHADES) - 1)] for i, bandwidth in enumerate(bandwidths)}


def _describe_card(card: Card) -> str:
    model = printable(card.model)
    return f"{model}, {format_size(card.memory_bytes)}" if card.memory_bytes else model


def _describe_instance(gpu: Gpu) -> str:
    return f"{printable(gpu.mig.profile) if gpu.mig else ''}, {format_size(gpu.memory_bytes)}"


def _summary_lines(
    found: Sequence[Card], classes: Mapping[tuple[str, float], int], pen: _Pen
) -> list[str]:
    """Return how many pairs have which link, in place of a matrix too large to read."""
    shades = {
        bandwidth: _SHADES[min(i, len(_SHADES) - 1)] for i, (_, bandwidth) in enumerate(classes)
    }
    texts = {key: pen(f"{key[0]} {key[1]:.3g} GB/s", shades[key[1]]) for key in classes}
    if len(classes) == 1:
        return [f"{len(found)} GPUs, every two of them joined by {text}" for text in texts.values()]
    pairs = sum(classes.values())
    if _several_nodes(found):
        return _nodes_summary_lines(found, classes, texts)
    return [
        f"{len(found)} GPUs; of {pairs} pairs",
        *(f"{classes[key]:>6} have {text}" for key, text in texts.items()),
    ]


def _nodes_summary_lines(
    found: Sequence[Card],
    classes: Mapping[tuple[str, float], int],
    texts: Mapping[tuple[str, float], str],
) -> list[str]:
    between = " or ".join(text for key, text in texts.items() if key[0] == NETWORK_PATH)
    inside = {key: count for key, count in classes.items() if key[0] != NETWORK_PATH}
    nodes = len({card.gpu.node for card in found})
    return [
        f"{nodes} nodes, every two of them joined by {between}",
        *([f"within nodes, of {sum(inside.values())} pairs:"] if inside else []),
        *(f"  {texts[key]} joins {count}" for key, count in inside.items()),
    ]


def _legend_lines(
    classes: Mapping[tuple[str, float], int], links: Collection[Link], *, in_cells: bool
) -> list[str]:
    """Return the meaning of the names, and the bandwidths if they are not in the matrix."""
    present = {link.path for link in links}
    meanings = [f"{path} = {text}" for path, text in MEANINGS.items() if path in present]
    meanings = ["NV# = so many NVLinks", *meanings] if "NVL" in present else meanings
    carried = ", ".join(f"{name} {bandwidth:.3g}" for name, bandwidth in classes)
    figures = "links with GB/s per direction" if in_cells else f"GB/s per direction: {carried}"
    return [f"{figures}; {', '.join(meanings)}"] if classes else []


def _tree_lines(topology: Topology, found: Sequence[Card]) -> list[str]:
    """Return the sockets and levels, and the NVLinks that join no two GPUs."""
    tree = machine_tree(topology)
    lines = _node_lines(tree.children) if tree.kind == "network" else _sockets_lines(tree)
    return [*lines, *_fabric_lines(found)]


def _node_lines(nodes: Sequence[Level]) -> Iterator[str]:
    """Yield each machine with its sockets.

    Of many machines only the numbers of GPUs are shown, and the sockets of the first.
    """
    if len(nodes) <= _MOST_NODES:
        for node in nodes:
            yield f"{node_name(node)}: {_format_gpus(node.cards)}"
            yield from (f"  {line}" for line in _sockets_lines(node))
        return
    yield from _many_nodes_lines(nodes)
    inside = _sockets_lines(nodes[0])
    if inside:
        yield f"{node_name(nodes[0])}:"
        yield from (f"  {line}" for line in inside)


def _many_nodes_lines(nodes: Sequence[Level]) -> Iterator[str]:
    sizes: dict[int, list[Level]] = {}
    for node in nodes:
        sizes.setdefault(len(node.cards), []).append(node)
    for count, members in sizes.items():
        numbers = format_cpuset(frozenset(node.node for node in members if node.node is not None))
        few = " to ".join(
            dict.fromkeys(_format_gpus(node.cards) for node in (members[0], members[-1]))
        )
        name = f"node{'s' * (len(members) > 1)} {numbers}"
        yield f"{name}: {count} GPU{'s' * (count > 1)} each ({few})"


def node_name(level: Level) -> str:
    """Return the name of one of several machines: "node 0"."""
    return f"node {level.node}"


def _sockets_lines(machine: Level) -> list[str]:
    sockets = machine.sockets
    if sockets[0].path == "SYS":  # nothing is known about the sockets
        return []
    alike = len(sockets) > _MOST_SOCKETS
    return (
        list(_alike_lines(sockets))
        if alike
        else [line for socket in sockets for line in _socket_lines(socket)]
    )


def _fabric_lines(found: Sequence[Card]) -> list[str]:
    lines = []
    for where, field in (("into NVSwitch", "nvswitch_links"), ("to its CPU", "cpu_nvlinks")):
        counts: dict[int, list[int]] = {}
        for card in found:
            counts.setdefault(getattr(card.gpu, field), []).append(card.index)
        for count, indices in counts.items():
            if count:
                whose = "each GPU" if len(counts) == 1 else _format_gpus(indices)
                lines.append(f"{whose}: {count} NVLink{'s' * (count > 1)} {where}")
    return lines


def _format_gpus(indices: Sequence[int]) -> str:
    text = (
        format_cpuset(frozenset(indices))
        if len(indices) > 2
        else ",".join(map(str, sorted(indices)))
    )
    return f"GPU{'s' * (len(indices) > 1)} {text}"


def _socket_lines(socket: Level) -> list[str]:
    name = socket_name(socket)
    if any(child.is_branch for child in socket.children):
        return [name, *_branch_lines(socket)]
    return [f"{name}: {_format_gpus(socket.cards)}{_describe_meeting(socket)}"]


def socket_name(level: Level) -> str:
    """Return a socket's name, such as "NUMA 0 (CPUs 0-19,40-59)", or "socket" if unknown."""
    cpus = format_cpuset(level.cpuset)
    name = "socket" if level.numa_node is None else f"NUMA {level.numa_node}"
    return f"{name} (CPUs {cpus})" if cpus else name


def _branch_lines(level: Level) -> Iterator[str]:
    """Yield the levels below a level, drawn as a tree."""
    for i, child in enumerate(level.children):
        last = i == len(level.children) - 1
        text = _format_gpus(child.cards)
        yield f"{'└─' if last else '├─'} {f'{child.kind}: {text}' if child.is_branch else text}"
        if any(below.is_branch for below in child.children):
            yield from (f"{'  ' if last else '│ '} {line}" for line in _branch_lines(child))


def _describe_meeting(level: Level) -> str:
    return _TOGETHER[level.path] if level.is_branch else ""


def _alike_lines(sockets: Sequence[Level]) -> Iterator[str]:
    """Yield one line for all sockets with equal numbers of GPUs and equal levels."""
    alike: dict[tuple[int, str], list[Level]] = {}
    for socket in sockets:
        alike.setdefault((len(socket.cards), _describe_meeting(socket)), []).append(socket)
    for (count, together), members in alike.items():
        nodes = [member.numa_node for member in members if member.numa_node is not None]
        name = (
            f"NUMA {format_cpuset(frozenset(nodes))}"
            if len(nodes) == len(members)
            else f"{len(members)} sockets"
        )
        first, last = (_format_gpus(member.cards) for member in (members[0], members[-1]))
        few = f"{first} to {last}" if len(members) > 1 else first
        yield f"{name}: {count} GPU{'s' * (count > 1)} each{together} ({few})"
