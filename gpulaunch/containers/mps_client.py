"""The flags that make a container a client of CUDA MPS, and the obstacles to it."""
# pure: decides on plain values

from collections.abc import Collection
from posixpath import normpath

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.errors import UsageError, printable
from gpulaunch.leases.environment import mps_environment
from gpulaunch.leases.share import Share
from gpulaunch.records import Record

SHARED_MEMORY = "/dev/shm"  # noqa: S108  no file of ours is made there
"""Directory that an MPS daemon and its clients must share, besides the pipe directory."""

_SET_BY_US = frozenset(
    {
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    }
)
_ROOT = frozenset({"", "root"})
_NO = frozenset({"0", "f", "F", "FALSE", "false", "False"})  # false for Go's strconv.ParseBool


class SharingConditions(Record):
    """Facts outside a container's command that decide whether MPS would serve it.

    Attributes:
        engine: name of the engine in messages.
        user_id: user id of the launching user, whom the MPS daemon serves.
        group_id: group id of the launching user.
        image_user: USER of the image, "" for root; None if unknown, since the image is not here
            yet.
        security: the engine's security options, such as "userns" or "rootless".
    """

    engine: str
    user_id: int
    group_id: int
    image_user: str | None
    security: Collection[str]


class _ContainerMount(Record):
    """A mount that a flag makes in the container.

    Attributes:
        flag: name and value of the flag, for messages.
        target: path in the container.
        source: path on the host; None for anything that is not the host's.
        writable: whether the container may write there.
    """

    flag: str
    target: str
    source: str | None
    writable: bool

    @property
    def is_hosts(self) -> bool:
        """True if a directory of the host is mounted writable under its own path."""
        return self.source == self.target and self.writable


def mps_flags(command: ContainerCommand, share: Share) -> list[str]:
    """Return the flags that make a container a client of its MPS daemon, with its limits.

    Directories are mounted by --mount, since -v would create a missing directory, in which no
    daemon listens.

    Args:
        command: a run command that check_sharing has accepted.
        share: the container's share.
    """
    flags = [
        word for name, value in mps_environment(share).items() for word in ("-e", f"{name}={value}")
    ]
    if share.pipe_directory is None:
        return flags
    flags += _mount_flags(share.pipe_directory)
    has_hosts = _last_value(command, "--ipc") == "host" or _shared_memory_mounts(command)
    return flags if has_hosts else flags + _mount_flags(SHARED_MEMORY)


def check_sharing(command: ContainerCommand, around: SharingConditions) -> None:
    """Check that a container can be a client of its user's MPS daemon, as far as is known now.

    Args:
        command: command line of the engine's client.
        around: facts outside the command.

    Raises:
        UsageError: it cannot be a client; the message names the flag, the image or the engine's
            setting that prevents it.
    """
    if command.subcommand[-1] != "run":
        raise UsageError(
            f"{command.title}: only {command.program} run shares GPUs",
            "--exclusive gives it GPUs of its own",
        )
    _check_engine(command, around)
    _check_user(command, around)
    _check_shared_memory(command)
    _check_variables(command)
    policy = _last_value(command, "--restart")
    if policy not in ("", "no"):
        reason = (
            "a container that shares GPUs cannot come back by itself, since its MPS daemon goes "
            "with its lease"
        )
        raise UsageError(f"--restart {printable(policy)}: {reason}")


def _check_engine(command: ContainerCommand, around: SharingConditions) -> None:
    """Refuse an engine that maps users to others: an MPS daemon knows its clients by uid."""
    if "rootless" in around.security:
        raise UsageError(
            f"the {around.engine} is rootless, so its containers cannot share GPUs through MPS"
        )
    if "userns" in around.security and _last_value(command, "--userns") != "host":
        reason = "so its containers cannot share GPUs through MPS"
        raise UsageError(
            f"the {around.engine} maps the users of containers to others, {reason}",
            "add --userns=host",
        )


def _check_user(command: ContainerCommand, around: SharingConditions) -> None:
    """Refuse another user: MPS serves one user at a time, and other clients wait until then."""
    said = _last_value(command, "-u", "--user")
    user = said or around.image_user
    origin = f"-u {printable(said)}" if said else f"image {printable(command.operands[0])}"
    need = f"a container that shares GPUs has to run as who launches it, uid {around.user_id}"
    hint = f"add -u {around.user_id}:{around.group_id}"
    if user is None:
        raise UsageError(
            f"{origin} is not here yet, so nobody can tell as whom it runs: {need}", hint
        )
    name = user.partition(":")[0]
    if name not in _ROOT and not (name.isascii() and name.isdecimal()):
        raise UsageError(
            f"{origin}: who {printable(name)} is, only the container can tell: {need}", hint
        )
    user_id = 0 if name in _ROOT else int(name)
    if user_id != around.user_id:
        raise UsageError(f"{origin} runs as uid {user_id}: {need}", hint)


def _check_shared_memory(command: ContainerCommand) -> None:
    need = (
        f"a container that shares GPUs has the host's {SHARED_MEMORY}, where it meets its MPS "
        "daemon"
    )
    ipc = _last_value(command, "--ipc")
    if ipc not in ("", "host"):
        raise UsageError(f"--ipc {printable(ipc)}: {need}")
    for mount in _shared_memory_mounts(command):
        if not mount.is_hosts:
            raise UsageError(f"{printable(mount.flag)}: {need}")


def _check_variables(command: ContainerCommand) -> None:
    for assignment in command.values("-e", "--env"):
        name = assignment.partition("=")[0]
        if name in _SET_BY_US:
            hint = "--share=PART and --memory say what it is to have"
            raise UsageError(
                f"-e {name}: gpulaunch sets that for a container that shares GPUs", hint
            )


def _last_value(command: ContainerCommand, *names: str) -> str:
    """Return the last value of a flag, which counts; "" if there is none, which means the same."""
    return next(reversed(command.values(*names)), "")


def _shared_memory_mounts(command: ContainerCommand) -> list[_ContainerMount]:
    """Return the mounts on SHARED_MEMORY in the command itself."""
    read = {
        "-v": _read_volume,
        "--volume": _read_volume,
        "--mount": _read_mount,
        "--tmpfs": _read_tmpfs,
    }
    mounts = [
        read[flag.name](f"{flag.name} {flag.value}", flag.value or "")
        for flag in command.flags
        if flag.name in read
    ]
    return [mount for mount in mounts if mount.target == SHARED_MEMORY]


def _read_volume(flag: str, value: str) -> _ContainerMount:
    """Read SOURCE:TARGET[:OPTIONS], or a target alone."""
    source, _, rest = value.partition(":")
    target, _, options = rest.partition(":")
    if not rest:
        return _ContainerMount(flag, normpath(source), None, writable=True)
    return _ContainerMount(flag, normpath(target), normpath(source), "ro" not in options.split(","))


def _read_mount(flag: str, value: str) -> _ContainerMount:
    """Read fields KEY=VALUE, some of which have several names."""
    fields = dict(field.strip('"').partition("=")[::2] for field in value.split(","))
    target = fields.get("target") or fields.get("destination") or fields.get("dst") or ""
    source = fields.get("source") or fields.get("src")
    read_only = fields.get("readonly", fields.get("ro", "false")) not in _NO
    return _ContainerMount(
        flag, normpath(target), normpath(source) if source else None, not read_only
    )


def _read_tmpfs(flag: str, value: str) -> _ContainerMount:
    """Read TARGET[:OPTIONS]."""
    return _ContainerMount(flag, normpath(value.partition(":")[0]), None, writable=True)


def _mount_flags(path: str) -> list[str]:
    """Return the flag that mounts a path of the host under the same path, as a CSV record."""
    fields = ("type=bind", f"source={path}", f"target={path}")
    return [
        "--mount",
        ",".join(_quote_field(field) if set(field) & set(',"') else field for field in fields),
    ]


def _quote_field(field: str) -> str:
    return f'"{field.replace(chr(34), chr(34) * 2)}"'
