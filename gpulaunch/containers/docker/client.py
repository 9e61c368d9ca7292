"""A client of this machine's Docker Engine over its Unix socket.

Requests are HTTP/1.0, so every answer ends with its connection. The Docker SDK for Python could do
this too, but importing it takes longer than a whole launch (docs/decisions/docker.md).
"""

import json
import os
import signal
import time

# `import socket` makes enums of all its constants: half of what asking an engine costs a launch.
from _socket import AF_UNIX, MSG_NOSIGNAL, SOCK_STREAM, socket
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, TypeVar

from gpulaunch.containers.docker import TITLE
from gpulaunch.containers.docker.answers import (
    checked_text,
    parse_container,
    parse_image,
    parse_info,
    parse_pids,
    parse_running,
)
from gpulaunch.containers.engine import (
    ANSWER_S,
    ForbiddenError,
    Image,
    Info,
    LateError,
    NoAnswerError,
)
from gpulaunch.containers.life import LEASE_LABEL, PROJECT_LABEL, Container
from gpulaunch.errors import FailedError, printable
from gpulaunch.process.ending import reached_by
from gpulaunch.process.system import leads_namespace
from gpulaunch.records import replace

T = TypeVar("T")

_READ_BYTES = 1 << 16
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:@")
_MAX_ANSWER_BYTES = 16 << 20
_DECISIVE = ["destroy", "kill", "start", "stop"]
"""Events that tell an end from a restart."""


class _NotFoundError(FailedError):
    """The engine does not know what it was asked about."""


class _ConflictError(FailedError):
    """The engine cannot do that in the present state."""


class DockerClient:
    """A client of one engine; EngineClient documents the methods.

    Args:
        socket_path: path of its Unix socket.
        altogether_s: longest wait for all answers together, in seconds, or None for no limit.
    """

    def __init__(self, socket_path: str, altogether_s: float | None = None) -> None:
        self.title = TITLE
        self.address = socket_path
        self._answer_s = min(altogether_s or ANSWER_S, ANSWER_S)
        self._until_s = None if altogether_s is None else time.monotonic() + altogether_s
        self._lease_of: dict[str, str | None] = {}

    def exists(self) -> bool:
        """Return whether the socket exists."""
        return os.path.exists(self.address)

    def within(self, seconds: float) -> "DockerClient":
        """Return a client of the same engine with a limit for all its answers together."""
        return DockerClient(self.address, seconds)

    def info(self) -> Info:
        """Return the engine's description of itself."""
        return self._parse(self._send("GET", "/info"), parse_info)

    def image(self, name: str) -> Image | None:
        """Return what an image says; None if it is not here, or its name is wrong."""
        try:
            content = self._send("GET", f"/images/{percent_encode(name)}/json")
            return self._parse(content, parse_image)
        except NoAnswerError:
            raise
        except FailedError:
            return None

    def container(self, name: str) -> Container | None:
        """Return a container by name or id, or None.

        docker commit makes an image with the container's labels, and each container of that image
        has them, too. Those labels are left out.
        """
        if not name:
            return None
        try:
            found = self._parse(
                self._send("GET", f"/containers/{percent_encode(name)}/json"), parse_container
            )
        except _NotFoundError:
            return None
        if found.lease_id and self._lease_of_image(found.image_id) == found.lease_id:
            return replace(found, lease_id=None, uuids=(), shares=False)
        return found

    def _lease_of_image(self, image_id: str) -> str | None:
        """Return the lease in an image's labels, which never change under its id."""
        if image_id not in self._lease_of:
            image = self.image(image_id)
            self._lease_of[image_id] = image.labels.get(LEASE_LABEL) if image else None
        return self._lease_of[image_id]

    def containers_of(self, lease_id: str, container_id: str | None = None) -> list[Container]:
        """Return the containers of a lease."""
        if container_id is not None:
            # Another user's record may name any container: the id is looked for among ours.
            return self._find_labelled(LEASE_LABEL, container_id)
        found = [
            found
            for found in self._find_labelled(f"{LEASE_LABEL}={lease_id}")
            if found.lease_id == lease_id
        ]
        # Others are containers of images that are gone.
        return sorted(found, key=lambda container: container.created_at)[:1]

    def of_project(self, project: str) -> dict[str, str]:
        """Return the leases that the containers of a project of compose were made under, by id."""
        query = percent_encode(json.dumps({"label": [LEASE_LABEL, f"{PROJECT_LABEL}={project}"]}))
        content = self._send("GET", f"/containers/json?all=1&filters={query}")
        return self._parse(
            content, lambda answer: {one["Id"]: str(one["Labels"][LEASE_LABEL]) for one in answer}
        )

    def running(self) -> dict[str, str]:
        """Return the names of all running containers, also paused ones, by their ids."""
        return self._parse(self._send("GET", "/containers/json"), parse_running)

    def _find_labelled(self, label: str, only: str | None = None) -> list[Container]:
        query = percent_encode(json.dumps({"label": [label]}))
        content = self._send("GET", f"/containers/json?all=1&filters={query}")
        ids = self._parse(content, lambda answer: [checked_text(entry["Id"]) for entry in answer])
        wanted = [one for one in ids if only in (None, one)]
        return [container for container in map(self.container, wanted) if container]

    def actions(self, lease_id: str, container_id: str | None, since_s: float) -> list[str]:
        """Return what has happened to a lease's containers."""
        of = (
            {"label": [f"{LEASE_LABEL}={lease_id}"]}
            if container_id is None
            else {"container": [container_id]}
        )
        filters = percent_encode(json.dumps({**of, "event": _DECISIVE}))
        query = f"since={since_s:.6f}&until={time.time():.6f}&filters={filters}"
        lines = self._send("GET", f"/events?{query}").splitlines()
        return [self._parse(line, lambda event: str(event["Action"])) for line in lines if line]

    def pids(self, container: Container) -> set[int]:
        """Return the pids of the processes in a container, as the host counts them."""
        try:
            return self._parse(self._send("GET", f"/containers/{container.id}/top"), parse_pids)
        except (_NotFoundError, _ConflictError):  # it is not running
            return set()

    def end(
        self,
        container: Container,
        grace_s: float,
        before_signal: Callable[[set[int], int], object] | None = None,
    ) -> None:
        """Stop a container so that it does not come back."""
        with suppress(_NotFoundError):
            if container.state == "created":
                with suppress(_ConflictError):
                    self._send("DELETE", f"/containers/{container.id}")
                    return
            if container.restarts:
                self._send(
                    "POST", f"/containers/{container.id}/update", {"RestartPolicy": {"Name": "no"}}
                )
            if container.state == "paused":  # it would not receive TERM
                self._send("POST", f"/containers/{container.id}/unpause")
            if before_signal is None:
                path = f"/containers/{container.id}/stop?t={round(grace_s)}"
                self._send("POST", path, answer_s=grace_s + self._answer_s)
                return
            # It has to end, even if its processes cannot be listed.
            with suppress(FailedError):
                pids = self.pids(container)
                first = set(filter(leads_namespace, pids))
                before_signal(reached_by(signal.SIGTERM, first, pids), signal.SIGTERM)
            if not self._stops_by_itself(container, grace_s):
                with suppress(FailedError):
                    before_signal(self.pids(container), signal.SIGKILL)
                with suppress(_ConflictError):
                    self._send("POST", f"/containers/{container.id}/kill")

    def _stops_by_itself(self, container: Container, grace_s: float) -> bool:
        """Stop a container without KILL, and return whether it ends within the grace."""
        try:
            self._send("POST", f"/containers/{container.id}/stop?t=-1", answer_s=grace_s)
        except LateError:
            return False
        return True

    def _send(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        answer_s: float | None = None,
    ) -> bytes:
        """Send one request, and return the answer's content."""
        return self._read(
            self._request(method, path, content),
            self._time_left_s() if answer_s is None else answer_s,
        )

    def _time_left_s(self) -> float:
        left_s = self._answer_s if self._until_s is None else self._until_s - time.monotonic()
        return max(0.001, min(left_s, self._answer_s))

    def _request(self, method: str, path: str, content: Mapping[str, Any] | None) -> socket:
        connection = socket(AF_UNIX, SOCK_STREAM)
        try:
            connection.settimeout(self._time_left_s())
            connection.connect(self.address)
            head = f"{method} {path} HTTP/1.0\r\nHost: docker\r\n"
            body = b""
            if content is not None:
                body = json.dumps(content).encode()
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(f"{head}\r\n".encode() + body, MSG_NOSIGNAL)
        except OSError as problem:
            connection.close()
            raise self._no_answer_error(problem) from None
        return connection

    def _read(self, connection: socket, answer_s: float) -> bytes:
        deadline = time.monotonic() + answer_s
        answer = bytearray()
        with closing(connection):
            try:
                while True:
                    connection.settimeout(max(0.001, deadline - time.monotonic()))
                    part = connection.recv(_READ_BYTES)
                    answer += part
                    if not part:
                        break
                    if len(answer) > _MAX_ANSWER_BYTES:
                        raise self._wrong_answer_error()
            except OSError as problem:
                raise self._no_answer_error(problem) from None
        head, _, body = bytes(answer).partition(b"\r\n\r\n")
        self._check_status(head, body)
        return body

    def _check_status(self, head: bytes, body: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        if any(line.lower().startswith("server: libpod/") for line in lines):
            raise FailedError(f"{self.address} is podman's", "write podman: gpulaunch podman ...")
        status = (lines[0].split(" ")[1:2] or [""])[0]
        if status in ("301", "404"):  # 301 for names such as ../x
            raise _NotFoundError(f"the Docker Engine at {self.address} does not know that")
        if status == "409":
            raise _ConflictError(f"the Docker Engine at {self.address} cannot do that now")
        if len(status) != 3 or not status.isdecimal():
            raise self._wrong_answer_error()
        if status[0] not in "23":
            raise FailedError(f"the Docker Engine at {self.address} failed: {_read_message(body)}")

    def _parse(self, content: bytes, parse: Callable[[Any], T]) -> T:
        try:
            return parse(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._wrong_answer_error() from None

    def _wrong_answer_error(self) -> FailedError:
        return FailedError(f"what answers at {self.address} is no Docker Engine")

    def _no_answer_error(self, problem: OSError) -> NoAnswerError:
        reason = os.strerror(problem.errno).lower() if problem.errno else str(problem)
        kind = NoAnswerError
        if isinstance(problem, PermissionError):
            kind = ForbiddenError
        if isinstance(problem, TimeoutError):
            kind, reason = LateError, f"no answer in {round(self._answer_s, 1):g} s"
        return kind(f"cannot reach the Docker Engine at {self.address}: {reason}")


def percent_encode(text: str) -> str:
    """Percent-encode a text for a path or a query; urllib.parse does so, too, and costs 4 ms."""
    return "".join(
        chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}"
        for byte in text.encode(errors="replace")
    )


def _read_message(body: bytes) -> str:
    try:
        return printable(str(json.loads(body)["message"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return "no reason given"
