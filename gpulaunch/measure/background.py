"""A launch of gpulaunch that runs beside this process until it is told to end."""

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
from gpulaunch.process.descriptor import out_of_the_way
from gpulaunch.process.ending import descendants, end_all, family
from gpulaunch.process.job import clean_environment
from gpulaunch.process.libc import end_with_parent
from gpulaunch.typing import Self

_LOOP = """\
trap 'kill $job 2>/dev/null; wait $job; exit' TERM
while :; do "$@" & job=$!; wait $job || exit; done"""
_FOREVER = ("sh", "-c", _LOOP, "sh")
"""So that the job begins anew whenever it ends well, under one lease, and hears TERM."""

_CHUNK = 1 << 16


class Background:
    """A job that runs again and again, on GPUs of its own, in a session of its own.

    Args:
        name: for messages.
        options: of its launch.
        command: argv.
        environment: variables to add.
        says: what a line of its output has in it once it is at work; None if it does not tell.
        patience_s: for that.
        grace_s: until it is killed if it does not end.
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
        self._environment = {**environment, "CI": "true"}  # if this process is killed, it goes, too
        self._patience_s, self._grace_s = patience_s, grace_s

    def __enter__(self) -> Self:
        """It has its GPUs, and is at work as far as it tells.

        Raises:
            FailedError: it has ended.
            TimedOutError: nothing is heard of it for as long as patience lasts.
        """
        self._spared = family()
        told, write_end = (out_of_the_way(fd) for fd in os.pipe())
        said, out = (out_of_the_way(fd) for fd in os.pipe())
        try:
            # the user's own programs are what is to be run
            self._process = subprocess.Popen(  # noqa: S603
                [*own_command(), f"--json-status-fd={write_end}", *self._arguments],
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
        """Find out whether it still runs.

        Raises:
            FailedError: it has ended.
        """
        if select.select([self._pidfd], [], [], 0)[0]:
            raise FailedError(
                f"{self._name} ended{self._how()}, though it was to run beside the job"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """It has ended, and its GPUs are free."""
        self._end()

    def _await(self, fd: int, word: bytes) -> None:
        deadline_s, heard = time.monotonic() + self._patience_s, b""
        while word not in heard:
            left_s = deadline_s - time.monotonic()
            ready = select.select([fd, self._pidfd], [], [], max(0.0, left_s))[0]
            if fd in ready and (part := os.read(fd, _CHUNK)):
                heard = (heard + part)[-_CHUNK:]
            elif self._pidfd in ready:
                raise FailedError(
                    f"{self._name} ended{self._how()} before it could run beside the job"
                )
            elif left_s <= 0:
                raise TimedOutError(f"{self._name} was not at work after {self._patience_s:g} s")

    def _how(self) -> str:
        """With its exit status, if that is known: this process adopts orphans, and may have put it away."""
        status = self._process.wait()
        return f" with status {status}" if status else ""

    def _end(self) -> None:
        """TERM, and KILL after the grace.

        Somebody else may have waited for it, since this process adopts orphans.
        """
        for number, lasting_s in ((signal.SIGTERM, self._grace_s), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
            if select.select([self._pidfd], [], [], lasting_s)[0]:
                break
        self._process.wait()
        end_all(
            lambda: descendants(self._spared), self._grace_s
        )  # what its job has left behind, GPU or no GPU
        for fd in (self._pidfd, *self._open):
            os.close(fd)


def _drain(fd: int) -> None:
    """Read what nobody wants to know, lest its writer wait for a reader."""
    with suppress(OSError):
        while os.read(fd, _CHUNK):
            pass
    os.close(fd)
