"""A launch of gpulaunch that runs in the background until it is told to end."""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from gpulaunch.errors import FailedError, TimedOutError
from gpulaunch.launch.children import own_command
from gpulaunch.measure.foreground import end_left_overs
from gpulaunch.process.descriptor import out_of_the_way
from gpulaunch.process.ending import family
from gpulaunch.process.execute import clean_environment
from gpulaunch.process.libc import end_with_parent
from gpulaunch.process.signal_mask import ALL_SIGNALS, change_mask
from gpulaunch.typing import Self

_LOOP = """\
trap 'kill $job 2>/dev/null; wait $job; exit' TERM
while :; do "$@" & job=$!; wait $job || exit; done"""
_FOREVER = ("sh", "-c", _LOOP, "sh")
"""Shell that restarts the job whenever it succeeds, under one lease, and passes TERM on to it."""

_CHUNK = 1 << 16


class Background:
    """A job that runs again and again in a session of its own, under a lease of its own.

    Args:
        name: what messages call it.
        options: options of its launch.
        command: argv.
        environment: variables to add.
        says: text that its output contains once it is at work; None if it prints no such text.
        patience_s: seconds to wait until it is at work.
        grace_s: seconds between TERM and KILL.
    """

    def __init__(
        self,
        name: str,
        options: Sequence[str],
        command: Sequence[str],
        environment: Mapping[str, str],
        says: bytes | None,
        patience_s: float,
        grace_s: float,
    ) -> None:
        self._name, self._says = name, says
        self._arguments = (*options, "--", *_FOREVER, *command)
        # CI: the launcher ends with its parent, so nothing is left if this process is killed.
        self._environment = {**environment, "CI": "true"}
        self._patience_s, self._grace_s = patience_s, grace_s

    def __enter__(self) -> Self:
        """Launch the job, and wait until it has its GPUs and is at work.

        Raises:
            FailedError: the job ended first.
            TimedOutError: it was not at work within the patience.
        """
        self._spared = family()
        told, write_end = (out_of_the_way(fd) for fd in os.pipe())
        said, out = (out_of_the_way(fd) for fd in os.pipe())
        try:
            # The command is the user's own program.
            self._process = subprocess.Popen(  # noqa: S603
                [*own_command(), "-o", f"json_status_fd={write_end}", *self._arguments],
                env=clean_environment()
                | {os.fsencode(k): os.fsencode(v) for k, v in self._environment.items()},
                stdin=subprocess.DEVNULL,
                stdout=out if self._says else subprocess.DEVNULL,
                pass_fds=(write_end,),
                start_new_session=True,
                preexec_fn=end_with_parent(os.getpid()),  # noqa: PLW1509  no threads here
            )
        finally:
            os.close(write_end)
            os.close(out)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._open = [told, said]
        try:
            self._await(told, b'"started"')
            if self._says:
                self._await(said, self._says)
                threading.Thread(target=_drain, args=(os.dup(said),), daemon=True).start()
        except BaseException:
            self._end()
            raise
        return self

    def check(self) -> None:
        """Check that the job still runs.

        Raises:
            FailedError: it has ended.
        """
        if select.select([self._pidfd], [], [], 0)[0]:
            raise FailedError(
                f"{self._name} ended{self._ending_text()}, though it was to run beside the job"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the job, which frees its GPUs."""
        self._end()

    def _await(self, fd: int, word: bytes) -> None:
        """Read from a descriptor until a word appears."""
        deadline_s, heard = time.monotonic() + self._patience_s, b""
        while word not in heard:
            left_s = deadline_s - time.monotonic()
            ready = select.select([fd, self._pidfd], [], [], max(0.0, left_s))[0]
            if fd in ready and (part := os.read(fd, _CHUNK)):
                heard = (heard + part)[-_CHUNK:]
            elif self._pidfd in ready:
                raise FailedError(
                    f"{self._name} ended{self._ending_text()} before it could run beside the job"
                )
            elif left_s <= 0:
                raise TimedOutError(f"{self._name} was not at work after {self._patience_s:g} s")

    def _ending_text(self) -> str:
        """Return " with status N", or nothing if the status is 0 or was lost.

        This process adopts orphans, so a wait elsewhere in it may have taken the status.
        """
        status = self._process.wait()
        return f" with status {status}" if status else ""

    def _end(self) -> None:
        """Send TERM, and KILL after the grace; end what the job left behind, too.

        Signals go through the pidfd: this process adopts orphans, so a wait elsewhere in it may
        have reaped the launcher already.
        """
        for number, lasting_s in ((signal.SIGTERM, self._grace_s), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
            if select.select([self._pidfd], [], [], lasting_s)[0]:
                break
        self._process.wait()
        end_left_overs(self._spared, self._grace_s)
        for fd in (self._pidfd, *self._open):
            os.close(fd)


def _drain(fd: int) -> None:
    """Read and drop a pipe's output, so that its writer never blocks on a full pipe."""
    # A thread that does not block SIGCHLD takes it from the one that waits for a job.
    change_mask(signal.SIG_BLOCK, ALL_SIGNALS)
    with suppress(OSError):
        while os.read(fd, _CHUNK):
            pass
    os.close(fd)
