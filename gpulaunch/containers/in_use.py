"""Running containers, launched by gpulaunch or not, and the GPUs that they were given.

docs/decisions/containers-in-use.md says which of them count as a use of these GPUs.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from gpulaunch.containers.engine import QUESTION_S, EngineClient, LateError, NoAnswerError
from gpulaunch.decide.decision import select_gpus
from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.files import own_cache
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record, replace

LATE_S = 60.0
"""Seconds for which an engine is not asked again that has not answered in time."""

_CACHE = "gpulaunch.containers.json"
_OWN_FILES = frozenset({"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"})
_LEAST_S = 0.01
_not_before_s: dict[str, float] = {}

_Facts = tuple[str | None, tuple[str, ...], tuple[int, ...]]
"""What stays the same while a container runs: lease_id, names and pids of RunningContainer."""


class RunningContainer(Record):
    """A running container, and what it has of one machine.

    Attributes:
        name: its name, fit for a terminal.
        program: name of its engine's program, such as docker.
        lease_id: id of the lease that it was made under, or None.
        names: the GPUs that it was given: UUIDs if gpulaunch made it, else names as its flags have
            them, or "all", without being meant to have them for itself.
        pids: the processes that end with it, as the host counted when it was first seen.
        uuids: UUIDs of those GPUs of the machine that it was given one by one.
        is_here: whether this process runs in it.
    """

    id: str
    name: str
    program: str
    lease_id: str | None
    names: tuple[str, ...]
    pids: tuple[int, ...]
    uuids: tuple[str, ...] = ()
    is_here: bool = False

    @property
    def uses(self) -> list[OutsideUse]:
        """The use of the GPUs that it was given one by one, and may have alone.

        There is none of the container that this process runs in: its GPUs are what launches in it
        share out.
        """
        if self.is_here:
            return []
        who = f"container {self.name} ({self.program})"
        return [OutsideUse(uuid, who, self.pids) for uuid in self.uuids]

    def is_of(self, lease: Lease) -> bool:
        """Return whether a lease is this container's."""
        return lease.id == self.lease_id or lease.container == self.id

    def leases_beside(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return the leases of others that hold GPUs of this container, which is without one."""
        if self.is_here or any(self.is_of(lease) for lease in leases):
            return []
        return [lease for lease in leases if not set(self.uuids).isdisjoint(lease.uuids)]


def running_containers(
    clients: Iterable[EngineClient], topology: Topology, *, numbered: bool
) -> tuple[tuple[RunningContainer, ...], list[str]]:
    """Return the running containers that were given GPUs, and why engines did not answer.

    An engine that does not run, or that this user may not ask, is no problem.

    Args:
        numbered: whether numbers of GPUs mean this machine's; those of a described one have none.
    """
    seen, problems = _ask_engines(clients)
    roots = _roots_of_own_files()
    containers = []
    for one in seen:
        uuids = _find_uuids(topology, one.names, numbered=numbered)
        if uuids or "all" in one.names:
            is_here = any(f"/{one.id}/" in root for root in roots)
            containers.append(replace(one, uuids=uuids, is_here=is_here))
    return tuple(containers), problems


def _ask_engines(
    clients: Iterable[EngineClient],
) -> tuple[list[RunningContainer], list[str]]:
    """Ask all engines for their running containers, within QUESTION_S altogether."""
    until_s = time.monotonic() + QUESTION_S
    seen: list[RunningContainer] = []
    problems = []
    known = _load_known()
    facts: dict[str, _Facts] = {}
    for client in clients:
        if _not_before_s.get(client.address, 0.0) > time.monotonic():
            continue
        limited = client.within(max(_LEAST_S, until_s - time.monotonic()))
        try:
            for container_id, name in limited.names().items():
                found = known.get(container_id)
                if not found and (one := limited.container(container_id)):
                    names = one.uuids if one.lease_id else one.given
                    found = one.lease_id, names, tuple(one.watched)
                if found:
                    facts[container_id] = found
                    shown = printable(name)
                    seen.append(RunningContainer(container_id, shown, client.program, *found))
        except LateError as problem:
            _not_before_s[client.address] = time.monotonic() + LATE_S
            problems.append(problem.message)
        except NoAnswerError:  # it does not run, or may not be asked
            continue
        except FailedError as problem:
            problems.append(problem.message)
    if not facts.keys() <= known.keys():
        own_cache.store(_CACHE, facts)
    return seen, problems


def _load_known() -> dict[str, _Facts]:
    """Return the facts about containers that were asked for before, so that each is asked once.

    A container's GPUs and labels never change, and its id is never used again.
    """
    known: dict[str, _Facts] = {}
    with suppress(OSError, ValueError, TypeError):
        for container_id, (lease_id, names, pids) in own_cache.load(_CACHE).items():
            known[container_id] = lease_id, tuple(map(str, names)), tuple(map(int, pids))
    return known


def _find_uuids(topology: Topology, names: Iterable[str], *, numbered: bool) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that a container's flags name; others are not this machine's."""
    uuids: dict[str, None] = {}
    for name in names:
        if numbered or not name[:1].isdecimal():
            with suppress(UsageError):
                uuids.update((gpu.uuid, None) for gpu in select_gpus(topology, [name], ""))
    return tuple(uuids)


def _roots_of_own_files() -> list[str]:
    """Return where files of the container that this process runs in come from, if it runs in one.

    Engines keep some files of a container in a directory with its id, and mount them.
    """
    try:
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split(" ", 5)[3:5] for line in file]
    except (OSError, ValueError):
        return []
    return [root for root, place in mounts if place in _OWN_FILES]
