"""The machine that a command is about: this one, read by its driver, or a described one.

Functions that ask the driver raise FailedError where it is missing or fails.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpulaunch.errors import FailedError, UsageError
from gpulaunch.files import own_cache
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.driver import DRIVERS, Build, Driver, FaultWatch, Health, Load, OutsideUse
from gpulaunch.machine.driver_calls import DriverApart, watched
from gpulaunch.machine.gpu import Gpu, Mig
from gpulaunch.machine.link import Link
from gpulaunch.machine.topology import DEFAULT_DRIVER, TableKey, Topology, to_rows, topology_of_rows
from gpulaunch.process.libc import loading_problem
from gpulaunch.process.system import boot_id
from gpulaunch.records import Record, field_names, replace

if TYPE_CHECKING:
    from gpulaunch.machine.nvidia import driver as nvidia

    # If the module lacks a function of the interface, mypy reports it here.
    _shipped: Driver = nvidia


class Machine(Record):
    """A machine, read once.

    Attributes:
        outside: GPUs in use, by leases or otherwise; empty if not asked for.
        key: key of its table; None for this machine's own GPUs.
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
    """Read this machine or a described one.

    Args:
        described: name or file of a described machine, or None for this machine.
        warn: called with a text about each GPU that was left out.
        origin: place where `described` was set, unless on this command line; it then must not hide
            real GPUs.
        ignored: programs whose use of GPUs does not count.
        use: whether to read the present use of the GPUs, too.

    Raises:
        UsageError: the described machine is unknown or wrong, or would hide real GPUs.
        FailedError: this machine's driver is missing or fails.
    """
    if described is None:
        machine = Machine(_this_machine(warn), (), None, tuple(ignored))
        if not use:
            return machine
        machine = look_again(machine)
        if any(use.lost for use in machine.outside):  # the cached topology has gone stale
            with suppress(OSError):
                os.unlink(own_cache.path_of(_CACHE))
            machine = look_again(replace(machine, topology=_this_machine(warn)))
        return machine
    topology, path = load_described_machine(described)
    if origin and _present_driver():
        raise UsageError(
            f"{origin} would hide this machine's own GPUs",
            f"say so on the command line: --topology {described}",
        )
    return Machine(topology, (), TableKey(topology.name, topology.digest or "", path))


def load_driver(name: str) -> Driver:
    """Return the driver of this name in the registry."""
    driver: Driver = _apart.get(name) or import_module(DRIVERS[name].module)
    return driver


_apart: dict[str, Any] = {}


def ask_apart() -> None:
    """Ask drivers in another process from now on, so that a GPU that hangs can be left out."""
    _apart.update({name: DriverApart(entry.module) for name, entry in DRIVERS.items()})


def _present_driver() -> str | None:
    """Return the name of the first driver in the registry that has GPUs here, or None."""
    for name, entry in DRIVERS.items():
        is_installed = not entry.library or loading_problem(entry.library) != ""
        if is_installed and load_driver(name).is_present():
            return name
    return None


@watched()
def _this_machine(warn: Callable[[str], None]) -> Topology:
    """Return this machine's topology: from the cache while the driver's fingerprint is the same.

    With a GPU left out it is read, and warned about, every time. Without any GPU the default driver
    reports what is missing.
    """
    name = _present_driver() or DEFAULT_DRIVER
    driver = load_driver(name)
    fingerprint = driver.fingerprint()
    if not fingerprint:
        return _read_anew(name, warn).topology
    known = load_cached(name, fingerprint)
    if known:
        return known
    with one_at_a_time():
        known = load_cached(name, fingerprint)
        if known:
            return known
        build = _read_anew(name, warn)
        # The hardware may have changed while this process waited for the lock, or read.
        if build.is_steady and driver.fingerprint() == fingerprint:
            store_cached(fingerprint, build.topology)
    return build.topology


def _read_anew(name: str, warn: Callable[[str], None]) -> Build:
    build = load_driver(name).read()
    for problem in build.problems:
        warn(problem)
    return replace(build, topology=replace(build.topology, driver=name))


@watched()
def look_again(machine: Machine) -> Machine:
    """Return the machine with the use of its GPUs as its driver sees it now.

    Use that was seen before the table was read may have ended since.
    """
    if machine.key:
        return replace(machine, outside=())
    driver = load_driver(machine.topology.driver)
    return replace(machine, outside=driver.read_use(machine.topology.gpus, machine.ignored))


def read_health(machine: Machine) -> tuple[Health, ...]:
    """Return the health of the machine's GPUs; of a described machine none is known."""
    if machine.key:
        return ()
    return load_driver(machine.topology.driver).read_health(machine.topology.gpus)


def read_load(machine: Machine) -> tuple[Load, ...]:
    """Return what the machine's GPUs do at this moment; of a described machine nothing is known."""
    if machine.key:
        return ()
    return load_driver(machine.topology.driver).read_load(machine.topology.gpus)


def watch_faults(machine: Machine, gpus: Sequence[Gpu]) -> FaultWatch | None:
    """Watch for faults of some GPUs while a job runs; None if nothing tells of any."""
    if machine.key:
        return None
    try:
        return load_driver(machine.topology.driver).watch_faults(gpus)
    except FailedError:  # the job runs, and its exit status matters more
        return None


def are_busy(machine: Machine, gpus: Sequence[Gpu]) -> bool:
    """Return whether one of some GPUs is at work right now, or does not tell."""
    return machine.key is not None or load_driver(machine.topology.driver).are_busy(gpus)


@watched()
def find_at_work(machine: Machine, uuids: Collection[str], pids: set[int]) -> set[int]:
    """Return those of the processes that compute on these GPUs.

    On a described machine, where this cannot be told, all of them are returned.
    """
    if machine.key or not pids:
        return pids
    return pids & load_driver(machine.topology.driver).pids_at_work(uuids).keys()


def most_memory(machine: Machine, uuids: Collection[str], pids: set[int]) -> int:
    """Return the bytes that one of the processes holds at most on one of these GPUs, if known."""
    if machine.key or not pids:
        return 0
    held = load_driver(machine.topology.driver).pids_at_work(uuids)
    return max((size for pid, size in held.items() if pid in pids), default=0)


# The cache of this machine's topology is a file in memory (tmpfs) of this user alone, so that no
# other user can forge the machine. It is used if it was written in this boot for the GPUs that the
# driver lists now.

MAX_AGE_S = 900.0
"""Age of the cache after which the machine is read anew, as an NVLink may have gone down since."""

LOCK_TIMEOUT_S = 10.0
_CACHE = "gpulaunch.topology.json"


def load_cached(driver: str, fingerprint: str) -> Topology | None:
    """Return the topology cached under the driver's fingerprint; None if none may be used."""
    try:
        document = own_cache.load(_CACHE, MAX_AGE_S)
        if document["key"] != _cache_key(driver, fingerprint):
            return None
        return topology_of_rows(document["topology"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def store_cached(fingerprint: str, topology: Topology) -> None:
    """Store a topology; if that fails, the machine is read again the next time."""
    key = _cache_key(topology.driver, fingerprint)
    own_cache.store(_CACHE, {"key": key, "topology": to_rows(topology)})


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one launcher read the machine while the others wait for its result.

    They wait for LOCK_TIMEOUT_S at most, and not at all where no lock can be made.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            path = f"{own_cache.path_of(_CACHE)}.lock"
            stack.enter_context(own_cache.slow_lock(path, LOCK_TIMEOUT_S))
        yield


def _cache_key(driver: str, fingerprint: str) -> list[Any]:
    """Return everything that the topology depends on.

    This process's CPUs are part of it, since NVML reports only those.
    """
    here = [boot_id(), os.uname().nodename, sorted(os.sched_getaffinity(0))]
    form = [*field_names(Gpu), *field_names(Link), *field_names(Mig)]
    return [form, here, driver, fingerprint]
