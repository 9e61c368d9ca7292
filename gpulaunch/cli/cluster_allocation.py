"""The allocation that `gpulaunch cluster run` and `show` are about."""

import os

from gpulaunch.cli.arguments import Namespace, Parser, add_topology
from gpulaunch.cluster.allocation import Allocation, ask_nodes, find_allocation, host_names
from gpulaunch.cluster.cluster import Cluster
from gpulaunch.cluster.network import ASSUMED_NODE_GB_PER_S, ASSUMPTIONS, network_tree
from gpulaunch.cluster.network_text import tree_of_file
from gpulaunch.cluster.slurm_topology import switches_of_addresses
from gpulaunch.launch.children import own_command
from gpulaunch.records import Record


class Found(Record):
    """An allocation with what it has.

    Attributes:
        allocation: the allocation.
        cluster: its nodes and network.
        hosts: names of the nodes as its starter knows them, by number of the node.
    """

    allocation: Allocation
    cluster: Cluster
    hosts: list[str]


def add_allocation(parser: Parser) -> None:
    """Add the options that say which allocation is meant."""
    parser.add_argument("--hostfile", metavar="FILE", help="hosts for Open MPI's mpirun")
    parser.add_argument(
        "--launcher",
        metavar="COMMAND",
        help="srun or mpirun, with options for it, such as 'srun --mpi=pmix'",
    )
    parser.add_argument(
        "--network",
        metavar="FILE",
        help="topology.conf or topology.yaml of Slurm (default: what Slurm tells)",
    )
    add_topology(parser)


def find(options: Namespace) -> Found:
    """Return the allocation of the options, asking its nodes what they have.

    Raises:
        UsageError: there is none.
        FailedError: nodes do not answer.
    """
    allocation = find_allocation(os.environ, options.launcher, options.hostfile)
    topology = ["--topology", options.topology] if options.topology is not None else []
    reports = ask_nodes(allocation, [*own_command(), "cluster", "node", *topology])
    nodes = tuple(report.node for report in reports)
    gb_per_s = {node.name: ASSUMED_NODE_GB_PER_S for node in nodes}
    if options.network is not None:
        network = tree_of_file(options.network, gb_per_s)
    else:
        addresses = {report.node.name: report.address for report in reports}
        network = network_tree(switches_of_addresses(addresses), gb_per_s)
    source = f"nodes: asked of them; network: {options.network or 'as Slurm tells'}; {ASSUMPTIONS}"
    cluster = Cluster(allocation.name, source, nodes, network)
    return Found(allocation, cluster, host_names(allocation, reports))
