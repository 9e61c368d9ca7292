"""Data files by name or path: shipped ones and the user's own."""

import os
from contextlib import suppress

from gpulaunch.errors import UsageError, call_failed, did_you_mean, quoted


def config_directory() -> str:
    """Return the directory of this user's settings and profiles."""
    return own_directory("XDG_CONFIG_HOME", ".config")


def own_directory(variable: str, below_home: str) -> str:
    """Return gpulaunch's directory in $XDG_STATE_HOME or the like, else in ~/.local/state or so.

    What root makes in another user's home, as under sudo -E, that user could not write to: there it
    is the one in root's own home.
    """
    base = os.environ.get(variable, "")
    if not os.path.isabs(base):  # the specification says to ignore relative ones
        base = os.path.join(os.path.expanduser("~"), below_home)
    if os.geteuid() == 0:
        names = base.split("/")
        above = ["/".join(names[:count]) for count in range(2, len(names) + 1)]
        owners = {os.stat(one).st_uid for one in above if os.path.exists(one)}
        if owners - {0, 65534}:  # which is nobody, in a user namespace
            base = os.path.join("/root", os.path.expanduser("~root"), below_home)
    return os.path.join(base, "gpulaunch")


def make_own(directory: str) -> None:
    """Make a directory, and those above it, for this user alone, whatever the umask.

    Raises:
        OSError: it cannot be made.
    """
    if directory and not os.path.lexists(directory):
        make_own(os.path.dirname(directory))
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)


def shipped_directory(kind: str) -> str:
    """Return the directory of shipped files of a kind: in a wheel, or in the repository."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = os.path.join(package, "_profiles", kind)
    return (
        inside
        if os.path.isdir(inside)
        else os.path.join(os.path.dirname(package), "profiles", kind)
    )


def is_path(name: str) -> bool:
    """Return whether a name is the path of a data file, and not the name of one."""
    return os.sep in name or name.endswith(".toml")


def find_file(name: str, directories: list[str], subject: str, hint: str) -> str:
    """Return the path of a data file by name or path.

    Args:
        name: a path, or the name of NAME.toml in one of the directories.

    Raises:
        UsageError: there is no file of that name.
    """
    if is_path(name):
        return name
    for directory in directories:
        path = os.path.join(directory, f"{name}.toml")
        if os.path.isfile(path):
            return path
    meant = did_you_mean(name, file_names(directories))
    raise UsageError(f"unknown {subject} {quoted(name)}{meant}", hint)


def file_names(directories: list[str]) -> list[str]:
    """Return the names of all TOML files in these directories, sorted, without the suffix.

    Raises:
        FailedError: a directory cannot be listed.
    """
    found: set[str] = set()
    for directory in filter(os.path.isdir, directories):
        try:
            files = [
                entry.name
                for entry in os.scandir(directory)
                if entry.name.endswith(".toml") and entry.is_file()
            ]
        except OSError as problem:
            raise call_failed(f"{directory}: cannot list the files there", problem) from None
        found.update(name.removesuffix(".toml") for name in files)
    return sorted(found)
