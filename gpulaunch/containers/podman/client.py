"""A client of this user's Podman, which has no daemon: the program itself is asked.

Containers are children of conmon, not of podman, and end with their processes. So their ends come
from pidfds, and podman is asked what they mean (docs/decisions/podman.md).
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from gpulaunch.containers.container import Container, Image
from gpulaunch.containers.docker.client import (
    checked_pid,
    checked_text,
    parse_container,
    parse_image,
)
from gpulaunch.containers.engine import (
    ANSWER_S,
    EngineClient,
    ForbiddenError,
    Info,
    LateError,
    NoAnswerError,
    NotFoundError,
    RefusedByEngineError,
)
from gpulaunch.containers.podman.command import STORE_FLAGS, PodmanCommand, asked_gpus, read_command
from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.process.system import parse_time, runs, user_name
from gpulaunch.records import replace

_LOOK_S = 0.5
_ID_PREFIX = "podman:"
_REMOTE_VARIABLES = ("CONTAINER_HOST", "CONTAINER_CONNECTION")
_REMOTE_FLAGS = frozenset({"--url", "-H", "--host", "-c", "--connection"})


class PodmanClient(EngineClient):
    """The podman program, asked about one store.

    Args:
        words: the program and its flags that say which store.
        user_id: id of the user whose store it is; only they can ask.
    """

    title, program = "Podman", "podman"
    id_prefix = _ID_PREFIX
    address_variable = "CONTAINERS_STORAGE_CONF"
    cannot_share = "podman's containers do not share GPUs yet"
    ways = frozenset({"cdi"})

    def __init__(self, words: Sequence[str], user_id: int) -> None:
        super().__init__(" ".join(words))
        self._words = tuple(words)
        self._user_id = user_id

    @classmethod
    def usual(cls) -> "PodmanClient":
        """Return a client of the store that podman would use from here."""
        return client_of(read_command([cls.program]))

    @classmethod
    def known(cls, user_id: int) -> "list[PodmanClient]":
        """Return a client of the user's store, which answers nobody else."""
        return [cls((cls.program,), user_id)]

    def exists(self) -> bool:
        """Return whether the program is there."""
        from shutil import which  # late: for doctor only

        return which(self._words[0]) is not None

    def info(self) -> Info:
        """Return podman's description of itself."""
        answer = self._ask("info", "--format", "json")
        return self._parse(answer, lambda info: _parse_info(info, self._user_id))

    def image(self, name: str) -> Image | None:
        """Return what an image says; None if it is not here, or its name is wrong."""
        if not name:  # of a container that was made by --rootfs
            return None
        try:
            content = self._ask("image", "inspect", "--format", "json", "--", name)
        except RefusedByEngineError:
            return None
        return self._parse(content, lambda answer: parse_image(answer[0]))

    def inspect(self, name: str) -> Container | None:
        """Return a container by name or id, with all of its labels."""
        try:
            content = self._ask("container", "inspect", "--format", "json", "--", name)
        except NotFoundError:
            return None
        found = self._parse(content, lambda answer: parse_inspected(answer[0], time.time()))
        if found.state in ("running", "paused") and not any(map(runs, found.watched)):
            # Its conmon was killed, and nobody told podman of the container's end.
            found = replace(found, state="dead")
        return found

    def names(self, label: str | None = None) -> dict[str, str]:
        """Return the names of containers by id: of those with a label, or of all that run."""
        which = ["--filter", "status=running", "--filter", "status=paused"]
        if label:
            which = ["--filter", f"label={label}"]
        content = self._ask("ps", "--all", "--no-trunc", "--format", "json", *which)
        return self._parse(
            content, lambda answer: {checked_text(one["Id"]): one["Names"][0] for one in answer}
        )

    def last_action(self, container_id: str, since_s: float) -> str:
        """Return the last of what has happened; podman may keep no events, or hide them."""
        since = datetime.fromtimestamp(since_s, timezone.utc).isoformat().replace("+00:00", "Z")
        words = ("--stream=false", "--format", "json", "--since", since)
        try:
            lines = self._ask("events", *words, "--filter", f"container={container_id}").split(
                b"\n"
            )
        except RefusedByEngineError:
            return "stop"
        last = "start"
        for line in filter(None, lines):
            status = self._parse(line, lambda event: str(event["Status"]))
            last = {"restart": "stop", "start": "start"}.get(status, last)
        return last

    def end(
        self,
        container: Container,
        grace_s: float,
        before_signal: Callable[[set[int], int], object] | None = None,  # noqa: ARG002  for MPS alone
    ) -> None:
        """Stop a container so that it does not come back."""
        with suppress(NotFoundError):
            if container.state == "created":
                with suppress(FailedError):  # it is being started
                    self._ask("rm", container.id)
                    return
            if container.state == "paused":
                self._ask("unpause", container.id)
            grace = str(round(grace_s))
            # No restart policy acts after podman stop.
            self._ask("stop", "--time", grace, container.id, answer_s=grace_s + ANSWER_S)
            deadline = time.monotonic() + RESTART_S + 1
            while (now := self.container(container.id)) and now.holds:
                if time.monotonic() > deadline:
                    raise FailedError(f"{self.title} has stopped {container.name}, but it goes on")
                time.sleep(_LOOK_S)

    def _ask(self, *words: str, answer_s: float | None = None) -> bytes:
        """Run podman with these words, and return what it prints."""
        import subprocess  # late: few launches need it, and it costs 10 ms

        limit_s = self._left_s() if answer_s is None else answer_s
        if self._user_id != os.geteuid():
            owner = user_name(self._user_id)
            raise ForbiddenError(f"only {owner} can ask {self.title} about containers of {owner}")
        try:
            done = subprocess.run(  # noqa: S603
                [*self._words, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit_s,
                start_new_session=True,  # no key at the terminal ends it
                check=False,
            )
        except subprocess.TimeoutExpired:
            shown_s = round(max(limit_s, self._answer_s), 1)
            raise LateError(f"no answer from {self.address} in {shown_s:g} s") from None
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            raise NoAnswerError(f"cannot start {self._words[0]}: {reason}") from None
        if done.returncode == 0:
            return done.stdout
        text = done.stderr.decode(errors="replace").strip()
        if "no such container" in text or "no such object" in text:
            raise NotFoundError(f"{self.title} does not know that container")
        last = text.rpartition("\n")[2].removeprefix("Error: ")
        raise RefusedByEngineError(f"{self.address} failed: {printable(last) or 'no reason given'}")


RESTART_S = 4.0
"""Seconds after a container's end within which its restart policy starts it again, if ever."""

_STATES = {
    "configured": "created",
    "created": "created",
    "initialized": "created",
    "running": "running",
    "stopping": "running",
    "paused": "paused",
    "stopped": "exited",
    "exited": "exited",
    "removing": "removing",
}

_CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_FIRST_WITH_CDI = (4, 1)


def parse_inspected(document: Mapping[str, Any], now_s: float) -> Container:
    """Read one container in the answer of podman container inspect.

    Args:
        now_s: the time, in seconds since 1970.
    """
    state = document["State"]
    status = _STATES.get(state["Status"], "running")  # unknown, as after a crash: its pids tell
    made_by, given = _read_creation(document["Config"])
    found = parse_container({**document, "State": {**state, "Status": status}})
    restarts = found.restarts
    if restarts and status == "exited":
        # A policy acts at once or, as after podman stop, never.
        restarts = now_s - parse_time(state["FinishedAt"]).timestamp() < RESTART_S
    pids = {checked_pid(state.get(name)) for name in ("Pid", "ConmonPid")}
    return replace(
        found,
        # Nothing starts a container of podman run once that is over.
        has_failed=status == "created" and made_by == "run",
        is_for_later=made_by == "create",
        restarts=restarts,
        given=given,
        watched=frozenset(pids - {0}),
    )


def _read_creation(config: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the subcommand that made a container, and the GPUs that its flags asked for."""
    try:
        command = read_command(config.get("CreateCommand") or ("podman",))
        asked = asked_gpus(command, {})
    except UsageError:
        return "", ()
    made_by = "".join(command.subcommand[-1:])
    if asked is None:
        return made_by, ()
    return made_by, ("all",) if asked.number == "all" else asked.devices


def _parse_info(answer: Mapping[str, Any], user_id: int) -> Info:
    version = checked_text(answer["version"]["Version"])
    numbers = tuple(int(number) for number in version.split(".")[:2])
    root = answer["store"]["graphRoot"]
    if not isinstance(root, str) or not root.startswith("/"):
        raise ValueError(root)
    return Info(
        id=f"{_ID_PREFIX}{user_id}:{root}",
        version=version,
        cdi_directories=_CDI_DIRECTORIES if numbers >= _FIRST_WITH_CDI else (),
        security=("rootless",) if answer["host"]["security"]["rootless"] else (),
    )


def client_of(command: PodmanCommand) -> PodmanClient:
    """Return a client of the store that a podman command would use.

    Raises:
        UsageError: it would ask a service, which may be on another machine.
    """
    origin = None
    for name in _REMOTE_VARIABLES:
        if os.environ.get(name):
            origin = f"{name}={printable(os.environ[name])}"
    for flag in command.global_flags:
        if flag.name in ("-r", "--remote"):
            origin = flag.name if flag.is_on else None
        elif flag.name in _REMOTE_FLAGS:
            origin = f"{flag.name} {printable(flag.value or '')}"
    if origin:
        raise UsageError(
            f"{origin}: podman would ask a service, whose GPUs may not be this machine's",
            "run 'gpulaunch podman' on the machine of the containers, without it",
        )
    words = [command.argv[0]]
    for flag in (*command.global_flags, *command.flags):
        if flag.name in STORE_FLAGS:
            words += command.argv[flag.begin : flag.end]
    return PodmanClient(words, os.geteuid())
