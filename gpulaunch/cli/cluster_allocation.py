"""The allocation that `gpulaunch cluster run` maps ranks to."""

import os
from collections.abc import Sequence

from gpulaunch.cli.arguments import Namespace, Parser, add_topology
from gpulaunch.cli.output import warn
from gpulaunch.cluster.allocation import (
    NodeAllocation,
    ask_nodes,
    find_allocation,
    host_names,
    switches_told_by,
)
from gpulaunch.cluster.cluster import Cluster
from gpulaunch.cluster.network import ASSUMED_NODE_GB_PER_S, ASSUMPTIONS, network_tree
from gpulaunch.cluster.network_text import tree_of_file
from gpulaunch.cluster.node_report import NodeReport
from gpulaunch.cluster.nvlink_domains import with_domains
from gpulaunch.cluster.slurm_topology import switches_of_addresses
from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import FieldError
from gpulaunch.launch.children import own_command
from gpulaunch.records import Record


class AskedAllocation(Record):
    """An allocation with what it has.

    Attributes:
        allocation: the allocation.
        cluster: its nodes and network.
        hosts: names of the nodes as its starter knows them, by number of the node.
    """

    allocation: NodeAllocation
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
        help="topology.conf of Slurm (default: what Slurm tells)",
    )
    add_topology(parser)


def find(options: Namespace) -> AskedAllocation:
    """Return the allocation of the options, asking its nodes what they have.

    Raises:
        UsageError: there is none.
        FailedError: nodes do not answer.
    """
    allocation = find_allocation(os.environ, options.launcher, options.hostfile)
    topology = ["--topology", options.topology] if options.topology is not None else []
    reports = ask_nodes(allocation, [*own_command(), "cluster", "node", *topology])
    nodes = tuple(report.node for report in reports)
    network = _network(allocation, options.network, reports)
    source = f"nodes: asked of them; network: {options.network or 'as Slurm tells'}; {ASSUMPTIONS}"
    cluster = Cluster(allocation.name, source, nodes, network)
    return AskedAllocation(allocation, cluster, host_names(allocation, reports))


def _network(allocation: NodeAllocation, path: str | None, reports: Sequence[NodeReport]) -> Tree:
    """Return the network of a file, or as Slurm tells its tasks, with NVLink domains."""
    gb_per_s = {report.node.name: ASSUMED_NODE_GB_PER_S for report in reports}
    if path is not None:
        return tree_of_file(path, gb_per_s)
    addresses = {report.node.name: report.address for report in reports}
    switches = switches_of_addresses(addresses) or switches_told_by(allocation)
    try:
        network = network_tree(switches, gb_per_s)
    except FieldError as problem:  # Slurm itself allows switches that nothing joins
        warn(f"what Slurm tells of the network is left out: {problem.message}")
        switches, network = (), network_tree((), gb_per_s)
    domains = {report.node.name: report.domain for report in reports}
    within_gb_per_s = sum(
        gpu.nvswitch_links * gpu.nvlink_gb_per_s for gpu in reports[0].node.topology.gpus
    )
    try:
        return network_tree(*with_domains(switches, gb_per_s, domains, within_gb_per_s))
    except FieldError as problem:
        warn(f"NVLink domains are left out: {problem.message}")
        return network
