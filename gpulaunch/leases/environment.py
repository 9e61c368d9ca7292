"""The environment variables that a job gets, and what is known of MPS without its daemons."""
# pure: decides on plain values

from collections.abc import Sequence
from posixpath import basename

from gpulaunch.leases.lease import Share
from gpulaunch.machine.driver import DRIVERS
from gpulaunch.machine.gpu import Gpu
from gpulaunch.records import Record

LEASE_VARIABLE = "GPULAUNCH_LEASE"
"""Variable with the id of the job's lease, so that a launch inside it takes its GPUs from there."""

COUNT_VARIABLE = "GPULAUNCH_GPU_COUNT"
"""Variable with the job's number of GPUs."""

BATCH_VARIABLE = "GPULAUNCH_BATCH"
"""Variable with the batch and the job of a launch: BATCH.ID.DIGEST."""

_PREFIXES = {"apptainer": "APPTAINERENV_", "singularity": "SINGULARITYENV_"}
"""Prefixes of variables that these programs set in their containers, also with --cleanenv."""


def job_environment(
    gpus: Sequence[Gpu],
    *,
    driver: str,
    by_uuid: bool,
    count: int,
    lease_id: str | None,
    share: Share | None = None,
    program: str = "",
) -> dict[str, str]:
    """Return the variables that tell a job its GPUs.

    Args:
        gpus: the GPUs that the job sees, in rank order.
        by_uuid: whether the driver's variable names them by UUID; some programs read only indices.
        lease_id: id of the lease; None if there is none yet.
        share: the job's part of the GPUs if it shares them; then they are named by UUID, since MPS
            numbers them anew.
    """
    uuids = ",".join(gpu.uuid for gpu in gpus)
    indices = ",".join(str(gpu.index) for gpu in gpus)
    entry = DRIVERS[driver]
    environment = {
        **entry.constants,
        entry.visible_variable: uuids if by_uuid or share else indices,
        COUNT_VARIABLE: str(count),
    }
    if entry.uuids_variable:
        environment[entry.uuids_variable] = uuids
    if lease_id:
        environment[LEASE_VARIABLE] = lease_id
    environment |= mps_environment(share) if share else {}
    prefix = _PREFIXES.get(basename(program))
    inside = {f"{prefix}{name}": value for name, value in environment.items()} if prefix else {}
    return environment | inside


MPS_VARIABLES = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_CLIENT_PRIORITY",
)
"""Variables that tell a process its MPS server and its share."""


MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_SERVER = "nvidia-cuda-mps-server"

MPS_PATIENCE_S = 30.0
"""Time that an MPS server has to become ACTIVE.

It opens every GPU of the group, slowly without the persistence daemon.
"""


class MpsPlace(Record):
    """Where and how the MPS daemons of share groups are run.

    Attributes:
        base: directory of this user's groups; it may not exist yet.
        patience_s: the longest wait for a server.
        may_fork: whether this process may fork without exec; a Python program with threads may not.
    """

    base: str
    patience_s: float
    may_fork: bool = True


def mps_environment(share: Share) -> dict[str, str]:
    """Return the variables that make a process a client of its share group's MPS server.

    They can only narrow what the daemon allows, and CUDA reads them when it starts. Memory is in
    MiB, for each GPU.
    """
    mib = -(-share.client.demand.memory_bytes // (1 << 20))
    environment = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(share.sm_percentage),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(f"{uuid}={mib}M" for uuid in share.group),
    }
    if share.guest:
        environment["CUDA_MPS_CLIENT_PRIORITY"] = "1"  # below normal
    if share.pipe_directory:
        environment["CUDA_MPS_PIPE_DIRECTORY"] = share.pipe_directory
    return environment
