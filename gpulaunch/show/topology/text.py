"""Lines that show machines: the link matrix, then sockets and PCIe levels.

Rich is not used: importing it takes longer than everything else that `gpulaunch topo` does. Colour
adds to the words and never replaces them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from gpulaunch.errors import printable
from gpulaunch.files.units import format_size
from gpulaunch.machine.gpu import Gpu, format_cpuset
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.link import Link, PathType
from gpulaunch.machine.topology import Card, Topology, card_links, cards, several_models

_Pen = Callable[[str, str], str]  # writes a text with an SGR code, or without

_MOST_WITH_BANDWIDTH = 8  # cards whose links are shown with their bandwidth in every cell
_MOST_IN_MATRIX = 16  # cards that have a matrix at all: 100 columns
_MOST_SOCKETS = 8  # sockets with a line each

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

    For several machines, which are alike, the matrix says which node each GPU is in, and the tree
    is that of the first.

    Args:
        topology: the machine.
        colour: whether to mark links by their bandwidth with terminal escape codes (SGR).
        width: columns to keep to where possible; None for no limit.
    """
    pen = _mark if colour else _plain
    found, links = cards(topology), card_links(topology)
    classes = link_classes(links.values())
    head, in_cells = _summary_lines(found, classes, pen), False
    for wide, most in ((False, _MOST_IN_MATRIX), (True, _MOST_WITH_BANDWIDTH)):
        if len(found) <= most:
            columns = len(_matrix_lines(found, links, classes, _plain, wide=wide)[0])
            if width is None or columns <= width:
                head, in_cells = _matrix_lines(found, links, classes, pen, wide=wide), wide
    tree = [*_tree_lines(topology), *_fabric_lines(found)]
    legend = _legend_lines(classes, links.values(), in_cells=in_cells)
    foot = [*legend, f"source: {printable(topology.source)}"]
    below = [pen(line, _DIM) for text in foot for line in wrapped(text, width)]
    return [pen(title(topology), _BOLD), *head, *([""] if tree else []), *tree, "", *below]


def _mark(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _plain(text: str, _code: str) -> str:
    return text


def _matrix_lines(
    found: Sequence[Card],
    links: Mapping[tuple[int, int], Link],
    classes: Mapping[tuple[str, float], int],
    pen: _Pen,
    *,
    wide: bool,
) -> list[str]:
    """Return a row for each card, and below it one for each of its MIG instances."""
    shades = _choose_shades(classes)
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


def _choose_shades(classes: Mapping[tuple[str, float], int]) -> dict[float, str]:
    """Return a colour for each bandwidth."""
    bandwidths = dict.fromkeys(bandwidth for _, bandwidth in classes)
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
    shades = _choose_shades(classes)
    texts = {key: pen(f"{key[0]} {key[1]:.3g} GB/s", shades[key[1]]) for key in classes}
    if len(classes) == 1:
        return [f"{len(found)} GPUs, every two of them joined by {text}" for text in texts.values()]
    pairs = sum(classes.values())
    return [
        f"{len(found)} GPUs; of {pairs} pairs",
        *(f"{classes[key]:>6} have {text}" for key, text in texts.items()),
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


def _tree_lines(topology: Topology) -> list[str]:
    """Return the sockets and levels of a machine, or of the first of several."""
    tree = machine_tree(topology)
    if tree.kind != "network":
        return _sockets_lines(tree)
    first = tree.children[0]
    name = f"node {first.node}, the first of {len(tree.children)}: {_format_gpus(first.cards)}"
    return [name, *(f"  {line}" for line in _sockets_lines(first))]


def _sockets_lines(machine: Level) -> list[str]:
    sockets = machine.sockets
    if sockets[0].path == "SYS":  # nothing is known about the sockets
        return []
    if len(sockets) > _MOST_SOCKETS:
        return [f"the first of {len(sockets)} sockets:", *_socket_lines(sockets[0])]
    return [line for socket in sockets for line in _socket_lines(socket)]


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
    together = _TOGETHER[socket.path] if socket.is_branch else ""
    return [f"{name}: {_format_gpus(socket.cards)}{together}"]


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
