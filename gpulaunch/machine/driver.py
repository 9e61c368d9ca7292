"""The interface of a driver: what gpulaunch asks of the software for a maker's GPUs.

A driver is a module with the functions of Driver. DRIVERS, the registry, names it, and find.py
loads it when this machine's own GPUs are needed; a described machine loads none.
"""
# pure: decides on plain values

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, Protocol

from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.topology import Topology
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


class Build(Record):
    """This machine as its driver reads it.

    Attributes:
        problems: one line for each GPU that was left out.
        is_steady: whether the next reading would be equal, so that this one may be cached.
    """

    topology: Topology
    problems: tuple[str, ...]
    is_steady: bool


class OutsideUse(Record):
    """The use of a GPU, which a lease may explain or not.

    Attributes:
        who: description of the user, such as "pid 4123, alice", or of another sign of use.
        pids: the processes, as far as they are visible.
        lost: whether the use cannot be read, because the GPU does not answer.
        state: "barred" if a fault of the GPU keeps everybody off it, "drained" if somebody took it
            out of service; `who` then tells why.
        stray: id of a lease that does not have the GPU, and whose job uses it all the same; `who`
            then names the job. Empty for other use.
    """

    uuid: str
    who: str
    pids: tuple[int, ...] = ()
    lost: bool = False
    state: Literal["used", "barred", "drained"] = "used"
    stray: str = ""


class Health(Record):
    """The health of a GPU, as far as its driver tells; what is unknown counts as healthy.

    Attributes:
        problems: what bars it, in words: it is granted to nobody.
        warnings: what is to be known although it works.
    """

    uuid: str
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Load(Record):
    """What a GPU does at this moment; None for what its driver does not tell.

    Attributes:
        utilization_percentage: part of the last moment, 0-100, in which any kernel ran.
        memory_utilization_percentage: part of it, 0-100, in which memory was read or written.
    """

    uuid: str
    utilization_percentage: int | None = None
    memory_utilization_percentage: int | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None


class Finding(Record):
    """One result of `gpulaunch doctor`.

    Attributes:
        state: "problem" keeps launches from working, or from being safe; "warning" has a smaller
            cost.
        hint: one thing to do about it; None if all is well.
    """

    subject: str
    state: Literal["ok", "warning", "problem"]
    text: str
    hint: str | None = None


class FaultWatch(Protocol):
    """A watch for faults of GPUs while a job runs."""

    def told(self, *, failed: bool) -> list[str]:
        """Return one line for each GPU that had faults since the watch began.

        Args:
            failed: whether the job failed, so that a fault may just be on its way.
        """


class Driver(Protocol):
    """The driver of this machine's GPUs, implemented by one module for each maker.

    A GPU is named by its UUID, which survives reboots. A driver raises FailedError where its
    library is missing or fails, in any function, and describes a single GPU that is lost as a
    problem of that GPU.
    """

    def is_present(self) -> bool:
        """Return whether this machine has GPUs of this driver.

        A driver that is installed and fails is present: its GPUs must not be hidden by a described
        machine. Every launch asks this of the drivers in the order of the registry, so the answer
        must cost little.
        """

    def fingerprint(self) -> str | None:
        """Return a text that changes whenever GPUs are added, removed, replaced or repartitioned.

        The cached topology is used while this text stays the same. None means that something is odd
        and that everything must be read. Every launch asks this, so the answer must cost little.
        """

    def read(self) -> Build:
        """Read the GPUs in service and their links, however long that takes.

        Raises:
            FailedError: no GPU is in service either.
        """

    def read_use(self, gpus: Iterable[Gpu], ignored: Collection[str]) -> tuple[OutsideUse, ...]:
        """Return each of these GPUs that is in use, by whatever process, unusable or lost.

        Args:
            ignored: programs whose use does not count, such as a desktop's.
        """

    def read_health(self, gpus: Iterable[Gpu]) -> tuple[Health, ...]:
        """Return the health of each of these GPUs; read_use tells only of those that are barred."""

    def read_load(self, gpus: Iterable[Gpu]) -> tuple[Load, ...]:
        """Return what each of these GPUs does at this moment; `top` asks this every second."""

    def watch_faults(self, gpus: Iterable[Gpu]) -> FaultWatch | None:
        """Watch for faults of these GPUs from now on; None if the driver cannot.

        The watch ends with this process, and must cost next to nothing while nothing happens.
        """

    def are_busy(self, gpus: Iterable[Gpu]) -> bool:
        """Return whether one of these GPUs is at work right now, or does not tell."""

    def pids_at_work(self, uuids: Iterable[str]) -> dict[int, int]:
        """Return the processes that compute on the GPUs with these UUIDs, as far as visible.

        Returns:
            For each the bytes that it holds on the GPU where it holds most; 0 if unknown.
        """

    def version(self) -> str | None:
        """Return the version of the driver, or None if it does not say."""

    def diagnose(self) -> list[Finding]:
        """Read everything anew and return the results for `gpulaunch doctor`.

        Raises:
            FailedError: the driver is missing or fails, or no GPU is in service.
        """
