"""A real Slurm for tests: a controller and two nodes on this machine, with stand-in GPUs.

The devices are /dev/null by other names. Keys, ports and files are the cluster's own, so that
several can run beside each other, and close() leaves nothing.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from toml_parser import tomllib

NODES = ("n1", "n2")
GPUS = 8
CPUS = 16
"""Declared of each node, whatever this machine has."""

TABLES = "GPULAUNCH_TEST_TABLES"
"""Variable of a job with the folder in which each node has an allocation table of its own."""

SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo", "squeue")


def why_not() -> str | None:
    """Return what this machine lacks for Slurm; None if nothing."""
    if os.geteuid() != 0:
        return "needs root to start Slurm"
    missing = [program for program in PROGRAMS if not shutil.which(program, path=SEARCHED)]
    return f"not installed: {', '.join(missing)}" if missing else None


class SlurmError(Exception):
    """Slurm did not start, or did not do what a test needs to stand on."""


class Slurm:
    """A controller and the nodes n1 and n2, each with GPUS GPUs and CPUS CPUs, in two switches.

    Attributes:
        directory: everything of the cluster.
        environment: of srun and the others.
        daemons: the running daemons by name.
    """

    def __init__(self) -> None:
        # A socket's address has at most 108 bytes; jobs of other users read the configuration.
        self.directory = Path(tempfile.mkdtemp(prefix="gps-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.environment = {"PATH": SEARCHED, "SLURM_CONF": str(self.directory / "slurm.conf")}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start the daemons; return when the nodes are idle."""
        self._write_files()
        names = ("key", "socket", "pid", "log", "seed")
        options = {name: f"--{name}{'-file' * (name != 'socket')}" for name in names}
        files = [f"{option}={self.directory}/munge.{name}" for name, option in options.items()]
        self._start("munged", "munged", "--foreground", "--force", *files)
        self._await((self.directory / "munge.socket").exists)
        self._start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self._start(node, "slurmd", "-D", "-N", node)
        self._await(lambda: self._idle_nodes() == len(NODES))

    def run(
        self, *command: str, environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of Slurm, such as srun, to its end; output as text."""
        options = {"capture_output": True, "text": True, **options}
        return subprocess.run(
            command, env={**(environment or {}), **self.environment}, check=False, **options
        )

    def start_job(
        self, *command: str, environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a program of Slurm and return at once; output as text."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        return subprocess.Popen(command, env={**(environment or {}), **self.environment}, **options)

    def await_idle(self) -> None:
        """Return when no job is left and the nodes are idle."""
        self._await(lambda: self.jobs() == [] and self._idle_nodes() == len(NODES))

    def jobs(self) -> list[str]:
        """Return the ids of all jobs that are not over."""
        return self.run("squeue", "-h", "-o", "%i").stdout.split()

    def close(self) -> None:
        """Cancel all jobs, end the daemons, those first that need the others, and remove all."""
        with suppress(SlurmError):
            if jobs := self.jobs():
                self.run("scancel", "--full", "--signal=KILL", *jobs)
                self.run("scancel", *jobs)
                self.await_idle()
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
            daemon.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _write_files(self) -> None:
        """Write the configuration, a key and the devices."""
        values = {"directory": self.directory, "host": socket.gethostname().partition(".")[0]}
        values |= {"names": ",".join(NODES), "gpus": GPUS, "mps": GPUS * 100, "shards": GPUS * 4}
        values |= {"cpus": CPUS, "half": CPUS // 2, "tables": TABLES}
        values["port"], *ports = _free_ports(1 + len(NODES))
        lines = [
            _TEXTS["node"].format(**values | {"name": name, "port": port})
            for name, port in zip(NODES, ports, strict=True)
        ]
        for name, text in _TEXTS["files"].items():
            (self.directory / name).write_text(text.format(nodes="\n".join(lines), **values))
        (self.directory / "task-prolog").chmod(0o755)
        key = self.directory / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(128))
        (self.directory / "state").mkdir()
        for index in range(GPUS):  # Slurm hands out nothing that is no device
            os.mknod(self.directory / f"gpu{index}", 0o20666, os.makedev(1, 3))

    def _start(self, name: str, *command: str) -> None:
        """Start a daemon in the foreground, in a session of its own."""
        with (self.directory / f"{name}.out").open("ab") as output:
            self.daemons[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _idle_nodes(self) -> int:
        """Return how many nodes are idle."""
        return int(self.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() or 0)

    def _await(self, condition: Any) -> None:
        """Return when the condition holds; raise SlurmError with their words if daemons end."""
        while not condition():
            ended = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            if ended:
                logs = [path.read_text(errors="replace") for path in self.directory.glob("*.log")]
                lines = [line for log in logs for line in log.splitlines() if "error" in line]
                raise SlurmError("\n".join([f"Slurm did not get ready ({ended})", *lines[-8:]]))
            time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody has at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
