"""`gpulaunch cluster node`: tell what this node of an allocation has, to `gpulaunch cluster`."""

import os
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.output import warn
from gpulaunch.cluster.engines import read_place
from gpulaunch.cluster.node_report import report_lines
from gpulaunch.cluster.this_node import report_this_node
from gpulaunch.decide.request import admit_visible
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.machine.topology import part_of_machine


def main(arguments: Sequence[str]) -> int:
    """Print this node's report."""
    parser = Parser(
        "gpulaunch cluster node",
        "Tell 'gpulaunch cluster run' and 'show' what was granted on this node: they call it.",
    )
    add_topology(parser)
    options = parser.parse_args(arguments)
    topology = shown_machine(options.topology, warn).topology
    place = read_place(os.environ)
    if place and place.grant and place.grant.names is not None:
        chosen = admit_visible(topology, ",".join(place.grant.names)).uuids
        topology = part_of_machine(topology, chosen)
    print("\n".join(report_lines(report_this_node(topology))))
    return 0
