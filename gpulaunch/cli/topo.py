"""`gpulaunch topo`: print, draw, export or measure the GPUs and their links."""

import os
import shutil
import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, warn
from gpulaunch.errors import UsageError
from gpulaunch.files.write import document_text, write_text
from gpulaunch.launch.surroundings import read_shown, shown_machine
from gpulaunch.machine.catalog import load_text_machine
from gpulaunch.machine.topology import Topology
from gpulaunch.show.topology.document import topology_document


def main(arguments: Sequence[str]) -> int:
    """Show one machine."""
    options = make_parser().parse_args(arguments)
    _check_options(options.__dict__)
    if options.measure:
        from gpulaunch.cli.topo_measure import measure_and_print

        return measure_and_print(options.output, as_json=options.json)
    if options.svg is not None and options.text is None:
        return _write_picture(options.topology, options.svg)
    topology = _find_machine(options.topology, options.text, options.output, options.gpu_model)
    if options.svg is not None:
        from gpulaunch.show.topology.svg import topology_svg

        write_text(options.svg, topology_svg(topology))
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
        "--svg", metavar="FILE", help="draw a picture, with what is leased in colour"
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
        for name in ("json", "svg", "measure")
        if given[name] not in (None, False)
    ]
    if "--measure" in forms and "--json" in forms:
        forms.remove("--json")
    if given["output"] is not None and forms != ["--measure"]:
        forms.append("-o")
    for name in ("output", "svg", "text", "gpu_model"):
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


def _write_picture(name: str | None, path: str) -> int:
    """Draw the machine, and the users of its GPUs."""
    from gpulaunch.process.system import user_name
    from gpulaunch.show.status import status_document
    from gpulaunch.show.topology.svg import GpuState, topology_svg

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
        states[gpu["index"]] = GpuState(gpu["state"], ", ".join(names))
    write_text(path, topology_svg(machine.topology, states))
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
    from gpulaunch.show.topology.text import topology_lines

    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal else None
    colour = on_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    print("\n".join(topology_lines(topology, colour=colour, width=width)))
