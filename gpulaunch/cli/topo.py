"""`gpulaunch topo`: print, draw, export or measure the GPUs and their links."""

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, warn
from gpulaunch.errors import UsageError, printable
from gpulaunch.files.units import format_size
from gpulaunch.files.write import document_text, write_text
from gpulaunch.launch.surroundings import read_shown, shown_machine
from gpulaunch.machine.catalog import load_text_machine
from gpulaunch.machine.gpu import Gpu, format_cpuset
from gpulaunch.machine.levels import Level, machine_tree
from gpulaunch.machine.link import Link, PathType
from gpulaunch.machine.topology import Card, Topology, card_links, cards, machines, several_models
from gpulaunch.records import as_dict
from gpulaunch.show import Document


def main(arguments: Sequence[str]) -> int:
    """Show one machine."""
    options = make_parser().parse_args(arguments)
    _check_options(options.__dict__)
    if options.measure:
        from gpulaunch.cli.topo_measure import measure_links  # late: it needs NVML's package

        return measure_links(options.output, as_json=options.json)
    if options.dot is not None and options.text is None:
        return _write_used_machine(options.topology, options.dot)
    topology = _find_machine(options.topology, options.text, options.output, options.gpu_model)
    if options.dot is not None:
        write_text(options.dot, topology_dot(topology))
    elif options.json:
        print_json(topology_document(topology))
    elif options.output or options.text:
        _write_machine(topology, options.output)
    else:
        _print_topology(topology)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch topo", "The GPUs of a machine and how they are linked.")
    add_topology(parser)
    parser.add_argument(
        "--import",
        metavar="FILE",
        dest="text",
        help="the machine of this nvidia-smi topo -m text ('-': of stdin)",
    )
    parser.add_argument(
        "--gpu-model",
        metavar="NAME",
        help="with --import: model of GPUs that the text does not name",
    )
    add_json(parser)
    parser.add_argument(
        "--dot", metavar="FILE", help="write a graph for Graphviz, with what is leased in colour"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write a machine file, to try it elsewhere with --topology",
    )
    parser.add_argument(
        "--measure", action="store_true", help="measure what idle GPUs' links carry (takes minutes)"
    )
    return parser


def _check_options(given: dict[str, object]) -> None:
    """Check that at most one form of output and one machine are given.

    Raises:
        UsageError: there are several.
    """
    forms = [
        f"--{name.replace('_', '-')}"
        for name in ("json", "dot", "measure")
        if given[name] not in (None, False)
    ]
    if "--measure" in forms and "--json" in forms:
        forms.remove("--json")
    if given["output"] is not None and forms != ["--measure"]:
        forms.append("-o")
    for name in ("output", "dot", "text", "gpu_model"):
        if given[name] == "":
            shown = "import" if name == "text" else name.replace("_", "-")
            raise UsageError(f"--{shown} has an empty value")
    if len(forms) > 1:
        raise UsageError(f"{' and '.join(forms)} are given: one of them is enough")
    if given["text"] is not None and given["topology"] is not None:
        raise UsageError("--import and --topology are given: each names the machine")
    if given["gpu_model"] is not None and given["text"] is None:
        raise UsageError("--gpu-model goes with --import")
    if given["measure"] and (given["text"] is not None or given["topology"] is not None):
        raise UsageError("--measure is about this machine, but another one is named")


def _write_used_machine(name: str | None, path: str) -> int:
    """Write the graph of the machine, with the users of its GPUs."""
    from gpulaunch.process.system import user_name
    from gpulaunch.show.status import status_document

    shown, table = read_shown(name, warn)
    machine = shown.machine
    seen = table.peek(problems=[]).of(machine)
    document = status_document(
        machine.topology, seen.leases, machine.outside, user_name, drained=seen.drained
    )
    users = {lease["id"]: lease["user"] for lease in document["leases"]}
    states = {}
    for gpu in document["gpus"]:
        names = dict.fromkeys(users[lease] for lease in gpu["leases"])
        states[gpu["index"]] = (gpu["state"], ", ".join(names))
    write_text(path, topology_dot(machine.topology, states))
    return 0


def _find_machine(
    name: str | None, text: str | None, output: str | None, gpu_model: str | None
) -> Topology:
    if text is None:
        return shown_machine(name, warn).topology
    if text != "-":
        return load_text_machine(text, gpu_model=gpu_model)
    return load_text_machine("/dev/stdin", None if output == "-" else output, gpu_model)


def _write_machine(topology: Topology, path: str | None) -> None:
    from gpulaunch.machine.write_description import machine_document

    write_text(path or "-", document_text(machine_document(topology)))


def _print_topology(topology: Topology) -> None:
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal else None
    colour = on_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    print("\n".join(topology_lines(topology, colour=colour, width=width)))


def topology_document(topology: Topology) -> Document:
    """Return the document that `gpulaunch topo --json` prints."""
    return {
        "name": topology.name,
        "source": topology.source,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "memory_bytes": gpu.memory_bytes or None,
                "numa_node": gpu.numa_node,
                "node": gpu.node,
                "cpuset": format_cpuset(gpu.cpuset),
                "host_gb_per_s": gpu.host_gb_per_s or None,
                "compute_capability": gpu.compute_capability,
                "pci_address": gpu.pci_address,
                "pcie_generation": gpu.pcie_generation or None,
                "pcie_width": gpu.pcie_width or None,
                "nvlink_version": gpu.nvlink_version or None,
                "nvlinks_to_switch": gpu.nvswitch_links,
                "nvlinks_to_cpu": gpu.cpu_nvlinks,
                "mig": as_dict(gpu.mig) if gpu.mig else None,
            }
            for gpu in topology.gpus
        ],
        "links": [
            {
                "a": link.a,
                "b": link.b,
                "path": link.path,
                "nvlink_count": link.nvlink_count,
                "bandwidth_gb_per_s": link.bandwidth_gb_per_s,
                "kind": link.kind,
                "nvlink_planned_gb_per_s": link.nvlink_planned_gb_per_s or None,
                "pcie_path": link.pcie_path,
                "pcie_bandwidth_gb_per_s": link.pcie_gb_per_s,
                "peer_to_peer": link.peer_to_peer,
            }
            for link in topology.links
        ],
    }


_STATES = {  # fill colour and meaning
    "free": ("#e3f4e6", "free"),
    "leased": ("#dbe8fd", "leased"),
    "shared": ("#ece3f8", "leased and shared"),
    "outside": ("#fde4e1", "in use outside gpulaunch"),
    "drained": ("#e6e8eb", "drained"),
    "barred": ("#fbe3b8", "barred by a fault"),
}


def topology_dot(topology: Topology, states: Mapping[int, tuple[str, str]] | None = None) -> str:
    """Return the machine as a graph in the language of Graphviz, with a cluster for each socket.

    Args:
        topology: the machine.
        states: by the index of a GPU, its state in `gpulaunch status --json` and its users.
    """
    states = states or {}
    by_index = {gpu.index: gpu for gpu in topology.gpus}
    lines = [
        f"graph {_quoted(topology.name)} {{",
        f"  label={_quoted(title(topology))}",
        "  layout=fdp; K=3",  # of Graphviz's layouts the one for clusters that all are linked
        '  node [shape=box, style="rounded,filled", fillcolor=white]',
    ]
    for number, socket in enumerate(machine_tree(topology).sockets):
        name = "" if socket.path == "SYS" else socket_name(socket)
        node = f"node {socket.node}" if len(machines(topology)) > 1 else ""
        label = ", ".join(filter(None, (node, name)))
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(label)}"]
        for index in socket.gpus:
            gpu = by_index[index]
            words = [f"GPU {gpu.name}", gpu.model]
            if gpu.numa_node is not None:
                words.append(f"NUMA {gpu.numa_node}")
            colour = ""
            if index in states:
                state, users = states[index]
                fill, meaning = _STATES[state]
                words.append(f"{meaning}: {users}" if users else meaning)
                colour = f', fillcolor="{fill}"'
            lines.append(f"    {index} [label={_quoted(*words)}{colour}]")
        lines.append("  }")
    for link in topology.links:
        label = _quoted(link_name(link), f"{link.bandwidth_gb_per_s:.4g} GB/s")
        style = "color=gray"
        if link.nvlink_count:
            style = f"color=darkgreen, penwidth={min(link.nvlink_count, 4)}"
        lines.append(f"  {link.a} -- {link.b} [label={label}, {style}]")
    return "\n".join([*lines, "}\n"])


def _quoted(*lines: str) -> str:
    """Return lines of text as one string of Graphviz, in which a backslash begins an escape."""
    escaped = [printable(line).replace("\\", r"\\").replace('"', r"\"") for line in lines]
    return '"' + r"\n".join(escaped) + '"'


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
