"""The GPUs that podman's flags ask for, and the command line that gives a container its own."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence

from gpulaunch.containers.asked import (
    Asked,
    AskedContainer,
    asked_by_files,
    asked_by_names,
    asked_of_other_maker,
    is_gpu_device,
    without_kinds,
)
from gpulaunch.containers.flags import Flag
from gpulaunch.containers.podman.command import PodmanCommand
from gpulaunch.containers.ways import VISIBLE
from gpulaunch.errors import UsageError
from gpulaunch.machine.drivers import DRIVERS


def asked_container(command: PodmanCommand) -> AskedContainer:
    """Return what a run or create command asks for."""
    policies = command.values("--restart")
    return AskedContainer(
        title=command.title,
        image=command.operands[0],
        attached=command.is_attached,
        passes_signals=command.passes_signals,
        runs=not command.makes_only,
        restart_policy=policies[-1] if policies and policies[-1] not in ("", "no") else None,
        privileged=command.says("--privileged"),
        variables=tuple(command.values("-e", "--env")),
        files=tuple(value.partition(":")[0] for value in command.values("--device")),
    )


def asked_gpus(command: PodmanCommand, environment: Mapping[str, str]) -> Asked | None:
    """Return the GPUs that podman's flags ask for; None if they say nothing.

    The flags are --gpus, --device and -e NVIDIA_VISIBLE_DEVICES. Podman splits the values of the
    first two at commas, and --gpus names GPUs: --gpus 2 is the GPU with index 2, not two GPUs. No
    variable of an image counts.

    Args:
        command: a run or create command.
        environment: environment of this process, from which -e without a value copies.

    Raises:
        UsageError: the flags contradict each other.
    """
    lists = command.values("--gpus")
    devices = [
        value for value in command.values("--device") if any(map(is_gpu_device, value.split(",")))
    ]
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
    visible = None
    for assignment in command.values("-e", "--env"):
        key, equals, value = assignment.partition("=")
        if key == VISIBLE:
            visible = value if equals else environment.get(VISIBLE)
    if visible is not None:
        return asked_by_names(without_kinds(visible), f"{VISIBLE}={visible}")
    container = asked_container(command)
    mounts = command.values("-v", "--volume")
    return asked_by_files(container.files) or asked_of_other_maker(container, mounts)


def _is_gpus_only(devices: str) -> bool:
    return all(map(is_gpu_device, devices.split(",")))


def _is_gpu_flag(flag: Flag) -> bool:
    return flag.name == "--gpus" or (flag.name == "--device" and _is_gpus_only(flag.value or ""))


def with_gpus(
    command: PodmanCommand,
    uuids: Sequence[str],
    driver: str,
    variables: Mapping[str, str],
    labels: Mapping[str, str],
) -> tuple[str, ...]:
    """Return a run or create command for a container that sees these GPUs and no others.

    Everything but its flags about GPUs stays unchanged and in place. What is added comes after the
    user's flags, since of two assignments to one variable or label the last one counts.

    Args:
        command: the command as it was typed.
        uuids: UUIDs of the GPUs, in rank order; empty for a container without GPUs.
        driver: name of the GPUs' driver in the registry.
        variables: variables that are added.
        labels: labels that are added.
    """
    replaced = set()
    for flag in filter(_is_gpu_flag, command.flags):
        replaced |= set(range(flag.begin, flag.end))
    kept = [word for at, word in enumerate(command.argv[: command.flags_end]) if at not in replaced]
    added = []
    for uuid in uuids:
        added += ["--device", f"{DRIVERS[driver].cdi_kind}={uuid}"]
    # An image may say "all", and a hook of NVIDIA's may read it.
    for name, value in {VISIBLE: "void", **variables}.items():
        added += ["-e", f"{name}={value}"]
    for name, value in labels.items():
        added += ["--label", f"{name}={value}"]
    return (*kept, *added, *command.argv[command.flags_end :])
