"""A client of this machine's Docker Engine over its Unix socket.

Requests are HTTP/1.0, so every answer ends with its connection. The Docker SDK for Python could do
this too, but importing it takes longer than a whole launch (docs/decisions/docker.md).
"""

import json
import os
import re
import signal
import time

# `import socket` makes enums of all its constants: half of what asking an engine costs a launch.
from _socket import AF_UNIX, MSG_NOSIGNAL, SOCK_STREAM, socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from typing import Any

from gpulaunch.containers import DOCKER_SOCKET, DOCKER_VARIABLE, ROOTLESS_DOCKER_SOCKET
from gpulaunch.containers.container import (
    GPUS_LABEL,
    LATER_LABEL,
    LEASE_LABEL,
    PROJECT_LABEL,
    SHARE_LABEL,
    Container,
    Image,
    service_of,
)
from gpulaunch.containers.create import given_gpus
from gpulaunch.containers.docker.line import read_line, socket_of
from gpulaunch.containers.engine import (
    WAYS,
    EngineClient,
    ForbiddenError,
    Info,
    LateError,
    NoAnswerError,
    NotFoundError,
    RefusedByEngineError,
)
from gpulaunch.errors import FailedError, GpulaunchError, printable
from gpulaunch.process.ending import reached_by
from gpulaunch.process.system import leads_namespace
from gpulaunch.records import replace

_CDI_RETURNS = (28, 2)  # the first version that starts containers with CDI again (moby 49989)
_READ_BYTES = 1 << 16
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:@")
_MAX_ANSWER_BYTES = 16 << 20


class DockerClient(EngineClient):
    """A client of one engine, whose address is the path of its socket."""

    title, program = "Docker Engine", "docker"
    address_variable = DOCKER_VARIABLE
    ways = frozenset(WAYS)

    @classmethod
    def usual(cls) -> "DockerClient":
        """Return a client of the engine that docker would talk to from here."""
        return cls(socket_of(read_line([cls.program])))

    @classmethod
    def known(cls, user_id: int) -> "list[DockerClient]":
        """Return clients of docker's usual engine here, the host's and the user's."""
        sockets = [DOCKER_SOCKET, ROOTLESS_DOCKER_SOCKET.format(user_id=user_id)]
        # The engine may be on another machine, or docker may not know the context.
        with suppress(GpulaunchError, OSError):
            sockets.insert(0, cls.usual().address)
        return [cls(path) for path in dict.fromkeys(sockets) if os.path.exists(path)]

    def info(self) -> Info:
        """Return the engine's description of itself."""
        return self._parse(self._send("GET", "/info"), parse_info)

    def image(self, name: str) -> Image | None:
        """Return what an image says; None if it is not here, or its name is wrong."""
        try:
            content = self._send("GET", f"/images/{percent_encode(name)}/json")
        except RefusedByEngineError:
            return None
        return self._parse(content, parse_image)

    def container(self, name: str) -> Container | None:
        """Return a container by name or id, or None.

        docker commit makes an image with the container's labels, and each container of that image
        has them, too. Those labels are left out.
        """
        try:
            content = self._send("GET", f"/containers/{percent_encode(name)}/json")
        except NotFoundError:
            return None
        found = self._parse(content, parse_container)
        image = self.image(found.image_id) if found.lease_id else None
        if image and image.labels.get(LEASE_LABEL) == found.lease_id:
            return replace(found, lease_id=None, uuids=(), shares=False)
        return found

    def names(self, label: str | None = None) -> dict[str, str]:
        """Return the names of containers by id: of those with a label, or of all that run."""
        path = f"/containers/json?all=1&filters={_labels(label)}" if label else "/containers/json"
        return self._parse(self._send("GET", path), _parse_names)

    def of_project(self, project: str) -> dict[str, str]:
        """Return the leases that the containers of a project of compose were made under, by id."""
        labels = _labels(LEASE_LABEL, f"{PROJECT_LABEL}={project}")
        content = self._send("GET", f"/containers/json?all=1&filters={labels}")
        return self._parse(
            content, lambda answer: {one["Id"]: str(one["Labels"][LEASE_LABEL]) for one in answer}
        )

    def last_action(self, container_id: str, since_s: float) -> str:
        """Return the last of what has happened to a container."""
        wanted = {"container": [container_id], "event": ["kill", "start", "stop"]}
        filters = percent_encode(json.dumps(wanted))
        query = f"since={since_s:.6f}&until={time.time():.6f}&filters={filters}"
        lines = self._send("GET", f"/events?{query}").rstrip().splitlines()
        return self._parse(lines[-1], lambda event: str(event["Action"])) if lines else "start"

    def pids(self, container: Container) -> set[int]:
        """Return the pids of the processes in a container, as the host counts them."""
        return self._parse(self._send("GET", f"/containers/{container.id}/top"), _parse_pids)

    def end(
        self,
        container: Container,
        grace_s: float,
        before_signal: Callable[[set[int], int], object] | None = None,
    ) -> None:
        """Stop a container so that it does not come back."""
        path = f"/containers/{container.id}"
        with suppress(NotFoundError):
            if container.state == "created":
                with suppress(RefusedByEngineError):  # it is being started
                    self._send("DELETE", path)
                    return
            if container.restarts:
                self._send("POST", f"{path}/update", {"RestartPolicy": {"Name": "no"}})
            if container.state == "paused":  # it would not receive TERM
                self._send("POST", f"{path}/unpause")
            if before_signal is None:
                limit_s = grace_s + self._answer_s
                self._send("POST", f"{path}/stop?t={round(grace_s)}", answer_s=limit_s)
                return
            # It has to end, even if its processes cannot be listed.
            with suppress(FailedError):
                pids = self.pids(container)
                first = set(filter(leads_namespace, pids))
                before_signal(reached_by(signal.SIGTERM, first, pids), signal.SIGTERM)
            try:
                self._send("POST", f"{path}/stop?t=-1", answer_s=grace_s)
            except LateError:
                with suppress(FailedError):
                    before_signal(self.pids(container), signal.SIGKILL)
                with suppress(RefusedByEngineError):  # it has ended
                    self._send("POST", f"{path}/kill")

    def _send(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        answer_s: float | None = None,
    ) -> bytes:
        """Send one request, and return the answer's content."""
        body = b"" if content is None else json.dumps(content).encode()
        head = f"{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        answer = bytearray()
        try:
            with closing(socket(AF_UNIX, SOCK_STREAM)) as connection:
                connection.settimeout(self._left_s())
                connection.connect(self.address)
                connection.sendall(request, MSG_NOSIGNAL)
                until_s = time.monotonic() + (self._left_s() if answer_s is None else answer_s)
                while True:
                    connection.settimeout(max(0.001, until_s - time.monotonic()))
                    part = connection.recv(_READ_BYTES)
                    if not part:
                        break
                    answer += part
                    if len(answer) > _MAX_ANSWER_BYTES:
                        raise self._wrong_answer_error()
        except OSError as problem:
            raise self._no_answer_error(problem) from None
        return self._content_of(bytes(answer))

    def _content_of(self, answer: bytes) -> bytes:
        """Return the content of an answer, whose head says that it is a good one."""
        start, _, content = answer.partition(b"\r\n\r\n")
        lines = start.decode("latin-1").split("\r\n")
        if any(line.lower().startswith("server: libpod/") for line in lines):
            raise FailedError(f"{self.address} is podman's", "write podman: gpulaunch podman ...")
        status = (*lines[0].split(" "), "")[1]
        if status in ("301", "404"):  # 301 for names such as ../x
            raise NotFoundError(f"the Docker Engine at {self.address} does not know that")
        if len(status) != 3 or not status.isdecimal():
            raise self._wrong_answer_error()
        if status[0] not in "23":
            reason = "no reason given"
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                reason = printable(str(json.loads(content)["message"]))
            raise RefusedByEngineError(f"the Docker Engine at {self.address} failed: {reason}")
        return content

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


def _labels(*labels: str) -> str:
    """Return a filter for containers with all of these labels."""
    return percent_encode(json.dumps({"label": labels}))


_LARGEST_PID = 1 << 22


def parse_container(document: Mapping[str, Any]) -> Container:
    """Read the answer of GET /containers/ID/json, or of podman with docker's states."""
    state = document["State"]
    labels = parse_labels(document["Config"])
    policy = document["HostConfig"].get("RestartPolicy") or {}
    return Container(
        id=checked_text(document["Id"]),
        name=document["Name"].removeprefix("/"),
        state=printable(str(state["Status"])),
        has_failed=state.get("ExitCode", 0) != 0 or bool(state.get("Error")),
        restarts=_restarts(policy, state, document.get("RestartCount", 0)),
        image_id=str(document["Image"]),
        lease_id=labels.get(LEASE_LABEL),
        uuids=tuple(uuid for uuid in labels.get(GPUS_LABEL, "").split(",") if uuid),
        created_at=str(document.get("Created", "")),
        shares=SHARE_LABEL in labels,
        given=given_gpus(document["HostConfig"], document["Config"].get("Env") or ()),
        watched=frozenset({checked_pid(state.get("Pid"))} - {0}),
        is_for_later=LATER_LABEL in labels,
        service=service_of(labels),
    )


def parse_image(document: Mapping[str, Any]) -> Image:
    """Read the answer of GET /images/NAME/json."""
    config = document["Config"]
    assignments = [str(text).partition("=") for text in config.get("Env") or ()]
    return Image(
        user=str(config.get("User") or ""),
        labels=parse_labels(config),
        variables={name: value for name, _, value in assignments},
    )


def _parse_names(answer: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    names = {}
    for one in answer:
        # Links give a container further names, such as /other/alias; one on its way out has none.
        own = [name for name in one.get("Names") or () if name.count("/") == 1]
        names[checked_text(one["Id"])] = own[0][1:] if own else one["Id"][:12]
    return names


def checked_pid(value: object) -> int:
    """Return a number that can be a pid; 0 for any other value."""
    return value if isinstance(value, int) and 0 < value <= _LARGEST_PID else 0


def parse_labels(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels in the Config of a container or image, without values that are no text."""
    return {
        key: value for key, value in (config.get("Labels") or {}).items() if isinstance(value, str)
    }


def checked_text(value: object) -> str:
    """Return an identifier, version or path after checking that it can be one.

    Raises:
        ValueError: the value is something else.
    """
    if not isinstance(value, str) or not value or not (value.isascii() and value.isprintable()):
        raise ValueError(f"{value!r} is no identifier")
    return value


def _restarts(policy: Mapping[str, Any], state: Mapping[str, Any], restarted: int) -> bool:
    """Return whether the engine may start a container again by its restart policy."""
    if policy.get("Name") != "on-failure":
        return policy.get("Name") in ("always", "unless-stopped")
    has_ended_well = state["Status"] == "exited" and state.get("ExitCode") == 0
    return not has_ended_well and not restarted >= (policy.get("MaximumRetryCount") or 0) > 0


def parse_info(answer: Mapping[str, Any]) -> Info:
    """Read the answer of GET /info."""
    devices, version = answer.get("DiscoveredDevices"), checked_text(answer["ServerVersion"])
    numbers = re.match(r"(\d+)\.(\d+)", version)  # of a version such as 28.2.0-rc.1
    options = map(str, answer.get("SecurityOptions") or ())  # such as name=seccomp,profile=builtin
    return Info(
        id=checked_text(answer["ID"]),
        version=version,
        runtimes=tuple(answer.get("Runtimes") or ()),
        cdi_directories=tuple(map(checked_text, answer.get("CDISpecDirs") or ())),
        cdi_devices=None if devices is None else frozenset(one.get("ID", "") for one in devices),
        security=tuple(option.partition(",")[0].removeprefix("name=") for option in options),
        cdi_returns=numbers is not None and (int(numbers[1]), int(numbers[2])) >= _CDI_RETURNS,
    )


def _parse_pids(answer: Mapping[str, Any]) -> set[int]:
    """Read the table that ps writes."""
    titles = answer["Titles"]
    return {int(dict(zip(titles, row, strict=True))["PID"]) for row in answer["Processes"]}
