"""What stays when this process goes, and ending what must not stay.

A companion sleeps beside the job and outlives its launcher. Processes that must not outlive a lease
are found, and ended with TERM, grace, KILL.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from gpulaunch.errors import FailedError
from gpulaunch.process.libc import (
    ENDING_SIGNALS,
    adopt_orphans,
    out_of_the_way,
    overwrite_memory,
    set_process_name,
)
from gpulaunch.process.system import (
    open_pid,
    parents,
    program_of,
    reaction,
    runs,
    stat_fields,
    variable_of,
    with_descendants,
)

COMPANION = "gpulaunch-lease"
"""Name of companions in ps and /proc/PID/comm, which tells them from what they look after."""

WITNESS = "signal-witness"
"""Name of the process in a job's group that shows which signals the group got."""

DISMISSED = b"."


class Companion:
    """A process in a session of its own that acts on a word from this process, or on its end.

    No terminal, no pipe and no signal for this process's group reaches it. It keeps one descriptor
    open and closes all others. It is nobody's child and has next to no environment, because CI
    runners find what a cancelled job has left by these two, and kill it.

    Args:
        act: called in it with the word; it is empty if this process died without one.
        meanwhile: called in it before it waits for the word.

    Raises:
        OSError: no process can be made.
    """

    def __init__(
        self,
        act: Callable[[bytes], None],
        keep: int,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        read_end, self._word = (out_of_the_way(fd) for fd in os.pipe())

        def run() -> None:
            set_process_name(COMPANION)
            forget_environment()
            stand_apart(read_end, keep)
            os.chdir("/")
            meanwhile()
            with open(read_end, "rb") as pipe:
                word = pipe.read()
            act(word)

        try:
            fork_orphan(run)
        except OSError:
            os.close(self._word)
            raise
        finally:
            os.close(read_end)

    def tell(self, word: bytes) -> bool:
        """Send the one word it waits for; return False if it has ended already."""
        heard = False
        with suppress(BrokenPipeError):
            heard = os.write(self._word, word) == len(word)
        os.close(self._word)
        return heard


def is_companion(pid: int) -> bool:
    """Return whether a process belongs to a launcher, not to its job, by its name."""
    return program_of(pid) in (COMPANION, WITNESS)


def forget_environment() -> None:
    """Erase this process's environment in /proc, where CI runners look for their jobs' variables.

    gpulaunch's own variables stay there. What os.environ says does not change, and programs that
    are started from here get that.
    """
    _overwrite(47, _own_variables)  # env_start and env_end, see proc(5)
    # The C library's variables point to that memory; this gives it copies.
    for name, value in os.environb.items():
        os.putenv(name, value)


def hide_arguments(name: str) -> None:
    """Put a name in the place of this process's arguments, for `ps` and `pkill -f`."""
    _overwrite(45, lambda line: name.encode()[: len(line)].ljust(len(line), b"\0"))  # arg_start


def _overwrite(field: int, change: Callable[[bytes], bytes]) -> None:
    """Change the memory between two addresses that /proc/PID/stat has from a field on."""
    begin, end = map(int, stat_fields(os.getpid())[field : field + 2] or (0, 0))
    if 0 < begin < end:
        overwrite_memory(begin, end - begin, change)


def fork_orphan(run: Callable[[], None]) -> None:
    """Fork a process whose parent has ended, and let it run a function and end.

    Raises:
        OSError: no process can be made.
    """
    adopts = adopt_orphans(on=False)  # else it would be this process's child again
    try:
        pid = os.fork()
        if pid == 0:
            status = errno.EAGAIN
            try:
                if os.fork() == 0:
                    run()
                status = 0
            except OSError as problem:
                status = problem.errno or status
            finally:
                os._exit(status)
        with suppress(ChildProcessError):  # where this process ignores SIGCHLD
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status > 0:  # one that was killed is no worse than a companion that was
                raise OSError(status, os.strerror(status))
    finally:
        adopt_orphans(on=adopts)


def _own_variables(block: bytes) -> bytes:
    """Return an environment block with zeros for all that is not gpulaunch's."""
    return b"\0".join(
        one if one.startswith(b"GPULAUNCH_") else bytes(len(one)) for one in block.split(b"\0")
    )


def stand_apart(*keep: int) -> None:
    """Leave the session and its terminal, and close all descriptors but these."""
    os.setsid()
    close_all_but(*keep)
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def close_all_but(*keep: int) -> None:
    """Close all descriptors but these; stdin, stdout and stderr are /dev/null then."""
    # The latest first: the job waits for the end of its pipe, and an inotify instance takes 15 ms.
    for fd in sorted(map(int, os.listdir("/proc/self/fd")), reverse=True):
        if fd not in keep:
            os.closerange(fd, fd + 1)  # no error for what listed them, which is closed by now
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)


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
