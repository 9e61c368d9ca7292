"""Running containers, launched by gpulaunch or not, and the GPUs that they were given.

docs/decisions/containers-in-use.md says which of them count as a use of these GPUs.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from gpulaunch.containers.engine import QUESTION_S, EngineClient, LateError, NoAnswerError
from gpulaunch.decide.request import select_gpus
from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.files import own_cache
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.machine.gpu import gpus_named
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record, as_list, replace

LATE_S = 60.0
"""Seconds for which an engine is not asked again that has not answered in time."""

_CACHE = "gpulaunch.containers.json"
_OWN_FILES = frozenset({"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"})
_LEAST_S = 0.01
_not_before_s: dict[str, float] = {}


class Traits(Record):
    """The facts about a container that stay the same while it runs.

    Attributes:
        lease_id: id of the lease that it was made under, or None.
        names: the GPUs that it was given one by one: UUIDs if gpulaunch made it, else names as its
            flags have them.
        sees_all: whether it was given all GPUs, without being meant to have them for itself.
        pid: pid of its first process, as the host counted when it was first seen; or 0.
    """

    lease_id: str | None
    names: tuple[str, ...]
    sees_all: bool
    pid: int


class RunningContainer(Record):
    """A running container, and what it has of one machine.

    Attributes:
        id: 64 hexadecimal digits.
        name: its name, fit for a terminal.
        program: name of its engine's program, such as docker.
        traits: what it was made with.
        uuids: UUIDs of those GPUs of the machine that it was given one by one.
        is_here: whether this process runs in it.
    """

    id: str
    name: str
    program: str
    traits: Traits
    uuids: tuple[str, ...] = ()
    is_here: bool = False

    @property
    def title(self) -> str:
        """Its name for messages."""
        return f"container {self.name} ({self.program})"

    def is_of(self, lease: Lease) -> bool:
        """Return whether a lease is this container's."""
        return lease.id == self.traits.lease_id or lease.container == self.id

    def leases_beside(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return the leases of others that hold GPUs of this container, which is without one."""
        if self.is_here or any(self.is_of(lease) for lease in leases):
            return []
        return [lease for lease in leases if not set(self.uuids).isdisjoint(lease.uuids)]

    def beside(self, topology: Topology, leases: str) -> str:
        """Return the words for a container whose GPUs are leased to others.

        Args:
            topology: the machine.
            leases: the others' leases.
        """
        gpus = gpus_named(gpu for gpu in topology.gpus if gpu.uuid in self.uuids)
        return f"{self.title} has {gpus} beside lease {leases}"


def running_containers(
    clients: Iterable[tuple[str, EngineClient]], topology: Topology, *, numbered: bool
) -> tuple[tuple[RunningContainer, ...], list[str]]:
    """Return the running containers that were given GPUs, and why engines did not answer.

    An engine that does not run, or that this user may not ask, is no problem.

    Args:
        clients: clients of the engines, with the names of their programs.
        topology: the machine.
        numbered: whether numbers of GPUs mean this machine's; those of a described one have none.
    """
    seen, problems = _ask_engines(clients)
    own_id = _id_of_own_container(one.id for one in seen)
    containers = []
    for one in seen:
        uuids = _find_uuids(topology, one.traits.names, numbered=numbered)
        if uuids or one.traits.sees_all:
            containers.append(replace(one, uuids=uuids, is_here=one.id == own_id))
    return tuple(containers), problems


def uses_of(containers: Iterable[RunningContainer]) -> tuple[OutsideUse, ...]:
    """Return the use of the GPUs that containers were given one by one, and may have alone.

    The container that this process runs in is left out: its GPUs are what launches in it share out.
    """
    return tuple(
        OutsideUse(uuid, container.title, (container.traits.pid,) if container.traits.pid else ())
        for container in containers
        if not container.is_here
        for uuid in container.uuids
    )


def _ask_engines(
    clients: Iterable[tuple[str, EngineClient]],
) -> tuple[list[RunningContainer], list[str]]:
    """Ask all engines for their running containers, within QUESTION_S altogether."""
    until_s = time.monotonic() + QUESTION_S
    seen: list[RunningContainer] = []
    problems = []
    cache = _Cache()
    for program, client in clients:
        if _not_before_s.get(client.address, 0.0) > time.monotonic():
            continue
        limited = client.within(max(_LEAST_S, until_s - time.monotonic()))
        try:
            for container_id, name in limited.names().items():
                traits = cache.traits_of(container_id, limited)
                if traits:
                    seen.append(RunningContainer(container_id, printable(name), program, traits))
        except LateError as problem:
            _not_before_s[client.address] = time.monotonic() + LATE_S
            problems.append(problem.message)
        except NoAnswerError:  # it does not run, or may not be asked
            continue
        except FailedError as problem:
            problems.append(problem.message)
    cache.keep()
    return seen, problems


class _Cache:
    """The facts about running containers, so that each is inspected only once.

    A container's GPUs and labels never change, and its id is never used again.
    """

    def __init__(self) -> None:
        self._known: dict[str, Any] | None = None
        self._used: dict[str, Traits] = {}
        self._is_new = False

    def traits_of(self, container_id: str, client: EngineClient) -> Traits | None:
        """Return what is known of a container; None if it has gone.

        Raises:
            FailedError: its engine does not answer.
        """
        if self._known is None:
            self._known = _load_known()
        try:
            lease_id, names, sees_all, pid = self._known[container_id]
            traits = Traits(lease_id, tuple(names), sees_all, pid)
        except (KeyError, TypeError, ValueError):  # new, or written by another version
            container = client.container(container_id)
            if container is None:
                return None
            names = container.uuids if container.lease_id else container.given
            sees_all = container.sees_all and not container.lease_id
            traits = Traits(container.lease_id, names, sees_all, container.pid)
            self._is_new = True
        self._used[container_id] = traits
        return traits

    def keep(self) -> None:
        """Store what is known of the containers that still run, if there are new ones."""
        if self._is_new:
            own_cache.store(_CACHE, {key: as_list(used) for key, used in self._used.items()})


def _load_known() -> dict[str, Any]:
    with suppress(OSError, ValueError, TypeError):
        return own_cache.load(_CACHE)
    return {}


def _find_uuids(topology: Topology, names: Iterable[str], *, numbered: bool) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that a container's flags name; others are not this machine's."""
    uuids: dict[str, None] = {}
    for name in names:
        if numbered or not name[:1].isdecimal():
            with suppress(UsageError):
                uuids.update((gpu.uuid, None) for gpu in select_gpus(topology, [name], ""))
    return tuple(uuids)


def _id_of_own_container(ids: Iterable[str]) -> str | None:
    """Return the id of the container that this process runs in, or None.

    Engines keep some files of a container in a directory with its name, and mount them.
    """
    try:
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split(" ", 5)[3:5] for line in file]
    except (OSError, ValueError):
        return None
    roots = [root for root, place in mounts if place in _OWN_FILES]
    return next((one for one in ids if any(f"/{one}/" in root for root in roots)), None)
