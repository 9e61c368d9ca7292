"""What makes a container of docker a client of CUDA MPS, and what keeps it from being one."""
# pure: decides on plain values

from collections.abc import Collection, Mapping
from typing import Any

from gpulaunch.containers.asked import AskedContainer
from gpulaunch.errors import UsageError, printable
from gpulaunch.leases.share import Share

SHARED_MEMORY = "/dev/shm"  # noqa: S108  no file of ours is made there
"""Directory that an MPS daemon and its clients must share, besides the pipe directory."""

_ROOT = frozenset({"", "root"})

Document = Mapping[str, Any]


def with_mps(document: Document, share: Share) -> dict[str, Any]:
    """Return the request for a container that meets its MPS daemon; its variables come besides.

    Directories are mounted by Mounts, since Binds would create a missing directory, in which no
    daemon listens.

    Args:
        document: a request that check_sharing has accepted.
        share: the container's share.
    """
    host = dict(document.get("HostConfig") or {})
    if share.pipe_directory is not None:
        paths = [share.pipe_directory]
        # Docker refuses a second mount on one directory.
        if host.get("IpcMode") != "host" and not _mounts_shared_memory(host):
            paths.append(SHARED_MEMORY)
        mounts = [{"Type": "bind", "Source": path, "Target": path} for path in paths]
        host["Mounts"] = [*(host.get("Mounts") or ()), *mounts]
    return {**document, "HostConfig": host}


def check_sharing(
    document: Document,
    asked: AskedContainer,
    engine: str,
    user_id: int,
    group_id: int,
    image_user: str | None,
    security: Collection[str],
) -> None:
    """Check that a container can be a client of its user's MPS daemon, as far as is known now.

    Args:
        document: the request to create it.
        asked: what it says.
        engine: name of the engine in messages.
        user_id: user id of the launching user, whom the MPS daemon serves.
        group_id: group id of the launching user.
        image_user: USER of the image, "" for root; None if the image is not here yet.
        security: the engine's security options, such as "userns" or "rootless".

    Raises:
        UsageError: it cannot be a client; the message names the flag, the image or the engine's
            setting that prevents it.
    """
    host = document.get("HostConfig") or {}
    if not asked.runs:
        raise UsageError(
            f"{asked.title}: only {asked.program} run shares GPUs",
            "--exclusive gives it GPUs of its own",
        )
    if "rootless" in security:
        raise UsageError(
            f"the {engine} is rootless, so its containers cannot share GPUs through MPS"
        )
    if "userns" in security and host.get("UsernsMode") != "host":
        reason = "so its containers cannot share GPUs through MPS"
        raise UsageError(
            f"the {engine} maps the users of containers to others, {reason}",
            "add --userns=host",
        )
    _check_user(document, asked, user_id, group_id, image_user)
    need = (
        f"a container that shares GPUs has the host's {SHARED_MEMORY}, where it meets its MPS "
        "daemon"
    )
    ipc = host.get("IpcMode") or ""
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


def _check_user(
    document: Document, asked: AskedContainer, user_id: int, group_id: int, image_user: str | None
) -> None:
    """Refuse another user: MPS serves one user at a time, and other clients wait until then."""
    said = str(document.get("User") or "")
    user = said or image_user
    origin = f"-u {printable(said)}" if said else f"image {printable(asked.image)}"
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


def _mounts_shared_memory(host: Document) -> bool:
    """Return whether the user's own bind mounts the host's SHARED_MEMORY, writable."""
    for bind in host.get("Binds") or ():
        source, _, rest = str(bind).partition(":")
        target, _, options = rest.partition(":")
        if source == target == SHARED_MEMORY and "ro" not in options.split(","):
            return True
    return False
