"""`gpulaunch cluster run`: run a command's ranks where a mapping puts them, in an allocation."""

import json
import os
import shlex
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from shutil import rmtree

from gpulaunch.cli.arguments import BooleanOptionalAction, Parser, add_topology
from gpulaunch.cli.cluster_map import (
    MAPPING_EPILOG,
    add_mapping,
    find_policy,
    map_document,
    pose,
    resources,
)
from gpulaunch.cli.output import warn
from gpulaunch.cluster.allocation import Allocation, Start, ask_nodes, find_allocation
from gpulaunch.cluster.cluster import Cluster, Tree
from gpulaunch.cluster.cluster_file import tree_of_file
from gpulaunch.cluster.network import ASSUMED_NODE_GB_PER_S, ASSUMPTIONS, network_tree
from gpulaunch.cluster.policies import MAPPING_POLICIES
from gpulaunch.errors import FieldError, UsageError, call_failed, printable
from gpulaunch.files.data_files import make_own, own_directory
from gpulaunch.files.write import make_directory, write_text
from gpulaunch.launch.children import own_command
from gpulaunch.process.execute import execute
from gpulaunch.records import replace

_KEPT_S = 7 * 86400.0  # of a directory whose ranks have long read their map


def main(arguments: Sequence[str], command: Sequence[str] | None) -> int:
    """Map the ranks of a command, and turn into the program that starts them.

    Args:
        arguments: arguments before the --.
        command: the ranks' command; None if there is no --.
    """
    options = make_parser().parse_args(arguments)
    if not command:
        raise UsageError("no command given", "gpulaunch cluster run [OPTIONS] -- COMMAND [ARG...]")
    policy = find_policy(options.mapping_policy)
    allocation = find_allocation(os.environ, options.launcher, options.hostfile)
    topology = ["--topology", options.topology] if options.topology is not None else []
    cluster = _ask(allocation, topology, options.network)
    if not options.bind_cpu:
        cluster = _with_cores(cluster)
    if options.ranks is None:
        _warn_of_few_cores(cluster)
    problem = pose(options, cluster)
    mapping = MAPPING_POLICIES[policy](problem)
    document = map_document(options, problem, policy, mapping)
    if not options.bind_cpu:
        for row in document["ranks"]:
            row["core"] = None
    directory = _make_directory(options.output)
    map_path = os.path.join(directory, "map.json")
    bind = [] if options.bind_cpu else ["-o", "bind_cpu=false"]
    own = ["-n", "1", "--exclusive", "-o", f"rank_map={map_path}"]  # whatever the settings say
    launch = [*own_command(), *topology, *bind, *own, "--", *command]
    names = allocation.hosts or [node.name for node in cluster.nodes]
    start = allocation.on_ranks(launch, [names[place.node] for place in mapping], directory)
    write_text(map_path, json.dumps(document, indent=2) + "\n")
    if options.dry_run:
        print(_shown(start))
        return 0
    variables = {os.fsencode(name): os.fsencode(text) for name, text in start.environment().items()}
    return execute(start.argv, variables)


def _shown(start: Start) -> str:
    """Return a start as a line for a shell."""
    without = [f"-u {name}" for name in start.without if name in os.environ]
    settings = [f"{name}={shlex.quote(text)}" for name, text in start.variables.items()]
    return " ".join([*(["env", *without] if without else []), *settings, shlex.join(start.argv)])


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch cluster run",
        "Run a command once for each rank, where a map puts the ranks so that their traffic loads "
        "no link more than it must. It turns into srun or mpirun: exit status, signals and output "
        "are theirs.",
        "gpulaunch cluster run [OPTIONS] -- COMMAND [ARG...]",
        epilog=MAPPING_EPILOG,
    )
    add_mapping(parser)
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
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="where to write the map, which all nodes have to read (default: in ~/.cache)",
    )
    parser.add_argument(
        "--bind-cpu",
        action=BooleanOptionalAction,
        help="a core for each rank; without, GPUs alone say how many ranks a node takes",
    )
    parser.set_defaults(bind_cpu=True)  # later, since Python 3.10 writes a default into the help
    parser.add_argument(
        "--dry-run", action="store_true", help="write the map, and print what would be run"
    )
    return parser


def _ask(allocation: Allocation, topology: Sequence[str], network: str | None) -> Cluster:
    """Return the cluster that an allocation is: what its nodes tell, and what Slurm does.

    Args:
        allocation: the allocation.
        topology: the option --topology with its value, or nothing.
        network: file of the network, or None.

    Raises:
        FailedError: nodes do not answer.
    """
    nodes = tuple(ask_nodes(allocation, [*own_command(), "cluster", "node", *topology]))
    gb_per_s = dict.fromkeys((node.name for node in nodes), ASSUMED_NODE_GB_PER_S)
    tree = _network(allocation, network, gb_per_s)
    source = f"nodes: asked of them; network: {network or 'as Slurm tells'}; {ASSUMPTIONS}"
    return Cluster(allocation.name, source, nodes, tree)


def _network(allocation: Allocation, path: str | None, gb_per_s: dict[str, float]) -> Tree:
    if path is not None:
        return tree_of_file(path, gb_per_s)
    try:
        return network_tree(allocation.switches(), gb_per_s)
    except FieldError as problem:  # Slurm allows switches that nothing joins, and new keys
        warn(f"what Slurm tells of the network is left out: {problem.message}")
        return network_tree((), gb_per_s)


def _with_cores(cluster: Cluster) -> Cluster:
    """Return a cluster that has a core for each GPU, where ranks are not bound to cores."""
    nodes = [
        replace(node, sockets=(tuple(range(len(node.topology.gpus))),)) for node in cluster.nodes
    ]
    return replace(cluster, nodes=tuple(nodes))


def _warn_of_few_cores(cluster: Cluster) -> None:
    """Tell of GPUs that have no rank because there are fewer cores."""
    slots = sum(node.slots for node in cluster.nodes)
    if 0 < slots < sum(len(node.topology.gpus) for node in cluster.nodes):
        warn(
            f"{slots} ranks: {resources(cluster)}; with --no-bind-cpu a rank needs no core of "
            "its own"
        )


def _make_directory(wanted: str | None) -> str:
    """Return the directory of the map: the wanted one, or a new one in the user's cache."""
    if wanted is not None:
        make_directory(wanted)
        return os.path.abspath(wanted)
    above = os.path.join(own_directory("XDG_CACHE_HOME", ".cache"), "cluster")
    try:
        make_own(above)
        _forget_old(above)
        return tempfile.mkdtemp(dir=above)
    except OSError as problem:
        raise call_failed(printable(above), problem) from None


def _forget_old(above: str) -> None:
    """Remove directories of maps that no rank will read any more."""
    for entry in os.scandir(above):
        with suppress(OSError):
            if time.time() - entry.stat().st_mtime > _KEPT_S:
                rmtree(entry.path)
