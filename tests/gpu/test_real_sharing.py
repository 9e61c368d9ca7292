"""On an NVIDIA GPU with CUDA MPS and PyTorch only: jobs that share a GPU, and what they gain by it.

Run: python -m pytest tests/gpu/test_real_sharing.py -s. docs/sharing-measured.md tells what is
measured and how. No setting of a GPU is changed; the GPU is one that nobody uses, and the jobs' MPS
daemon is theirs alone.
"""

import json
import os
import select
import shutil
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import Launcher

from gpulaunch.machine.nvidia import nvml
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.records import replace
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.partition import Partition, partition
from gpulaunch.sharing.prediction import normalized_turnaround, system_throughput

REPORT = os.environ.get("GPULAUNCH_GPU_REPORT")
"""File for the figures, as Markdown. Read now: no test sees such a variable."""

CONTROL = "nvidia-cuda-mps-control"
LOAD = str(Path(__file__).with_name("jobs") / "load.py")
KINDS = ("memory", "compute")
UNITS = {"memory": ("GB/s", 1e9), "compute": ("TFLOP/s", 1e12)}
PERCENTAGES = (10, 20, 30, 40, 50, 60, 80, 100)
CURVE_S, PAIR_S = 2, 5
"""Seconds that a point of a curve, and jobs together, are measured for."""

MEMORY_MIB = 3072
"""What each job may have: three times what it needs, and twice that fits every GPU of 8 GB."""

PATIENCE_S = 180.0
"""For what takes seconds: PyTorch loads slowly from a network file system."""

SETTLED_S = 20.0
"""After a launch: gpulaunch has then checked at 1, 3, 7 and 15 s whether the job is attached."""

PROFILE = f"""\
name = "{{kind}}"

# In truth both keep the GPU at work all the time: 100 % each, and the rule would never let them
# meet. They are to meet, since what is tested is how they get on then. So each says half, and two
# of them are just within the rule's bounds.
[resources]
memory_mib = {MEMORY_MIB}
sm_utilization_percentage = 50
memory_bandwidth_utilization_percentage = 50
source = "tests/gpu/test_real_sharing.py: made up, so that the two may share"
"""
CURVE = """
[sm_curve]
sm_percentage = {percentages}
throughput = {throughputs}
measured_on = "{gpu}"
source = "tests/gpu/test_real_sharing.py: {unit}, alone under MPS, windows of {seconds} s"
"""
_INITIAL_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO of the kernel
_PASSED_ON = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables of the tests by which PyTorch and the driver's libraries may be found."""


# --------------------------------------------------------------------------------- jobs and the GPU


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
        self._read = b""
        with errors.open("wb") as file:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
            )

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
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._read:
            ready, _, _ = select.select(
                [self.process.stdout], [], [], max(0.0, deadline - time.monotonic())
            )
            assert ready, f"nothing within {PATIENCE_S:g} s: {self.errors}"
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            assert more, f"ended with status {self.process.wait()}: {self.errors}"
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def go(self) -> None:
        """Give it the word."""
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait for its end; its exit status."""
        return self.process.wait(PATIENCE_S)

    def let_go(self) -> None:
        """Take back the word that it may be waiting for: then it ends by itself."""
        with suppress(OSError):
            self.process.stdin.close()

    def close(self) -> None:
        """Wait for the job's end, and force it if need be."""
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
        self._home = home
        self._jobs: list[Job] = []
        self._started = 0
        self.mps = home / "mps"
        self.launcher = Launcher(home)
        self.launcher.environment |= {
            "GPULAUNCH_MPS_DIRECTORY": str(self.mps),
            "GPULAUNCH_GRACE": "2s",
            "GPULAUNCH_SHARE_MEMORY_HEADROOM": "0",
            "PYTHONUSERBASE": site.getuserbase(),  # the launcher has another home
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        }
        for kind in KINDS:
            self.profile(kind).write_text(PROFILE.format(kind=kind))

    def find_gpu(self) -> str | None:
        """Choose an idle GPU; return why nothing can be tested here, if so."""
        listed = _run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"])
        if listed.returncode:
            return f"nvidia-smi: {(listed.stdout or listed.stderr).strip()}"
        gpus = self.status()["gpus"]
        free = [
            gpu["uuid"]
            for gpu in gpus
            if gpu["state"] == "free" and gpu["uuid"] in listed.stdout.split()
        ]
        if not free:
            return (
                "no whole GPU is idle: "
                f"{'; '.join(str(gpu['outside'] or gpu['name']) for gpu in gpus)}"
            )
        fields = "--query-gpu=uuid,name,driver_version,memory.total,compute_mode"
        smi = _run(["nvidia-smi", f"--id={free[0]}", fields, "--format=csv,noheader,nounits"])
        uuid, name, driver, memory_mib, mode = smi.stdout.strip().split(", ")
        self.gpu = Gpu(uuid, name, driver, int(memory_mib), mode)
        return None

    def find_torch(self) -> str | None:
        """Return why there is no PyTorch with CUDA, if so."""
        text = (
            "import torch; torch.cuda.init(); print(f'PyTorch {torch.__version__}, CUDA "
            "{torch.version.cuda}')"
        )
        done = _run([sys.executable, "-c", text], env=self.plain_environment)
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
        warned = self.launcher.run(
            *self._sharing("memory"), "--", "true", timeout=PATIENCE_S
        ).stderr
        return (
            warned.strip() if "get_server_status is unknown" in warned else None
        )  # a daemon of driver 535 or before

    @property
    def plain_environment(self) -> dict[str, str]:
        """Return the environment of a process with the GPU to itself, without gpulaunch or MPS."""
        kept = {
            name: text
            for name, text in self.launcher.environment.items()
            if not name.startswith("GPULAUNCH_")
        }
        return kept | {
            "CUDA_VISIBLE_DEVICES": self.gpu.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self._home / "no-mps"),
        }

    def profile(self, kind: str) -> Path:
        """Return the profile of a kind of job."""
        return self._home / f"{kind}.toml"

    def _sharing(self, kind: str, percentage: int | None = None) -> list[str]:
        cap = [] if percentage is None else ["--sm-percentage", str(percentage)]
        return ["--share", "--profile", str(self.profile(kind)), "--only", self.gpu.uuid, *cap]

    def share(
        self, kind: str, percentage: int, *arguments: object, profile: str | None = None
    ) -> Job:
        """Start load.py under `gpulaunch --share`; returns when it has its lease.

        Args:
            kind: of load.py.
            percentage: of the SMs.
            arguments: of load.py.
            profile: whose; None for that of the kind.
        """
        options = self._sharing(profile or kind, percentage)
        before = len(self.launcher.records())
        job = self._start(
            [self.launcher.script, *options, "--", *_load(kind, *arguments)],
            self.launcher.environment,
        )
        _wait_until(lambda: len(self.launcher.records()) > before or job.process.poll() is not None)
        return job

    def plain(self, kind: str, *arguments: object) -> Job:
        """Start load.py alone."""
        return self._start(_load(kind, *arguments), self.plain_environment)

    def _start(self, command: Sequence[str], environment: dict[str, str]) -> Job:
        self._started += 1
        job = Job(command, environment, self._home / f"stderr.{self._started}")
        self._jobs.append(job)
        return job

    def status(self) -> dict[str, Any]:
        """Return what `gpulaunch status --json` says."""
        done = self.launcher.run("status", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def lease_of(self, job: Job) -> str:
        """Return the id of a job's lease."""
        return next(
            lease["id"] for lease in self.status()["leases"] if lease["pid"] == job.process.pid
        )

    def left_of_mps(self) -> list[str]:
        """Return what lies in the directory of the daemons, apart from the files of their locks."""
        found = sorted(os.listdir(self.mps)) if self.mps.exists() else []
        return [name for name in found if not name.endswith(".lock")]

    def end_all(self) -> None:
        """End every job, lease and daemon after a test, however that has ended."""
        for job in self._jobs:
            job.let_go()
        with suppress(AssertionError):
            _wait_until(lambda: all(job.process.poll() is not None for job in self._jobs), 20)
        if self.launcher.records():
            self.launcher.run(
                "free", *(lease["id"] for lease in self.status()["leases"]), timeout=PATIENCE_S
            )
        for job in self._jobs:
            job.close()
        self._jobs.clear()
        for name in self.left_of_mps():
            with suppress(OSError, subprocess.SubprocessError):
                Mps(str(self.mps / name)).ask("quit")


class Mps:
    """A control daemon, asked by NVIDIA's own program and not by gpulaunch's code."""

    def __init__(self, pipe_directory: str) -> None:
        self.directory = Path(pipe_directory)

    def ask(self, command: str) -> str:
        """Return the daemon's answer; nothing if there is no daemon."""
        environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(self.directory)}
        return _run([CONTROL], input=f"{command}\n", env=environment).stdout

    def servers(self) -> list[int]:
        return [int(word) for word in self.ask("get_server_list").split()]

    def clients(self) -> set[int]:
        return {
            int(word)
            for server in self.servers()
            for word in self.ask(f"get_client_list {server}").split()
        }

    def processes(self) -> list[int]:
        """Return the daemon's pid, and its servers'."""
        return [int((self.directory / f"{CONTROL}.pid").read_text()), *self.servers()]

    def log(self) -> str:
        """Return the daemon's log, wherever gpulaunch has put it."""
        return "".join(
            path.read_text(errors="replace") for path in self.directory.glob("*/control.log")
        )


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


def _load(kind: str, *arguments: object) -> list[str]:
    return [sys.executable, LOAD, kind, *map(str, arguments)]


def _run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **options
    )


def _wait_until(done: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < deadline, f"not so after {patience_s:g} s"
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended may still await a lazy init."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.fixture(scope="module")
def found() -> Iterator[Bench]:
    """Return a GPU that jobs can share, or the reason why there is none."""
    for program in ("nvidia-smi", CONTROL):
        if not shutil.which(program):
            pytest.skip(f"{program} is not on PATH")
    home = Path(
        tempfile.mkdtemp(prefix="gl", dir="/tmp")
    )  # short: the address of a socket has 107 bytes at most
    bench = Bench(home)
    try:
        for look in (bench.find_gpu, bench.find_torch, bench.why_not_shared):
            reason = look()
            if reason:
                pytest.skip(reason)
        yield bench
    finally:
        bench.end_all()
        shutil.rmtree(home)


@pytest.fixture
def bench(found: Bench) -> Iterator[Bench]:
    """Return the bench, with its GPU unused before and after the test."""
    found.end_all()
    yield found
    found.end_all()
    assert (found.launcher.records(), found.left_of_mps()) == ([], [])


# ---------------------------------------------------------------------------------------- the tests


def test_a_job_is_attached(bench: Bench) -> None:
    """A job that shares is a client of its group's daemon, which confirms it; no warning comes."""
    job = bench.share("memory", 50, 1)
    facts = job.said()
    assert job.warnings == []
    assert facts["variables"]["CUDA_MPS_PIPE_DIRECTORY"].startswith(f"{bench.mps}/")
    assert mps_of(facts).clients() == {facts["pid"]}
    time.sleep(max(0.0, job.began + SETTLED_S - time.monotonic()))
    job.go()
    assert job.said()["iterations_per_s"] > 0
    assert (job.end(), job.warnings) == (0, [])


def test_nvml_lists_it_as_a_client(bench: Bench) -> None:
    """NVML lists the job among the GPU's MPS clients, which tells it from use without MPS."""
    job = bench.share("memory", 50, 1)
    pid = job.said()["pid"]
    nvml.open_nvml()
    clients = nvml.card_of(bench.gpu.uuid, 0).pids("mps")
    if pid not in clients and os.stat("/proc/self/ns/pid").st_ino != _INITIAL_PID_NAMESPACE:
        pytest.skip("NVML does not tell a container the pids of its own processes")
    assert pid in clients


def test_memory_is_bounded(bench: Bench) -> None:
    """A job gets the memory of its lease, and beyond that CUDA is out of memory on a larger GPU."""
    small, large = MEMORY_MIB // 3, MEMORY_MIB * 4 // 3
    jobs = [bench.share("allocate", 50, mib, profile="memory") for mib in (small, large)]
    within, beyond = (job.said() for job in jobs)
    want = f"{bench.gpu.uuid}={MEMORY_MIB}M"
    assert [
        facts["variables"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for facts in (within, beyond)
    ] == [want, want]
    assert (within["allocated"], beyond["allocated"]) == (True, False)
    assert "out of memory" in beyond["problem"]
    assert [job.end() for job in jobs] == [0, 0]
    assert bench.plain("allocate", large).said()["allocated"]


def test_two_jobs_share(bench: Bench) -> None:
    """Two jobs on a GPU are clients of one server and shown by status; an unshared one gets 75."""
    jobs = [bench.share("memory", 30, 1), bench.share("compute", 70, 1)]
    facts = [job.said() for job in jobs]
    assert mps_of(facts[0]).clients() == {one["pid"] for one in facts}
    assert len(mps_of(facts[0]).servers()) == 1
    status = bench.status()
    gpu = next(gpu for gpu in status["gpus"] if gpu["uuid"] == bench.gpu.uuid)
    assert (gpu["state"], sorted(gpu["leases"])) == ("shared", sorted(map(bench.lease_of, jobs)))
    assert {
        lease["profile"]: (lease["shared"], lease["sm_percentage"]) for lease in status["leases"]
    } == {
        "memory": (True, 30),
        "compute": (True, 70),
    }
    assert bench.launcher.run("--only", bench.gpu.uuid, "--", "true").returncode == 75


def test_nothing_is_left(bench: Bench) -> None:
    """The daemon stays while a job is left and goes with the last: no process, lease, directory."""
    jobs = [bench.share(kind, 50, 1) for kind in KINDS]
    facts = [job.said() for job in jobs]
    daemon = mps_of(facts[0]).processes()
    assert len(daemon) == 2
    for job, left in zip(jobs, (daemon, []), strict=True):
        job.go()
        job.said()
        assert job.end() == 0
        assert [pid for pid in daemon if _is_alive(pid)] == left
    assert (bench.launcher.records(), bench.left_of_mps()) == ([], [])


@pytest.mark.parametrize("options", [("--deaf",), ()])
def test_one_is_ended_and_the_other_goes_on(bench: Bench, options: tuple[str, ...]) -> None:
    """`free` detaches a job before KILL, or TERM that it does not catch; the other goes on as fast.

    Without a handler it ends by TERM, or with status 1 if CUDA's error reaches PyTorch before that.
    """
    deaf, other = bench.share("memory", 50, 600, *options), bench.share("compute", 50, 14)
    gone, there = deaf.said(), other.said()
    mps = mps_of(there)
    servers = mps.servers()
    for job in (deaf, other):
        job.go()
    time.sleep(1)
    done = bench.launcher.run("free", bench.lease_of(deaf), timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert deaf.end() in ((128 + 9,) if options else (128 + 15, 1))
    command = f"Cmd:terminate_client {servers[0]} {gone['pid']}\n"
    answer = mps.log().partition(command)[2].partition("UI closed")[0]
    assert "] 0\n" in answer, mps.log()  # 0: it has been taken off
    assert (mps.servers(), mps.clients()) == (servers, {there["pid"]})
    assert mps.ask(f"get_server_status {servers[0]}").strip() == "ACTIVE"
    before, after = other.said()[
        "iterations_per_s_of_halves"
    ]  # the deaf one has gone in the first half
    assert (other.end(), other.warnings) == (0, [])
    assert after > 0.8 * before > 0


class Curves(NamedTuple):
    """What each kind of job does alone.

    Attributes:
        alone: without gpulaunch and MPS, by kind.
        shares: at each of PERCENTAGES under MPS, by kind.
    """

    alone: dict[str, dict[str, Any]]
    shares: dict[str, list[dict[str, Any]]]

    @property
    def sm_count(self) -> int:
        """SMs of the GPU."""
        return self.alone["memory"]["multiprocessors"]


@pytest.fixture(scope="module")
def curves(found: Bench) -> Curves:
    """Measure all jobs alone, one after the other."""
    alone = {kind: measured(found.plain(kind, PAIR_S))[0] for kind in KINDS}
    shares = {
        kind: [measured(found.share(kind, p, CURVE_S))[0] for p in PERCENTAGES] for kind in KINDS
    }
    return Curves(alone, shares)


def test_percentages(bench: Bench, curves: Curves) -> None:
    """A job sees its percentage of SMs, but one at least; all with 100 %, and all without MPS."""
    assert bench.gpu.uuid
    for kind in KINDS:
        assert curves.alone[kind]["multiprocessors"] == curves.sm_count
        counts = [facts["multiprocessors"] for facts in curves.shares[kind]]
        print(f"\n{kind}: SMs seen at {PERCENTAGES} %: {counts}")
        for percentage, facts in zip(PERCENTAGES, curves.shares[kind], strict=True):
            assert facts["variables"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(percentage)
            assert 0 < facts["multiprocessors"] <= percentage * curves.sm_count / 100, facts
        assert counts[-1] == curves.sm_count


# ------------------------------------------------------------------------------------ the benchmark


class Row(NamedTuple):
    """Both jobs at the same time, KINDS in order.

    Attributes:
        way: how they shared.
        percentages: of the SMs; empty without MPS.
        amounts: bytes or operations a second.
    """

    way: str
    percentages: tuple[int, ...]
    amounts: tuple[float, ...]


def divided(bench: Bench, curves: Curves) -> Partition:
    """Return what gpulaunch's search makes of the curves, passed through profiles as by a user."""
    demands = []
    for kind in KINDS:
        unit, scale = UNITS[kind]
        throughputs = [round(facts["amount_per_s"] / scale, 3) for facts in curves.shares[kind]]
        said = {"percentages": list(PERCENTAGES), "throughputs": throughputs, "gpu": bench.gpu.name}
        text = PROFILE.format(kind=kind) + CURVE.format(**said, unit=unit, seconds=CURVE_S)
        bench.profile(kind).write_text(text)
        demand = load_profile(str(bench.profile(kind))).demand
        demands.append(replace(demand, sm_utilization_percentage=100.0))  # as they truly are
    return partition(demands, Capacity(bench.gpu.memory_mib << 20, len(KINDS), curves.sm_count))


def together(bench: Bench, way: str, percentages: tuple[int, ...] = ()) -> Row:
    """Measure both at once; without percentages as plain processes."""
    if percentages:
        jobs = [bench.share(kind, p, PAIR_S) for kind, p in zip(KINDS, percentages, strict=True)]
    else:
        jobs = [bench.plain(kind, PAIR_S) for kind in KINDS]
    return Row(way, percentages, tuple(result["amount_per_s"] for result in measured(*jobs)))


def report(bench: Bench, curves: Curves, found: Partition, rows: Sequence[Row]) -> str:
    """Return everything that was measured, as Markdown."""
    gpu, today = bench.gpu, datetime.now(UTC).date()
    alone = [curves.alone[kind]["amount_per_s"] for kind in KINDS]
    heads = [f"{kind}, {UNITS[kind][0]}" for kind in KINDS]
    lines = [
        (
            f"{gpu.name}, {curves.sm_count} SMs, driver {gpu.driver}, mode {gpu.compute_mode}, "
            f"{bench.torch}, {today}."
        ),
        f"Windows of {PAIR_S} s for the jobs, of {CURVE_S} s for the curves.",
        "",
        f"| way | % of SMs | {' | '.join(heads)} | STP | ANTT |",
        f"|{'---|' * (4 + len(KINDS))}",
        f"| each alone, without MPS | | {' | '.join(_amounts(alone))} | | |",
    ]
    for row in rows:
        times = [[1 / amount for amount in amounts] for amounts in (alone, row.amounts)]
        caps = " + ".join(map(str, row.percentages))
        sums = f"{system_throughput(*times):.3f} | {normalized_turnaround(*times):.3f}"
        lines.append(f"| {row.way} | {caps} | {' | '.join(_amounts(row.amounts))} | {sums} |")
    lines += [
        "",
        f"Found by {found.mode}: {found.reason}.",
        "",
        f"| % of SMs, alone under MPS | {' | '.join(map(str, PERCENTAGES))} |",
        f"|{'---|' * (1 + len(PERCENTAGES))}",
        (
            "| SMs that the job sees | "
            f"{' | '.join(str(one['multiprocessors']) for one in curves.shares['memory'])} |"
        ),
    ]
    for kind, head in zip(KINDS, heads, strict=True):
        cells = [f"{one['amount_per_s'] / UNITS[kind][1]:.4g}" for one in curves.shares[kind]]
        lines.append(f"| {head} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _amounts(amounts: Sequence[float]) -> list[str]:
    return [f"{amount / UNITS[kind][1]:.4g}" for kind, amount in zip(KINDS, amounts, strict=True)]


def test_throughput(bench: Bench, curves: Curves) -> None:
    """Both jobs are measured time-sliced, and under MPS uncapped, evenly capped and as searched."""
    found = divided(bench, curves)
    rows = []
    if (
        bench.gpu.compute_mode == "Default"
    ):  # in an exclusive mode the second plain process would fail
        rows.append(together(bench, "time-sliced, without MPS"))
    rows.append(together(bench, "MPS, no caps", (100, 100)))
    rows.append(together(bench, "MPS, even", (50, 50)))
    rows.append(together(bench, "MPS, as predicted best", found.sm_percentages))
    text = report(bench, curves, found, rows)
    print(f"\n\n{text}\n")
    if REPORT:
        Path(REPORT).write_text(f"{text}\n")
    assert all(amount > 0 for row in rows for amount in row.amounts)
