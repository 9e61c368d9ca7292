"""The node that this process runs on, as its cluster engine knows it."""

import os
import subprocess

from gpulaunch.cluster.cluster import Node
from gpulaunch.cluster.engines import read_place
from gpulaunch.cluster.node_report import NodeReport
from gpulaunch.cluster.nvlink_domains import nvlink_domain
from gpulaunch.cluster.slurm_topology import split_address
from gpulaunch.machine.topology import Topology

_CPUS = "/sys/devices/system/cpu"
_SMI_S = 60.0


def report_this_node(topology: Topology) -> NodeReport:
    """Return the report of this node.

    Args:
        topology: the GPUs that were granted here.
    """
    place = read_place(os.environ)
    name = (place and place.node) or os.uname().nodename
    task = place.rank.number if place and place.rank else 0
    return NodeReport(task, Node(name, topology, _sockets()), _address(), _domain(topology))


def _domain(topology: Topology) -> str | None:
    """Return the NVLink domain of GPUs on NVSwitches; None for others, and described ones."""
    if topology.digest is not None or not any(gpu.nvswitch_links for gpu in topology.gpus):
        return None
    try:
        done = subprocess.run(
            ["nvidia-smi", "-q"],  # noqa: S607  as the user's own
            capture_output=True,
            timeout=_SMI_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return nvlink_domain(done.stdout.decode(errors="replace"))


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
