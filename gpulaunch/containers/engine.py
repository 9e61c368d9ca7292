"""The seam to what runs containers: the protocol that Docker is behind, and others can be.

A new engine is a module with what ContainerEngine asks for, a table of its client's flags, and a
row in engines.py.
"""
# pure: decides on plain values

from collections.abc import Callable, Mapping, Sequence

from gpulaunch.containers.command import ContainerCommand, Flag, Grammar
from gpulaunch.containers.life import Container
from gpulaunch.containers.ways import Offer
from gpulaunch.errors import FailedError
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record
from gpulaunch.typing import Protocol

ANSWER_S = 10.0
"""What an engine gets to answer in."""


class NoAnswerError(FailedError):
    """The engine cannot be reached, or does not answer."""


class ForbiddenError(NoAnswerError):
    """This user may not ask the engine."""


class Info(Record):
    """What an engine says of itself.

    Attributes:
        id: its own, kept with its data.
        version: of the engine.
        runtimes: names of all.
        cdi_directories: where it looks for CDI specifications.
        cdi_devices: names that it has found there; None from engines that do not tell.
        security: names of its security options, such as userns or rootless.
    """

    id: str
    version: str
    runtimes: tuple[str, ...] = ()
    cdi_directories: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] | None = None
    security: tuple[str, ...] = ()


class Asked(Record):
    """What the flags of an engine's client say about GPUs.

    Attributes:
        text: what says it, with its value, such as "--gpus 2" or "NV_GPU=0,1".
        number: of GPUs, or "all", or None if devices are named.
        devices: the GPUs named, by index or UUID; empty for none.
        nothing: no GPU is wanted.
        fields: what else --gpus says: driver, capabilities, options.
    """

    text: str
    number: str | None = None
    devices: tuple[str, ...] = ()
    nothing: bool = False
    fields: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """What says it, without the value."""
        return self.text.replace("=", " ").partition(" ")[0]


class Events(Protocol):
    """A stream of what happens to containers."""

    def fileno(self) -> int:
        """Return a descriptor to poll: it is readable when there is something new."""

    def actions(self, wait_s: float) -> list[str] | None:
        """Return what has happened since this was last asked; None once the stream has ended.

        Args:
            wait_s: the longest wait if there is nothing yet.

        Returns:
            Words of docker's, of which create, start, kill, stop, die and destroy count.

        Raises:
            NoAnswerError: the engine tells of no events.
        """

    def all(self) -> list[str]:
        """Return every action up to the stream's end.

        Raises:
            NoAnswerError: it does not end.
        """

    def close(self) -> None:
        """Listen no more."""


class EngineClient(Protocol):
    """One engine of this machine, which can be asked.

    Nothing but the errors named here comes of asking, whatever it answers: it may be another user's
    program. Each method raises NoAnswerError where the engine does not answer, and FailedError
    where it fails.
    """

    @property
    def title(self) -> str:
        """What kind of engine it is, for messages."""

    @property
    def address(self) -> str:
        """Where it answers, for messages."""

    def exists(self) -> bool:
        """Whether there is something at its address."""

    def within(self, seconds: float) -> "EngineClient":
        """Return a client of the same engine whose answers altogether may take so long."""

    def info(self) -> Info:
        """Return what it says of itself."""

    def info_later(self) -> Callable[[], Info]:
        """Ask what it says of itself, and return what reads the answer: it may take some time."""

    def image_labels(self, image: str) -> dict[str, str]:
        """Return the labels of an image; none if it is not here."""

    def image_user(self, image: str) -> str | None:
        """Return the user that containers of an image run as, empty for root; None if unknown."""

    def container(self, name: str) -> Container | None:
        """Return a container by name or id; labels that it has from its image do not count."""

    def containers_of(self, lease_id: str, container_id: str | None = None) -> list[Container]:
        """Return the containers that a lease is for, whatever became of them.

        Args:
            lease_id: that they were made under.
            container_id: of the one container that was there before the lease, or None.
        """

    def launched(self) -> list[Container]:
        """Return all containers that were made under a lease, whoever's it was."""

    def events(
        self, lease_id: str, container_id: str | None, since_s: float, until_s: float | None = None
    ) -> Events:
        """Listen to what happens to the containers of a lease.

        Args:
            lease_id: that they were made under.
            container_id: of the one container that was there before the lease, or None.
            since_s: from then on; seconds since 1970.
            until_s: up to then; None for no end.
        """

    def pids(self, container: Container) -> set[int]:
        """Return the pids of what runs in a container, as its host counts them."""

    def end(
        self,
        container: Container,
        grace_s: float,
        before_kill: Callable[[set[int]], object] | None = None,
    ) -> None:
        """Stop a container, TERM and after the grace KILL, so that it does not come back by itself.

        One that has never run is removed. If it is started in this very moment, it is stopped.

        Args:
            container: which.
            grace_s: time for it to end by itself.
            before_kill: called once with the processes that outlive the grace.

        Raises:
            FailedError: the engine does not do it.
        """


class ContainerEngine(Protocol):
    """A program that runs containers: its command line, its way to GPUs, and where it answers.

    Its client has docker's flags for what is not about GPUs: -e and --label, by which a container
    is told and marked, and --mount, --ipc, --user and --restart, which decide whether it can share.
    """

    @property
    def title(self) -> str:
        """What messages call it, such as Docker Engine."""

    @property
    def grammar(self) -> Grammar:
        """Its client's command line, as data."""

    @property
    def address_variable(self) -> str:
        """Environment variable that tells its client where the engine answers."""

    def asked_gpus(self, command: ContainerCommand, environment: Mapping[str, str]) -> Asked | None:
        """Return what the flags of run or create ask of GPUs; None if they say nothing.

        Args:
            command: the client's.
            environment: of this process.

        Raises:
            UsageError: they contradict each other, or the client would not understand them.
        """

    def is_gpu_flag(self, flag: Flag) -> bool:
        """Whether a flag gives GPUs to a container, so that a launch takes it out."""

    def flags_for(
        self,
        command: ContainerCommand,
        gpus: Sequence[Gpu],
        way: str,
        asked: Asked | None,
        driver: str,
    ) -> list[str]:
        """Return the flags that let a container see these GPUs and no others.

        Args:
            command: run or create.
            gpus: in rank order; none for a container that is to see no GPU.
            way: one of WAYS, or NO_WAY.
            asked: what the client's flags said.
            driver: name of the GPUs' driver in the registry.
        """

    def allowed_ways(self, command: ContainerCommand) -> set[str]:
        """Return those of WAYS that a command leaves open."""

    def offer_of(self, info: Info, topology: Topology) -> Offer:
        """Return the ways by which an engine can give GPUs to its containers.

        Args:
            info: what the engine says of itself.
            topology: the machine.
        """

    def client_of(self, command: ContainerCommand, environment: Mapping[str, str]) -> EngineClient:
        """Return a client of the engine that a command would talk to; it is not asked yet.

        Args:
            command: with the flags before the subcommand.
            environment: of this process.

        Raises:
            UsageError: the engine is not on this machine.
            FailedError: nobody can tell where it is.
        """

    def known_clients(self, user_id: int) -> list[EngineClient]:
        """Return clients of the engines that may have a user's containers.

        Never of one named in a record: a client that asks it sends its own requests there.
        """
