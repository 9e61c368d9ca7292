"""A newly installed Debian or Ubuntu in a directory, to install gpulaunch in as its users would.

Its archive comes from .ci/bare-machine. Each command runs in namespaces of its own: what it mounts
or leaves running is gone when it ends, however it ends.
"""

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import tomlkit

ROOT = Path(__file__).parents[1]
VERSION = tomlkit.parse((ROOT / "pyproject.toml").read_text())["project"]["version"]
"""The version of what the tests install."""

PATIENCE_S = 1800
_NETWORK = re.compile(r"(https?|all|no)_proxy|ssl_cert_(file|dir)|uv_.*", re.IGNORECASE)
"""Variables by which programs find packages, besides pip's settings."""

_ENTER = """
set -e
root=$1; shift
mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do mount --bind "$1" "$root$1"; shift; done
shift
chroot "$root" "$@"
"""
"""Not exec: chroot's program should not be the first process, on which some tests would stumble."""


class BareMachine:
    """The system in a directory.

    Args:
        archive: its root directory, from .ci/bare-machine.
        root: an empty directory.
        address: what scripts mean by the word ADDRESS, that of the repository.
    """

    def __init__(self, archive: Path, root: Path, address: str) -> None:
        self.root = root
        self._address = address
        self._names = (f"user{number}" for number in itertools.count(1))
        subprocess.run(["tar", "-xf", archive, "-C", root], check=True)
        self._shared = sorted(self._copy_settings())
        for path in self._shared:
            place = self.root / path.relative_to("/")
            if path.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()

    def add_user(self) -> str:
        """Make an ordinary user, and return the name."""
        name = next(self._names)
        self.do("root", f"useradd --create-home --shell /bin/bash {name}")
        return name

    def copy(self, file: Path) -> str:
        """Copy a file to where all users can read it, and return its path there."""
        shutil.copy(file, self.root / "srv")
        return f"/srv/{file.name}"

    def files(self, *directories: str) -> set[str]:
        """Return the paths of all files in some directories."""
        return set(self.do("root", f"find {' '.join(directories)} -not -type d").splitlines())

    def command(self, user: str, script: str | None = None) -> list[str]:
        """Return the command that runs a script, or an interactive shell, after a user's login."""
        what = [] if script is None else ["-c", script.replace("ADDRESS", self._address)]
        return [
            *("setpriv", "--pdeathsig", "KILL"),  # if this process is killed, too
            *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
            *(f"--mount-proc={self.root}/proc", "sh", "-c", _ENTER, "sh", str(self.root)),
            *(*map(str, self._shared), "--", "su", "-", user, *what),
        ]

    def run(self, user: str, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script in a user's login shell."""
        return subprocess.run(
            self.command(user, script),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            start_new_session=True,  # no terminal
        )

    def do(self, user: str, script: str) -> str:
        """Run a script that must succeed, and return what it printed."""
        done = self.run(user, script)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _copy_settings(self) -> Iterator[Path]:
        """Give the system this machine's own settings of pip and the network.

        Yields:
            Each file or directory that they name.
        """
        for name in ("resolv.conf", "hosts"):
            shutil.copy(f"/etc/{name}", self.root / "etc" / name)
        variables = {name: value for name, value in os.environ.items() if _NETWORK.fullmatch(name)}
        settings = _pip_settings()
        _write_lines(self.root / "etc/environment", variables)
        _write_lines(self.root / "etc/pip.conf", {"[global]": "", **settings})
        for value in (*variables.values(), *settings.values()):
            for word in value.split():
                path = Path(word.removeprefix("file://"))
                if path.is_absolute() and path.exists():
                    yield path


def _pip_settings() -> dict[str, str]:
    """Return pip's settings on this machine, those of variables before those of files."""
    listed = subprocess.run(
        ["python3", "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    found = re.findall(r"^(global|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE)
    return {name: value for _, name, value in sorted(found, reverse=True)}


def _write_lines(path: Path, values: dict[str, str]) -> None:
    path.write_text(
        "".join(f"{name}={value}\n" if value else f"{name}\n" for name, value in values.items())
    )


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served(place: Path) -> Iterator[str]:
    """Serve a clone of this repository, made in an empty directory, and yield its address.

    An address with a host, which one of a file lacks: old pipx refuses it.
    """
    repository = place / "gpulaunch.git"
    for command in (
        ["clone", "--quiet", "--bare", ROOT, "."],
        ["update-server-info"],
    ):
        repository.mkdir(exist_ok=True)
        subprocess.run(["git", *command], cwd=repository, check=True, stdout=subprocess.DEVNULL)
    handler = partial(_Handler, directory=place)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/gpulaunch.git"
        finally:
            server.shutdown()
