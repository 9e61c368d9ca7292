"""What a job finds in its environment."""

from collections.abc import Sequence

from gpulaunch.core.hardware.gpu import Gpu

LEASE_VARIABLE = "GPULAUNCH_LEASE"
"""Names the lease to the job, so that a launch inside it takes its GPUs from there."""


def job_environment(gpus: Sequence[Gpu], *, by_uuid: bool, lease_id: str | None) -> dict[str, str]:
    """The variables that tell a job its GPUs.

    Args:
        gpus: in rank order.
        by_uuid: name them by UUID in CUDA_VISIBLE_DEVICES; some programs can read only indices there.
        lease_id: None as long as there is no lease.
    """
    uuids = ",".join(gpu.uuid for gpu in gpus)
    environment = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # else CUDA counts the fastest first, and the indices mean other GPUs
        "CUDA_VISIBLE_DEVICES": uuids if by_uuid else ",".join(str(gpu.index) for gpu in gpus),
        "NVIDIA_VISIBLE_DEVICES": uuids,
    }
    if lease_id:
        environment[LEASE_VARIABLE] = lease_id
    return environment
