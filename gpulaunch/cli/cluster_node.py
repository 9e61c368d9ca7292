"""`gpulaunch cluster node`: tell what this node of an allocation has, to `gpulaunch cluster`."""

import os
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_topology
from gpulaunch.cli.output import warn
from gpulaunch.cluster.engines import read_place
from gpulaunch.cluster.node import describe_this_node, report_lines
from gpulaunch.decide.request import admit_visible
from gpulaunch.launch.surroundings import Surroundings, read_surroundings, shown_settings
from gpulaunch.machine.topology import Topology, part_of_machine


def main(arguments: Sequence[str]) -> int:
    """Print this node's report."""
    options = make_parser().parse_args(arguments)
    settings = shown_settings(options.topology)
    topology = _within_reach(read_surroundings(settings, warn, may_hide=True, use=False))
    print("\n".join(report_lines(*describe_this_node(topology))))
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch cluster node",
        "Tell 'gpulaunch cluster run' what was granted on this node: it calls this.",
    )
    add_topology(parser)
    return parser


def _within_reach(around: Surroundings) -> Topology:
    """Return the GPUs that a launch on this node may have: those of the engine, else of a lease."""
    topology = around.machine.topology
    place = read_place(os.environ)
    if place and place.grant and place.grant.names is not None:
        names = ",".join(place.grant.names)
        return part_of_machine(topology, admit_visible(topology, names).uuids)
    if around.within:
        topology = part_of_machine(topology, around.within.uuids)
    if around.visible is None:
        return topology
    return part_of_machine(topology, admit_visible(around.machine.topology, around.visible).uuids)
