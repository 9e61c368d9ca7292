"""The machine that a command is about: this one, found through NVML, or a described one."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpulaunch.core.decide import OutsideUse
from gpulaunch.core.hardware.topology import Topology
from gpulaunch.core.leases.record import TableKey
from gpulaunch.errors import UsageError
from gpulaunch.host.catalog import load_described_machine


class Machine(NamedTuple):
    """A machine, read once.

    Attributes:
        topology: its GPUs and links.
        outside: GPUs at work; leases may explain some.
        key: of its table; None for this machine's own GPUs.
        ignored: programs whose use does not count.
    """

    topology: Topology
    outside: tuple[OutsideUse, ...]
    key: TableKey | None
    ignored: tuple[str, ...] = ()


def find_machine(
    described: str | None, warn: Callable[[str], None], origin: str = "", ignored: Sequence[str] = ()
) -> Machine:
    """Read the machine.

    Args:
        described: name or file of a described machine, or None for this machine.
        warn: where to say what was left out.
        origin: where `described` was set, if not on this command line; from there it must not hide real GPUs.
        ignored: programs whose use of GPUs does not count.

    Raises:
        UsageError: the described machine is unknown or wrong, or would hide real GPUs.
        FailedError: NVML is missing or fails.
    """
    if described is None:
        from gpulaunch.host import nvml  # late: it costs as much as the rest of the launch

        reading = nvml.read(ignored)
        for problem in reading.problems:
            warn(problem)
        return Machine(reading.topology, reading.outside, None, tuple(ignored))
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
    """The machine with its outside use read anew: what was seen before the table was read may have ended since."""
    if machine.key:
        return machine
    from gpulaunch.host import nvml

    return machine._replace(outside=nvml.read_use(machine.topology.gpus, machine.ignored))


def left_on(machine: Machine, uuids: Sequence[str], pids: set[int]) -> set[int]:
    """Those of the processes that are at work on these GPUs; on a described machine, which cannot tell, all."""
    if machine.key or not pids:
        return pids
    from gpulaunch.host import nvml

    return pids & nvml.compute_pids(uuids)
