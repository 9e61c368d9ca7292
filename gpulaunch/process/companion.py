"""A process that stays when this one goes."""

import errno
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from gpulaunch.process.libc import (
    ENDING_SIGNALS,
    adopt_orphans,
    out_of_the_way,
    overwrite_memory,
    set_process_name,
)
from gpulaunch.process.system import program_of, stat_fields

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
