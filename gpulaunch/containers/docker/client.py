"""The Docker Engine of this machine, asked over its Unix socket.

Requests are HTTP/1.0, so every answer ends with its connection, and a stream of events is lines
until then. The Docker SDK for Python would do it too, but importing it takes longer than a whole
launch (docs/decisions/docker.md).
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from socket import AF_UNIX, MSG_NOSIGNAL, SOCK_STREAM, socket

from gpulaunch.containers.docker import TITLE
from gpulaunch.containers.docker.answers import (
    checked_text,
    parse_container,
    parse_info,
    parse_labels,
    parse_pids,
)
from gpulaunch.containers.engine import ANSWER_S, ForbiddenError, Info, NoAnswerError
from gpulaunch.containers.labels import LEASE_LABEL
from gpulaunch.containers.life import Container
from gpulaunch.errors import FailedError, printable
from gpulaunch.records import replace
from gpulaunch.typing import Any, TypeVar

T = TypeVar("T")

_READ_BYTES = 1 << 16
_MAX_ANSWER_BYTES = 16 << 20
_DECISIVE = ["create", "destroy", "die", "kill", "start", "stop", "update"]
"""Events after which a container may hold its GPUs or not."""

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:@")


class _LateError(NoAnswerError):
    """The engine has not answered in time."""


class _NotFoundError(FailedError):
    """The engine does not know what it was asked about."""


class _ConflictError(FailedError):
    """The engine cannot do that to what is as it is."""


class DockerClient:
    """One engine.

    Whatever it answers, nothing but the errors named here comes of it: it may be another user's
    program.

    Args:
        socket_path: of its Unix socket.
        answer_s: the longest wait for an answer.
        altogether_s: the longest wait for all answers together, or None for no limit.
    """

    def __init__(
        self, socket_path: str, answer_s: float = ANSWER_S, altogether_s: float | None = None
    ) -> None:
        self.title = TITLE
        self.address = socket_path
        self._answer_s = answer_s
        self._until_s = None if altogether_s is None else time.monotonic() + altogether_s

    def exists(self) -> bool:
        """Whether there is a socket."""
        return os.path.exists(self.address)

    def within(self, seconds: float) -> "DockerClient":
        """Return a client of the same engine whose answers altogether may take so long."""
        return DockerClient(self.address, altogether_s=seconds)

    def info(self) -> Info:
        """Return what it says of itself.

        Raises:
            NoAnswerError: it cannot be reached.
            FailedError: it is no Docker Engine.
        """
        return self.info_later()()

    def info_later(self) -> Callable[[], Info]:
        """Ask what it says of itself, and return what reads the answer: it takes some time."""
        connection = self._request("GET", "/info", None)
        return lambda: self._parsed(self._read(connection, self._patience_s()), parse_info)

    def image_labels(self, image: str) -> dict[str, str]:
        """Return the labels of an image; none if it is not here, or its name is wrong."""
        return self._of_image(image, parse_labels) or {}

    def image_user(self, image: str) -> str | None:
        """Return the user that an image's containers run as, empty for root; None if unknown."""
        return self._of_image(image, lambda config: str(config.get("User") or ""))

    def _of_image(self, image: str, parse: Callable[[Any], T]) -> T | None:
        try:
            content = self._do("GET", f"/images/{_quoted(image)}/json")
            return self._parsed(content, lambda answer: parse(answer["Config"]))
        except NoAnswerError:
            raise
        except FailedError:
            return None

    def container(self, name: str) -> Container | None:
        """Return a container by name or id.

        docker commit makes an image with the container's labels, and each container of that image
        has them, too. They are not its own, so they are left out.
        """
        if not name:
            return None
        try:
            found = self._parsed(
                self._do("GET", f"/containers/{_quoted(name)}/json"), parse_container
            )
        except _NotFoundError:
            return None
        if found.lease_id and self.image_labels(found.image_id).get(LEASE_LABEL) == found.lease_id:
            return replace(found, lease_id=None, uuids=(), shares=False)
        return found

    def containers_of(self, lease_id: str, container_id: str | None = None) -> list[Container]:
        """Return the containers that a lease is for, whatever became of them.

        Args:
            lease_id: that they were made under.
            container_id: of the one container that was there before the lease, or None.
        """
        if container_id is not None:
            known = self.container(container_id)
            return [known] if known else []
        found = [
            found
            for found in self._labelled(f"{LEASE_LABEL}={lease_id}")
            if found.lease_id == lease_id
        ]
        return sorted(found, key=lambda container: container.created_at)[
            :1
        ]  # others are of images that are gone

    def launched(self) -> list[Container]:
        """Return all containers that were made under a lease, whoever's it was."""
        return [container for container in self._labelled(LEASE_LABEL) if container.lease_id]

    def _labelled(self, label: str) -> list[Container]:
        query = _quoted(json.dumps({"label": [label]}))
        content = self._do("GET", f"/containers/json?all=1&filters={query}")
        ids = self._parsed(content, lambda answer: [checked_text(entry["Id"]) for entry in answer])
        return [container for container in map(self.container, ids) if container]

    def events(
        self, lease_id: str, container_id: str | None, since_s: float, until_s: float | None = None
    ) -> "DockerEvents":
        """Listen to what happens to the containers of a lease.

        Args:
            lease_id: that they were made under.
            container_id: of the one container that was there before the lease, or None.
            since_s: from then on; seconds since 1970.
            until_s: up to then; None for no end.
        """
        of = (
            {"label": [f"{LEASE_LABEL}={lease_id}"]}
            if container_id is None
            else {"container": [container_id]}
        )
        query = f"since={since_s:.6f}&filters={_quoted(json.dumps({**of, 'event': _DECISIVE}))}"
        if until_s is not None:
            query += f"&until={until_s:.6f}"
        return DockerEvents(self._request("GET", f"/events?{query}", None), self.address)

    def pids(self, container: Container) -> set[int]:
        """Return the pids of what runs in a container, as its host counts them."""
        try:
            return self._parsed(self._do("GET", f"/containers/{container.id}/top"), parse_pids)
        except (_NotFoundError, _ConflictError):  # it does not run
            return set()

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
        with suppress(_NotFoundError):
            if container.state == "created":
                with suppress(_ConflictError):
                    self._do("DELETE", f"/containers/{container.id}")
                    return
            if container.restarts:
                self._do(
                    "POST", f"/containers/{container.id}/update", {"RestartPolicy": {"Name": "no"}}
                )
            if container.state == "paused":  # it would not hear TERM
                self._do("POST", f"/containers/{container.id}/unpause")
            if before_kill is None:
                path = f"/containers/{container.id}/stop?t={round(grace_s)}"
                self._do("POST", path, answer_s=grace_s + self._answer_s)
            elif not self._stops_by_itself(container, grace_s):
                with suppress(FailedError):  # it has to end, even if nobody can tell who is in it
                    before_kill(self.pids(container))
                with suppress(_ConflictError):
                    self._do("POST", f"/containers/{container.id}/kill")

    def _stops_by_itself(self, container: Container, grace_s: float) -> bool:
        """Tell a container to stop, and return whether it does within the grace."""
        try:
            self._do("POST", f"/containers/{container.id}/stop?t=-1", answer_s=grace_s)
        except _LateError:
            return False
        return True

    def _do(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        answer_s: float | None = None,
    ) -> bytes:
        """Send one request, and return the answer's content."""
        return self._read(
            self._request(method, path, content),
            self._patience_s() if answer_s is None else answer_s,
        )

    def _patience_s(self) -> float:
        left_s = self._answer_s if self._until_s is None else self._until_s - time.monotonic()
        return max(0.001, min(left_s, self._answer_s))

    def _request(self, method: str, path: str, content: Mapping[str, Any] | None) -> socket:
        connection = socket(AF_UNIX, SOCK_STREAM)
        try:
            connection.settimeout(self._patience_s())
            connection.connect(self.address)
            head = f"{method} {path} HTTP/1.0\r\nHost: docker\r\n"
            body = b""
            if content is not None:
                body = json.dumps(content).encode()
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(f"{head}\r\n".encode() + body, MSG_NOSIGNAL)
        except OSError as problem:
            connection.close()
            raise self._no_answer(problem) from None
        return connection

    def _read(self, connection: socket, answer_s: float) -> bytes:
        deadline = time.monotonic() + answer_s
        answer = bytearray()
        with connection:
            try:
                while True:
                    connection.settimeout(max(0.001, deadline - time.monotonic()))
                    part = connection.recv(_READ_BYTES)
                    answer += part
                    if not part:
                        break
                    if len(answer) > _MAX_ANSWER_BYTES:
                        raise self._nonsense()
            except OSError as problem:
                raise self._no_answer(problem) from None
        head, _, body = bytes(answer).partition(b"\r\n\r\n")
        self._judge(head, body)
        return body

    def _judge(self, head: bytes, body: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        if any(line.lower().startswith("server: libpod/") for line in lines):
            raise FailedError(f"{self.address} is podman's: launching with podman is not built yet")
        status = (lines[0].split(" ")[1:2] or [""])[0]
        if status in ("301", "404"):  # the first for names such as ../x
            raise _NotFoundError(f"the Docker Engine at {self.address} does not know that")
        if status == "409":
            raise _ConflictError(f"the Docker Engine at {self.address} cannot do that now")
        if len(status) != 3 or not status.isdecimal():
            raise self._nonsense()
        if status[0] not in "23":
            raise FailedError(f"the Docker Engine at {self.address} failed: {_message(body)}")

    def _parsed(self, content: bytes, parse: Callable[[Any], T]) -> T:
        try:
            return parse(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._nonsense() from None

    def _nonsense(self) -> FailedError:
        return FailedError(f"what answers at {self.address} is no Docker Engine")

    def _no_answer(self, problem: OSError) -> NoAnswerError:
        reason = os.strerror(problem.errno).lower() if problem.errno else str(problem)
        reason = (
            f"no answer in {self._answer_s:g} s" if isinstance(problem, TimeoutError) else reason
        )
        kinds = {PermissionError: ForbiddenError, TimeoutError: _LateError}
        kind = next(
            (kind for cause, kind in kinds.items() if isinstance(problem, cause)), NoAnswerError
        )
        return kind(f"cannot reach the Docker Engine at {self.address}: {reason}")


class DockerEvents:
    """A stream of an engine's events.

    Args:
        connection: that it comes by; the request has been sent.
        socket_path: of the engine.
    """

    def __init__(self, connection: socket, socket_path: str) -> None:
        self._connection = connection
        self._socket_path = socket_path
        self._data = b""
        self._in_content = False

    def fileno(self) -> int:
        """Return a descriptor to poll: it is readable when there is something new."""
        return self._connection.fileno()

    def actions(self, wait_s: float) -> list[str] | None:
        """Return what has happened since this was last asked, such as ["die", "destroy"].

        Args:
            wait_s: the longest wait if there is nothing yet.

        Returns:
            None once the stream has ended.

        Raises:
            NoAnswerError: this is no such stream.
        """
        self._connection.settimeout(wait_s)
        try:
            part = self._connection.recv(_READ_BYTES)
        except (TimeoutError, BlockingIOError):
            return []
        except OSError:
            return None
        if not part:
            return None
        self._data += part
        if not self._in_content:
            head, found, rest = self._data.partition(b"\r\n\r\n")
            if found and head.split(b" ")[1:2] != [b"200"]:
                raise NoAnswerError(f"the Docker Engine at {self._socket_path} tells of no events")
            if not found:
                return []
            self._in_content, self._data = True, rest
        *lines, self._data = self._data.split(b"\n")
        return [action for line in lines if line for action in _action(line)]

    def all(self) -> list[str]:
        """Return every action up to the stream's end.

        Raises:
            NoAnswerError: it does not end.
        """
        found: list[str] = []
        deadline = time.monotonic() + ANSWER_S
        while (actions := self.actions(max(0.0, deadline - time.monotonic()))) is not None:
            found += actions
            if time.monotonic() >= deadline:
                raise NoAnswerError(f"the Docker Engine at {self._socket_path} tells of no events")
        return found

    def close(self) -> None:
        """Listen no more."""
        self._connection.close()


def _action(line: bytes) -> Iterator[str]:
    try:
        yield str(json.loads(line)["Action"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return


def _quoted(text: str) -> str:
    """Return text percent-encoded, for a path or a query."""
    return "".join(
        chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode(errors="replace")
    )


def _message(body: bytes) -> str:
    try:
        return printable(str(json.loads(body)["message"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return "no reason given"
