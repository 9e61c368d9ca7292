"""The request to create a container: the GPUs that it asks for, and those that it gets.

It is the body of docker's POST /containers/create, whoever sends it: docker's client, compose, or a
program; podman.py reads podman's flags as one. Source: Docker Engine API 1.41 to 1.51.
"""
# pure: decides on plain values

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpulaunch.containers.container import VISIBLE, Image
from gpulaunch.errors import UsageError, printable
from gpulaunch.leases.lease import Share
from gpulaunch.machine.driver import DRIVERS
from gpulaunch.records import Record, replace

Document = Mapping[str, Any]

_NVIDIA_RUNTIMES = frozenset({"nvidia", "nvidia-container-runtime"})
"""Names under which NVIDIA's container runtime is registered."""

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


def asked_container(document: Document, title: str) -> AskedContainer:
    """Read what matters to GPUs.

    Args:
        title: words of the command that sends it, such as "docker run".

    Raises:
        TypeError, AttributeError: it is no such request; the engine will say so.
    """
    host = document.get("HostConfig") or {}
    labels = document.get("Labels") or {}
    for text in (*(document.get("Env") or ()), *labels, *labels.values()):
        if not isinstance(text, str):
            raise TypeError(text)
    policy = (host.get("RestartPolicy") or {}).get("Name")
    attached = bool(document.get("AttachStdout") or document.get("AttachStderr"))
    return AskedContainer(
        title=title,
        image=str(document.get("Image") or ""),
        attached=attached,
        passes_signals=attached and not document.get("Tty"),
        runs=not title.endswith(" create"),
        restart_policy=str(policy) if policy not in (None, "", "no") else None,
        runtime=host.get("Runtime") or None,
        privileged=bool(host.get("Privileged")),
        variables=tuple(document.get("Env") or ()),
        files=tuple(str(one.get("PathOnHost")) for one in host.get("Devices") or ()),
    )


def asked_gpus(
    document: Document, container: AskedContainer, nv_gpu: str, image: Image | None, by: str | None
) -> Asked | None:
    """Return the GPUs that a request asks for; None if it says nothing.

    Only if nothing asks for an NVIDIA GPU, what asks for those of other makers counts.

    Args:
        nv_gpu: nvidia-docker's list of GPUs, from the environment; "" for none.
        image: the image; None if it is not here.
        by: program that chooses NVIDIA's runtime, such as nvidia-docker, or None.

    Raises:
        UsageError: it contradicts itself.
    """
    host = document.get("HostConfig") or {}
    requests = [_asked_by_request(one) for one in _requests(host) if _asks_for_gpus(one)]
    if any(asked.number == "all" for asked in requests):
        requests = requests[-1:]  # of all and a list, the engine takes the last
    if len(set(requests)) > 1:
        texts = " and ".join(asked.text for asked in requests)
        raise UsageError(f"{container.title} has {texts}: say it once")
    if requests:
        return requests[0]
    visible, names = container.variable(VISIBLE), nv_gpu.replace(",", " ").split()
    found = _asked_by_files(container.files)
    if visible is not None:
        found = _asked_by_names(_without_kinds(visible), f"{VISIBLE}={visible}")
    elif names:
        found = _asked_by_names(names, f"NV_GPU={','.join(names)}")
    if found:
        return found
    if container.runtime in _NVIDIA_RUNTIMES or (container.runtime is None and by):
        return _asked_by_image(image, f"runtime {container.runtime}" if container.runtime else by)
    names = [name for one in _requests(host) for name in one.get("DeviceIDs") or ()]
    for one in _requests(host):
        if one.get("Driver") not in ("cdi", "") and "gpu" in _capabilities_of(one):
            return Asked("device request of another maker", of_other_maker=True)
    mounts = [str(one).partition(":")[0] for one in host.get("Binds") or ()]
    return _asked_of_other_maker(container, [*names, *mounts])


def given_gpus(host: Document, environment: Sequence[str]) -> tuple[str, ...]:
    """Return the GPUs that a container was made with, by its HostConfig and variables."""
    names: list[str] = []
    for request in filter(_asks_for_gpus, _requests(host)):
        with suppress(UsageError):  # the engine has refused it, too
            names += _asked_by_request(request).names
    if not names and str(host.get("Runtime")).startswith("nvidia"):
        said = [text for text in environment if text.startswith(f"{VISIBLE}=")]
        for text in said[-1:]:
            names += _asked_by_names(_without_kinds(text.partition("=")[2]), "").names
    return ("all",) if "all" in names else tuple(dict.fromkeys(names))


def _requests(host: Document) -> list[Document]:
    return list(host.get("DeviceRequests") or ())


def _asked_by_request(request: Document) -> Asked:
    names, count = request.get("DeviceIDs") or (), request.get("Count") or 0
    if not isinstance(count, int):
        raise TypeError(count)
    if names and count:  # the engine refuses it, too
        raise UsageError(
            f"device request {','.join(names)} with a count of {count}",
            "several devices need quotes of their own: --gpus '\"device=0,1\"'",
        )
    if names:
        others = _other_devices(request)
        names = [name for name in names if name not in others]
        named = _asked_by_names(_without_kinds(",".join(names)), "")
        shown = named.number or ",".join(named.devices) or "0"
        return replace(named, text=f"device request {shown}")
    if count == 0:
        return Asked("device request 0", nothing=True)
    number = "all" if count < 0 else str(count)
    return Asked(f"device request {number}", number=number)


def _other_devices(request: Document) -> list[str]:
    """Return the devices of a request that are no GPUs, which one by CDI may name, too."""
    names = request.get("DeviceIDs") or () if request.get("Driver") == "cdi" else ()
    return [name for name in names if "=" in name and not is_gpu_device(name)]


def _asked_by_image(image: Image | None, by: str | None) -> Asked | None:
    """Return the GPUs that NVIDIA's runtime gives a container by its image; None for none.

    It reads NVIDIA_VISIBLE_DEVICES in the image, and gives those of before it was introduced all.
    An image that is not here counts as one that says all, as those made for GPUs do. Source:
    nvidia-container-toolkit, internal/config/image.
    """
    said = image.variables.get(VISIBLE) if image else "all"
    if image and said is None and "CUDA_VERSION" in image.variables:
        said = None if "NVIDIA_REQUIRE_CUDA" in image.variables else "all"
    if said is None:
        return None
    if image and VISIBLE in image.variables:
        by = f"{VISIBLE}={said} of the image"
    return _asked_by_names(_without_kinds(said), by or "")


def is_gpu_device(device: str) -> bool:
    """Return whether a device's name is a GPU's CDI name; nvidia's runtime has its own kind."""
    return device.removeprefix("runtime.").startswith(_cdi_prefixes())


def _cdi_prefixes() -> tuple[str, ...]:
    """Return the prefixes of names of GPUs by CDI, such as "nvidia.com/gpu="."""
    return tuple(f"{entry.cdi_kind}=" for entry in DRIVERS.values())


def _capabilities_of(request: Mapping[str, Any]) -> set[str]:
    """Return what one of docker's device requests wants devices to be capable of."""
    return {word for words in request.get("Capabilities") or () for word in words}


def _asks_for_gpus(request: Mapping[str, Any]) -> bool:
    """Return whether one of docker's device requests is for GPUs of makers that are known here."""
    driver = request.get("Driver") or ""
    if driver == "cdi":
        return any(map(is_gpu_device, request.get("DeviceIDs") or ()))
    return driver.startswith("nvidia") or (not driver and "gpu" in _capabilities_of(request))


def _without_kinds(devices: str) -> list[str]:
    """Return device names from a list with commas, without CDI kinds before them.

    nvidia-ctk can name GPU 0 gpu0, too.
    """
    names = []
    for device in devices.split(","):
        name = device.removeprefix("runtime.")
        prefix = next(filter(name.startswith, _cdi_prefixes()), None)
        name = name.removeprefix(prefix) if prefix else device
        number = name.removeprefix("gpu")
        names.append(number if prefix and number.isdecimal() else name)
    return names


def _asked_by_names(names: Sequence[str], text: str) -> Asked:
    """Return the request in a list of indices or UUIDs, which may be all, none or void."""
    if list(names) in (["none"], ["void"], [""]):
        return Asked(text, nothing=True)
    if "all" in names:
        return Asked(text, number="all")
    return Asked(text, devices=tuple(dict.fromkeys(names)))


def _asked_by_files(files: Sequence[str]) -> Asked | None:
    """Return the request in device files such as /dev/nvidia0; None if there is none."""
    gpus = [path for path in files if path.removeprefix(_DEVICE_FILE).isdecimal()]
    if not gpus:
        return None
    text = f"device {','.join(gpus)}"
    return Asked(text, devices=tuple(path.removeprefix(_DEVICE_FILE) for path in gpus))


def _asked_of_other_maker(container: AskedContainer, devices: Sequence[str]) -> Asked | None:
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


def with_gpus(
    document: Document,
    uuids: Sequence[str],
    way: str,
    driver: str,
    variables: Mapping[str, str],
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """Return a request for a container that sees these GPUs and no others.

    Args:
        uuids: UUIDs of the GPUs, in rank order; empty for a container without GPUs.
        way: one of WAYS, or NO_WAY.
        variables: variables that are added, in place of those of the same names.
    """
    host = dict(document.get("HostConfig") or {})
    asked = [one for one in _requests(host) if _asks_for_gpus(one)]
    requests = [one for one in _requests(host) if not _asks_for_gpus(one)]
    requests += [{**one, "DeviceIDs": more} for one in asked if (more := _other_devices(one))]
    added = dict(variables)
    if not uuids or way != "gpus":  # by which the engine sets it
        # An image may say "all", and the engine's default runtime may be nvidia.
        added[VISIBLE] = "void"
    if uuids and way == "cdi":
        kind = DRIVERS[driver].cdi_kind
        requests.append({"Driver": "cdi", "DeviceIDs": [f"{kind}={uuid}" for uuid in uuids]})
    elif uuids and way == "gpus":
        first = asked[0] if asked and asked[0].get("Driver") != "cdi" else {}
        kept = {"Capabilities": [["gpu"]], **first}
        requests.append({**kept, "Count": 0, "DeviceIDs": list(uuids)})
    elif uuids and way == "runtime":
        host["Runtime"] = host.get("Runtime") or "nvidia"
        added[VISIBLE] = ",".join(uuids)
        limits = sorted(_capabilities_of(asked[0]) - {"gpu", "nvidia"}) if asked else []
        if limits:
            added["NVIDIA_DRIVER_CAPABILITIES"] = ",".join(limits)
    host["DeviceRequests"] = requests
    kept_variables = [
        text for text in document.get("Env") or () if text.partition("=")[0] not in added
    ]
    return {
        **document,
        "HostConfig": host,
        "Env": [*kept_variables, *(f"{name}={value}" for name, value in added.items())],
        "Labels": {**(document.get("Labels") or {}), **labels},
    }


SHARED_MEMORY = "/dev/shm"  # noqa: S108  no file of ours is made there
"""Directory that an MPS daemon and its clients must share, besides the pipe directory."""


def with_mps(document: Document, share: Share) -> dict[str, Any]:
    """Return the request for a container that meets its MPS daemon; its variables come besides.

    Directories are mounted by Mounts, since Binds would create a missing directory, in which no
    daemon listens.
    """
    host = dict(document.get("HostConfig") or {})
    if share.pipe_directory is not None:
        paths = [share.pipe_directory]
        # Docker refuses a second mount on one directory.
        binds = [str(bind).split(":") for bind in host.get("Binds") or ()]
        own = any(
            bind[:2] == [SHARED_MEMORY] * 2 and "ro" not in ",".join(bind[2:]).split(",")
            for bind in binds
        )
        if host.get("IpcMode") != "host" and not own:
            paths.append(SHARED_MEMORY)
        mounts = [{"Type": "bind", "Source": path, "Target": path} for path in paths]
        host["Mounts"] = [*(host.get("Mounts") or ()), *mounts]
    return {**document, "HostConfig": host}


def check_sharing(
    document: Document,
    asked: AskedContainer,
    user_id: int,
    group_id: int,
    image_user: str | None,
    security: Collection[str],
) -> None:
    """Check that a container can be a client of its user's MPS daemon, as far as is known now.

    Args:
        image_user: USER of the image, "" for root; None if the image is not here yet.
        security: the engine's security options, such as "userns" or "rootless".

    Raises:
        UsageError: it cannot be a client; the message names the flag, the image or the engine's
            setting that prevents it.
    """
    host = document.get("HostConfig") or {}
    if "rootless" in security:
        raise UsageError(
            "the Docker Engine is rootless, so its containers cannot share GPUs through MPS"
        )
    if "userns" in security and host.get("UsernsMode") != "host":
        reason = "so its containers cannot share GPUs through MPS"
        raise UsageError(
            f"the Docker Engine maps the users of containers to others, {reason}",
            "add --userns=host",
        )
    said = str(document.get("User") or "")
    user = (said or image_user or "").partition(":")[0] or "root"
    is_known = said or image_user is not None
    # MPS serves one user at a time, and other clients wait until then.
    if not is_known or (user != str(user_id) and (user, user_id) != ("root", 0)):
        origin = f"-u {printable(said)}" if said else f"image {printable(asked.image)}"
        found = f"runs as {printable(user)}" if is_known else "is not here yet"
        raise UsageError(
            f"{origin} {found}: a container that shares GPUs has to run as who launches it, "
            f"uid {user_id}",
            f"add -u {user_id}:{group_id}",
        )
    need = (
        f"a container that shares GPUs has the host's {SHARED_MEMORY}, where it meets its MPS "
        "daemon"
    )
    ipc = str(host.get("IpcMode") or "")
    if ipc not in ("", "host"):
        raise UsageError(f"--ipc {printable(ipc)}: {need}")
    # Docker itself refuses another volume there, but not a tmpfs, which would hide the daemon.
    if SHARED_MEMORY in (host.get("Tmpfs") or {}):
        raise UsageError(f"--tmpfs {SHARED_MEMORY}: {need}")
    if asked.restart_policy:
        reason = (
            "a container that shares GPUs cannot come back by itself, since its MPS daemon goes "
            "with its lease"
        )
        raise UsageError(f"--restart {printable(asked.restart_policy)}: {reason}")
