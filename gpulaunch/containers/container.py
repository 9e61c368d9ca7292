"""Containers: what is asked of an engine, what it says of them, and what they get besides."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence
from typing import Any

from gpulaunch.leases.environment import COUNT_VARIABLE, LEASE_VARIABLE, mps_environment
from gpulaunch.leases.lease import Share
from gpulaunch.machine.driver import DRIVERS
from gpulaunch.machine.gpu import Gpu
from gpulaunch.records import Record

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""Variable with the GPUs of a container, for NVIDIA's container runtime."""

_OTHER_FILES = ("/dev/kfd", "/dev/dri", "/dev/neuron", "/dev/accel", "/dev/davinci")
"""Device files of GPUs and accelerators that are not NVIDIA's."""

_OTHER_LISTS = (
    *("AMD_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"),
    *("AWS_NEURON_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES"),
)
"""Variables with the GPUs of a container, for other makers' runtimes."""

_DEVICE_FILE = "/dev/nvidia"
_MOST_GPUS = 1024


class Asked(Record):
    """A request for GPUs.

    Attributes:
        text: the words for it in messages, such as "device request 2" or "NV_GPU=0,1".
        number: number of GPUs, or "all", or None if devices are named.
        devices: the GPUs named, by index or UUID; () if a number is given.
    """

    text: str
    number: str | None = None
    devices: tuple[str, ...] = ()
    nothing: bool = False
    of_other_maker: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The GPUs by index or UUID, of a count of N those from 0; or "all", alone."""
        if self.number == "all":
            return ("all",)
        # Source: moby daemon/devices_nvidia_linux.go.
        return self.devices or tuple(map(str, range(min(int(self.number or 0), _MOST_GPUS))))


class AskedContainer(Record):
    """A container that is asked for, as far as it matters to its GPUs.

    Attributes:
        title: program and subcommand, such as "docker run".
        attached: whether the client stays until the container has ended.
        passes_signals: whether the client passes on the signals that it gets.
        runs: whether it is started as well as made.
        restart_policy: policy by which the engine starts it again; None for none.
        runtime: the runtime that is named; None for the engine's own choice.
        privileged: whether it sees all devices of the host.
        variables: its variables, as NAME=VALUE.
    """

    title: str
    image: str
    attached: bool = False
    passes_signals: bool = False
    runs: bool = True
    restart_policy: str | None = None
    runtime: str | None = None
    privileged: bool = False
    variables: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def variable(self, name: str) -> str | None:
        """Return the value of a variable, the last one that is given; None if none is."""
        values = [text.partition("=")[2] for text in self.variables if text.startswith(f"{name}=")]
        return values[-1] if values else None


def cdi_prefixes() -> tuple[str, ...]:
    """Return the prefixes of names of GPUs by CDI, such as "nvidia.com/gpu="."""
    return tuple(f"{entry.cdi_kind}=" for entry in DRIVERS.values())


def is_gpu_device(device: str) -> bool:
    """Return whether a device's name is a GPU's CDI name; nvidia's runtime has its own kind."""
    return device.removeprefix("runtime.").startswith(cdi_prefixes())


def capabilities_of(request: Mapping[str, Any]) -> set[str]:
    """Return what one of docker's device requests wants devices to be capable of."""
    return {word for words in request.get("Capabilities") or () for word in words}


def asks_for_gpus(request: Mapping[str, Any]) -> bool:
    """Return whether one of docker's device requests is for GPUs of makers that are known here."""
    driver = request.get("Driver") or ""
    if driver == "cdi":
        return any(map(is_gpu_device, request.get("DeviceIDs") or ()))
    return driver.startswith("nvidia") or (not driver and "gpu" in capabilities_of(request))


def without_kinds(devices: str) -> list[str]:
    """Return device names from a list with commas, without CDI kinds before them.

    nvidia-ctk can name GPU 0 gpu0, too.
    """
    names = []
    for device in devices.split(","):
        name = device.removeprefix("runtime.")
        prefix = next(filter(name.startswith, cdi_prefixes()), None)
        name = name.removeprefix(prefix) if prefix else device
        number = name.removeprefix("gpu")
        names.append(number if prefix and number.isdecimal() else name)
    return names


def asked_by_names(names: Sequence[str], text: str) -> Asked:
    """Return the request in a list of indices or UUIDs, which may be all, none or void."""
    if list(names) in (["none"], ["void"], [""]):
        return Asked(text, nothing=True)
    if "all" in names:
        return Asked(text, number="all")
    return Asked(text, devices=tuple(dict.fromkeys(names)))


def asked_by_files(files: Sequence[str]) -> Asked | None:
    """Return the request in device files such as /dev/nvidia0; None if there is none."""
    gpus = [path for path in files if path.removeprefix(_DEVICE_FILE).isdecimal()]
    if not gpus:
        return None
    text = f"device {','.join(gpus)}"
    return Asked(text, devices=tuple(path.removeprefix(_DEVICE_FILE) for path in gpus))


def asked_of_other_maker(container: AskedContainer, devices: Sequence[str] = ()) -> Asked | None:
    """Return the request for GPUs or accelerators of another maker than NVIDIA, or None.

    Args:
        devices: CDI names, and paths that are mounted.
    """
    for device in (*container.files, *devices):
        kind, equals, _ = device.partition("=")
        if kind.endswith("/gpu") if equals else device.startswith(_OTHER_FILES):
            return Asked(device, of_other_maker=True)
    for assignment in container.variables:
        if assignment.partition("=")[0] in _OTHER_LISTS:
            return Asked(assignment, of_other_maker=True)
    return None


LEASE_LABEL = "io.gpulaunch.lease"
"""Id of the lease that a container was made under."""

GPUS_LABEL = "io.gpulaunch.gpus"
"""UUIDs of the GPUs that a container was made with."""

SHARE_LABEL = "io.gpulaunch.share"
"""A container's percentage of the SMs, if it shares its GPUs."""

LATER_LABEL = "io.gpulaunch.later"
"""Says that a container holds its GPUs before its first start, as after docker create."""

PROFILE_LABEL = "io.gpulaunch.profile"
"""The name of the profile of an image's jobs."""

PROJECT_LABEL = "com.docker.compose.project"
"""The project of compose that a container belongs to."""

HOST_VARIABLES = tuple(entry.visible_variable for entry in DRIVERS.values())
"""Variables to hide from an engine's client.

By -e CUDA_VISIBLE_DEVICES it would carry the host's GPU numbers into the container, where GPUs are
counted anew.
"""


def container_variables(
    asked: AskedContainer,
    gpus: Sequence[Gpu],
    driver: str,
    lease_id: str,
    share: Share | None = None,
) -> dict[str, str]:
    """Return the variables that a container with GPUs is given.

    Args:
        gpus: its GPUs in rank order.
        share: its share of the GPUs, if it shares them.
    """
    entry = DRIVERS[driver]
    # A container counts its GPUs anew, by PCI address; MPS does so in its own way.
    indices = sorted(gpu.index for gpu in gpus)
    numbers = [indices.index(gpu.index) for gpu in gpus]
    names: Sequence[object] = [] if numbers == sorted(numbers) else numbers
    if share:
        names = [gpu.uuid for gpu in gpus]
    variables: dict[str, str] = {}
    if names and asked.variable(entry.visible_variable) is None:
        variables |= {**entry.constants, entry.visible_variable: ",".join(map(str, names))}
    if share:
        variables |= mps_environment(share)
    return variables | {LEASE_VARIABLE: lease_id, COUNT_VARIABLE: str(len(gpus))}


def container_labels(
    gpus: Sequence[Gpu], lease_id: str, share: Share | None = None, *, later: bool = False
) -> dict[str, str]:
    """Return the labels by which a container is known to be a lease's.

    Args:
        share: its share of the GPUs, if it shares them.
        later: whether it is only made now, and started later.
    """
    labels = {GPUS_LABEL: ",".join(gpu.uuid for gpu in gpus), LEASE_LABEL: lease_id}
    if share:
        labels[SHARE_LABEL] = str(share.sm_percentage)
    if later:
        labels[LATER_LABEL] = "true"
    return labels


def service_of(labels: Mapping[str, str]) -> str | None:
    """Return project and service of compose in a container's labels; None if there is none."""
    project = labels.get(PROJECT_LABEL)
    return f"{project}/{labels.get('com.docker.compose.service')}" if project else None


class Image(Record):
    """What an image says of its containers.

    Attributes:
        user: user of their programs; "" for root.
    """

    user: str
    labels: Mapping[str, str]
    variables: Mapping[str, str]


class Container(Record):
    """A container, as its engine described it at one moment.

    Attributes:
        id: 64 hexadecimal digits.
        name: name without docker's leading slash.
        state: created, running, paused, restarting, removing, exited or dead.
        has_failed: whether it was to start, and could not.
        restarts: whether its policy may start it again by itself.
        lease_id: id of the lease that it was made under, or None.
        created_at: time of its creation, in a form that sorts.
        shares: whether it was made to share its GPUs.
        given: indices, UUIDs or beginnings of UUIDs of the GPUs that its flags named or counted; or
            "all", which says nothing of their use.
        watched: pids of the processes whose end changes its state.
        is_for_later: whether it holds its GPUs before its first start, however long that takes.
        service: project and service of compose, as PROJECT/SERVICE; None for a container of its
            own.
    """

    id: str
    name: str
    state: str
    has_failed: bool
    restarts: bool
    image_id: str
    lease_id: str | None
    uuids: tuple[str, ...]
    created_at: str = ""
    shares: bool = False
    given: tuple[str, ...] = ()
    watched: frozenset[int] = frozenset()
    is_for_later: bool = False
    service: str | None = None

    @property
    def holds(self) -> bool:
        """True if its GPUs are taken.

        They are while it runs, is about to be started, or may come back until it is removed.
        """
        if self.state in ("removing", "dead"):
            return False
        if self.state == "created":  # no policy starts what has never run
            return not self.has_failed
        return self.state != "exited" or self.restarts

    @property
    def is_only_made(self) -> bool:
        """True if it was made to be started at once, and has not been."""
        return self.state == "created" and not self.is_for_later
