"""A reservation: GPUs that a small process, the keeper, holds for people or for the steps of a job.

The keeper is the launcher and the job of its lease. It is a fork of the command line that the user
types; docs/guides/reserve.md says when it ends, and docs/decisions/reserve.md why it is made so.
"""

import os
import select
import signal

from gpulaunch.process.identity import Process
from gpulaunch.process.libc import out_of_the_way
from gpulaunch.process.system import identify, open_process, seconds_since_boot

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_LONGEST_S = 86400.0  # the kernel does not take centuries


def session_leader() -> Process | None:
    """Return the shell of this session, with which a reservation ends; None if there is none.

    There is none if this process leads its session itself, if the leader has ended, or if it is in
    another pid namespace, as that of `docker exec` is.
    """
    pid = os.getsid(0)
    leader = identify(pid) if pid not in (0, os.getpid()) else Process(0, 0)
    return leader if leader.start_time else None


def sleep_until_its_end(leader: Process | None, until_s: float) -> None:
    """Sleep until a reservation is over: by time, by a signal, or with its session.

    Args:
        leader: the shell with whose end it ends; None for none.
        until_s: its end at the latest, in seconds since boot.
    """
    read_end, write_end = (out_of_the_way(fd) for fd in os.pipe())
    for fd in (read_end, write_end):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(write_end)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    if leader:
        process = open_process(leader)
        if process is None:
            return
        poll.register(process, select.POLLIN)
    while (left_s := until_s - seconds_since_boot()) > 0:
        if poll.poll(min(left_s, _LONGEST_S) * 1000):
            return
