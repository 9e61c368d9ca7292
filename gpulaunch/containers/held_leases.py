"""The containers of leases: whether they still hold them, and how one is followed to its end.

A container belongs to its engine, not to the command that started it, so only the engine knows
whether a lease is still needed. Its processes are followed by pidfds, and the engine is asked what
their end means. docs/decisions/docker.md has the reasons.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from gpulaunch.containers.container import Container
from gpulaunch.containers.engine import (
    ANSWER_S,
    QUESTION_S,
    ContainerLaunch,
    EngineClient,
    ForbiddenError,
    NoAnswerError,
)
from gpulaunch.containers.engines import engine_of
from gpulaunch.errors import FailedError
from gpulaunch.leases.lease import Lease
from gpulaunch.process import Process
from gpulaunch.process.ending import wait_for_one
from gpulaunch.process.system import parse_time, runs, state_of
from gpulaunch.records import Record

START_FOLLOWS_S = 2.0
"""Seconds after a stop within which docker restart starts a container again."""

RELEASE_FOLLOWS_S = 10.0
"""Longest wait for the companion of a container that has ended to release its lease.

It looks every 3 s at least while no process tells of a start, and may take 2 s more to be sure.
"""

STOP_FOLLOWS_S = 0.25
"""Seconds after "kill" within which "stop" follows for docker stop and docker restart."""

_LONGEST_SLEEP_S = 60.0  # a pid that was seen may be another process's by then
_MARGIN_S = 1.0  # engines date their events by their own reading of the clock
_LOOK_S = 0.01
_LONGEST_LOOK_S = 3.0

_Asked = dict[tuple[str, str], tuple[EngineClient, str | FailedError]]
"""Engines by title and address: a client with a limit for all its answers together, and the
engine's own id or the reason why it does not answer."""


class Standing(Record):
    """The known state of a lease's container.

    Attributes:
        holds: whether the container, or an engine that cannot be asked, keeps the lease.
        problem: reason why the state is unknown, or None.
        forbidden: whether the reason is that this user is not allowed to ask.
    """

    holds: bool
    container: Container | None
    problem: str | None
    forbidden: bool = False


def standings_of(leases: Iterable[Lease]) -> dict[str, Standing]:
    """Return the known state of the containers of leases, by the leases' ids.

    Each engine gets one chance to answer, however many leases there are: it may be gone, hang, or
    be another user's.
    """
    asked: _Asked = {}
    return {lease.id: _find_standing(lease, asked, QUESTION_S)[0] for lease in leases}


def ended_leases(leases: Iterable[Lease]) -> set[str]:
    """Return the ids of those leases whose containers have certainly ended.

    Args:
        leases: leases without a process of ours, and without the client that makes the container.
    """
    ended = set()
    for lease_id, standing in standings_of(leases).items():
        # A start may be under way that a client has asked for at its end.
        is_left = standing.container is not None and _is_left_unstarted(standing.container)
        if is_left or not standing.holds:
            ended.add(lease_id)
    return ended


def _is_left_unstarted(container: Container) -> bool:
    if not container.is_only_made:
        return False
    try:
        return time.time() - parse_time(container.created_at).timestamp() > START_FOLLOWS_S
    except ValueError:
        return False


def client_of_lease(lease: Lease) -> EngineClient:
    """Return a client of the engine on which a lease's container was launched.

    The engine has ANSWER_S to say that it is the one.

    Raises:
        FailedError: the engine is none of the known ones, or does not answer.
    """
    standing, client = _find_standing(lease, {}, ANSWER_S)
    if client is None:
        raise FailedError(f"lease {lease.id}: {standing.problem}")
    return client


def _find_standing(
    lease: Lease, asked: _Asked, patience_s: float
) -> tuple[Standing, EngineClient | None]:
    """Return a lease's standing, and a client of its engine if that answers."""
    problems = []
    engine = engine_of(lease.engine or "")
    for client in engine.known(lease.user_id):
        key = client.title, client.address
        if key not in asked:
            limited = client.within(patience_s)
            try:
                asked[key] = limited, limited.info().id
            except FailedError as problem:
                asked[key] = limited, problem
        limited, answer = asked[key]
        if answer == lease.engine:
            try:
                container = limited.container_of(lease.id, lease.container)
                return Standing(bool(container and container.holds), container, None), client
            except FailedError as problem:
                answer = problem
                asked[key] = limited, problem
        if isinstance(answer, FailedError):
            problems.append(answer)
    text = "; ".join(problem.message for problem in problems)
    text = text or f"its {engine.title} does not run here"
    forbidden = any(isinstance(problem, ForbiddenError) for problem in problems)
    return Standing(holds=True, container=None, problem=text, forbidden=forbidden), None


class Followed:
    """The container of a lease, and the client command that is about to make it.

    Args:
        container: where it will be; another engine at the same address does not know it.
        beside_others: whether the command makes others' containers, too, and goes on when this one
            has ended.
    """

    def __init__(
        self, container: ContainerLaunch, lease_id: str, *, beside_others: bool = False
    ) -> None:
        self._beside_others = beside_others
        self._client, self._engine_id = container.client, container.engine_id
        self._of = lease_id, container.container_id
        self._since_s = time.time() - _MARGIN_S
        self._seen = False
        self._ended_by_us = False
        self._look_s = _LOOK_S

    def has_ended(self, *, or_only_made: bool = False) -> bool:
        """Return whether the container, too, has ended for good; False if unsure.

        Args:
            or_only_made: whether one counts as well that nobody has started, or will.
        """
        with suppress(FailedError):
            found = self._client.within(ANSWER_S).container_of(*self._of)
            if found and found.holds:
                return or_only_made and found.is_only_made
            return not found or self._wait_for_end(None, time.monotonic() + 2 * STOP_FOLLOWS_S)
        return False

    def pids(self) -> set[int]:
        """Return the pids in the container; none if the engine does not answer in QUESTION_S."""
        client = self._client.within(QUESTION_S)
        with suppress(FailedError):
            container = client.container_of(*self._of)
            return client.pids(container) if container else set()
        return set()

    def end(
        self, grace_s: float, before_signal: Callable[[set[int], int], object] | None = None
    ) -> bool:
        """Stop the container, so that it does not come back by itself.

        Args:
            grace_s: seconds between TERM and KILL.
            before_signal: called with its processes before they get TERM or KILL.

        Returns:
            Whether there was one to stop.

        Raises:
            FailedError: the engine refuses.
        """
        found = self._find()
        if found is None or not found.holds:
            return False
        self._ended_by_us = True
        self._client.end(found, grace_s, before_signal)
        return True

    def wait(
        self,
        command: Process,
        overdue_s: float | None,
        end: Callable[[], object],
        is_pointless: Callable[[], bool],
    ) -> None:
        """Sleep until the command and the container have ended, even if the engine restarts.

        Args:
            command: the client command, which may be about to start the container.
            overdue_s: time at which to end them, on the clock of time.monotonic, or None.
            is_pointless: asked while the engine does not answer; returns whether nothing is left to
                wait for.
        """
        while True:
            try:
                if overdue_s is not None and time.monotonic() >= overdue_s:
                    end()
                    overdue_s = None
                if self._wait_for_end(command, overdue_s):
                    return
            except FailedError:
                if is_pointless():
                    return
                time.sleep(self._next_look_s())

    def _find(self) -> Container | None:
        client = self._client
        found = client.container_of(*self._of)
        if not found and client.info().id != self._engine_id:
            raise NoAnswerError(f"another {client.title} is at {client.address} now")
        self._seen = self._seen or found is not None
        return found

    def _wait_for_end(self, command: Process | None, deadline_s: float | None) -> bool:
        """Wait until all has ended and return True, or return False at the deadline.

        Raises:
            FailedError: the engine does not answer.
        """
        ended_s = time.monotonic()  # or later, as far as is known
        while True:
            if command and not state_of(command):
                command, ended_s = None, time.monotonic()
            found = self._find()
            wait_s = self._pause_s(found, command, ended_s)
            if wait_s <= 0:
                # It may have been started between two answers.
                if self._find() == found:
                    return True
                continue
            if deadline_s is not None:
                wait_s = min(wait_s, deadline_s - time.monotonic())
                if wait_s <= 0:
                    return False
            pids = [pid for pid in found.watched if runs(pid)] if found else []
            wait_for_one([*pids, command.pid] if command else pids, wait_s)
            if found and found.holds and found.state != "created":
                ended_s = time.monotonic()

    def _pause_s(self, found: Container | None, command: Process | None, ended_s: float) -> float:
        """Return the seconds until the next look; 0 or less if all has ended.

        Args:
            found: the container, if it is there.
            command: the client command, or None once it has ended.
            ended_s: when the last of all that has ended was seen to, on the monotonic clock.
        """
        settled_s = ended_s - time.monotonic()
        holder = found if found and found.holds else None
        if holder and holder.is_only_made and not command:
            # The command may have asked for a start at its end.
            return settled_s + START_FOLLOWS_S
        follows = command and not (self._seen and self._beside_others)
        if holder or follows:
            if any(map(runs, holder.watched)) if holder else not self._beside_others:
                self._look_s = _LOOK_S
                return _LONGEST_SLEEP_S
            # No process tells of a container's start, or of the end of one that does not run.
            return self._next_look_s()
        if self._ended_by_us or found is None:
            return settled_s
        # docker restart may still start it.
        follows_s = {"stop": START_FOLLOWS_S, "kill": STOP_FOLLOWS_S}
        last = self._client.last_action(found.id, self._since_s)
        # Meanwhile it may be removed, as by docker compose down.
        return min(settled_s + follows_s.get(last, 0.0), self._next_look_s())

    def _next_look_s(self) -> float:
        """Return the seconds until the next look, twice as many as until the last one."""
        self._look_s = min(2 * self._look_s, _LONGEST_LOOK_S)
        return self._look_s
