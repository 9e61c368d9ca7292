"""What makes a container that shares its GPUs a client of CUDA MPS, and what prevents it."""
# pure: decides on plain values

from collections.abc import Collection
from posixpath import normpath

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.errors import UsageError, printable
from gpulaunch.leases.environment import mps_environment
from gpulaunch.leases.share import Share
from gpulaunch.records import Record

SHARED_MEMORY = "/dev/shm"  # noqa: S108  no file of ours is made there
"""Where an MPS daemon and its clients meet besides the pipe directory; both must see the same."""

_SET_BY_US = frozenset(
    {
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    }
)
_ROOT = frozenset({"", "root"})
_NO = frozenset({"0", "f", "F", "FALSE", "false", "False"})  # of Go's strconv.ParseBool


class SharingConditions(Record):
    """What a container's command does not say, and decides whether MPS would serve it.

    Attributes:
        engine: what messages call the engine.
        user_id: of who launches, whom the MPS daemon serves.
        group_id: of who launches.
        image_user: USER of the image, empty for root; None if nobody can tell, since it is not here
            yet.
        security: the engine's security options, such as "userns" or "rootless".
    """

    engine: str
    user_id: int
    group_id: int
    image_user: str | None
    security: Collection[str]


class _Mount(Record):
    """Something that a flag mounts in the container.

    Attributes:
        flag: name and value, for messages.
        target: where.
        source: of what is the host's, its path; None for anything else.
        writable: the container may write there.
    """

    flag: str
    target: str
    source: str | None
    writable: bool

    @property
    def is_hosts(self) -> bool:
        """Whether the container sees there what the host has under the same name."""
        return self.source == self.target and self.writable


def mps_flags(command: ContainerCommand, share: Share) -> list[str]:
    """Return the flags that make a container a client of its MPS daemon, and bound it.

    Directories come by --mount, since -v would make a directory that is not there, of which no daemon hears.

    Args:
        command: run, which check_sharing has let pass.
        share: the container's part.
    """
    flags = [
        word for name, value in mps_environment(share).items() for word in ("-e", f"{name}={value}")
    ]
    if share.pipe_directory is None:
        return flags
    flags += _bind(share.pipe_directory)
    has_hosts = _last(command, "--ipc") == "host" or _on_shared_memory(command)
    return flags if has_hosts else flags + _bind(SHARED_MEMORY)


def check_sharing(command: ContainerCommand, around: SharingConditions) -> None:
    """Check that a container can be a client of its user's MPS daemon, as far as can be told now.

    Args:
        command: the engine's client's.
        around: what decides besides.

    Raises:
        UsageError: it cannot be; the message names the flag, the image or the engine's setting that
            is in the way.
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
    policy = _last(command, "--restart")
    if policy not in ("", "no"):
        reason = (
            "a container that shares GPUs cannot come back by itself, since its MPS daemon goes "
            "with its lease"
        )
        raise UsageError(f"--restart {printable(policy)}: {reason}")


def _check_engine(command: ContainerCommand, around: SharingConditions) -> None:
    """Refuse an engine that maps users to others: an MPS daemon knows its clients by their uid."""
    if "rootless" in around.security:
        raise UsageError(
            f"the {around.engine} is rootless, so its containers cannot share GPUs through MPS"
        )
    if "userns" in around.security and _last(command, "--userns") != "host":
        reason = "so its containers cannot share GPUs through MPS"
        raise UsageError(
            f"the {around.engine} maps the users of containers to others, {reason}",
            "add --userns=host",
        )


def _check_user(command: ContainerCommand, around: SharingConditions) -> None:
    """Refuse another user: MPS serves one at a time, and the clients of others wait until then."""
    said = _last(command, "-u", "--user")
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
    ipc = _last(command, "--ipc")
    if ipc not in ("", "host"):
        raise UsageError(f"--ipc {printable(ipc)}: {need}")
    for mount in _on_shared_memory(command):
        if not mount.is_hosts:
            raise UsageError(f"{printable(mount.flag)}: {need}")


def _check_variables(command: ContainerCommand) -> None:
    for assignment in command.values("-e", "--env"):
        name = assignment.partition("=")[0]
        if name in _SET_BY_US:
            hint = "--sm-percentage and --memory say what it is to have"
            raise UsageError(
                f"-e {name}: gpulaunch sets that for a container that shares GPUs", hint
            )


def _last(command: ContainerCommand, *names: str) -> str:
    """Return the value of a flag that counts; empty, which means the same, if there is none."""
    return next(reversed(command.values(*names)), "")


def _on_shared_memory(command: ContainerCommand) -> list[_Mount]:
    """What the command itself mounts there."""
    read = {"-v": _volume, "--volume": _volume, "--mount": _mount, "--tmpfs": _tmpfs}
    mounts = [
        read[flag.name](f"{flag.name} {flag.value}", flag.value or "")
        for flag in command.flags
        if flag.name in read
    ]
    return [mount for mount in mounts if mount.target == SHARED_MEMORY]


def _volume(flag: str, value: str) -> _Mount:
    """SOURCE:TARGET[:OPTIONS], or the target alone."""
    source, _, rest = value.partition(":")
    target, _, options = rest.partition(":")
    if not rest:
        return _Mount(flag, normpath(source), None, writable=True)
    return _Mount(flag, normpath(target), normpath(source), "ro" not in options.split(","))


def _mount(flag: str, value: str) -> _Mount:
    """Fields KEY=VALUE, some of them with several names."""
    fields = dict(field.strip('"').partition("=")[::2] for field in value.split(","))
    target = fields.get("target") or fields.get("destination") or fields.get("dst") or ""
    source = fields.get("source") or fields.get("src")
    read_only = fields.get("readonly", fields.get("ro", "false")) not in _NO
    return _Mount(flag, normpath(target), normpath(source) if source else None, not read_only)


def _tmpfs(flag: str, value: str) -> _Mount:
    """TARGET[:OPTIONS]."""
    return _Mount(flag, normpath(value.partition(":")[0]), None, writable=True)


def _bind(path: str) -> list[str]:
    """The flag that shows a path of the host under the same name; its value is a CSV record."""
    fields = ("type=bind", f"source={path}", f"target={path}")
    return [
        "--mount",
        ",".join(_quoted(field) if set(field) & set(',"') else field for field in fields),
    ]


def _quoted(field: str) -> str:
    return f'"{field.replace(chr(34), chr(34) * 2)}"'
