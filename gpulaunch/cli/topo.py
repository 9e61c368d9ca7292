"""`gpulaunch topo`: the GPUs and their links."""

import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, warn
from gpulaunch.prepare import shown_machine
from gpulaunch.render.documents import topology_document


def main(arguments: Sequence[str]) -> int:
    """Print the link matrix of one machine."""
    parser = Parser("gpulaunch topo", "The GPUs of a machine and how they are linked.")
    add_topology(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    topology = shown_machine(options.topology, warn).topology
    if options.json:
        print_json(topology_document(topology))
    else:
        from gpulaunch.render.tables import draw, topology_legend, topology_table

        draw(topology_table(topology), sys.stdout, fit=False)
        draw(topology_legend(topology), sys.stdout)
    return 0
