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
    """Whether and for how long a launch waits.

    Attributes:
        wait: queue for GPUs that are busy.
        timeout_s: the longest wait, or None.
        passable_s: for how long smaller requests that come later may pass while this one
            cannot start.
    """

    wait: bool
    timeout_s: float | None = None
    passable_s: float = 0.0


class Launch(Record):
    """One command to be run on GPUs.

    Attributes:
        command: argv.
        request: which GPUs.
        machine: where.
        within: the live lease that this launch runs inside of, or None.
        name: name that the user gave the job, or None.
        patience: whether and for how long it waits.
        private: use a container's own table if the host's is not mounted.
        by_uuid: name the GPUs by UUID in CUDA_VISIBLE_DEVICES.
        bind_cpu: run on the CPUs of the GPUs' NUMA node, if they share one.
        time_limit_s: how long the job may run, or None.
        grace_s: seconds between TERM and KILL.
        container: how its container gets the GPUs, if the command is docker's.
        mps: where this user's MPS daemons are; None on a described machine.
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
