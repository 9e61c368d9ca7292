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
from conftest import Launcher, held, until

TWO = ("--topology", "rtx-a6000-2")
ON_TWO = "addopts = --gpus-topology=rtx-a6000-2"
OPTIONS = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-rA", "--tb=short"]

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
@pytest.mark.parametrize("number", range(8))
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


def write(launcher: Launcher, tests: str, conftest: str = "", ini: str = ON_TWO) -> Path:
    directory = launcher.state.parent / "project"
    directory.mkdir()
    (directory / "conftest.py").write_text(CONFTEST + conftest)
    (directory / "test_it.py").write_text(tests)
    (directory / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    return directory


def start(launcher: Launcher, directory: Path, *options: str) -> subprocess.Popen[str]:
    """Start pytest in a fork of this process, and so without what importing pytest costs."""
    return launcher.call(
        lambda: pytest.main([*OPTIONS, *options]), cwd=directory, start_new_session=True
    )


def run(
    launcher: Launcher, tests: str, *options: str, conftest: str = "", ini: str = ON_TWO
) -> Outcome:
    """Run pytest on a file of tests, on a described machine with two GPUs."""
    directory = write(launcher, tests, conftest, ini)
    process = start(launcher, directory, *options)
    try:
        output, _ = process.communicate()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # else its workers wait for GPUs for ever
    return Outcome(output, directory)


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
    while had and len({line.split()[1] for line in open("log")}) < 3:
        time.sleep(0.01)
    had.append(item)
"""


CUDA = BUSY.replace("time.sleep(0.01)", "start_cuda()").replace("note", "note, start_cuda", 1)


@pytest.mark.parametrize(("tests", "options"), [(BUSY, ()), (CUDA, ("--gpus-fork",))])
def test_nobody_starves(launcher: Launcher, tests: str, options: tuple[str, ...]) -> None:
    """Three workers share two GPUs: no worker has a second test before all have had a first.

    With --gpus-fork that is so of tests that start CUDA, too, which ends with each of them.
    """
    found = run(launcher, tests, "-n", "3", *options, conftest=STARTED_CUDA + AFTER_ALL)
    assert found.counts == {"passed": 8}, found.text
    assert spread(found).keys() == {"gw0", "gw1", "gw2"}


def test_cuda_with_more_workers_than_gpus(launcher: Launcher) -> None:
    """A worker in which CUDA was started keeps its GPU; tests of others fail, and do not wait."""
    found = run(launcher, CUDA, "-n", "3", conftest=STARTED_CUDA)
    assert found.counts.keys() == {"passed", "error"}, found.text
    assert len(spread(found)) == 2
    assert len({(worker, gpu) for _, worker, gpu in found.log}) == 2
    assert "which keep their GPUs until the run ends (use fewer workers, or " in found.text
    assert launcher.records() == []


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
OTHERS = "@pytest.mark.gpus\ndef test_others(): pass\n"
LATER = OTHERS + "def test_free(): assert 'GPULAUNCH_LEASE' not in os.environ\n"


@pytest.mark.parametrize(
    ("scope", "more", "options", "want", "leases"),
    [
        ("session", "", ("-n", "2"), {"passed": 6}, 2),
        ("module", OTHERS, ("--gpus-fork",), {"passed": 6, "error": 1}, 6),
        ("function", LATER, (), {"passed": 8}, 6),
    ],
)
def test_a_fixture_holds_gpus(
    launcher: Launcher, scope: str, more: str, options: tuple, want: dict[str, int], leases: int
) -> None:
    """A fixture of any scope holds GPUs for all tests that use it, and lets go at its end.

    Meanwhile a test whose mark asks for other GPUs fails, and says why.
    """
    found = run(launcher, MODEL.replace("SCOPE", scope) + more, *options)
    assert found.counts == want, found.text
    why = re.search("a fixture or test works under <lease .*: GPUs 0,1>, and sees", found.text)
    assert bool(why) == ("error" in want)
    ids = [lease for _, _, lease in found.log]
    assert ids[::2] == ids[1::2], "each ends before another one begins"
    assert len(set(ids)) <= leases
    assert launcher.records() == []


ONE = "import pytest\n@pytest.mark.gpus\ndef test(): pass\n"
WITHOUT = MODEL.replace("SCOPE", "module").replace("gpus_factory(2)", "gpus_factory(3)")


MISSING = [
    (ONE, "", "", {"skipped": 1}, "no NVML library (libnvidia-ml.so.1)"),
    (WITHOUT, ON_TWO, "-k unmarked", {"skipped": 3}, "rtx-a6000-2 has 2"),
    (ONE, f"{ON_TWO} --gpus-missing=fail", "--gpus-wait 0.1s", {"error": 1}, "waited"),
    (ONE, ON_TWO, "--gpus-wait 0", {"skipped": 1}, "0 of 2 are free, 2 are leased"),
]


@pytest.mark.parametrize(("tests", "ini", "options", "want", "reason"), MISSING)
@pytest.mark.usefixtures("no_driver")
def test_what_is_missing(
    launcher: Launcher, tests: str, ini: str, options: str, want: dict[str, int], reason: str
) -> None:
    """What the machine lacks, or has no time for, skips a test, or fails it by choice.

    It says gpulaunch's reason.
    """
    with held(launcher, *TWO, "-n", "2"):
        found = run(launcher, tests, *options.split(), ini=ini)
    assert (found.counts, reason in found.text) == (want, True), found.text


def test_waiting(launcher: Launcher) -> None:
    """By default a test waits in the queue, under its own name."""
    directory = write(launcher, ONE)
    with held(launcher, *TWO, "-n", "2"):
        process = start(launcher, directory)
        until(lambda: any(".ticket." in name for name in launcher.records()))
        document = json.loads(launcher.run("status", *TWO, "--json").stdout)
    assert [ticket["name"] for ticket in document["queue"]] == ["test_it.py::test"]
    assert Outcome(process.communicate()[0], directory).counts == {"passed": 1}


WRONG = {
    "memry='8GiB'": "unknown key 'memry': nearest is 'memory'",
    "memory='lots'": "memory: 'lots' is no amount of memory such as 8GiB",
    "1, 2": "it takes one number of GPUs, and the rest by name",
    "profile='vgg61'": "unknown profile 'vgg61': did you mean vgg16?",
}


@pytest.mark.parametrize("options", [(), ("--gpus-fork",)], ids=["in-process", "forked"])
def test_wrong_arguments(launcher: Launcher, options: tuple[str, ...]) -> None:
    """Wrong arguments of the mark fail the test with one line, and never skip it."""
    tests = [f"@pytest.mark.gpus({one})\ndef test_{n}(): pass\n" for n, one in enumerate(WRONG)]
    found = run(launcher, "import pytest\n" + "".join(tests), *options)
    assert found.counts == {"error": len(WRONG)}
    for want in WRONG.values():
        line = f"^@pytest.mark.gpus: .*{re.escape(want)}"
        assert len(re.findall(line, found.text, re.MULTILINE)) == 1, found.text
    assert "Traceback" not in found.text


def test_environment(launcher: Launcher) -> None:
    """The lease's variables are there for fixtures and test, and gone in the next test.

    Where CUDA sees other GPUs than a test's lease, the test fails and does not run.
    """
    tests = """
import os, pytest
from conftest import start_cuda

@pytest.fixture
def early():
    return os.environ["CUDA_VISIBLE_DEVICES"]

@pytest.mark.gpus(2, memory="8GiB")
def test_two(early, gpus):
    assert early == os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert (gpus.gpus, os.environ["GPULAUNCH_LEASE"]) == ((0, 1), gpus.id)

@pytest.mark.parametrize("gpus", ["mine"])
def test_other_argument(gpus):
    assert gpus == "mine"

@pytest.mark.skip
@pytest.mark.gpus("wrong")
def test_skipped():
    pass

def test_none():
    assert not {"CUDA_VISIBLE_DEVICES", "GPULAUNCH_LEASE"} & os.environ.keys()
    start_cuda()

@pytest.mark.gpus(2)
def test_too_late():
    pass
"""
    found = run(launcher, tests, conftest=STARTED_CUDA)
    assert found.counts == {"passed": 3, "skipped": 1, "error": 1}, found.text
    assert "CUDA was started before the test, and sees other GPUs than <lease" in found.text


def test_unused(launcher: Launcher) -> None:
    """A run without the mark imports the plugin's own file alone, and takes no lease."""
    tests = """
import sys

def test():
    names = {name for name in sys.modules if name.split(".")[0] == "gpulaunch"}
    assert names == {"gpulaunch", "gpulaunch.pytest_plugin"}
"""
    directory = write(launcher, tests)
    command = [sys.executable, "-m", "pytest", *OPTIONS, "--strict-markers", "-W", "error"]
    done = subprocess.run(
        command, cwd=directory, env=launcher.environment, capture_output=True, text=True, check=True
    )
    assert Outcome(done.stdout, directory).counts == {"passed": 1}
    assert "gpulaunch:" not in done.stdout


HANGING = """
import pytest, time
from conftest import note

@pytest.mark.gpus(2)
def test():
    note("begins")
    time.sleep(600)
"""


@pytest.mark.parametrize("options", [("--gpus-fork",), ("-n", "1")], ids=" ".join)
def test_ctrl_c(launcher: Launcher, options: tuple[str, ...]) -> None:
    """Ctrl-C at a run of tests frees their GPUs."""
    directory = write(launcher, HANGING)
    process = start(launcher, directory, *options)
    until((directory / "log").exists)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate()
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert launcher.run(*TWO, "-n", "2", "--", "true").returncode == 0


def test_children(launcher: Launcher) -> None:
    """With --gpus-fork, each process tears down the fixtures that it has set up, and no others.

    A test whose process is killed fails, and the next ones run.
    """
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

@pytest.mark.gpus(2)
def test_killed():
    os.kill(os.getpid(), 9)

@pytest.mark.gpus
def test_after(early, late):
    assert early == os.getppid()
    assert late == os.getpid()
"""
    found = run(launcher, tests, "--gpus-fork")
    assert found.counts == {"passed": 2, "error": 1}, found.text
    assert "the process of this test was ended by SIGKILL" in found.text
    assert found.log == [["late", "True"], ["early", "True"]]
