"""The interface to container engines: the protocol that Docker and Podman implement.

A new engine is a class that implements it, and a row in engines.py.
"""

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from gpulaunch.containers.asked import Asked
from gpulaunch.containers.life import Container, Image
from gpulaunch.errors import FailedError
from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record

ANSWER_S = 10.0
"""Seconds that an engine has for an answer."""

QUESTION_S = 2.0
"""Seconds that an engine has for all answers when a launch or a user looks at the table."""


_MOST_CHARACTERS = 16 << 20


class NoAnswerError(FailedError):
    """The engine cannot be reached, or does not answer."""


class LateError(NoAnswerError):
    """The engine has not answered in time."""


class ForbiddenError(NoAnswerError):
    """This user is not allowed to ask the engine."""


class Info(Record):
    """An engine's description of itself.

    Attributes:
        id: the engine's own id, kept with its data.
        version: version of the engine.
        runtimes: names of its runtimes.
        cdi_directories: directories in which it looks for CDI specifications.
        cdi_devices: device names that it has found there; None if the engine does not list them.
        security: names of its security options, such as userns or rootless.
    """

    id: str
    version: str
    runtimes: tuple[str, ...] = ()
    cdi_directories: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] | None = None
    security: tuple[str, ...] = ()


WAYS = {
    "cdi": "CDI devices {kind}=UUID",
    "runtime": "runtime nvidia with NVIDIA_VISIBLE_DEVICES",
    "gpus": "--gpus with a device list",
}
"""Ways by which GPUs get into a container, the preferred one first; `kind` is their driver's."""

NO_WAY = "none"
"""The way of GPUs that do not exist: only the environment names them."""


def describe_way(way: str, driver: str) -> str:
    """Return the words for a way by which the GPUs of a driver get into a container."""
    return WAYS[way].format(kind=DRIVERS[driver].cdi_kind)


class Offer(Record):
    """The ways into a container that an engine offers.

    Attributes:
        cdi: UUIDs that it knows as CDI devices.
        runtime: whether it has a runtime called nvidia.
        gpus: whether it accepts --gpus.
        cdi_returns: whether it can start a container with CDI devices again after it has been
            restarted itself.
    """

    cdi: frozenset[str]
    runtime: bool
    gpus: bool
    cdi_returns: bool = True

    def ways(self, uuids: Sequence[str], *, restarts: bool = False) -> list[str]:
        """Return the members of WAYS by which these GPUs can get in, the preferred one first.

        Args:
            uuids: the GPUs.
            restarts: whether the container has a restart policy.
        """
        there = {"cdi": self.cdi.issuperset(uuids), "runtime": self.runtime, "gpus": self.gpus}
        found = [way for way in WAYS if there[way]]
        return sorted(found, key="cdi".__eq__) if restarts and not self.cdi_returns else found


def find_cdi_devices(directories: tuple[str, ...], kind: str, uuids: set[str]) -> set[str]:
    """Return the UUIDs that CDI specifications name, for engines that do not list them.

    Args:
        directories: where the engine looks for specifications.
        kind: the GPUs' kind, such as nvidia.com/gpu.
        uuids: UUIDs to look for.
    """
    found: set[str] = set()
    for directory in directories:
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            path = os.path.join(directory, name)
            if not name.endswith((".json", ".yaml")) or not os.path.isfile(path):
                continue
            try:
                with open(path, errors="replace") as file:
                    text = file.read(_MOST_CHARACTERS)
            except OSError:
                continue
            if kind in text:
                found |= {uuid for uuid in uuids if uuid in text}
    return found


class EngineClient(Protocol):
    """A client of one engine of this machine; its class is that of all engines of the kind.

    Whatever the engine answers, only the errors named here are raised: the answer may come from
    another user's program. Each method raises NoAnswerError if the engine does not answer, and
    FailedError if it fails.

    Attributes:
        title: name of the engine in messages, such as Docker Engine.
        program: name of its client.
        id_prefix: start of its engines' ids, which no other engine's ids have; "" if it has none.
        address_variable: environment variable that gives its client the engine's address.
        cannot_share: reason why its containers cannot share GPUs through MPS, or None if they can.
        ways: the members of WAYS that it can have.
        address: address of the engine, for messages.
    """

    title: str
    program: str
    id_prefix: str
    address_variable: str
    cannot_share: str | None
    ways: frozenset[str]
    address: str

    @classmethod
    def usual(cls) -> "EngineClient":
        """Return a client of the engine that its program would talk to from here.

        Raises:
            UsageError: the engine is not on this machine.
            FailedError: the address cannot be found out.
        """

    @classmethod
    def known(cls, user_id: int) -> "Sequence[EngineClient]":
        """Return clients of the engines that may have a user's containers.

        An engine that is named in a record is never asked: requests in this user's name would go
        there.
        """

    def exists(self) -> bool:
        """Return whether there is something at the address."""

    def within(self, seconds: float) -> "EngineClient":
        """Return a client of the same engine with a limit for all its answers together."""

    def info(self) -> Info:
        """Return the engine's description of itself."""

    def offer_of(self, info: Info, topology: Topology) -> Offer:
        """Return the ways by which the engine can give a machine's GPUs to its containers."""

    def image(self, name: str) -> Image | None:
        """Return what an image says of its containers; None if it is not here."""

    def container(self, name: str) -> Container | None:
        """Return a container by name or id; labels from its image are left out."""

    def containers_of(self, lease_id: str, container_id: str | None = None) -> list[Container]:
        """Return the containers of a lease, in whatever state they are.

        Args:
            lease_id: id of the lease that they were made under.
            container_id: id of the one container that is older than the lease, or None.
        """

    def running(self) -> dict[str, str]:
        """Return the names of all running containers of any user, also paused ones, by id."""

    def actions(self, lease_id: str, container_id: str | None, since_s: float) -> list[str] | None:
        """Return what has happened to the containers that containers_of() returns, in order.

        Args:
            lease_id: id of the lease.
            container_id: id of a container, or None.
            since_s: time of the first event wanted, in seconds since 1970.

        Returns:
            Docker's words, of which start, kill, stop and destroy count; None if nobody keeps them.
        """

    def pids(self, container: Container) -> set[int]:
        """Return the pids of the processes in a container, as the host counts them."""

    def end(
        self,
        container: Container,
        grace_s: float,
        before_signal: Callable[[set[int], int], object] | None = None,
    ) -> None:
        """Stop a container with TERM, and after the grace with KILL, so that it does not come back.

        A container that has never run is removed; if it is being started at this moment, it is
        stopped.

        Args:
            container: the container.
            grace_s: seconds for it to end by itself.
            before_signal: called with its processes before they get TERM or KILL.

        Raises:
            FailedError: the engine refuses.
        """


class ContainerLaunch(Record):
    """The container of a launch.

    Attributes:
        client: client of its engine.
        engine_id: the engine's own id.
        way: way by which GPUs get in: one of WAYS, or NO_WAY.
        asked: the request for GPUs, or None.
        attached: whether the command that makes it stays until it has ended.
        passes_signals: whether that passes on the signals that it gets.
        container_id: its id if it exists already and is to be started again.
    """

    client: EngineClient
    engine_id: str
    way: str
    asked: Asked | None = None
    attached: bool = False
    passes_signals: bool = False
    container_id: str | None = None
