"""The flags that make a container a client of CUDA MPS, and the obstacles to it."""
# pure: decides on plain values

from collections.abc import Collection

from gpulaunch.containers.command import ContainerCommand
from gpulaunch.errors import UsageError, printable
from gpulaunch.leases.environment import mps_environment
from gpulaunch.leases.share import Share

SHARED_MEMORY = "/dev/shm"  # noqa: S108  no file of ours is made there
"""Directory that an MPS daemon and its clients must share, besides the pipe directory."""

_ROOT = frozenset({"", "root"})


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
    # Docker refuses a second mount on one directory.
    if _last_value(command, "--ipc") == "host" or _mounts_shared_memory(command):
        return flags
    return flags + _mount_flags(SHARED_MEMORY)


def check_sharing(
    command: ContainerCommand,
    engine: str,
    user_id: int,
    group_id: int,
    image_user: str | None,
    security: Collection[str],
) -> None:
    """Check that a container can be a client of its user's MPS daemon, as far as is known now.

    Args:
        command: command line of the engine's client.
        engine: name of the engine in messages.
        user_id: user id of the launching user, whom the MPS daemon serves.
        group_id: group id of the launching user.
        image_user: USER of the image, "" for root; None if the image is not here yet.
        security: the engine's security options, such as "userns" or "rootless".

    Raises:
        UsageError: it cannot be a client; the message names the flag, the image or the engine's
            setting that prevents it.
    """
    if command.subcommand[-1] != "run":
        raise UsageError(
            f"{command.title}: only {command.program} run shares GPUs",
            "--exclusive gives it GPUs of its own",
        )
    _check_engine(command, engine, security)
    _check_user(command, user_id, group_id, image_user)
    need = (
        f"a container that shares GPUs has the host's {SHARED_MEMORY}, where it meets its MPS "
        "daemon"
    )
    ipc = _last_value(command, "--ipc")
    if ipc not in ("", "host"):
        raise UsageError(f"--ipc {printable(ipc)}: {need}")
    # Docker itself refuses another volume there, but not a tmpfs, which would hide the daemon.
    for tmpfs in command.values("--tmpfs"):
        if tmpfs.partition(":")[0] == SHARED_MEMORY:
            raise UsageError(f"--tmpfs {printable(tmpfs)}: {need}")
    policy = _last_value(command, "--restart")
    if policy not in ("", "no"):
        reason = (
            "a container that shares GPUs cannot come back by itself, since its MPS daemon goes "
            "with its lease"
        )
        raise UsageError(f"--restart {printable(policy)}: {reason}")


def _check_engine(command: ContainerCommand, engine: str, security: Collection[str]) -> None:
    """Refuse an engine that maps users to others: an MPS daemon knows its clients by uid."""
    if "rootless" in security:
        raise UsageError(
            f"the {engine} is rootless, so its containers cannot share GPUs through MPS"
        )
    if "userns" in security and _last_value(command, "--userns") != "host":
        reason = "so its containers cannot share GPUs through MPS"
        raise UsageError(
            f"the {engine} maps the users of containers to others, {reason}",
            "add --userns=host",
        )


def _check_user(
    command: ContainerCommand, user_id: int, group_id: int, image_user: str | None
) -> None:
    """Refuse another user: MPS serves one user at a time, and other clients wait until then."""
    said = _last_value(command, "-u", "--user")
    user = said or image_user
    origin = f"-u {printable(said)}" if said else f"image {printable(command.operands[0])}"
    need = f"a container that shares GPUs has to run as who launches it, uid {user_id}"
    hint = f"add -u {user_id}:{group_id}"
    if user is None:
        raise UsageError(
            f"{origin} is not here yet, so nobody can tell as whom it runs: {need}", hint
        )
    name = user.partition(":")[0]
    if name not in _ROOT and not (name.isascii() and name.isdecimal()):
        raise UsageError(
            f"{origin}: who {printable(name)} is, only the container can tell: {need}", hint
        )
    runs_as = 0 if name in _ROOT else int(name)
    if runs_as != user_id:
        raise UsageError(f"{origin} runs as uid {runs_as}: {need}", hint)


def _last_value(command: ContainerCommand, *names: str) -> str:
    """Return the last value of a flag, which counts; "" if there is none, which means the same."""
    return next(reversed(command.values(*names)), "")


def _mounts_shared_memory(command: ContainerCommand) -> bool:
    """Return whether the user's own -v mounts the host's SHARED_MEMORY, writable."""
    for volume in command.values("-v", "--volume"):
        source, _, rest = volume.partition(":")
        target, _, options = rest.partition(":")
        if source == target == SHARED_MEMORY and "ro" not in options.split(","):
            return True
    return False


def _mount_flags(path: str) -> list[str]:
    """Return the flag that mounts a path of the host under the same path."""
    return ["--mount", f"type=bind,source={path},target={path}"]
