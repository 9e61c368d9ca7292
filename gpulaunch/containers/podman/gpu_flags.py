"""The GPUs that podman's flags ask for, and the flags that give GPUs to a container."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence

from gpulaunch.containers.asked import (
    asked_by_files,
    asked_by_names,
    asked_by_variable,
    asked_of_other_maker,
    is_gpu_device,
    without_kinds,
)
from gpulaunch.containers.command import ContainerCommand, Flag
from gpulaunch.containers.engine import Asked, Image
from gpulaunch.containers.ways import VISIBLE
from gpulaunch.errors import UsageError
from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.machine.gpu import Gpu


def asked_gpus(command: ContainerCommand, environment: Mapping[str, str]) -> Asked | None:
    """Return the GPUs that podman's flags ask for; see ContainerEngine.asked_gpus.

    The flags are --gpus, --device and -e NVIDIA_VISIBLE_DEVICES. Podman splits the values of the
    first two at commas, and --gpus names GPUs: --gpus 2 is the GPU with index 2, not two GPUs.
    """
    lists = command.values("--gpus")
    devices = [value for value in command.values("--device") if _names_gpu(value)]
    text = " ".join(
        [f"--gpus {value}" for value in lists] + [f"--device {value}" for value in devices]
    )
    if lists and devices:
        raise UsageError(f"{text} both ask for GPUs: say it once")
    for value in devices:
        if not _is_gpus_only(value):
            raise UsageError(f"--device {value}: give the GPUs a --device of their own")
    if lists or devices:
        return asked_by_names(without_kinds(",".join(lists or devices)), text)
    by_variable = asked_by_variable(command, environment)
    return by_variable or asked_by_files(command) or asked_of_other_maker(command)


def asked_by_image(_command: ContainerCommand, _image: Image | None) -> None:
    """Return None: podman heeds no variable of an image's."""


def _names_gpu(devices: str) -> bool:
    return any(map(is_gpu_device, devices.split(",")))


def _is_gpus_only(devices: str) -> bool:
    return all(map(is_gpu_device, devices.split(",")))


def allowed_ways(_command: ContainerCommand) -> set[str]:
    """Return the members of WAYS that podman has."""
    return {"cdi"}


def is_gpu_flag(flag: Flag) -> bool:
    """Return whether a flag gives GPUs to a container, so that a launch removes it."""
    return flag.name == "--gpus" or (flag.name == "--device" and _is_gpus_only(flag.value or ""))


def flags_for(
    _command: ContainerCommand,
    gpus: Sequence[Gpu],
    way: str,
    _asked: Asked | None,
    driver: str,
) -> list[str]:
    """Return the flags with which a container sees these GPUs; see ContainerEngine.flags_for."""
    devices = []
    for gpu in gpus if way == "cdi" else ():
        devices += ["--device", f"{DRIVERS[driver].cdi_kind}={gpu.uuid}"]
    # An image may say "all", and a hook of NVIDIA's may read it.
    return [*devices, "-e", f"{VISIBLE}=void"]
