"""`gpulaunch cluster node`: tell what this node of an allocation has, to `gpulaunch cluster`."""

import os
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.output import warn
from gpulaunch.cluster.node_report import report_lines
from gpulaunch.cluster.this_node import report_this_node
from gpulaunch.decide.request import select_gpus
from gpulaunch.launch.surroundings import read_surroundings, shown_settings
from gpulaunch.records import replace


def main(arguments: Sequence[str]) -> int:
    """Print this node's report."""
    parser = Parser(
        "gpulaunch cluster node",
        "Tell 'gpulaunch cluster run' and 'show' what was granted on this node: they call it.",
    )
    add_topology(parser)
    options = parser.parse_args(arguments)
    around = read_surroundings(shown_settings(options.topology), warn, use=False)
    topology = around.machine.topology
    if around.visible is not None:
        names = around.visible.split(",") if around.visible else []
        chosen = {gpu.index for gpu in select_gpus(topology, names, "CUDA_VISIBLE_DEVICES")}
        topology = replace(
            topology,
            gpus=tuple(gpu for gpu in topology.gpus if gpu.index in chosen),
            links=tuple(link for link in topology.links if {link.a, link.b} <= chosen),
        )
    print("\n".join(report_lines(report_this_node(topology, os.environ))))
    return 0
