"""The registry of drivers: each driver's module, and facts that do not need the module loaded.

To add a driver, write a module with the functions of gpulaunch.machine.driver.Driver and add an
entry to DRIVERS.
"""
# pure: decides on plain values

from collections.abc import Mapping

from gpulaunch.records import Record


class DriverEntry(Record):
    """Facts about a driver's GPUs that hold anywhere, also on a described machine.

    Attributes:
        visible_variable: environment variable with a job's GPUs, as indices in rank order or as
            UUIDs; if it is set already, it restricts a launch.
        cdi_kind: the GPUs' kind in the Container Device Interface, before "=" and the UUID.
        uuids_variable: environment variable with the UUIDs of a job's GPUs; None for no such
            variable.
        constants: environment variables that every job gets with this value.
        container_ways: names in containers.engine.WAYS of the ways to get the GPUs into a
            container.
        library: file name of the maker's library, without which the module need not be loaded;
            empty for none.
    """

    module: str
    visible_variable: str
    cdi_kind: str
    uuids_variable: str | None = None
    constants: Mapping[str, str] = {}
    container_ways: tuple[str, ...] = ("cdi",)
    mps: bool = False
    library: str = ""


DEFAULT_DRIVER = "nvidia"
"""The driver of a described machine that names none."""

DRIVERS = {
    "nvidia": DriverEntry(
        module="gpulaunch.machine.nvidia.driver",
        visible_variable="CUDA_VISIBLE_DEVICES",
        cdi_kind="nvidia.com/gpu",
        uuids_variable="NVIDIA_VISIBLE_DEVICES",
        # By default CUDA counts the fastest GPU first, and the indices would mean other GPUs.
        constants={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        container_ways=("cdi", "runtime", "gpus"),
        mps=True,
        library="libnvidia-ml.so.1",
    ),
}
"""The known drivers by name; if GPUs of several are present, the first one counts."""
