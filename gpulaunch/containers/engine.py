"""The interface to container engines: the protocols that Docker and Podman implement.

A new engine is a module that implements them, and a row in engines.py.
"""
# pure: decides on plain values

from collections.abc import Callable, Mapping
from typing import Protocol

from gpulaunch.containers.life import Container
from gpulaunch.containers.ways import Offer
from gpulaunch.errors import FailedError
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record

ANSWER_S = 10.0
"""Seconds that an engine has for an answer."""

QUESTION_S = 2.0
"""Seconds that an engine has for all answers when a launch or a user looks at the table."""


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


class Image(Record):
    """What an image says of its containers.

    Attributes:
        user: user of their programs; "" for root.
        labels: labels by name.
        variables: environment variables by name.
    """

    user: str
    labels: Mapping[str, str]
    variables: Mapping[str, str]


class EngineClient(Protocol):
    """A client of one engine of this machine.

    Whatever the engine answers, only the errors named here are raised: the answer may come from
    another user's program. Each method raises NoAnswerError if the engine does not answer, and
    FailedError if it fails.

    Attributes:
        title: kind of engine, for messages.
        address: address of the engine, for messages.
    """

    title: str
    address: str

    def exists(self) -> bool:
        """Return whether there is something at the address."""

    def within(self, seconds: float) -> "EngineClient":
        """Return a client of the same engine with a limit for all its answers together."""

    def info(self) -> Info:
        """Return the engine's description of itself."""

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


class ContainerEngine(Protocol):
    """A program that runs containers: its ways for GPUs, and its addresses.

    Attributes:
        title: name of the engine in messages, such as Docker Engine.
        program: name of its client.
        id_prefix: start of its engines' ids, which no other engine's ids have; "" if it has none.
        cannot_share: reason why its containers cannot share GPUs through MPS, or None if they can.
        address_variable: environment variable that gives its client the engine's address.
        ways: the members of WAYS that it can have.
    """

    title: str
    program: str
    id_prefix: str
    cannot_share: str | None
    address_variable: str
    ways: frozenset[str]

    def offer_of(self, info: Info, topology: Topology) -> Offer:
        """Return the ways by which an engine can give a machine's GPUs to its containers."""

    def usual_client(self) -> EngineClient:
        """Return a client of the engine that its program would talk to from here.

        Raises:
            UsageError: the engine is not on this machine.
            FailedError: the address cannot be found out.
        """

    def known_clients(self, user_id: int) -> list[EngineClient]:
        """Return clients of the engines that may have a user's containers.

        An engine that is named in a record is never asked: requests in this user's name would go
        there.
        """
