"""The node that this process runs on, as its cluster engine knows it."""

import os

from gpulaunch.cluster.cluster import Node
from gpulaunch.cluster.engines import read_place
from gpulaunch.cluster.node_report import NodeReport
from gpulaunch.cluster.slurm_topology import split_address
from gpulaunch.machine.topology import Topology

_CPUS = "/sys/devices/system/cpu"


def report_this_node(topology: Topology) -> NodeReport:
    """Return the report of this node.

    Args:
        topology: the GPUs that were granted here.
    """
    place = read_place(os.environ)
    name = (place and place.node) or os.uname().nodename
    task = place.rank.number if place and place.rank else 0
    return NodeReport(task, Node(name, topology, _sockets()), _address())


def _address() -> tuple[str, ...]:
    """Return the switches above this node, the topmost first; () if Slurm does not tell."""
    names = ("SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN")
    try:
        return split_address(*(os.environ.get(name, "") for name in names))
    except ValueError:
        return ()


def _sockets() -> tuple[tuple[int, ...], ...]:
    """Return the CPUs that this process may use, one for each core, by socket."""
    sockets: dict[int, dict[int, int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        socket, core = _number(cpu, "physical_package_id", 0), _number(cpu, "core_id", cpu)
        sockets.setdefault(socket, {}).setdefault(core, cpu)
    return tuple(tuple(cores.values()) for _, cores in sorted(sockets.items()))


def _number(cpu: int, name: str, otherwise: int) -> int:
    """Return a number from the kernel's description of a CPU."""
    try:
        with open(f"{_CPUS}/cpu{cpu}/topology/{name}") as file:
            return int(file.read())
    except (OSError, ValueError):
        return otherwise
