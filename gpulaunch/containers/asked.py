"""The GPUs that flags and variables of engines' clients name."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.containers.engine import Asked
from gpulaunch.containers.ways import VISIBLE, cdi_prefixes

_DEVICE_FILE = "/dev/nvidia"

_OTHER_MAKERS = ("/dev/kfd", "/dev/dri", "/dev/neuron", "/dev/accel", "/dev/davinci")
"""Device files of GPUs and accelerators that are not NVIDIA's."""

_OTHER_LISTS = frozenset(
    {"AMD_VISIBLE_DEVICES", "AWS_NEURON_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES"}
)
"""Variables with the GPUs of a container, for other makers' runtimes."""


def is_gpu_device(device: str) -> bool:
    """Return whether a value of --device is a GPU's CDI name; nvidia's runtime has its own kind."""
    return device.removeprefix("runtime.").startswith(cdi_prefixes())


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
    """Return the request in a list of names, which may be all, none or void.

    Args:
        names: indices or UUIDs.
        text: flag or variable with its value.
    """
    if list(names) in (["none"], ["void"], [""]):
        return Asked(text, nothing=True)
    if "all" in names:
        return Asked(text, number="all")
    return Asked(text, devices=tuple(dict.fromkeys(names)))


def asked_by_variable(command: ContainerCommand, environment: Mapping[str, str]) -> Asked | None:
    """Return the request in -e NVIDIA_VISIBLE_DEVICES; None if it is not there.

    Args:
        command: a run or create command.
        environment: environment of this process, from which -e without a value copies.
    """
    visible = None
    for assignment in command.values("-e", "--env"):
        key, equals, value = assignment.partition("=")
        if key == VISIBLE:
            visible = value if equals else environment.get(VISIBLE)
    if visible is None:
        return None
    return asked_by_names(without_kinds(visible), f"{VISIBLE}={visible}")


def asked_by_files(command: ContainerCommand) -> Asked | None:
    """Return the request in --device /dev/nvidia0 and its like; None if there is none."""
    paths = [value.partition(":")[0] for value in command.values("--device")]
    files = [path for path in paths if path.removeprefix(_DEVICE_FILE).isdecimal()]
    if not files:
        return None
    text = " ".join(f"--device {path}" for path in files)
    return Asked(text, devices=tuple(path.removeprefix(_DEVICE_FILE) for path in files))


def asked_of_other_maker(command: ContainerCommand) -> Asked | None:
    """Return the request for GPUs or accelerators of another maker than NVIDIA, or None."""
    for device in command.values("--device"):
        kind, equals, _ = device.partition("=")
        if kind.endswith("/gpu") if equals else device.startswith(_OTHER_MAKERS):
            return Asked(f"--device {device}", of_other_maker=True)
    for volume in command.values("-v", "--volume"):
        if volume.startswith(_OTHER_MAKERS):
            return Asked(f"-v {volume}", of_other_maker=True)
    for assignment in command.values("-e", "--env"):
        if assignment.partition("=")[0] in _OTHER_LISTS:
            return Asked(f"-e {assignment}", of_other_maker=True)
    return None
