"""A real Podman for tests, whose store and settings are apart from all others of this machine."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine import BUSYBOX, IMAGE, root_file_system

CDI = Path(f"/etc/cdi/gpulaunch-tests-{os.getpid()}.json")
"""The one place where every version of podman looks for specifications."""

# What works in a virtual machine or container without systemd, too.
_CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "none"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "{events}"
lock_type = "file"
tmp_dir = "{directory}/tmp"
[engine.runtimes]
nvidia = ["/usr/sbin/runc"]
"""
_STORAGE_CONF = """\
[storage]
driver = "vfs"
graphroot = "{directory}/graph"
rootless_storage_path = "{directory}/graph"
runroot = "{directory}/run"
"""


def why_not() -> str | None:
    """Return what this machine lacks for podman; None if nothing."""
    if os.geteuid() != 0:
        return "needs root to run podman as several users"
    missing = [name for name in ("podman", "conmon", "runc", "newuidmap") if not shutil.which(name)]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if not BUSYBOX.exists() or b"/ld-" in BUSYBOX.read_bytes()[:4096]:
        return f"{BUSYBOX} is missing or not static"
    return None


class Store:
    """One user's store of podman, with an image of busybox.

    Args:
        identity: of subprocess: the user, group and others, for another user than this one.

    Attributes:
        directory: everything of the store.
        environment: variables by which podman finds it.
    """

    def __init__(self, identity: Mapping[str, Any]) -> None:
        self.identity = dict(identity)
        self.directory = Path(tempfile.mkdtemp(prefix="gpm-", dir="/tmp"))
        (self.directory / "runtime").mkdir(mode=0o700)
        self.environment = {
            "CONTAINERS_CONF": str(self.directory / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.directory / "storage.conf"),
            "HOME": str(self.directory),
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "XDG_RUNTIME_DIR": str(self.directory / "runtime"),
        }
        self.configure(events="file")
        (self.directory / "storage.conf").write_text(_STORAGE_CONF.format(directory=self.directory))
        if identity:
            for path in (self.directory, *self.directory.iterdir()):
                os.chown(path, identity["user"], identity["group"])
        changes = ("--change", "ENV PATH=/bin", "--change", 'CMD ["sh"]')
        self.do("import", *changes, "-", IMAGE, input=root_file_system())

    def configure(self, *, events: str) -> None:
        """Set where podman keeps events: file or none."""
        text = _CONTAINERS_CONF.format(directory=self.directory, events=events)
        (self.directory / "containers.conf").write_text(text)

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run podman to its end."""
        environment = {"PATH": os.environ["PATH"], **self.environment}
        options = {"env": environment, "cwd": "/", **self.identity, **options}
        return subprocess.run(["podman", *arguments], capture_output=True, check=False, **options)

    def do(self, *arguments: str, **options: Any) -> str:
        """Run podman, which must succeed; what it prints."""
        done = self.run(*arguments, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    def inspect(self, container: str) -> dict[str, Any]:
        """Return all that podman tells of a container."""
        return json.loads(self.do("container", "inspect", container))[0]

    def pids(self, container: str) -> tuple[int, int]:
        """Return the pids of a container's first process and of its conmon."""
        state = self.inspect(container)["State"]
        return state["Pid"], state["ConmonPid"]

    def remove_all(self) -> None:
        """Remove all containers, running or not."""
        while names := self.do("ps", "--all", "--quiet").split():
            self.run("rm", "--force", "--time", "0", *names)

    def close(self) -> None:
        """Remove everything."""
        self.remove_all()
        if self.identity:  # the files of its containers are other users', too
            self.run("unshare", "rm", "-rf", str(self.directory / "graph"))
            self.run("system", "migrate")  # ends the process that keeps the user's namespace
        with suppress(FileNotFoundError):
            shutil.rmtree(self.directory)


def describe_gpus(uuids: Sequence[str]) -> None:
    """Write a specification of GPUs, by UUID alone, with mounts in place of nodes.

    Other test runs describe their own. A rootless podman makes no nodes, and binds those of the
    host, which are not there.
    """
    CDI.parent.mkdir(exist_ok=True)
    devices = []
    for index, uuid in enumerate(uuids):
        node = {"hostPath": "/dev/null", "containerPath": f"/dev/nvidia{index}"}
        edits = {"env": [f"FAKE_GPU_{index}={uuid}"], "mounts": [{**node, "options": ["bind"]}]}
        devices.append({"name": uuid, "containerEdits": edits})
    document = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
    CDI.write_text(json.dumps(document))
