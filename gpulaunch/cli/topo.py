"""`gpulaunch topo`: print, write down or measure the GPUs and their links.

Colour adds to the words and never replaces them.
"""

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import Document, print_json, rounded, say, warn
from gpulaunch.cli.screen import Grid, Parts, Text, draw, figure
from gpulaunch.errors import UsageError, printable
from gpulaunch.files.document import make_own, read_document
from gpulaunch.files.units import format_size
from gpulaunch.files.write import check_writable, document_text, write_text
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.machine.catalog import own_machine_file
from gpulaunch.machine.gpu import format_cpuset
from gpulaunch.machine.link import Link, PathType
from gpulaunch.machine.topology import Card, Topology, card_links, cards, several_models
from gpulaunch.machine.write_description import machine_document
from gpulaunch.process.job import end_by
from gpulaunch.process.libc import ENDING_SIGNALS
from gpulaunch.records import as_dict

_Classes = Mapping[tuple[str, float], int]  # (name, GB/s) of a link -> number of such links

_MOST_IN_MATRIX = 16  # cards that have a matrix at all: 100 columns
_MOST_SOCKETS = 8  # those with a line each

_SHADES = ("bold green", "green", "cyan", "yellow", "magenta", "red")  # fastest links first

_MEANINGS: dict[PathType, str] = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "through a host bridge",
    "NODE": "between host bridges of a NUMA node",
    "SYS": "between NUMA nodes",
}


def main(arguments: Sequence[str]) -> int:
    """Show one machine."""
    options = make_parser().parse_args(arguments)
    if options.json and options.output is not None and not options.measure:
        raise UsageError("--json and -o are given: one of them is enough")
    if options.measure:
        return _measure_links(options.output, as_json=options.json)
    topology = shown_machine(options.topology, warn).topology
    if options.json:
        print_json(topology_document(topology))
    elif options.output is not None:
        write_text(options.output, document_text(machine_document(topology)))
    else:
        on_terminal = sys.stdout is not None and sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if on_terminal else None
        draw(Parts(*topology_lines(topology, width)), sys.stdout)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch topo", "The GPUs of a machine and how they are linked.")
    machine = parser.add_mutually_exclusive_group()
    add_topology(machine)
    machine.add_argument(
        "--measure", action="store_true", help="measure what idle GPUs' links carry (takes minutes)"
    )
    add_json(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write a machine file, to try it elsewhere with --topology",
    )
    return parser


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
                "node": 0,
                "cpuset": format_cpuset(gpu.cpuset),
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


def topology_lines(topology: Topology, width: int | None = None) -> list[Text]:
    """Return the link matrix as `nvidia-smi topo -m` prints it, the sockets, and a legend.

    `width` is the columns that a matrix has to fit into; None for no limit.
    """
    found, links = cards(topology), card_links(topology)
    counts = Counter((_link_name(link), link.bandwidth_gb_per_s) for link in links.values())
    classes = dict(sorted(counts.items(), key=lambda item: (-item[0][1], item[0][0])))
    shades: dict[float, str] = {}
    for _, bandwidth in classes:
        shades.setdefault(bandwidth, _SHADES[min(len(shades), len(_SHADES) - 1)])
    head = _summary_lines(len(found), classes, shades)
    if len(found) <= _MOST_IN_MATRIX:
        matrix = _matrix_lines(found, links, shades)
        if width is None or matrix[0].cell_len <= width:
            head = matrix
    lines = [Text(_title(topology), "bold"), *head]
    if sockets := _socket_lines(found):
        lines += [Text(), *map(Text, sockets)]
    lines.append(Text())
    if classes:
        paths = {link.path for link in links.values()}
        lines.append(Text(_legend(classes, paths), "dim"))
    return [*lines, Text(f"source: {printable(topology.source)}", "dim")]


def _link_name(link: Link) -> str:
    """Return the name of a link: "NV2" for two NVLinks, or the PCIe path."""
    return f"NV{link.nvlink_count}" if link.nvlink_count else link.path


def _title(topology: Topology) -> str:
    """Return a machine's name and GPUs, such as "box: 8 x Tesla V100-SXM2-16GB, 15.78 GiB"."""
    found = cards(topology)
    what = f"{len(found)} GPUs"
    if not several_models(found):
        what = f"{len(found)} x {printable(found[0].model)}"
        sizes = {card.memory_bytes for card in found} - {0}
        if len(sizes) == 1:
            what += f", {format_size(sizes.pop())}"
    split = sum(bool(card.instances) for card in found)
    if split:
        what += f", {'' if split == len(found) else f'{split} of them '}in MIG mode"
    return f"{printable(topology.name)}: {what}"


def _matrix_lines(
    found: Sequence[Card], links: Mapping[tuple[int, int], Link], shades: Mapping[float, str]
) -> list[Text]:
    """Return a row for each card, and below it one for each of its MIG instances."""
    texts = {pair: _link_name(link) for pair, link in links.items()}
    cells = max(map(len, texts.values()), default=1)
    mixed = several_models(found)
    head = ["GPU", *(str(card.index).ljust(cells) for card in found)]
    head += ["NUMA"] + ["model"] * mixed
    lines = [Text(" ".join(head), "bold")]
    for card in found:
        row = Text(f"{card.index:>3}")
        for other in found:
            pair = min(card.index, other.index), max(card.index, other.index)
            shade = shades[links[pair].bandwidth_gb_per_s] if pair in links else "dim"
            row.append(" ").append(texts.get(pair, "X").ljust(cells), shade)
        numa = "?" if card.gpu.numa_node is None else str(card.gpu.numa_node)
        if mixed:
            size = f", {format_size(card.memory_bytes)}" if card.memory_bytes else ""
            numa = f"{numa:<4} {printable(card.model)}{size}"
        lines.append(row.append(f" {numa}"))
        for gpu in card.instances:
            profile = printable(gpu.mig.profile) if gpu.mig else ""
            lines.append(Text(f"{gpu.name:>5} MIG {profile}, {format_size(gpu.memory_bytes)}"))
    return lines


def _summary_lines(count: int, classes: _Classes, shades: Mapping[float, str]) -> list[Text]:
    """Return how many pairs have which link, in place of a matrix too large to read."""
    lines = [Text(f"{count} GPUs; of {sum(classes.values())} pairs")]
    for (name, bandwidth), pairs in classes.items():
        text, shade = f"{name} {bandwidth:.3g} GB/s", shades[bandwidth]
        if len(classes) == 1:
            return [Text(f"{count} GPUs, every two of them joined by ").append(text, shade)]
        lines.append(Text(f"{pairs:>6} have ").append(text, shade))
    return lines


def _legend(classes: _Classes, paths: set[PathType]) -> str:
    """Return the bandwidth of each kind of link, and the meaning of the names."""
    carried = ", ".join(f"{name} {bandwidth:.3g}" for name, bandwidth in classes)
    meanings = ["NV# = so many NVLinks"] if "NVL" in paths else []
    meanings += [f"{path} = {text}" for path, text in _MEANINGS.items() if path in paths]
    return f"GB/s per direction: {carried}; {', '.join(meanings)}"


def _socket_lines(found: Sequence[Card]) -> list[str]:
    """Return which GPUs are on which socket, such as "NUMA 0 (CPUs 0-19,40-59): GPUs 0-3"."""
    sockets: dict[str, list[int]] = {}
    for card in found:
        gpu = card.gpu
        name = "socket" if gpu.numa_node is None else f"NUMA {gpu.numa_node}"
        cpus = format_cpuset(gpu.cpuset)
        if cpus or gpu.numa_node is not None:
            name += f" (CPUs {cpus})" if cpus else ""
            sockets.setdefault(name, []).append(card.index)
    lines = [f"{name}: {_gpus_text(indices)}" for name, indices in sockets.items()]
    if len(lines) > _MOST_SOCKETS:
        return [*lines[:_MOST_SOCKETS], f"and {len(lines) - _MOST_SOCKETS} more sockets"]
    return lines


def _gpus_text(indices: Sequence[int]) -> str:
    if len(indices) > 2:
        return f"GPUs {format_cpuset(frozenset(indices))}"
    return f"GPU{'s' * (len(indices) > 1)} {','.join(map(str, sorted(indices)))}"


def _measure_links(path: str | None, *, as_json: bool) -> int:
    """Measure this machine, write its machine file, and print every figure beside the models.

    Without a path the file is this user's own of this machine.
    """
    from gpulaunch.lab.measure import links  # late: with the Python API

    file = path or own_machine_file(os.uname().nodename)
    if path is None:
        make_own(os.path.dirname(file))
    check_writable(file)
    if path is None and os.path.exists(file) and "measurement" not in read_document(file).data:
        raise UsageError(
            f"{file} describes this machine, and measuring would replace it",
            "-o names another file",
        )
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        topology, figures = links.measure(warn, _tell)
    # By now the benchmark is ended, the lease released, and nothing is written.
    except KeyboardInterrupt as interruption:
        end_by(interruption.args[0])
        raise
    write_text(file, document_text(links.measured_document(topology, figures)))
    errors = links.model_errors(figures)
    if not as_json:
        columns = ("measured", "cut", "Eq. 2")
        table = Grid("GPUs", *columns, "links of its best ring", right=columns)
        for one in figures:
            shown = (one.all_reduce_gb_per_s, one.cut_gb_per_s, one.mapa_gb_per_s)
            gpus = ",".join(map(str, one.gpus))
            table.add_row(gpus, *map(figure, shown), links.ring_text(one.ring))
        difference = f"cut {errors['cut']:.3g}, Eq. 2 as published {errors['mapa']:.3g}"
        line = f"all-reduce bus bandwidth, GB/s; root mean square difference: {difference}"
        draw(Parts(table, Text(line, "dim")), sys.stdout)
        print(f"written to {file}; -o bandwidth_model=measured goes by it")
        return 0
    measured = [
        {
            "gpus": list(entry.gpus),
            "links": list(entry.ring),
            "all_reduce_gb_per_s": entry.all_reduce_gb_per_s,
            "cut_gb_per_s": rounded(entry.cut_gb_per_s),
            "mapa_gb_per_s": rounded(entry.mapa_gb_per_s),
        }
        for entry in figures
    ]
    document = {"name": topology.name, "measured": measured}
    print_json({**document, "root_mean_square_error_gb_per_s": errors})
    return 0


def _interrupt(number: int, _frame: object) -> None:
    for other in ENDING_SIGNALS:  # one is enough, and its handling must not be disturbed
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


def _tell(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        say("info", text)
