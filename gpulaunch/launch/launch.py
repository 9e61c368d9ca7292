"""The Launch record: one command, what it asks of the machine, how it waits, whom it tells."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpulaunch.decide.request import Request
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.find import Machine
from gpulaunch.records import Record
from gpulaunch.sharing.mps_directories import MpsPlace

if TYPE_CHECKING:  # few launches need it
    from gpulaunch.containers.engine import ContainerLaunch
    from gpulaunch.leases.table import Snapshot


class Launch(Record):
    """One command to be run on GPUs.

    Attributes:
        command: argv.
        request: the GPUs that it asks for.
        machine: the machine.
        within: the live lease that this launch runs inside of, or None.
        name: name that the user gave the job, or None.
        publish: what others may read of the command: one of PUBLISHED.
        wait: whether to queue for GPUs that are busy.
        wait_timeout_s: seconds of the longest wait, or None for no limit.
        private: whether a container's own table will do if the host's is not mounted.
        by_uuid: whether CUDA_VISIBLE_DEVICES names the GPUs by UUID.
        bind_cpu: whether to run on the CPUs of the GPUs' NUMA node, if they share one.
        time_limit_s: seconds that the job may run, or None for no limit.
        grace_s: seconds between TERM and KILL.
        leftovers: what becomes of processes that the job leaves: "keep", and they keep its lease,
            or "end".
        leftover_timeout_s: seconds without a use of the GPUs, where that can be told, after which
            a left-over process outside the job's session no longer keeps the lease.
        container: its container, if it is for one.
        mps: place of this user's MPS daemons; None on a described machine.
        recorded_in: file of the profile that learns from the job, or None.
        visible: what the job sees of the GPUs of its step, if its ranks divide them: one of
            settings.VISIBLE.
        core: number of the CPU to run on, by a map of ranks; None for no such.
        in_history: whether the history gets a line of it.
        idle_after_s: seconds after which its owner is told that its GPUs do nothing; None if nobody
            watches them.
        idle_limit_s: seconds of that after which the job is ended; None for never.
        docker: what the job's scripts meet that call docker: "engine", or a door in its "lease".
        notify: shell command to be run when it starts and ends, or None.
    """

    command: tuple[str, ...]
    request: Request
    machine: Machine
    within: Lease | None
    name: str | None
    publish: str
    wait: bool
    wait_timeout_s: float | None
    private: bool
    by_uuid: bool
    bind_cpu: bool
    time_limit_s: float | None
    grace_s: float
    leftovers: str = "keep"
    leftover_timeout_s: float | None = None
    container: "ContainerLaunch | None" = None
    mps: MpsPlace | None = None
    recorded_in: str | None = None
    visible: str = "all"
    core: int | None = None
    in_history: bool = True
    idle_after_s: float | None = None
    idle_limit_s: float | None = None
    docker: str = "engine"
    notify: str | None = None


def _nothing(_: float) -> None:
    """Tell nobody."""


class Callbacks(Record):
    """Functions that a launch calls on its way; none may raise.

    Attributes:
        warn: called with each warning.
        waiting: called with the reason why the launch joins the queue, and with the live leases
            and earlier tickets.
        first: called when it becomes the first in the queue, with the reason to go on waiting and
            the seconds of waiting.
        minute: called once a minute with the seconds of waiting, and a function that returns the
            launch's place in the queue.
        idle: called from another thread with the seconds for which its GPUs have done nothing, once
            each time that this is long enough to be told.
        given_up: descriptor that is readable once the launch is not wanted any more, or None.
    """

    warn: Callable[[str], None]
    waiting: "Callable[[str, Snapshot], None]"
    first: Callable[[str, float], None]
    minute: Callable[[float, Callable[[], int]], None]
    idle: Callable[[float], None] = _nothing
    given_up: int | None = None
