"""The network of a file that Slurm wrote, or reads."""

from collections.abc import Mapping

from gpulaunch.cluster.network import Switch, network_tree
from gpulaunch.cluster.slurm_topology import read_topology_conf
from gpulaunch.cluster.tree import Tree
from gpulaunch.errors import FieldError, UsageError
from gpulaunch.files.document import read_text


def read_network_file(path: str) -> tuple[Switch, ...]:
    """Read a topology.conf, or what `scontrol show topology` has printed.

    Raises:
        UsageError: the file cannot be read or is wrong; with path and line.
    """
    text = read_text(path)
    try:
        return read_topology_conf(text)
    except FieldError as problem:
        raise located(path, problem) from None


def located(path: str, problem: FieldError) -> UsageError:
    """Return a problem whose path is a line, or nothing, as an error with the file's path."""
    line = f":{problem.path[0]}" if problem.path else ""
    return UsageError(f"{path}{line}: {problem.message}")


def tree_of_file(path: str, nodes: Mapping[str, float]) -> Tree:
    """Return the network of a text for these nodes; see network_tree.

    Raises:
        UsageError: the file is wrong, or the network no tree; with path and line.
    """
    switches = read_network_file(path)
    try:
        return network_tree(switches, nodes)
    except FieldError as problem:
        raise located(path, problem) from None
