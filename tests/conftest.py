"""What all tests share: tiers by folder, the installed command, and the rule about skipping.

tests/unit starts no process, tests/command starts the installed command or other programs,
tests/host needs root, a Docker Engine, an MPS daemon or several users, tests/slow takes long,
tests/release is for .ci/release alone. Each test is marked with its folder; tests marked `long`
besides run only on request (-m long).
"""

import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import hypothesis
import pytest
import slurm as slurm_cluster
from engine import Engine, EngineError, why_not, write_cdi_spec

import gpulaunch
from gpulaunch.process.ending import COMPANION
from gpulaunch.process.system import program_of

os.environ["XDG_CONFIG_HOME"] = (
    "/nonexistent"  # tests see what is shipped, and not what whoever runs them has
)
os.environ["XDG_STATE_HOME"] = "/dev/null"  # nothing can be made there: no history of tests
# Of examples/draw_machine.py, which would else make its own for each run.
os.environ["MPLCONFIGDIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "matplotlib")
SCRIPT = Path(sysconfig.get_path("scripts")) / "gpulaunch"
NO_SKIPS = "GPULAUNCH_TEST_NO_SKIPS"
"""Set where everything that the tests need must be there: a skipped test then fails."""


# Where a script or nohup runs the tests these are ignored, and children inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

TIERS = ("unit", "command", "host", "slow", "release")

hypothesis.settings.register_profile(
    "dev",
    max_examples=25,
    deadline=None,  # a busy machine is slow
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "ci", hypothesis.settings.get_profile("dev"), max_examples=100, print_blob=True
)
hypothesis.settings.register_profile("few", hypothesis.settings.get_profile("dev"), max_examples=5)
hypothesis.settings.load_profile(os.environ.get("GPULAUNCH_TEST_HYPOTHESIS", "dev"))


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder."""
    for item in items:
        tier = item.path.relative_to(Path(__file__).parent).parts[0]
        if tier in TIERS:
            item.add_marker(tier)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get(NO_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped although {NO_SKIPS} is set: {report.longrepr}"
    return report


LARGE = ("__main__", "docker_sdk", "lease_of_container", "run_container", "mcp_tools")
"""Modules that forks rather import than copy: they bring the SDK of docker, or MCP's."""


@functools.cache
def _import_all() -> None:
    """Import what launches import late, once for all forks."""
    for module in pkgutil.walk_packages(gpulaunch.__path__, "gpulaunch."):
        if module.name.rpartition(".")[2] not in LARGE:
            with suppress(ImportError):
                importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def _become(words: list[str | bytes], environment: dict[str, str], keep: Iterable[int]) -> None:
    """Be in a forked child what a start of this command line would be."""
    import faulthandler

    faulthandler.disable()
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # one tells Popen of an exec
        if descriptor > 2 and descriptor not in keep:
            with suppress(OSError):
                os.close(descriptor)
    for descriptor in keep:
        os.set_inheritable(descriptor, True)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = [os.fsdecode(word) for word in words]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.stdin = _open_standard(0, "r")
    sys.stdout = _open_standard(1, "w")
    sys.stderr = _open_standard(2, "w")
    for place in environment.get("LD_LIBRARY_PATH", "").split(":"):
        if os.path.exists(f"{place}/libnvidia-ml.so.1"):
            ctypes.CDLL(f"{place}/libnvidia-ml.so.1")  # found by its name from now on


def _open_standard(descriptor: int, mode: str) -> TextIO | None:
    try:
        return open(descriptor, mode, encoding="utf-8", errors="surrogateescape", closefd=False)
    except OSError:  # it is closed
        return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Let a test that hangs fail alone; waits in tests have no deadline but this.

    After a minute it is asked what a start of Python costs on this machine at that moment: a test
    may take as long as 10,000 of these, and the long form of one, or one on a GPU, ten times as
    long.
    """
    takes_long = item.get_closest_marker("long") or "gpu" in item.path.parts
    starts = 100_000 if takes_long else 10_000
    began = time.monotonic()

    def look(*_: object) -> None:
        asked = time.monotonic()
        subprocess.run([sys.executable, "-c", ""], check=False)
        allowed_s = starts * (time.monotonic() - asked)
        waited_s = time.monotonic() - began
        if waited_s > allowed_s:
            pytest.fail(f"hung for {waited_s:.0f} s; {allowed_s:.0f} s are allowed at this load")
        signal.setitimer(signal.ITIMER_REAL, min(allowed_s - waited_s, 60))

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        # As Python has it. A command that was called here has set it to its default, by which this
        # process would end as soon as a later test writes to a job that has gone.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


class Launcher:
    """The installed `gpulaunch`, run as by a user, but apart from the machine's table and settings.

    Attributes:
        environment: of every run; tests may change it.
        state: the state directory.
        is_executed: whether runs are starts of the script, and not forks of this process: for
            tests about its process, or about what Python finds as it starts.
    """

    script = str(SCRIPT)
    is_executed = False

    def __init__(self, home: Path) -> None:
        self.state = home / "state"
        self.state.mkdir()
        (home / "runtime").mkdir(mode=0o700)
        self.environment = {
            "PATH": f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "GPULAUNCH_STATE_DIR": str(self.state),
            "XDG_RUNTIME_DIR": str(home / "runtime"),
            "LANG": "C.UTF-8",
        }

    def run(self, *arguments: str | bytes, **options) -> subprocess.CompletedProcess[str]:
        """Run to the end; output as text, undecodable bytes as surrogates."""
        options = {"env": self.environment, "capture_output": True, **options}
        if options["capture_output"]:
            options |= {"text": True, "errors": "surrogateescape"}
        words = [self.script, *arguments]
        return subprocess.run(words, check=False, **self._forking(words, options))

    def start(self, *arguments: str | bytes, **options) -> subprocess.Popen[str]:
        """Start and return at once; output as text."""
        options = {
            "env": self.environment,
            "text": True,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        words = [self.script, *arguments]
        return subprocess.Popen(words, **self._forking(words, options))

    def call(self, function: Callable[[], int], **options) -> subprocess.Popen[str]:
        """Call a function in a fork of this process, which it ends with an exit status."""
        options = {
            "env": self.environment,
            "text": True,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            **options,
        }

        def run_here() -> None:
            status = 70
            try:
                _become([sys.executable], options["env"], ())
                status = function()
                sys.stdout.flush()
            finally:
                os._exit(status)

        options |= {"preexec_fn": run_here, "close_fds": False}
        return subprocess.Popen([sys.executable], **options)

    def _forking(self, words: list[str | bytes], options: dict) -> dict:
        """Return options of Popen with which a fork of this process runs `gpulaunch`.

        A start of Python and its imports are most of what a short test costs. What these would
        take from the environment is not to be had in a fork: then the script is executed, as
        are scripts that tests have written.
        """
        at_the_start = ("PYTHON", "LC_", "LD_PRELOAD")
        if (
            self.is_executed
            or self.script != str(SCRIPT)
            or any(name.startswith(at_the_start) for name in options["env"])
            or options.keys() & {"executable", "shell", "preexec_fn"}
        ):
            return options
        keep = options.pop("pass_fds", ())
        _import_all()

        def run_here() -> None:  # Popen has set up stdin, stdout, stderr and the directory
            try:
                from gpulaunch.__main__ import main

                _become(words, options["env"], keep)
                main()
            except SystemExit as end:
                for stream in filter(None, (sys.stdout, sys.stderr)):
                    stream.flush()
                os._exit(end.code or 0)
            finally:
                os._exit(70)

        return {**options, "preexec_fn": run_here, "close_fds": False}

    def records(self) -> list[str]:
        """Return the names of the records in the table, and of bells that no ticket has."""
        names = sorted(name for name in os.listdir(self.state) if name.startswith("gpulaunch."))
        queued = {name.rpartition(".")[2] for name in names if ".ticket." in name}
        return [name for name in names if ".bell." not in name or name[-12:] not in queued]


DGX = ("--topology", "dgx1-v100")
VGG = (*DGX, "--profile", "vgg16", "-n", "3")
SHOW = ("--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")


def complaint(line: str, hint: str | None = None) -> str:
    """Return what gpulaunch prints for an error."""
    return f"gpulaunch: error: {line}\n" + (f"gpulaunch: hint: {hint}\n" if hint else "")


class Held:
    """A job that has its GPUs and runs until it is told to end.

    Attributes:
        process: the launcher.
        gpus: CUDA_VISIBLE_DEVICES of the job.
        job_pid: the job's pid.
    """

    def __init__(self, launcher: Launcher, *options: str) -> None:
        script = 'echo "$CUDA_VISIBLE_DEVICES $$"; read line; exit 7'
        self._launcher = launcher
        self.process = launcher.start(*options, "--", "sh", "-c", script, stdin=subprocess.PIPE)
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.gpus, pid = line.split()
        self.job_pid = int(pid)

    def companion(self) -> int:
        """Return the pid of the process that keeps the lease if the launcher is killed."""
        return companion_of(self._launcher, self.process.pid)

    def kill_all(self) -> None:
        """Kill launcher, companion and job, so that nothing releases the lease."""
        pids = (self.companion(), self.process.pid, self.job_pid)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for pid in pids:
            wait_for_end(pid)

    def end(self) -> int:
        """Let the job end; the launcher's exit status."""
        self.process.communicate("\n")
        return self.process.returncode


@contextmanager
def held(launcher: Launcher, *options: str):
    """Run a job that holds its GPUs for the length of the block."""
    job = Held(launcher, *options)
    try:
        yield job
    finally:
        if job.process.poll() is None:
            job.end()
        job.process.stdout.close()
        job.process.stderr.close()


def some_of(steps: list[str], every: int, certain: Iterable[str] = ()) -> list[str]:
    """Return every n-th of some steps, the first, the last, and those that must be among them."""
    last = len(steps) - 1
    return [
        step for i, step in enumerate(steps) if i % every == 0 or i == last or step in set(certain)
    ]


def children(pid: int) -> set[int]:
    """Return the pids of a process's children."""
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def companion_of(launcher: Launcher, pid: int) -> int:
    """Return the pid of the process that looks after the lease of the launcher with this pid."""
    paths = (launcher.state / name for name in launcher.records() if ".lease." in name)
    (path,) = (path for path in paths if json.loads(path.read_text())["launcher"][0] == pid)
    (companion,) = (pid for pid in holders(path) if program_of(pid) == COMPANION)
    return companion


def until(holds: Callable[[], object]) -> None:
    """Return when something holds that no event tells of; asking takes half of the time at most."""
    asked = time.monotonic()
    while not holds():
        time.sleep(max(0.002, time.monotonic() - asked))
        asked = time.monotonic()


def wait_for_end(pid: int) -> None:
    """Block until a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    os.close(descriptor)


def holders(path: Path) -> set[int]:
    """Return the pids of processes that have a file open."""
    file = path.stat()
    found = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it may end meanwhile, or close the file
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), file):
                        found.add(int(pid))
    return found


def in_container(launcher: Launcher, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command where /run/lock is a container's, an overlay, and /dev/shm its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    base = launcher.state.parent / "overlay"
    for name in ("lower", "upper", "work"):
        (base / name).mkdir(parents=True)
    options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
    script = f"mount -t overlay overlay -o {options} /run/lock && chmod 1777 /run/lock && "
    script += f"mount -t tmpfs -o mode=1777 tmpfs /dev/shm && {command}"
    environment = {
        name: value for name, value in launcher.environment.items() if name != "GPULAUNCH_STATE_DIR"
    }
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """Return a launcher whose table is empty."""
    return Launcher(tmp_path)


@pytest.fixture(autouse=True)
def _no_real_table(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Keep all tests off this machine's own table, settings and leases."""
    # pytest makes a directory in a time that grows with their number: 3,000 take seconds
    home = Path("/proc/none")
    if "tmp_path" in request.fixturenames:
        home = request.getfixturevalue("tmp_path")
    for name in list(os.environ):
        if name.startswith(("GPULAUNCH_", "CUDA_")) and name != NO_SKIPS:
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(home / "no-table-here"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "no-settings-here"))


@pytest.fixture
def no_driver() -> None:
    """Skip the test on machines with an NVIDIA driver."""
    if any(
        Path(directory, "libnvidia-ml.so.1").exists()
        for directory in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
    ):
        pytest.skip("this machine has an NVIDIA driver")


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Start one Docker Engine for all tests, with CDI, --gpus and a runtime called nvidia."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    engine = Engine()
    try:
        engine.add_nvidia_runtime()
        engine.add_nvidia_hook()
        try:
            engine.start()
        except EngineError as problem:
            pytest.skip(str(problem))
        yield engine
    finally:
        engine.close()


@pytest.fixture
def docker(engine: Engine) -> Iterator[Engine]:
    """Return the engine as if new: what the last test made, set or stopped is undone."""
    if not engine.answers():  # the last test did more than could be undone
        engine.renew()
    settings, path, environment = dict(engine.settings), list(engine.path), dict(engine.environment)
    specification = engine.cdi.read_text()
    yield engine
    engine.environment = environment
    if not engine.running:
        engine.restart(live_restore=True)  # without, it would wait for containers to stop
    engine.remove_all()
    if engine.path != path:
        engine.path, engine.settings = path, settings
        engine.restart()
    elif engine.settings != settings:
        engine.reload(**settings)
    engine.remove_images()
    engine.forget_hook_calls()
    if engine.cdi.read_text() != specification:
        write_cdi_spec(engine.cdi)


@pytest.fixture(scope="session")
def slurm() -> Iterator[slurm_cluster.Slurm]:
    """Start one Slurm of two nodes for all tests."""
    reason = slurm_cluster.why_not()
    if reason:
        pytest.skip(reason)
    cluster = slurm_cluster.Slurm()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
