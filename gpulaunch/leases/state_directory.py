"""The choice of the state directory, on which all launchers of this machine agree."""

import errno
import os

from gpulaunch.errors import FailedError, UsageError

SET_UP = "/run/gpulaunch"
"""Directory that `gpulaunch setup` makes."""

_SHARED_BY_ALL = ("/run/lock", "/tmp")  # noqa: S108  each is checked before it is used
_NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "9p", "cifs", "smb3", "ceph", "lustre", "glusterfs")


def preferred_directory(chosen: str | None) -> str:
    """Return the preferred state directory, without a check of its file system.

    Args:
        chosen: GPULAUNCH_STATE_DIR, if it is set.

    Raises:
        UsageError: GPULAUNCH_STATE_DIR is no absolute path.
        FailedError: there is no safe directory.
    """
    if chosen:
        if not os.path.isabs(chosen):
            raise UsageError(
                f"GPULAUNCH_STATE_DIR={chosen} is not an absolute path, which all launches agree on"
            )
        return chosen
    if os.path.isdir(SET_UP):
        return SET_UP
    for directory in _SHARED_BY_ALL:
        if _is_safe_for_all(directory):
            return directory
    raise FailedError(
        "no state directory: neither /run/lock nor /tmp is root's, world-writable and sticky"
    )


def own_table() -> str:
    """Return the real path of the preferred state directory, which tells tables apart."""
    return os.path.realpath(preferred_directory(os.environ.get("GPULAUNCH_STATE_DIR")))


def state_directory(chosen: str | None, *, described: bool, private: bool) -> str:
    """Return the directory after checking that its locks reach every launcher of this machine.

    Args:
        chosen: GPULAUNCH_STATE_DIR, if it is set.
        described: whether only records of described machines matter.
        private: whether a container's own table will do.

    Raises:
        UsageError: GPULAUNCH_STATE_DIR is no absolute path.
        FailedError: no directory can hold the table.
    """
    directory = preferred_directory(chosen)
    point, root, kind = _find_mount(directory)
    own = kind == "overlay" or (point == "/" and root != "/" and _has_container_mark())
    if own and not described and not private:
        hint = f'mount the host\'s: docker run -v {directory}:{directory}, or set table = "private"'
        raise FailedError(
            f"{directory} is this container's own: no other launcher of this machine sees it", hint
        )
    if kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse"):
        hint = "set GPULAUNCH_STATE_DIR to a directory on a local file system"
        raise FailedError(
            f"{directory}: locks on {kind} do not reach every launcher of this machine", hint
        )
    if kind == "overlay" and not chosen and _is_safe_for_all("/dev/shm"):  # noqa: S108
        # In a container, for described GPUs or a private table, which are not shared outside it.
        return "/dev/shm"  # noqa: S108
    return directory


def _is_safe_for_all(directory: str) -> bool:
    """Return whether all users may add files and none may touch another's: root's and sticky."""
    try:
        status = os.stat(directory)
    except OSError:
        return False
    return status.st_uid == 0 and status.st_mode & 0o1777 == 0o1777


def _has_container_mark() -> bool:
    """Return whether the file that Docker or podman puts into containers exists.

    A virtual machine that was made from an image has it, too.
    """
    return any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv")))


def _find_mount(directory: str) -> tuple[str, str, str]:
    """Return where the file system of a directory is mounted, what of it, and its type.

    All are empty if they are unknown.
    """
    real = os.path.realpath(directory)
    best = ("", "", "")
    try:
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                fields = line.split()
                point = fields[4].replace("\\040", " ")
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best[0]):
                    best = (point, fields[3], fields[fields.index("-") + 1])
    except (OSError, ValueError, IndexError):
        return "", "", ""
    return best


def directory_failed(directory: str, what: str, problem: OSError) -> FailedError:
    """Return an error for the user about a failed system call in a state directory.

    Args:
        directory: the state directory.
        what: what cannot be done.
        problem: the error of the call.
    """
    reason = os.strerror(problem.errno or 0).lower()
    hint = None
    if problem.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
        hint = "choose a local file system such as tmpfs with GPULAUNCH_STATE_DIR"
    return FailedError(f"{directory}: {what}: {reason}", hint)
