"""The registry of drivers: where the module of each is, and what holds for its GPUs without loading it.

Add a driver by a module with the functions of gpulaunch.machine.driver.Driver and an entry in
DRIVERS.
"""
# pure: decides on plain values

from collections.abc import Mapping

from gpulaunch.records import Record


class DriverEntry(Record):
    """What is known of a driver's GPUs wherever they are, also on a machine that is only described.

    Attributes:
        module: full name of the module that implements Driver.
        visible_variable: tells a job its GPUs, as indices in rank order or as UUIDs; where it is
            set already, it restricts a launch.
        cdi_kind: what the GPUs are called in the Container Device Interface, before "=" and the
            UUID.
        uuids_variable: tells a job the UUIDs of its GPUs besides; None for no such variable.
        constants: variables that every job gets with this value.
        container_ways: those of containers.ways.WAYS by which the GPUs can get into a container.
        mps: whether jobs can share the GPUs by CUDA MPS.
    """

    module: str
    visible_variable: str
    cdi_kind: str
    uuids_variable: str | None = None
    constants: Mapping[str, str] = {}
    container_ways: tuple[str, ...] = ("cdi",)
    mps: bool = False


DEFAULT_DRIVER = "nvidia"
"""The driver of a described machine that names none."""

DRIVERS = {
    "nvidia": DriverEntry(
        module="gpulaunch.machine.nvidia.driver",
        visible_variable="CUDA_VISIBLE_DEVICES",
        cdi_kind="nvidia.com/gpu",
        uuids_variable="NVIDIA_VISIBLE_DEVICES",
        # CUDA counts the fastest GPU first otherwise, and the indices would mean other GPUs
        constants={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        container_ways=("cdi", "runtime", "gpus"),
        mps=True,
    ),
}
"""The known drivers by name. Where GPUs of several are present, the first one counts."""
