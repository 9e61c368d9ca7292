"""The machine that a command is about: this one, found through NVML, or a described one."""

from collections.abc import Callable
from typing import NamedTuple

from gpulaunch.core.decide import OutsideUse
from gpulaunch.core.hardware.topology import Topology
from gpulaunch.core.leases.lease import Lease, TableKey
from gpulaunch.errors import UsageError
from gpulaunch.host.catalog import load_described_machine
from gpulaunch.host.table import Table


class Machine(NamedTuple):
    """A machine, read once.

    Attributes:
        topology: its GPUs and links.
        outside: GPUs at work; leases may explain some.
        key: of its table; None for this machine's own GPUs.
    """

    topology: Topology
    outside: tuple[OutsideUse, ...]
    key: TableKey | None


def find_machine(described: str | None, warn: Callable[[str], None], origin: str = "") -> Machine:
    """Read the machine.

    Args:
        described: name or file of a described machine, or None for this machine.
        warn: where to say what was left out.
        origin: where `described` was set, if not on this command line; from there it must not hide real GPUs.

    Raises:
        UsageError: the described machine is unknown or wrong, or would hide real GPUs.
        FailedError: NVML is missing or fails.
    """
    if described is None:
        from gpulaunch.host import nvml  # late: it costs as much as the rest of the launch

        reading = nvml.read()
        for problem in reading.problems:
            warn(problem)
        return Machine(reading.topology, reading.outside, None)
    topology, path = load_described_machine(described)
    if origin:
        from gpulaunch.host import nvml

        if nvml.is_present():
            raise UsageError(
                f"{origin} would hide this machine's NVIDIA GPUs",
                f"say so on the command line: --topology {described}",
            )
    return Machine(topology, (), TableKey(topology.name, topology.digest or "", path))


def look_again(machine: Machine) -> Machine:
    """The machine with its outside use read anew: what was seen before the table was locked may have ended since."""
    from gpulaunch.host import nvml

    return machine._replace(outside=nvml.read().outside)


def inherited_lease(lease_id: str, warn: Callable[[str], None]) -> Lease | None:
    """The live lease that GPULAUNCH_LEASE names, of whatever machine."""
    leases = Table(described=True, warn=warn).peek()
    return next((lease for lease in leases if lease.id == lease_id), None)
