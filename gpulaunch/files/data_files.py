"""Data files by name or path: shipped ones and the user's own."""

import os

from gpulaunch.errors import UsageError, call_failed, quoted


def config_directory() -> str:
    """Return the directory of this user's settings and profiles."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "gpulaunch")


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
        directories: directories to search, in order.
        subject: kind of the file, for the message.
        hint: hint for the message.

    Raises:
        UsageError: there is no file of that name.
    """
    if is_path(name):
        return name
    for directory in directories:
        path = os.path.join(directory, f"{name}.toml")
        if os.path.isfile(path):
            return path
    from gpulaunch.files.nearest import did_you_mean  # late: for mistakes only

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
