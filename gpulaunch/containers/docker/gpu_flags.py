"""What docker's own flags ask of GPUs, and how the leased ones are written into docker's command line."""
# pure: decides on plain values

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.containers.ways import WAYS
from gpulaunch.errors import UsageError, quoted
from gpulaunch.leases.environment import LEASE_VARIABLE
from gpulaunch.machine.gpu import Gpu

if TYPE_CHECKING:  # what few launches need, the others do not load
    from gpulaunch.leases.share import Share

CDI_KIND = "nvidia.com/gpu="
"""How GPUs are called in the Container Device Interface, before their name."""

LEASE_LABEL = "io.gpulaunch.lease"
GPUS_LABEL = "io.gpulaunch.gpus"
SHARE_LABEL = "io.gpulaunch.share"
PROFILE_LABEL = "io.gpulaunch.profile"

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_DRIVER_CAPABILITIES = frozenset(
    {"compute", "compat32", "graphics", "utility", "video", "display", "ngx", "all"}
)


class Asked(NamedTuple):
    """What docker's own flags say about GPUs.

    Attributes:
        text: what says it, with its value, such as "--gpus 2" or "NV_GPU=0,1".
        number: of GPUs, or "all", or None if devices are named.
        devices: the GPUs named, by index or UUID; empty for none.
        nothing: no GPU is wanted.
        fields: what else --gpus says: driver, capabilities, options.
    """

    text: str
    number: str | None = None
    devices: tuple[str, ...] = ()
    nothing: bool = False
    fields: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """What says it, without the value."""
        return self.text.replace("=", " ").partition(" ")[0]


def asked_gpus(command: ContainerCommand, environment: Mapping[str, str]) -> Asked | None:
    """Which GPUs docker's flags ask for: --gpus, --device, NVIDIA_VISIBLE_DEVICES, or nvidia-docker's NV_GPU.

    Args:
        command: docker run or docker create.
        environment: of this process.

    Returns:
        None if they say nothing.

    Raises:
        UsageError: they contradict each other, or docker would not understand them.
    """
    lists = command.values("--gpus")
    devices = [value for value in command.values("--device") if _is_gpu(value)]
    if len(lists) + bool(devices) > 1:
        given = [f"--gpus {value}" for value in lists] + [f"--device {value}" for value in devices]
        raise UsageError(f"{' and '.join(given)} both ask for GPUs: say it once")
    if lists:
        return _from_gpus(lists[0])
    if devices:
        text = " ".join(f"--device {value}" for value in devices)
        names = [value.partition("=")[2] for value in devices]
        if any(not name or "," in name for name in names):
            raise UsageError(f"{text}: one GPU for each --device, by index or UUID, or all")
        return _from_names(names, text)
    visible = _container_variable(command, environment, VISIBLE)
    if visible is not None:
        names = [name.removeprefix(CDI_KIND) for name in visible.split(",")]
        return _from_names(names, f"{VISIBLE}={visible}")
    names = environment.get("NV_GPU", "").replace(",", " ").split()
    return _from_names(names, f"NV_GPU={environment['NV_GPU']}") if names else None


def _is_gpu(device: str) -> bool:
    """Whether a value of --device is a GPU's CDI name; nvidia's runtime has a kind of its own."""
    return device.removeprefix("runtime.").startswith(CDI_KIND)


def _container_variable(
    command: ContainerCommand, environment: Mapping[str, str], name: str
) -> str | None:
    """What -e sets a variable to, or has docker copy from this environment; the last one counts."""
    found = None
    for assignment in command.values("-e", "--env"):
        key, equals, value = assignment.partition("=")
        if key == name:
            found = value if equals else environment.get(name)
    return found


def _from_names(names: Sequence[str], text: str) -> Asked:
    if list(names) in (["none"], ["void"], [""]):
        return Asked(text, nothing=True)
    if "all" in names:
        return Asked(text, number="all")
    return Asked(text, devices=tuple(dict.fromkeys(names)))


def _requoted(fields: Sequence[str]) -> str | None:
    """The hint for --gpus device=0,2, which docker takes for device 0 and a count of 2."""
    devices = [field for field in fields if field.startswith("device=")]
    numbers = [field for field in fields if "=" not in field]
    if len(devices) != 1 or not numbers:
        return None
    others = [field for field in fields if field not in (*devices, *numbers)]
    quoted_list = '"' + ",".join([*devices, *numbers]).replace('"', "") + '"'
    return f"several devices need quotes of their own: --gpus '{','.join([quoted_list, *others])}'"


def _csv_fields(text: str, record: str) -> list[str]:
    import csv  # late: few values need it

    try:
        (fields,) = csv.reader([record], strict=True)
    except (csv.Error, ValueError):
        raise UsageError(f"{text}: wrong quotes") from None
    return fields


def _from_gpus(value: str) -> Asked:
    """The value of --gpus: a CSV record of a count, or of key=value fields (docker/cli opts/gpus.go)."""
    text = f"--gpus {value}"
    fields = _csv_fields(text, value) if '"' in value or "\n" in value else value.split(",")
    keyed: dict[str, str] = {}
    for field in fields:
        key, equals, content = field.partition("=")
        if not equals:
            key, content = "count", field
        if key not in ("driver", "count", "device", "capabilities", "options"):
            raise UsageError(f"{text}: unknown key {quoted(key)}")
        if key in keyed or {key, *keyed} >= {"count", "device"}:
            raise UsageError(f"{text}: more than one count or device list", _requoted(fields))
        keyed[key] = content
    if not keyed.get("driver", "").startswith("nvidia") and keyed.get("driver"):
        raise UsageError(f"{text}: driver {quoted(keyed['driver'])}: only NVIDIA GPUs are leased")
    others = tuple(
        field
        for field in fields
        if field.partition("=")[0] in ("driver", "capabilities", "options")
    )
    if "device" in keyed:
        names = [name.removeprefix(CDI_KIND) for name in keyed["device"].split(",")]
        return _from_names(names, text)._replace(fields=others)
    count = keyed.get("count", "1")
    if count in ("all", "-1"):
        return Asked(text, number="all", fields=others)
    if not (count.isascii() and count.isdecimal()):
        raise UsageError(f"{text}: {quoted(count)} is neither a number of GPUs nor 'all'")
    if int(count) == 0:
        return Asked(text, nothing=True)
    return Asked(text, number=count, fields=others)


def allowed_ways(command: ContainerCommand) -> set[str]:
    """Those of WAYS that a command leaves open: it may name another runtime."""
    runtimes = command.values("--runtime")
    return set(WAYS) - ({"runtime"} if runtimes and runtimes[-1] != "nvidia" else set())


def with_gpus(
    command: ContainerCommand,
    gpus: Sequence[Gpu],
    way: str,
    lease_id: str | None,
    asked: Asked | None,
    share: "Share | None" = None,
) -> tuple[str, ...]:
    """Docker's command line with exactly these GPUs, and labels that tell others whose they are.

    All else stays as and where it was. What is added comes after the user's flags, since of two
    assignments to one variable or label docker takes the last.

    Args:
        command: docker run or docker create.
        gpus: in rank order; none for a container that is to see no GPU.
        way: one of WAYS, or NO_WAY.
        lease_id: None as long as there is no lease.
        asked: what docker's flags said.
        share: its part of the GPUs, if it shares them.
    """
    uuids = [gpu.uuid for gpu in gpus]
    added: list[str] = []
    if gpus and way == "gpus":
        fields = [f"device={','.join(uuids)}", *(asked.fields if asked else ())]
        added += [
            "--gpus",
            ",".join(f'"{field.replace(chr(34), chr(34) * 2)}"' for field in fields),
        ]
    elif gpus and way == "runtime":
        runtime = [] if command.values("--runtime") else ["--runtime", "nvidia"]
        added += [*runtime, "-e", f"{VISIBLE}={','.join(uuids)}"]
        capabilities = _driver_capabilities(asked.fields if asked else ())
        added += ["-e", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"] if capabilities else []
    else:  # an image may say "all", and the engine's default runtime may be nvidia
        added += [word for uuid in uuids if way == "cdi" for word in ("--device", CDI_KIND + uuid)]
        added += ["-e", f"{VISIBLE}=void"]
    names = uuids if share else _numbers_inside(gpus)  # MPS numbers its GPUs in a way of its own
    if names and not _sets(command, "CUDA_VISIBLE_DEVICES"):
        added += [
            "-e",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "-e",
            f"CUDA_VISIBLE_DEVICES={','.join(names)}",
        ]
    if gpus:
        added += ["--label", f"{GPUS_LABEL}={','.join(uuids)}"]
    if share:
        from gpulaunch.containers.mps_client import mps_flags  # late: few containers share

        added += [*mps_flags(command, share), "--label", f"{SHARE_LABEL}={share.sm_percentage}"]
    if lease_id:
        added += ["--label", f"{LEASE_LABEL}={lease_id}", "-e", f"{LEASE_VARIABLE}={lease_id}"]
    replaced = {
        at
        for flag in command.flags
        if flag.name == "--gpus" or (flag.name == "--device" and _is_gpu(flag.value or ""))
        for at in range(flag.begin, flag.end)
    }
    kept = [word for at, word in enumerate(command.argv[: command.flags_end]) if at not in replaced]
    return (*kept, *added, *command.argv[command.flags_end :])


def _numbers_inside(gpus: Sequence[Gpu]) -> list[str]:
    """The numbers of GPUs in a container, which counts anew by PCI address, in rank order; none if they ascend."""
    indices = sorted(gpu.index for gpu in gpus)
    numbers = [indices.index(gpu.index) for gpu in gpus]
    return [] if numbers == sorted(numbers) else list(map(str, numbers))


def _sets(command: ContainerCommand, variable: str) -> bool:
    return any(value.startswith(f"{variable}=") for value in command.values("-e", "--env"))


def _driver_capabilities(fields: Sequence[str]) -> str:
    """Those capabilities in --gpus that are the driver's, as docker tells them apart (moby daemon/nvidia_linux.go)."""
    named = (
        field.removeprefix("capabilities=") for field in fields if field.startswith("capabilities=")
    )
    return ",".join(word for word in next(named, "").split(",") if word in _DRIVER_CAPABILITIES)
