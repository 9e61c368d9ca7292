"""The pytest plugin: real runs of pytest, mostly on a described machine with two GPUs."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import DGX, Launcher, held, until

TWO = ("--topology", "rtx-a6000-2")
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=short"]

CONFTEST = """
import os

def note(*words):
    fd = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
"""
BUSY = """
import pytest, time
from conftest import WORKER, note

@pytest.mark.gpus
@pytest.mark.parametrize("number", range(40))
def test(gpus, number):
    note("begin", WORKER, *gpus.gpus)
    time.sleep(0.01)
    note("end", WORKER, *gpus.gpus)
"""
STARTED_CUDA = """
def start_cuda():
    open("nvidia-uvm", "w")  # a stand-in for /dev/nvidia-uvm, which CUDA opens
    cuda.append(os.open("nvidia-uvm", os.O_RDONLY))
cuda = []
"""


class Outcome:
    """What a run of pytest said.

    Attributes:
        counts: numbers of tests by outcome.
        text: all output.
        log: words of each line that the tests noted.
    """

    def __init__(self, output: str, directory: Path) -> None:
        self.text = output
        words = re.findall(r"(\d+) (passed|failed|skipped|error)", output.splitlines()[-1])
        self.counts = {word: int(count) for count, word in words}
        log = directory / "log"
        self.log = [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def write(launcher: Launcher, tests: str, conftest: str = "") -> Path:
    directory = launcher.state.parent / "project"
    directory.mkdir()
    (directory / "conftest.py").write_text(CONFTEST + conftest)
    (directory / "test_it.py").write_text(tests)
    (directory / "pytest.ini").write_text("[pytest]\n")
    return directory


def start(launcher: Launcher, directory: Path, *options: str, **more) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PYTEST, *options],
        cwd=directory,
        env=launcher.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **more,
    )


def run(launcher: Launcher, tests: str, *options: str, conftest: str = "") -> Outcome:
    """Run pytest on a file of tests."""
    directory = write(launcher, tests, conftest)
    process = start(launcher, directory, *options, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # else its workers wait for GPUs for ever
        raise
    return Outcome(output, directory)


def run_on_two(launcher: Launcher, tests: str, *options: str, conftest: str = "") -> Outcome:
    return run(launcher, tests, "--gpus-topology", "rtx-a6000-2", *options, conftest=conftest)


def spread(outcome: Outcome) -> Counter[str]:
    """Return the tests of each worker, after checking that no GPU was in two tests at once."""
    busy: set[str] = set()
    for word, _, *gpus in outcome.log:
        if word == "begin":
            assert busy.isdisjoint(gpus)
            busy.update(gpus)
        else:
            busy.difference_update(gpus)
    return Counter(worker for word, worker, *_ in outcome.log if word == "begin")


AFTER_ALL = """
import pytest, time
from pathlib import Path
had = []

@pytest.hookimpl(tryfirst=True)  # before the lease
def pytest_runtest_setup(item):
    deadline = time.monotonic() + 60
    while had and len({line.split()[1] for line in open("log")}) < 4:
        assert time.monotonic() < deadline, "other workers have had no GPU"
        time.sleep(0.01)
    had.append(item)
"""


@pytest.mark.parametrize("options", [(), ("--gpus-fork",)], ids=["in-process", "forked"])
def test_nobody_starves(launcher: Launcher, options: tuple[str, ...]) -> None:
    """Four workers share two GPUs: no worker has a second test before all have had a first."""
    found = run_on_two(launcher, BUSY, "-n", "4", *options, conftest=AFTER_ALL)
    assert found.counts == {"passed": 40}, found.text
    workers = spread(found)
    print(workers)  # e.g. 11, 10, 10, 9
    assert workers.keys() == {"gw0", "gw1", "gw2", "gw3"}
    assert launcher.records() == []


def test_killed_worker(launcher: Launcher) -> None:
    """SIGKILL of a worker frees its GPUs, and the run goes on with a new one."""
    tests = (
        BUSY
        + """
@pytest.mark.gpus(2)
def test_killed():
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    found = run_on_two(launcher, tests, "-n", "2")
    assert found.counts == {"passed": 40, "failed": 1}, found.text
    assert spread(found).total() == 40
    assert launcher.run(*TWO, "-n", "2", "--", "true").returncode == 0


CUDA = """
import pytest, time
from conftest import WORKER, note, start_cuda

@pytest.mark.gpus
@pytest.mark.parametrize("number", range(12))
def test(gpus, number):
    note("begin", WORKER, *gpus.gpus)
    start_cuda()
    note("end", WORKER, *gpus.gpus)
"""


def test_cuda_keeps_the_lease(launcher: Launcher) -> None:
    """A worker in which CUDA was started keeps its GPU for its later tests."""
    found = run_on_two(launcher, CUDA, "-n", "2", conftest=STARTED_CUDA)
    assert found.counts == {"passed": 12}, found.text
    gpus = {(worker, gpu) for _, worker, gpu in found.log}
    assert len(gpus) == 2
    assert launcher.records() == []


def test_cuda_with_more_workers_than_gpus(launcher: Launcher) -> None:
    """Tests that wait for GPUs that other workers keep to the end fail, in place of a deadlock."""
    found = run_on_two(launcher, CUDA, "-n", "4", conftest=STARTED_CUDA)
    assert found.counts.keys() == {"passed", "error"}, found.text
    assert len(spread(found)) == 2
    assert "which keep their GPUs until the run ends (use fewer workers, or " in found.text


def test_cuda_in_children(launcher: Launcher) -> None:
    """With --gpus-fork, CUDA ends with each test, and four workers share two GPUs."""
    found = run_on_two(launcher, CUDA, "-n", "4", "--gpus-fork", conftest=STARTED_CUDA + AFTER_ALL)
    assert found.counts == {"passed": 12}, found.text
    assert len(spread(found)) == 4


def test_cuda_with_other_gpus(launcher: Launcher) -> None:
    """Where CUDA sees other GPUs than a test's lease, the test fails and does not run."""
    tests = """
import pytest
from conftest import start_cuda

def test_without_mark():
    start_cuda()

@pytest.mark.gpus(2)
def test_two():
    pass
"""
    found = run_on_two(launcher, tests, conftest=STARTED_CUDA)
    assert found.counts == {"passed": 1, "error": 1}
    assert "CUDA was started before the test, and sees other GPUs than <lease" in found.text


def test_more_gpus_than_cuda_sees(launcher: Launcher) -> None:
    """A test that asks for other GPUs than those that are kept fails and does not run."""
    tests = """
import pytest
from conftest import start_cuda

@pytest.mark.gpus
def test_one():
    start_cuda()

@pytest.mark.gpus(2)
def test_two():
    pass
"""
    found = run_on_two(launcher, tests, conftest=STARTED_CUDA)
    assert found.counts == {"passed": 1, "error": 1}
    assert re.search("CUDA was started under <lease .*: GPUs 0>, and sees no other", found.text)


MODEL = """
import os, pytest
from conftest import WORKER, note

@pytest.fixture(scope="SCOPE")
def model(gpus_factory):
    with gpus_factory(2) as lease:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
        note("begin", WORKER, lease.id)
        yield lease
        note("end", WORKER, lease.id)

@pytest.mark.gpus(2)
@pytest.mark.parametrize("number", range(3))
def test_marked(model, gpus, number):
    assert gpus.id == model.id == os.environ["GPULAUNCH_LEASE"]

@pytest.mark.parametrize("number", range(3))
def test_unmarked(model, number):
    assert os.environ["GPULAUNCH_LEASE"] == model.id
"""


@pytest.mark.parametrize("options", [(), ("-n", "2"), ("-n", "2", "--dist", "loadfile")])
@pytest.mark.parametrize("scope", ["session", "module", "class", "function"])
def test_a_fixture_of_any_scope_holds_gpus(
    launcher: Launcher, scope: str, options: tuple[str, ...]
) -> None:
    """A fixture of any scope holds GPUs for all tests that use it, also with workers that wait."""
    found = run_on_two(launcher, MODEL.replace("SCOPE", scope), *options)
    assert found.counts == {"passed": 6}, found.text
    begun = Counter(worker for what, worker, _ in found.log if what == "begin")
    most = 1 if scope in ("session", "module") else 6
    assert max(begun.values()) <= most
    ids = [lease for _, _, lease in found.log]
    assert ids[::2] == ids[1::2], "each ends before another one begins"
    assert launcher.records() == []


def test_a_fixture_lets_go_at_its_end(launcher: Launcher) -> None:
    """After the fixture's teardown tests have leases of their own, of any number of GPUs."""
    later = "@pytest.mark.gpus(1)\ndef test_later(gpus): assert gpus.gpus == (0,)\n"
    later += "def test_free(): assert 'GPULAUNCH_LEASE' not in os.environ\n"
    found = run_on_two(launcher, MODEL.replace("SCOPE", "function") + later)
    assert found.counts == {"passed": 8}, found.text


@pytest.mark.parametrize("fork", [(), ("--gpus-fork",)], ids=["", "fork"])
def test_other_gpus_than_a_fixture_holds(launcher: Launcher, fork: tuple[str, ...]) -> None:
    """A test whose mark asks for other GPUs than a fixture holds fails and says why."""
    tests = MODEL.replace("SCOPE", "module") + "@pytest.mark.gpus\ndef test(): pass\n"
    found = run_on_two(launcher, tests, *fork)
    assert found.counts == {"passed": 6, "error": 1}, found.text
    assert re.search("a fixture or test works under <lease .*: GPUs 0,1>, and sees", found.text)


def test_a_fixture_without_gpus(launcher: Launcher) -> None:
    """What the machine lacks for a fixture skips its tests."""
    tests = MODEL.replace("SCOPE", "module").replace("factory(2)", "factory(3)")
    found = run_on_two(launcher, tests, "-k", "unmarked")
    assert (found.counts, "rtx-a6000-2 has 2" in found.text) == ({"skipped": 3}, True), found.text


ONE = "import pytest\n@pytest.mark.gpus\ndef test(): pass\n"
TOO_MANY = ONE.replace("gpus", "gpus(3)")


@pytest.mark.parametrize(
    ("options", "want"), [((), "skipped"), (("--gpus-missing", "fail"), "error")]
)
@pytest.mark.usefixtures("no_driver")
def test_what_is_missing(launcher: Launcher, options: tuple[str, ...], want: str) -> None:
    """What the machine lacks skips a test, or fails it by choice, with gpulaunch's reason."""
    found = run(launcher, ONE, *options)
    assert found.counts == {want: 1}
    assert "no NVML library (libnvidia-ml.so.1) found" in found.text


@pytest.mark.parametrize("ini", ["", "gpus_missing = fail\n"])
def test_too_many(launcher: Launcher, ini: str) -> None:
    """More GPUs than the machine has skip a test, or fail it by the setting."""
    directory = write(launcher, TOO_MANY)
    (directory / "pytest.ini").write_text(f"[pytest]\ngpus_topology = rtx-a6000-2\n{ini}")
    found = Outcome(start(launcher, directory).communicate()[0], directory)
    assert found.counts == {"error" if ini else "skipped": 1}
    assert "3 GPUs requested: rtx-a6000-2 has 2" in found.text


@pytest.mark.parametrize(
    ("options", "want", "reason"),
    [
        (("--gpus-wait", "0"), "skipped", "1 GPU requested: 0 of 2 are free, 2 are leased"),
        (("--gpus-wait", "0", "--gpus-missing", "fail"), "error", "1 GPU requested"),
        (("--gpus-wait", "0.1s"), "skipped", "waited"),
    ],
)
def test_busy(launcher: Launcher, options: tuple[str, ...], want: str, reason: str) -> None:
    """Busy GPUs skip or fail a test at once, or after a time, by choice."""
    with held(launcher, *TWO, "-n", "2"):
        found = run_on_two(launcher, ONE, *options)
    assert found.counts == {want: 1}
    assert reason in found.text


def test_waiting(launcher: Launcher) -> None:
    """By default a test waits in the queue, under its own name."""
    directory = write(launcher, ONE)
    with held(launcher, *TWO, "-n", "2"):
        process = start(launcher, directory, "--gpus-topology", "rtx-a6000-2")
        until(lambda: any(".ticket." in name for name in launcher.records()))
        document = json.loads(launcher.run("status", *TWO, "--json").stdout)
    assert [ticket["name"] for ticket in document["queue"]] == ["test_it.py::test"]
    assert Outcome(process.communicate(timeout=60)[0], directory).counts == {"passed": 1}


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ("memry='8GiB'", "unknown key 'memry': nearest is 'memory'"),
        ("memory='lots'", "memory: 'lots' is no amount of memory such as 8GiB"),
        ("'x'", "gpus: 'x' is neither a number of GPUs nor 'all'"),
        ("1, 2", "it takes one number of GPUs, and the rest by name"),
        ("profile='vgg61'", "unknown profile 'vgg61': did you mean vgg16?"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--gpus-fork",)], ids=["in-process", "forked"])
def test_wrong_arguments(
    launcher: Launcher, arguments: str, want: str, options: tuple[str, ...]
) -> None:
    """Wrong arguments of the mark fail the test with one line, and never skip it."""
    found = run_on_two(launcher, ONE.replace("gpus", f"gpus({arguments})"), *options)
    assert found.counts == {"error": 1}
    line = f"@pytest.mark.gpus: .*{re.escape(want)}"
    assert len(re.findall(f"^{line}", found.text, re.MULTILINE)) == 1, found.text
    assert "Traceback" not in found.text


def test_environment(launcher: Launcher) -> None:
    """The lease's variables are there for fixtures and test, and gone in the next test."""
    tests = """
import os, pytest

@pytest.fixture
def early():
    return os.environ["CUDA_VISIBLE_DEVICES"]

@pytest.mark.gpus(2, memory="8GiB")
def test_two(early, gpus):
    assert early == os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert (gpus.gpus, os.environ["GPULAUNCH_LEASE"]) == ((0, 1), gpus.id)

@pytest.mark.gpus
class TestThese:
    def test_one(self):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"

@pytest.mark.parametrize("gpus", ["mine"])
def test_other_argument(gpus):
    assert gpus == "mine"

@pytest.mark.xfail
def test_fixture_alone(gpus):
    pass

@pytest.mark.skip
@pytest.mark.gpus("wrong")
def test_skipped():
    pass

def test_none():
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert "GPULAUNCH_LEASE" not in os.environ
"""
    found = run_on_two(launcher, tests)
    assert found.counts == {"passed": 4, "skipped": 1}, found.text
    assert "1 xfailed" in found.text


def test_unused(launcher: Launcher) -> None:
    """A run without the mark imports the plugin's own file alone, and takes no lease."""
    tests = """
import sys

def test():
    names = {name for name in sys.modules if name.split(".")[0] == "gpulaunch"}
    assert names == {"gpulaunch", "gpulaunch.pytest_plugin", "gpulaunch.pytest_plugin.plugin"}
"""
    found = run(launcher, tests, "--strict-markers", "-W", "error")
    assert found.counts == {"passed": 1}, found.text
    assert "gpulaunch:" not in found.text
    assert launcher.records() == []


def test_inside_a_lease(launcher: Launcher) -> None:
    """Inside a lease, the tests of all workers take their GPUs from it."""
    directory = write(launcher, BUSY)
    found = launcher.run(*DGX, "-n", "2", "--only", "5,6", "--", *PYTEST, "-n", "4", cwd=directory)
    outcome = Outcome(found.stdout, directory)
    assert outcome.counts == {"passed": 40}, found.stdout
    spread(outcome)
    assert {gpu for _, _, *gpus in outcome.log for gpu in gpus} == {"5", "6"}


HANGING = """
import pytest, time
from conftest import note

@pytest.mark.gpus(2)
def test():
    note("begins")
    time.sleep(600)
"""


@pytest.mark.parametrize("options", [(), ("--gpus-fork",), ("-n", "1")])
def test_ctrl_c(launcher: Launcher, options: tuple[str, ...]) -> None:
    """Ctrl-C at a run of tests frees their GPUs."""
    directory = write(launcher, HANGING)
    topology = ("--gpus-topology", "rtx-a6000-2")
    process = start(launcher, directory, *topology, *options, start_new_session=True)
    until((directory / "log").exists)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert launcher.run(*TWO, "-n", "2", "--", "true").returncode == 0


def test_killed_child(launcher: Launcher) -> None:
    """With --gpus-fork, a test whose process is killed fails, and the next ones run."""
    tests = """
import os, pytest, signal

@pytest.mark.gpus(2)
@pytest.mark.parametrize("number", range(2))
def test(number):
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    found = run_on_two(launcher, tests, "--gpus-fork")
    assert found.counts == {"error": 1, "passed": 1}
    assert "the process of this test was ended by SIGKILL" in found.text
    assert launcher.records() == []


def test_fixtures_of_children(launcher: Launcher) -> None:
    """With --gpus-fork, each process tears down the fixtures that it has set up, and no others."""
    tests = """
import os, pytest
from conftest import note

@pytest.fixture(scope="module")
def early():
    pid = os.getpid()
    yield pid
    note("early", pid == os.getpid())

@pytest.fixture(scope="module")
def late():
    pid = os.getpid()
    yield pid
    note("late", pid == os.getpid())

def test_before(early):
    pass

@pytest.mark.gpus
@pytest.mark.parametrize("number", range(2))
def test(early, late, number):
    assert early == os.getppid()
    assert late == os.getpid()

@pytest.mark.gpus
@pytest.mark.xfail
def test_after(early):
    assert 0
"""
    found = run_on_two(launcher, tests, "--gpus-fork")
    assert found.counts == {"passed": 3}, found.text
    assert "XFAIL test_it.py::test_after" in found.text
    assert found.log == [["late", "True"], ["late", "True"], ["early", "True"]]
