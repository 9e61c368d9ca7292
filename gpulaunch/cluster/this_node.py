"""The node that this process runs on, as its cluster engine knows it."""

import os
from collections.abc import Mapping

from gpulaunch.cluster.cluster import Node
from gpulaunch.cluster.node_report import NodeReport
from gpulaunch.machine.topology import Topology

_CPUS = "/sys/devices/system/cpu"
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
# mpirun inside Slurm: SLURM_PROCID is that of its daemon, so it comes last.


def report_this_node(topology: Topology, environment: Mapping[str, str]) -> NodeReport:
    """Return the report of this node.

    Args:
        topology: the GPUs that were granted here.
        environment: variables of the task, by which the engine tells its number and its place.
    """
    name = environment.get("SLURMD_NODENAME") or os.uname().nodename
    ranks = map(environment.get, _RANKS)
    task = next((int(rank) for rank in ranks if rank and rank.isdecimal()), 0)
    levels = environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    address = environment.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    switches = [
        name for level, name in zip(levels, address, strict=False) if level != "node" and name
    ]
    return NodeReport(task, Node(name, topology, _sockets()), tuple(switches))


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
