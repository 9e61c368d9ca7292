"""The machine that a command is about: this one, found through NVML, or a described one."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpulaunch.errors import UsageError
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.outside_use import OutsideUse
from gpulaunch.machine.table_key import TableKey
from gpulaunch.machine.topology import Topology

if TYPE_CHECKING:
    from gpulaunch.machine.nvidia.probe import Reading


class Machine(NamedTuple):
    """A machine, read once.

    Attributes:
        topology: its GPUs and links.
        outside: GPUs at work; leases may explain some. Empty if nobody asked.
        key: of its table; None for this machine's own GPUs.
        ignored: programs whose use does not count.
    """

    topology: Topology
    outside: tuple[OutsideUse, ...]
    key: TableKey | None
    ignored: tuple[str, ...] = ()


def find_machine(
    described: str | None,
    warn: Callable[[str], None],
    origin: str = "",
    ignored: Sequence[str] = (),
    *,
    use: bool = True,
) -> Machine:
    """Read the machine.

    Args:
        described: name or file of a described machine, or None for this machine.
        warn: where to say what was left out.
        origin: where `described` was set, if not on this command line; from there it must not hide
            real GPUs.
        ignored: programs whose use of GPUs does not count.
        use: whether to look who is at work on them.

    Raises:
        UsageError: the described machine is unknown or wrong, or would hide real GPUs.
        FailedError: NVML is missing or fails.
    """
    if described is None:
        machine = Machine(_this_machine(warn), (), None, tuple(ignored))
        if not use:
            return machine
        machine = look_again(machine)
        if any(use.lost for use in machine.outside):  # what is remembered is no more
            from gpulaunch.machine import topology_cache

            topology_cache.forget()
            machine = look_again(machine._replace(topology=_this_machine(warn)))
        return machine
    topology, path = load_described_machine(described)
    if origin:
        from gpulaunch.machine.nvidia import nvml

        if nvml.is_present():
            raise UsageError(
                f"{origin} would hide this machine's NVIDIA GPUs",
                f"say so on the command line: --topology {described}",
            )
    return Machine(topology, (), TableKey(topology.name, topology.digest or "", path))


def _this_machine(warn: Callable[[str], None]) -> Topology:
    """This machine's build: as it is remembered, if NVML lists the same GPUs still, else read from end to end.

    With a GPU left out it is read, and told, every time.
    """
    from gpulaunch.machine import topology_cache  # late: described machines do without
    from gpulaunch.machine.nvidia import roster  # late: described machines do without

    listed = roster.read_roster()
    known = topology_cache.load(listed) if listed else None
    if known:
        return known
    if not listed:
        return _probed(warn).topology
    with topology_cache.one_at_a_time():
        known = topology_cache.load(listed)
        if known:
            return known
        reading = _probed(warn)
        if (
            reading.is_steady and roster.read_roster() == listed
        ):  # nothing changed while it waited or was read
            topology_cache.store(listed, reading.topology)
    return reading.topology


def _probed(warn: Callable[[str], None]) -> "Reading":
    from gpulaunch.machine.nvidia.probe import (
        probe,
    )  # late: pynvml costs as much as the rest of the launch

    reading = probe()
    for problem in reading.problems:
        warn(problem)
    return reading


def look_again(machine: Machine) -> Machine:
    """The machine with its outside use read anew: what was seen before the table was read may have ended since."""
    if machine.key:
        return machine
    from gpulaunch.machine.nvidia.outside_use import read_use

    return machine._replace(outside=read_use(machine.topology.gpus, machine.ignored))


def left_on(machine: Machine, uuids: Sequence[str], pids: set[int]) -> set[int]:
    """Those of the processes that are at work on these GPUs; on a described machine, which cannot tell, all."""
    if machine.key or not pids:
        return pids
    return pids & pids_at_work(uuids)


def pids_at_work(uuids: Sequence[str]) -> set[int]:
    """Processes at work on the GPUs of these UUIDs, as far as NVML tells."""
    from gpulaunch.machine.nvidia.outside_use import compute_pids  # late: few launches need it

    return compute_pids(uuids)


def driver_version() -> str | None:
    """This machine's NVIDIA driver's, such as "550.54.15"; None if it does not say.

    Raises:
        FailedError: there is no NVML or no driver.
    """
    from gpulaunch.machine.nvidia import nvml  # late: few launches need it

    nvml.open_nvml()
    return nvml.driver_version()
