"""The Launch record: one command, what it asks of the machine, and how it waits."""

from gpulaunch.decide.request import Request
from gpulaunch.leases.lease import Lease
from gpulaunch.machine.find import Machine
from gpulaunch.records import Record
from gpulaunch.sharing.mps_directories import MpsPlace
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:  # few launches need it
    from gpulaunch.containers.container_launch import ContainerLaunch


class Patience(Record):
    """The patience of a launch: whether and for how long it waits.

    Attributes:
        wait: whether to queue for GPUs that are busy.
        timeout_s: seconds of the longest wait, or None for no limit.
        passable_s: seconds for which later and smaller requests may pass while this one cannot
            start.
    """

    wait: bool
    timeout_s: float | None = None
    passable_s: float = 0.0


class Launch(Record):
    """One command to be run on GPUs.

    Attributes:
        command: argv.
        request: the GPUs that it asks for.
        machine: the machine.
        within: the live lease that this launch runs inside of, or None.
        name: name that the user gave the job, or None.
        patience: whether and for how long it waits.
        private: whether a container's own table will do if the host's is not mounted.
        by_uuid: whether CUDA_VISIBLE_DEVICES names the GPUs by UUID.
        bind_cpu: whether to run on the CPUs of the GPUs' NUMA node, if they share one.
        time_limit_s: seconds that the job may run, or None for no limit.
        grace_s: seconds between TERM and KILL.
        container: how its container gets the GPUs, if the command is docker's.
        mps: place of this user's MPS daemons; None on a described machine.
        recorded_in: file of the profile that learns from the job, or None.
    """

    command: tuple[str, ...]
    request: Request
    machine: Machine
    within: Lease | None
    name: str | None
    patience: Patience
    private: bool
    by_uuid: bool
    bind_cpu: bool
    time_limit_s: float | None
    grace_s: float
    container: "ContainerLaunch | None" = None
    mps: MpsPlace | None = None
    recorded_in: str | None = None
