"""One NVIDIA GPU that nobody uses, with PyTorch and CUDA MPS, and jobs on it.

A test module that writes pytest_plugins = ("real_gpu",) has these fixtures:

idle: the GPU for a module, with PyTorch, or the reason for a skip.
found: the same with MPS.
bench: the same, unused before and after each test.

PYTEST_DONT_REWRITE: a module that imports from here does so before pytest hears of the plugin.
"""

import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import Launcher, until

CONTROL = "nvidia-cuda-mps-control"
LOAD = str(Path(__file__).with_name("jobs") / "load.py")
KINDS = ("memory", "compute")
MEMORY_MIB = 3072
"""What each job may have: three times what it needs, and twice that fits every GPU of 8 GB."""

BATCH_S = 0.1
"""Work of a fixed amount between two pauses."""

PROFILE = f"""\
name = "{{kind}}"

# In truth both keep the GPU at work all the time: 100 % each, and the rule would never let them
# meet. They are to meet, since what is tested is how they get on then. So each says half, and two
# of them are just within the rule's bounds.
[resources]
memory_mib = {MEMORY_MIB}
sm_utilization_percentage = 50
memory_bandwidth_utilization_percentage = 50
source = "tests/gpu/real_gpu.py: made up, so that the two may share"
"""
_PASSED_ON = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables of the tests by which PyTorch and the driver's libraries may be found."""


class Job:
    """A process that prints lines of JSON: load.py, with or without gpulaunch before it.

    Args:
        command: argv.
        environment: all of it.
        errors: file for its stderr.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], errors: Path) -> None:
        self.began = time.monotonic()
        self._errors = errors
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        with errors.open("wb") as file:
            self.process = subprocess.Popen(command, env=environment, stderr=file, **pipes)

    @property
    def errors(self) -> str:
        """What it has written to stderr."""
        return self._errors.read_text(errors="replace")

    @property
    def warnings(self) -> list[str]:
        """What gpulaunch has written there; PyTorch may have had something to say, too."""
        return [line for line in self.errors.splitlines() if line.startswith("gpulaunch: ")]

    def said(self) -> dict[str, Any]:
        """Return the job's next line."""
        line = self.process.stdout.readline()
        assert line, f"ended with status {self.process.wait()}: {self.errors}"
        return json.loads(line)

    def go(self) -> None:
        """Give it the word."""
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait for its end; its exit status."""
        return self.process.wait()

    def close(self) -> None:
        """Take back the word that it may be waiting for, and wait for its end, forced if needed."""
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Gpu(NamedTuple):
    """The GPU under test, as nvidia-smi tells of it."""

    uuid: str
    name: str
    driver: str
    memory_mib: int
    compute_mode: str


class Bench:
    """One GPU, and all ways to put jobs on it.

    Args:
        home: short, since sockets lie in it.

    Attributes:
        launcher: with a table and MPS daemons of its own.
        mps: directory of these daemons.
        gpu: the GPU; there is none before find_gpu.
        torch: PyTorch's version and CUDA's; likewise.
    """

    gpu: Gpu
    torch: str

    def __init__(self, home: Path) -> None:
        self.home = home
        self._jobs: list[Job] = []
        self._started = 0
        self.mps = home / "mps"
        self.launcher = Launcher(home)
        self.launcher.environment |= {
            "GPULAUNCH_MPS_DIRECTORY": str(self.mps),
            "GPULAUNCH_GRACE": "2s",
            "PYTHONUSERBASE": site.getuserbase(),  # the launcher has another home
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        }
        for kind in KINDS:
            self.profile(kind).write_text(PROFILE.format(kind=kind))

    def find_gpu(self) -> str | None:
        """Choose an idle GPU; return why nothing can be tested here, if so."""
        listed = run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"])
        if listed.returncode:
            return f"nvidia-smi: {(listed.stdout or listed.stderr).strip()}"
        gpus = self.status()["gpus"]
        listed = listed.stdout.split()
        free = [gpu["uuid"] for gpu in gpus if gpu["state"] == "free" and gpu["uuid"] in listed]
        if not free:
            uses = "; ".join(str(gpu["outside"] or gpu["name"]) for gpu in gpus)
            return f"no whole GPU is idle: {uses}"
        fields = "--query-gpu=uuid,name,driver_version,memory.total,compute_mode"
        smi = run(["nvidia-smi", f"--id={free[0]}", fields, "--format=csv,noheader,nounits"])
        uuid, name, driver, memory_mib, mode = smi.stdout.strip().split(", ")
        self.gpu = Gpu(uuid, name, driver, int(memory_mib), mode)
        return None

    def find_torch(self) -> str | None:
        """Return why there is no PyTorch with CUDA, if so."""
        text = "import torch; torch.cuda.init(); "
        text += "print(f'PyTorch {torch.__version__}, CUDA {torch.version.cuda}')"
        done = run([sys.executable, "-c", text], env=self.plain_environment)
        self.torch = done.stdout.strip()
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return f"{sys.executable} has no PyTorch with CUDA: {last}" if done.returncode else None

    def why_not_shared(self) -> str | None:
        """Return why gpulaunch does not share this GPU on principle, if so."""
        done = self.launcher.run(*self._sharing("memory"), "--dry-run", "--json", "--", "true")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        if not document["shared"]:
            return (document["sharing"] or {}).get("own_because") or done.stderr.strip()
        warned = self.launcher.run(*self._sharing("memory"), "--", "true").stderr
        # The daemon of driver 535 or before does not know it.
        return warned.strip() if "get_server_status is unknown" in warned else None

    @property
    def plain_environment(self) -> dict[str, str]:
        """Return the environment of a process with the GPU to itself, without gpulaunch or MPS."""
        environment = self.launcher.environment.items()
        kept = {name: text for name, text in environment if not name.startswith("GPULAUNCH_")}
        nobody = {"CUDA_MPS_PIPE_DIRECTORY": str(self.home / "no-mps")}
        return kept | nobody | {"CUDA_VISIBLE_DEVICES": self.gpu.uuid}

    def profile(self, kind: str) -> Path:
        """Return the profile of a kind of job."""
        return self.home / f"{kind}.toml"

    def _sharing(self, kind: str, percentage: int | None = None) -> list[str]:
        cap = [] if percentage is None else [f"--share={percentage}%"]
        return ["--share", "--profile", str(self.profile(kind)), "--only", self.gpu.uuid, *cap]

    def share(
        self, kind: str, percentage: int, *arguments: object, profile: str | None = None
    ) -> Job:
        """Start load.py with this percentage of the SMs; returns when it has its lease.

        The profile is that of its kind unless another is named.
        """
        return self.launch(self._sharing(profile or kind, percentage), load(kind, *arguments))

    def launch(self, options: Sequence[str], command: Sequence[str]) -> Job:
        """Start a job under gpulaunch; returns when it has its lease."""
        before = len(self.launcher.records())
        words = [self.launcher.script, *options, "--", *command]
        job = self._start(words, self.launcher.environment)
        until(lambda: len(self.launcher.records()) > before or job.process.poll() is not None)
        return job

    def plain(self, kind: str, *arguments: object) -> Job:
        """Start load.py alone."""
        return self._start(load(kind, *arguments), self.plain_environment)

    def _start(self, command: Sequence[str], environment: dict[str, str]) -> Job:
        self._started += 1
        job = Job(command, environment, self.home / f"stderr.{self._started}")
        self._jobs.append(job)
        return job

    def status(self) -> dict[str, Any]:
        """Return what `gpulaunch status --json` says."""
        done = self.launcher.run("status", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def lease_of(self, job: Job) -> str:
        """Return the id of a job's lease."""
        leases = self.status()["leases"]
        return next(lease["id"] for lease in leases if lease["pid"] == job.process.pid)

    def left_of_mps(self) -> list[str]:
        """Return what lies in the directory of the daemons, apart from the files of their locks."""
        found = sorted(os.listdir(self.mps)) if self.mps.exists() else []
        return [name for name in found if not name.endswith(".lock")]

    def end_all(self) -> None:
        """End every job, lease and daemon after a test, however that has ended."""
        for job in self._jobs:
            job.close()
        if self.launcher.records():
            self.launcher.run("free", *(lease["id"] for lease in self.status()["leases"]))
        self._jobs.clear()
        for name in self.left_of_mps():
            with suppress(OSError):
                Mps(str(self.mps / name)).ask("quit")


class Mps:
    """A control daemon, asked by NVIDIA's own program and not by gpulaunch's code."""

    def __init__(self, pipe_directory: str) -> None:
        self.directory = Path(pipe_directory)

    def ask(self, command: str) -> str:
        """Return the daemon's answer; nothing if there is no daemon."""
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(self.directory)}
        return run([CONTROL], input=f"{command}\n", env=environment).stdout

    def servers(self) -> list[int]:
        return [int(word) for word in self.ask("get_server_list").split()]

    def clients(self) -> set[int]:
        lists = [self.ask(f"get_client_list {server}") for server in self.servers()]
        return {int(word) for text in lists for word in text.split()}

    def processes(self) -> list[int]:
        """Return the daemon's pid, and its servers'."""
        return [int((self.directory / f"{CONTROL}.pid").read_text()), *self.servers()]

    def log(self) -> str:
        """Return the daemon's log, wherever gpulaunch has put it."""
        logs = self.directory.glob("*/control.log")
        return "".join(path.read_text(errors="replace") for path in logs)


def mps_of(facts: dict[str, Any]) -> Mps:
    """Return the daemon that a job was sent to."""
    return Mps(facts["variables"]["CUDA_MPS_PIPE_DIRECTORY"])


def measured(*jobs: Job) -> list[dict[str, Any]]:
    """Measure jobs that run at the same time: the word to start comes when all are ready.

    They end well, and without a warning.
    """
    for job in jobs:
        job.said()
    for job in jobs:
        job.go()
    found = [job.said() for job in jobs]
    assert [job.end() for job in jobs] == [0] * len(jobs), [job.errors for job in jobs]
    assert [job.warnings for job in jobs] == [[]] * len(jobs)
    return found


def load(kind: str, *arguments: object) -> list[str]:
    return [sys.executable, LOAD, kind, *map(str, arguments)]


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended may still await a lazy init."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.fixture(scope="module")
def idle() -> Iterator[Bench]:
    """Return a GPU that nobody uses, or the reason why there is none."""
    if not shutil.which("nvidia-smi"):
        pytest.skip("nvidia-smi is not on PATH")
    # Short: the address of a socket has 107 bytes at most.
    home = Path(tempfile.mkdtemp(prefix="gl", dir="/tmp"))
    bench = Bench(home)
    try:
        if reason := bench.find_gpu() or bench.find_torch():
            pytest.skip(reason)
        yield bench
    finally:
        bench.end_all()
        shutil.rmtree(home)


@pytest.fixture(scope="module")
def found(idle: Bench) -> Bench:
    """Return a GPU that jobs can share, or the reason why there is none."""
    if not shutil.which(CONTROL):
        pytest.skip(f"{CONTROL} is not on PATH")
    if reason := idle.why_not_shared():
        pytest.skip(reason)
    return idle


@pytest.fixture
def bench(found: Bench) -> Iterator[Bench]:
    """Return the bench, with its GPU unused before and after the test."""
    found.end_all()
    yield found
    found.end_all()
    assert (found.launcher.records(), found.left_of_mps()) == ([], [])


class Fixed(NamedTuple):
    """A fixed amount of work, which takes as long again when the GPU is as fast.

    Attributes:
        kind: of load.py.
        batches: how many, of about BATCH_S each.
        options: of load.py besides.
        alone_s: how long it takes alone, from its start to its end.
        busy_percentage: part of that in which the GPU is at work.
    """

    kind: str
    batches: int
    options: tuple[object, ...]
    alone_s: float = 0.0
    busy_percentage: float = 0.0

    def command(self, times: int = 1) -> list[str]:
        """Return argv of so many times as much work."""
        return load(self.kind, times * self.batches, *self.options)


def fixed(bench: Bench, kind: str, seconds: float, pause_s: float = 0.0) -> Fixed:
    """Return work that takes so long alone, without PyTorch's start, measured without MPS."""
    rate = measured(bench.plain(kind, 2))[0]["iterations_per_s"]
    steps = max(1, round(BATCH_S * rate))
    batches = max(1, round(seconds / (steps / rate + pause_s)))
    options = ("--fixed", steps, "--pause", pause_s)
    job = bench.plain(kind, batches, *options)
    job.said()
    busy_s = job.said()["busy_s"]
    assert job.end() == 0, job.errors
    alone_s = time.monotonic() - job.began
    return Fixed(kind, batches, options, alone_s, 100 * busy_s / alone_s)
