"""Ending processes that must not outlive a lease: who they are, and TERM, grace, KILL."""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from gpulaunch.errors import FailedError
from gpulaunch.process.libc import ENDING_SIGNALS
from gpulaunch.process.system import (
    open_pid,
    parents,
    reaction,
    runs,
    variable_of,
    with_descendants,
)

SETTLE_S = 0.3
"""Time that processes of a job have to end by themselves once its main process has ended."""

KILL_S = 2.0
"""Time for the kernel to reap killed processes; one that hangs in a driver may never go."""

_TICK_S = 0.1
_LONGEST_POLL_S = 86400.0  # poll counts milliseconds, up to 24 days


def marked_by(variable: str) -> dict[str, set[int]]:
    """Return live processes that were started with a variable in their environment, by its value.

    Processes that are not visible here are left out.
    """
    found: dict[str, set[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            value = variable_of(int(name), variable)
            if value is not None:
                found.setdefault(value, set()).add(int(name))
    return found


def descendants(spared: Collection[int] = ()) -> set[int]:
    """Reap ended children and return the live descendants of this process.

    An empty answer is a proof: a process that was forked while we looked has a parent that we must
    have seen, or that has ended since, and then we look again.

    Args:
        spared: processes to leave out, with their descendants.
    """
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            found = family(spared)
            if found or os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return found
        except ChildProcessError:
            return set()


def family(spared: Collection[int] = ()) -> set[int]:
    """Live descendants of this process; what has ended is left for others to put away."""
    children = _children()
    if children is not None and not children.difference(spared):
        return set()
    if not os.path.exists("/proc/self"):
        raise FailedError("/proc is not mounted: no process can be looked after without it")
    parent_of = parents()
    found = with_descendants({os.getpid(), *(children or ())}, parent_of) - {os.getpid()}
    found -= with_descendants(found.intersection(spared), parent_of)
    return set(filter(runs, found))


def _children() -> set[int] | None:
    """Return our own children; None where the kernel does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return set(map(int, file.read().split()))
    except OSError:
        return None


def end_all(
    find: Callable[[], set[int]],
    grace_s: float,
    ignored: Collection[int] = (),
    before_signal: Callable[[set[int], int], object] | None = None,
) -> set[int]:
    """End processes: TERM to those that are there, and KILL to all after the grace.

    A process that starts during the grace may be at work tidying up, so it gets no TERM. INT, TERM,
    QUIT and HUP, where they are blocked, end the grace.

    Args:
        find: returns the processes still alive; called again and again, since they may start
            others.
        ignored: signals that do not end the grace.
        before_signal: called with those that are about to get TERM, and with those that are to get
            KILL, and the signal's number.

    Returns:
        Processes that KILL has not ended.
    """
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_S)):
        told: set[int] = set()
        if before_signal and (alive := find()):
            before_signal(alive, number)
        deadline = time.monotonic() + patience_s
        while alive := find():
            for pid in alive - told if number == signal.SIGKILL or not told else ():
                _send(pid, number)
                _send(pid, signal.SIGCONT)  # a stopped one would not hear it
            told |= alive
            left_s = deadline - time.monotonic()
            hurried = ENDING_SIGNALS.difference(ignored) & signal.sigpending()
            if left_s <= 0 or (number == signal.SIGTERM and hurried):
                break
            wait_for_one(alive, min(left_s, _TICK_S))
        else:
            return set()
    return alive


def reached_by(number: int, first: set[int], others: set[int]) -> set[int]:
    """Return the processes that a signal reaches.

    KILL takes along those that end with their parent, and who catches TERM may pass it on, as
    torchrun does. Any other signal need not mean the end.
    """
    passed_on = number == signal.SIGTERM and any(
        reaction(pid, number) == "catches" for pid in first
    )
    return first | others if passed_on or number == signal.SIGKILL else first


def wait_for_one(pids: Iterable[int], timeout_s: float) -> None:
    """Return when one of the processes has ended, or the time is up."""
    import select  # late: few jobs leave anything to wait for

    poll = select.poll()
    fds = []
    try:
        for pid in pids:
            try:
                fd = open_pid(pid)
            except OSError:  # no descriptors left: those that are watched will do
                break
            if fd is None:
                return
            fds.append(fd)
            poll.register(fd, select.POLLIN)
        poll.poll(min(timeout_s, _LONGEST_POLL_S) * 1000)
    finally:
        for fd in fds:
            os.close(fd)


def wait_for_all(pids: Iterable[int], timeout_s: float) -> None:
    """Return when all of the processes have ended, or the time is up."""
    deadline = time.monotonic() + timeout_s
    left = set(filter(runs, pids))
    while left and (left_s := deadline - time.monotonic()) > 0:
        wait_for_one(left, left_s)
        left = set(filter(runs, left))


def _send(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)
