"""A client of this user's Podman, which has no daemon: the program itself is asked.

Containers are children of conmon, not of podman, and end with their processes. So their ends come
from pidfds, and podman is asked what they mean (docs/decisions/podman.md).
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from gpulaunch.containers.docker.answers import checked_text, parse_image
from gpulaunch.containers.engine import ANSWER_S, ForbiddenError, LateError, NoAnswerError
from gpulaunch.containers.life import LEASE_LABEL, Container
from gpulaunch.containers.podman import TITLE
from gpulaunch.containers.podman.answers import (
    RESTART_S,
    parse_action,
    parse_info,
    parse_inspected,
)
from gpulaunch.errors import FailedError, printable
from gpulaunch.process.system import runs, user_name
from gpulaunch.records import replace

if TYPE_CHECKING:
    from gpulaunch.containers.engine import Image, Info

T = TypeVar("T")

_LOOK_S = 0.5


class _NoSuchContainerError(FailedError):
    """Podman does not know what it was asked about."""


class PodmanClient:
    """The podman program, asked about one store; EngineClient documents the methods.

    Args:
        program: the program and its flags that say which store.
        user_id: id of the user whose store it is; only they can ask.
        altogether_s: longest wait for all answers together, in seconds, or None for no limit.
    """

    def __init__(
        self, program: Sequence[str], user_id: int, altogether_s: float | None = None
    ) -> None:
        self.title = TITLE
        self.address = " ".join(program)
        self._program = tuple(program)
        self._user_id = user_id
        self._patience_s = ANSWER_S if altogether_s is None else altogether_s
        self._until_s = None if altogether_s is None else time.monotonic() + altogether_s

    def exists(self) -> bool:
        """Return whether the program is there."""
        from shutil import which  # late: for doctor only

        return which(self._program[0]) is not None

    def within(self, seconds: float) -> "PodmanClient":
        """Return a client of the same store with a limit for all its answers together."""
        return PodmanClient(self._program, self._user_id, seconds)

    def info(self) -> "Info":
        """Return podman's description of itself."""
        answer = self._ask("info", "--format", "json")
        return self._parse(answer, lambda info: parse_info(info, self._user_id))

    def image(self, name: str) -> "Image | None":
        """Return what an image says; None if it is not here, or its name is wrong."""
        if not name:  # of a container that was made by --rootfs
            return None
        try:
            content = self._ask("image", "inspect", "--format", "json", "--", name)
            return self._parse(content, lambda answer: parse_image(answer[0]))
        except NoAnswerError:
            raise
        except FailedError:
            return None

    def container(self, name: str) -> Container | None:
        """Return a container by name or id, or None; labels from its image are left out."""
        if not name:
            return None
        try:
            content = self._ask("container", "inspect", "--format", "json", "--", name)
        except _NoSuchContainerError:
            return None
        found = self._parse(content, lambda answer: parse_inspected(answer[0], time.time()))
        if found.state in ("running", "paused") and not any(map(runs, found.watched)):
            # Its conmon was killed, and nobody told podman of the container's end.
            found = replace(found, state="dead")
        image = self.image(found.image_id) if found.lease_id else None
        if image and image.labels.get(LEASE_LABEL) == found.lease_id:
            found = replace(found, lease_id=None, uuids=(), shares=False)
        return found

    def containers_of(self, lease_id: str, container_id: str | None = None) -> list[Container]:
        """Return the containers of a lease."""
        if container_id is not None:
            known = self.container(container_id)
            return [known] if known else []
        label = f"label={LEASE_LABEL}={lease_id}"
        content = self._ask("ps", "--all", "--no-trunc", "--format", "json", "--filter", label)
        ids = self._parse(content, lambda answer: [checked_text(entry["Id"]) for entry in answer])
        labelled = [found for found in map(self.container, ids) if found]
        # Others are containers of images that are gone.
        mine = [one for one in labelled if one.lease_id == lease_id]
        return sorted(mine, key=lambda one: one.created_at)[:1]

    def running(self) -> dict[str, str]:
        """Return the names of this store's running containers by their ids."""
        running = ("--filter", "status=running", "--filter", "status=paused")
        content = self._ask("ps", "--all", "--no-trunc", "--format", "json", *running)
        return self._parse(
            content, lambda answer: {checked_text(one["Id"]): one["Names"][0] for one in answer}
        )

    def actions(self, lease_id: str, container_id: str | None, since_s: float) -> list[str] | None:
        """Return what has happened; None if podman keeps no events, or hides them."""
        of = f"container={container_id}" if container_id else f"label={LEASE_LABEL}={lease_id}"
        since = datetime.fromtimestamp(since_s, timezone.utc).isoformat().replace("+00:00", "Z")
        words = ("--stream=false", "--format", "json", "--since", since, "--filter", of)
        try:
            lines = self._ask("events", *words).splitlines()
        except NoAnswerError:
            raise
        except FailedError:
            return None
        found = [self._parse(line, parse_action) for line in lines if line.strip()]
        return [action for action in found if action]

    def pids(self, container: Container) -> set[int]:
        """Return the pids of the processes in a container, as the host counts them."""
        try:
            rows = self._ask("top", container.id, "hpid").split()[1:]
        except NoAnswerError:
            raise
        except FailedError:  # it is not running
            return set()
        return {int(row) for row in rows if row.isdigit()}

    def end(
        self,
        container: Container,
        grace_s: float,
        before_signal: Callable[[set[int], int], object] | None = None,  # noqa: ARG002  for MPS alone
    ) -> None:
        """Stop a container so that it does not come back."""
        with suppress(_NoSuchContainerError):
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
                    raise FailedError(f"{TITLE} has stopped {container.name}, but it goes on")
                time.sleep(_LOOK_S)

    def _time_left_s(self) -> float:
        left_s = ANSWER_S if self._until_s is None else self._until_s - time.monotonic()
        return max(0.001, min(left_s, ANSWER_S))

    def _ask(self, *words: str, answer_s: float | None = None) -> bytes:
        """Run podman with these words, and return what it prints."""
        import subprocess  # late: few launches need it, and it costs 10 ms

        limit_s = self._time_left_s() if answer_s is None else answer_s

        if self._user_id != os.geteuid():
            owner = user_name(self._user_id)
            raise ForbiddenError(f"only {owner} can ask {TITLE} about containers of {owner}")
        try:
            done = subprocess.run(  # noqa: S603
                [*self._program, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit_s,
                start_new_session=True,  # no key at the terminal ends it
                check=False,
            )
        except subprocess.TimeoutExpired:
            shown_s = round(max(limit_s, self._patience_s), 1)
            raise LateError(f"no answer from {self.address} in {shown_s:g} s") from None
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            raise NoAnswerError(f"cannot start {self._program[0]}: {reason}") from None
        if done.returncode == 0:
            return done.stdout
        text = done.stderr.decode(errors="replace").strip()
        if "no such container" in text or "no such object" in text:
            raise _NoSuchContainerError(f"{TITLE} does not know that container")
        last = text.rpartition("\n")[2].removeprefix("Error: ")
        raise FailedError(f"{self.address} failed: {printable(last) or 'no reason given'}")

    def _parse(self, content: bytes, parse: Callable[[Any], T]) -> T:
        try:
            return parse(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise self._wrong_answer_error() from None

    def _wrong_answer_error(self) -> FailedError:
        return FailedError(f"{self.address} gives an answer that is not podman's")
