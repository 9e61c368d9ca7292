"""Leases and the containers that hold them.

A container belongs to its engine, not to the docker command that started it, so it is the engine
that knows whether a lease is still needed. docs/decisions/docker.md tells why each part is as it
is.
"""

import os
import select
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from gpulaunch.containers.docker.client import (
    ANSWER_S,
    Engine,
    Events,
    ForbiddenError,
    NoAnswerError,
)
from gpulaunch.containers.docker.socket import known_sockets
from gpulaunch.containers.life import Container, Standing
from gpulaunch.errors import FailedError
from gpulaunch.leases.lease import Lease
from gpulaunch.process.identity import Process
from gpulaunch.process.system import state_of

STOP_FOLLOWS_S = 0.25
"""After a container was killed through the engine: "stop" follows if it was docker stop or
docker restart.
"""

START_FOLLOWS_S = 2.0
"""After "stop": "start" follows if it was docker restart, as soon as the engine has set the
container up again.
"""

QUESTION_S = 2.0
"""What an engine gets to answer in when somebody looks at the table."""

_RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_LONGEST_SLEEP_S = 86400.0
_LOOK_AGAIN_S = 1.0
_LOOK_FOR_START_S = 1.0
_LONGEST_LOOK_FOR_START_S = 60.0
_OVERLAP_S = 1.0  # events that are told twice do no harm, one that is missed would


def standings_of(leases: Iterable[Lease]) -> dict[str, Standing]:
    """What the engines that are known here tell of the containers of leases, by the leases' ids.

    Each engine gets one chance to answer, however many leases there are: it may be gone, hang, or
    be another user's.
    """
    met: dict[str, _Met] = {}
    return {lease.id: _standing_of(lease, met) for lease in leases}


def engine_of(lease: Lease) -> Engine:
    """The engine that a lease's container was launched on.

    Raises:
        FailedError: it is none of those known here, or does not answer.
    """
    met: dict[str, _Met] = {}
    standing = _standing_of(lease, met)
    if standing.problem is not None:
        raise FailedError(f"lease {lease.id}: {standing.problem}")
    return next(Engine(path) for path, known in met.items() if known.engine_id == lease.engine)


class _Met(NamedTuple):
    """An engine that was asked: it and its id, or why it does not answer."""

    engine: Engine
    engine_id: str | None
    problem: FailedError | None


def _meet(path: str) -> _Met:
    engine = Engine(path, altogether_s=QUESTION_S)
    try:
        return _Met(engine, engine.info().id, None)
    except FailedError as problem:
        return _Met(engine, None, problem)


def _standing_of(lease: Lease, met: dict[str, _Met]) -> Standing:
    problems = []
    for path in known_sockets(lease.user_id):
        if path not in met:
            met[path] = _meet(path)
        if met[path].engine_id == lease.engine:
            try:
                containers = tuple(met[path].engine.containers_of(lease.id, lease.container))
                return Standing(any(container.holds for container in containers), containers, None)
            except FailedError as problem:
                met[path] = met[path]._replace(engine_id=None, problem=problem)
        if (known := met[path].problem) is not None:
            problems.append(known)
    text = (
        "; ".join(problem.message for problem in problems) or "its Docker Engine does not run here"
    )
    forbidden = any(isinstance(problem, ForbiddenError) for problem in problems)
    return Standing(holds=True, containers=(), problem=text, forbidden=forbidden)


class Followed:
    """The containers of a lease, and the docker command that makes them.

    Args:
        engine: where they are.
        engine_id: the engine's own; another one at the same socket knows nothing of them.
        lease_id: that they were made under.
        container_id: of the one container that was there before the lease, or None.
        since_s: nothing of interest happened before; seconds since 1970.
    """

    def __init__(
        self,
        engine: Engine,
        engine_id: str,
        lease_id: str,
        container_id: str | None,
        since_s: float,
    ) -> None:
        self._engine = engine
        self._engine_id = engine_id
        self._of = lease_id, container_id
        self._since_s = since_s
        self._ended_by_us = False
        self._failures = 0

    def has_ended(self) -> bool:
        """Whether the containers have ended for good, now that the docker command has; no, if nobody can tell."""
        try:
            found = Engine(self._engine.socket_path, altogether_s=ANSWER_S).containers_of(*self._of)
            if not any(container.holds for container in found):
                return not found or self._wait_by_events(
                    None, time.monotonic() + 2 * STOP_FOLLOWS_S
                )
        except FailedError:
            pass
        return False

    def pids(self) -> set[int]:
        """Pids of what runs in them, as their host counts them; none if nobody can tell in QUESTION_S."""
        engine = Engine(self._engine.socket_path, altogether_s=QUESTION_S)
        found: set[int] = set()
        with suppress(FailedError):
            for container in engine.containers_of(*self._of):
                found |= engine.pids(container)
        return found

    def end(self, grace_s: float, before_kill: Callable[[set[int]], object] | None = None) -> None:
        """Stop the containers, so that none comes back by itself.

        Args:
            grace_s: between TERM and KILL.
            before_kill: done once to the processes of a container that outlives the grace.

        Raises:
            FailedError: the engine does not.
        """
        self._ended_by_us = True
        for container in self._holders():
            self._engine.end(container, grace_s, before_kill)

    def wait(self, command: Process, overdue_s: float | None, end: Callable[[], None]) -> None:
        """Sleep until the docker command and the containers have ended, however often the engine goes and comes.

        Args:
            command: the docker command, which may be about to start a container.
            overdue_s: when they are to be ended, on the clock of time.monotonic, or None.
            end: ends them.
        """
        while True:
            try:
                if overdue_s is not None and time.monotonic() >= overdue_s:
                    end()
                    overdue_s = None
                if self._wait_by_events(command, overdue_s):
                    return
            except FailedError:
                time.sleep(_RETRY_S[min(self._failures, len(_RETRY_S) - 1)])
                self._failures += 1

    def _holders(self) -> list[Container]:
        found = self._engine.containers_of(*self._of)
        if not found and self._engine.info().id != self._engine_id:
            raise NoAnswerError(f"another Docker Engine is at {self._engine.socket_path} now")
        return [container for container in found if container.holds]

    def _wait_by_events(self, command: Process | None, deadline_s: float | None) -> bool:
        """True once all has ended; False at the deadline.

        Raises:
            FailedError: the engine does not answer any more.
        """
        began_s = time.time()
        with closing(self._engine.events(*self._of, self._since_s, began_s)) as history:
            actions = _since_start(history.all())
        with closing(self._engine.events(*self._of, began_s - _OVERLAP_S)) as events:
            last_s = time.monotonic()
            look_s = _LOOK_FOR_START_S
            while True:
                command = command if command and state_of(command) else None
                holders = self._holders()
                self._failures = 0
                if any(
                    container.state == "created" for container in holders
                ):  # no event tells of a start that fails
                    wait_s, look_s = look_s, min(2 * look_s, _LONGEST_LOOK_FOR_START_S)
                elif command or holders:
                    wait_s = _LONGEST_SLEEP_S
                else:
                    wait_s = (
                        0.0
                        if self._ended_by_us
                        else last_s + _settling_s(actions) - time.monotonic()
                    )
                if wait_s <= 0:
                    return True
                if deadline_s is not None:
                    wait_s = min(wait_s, deadline_s - time.monotonic())
                if wait_s <= 0:
                    return False
                _sleep(events, command, wait_s)
                new = events.actions(0)
                if new is None:
                    raise NoAnswerError(f"the Docker Engine at {self._engine.socket_path} has gone")
                if new:
                    last_s = time.monotonic()
                actions = _since_start(actions + new)


def _since_start(actions: list[str]) -> list[str]:
    """The actions since a container was last started."""
    return actions[max((at for at, action in enumerate(actions) if action == "start"), default=0) :]


def _settling_s(actions: Sequence[str]) -> float:
    """How long after the last event a container that does not run may still be started by docker restart.

    Args:
        actions: since its last start.
    """
    if "destroy" in actions:
        return 0.0
    if "stop" in actions:
        return START_FOLLOWS_S
    return STOP_FOLLOWS_S if "kill" in actions else 0.0


def _sleep(events: Events, command: Process | None, wait_s: float) -> None:
    """Until an event comes, the docker command ends, or the time is up."""
    poll = select.poll()
    poll.register(events.fileno(), select.POLLIN)
    pidfd = None
    if command:
        try:
            pidfd = os.pidfd_open(command.pid)
            poll.register(pidfd, select.POLLIN)
        except OSError:  # it has ended, or no descriptor is left
            wait_s = min(wait_s, _LOOK_AGAIN_S)
    try:
        poll.poll(wait_s * 1000)
    finally:
        if pidfd is not None:
            os.close(pidfd)
