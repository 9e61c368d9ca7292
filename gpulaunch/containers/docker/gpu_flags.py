"""The GPUs that docker's flags ask for, and the flags that give GPUs to a container."""
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
from gpulaunch.containers.ways import VISIBLE, WAYS
from gpulaunch.errors import FlagError, UsageError, quoted
from gpulaunch.machine.drivers import DRIVERS
from gpulaunch.machine.gpu import Gpu
from gpulaunch.records import replace

_NVIDIA_RUNTIMES = frozenset({"nvidia", "nvidia-container-runtime"})
"""Names under which NVIDIA's container runtime is registered."""

_DRIVER_CAPABILITIES = frozenset(
    {"compute", "compat32", "graphics", "utility", "video", "display", "ngx", "all"}
)


def asked_gpus(command: ContainerCommand, environment: Mapping[str, str]) -> Asked | None:
    """Return the GPUs that docker's flags ask for; see ContainerEngine.asked_gpus.

    The flags are --gpus, --device, -e NVIDIA_VISIBLE_DEVICES, and nvidia-docker's NV_GPU, or else
    --device /dev/nvidia0. Only if none of them asks for an NVIDIA GPU, those for GPUs of other
    makers count.
    """
    lists = command.values("--gpus")
    devices = [value for value in command.values("--device") if is_gpu_device(value)]
    if any(_read_gpus_flag(value).number == "all" for value in lists):
        lists = lists[-1:]  # of all and a list, the engine takes the last
    if len(set(lists)) + bool(devices) > 1:
        given = [f"--gpus {value}" for value in lists] + [f"--device {value}" for value in devices]
        raise UsageError(f"{' and '.join(given)} both ask for GPUs: say it once")
    if lists:
        return _read_gpus_flag(lists[0])
    if devices:
        text = " ".join(f"--device {value}" for value in devices)
        names = [value.partition("=")[2] for value in devices]
        if any(not name or "," in name for name in names):
            raise FlagError(f"{text}: one GPU for each --device, by index or UUID, or all")
        return asked_by_names(names, text)
    by_variable = asked_by_variable(command, environment)
    if by_variable:
        return by_variable
    names = environment.get("NV_GPU", "").replace(",", " ").split()
    if names:
        return asked_by_names(names, f"NV_GPU={environment['NV_GPU']}")
    by_files = asked_by_files(command)
    if by_files or _nvidia_runtime(command):
        return by_files
    return asked_of_other_maker(command)


def asked_by_image(command: ContainerCommand, image: Image | None) -> Asked | None:
    """Return the GPUs that a container without flags about GPUs gets by its image; None for none.

    NVIDIA's runtime reads NVIDIA_VISIBLE_DEVICES in the image, and gives those of before it was
    introduced all. An image that is not here counts as one that says all, as those made for GPUs
    do. Source: nvidia-container-toolkit, internal/config/image.
    """
    by = _nvidia_runtime(command)
    if by is None:
        return None
    said = image.variables.get(VISIBLE) if image else "all"
    if image and said is None and "CUDA_VERSION" in image.variables:
        said = None if "NVIDIA_REQUIRE_CUDA" in image.variables else "all"
    if said is None:
        return None
    if image and VISIBLE in image.variables:
        by = f"{VISIBLE}={said} of the image"
    return asked_by_names(without_kinds(said), by)


def _nvidia_runtime(command: ContainerCommand) -> str | None:
    """Return the flag or program that chooses NVIDIA's container runtime, or None."""
    runtimes = command.values("--runtime")
    if not runtimes:
        return command.alias  # nvidia-docker adds it
    return f"--runtime {runtimes[-1]}" if runtimes[-1] in _NVIDIA_RUNTIMES else None


def _suggest_quotes(fields: Sequence[str]) -> str | None:
    """Return a hint for --gpus device=0,2, which docker reads as device 0 and a count of 2."""
    devices = [field for field in fields if field.startswith("device=")]
    numbers = [field for field in fields if "=" not in field]
    if len(devices) != 1 or not numbers:
        return None
    others = [field for field in fields if field not in (*devices, *numbers)]
    quoted_list = '"' + ",".join([*devices, *numbers]).replace('"', "") + '"'
    return f"several devices need quotes of their own: --gpus '{','.join([quoted_list, *others])}'"


def _split_csv(text: str, record: str) -> list[str]:
    import csv  # late: few values need it

    try:
        (fields,) = csv.reader([record], strict=True)
    except (csv.Error, ValueError):
        raise FlagError(f"{text}: wrong quotes") from None
    return fields


def _read_gpus_flag(value: str) -> Asked:
    """Read the value of --gpus: a CSV record of a count or key=value fields.

    Source: docker/cli opts/gpus.go.
    """
    text = f"--gpus {value}"
    fields = _split_csv(text, value) if '"' in value or "\n" in value else value.split(",")
    keyed: dict[str, str] = {}
    for field in fields:
        key, equals, content = field.partition("=")
        if not equals:
            key, content = "count", field
        if key not in ("driver", "count", "device", "capabilities", "options"):
            raise FlagError(f"{text}: unknown key {quoted(key)}")
        if key in keyed or {key, *keyed} >= {"count", "device"}:
            raise FlagError(f"{text}: more than one count or device list", _suggest_quotes(fields))
        keyed[key] = content
    if not keyed.get("driver", "nvidia").startswith(("nvidia", "cdi")) and keyed["driver"]:
        return Asked(text, of_other_maker=True)
    others = tuple(
        field
        for field in fields
        if field.partition("=")[0] in ("driver", "capabilities", "options")
    )
    if "device" in keyed:
        return replace(asked_by_names(without_kinds(keyed["device"]), text), fields=others)
    count = keyed.get("count", "1")
    if count in ("all", "-1"):
        return Asked(text, number="all", fields=others)
    if not (count.isascii() and count.isdecimal()):
        raise FlagError(f"{text}: {quoted(count)} is neither a number of GPUs nor 'all'")
    if int(count) == 0:
        return Asked(text, nothing=True)
    return Asked(text, number=count, fields=others)


def allowed_ways(command: ContainerCommand) -> set[str]:
    """Return the members of WAYS that a command leaves open: it may name another runtime."""
    runtimes = command.values("--runtime")
    return set(WAYS) - ({"runtime"} if runtimes and runtimes[-1] != "nvidia" else set())


def is_gpu_flag(flag: Flag) -> bool:
    """Return whether a flag gives GPUs to a container, so that a launch removes it."""
    return flag.name == "--gpus" or (flag.name == "--device" and is_gpu_device(flag.value or ""))


def flags_for(
    command: ContainerCommand,
    gpus: Sequence[Gpu],
    way: str,
    asked: Asked | None,
    driver: str,
) -> list[str]:
    """Return the flags with which a container sees these GPUs; see ContainerEngine.flags_for.

    They come after the user's own, since of two assignments to one variable docker takes the last.
    """
    uuids = [gpu.uuid for gpu in gpus]
    if gpus and way == "gpus":
        fields = [f"device={','.join(uuids)}", *(asked.fields if asked else ())]
        quoted_fields = [f'"{field.replace(chr(34), chr(34) * 2)}"' for field in fields]
        return ["--gpus", ",".join(quoted_fields)]
    if gpus and way == "runtime":
        runtime = [] if command.values("--runtime") else ["--runtime", "nvidia"]
        capabilities = _driver_capabilities(asked.fields if asked else ())
        limited = ["-e", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"] if capabilities else []
        return [*runtime, "-e", f"{VISIBLE}={','.join(uuids)}", *limited]
    devices = []
    for uuid in uuids if way == "cdi" else ():
        devices += ["--device", f"{DRIVERS[driver].cdi_kind}={uuid}"]
    # An image may say "all", and the engine's default runtime may be nvidia.
    return [*devices, "-e", f"{VISIBLE}=void"]


def _driver_capabilities(fields: Sequence[str]) -> str:
    """Return the capabilities in --gpus that are the driver's.

    Source: moby daemon/nvidia_linux.go.
    """
    named = (
        field.removeprefix("capabilities=") for field in fields if field.startswith("capabilities=")
    )
    return ",".join(word for word in next(named, "").split(",") if word in _DRIVER_CAPABILITIES)
