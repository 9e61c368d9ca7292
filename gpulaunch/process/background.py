"""A shell command beside this process, which nobody waits for."""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress

from gpulaunch.process.companion import fork_orphan
from gpulaunch.process.execute import PYTHON_IGNORES

_KILL_AFTER_S = 5
"""Seconds between TERM and KILL for a command that runs too long."""


def run_beside(command: str, variables: Mapping[bytes, bytes], limit_s: int) -> None:
    """Run a shell command in a session of its own, without stdin, stdout and stderr.

    It is nobody's child, and has none of this process's descriptors: no lease and no pipe lasts
    longer for it. If it cannot be run, nothing happens.

    Args:
        command: text for sh.
        variables: its environment.
        limit_s: seconds after which it is ended.
    """
    shell = ["/bin/sh", "-c", command]
    limited = ["timeout", "-k", str(_KILL_AFTER_S), str(limit_s), *shell]

    def run() -> None:
        os.setsid()
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        for number in (*PYTHON_IGNORES, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with suppress(FileNotFoundError):  # without coreutils it has no limit
            os.execvpe(limited[0], limited, variables)  # noqa: S606
        os.execve(shell[0], shell, variables)  # noqa: S606

    with suppress(OSError):
        fork_orphan(run)
