"""Container engines: what Docker and Podman have in common, and what each does in its own way.

A new engine is a class of clients, and a row in engines.py.
"""

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from gpulaunch.containers.container import LEASE_LABEL, Container, Image
from gpulaunch.errors import FailedError
from gpulaunch.machine.driver import DRIVERS
from gpulaunch.machine.topology import Topology
from gpulaunch.records import Record

ANSWER_S = 10.0
"""Seconds that an engine has for an answer."""

QUESTION_S = 2.0
"""Seconds that an engine has for all answers when a launch or a user looks at the table."""

_MOST_CHARACTERS = 16 << 20
_HOOK = "nvidia-container-runtime-hook"
_USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

T = TypeVar("T")


class NoAnswerError(FailedError):
    """The engine cannot be reached, or does not answer."""


class LateError(NoAnswerError):
    """The engine has not answered in time."""


class ForbiddenError(NoAnswerError):
    """This user is not allowed to ask the engine."""


class RefusedByEngineError(FailedError):
    """The engine has answered that it does not do that, or does not know what that is about."""


class NotFoundError(RefusedByEngineError):
    """The engine does not know what it was asked about."""


class Info(Record):
    """An engine's description of itself.

    Attributes:
        id: the engine's own id, kept with its data.
        runtimes: names of its runtimes.
        cdi_devices: device names that it has found there; None if the engine does not list them.
        security: names of its security options, such as userns or rootless.
        cdi_returns: whether it can start a container with CDI devices again after it has been
            restarted itself.
    """

    id: str
    version: str
    runtimes: tuple[str, ...] = ()
    cdi_directories: tuple[str, ...] = ()
    cdi_devices: frozenset[str] | None = None
    security: tuple[str, ...] = ()
    cdi_returns: bool = True


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


def _cdi_names_all(directories: Sequence[str], kind: str, uuids: Sequence[str]) -> bool:
    """Return whether CDI specifications name all of these GPUs, for engines that list none."""
    texts = []
    for directory in directories:
        names = []
        with suppress(OSError):
            names = os.listdir(directory)
        for path in (os.path.join(directory, name) for name in names):
            if path.endswith((".json", ".yaml")) and os.path.isfile(path):
                with suppress(OSError), open(path, errors="replace") as file:
                    texts.append(file.read(_MOST_CHARACTERS))
    texts = [text for text in texts if kind in text]
    return all(any(uuid in text for text in texts) for uuid in uuids)


class EngineClient(ABC):
    """A client of one engine of this machine; the engines of each kind have a class of their own.

    Whatever the engine answers, only the errors named here are raised: the answer may come from
    another user's program. Each method raises NoAnswerError if the engine does not answer, and
    FailedError if it fails.

    Attributes:
        title: name of the engine in messages, such as Docker Engine.
        address_variable: environment variable that gives its client the engine's address.
        cannot_share: reason why its containers cannot share GPUs through MPS, or None if they can.
        ways: the members of WAYS that it can have.
    """

    title: str
    program: str
    address_variable: str
    cannot_share: str | None = None
    ways: frozenset[str]

    def __init__(self, address: str) -> None:
        self.address = address
        self._answer_s, self._until_s = ANSWER_S, float("inf")

    @classmethod
    @abstractmethod
    def usual(cls) -> "EngineClient":
        """Return a client of the engine that its program would talk to from here.

        Raises:
            UsageError: the engine is not on this machine.
            FailedError: the address cannot be found out.
        """

    @classmethod
    @abstractmethod
    def known(cls, user_id: int) -> "Sequence[EngineClient]":
        """Return clients of the engines that may have a user's containers.

        An engine that is named in a record is never asked: requests in this user's name would go
        there.
        """

    def within(self, seconds: float) -> "EngineClient":
        """Return a client of the same engine with a limit for all its answers together.

        Without one each answer has ANSWER_S.
        """
        limited = self.__new__(type(self))
        limits = {"_answer_s": min(seconds, ANSWER_S), "_until_s": time.monotonic() + seconds}
        limited.__dict__.update(self.__dict__, **limits)
        return limited

    @abstractmethod
    def info(self) -> Info:
        """Return the engine's description of itself."""

    def ways_into(self, info: Info, topology: Topology) -> list[str]:
        """Return the members of WAYS by which all of a machine's GPUs can get into its containers.

        The preferred way comes first.
        """
        entry = DRIVERS[topology.driver]
        uuids = [gpu.uuid for gpu in topology.gpus]
        if info.cdi_devices is None:
            has_cdi = _cdi_names_all(info.cdi_directories, entry.cdi_kind, uuids)
        else:
            has_cdi = info.cdi_devices.issuperset(f"{entry.cdi_kind}={uuid}" for uuid in uuids)
        found = ["cdi"] if has_cdi else []
        others = self.ways & {*entry.container_ways}
        if "runtime" in others and "nvidia" in info.runtimes:
            found.append("runtime")
        directories = f"{os.environ.get('PATH', '')}:{_USUAL_PATH}".split(":")
        hooks = (os.path.join(directory, _HOOK) for directory in directories)
        if "gpus" in others and any(os.access(hook, os.X_OK) for hook in hooks):
            found.append("gpus")
        return found

    @abstractmethod
    def image(self, name: str) -> Image | None:
        """Return what an image says of its containers; None if it is not here."""

    @abstractmethod
    def container(self, name: str) -> Container | None:
        """Return a container by name or id, or None; its image's labels do not count."""

    def container_of(self, lease_id: str, container_id: str | None = None) -> Container | None:
        """Return the container of a lease, in whatever state it is; None if there is none.

        Args:
            container_id: its id if it is older than the lease, or None.
        """
        if container_id is not None:
            # Another user's record may name any container: the id is looked for among ours.
            return self.container(container_id) if container_id in self.names(LEASE_LABEL) else None
        named = map(self.container, self.names(f"{LEASE_LABEL}={lease_id}"))
        mine = [found for found in named if found and found.lease_id == lease_id]
        # Others are containers of images that are gone.
        return min(mine, key=lambda container: container.created_at, default=None)

    @abstractmethod
    def names(self, label: str | None = None) -> dict[str, str]:
        """Return the names of containers by id, of any user's.

        Args:
            label: label that they have, running or not; None for all that run or are paused.
        """

    @abstractmethod
    def last_action(self, container_id: str, since_s: float) -> str:
        """Return the last of what has happened to a container: "start", "kill" or "stop".

        After what docker calls stop a start may follow, and so it may if nobody knows.

        Args:
            since_s: time before which nothing matters, in seconds since 1970.
        """

    def pids(self, container: Container) -> set[int]:  # noqa: ARG002
        """Return the pids of the processes in a container that shares, as the host counts them."""
        return set()

    @abstractmethod
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
            grace_s: seconds for it to end by itself.
            before_signal: called with its processes before they get TERM or KILL.

        Raises:
            FailedError: the engine refuses.
        """

    def _left_s(self) -> float:
        """Return how long the next answer may take, in seconds."""
        return max(0.001, min(self._until_s - time.monotonic(), self._answer_s))

    def _parse(self, content: bytes, parse: Callable[[Any], T]) -> T:
        """Return what is read from an answer in JSON, whoever wrote it."""
        try:
            return parse(json.loads(content))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise self._wrong_answer_error() from None

    def _wrong_answer_error(self) -> FailedError:
        return FailedError(f"what answers at {self.address} is no {self.title}")


class ContainerLaunch(Record):
    """The container of a launch.

    Attributes:
        engine_id: the engine's own id.
        way: way by which GPUs get in: one of WAYS, or NO_WAY.
        attached: whether the command that makes it stays until it has ended.
        passes_signals: whether that passes on the signals that it gets.
        container_id: its id if it exists already and is to be started again.
    """

    client: EngineClient
    engine_id: str
    way: str
    asks_for_all: bool = False
    attached: bool = False
    passes_signals: bool = False
    container_id: str | None = None
