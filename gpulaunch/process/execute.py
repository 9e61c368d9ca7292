"""Turning a process into another program, as if gpulaunch had never been."""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from gpulaunch.errors import CANNOT_EXECUTE, NOT_FOUND, printable
from gpulaunch.process.system import variable_of

PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores from its start on; the job finds them at their default."""


def clean_environment() -> dict[bytes, bytes]:
    """Return the environment of gpulaunch's start, without what Python added (PEP 538)."""
    environment = dict(os.environb)
    if environment.get(b"LC_CTYPE") in (b"C.UTF-8", b"C.utf8", b"UTF-8"):
        given = variable_of(os.getpid(), "LC_CTYPE")
        if given is None:
            del environment[b"LC_CTYPE"]
        else:
            environment[b"LC_CTYPE"] = os.fsencode(given)
    return environment


def own_command() -> list[str]:
    """Return the command that started this gpulaunch, without arguments, to start it again."""
    return [
        sys.executable or sys.orig_argv[0],
        *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1],
    ]


def become(command: Sequence[str], without: Sequence[str] = ()) -> NoReturn:
    """Turn this process into another program, as if gpulaunch had never been, or exit as env."""
    variables = {
        name: value
        for name, value in clean_environment().items()
        if os.fsdecode(name) not in without
    }
    os._exit(execute(command, variables))


def execute(command: Sequence[str], variables: dict[bytes, bytes]) -> int:
    """Turn into the program; return the exit status that says why not if that fails."""
    for number in PYTHON_IGNORES:
        signal.signal(number, signal.SIG_DFL)
    code = errno.ENOENT
    try:
        if command[0]:  # Python does not even try an empty name
            # there is no shell, on purpose
            os.execvpe(command[0], list(command), variables)  # noqa: S606
    except OSError as problem:
        code = problem.errno or 0
    if code == errno.ENOEXEC:
        # A script without a first line: a shell would run it, and so does execvp(3).
        with suppress(OSError):
            _exec_script(command, variables)
    nowhere_in_path = code == errno.ENOTDIR and "/" not in command[0]
    complain(f"{printable(command[0]) or repr('')}: {os.strerror(code).lower()}")
    if code == errno.ENOENT and len(command) == 1 and " " in command[0].strip():
        from shlex import quote  # late: for mistakes only

        line = f"sh -c {quote(printable(command[0]))}"
        complain(f"it is one word, blanks and all: leave out its quotes, or write {line}", "hint")
    return NOT_FOUND if code == errno.ENOENT or nowhere_in_path else CANNOT_EXECUTE


def complain(text: str, kind: str = "error") -> None:
    """Print an error, or a hint, to stderr, which may be closed."""
    with suppress(OSError):
        os.write(2, os.fsencode(f"gpulaunch: {kind}: {text}\n"))


def _exec_script(command: Sequence[str], variables: dict[bytes, bytes]) -> None:
    script = os.fsencode(command[0])
    if b"/" not in script:
        directories = variables.get(b"PATH", os.defpath.encode()).split(b":")
        found = (os.path.join(directory, script) for directory in directories)
        script = next((path for path in found if os.access(path, os.X_OK)), script)
    os.execve("/bin/sh", [b"/bin/sh", script, *map(os.fsencode, command[1:])], variables)  # noqa: S606
