"""`gpulaunch topo`: print, draw, export or measure the GPUs and their links."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, say, warn
from gpulaunch.errors import UsageError, printable
from gpulaunch.files.data_files import make_own
from gpulaunch.files.document import read_document
from gpulaunch.files.write import check_writable, document_text, write_text
from gpulaunch.launch.surroundings import read_shown, shown_machine
from gpulaunch.machine.catalog import load_text_machine, own_machine_file
from gpulaunch.machine.gpu import format_cpuset
from gpulaunch.machine.levels import machine_tree
from gpulaunch.machine.topology import Topology, machines
from gpulaunch.records import as_dict
from gpulaunch.show import Document
from gpulaunch.show.topology.text import link_name, socket_name, title, topology_lines


def main(arguments: Sequence[str]) -> int:
    """Show one machine."""
    options = make_parser().parse_args(arguments)
    _check_options(options.__dict__)
    if options.measure:
        return _measure(options.output, as_json=options.json)
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


def _measure(path: str | None, *, as_json: bool) -> int:
    """Measure this machine, write its machine file, and print every figure beside the models.

    Args:
        path: path of the file; None for this user's own file of this machine.
        as_json: whether to print a document instead of a table.
    """
    from gpulaunch.measure.link_fit import compare
    from gpulaunch.measure.links import measure, measured_document
    from gpulaunch.show.measurement import measurement_document, measurement_table
    from gpulaunch.show.terminal import draw

    file = path or own_machine_file(os.uname().nodename)
    if path is None:
        make_own(os.path.dirname(file))
    check_writable(file)
    if path is None and os.path.exists(file) and "measurement" not in read_document(file).data:
        raise UsageError(
            f"{file} describes this machine, and measuring would replace it",
            "-o names another file",
        )
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _raise_interrupted)
    try:
        topology, figures = measure(warn, _tell)
    # By now the benchmark is ended, the lease released, and nothing is written.
    except _Interrupted as interruption:
        signal.signal(interruption.number, signal.SIG_DFL)
        os.kill(os.getpid(), interruption.number)
        raise
    write_text(file, document_text(measured_document(topology, figures)))
    comparisons = compare(topology, figures)
    if as_json:
        print_json(measurement_document(topology, comparisons))
    else:
        draw(measurement_table(comparisons), sys.stdout)
        print(f"written to {file}; -o bandwidth_model=measured goes by it")
    return 0


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Interrupted(BaseException):
    """A signal asks for an end."""

    def __init__(self, number: int) -> None:
        self.number = number


def _raise_interrupted(number: int, _frame: object) -> None:
    for other in _ENDING:  # one is enough, and its handling must not be disturbed
        signal.signal(other, signal.SIG_IGN)
    raise _Interrupted(number)


def _tell(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        say("info", text)
