"""Real Open MPIs for tests, 4.1 and 5, whose hosts are this machine under other names."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_BUILT = Path(__file__).parent.parent / "build" / "mpi" / "venv" / "bin"
PYPI = Path(os.environ.get("GPULAUNCH_TEST_MPI") or _BUILT)
"""Folder of Open MPI 5 and of a python that has mpi4py, as .ci/mpi makes it."""

VERSIONS = ("4.1", "5.0")
HOSTS = ("na", "nb")

# Called as ssh is. Only what ssh would pass on reaches the other host: its environment is clean.
_AGENT = """\
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift
exec unshare --uts env -i {passed} bash -c "hostname $host; $*"
"""
_AS_ROOT = {
    f"{engine}_ALLOW_RUN_AS_ROOT{confirm}": "1"
    for engine in ("OMPI", "PRTE")
    for confirm in ("", "_CONFIRM")
}


def why_not() -> str | None:
    """Return what this machine lacks for both Open MPIs on two hosts; None if nothing."""
    if os.geteuid() != 0:
        return "needs root to make hosts of other names"
    missing = [version for version in VERSIONS if not _mpirun(version)]
    return f"no Open MPI {' and '.join(missing)}: .ci/mpi brings them" if missing else None


class Mpi:
    """An Open MPI of one version with hosts na and nb of so many slots.

    Args:
        version: one of VERSIONS.
        directory: an empty folder.
        slots: of each host.
        passed: variables on the hosts, where $host is their name.

    Attributes:
        version: one of VERSIONS.
        directory: folder of its files, among them the hostfile.
        hostfile: path of the hostfile.
        environment: of mpirun.
    """

    def __init__(
        self, version: str, directory: Path, *, passed: Mapping[str, str], slots: int = 4
    ) -> None:
        self.version, self.directory = version, directory
        self.hostfile = directory / "hosts"
        self.hostfile.write_text("".join(f"{host} slots={slots}\n" for host in HOSTS))
        words = (f'"{name}={value}"' for name, value in {**passed, **_AS_ROOT}.items())
        self._agent = directory / "agent"
        self._agent.write_text(_AGENT.format(passed=" ".join(words)))
        self._agent.chmod(0o755)
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(directory), **_AS_ROOT}

    def command(self, *arguments: str, hosts: bool = True) -> list[str]:
        """Return argv of mpirun, on the two hosts or on this one, however few CPUs it has."""
        mpirun = _mpirun(self.version)
        assert mpirun
        key = "--prtemca plm_ssh_agent" if self.version == "5.0" else "--mca plm_rsh_agent"
        place = [*key.split(), str(self._agent), "--hostfile", str(self.hostfile)]
        return [mpirun, "--bind-to", "none", *(place if hosts else ["--oversubscribe"]), *arguments]

    def run(
        self, *arguments: str, environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run mpirun on the two hosts to its end; output as text."""
        return subprocess.run(
            self.command(*arguments),
            env={**self.environment, **(environment or {})},
            check=False,
            **{"capture_output": True, "text": True, **options},
        )


def _mpirun(version: str) -> str | None:
    """Return the path of mpirun of this version; None if there is none."""
    path = str(PYPI / "mpirun") if version == "5.0" else "/usr/bin/mpirun"
    if not shutil.which(path):
        return None
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return path if f"(Open MPI) {version}." in text else None
