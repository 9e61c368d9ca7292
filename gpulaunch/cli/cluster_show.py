"""`gpulaunch cluster show`: the nodes, switches and GPUs of an allocation."""

import os
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.cluster_run import cluster_of
from gpulaunch.cli.output import print_json
from gpulaunch.cluster.allocation import find_allocation
from gpulaunch.show.cluster import cluster_document, cluster_lines


def main(arguments: Sequence[str]) -> int:
    """Show what this allocation has."""
    parser = Parser("gpulaunch cluster show", "The nodes, switches and GPUs of this allocation.")
    add_allocation(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    allocation = find_allocation(os.environ, options.launcher, options.hostfile)
    cluster = cluster_of(allocation, options.topology)
    if options.json:
        print_json(cluster_document(cluster))
    else:
        print("\n".join(cluster_lines(cluster)))
    return 0
