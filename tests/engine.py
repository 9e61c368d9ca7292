"""A real Docker Engine for tests whose GPUs are only described; close() removes all of it.

It makes no network, so that no rule of the machine's firewall is touched.
"""

import functools
import http.client
import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import urllib.parse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

STAND_IN = Path(__file__).parent / "fake_nvidia_container.py"
BUSYBOX = Path("/bin/busybox")
IMAGE = "bb:1"
GPUS = tuple(f"GPU-{index:08x}-1111-2222-3333-444444444444" for index in range(8))
SEARCHED = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
PATIENCE_S = 30
_PROGRAMS = ("dockerd", "docker", "containerd", "containerd-shim-runc-v2")


def why_not() -> str | None:
    """Return what this machine lacks for an engine; None if nothing."""
    if os.geteuid() != 0:
        return "needs root to start a Docker Engine"
    missing = [
        program
        for program in (*_PROGRAMS, "runc", "setpriv")
        if not shutil.which(program, path=SEARCHED)
    ]
    if missing:
        return f"not installed: {', '.join(missing)}"
    # The loader's path is in the first page, if any.
    if not BUSYBOX.exists() or b"/ld-" in BUSYBOX.read_bytes()[:4096]:
        return f"{BUSYBOX} is missing or not static"
    return None


def write_cdi_spec(path: Path, uuids: Sequence[str] = GPUS) -> None:
    """Describe GPUs to CDI: by index, by UUID, and all. Their nodes are /dev/null by other names.

    The engine hears of a new file within milliseconds, but not before this returns.
    """
    kinds = []
    for index, uuid in enumerate(uuids):
        node = {"path": f"/dev/nvidia{index}", "hostPath": "/dev/null", "type": "c"}
        node |= {"major": 1, "minor": 3}
        kinds.append({"env": [f"FAKE_GPU_{index}={uuid}"], "deviceNodes": [node]})
    edits = {"all": {key: [item for edit in kinds for item in edit[key]] for key in kinds[0]}}
    for index, uuid in enumerate(uuids):
        edits[str(index)] = edits[uuid] = kinds[index]
    specification = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
        "devices": [{"name": name, "containerEdits": edit} for name, edit in edits.items()],
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(specification, indent=1))
    part.replace(path)


def write_stand_in(directory: Path, name: str) -> Path:
    """Put NVIDIA's container runtime or hook into a folder of its own in an engine's directory."""
    program = directory / name / name
    program.parent.mkdir(exist_ok=True)
    shutil.copy(STAND_IN, program)
    program.chmod(0o755)
    return program


@functools.cache
def root_file_system() -> bytes:
    """Return a tar archive with busybox under all of its names."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)
        tar.add(BUSYBOX.resolve(), "bin/busybox")
        names = subprocess.run(
            [BUSYBOX, "--list"], capture_output=True, text=True, check=True
        ).stdout.split()
        for name in set(names) - {"busybox"}:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for name, text in (("passwd", b"root:x:0:0::/root:/bin/sh\n"), ("group", b"root:x:0:\n")):
            file = tarfile.TarInfo(f"etc/{name}")
            file.size = len(text)
            tar.addfile(file, io.BytesIO(text))
    return archive.getvalue()


def link_plugin(configuration: Path, name: str) -> None:
    """Let clients with this configuration find a plugin, if .ci/docker-engine unpacked it.

    An installed client finds an installed one by itself.
    """
    plugin = shutil.which(name, path=SEARCHED)
    if plugin:
        folder = configuration / "cli-plugins"
        folder.mkdir(exist_ok=True)
        (folder / name).symlink_to(plugin)


class _Connection(http.client.HTTPConnection):
    """A connection to an engine's socket, for questions that wait as long as they are given."""

    def __init__(self, path: Path, patience_s: float | None = None) -> None:
        super().__init__("engine", timeout=patience_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _query(**parts: Any) -> str:
    """Return a query of the engine's API, whose filters are JSON."""
    return urllib.parse.urlencode({name: json.dumps(part) for name, part in parts.items()})


class EngineError(Exception):
    """The engine did not start, or did not do what a test needs to stand on."""


class Engine:
    """A dockerd with its containerd, in a directory of their own. Made stopped.

    Attributes:
        directory: everything of the engine.
        socket, host: where it answers; host is what DOCKER_HOST wants.
        environment: of clients.
        cdi: the CDI specification, at first of GPUS; write_cdi_spec changes it.
        settings: of daemon.json, for the next start.
        path: folders that the daemon's PATH starts with, for the next start.
        also_at: address at which it listens besides, for the next start; None for none.
        process: dockerd, once started.
    """

    def __init__(self) -> None:
        # A socket's address has at most 108 bytes, and pytest's tmp_path more at times.
        self.directory = Path(tempfile.mkdtemp(prefix="gpl-", dir="/tmp"))
        self.directory.chmod(0o755)  # the socket's own mode says who may talk to the engine
        self.socket = self.directory / "docker.sock"
        self.host = f"unix://{self.socket}"
        self.log = self.directory / "log"
        self.cdi = self.directory / "cdi" / "nvidia.json"
        self._calls = self.directory / "hook.jsonl"
        self.process: subprocess.Popen[bytes] | None = None
        self.path: list[Path] = []
        self.also_at: str | None = None
        self.settings: dict[str, Any] = {
            "features": {"cdi": True},
            "cdi-spec-dirs": [str(self.cdi.parent)],
            "userland-proxy": False,
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "shutdown-timeout": 1,  # for its containers, before they are killed
            "default-runtime": "runc",
            "live-restore": False,
            "runtimes": {},
        }
        self._daemon = shutil.which("dockerd", path=SEARCHED) or "dockerd"
        self._before = [self._daemon]
        self._identity: dict[str, Any] = {}
        beside = Path(self._daemon).parent / "docker"
        client = beside if beside.exists() else Path(shutil.which("docker") or "docker")
        config = self.directory / "client"
        self.environment = {
            "DOCKER_HOST": self.host,
            "DOCKER_CONFIG": str(config),
            "PATH": f"{client.parent}:{SEARCHED}",
        }
        self._has_image = False
        config.mkdir()
        self.cdi.parent.mkdir()
        write_cdi_spec(self.cdi)

    # ------------------------------------------------------------------------------- NVIDIA's parts

    def add_nvidia_runtime(self) -> None:
        """Add a runtime called nvidia from the next start on."""
        program = write_stand_in(self.directory, "nvidia-container-runtime")
        self.settings["runtimes"] = {"nvidia": {"path": str(program)}}

    def add_nvidia_hook(self) -> None:
        """Accept --gpus from the next start on."""
        self.path.append(write_stand_in(self.directory, "nvidia-container-runtime-hook").parent)

    def hook_calls(self) -> list[dict[str, str]]:
        """Return the `id` and `visible` (NVIDIA_VISIBLE_DEVICES) of each call of the hook."""
        calls = self._calls.read_text() if self._calls.exists() else ""
        return [json.loads(line) for line in calls.splitlines()]

    def forget_hook_calls(self) -> None:
        """Forget all runs of the hook so far."""
        self._calls.unlink(missing_ok=True)

    # -------------------------------------------------------------------------------- start and end

    @property
    def running(self) -> bool:
        """Whether dockerd runs."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start and return when the engine answers.

        From the main thread: dockerd ends with the thread that started it.

        Raises:
            EngineError: it did not start; with the end of its log.
        """
        if self.running:
            raise EngineError("runs already")
        self._bury()
        config = self.directory / "daemon.json"
        config.write_text(json.dumps(self.settings))
        ready_path = self.directory / "ready"
        ready_path.unlink(missing_ok=True)
        root = self.directory / "root"
        root.mkdir(exist_ok=True)
        if not root.is_mount() and not self._identity:  # a container on a disk takes a third longer
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root], check=False)
        # The hard way to end a test run, SIGKILL to pytest, must not leave a daemon behind either.
        command = ["setpriv", "--pdeathsig", "TERM", *self._before, "--config-file", config]
        command += ["--host", self.host, "--pidfile", self.directory / "pid"]
        command += ["--data-root", root, "--exec-root", self.directory / "exec"]
        command += ["--host", self.also_at] if self.also_at else []
        path = ":".join(map(str, (*self.path, Path(self._daemon).parent, SEARCHED)))
        environment = {"PATH": path, "HOME": str(self.directory), "NOTIFY_SOCKET": str(ready_path)}
        environment["XDG_RUNTIME_DIR"] = str(self.directory)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, self.log.open("ab") as log:
            ready.bind(str(ready_path))
            ready_path.chmod(0o777)
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._identity,
            )
            self._await_ready(ready)
        if not self._has_image:
            self.import_image(IMAGE)
            self._has_image = True

    def stop(self) -> None:
        """Stop as a service manager would.

        Containers are stopped before, unless live-restore is set.
        """
        if self.running:
            self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Let dockerd crash; its containerd dies of that, containers do not."""
        if self.running:
            self._end(signal.SIGKILL)

    def restart(self, **settings: Any) -> None:
        """Stop and start with some settings changed."""
        self.stop()
        self._set(settings)
        self.start()

    def reload(self, **settings: Any) -> None:
        """Change settings that the running engine reads anew on HUP, and wait until it has.

        These are runtimes, default_runtime, live_restore and shutdown_timeout.
        """
        self._set(settings)
        (self.directory / "daemon.json").write_text(json.dumps(self.settings))
        told = _Connection(self.socket)
        told.request("GET", f"/events?{_query(filters={'type': ['daemon'], 'event': ['reload']})}")
        events = told.getresponse()
        self.process.send_signal(signal.SIGHUP)
        events.readline()
        told.close()

    def renew(self) -> None:
        """Start afresh in place of an engine that no longer does what it is asked."""
        self.kill()
        self._sweep()
        for name in ("root", "exec"):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        self._has_image = False
        self.start()

    def close(self) -> None:
        """Remove everything.

        A crashed engine is started once more for that: only it knows all that it has made.
        """
        try:
            if not self.running and (self.directory / "root").exists():
                self.restart(live_restore=True)  # without, it would wait for containers to stop
            if self.running:
                self.remove_all()
            self.stop()
        finally:
            self.kill()
            self._sweep()
            shutil.rmtree(self.directory)

    def _sweep(self) -> None:
        """End what a dead engine has left, and unmount it."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _await_end(pid, self.directory)
        for mount in reversed(self.mounts()):
            subprocess.run(["umount", "--lazy", mount], check=True)

    # ------------------------------------------------------------------------------------------ use

    def docker(self, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the client to its end; output as text."""
        options = {"env": self.environment, "capture_output": True, "text": True, **options}
        return subprocess.run(["docker", *map(str, arguments)], check=False, **options)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """Ask the engine itself, which takes a tenth of the client's time; status and document."""
        connection = _Connection(self.socket)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        with connection.getresponse() as answer:
            text = answer.read()
            is_document = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text.splitlines()[-1]) if is_document and text else None

    def inspect(self, container: str) -> dict[str, Any]:
        """Return what the engine knows of a container.

        Raises:
            EngineError: there is none.
        """
        status, document = self.ask("GET", f"/containers/{container}/json")
        if status != 200:
            raise EngineError(f"{container}: {document['message']}")
        return document

    def state(self, container: str) -> str:
        """Return what a container does: "running", "exited" and so on."""
        return self.inspect(container)["State"]["Status"]

    def containers(self) -> list[dict[str, Any]]:
        """Return what the engine tells of all containers, running or not."""
        return self.ask("GET", "/containers/json?all=1")[1]

    def import_image(self, name: str, changes: Sequence[str] = ()) -> None:
        """Make an image of busybox that runs sh.

        Args:
            name: with tag.
            changes: lines of a Dockerfile, such as ENV NAME=VALUE or LABEL NAME=VALUE.
        """
        repository, tag = name.split(":")
        query = [("fromSrc", "-"), ("repo", repository), ("tag", tag)]
        query += [("changes", line) for line in ("ENV PATH=/bin", 'CMD ["sh"]', *changes)]
        path = f"/images/create?{urllib.parse.urlencode(query)}"
        status, answer = self.ask("POST", path, root_file_system())
        if status != 200 or "error" in answer:
            raise EngineError(f"{name} cannot be made: {answer}")

    def label_image(self, name: str, labels: dict[str, str]) -> None:
        """Make an image like the first one, with labels."""
        body = json.dumps({"Image": IMAGE}).encode()
        container = self.ask("POST", "/containers/create", body)[1]["Id"]
        repository, tag = name.split(":")
        query = urllib.parse.urlencode({"container": container, "repo": repository, "tag": tag})
        self.ask("POST", f"/commit?{query}", json.dumps({"Labels": labels}).encode())
        self.ask("DELETE", f"/containers/{container}")

    def remove_all(self) -> None:
        """Remove all containers, running or not, with their unnamed volumes."""
        for container in self.containers():
            path = f"/containers/{container['Id']}"
            status, answer = self.ask("DELETE", f"{path}?force=1&v=1")
            if status == 409:  # --rm is removing it
                status, answer = self.ask("POST", f"{path}/wait?condition=removed")
            if status not in (200, 204, 404):
                raise EngineError(f"a container cannot be removed: {answer}")

    def remove_images(self) -> None:
        """Remove all images but the first one, by all of their names."""
        for image in self.ask("GET", "/images/json")[1]:
            if IMAGE not in (image["RepoTags"] or []):
                self.ask("DELETE", f"/images/{image['Id']}?force=1")

    def answers(self) -> bool:
        """Return whether the engine does what it is asked."""
        connection = _Connection(self.socket, PATIENCE_S)
        try:
            connection.request("GET", "/containers/json")
            return self.running and connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def processes(self) -> list[int]:
        """Return the pids of the engine's daemons, shims, and whatever is in containers."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if _belongs(pid, self.directory)]

    def mounts(self) -> list[str]:
        """Return the mount points in the engine's directory, as seen from here, oldest first."""
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return [point for point in points if Path(point).is_relative_to(self.directory)]

    # -------------------------------------------------------------------------------------- private

    def _set(self, settings: dict[str, Any]) -> None:
        """Change settings for the next start."""
        self.settings |= {name.replace("_", "-"): value for name, value in settings.items()}

    def _await_ready(self, ready: socket.socket) -> None:
        """Block until dockerd tells its service manager that it answers."""
        assert self.process
        pidfd = os.pidfd_open(self.process.pid)
        try:
            poll = select.poll()
            poll.register(ready, select.POLLIN)
            poll.register(pidfd, select.POLLIN)
            ended = poll.poll()
            while ended[0][0] == ready.fileno() and b"READY=1" not in ready.recv(4096):
                ended = poll.poll()
        finally:
            os.close(pidfd)
        if ended[0][0] != ready.fileno():
            self._bury()
            log = self.log.read_text(errors="replace").splitlines()
            raise EngineError("\n".join(["dockerd did not start", *log[-5:]]))

    def _end(self, how: signal.Signals) -> None:
        """End dockerd and wait until it and its containerd are gone."""
        assert self.process
        self.process.send_signal(how)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._bury()

    def _bury(self) -> None:
        """Wait for the end of a dead dockerd's containerd and remove their pid files.

        The next dockerd would take a pid in them that somebody has by then, if only as a zombie,
        for one that runs.
        """
        containerd = self.directory / "exec" / "containerd" / "containerd.pid"
        with suppress(FileNotFoundError, ValueError):
            _await_end(int(containerd.read_text()), self.directory)
        containerd.unlink(missing_ok=True)
        (self.directory / "pid").unlink(missing_ok=True)
        self.process = None


class RootlessEngine(Engine):
    """A user's own engine, without root and cgroups, in the host's network.

    Raises:
        EngineError: this machine has no rootlesskit.
    """

    def __init__(self, uid: int) -> None:
        super().__init__()
        programs = self.directory / "programs"  # a user may not see where the tests' own lie
        programs.mkdir()
        for name in (*_PROGRAMS, "docker-init", "rootlesskit", "rootlesskit-docker-proxy"):
            found = shutil.which(name, path=SEARCHED)
            if not found:
                raise EngineError(f"not installed: {name}")
            shutil.copy(found, programs)
        self.environment["PATH"] = f"{programs}:{SEARCHED}"
        self.path.append(programs)
        self.settings |= {"storage-driver": "vfs"}
        self._identity = {"user": uid, "group": uid, "extra_groups": []}
        # As docker's own dockerd-rootless.sh has it.
        self._daemon = str(programs / "dockerd")
        kit = [str(programs / "rootlesskit"), f"--state-dir={self.directory}/rootlesskit"]
        kit += ["--net=host", "--copy-up=/etc", "--copy-up=/run", "sh", "-c"]
        inside = 'rm -f /run/docker /run/containerd; exec "$@"'
        self._before = [*kit, inside, "sh", self._daemon, "--rootless"]
        (self.directory / "root").mkdir()
        for path in (self.directory, self.directory / "root", self.directory / "client"):
            os.chown(path, uid, uid)


def _belongs(pid: int, directory: Path) -> bool:
    """Return whether a process is of an engine in this directory, or rooted there; no zombies."""
    try:
        if os.fsencode(directory) in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid != os.getpid()
        mounts = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    except OSError:  # gone, or a zombie, which has no mounts
        return False
    return any(line.split()[4] == "/" and str(directory) in line for line in mounts)


def _await_end(pid: int, directory: Path) -> None:
    """Block until a process has ended, if it is an engine's; kill it if it takes long."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _belongs(pid, directory) and not select.select([pidfd], [], [], 5)[0]:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], PATIENCE_S)
    finally:
        os.close(pidfd)
