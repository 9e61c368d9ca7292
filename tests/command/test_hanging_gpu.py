"""A GPU whose driver hangs: who waits for it says so, and what only looks goes on without it."""

import json
import os
import signal
import threading
from pathlib import Path

import pexpect
import pytest
from conftest import Launcher, children, wait_for_end
from fake_nvml import FakeNvml

from gpulaunch.machine import driver_calls

pytest_plugins = ("fake_nvml",)

HANGS_S = 100_000
COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"


def behind(launcher: Launcher, fake: FakeNvml, function: str, seconds: int = HANGS_S) -> dict:
    """Return the environment of a machine of its own whose GPU 2 takes long in a function."""
    home = Path(launcher.environment["HOME"], f"behind {function} {seconds}")
    home.mkdir(mode=0o700)
    text = Path(fake.environment["FAKE_NVML_FILE"]).read_text()
    lines = (f"slow {function}{version} 2 {seconds}\n" for version in ("", "_v2"))
    (home / "nvml.txt").write_text("".join([text, *lines]))
    own = {"FAKE_NVML_FILE": str(home / "nvml.txt"), "XDG_RUNTIME_DIR": str(home)}
    return launcher.environment | own


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say after 1 s what is waited for, and leave out a GPU after 2 s."""
    monkeypatch.setattr(driver_calls, "PATIENCE_S", 1)
    monkeypatch.setattr(driver_calls, "_LEAVE_S", 2)


def waits_for(function: str) -> str:
    """Return the line about a call of GPU 2 that hangs."""
    return f"gpulaunch: GPU 2 has not answered {function} for 1 s; waiting for it\n"


def left_out(function: str) -> str:
    """Return why GPU 2 is left out."""
    return f"GPU 2 is left out: it has not answered {function} for 2 s"


def test_launch_says_what_it_waits_for(launcher: Launcher, dgx1_v100: FakeNvml) -> None:
    """A launch that a GPU keeps waiting names the GPU and the call that has not returned.

    A call that is only slow costs one line, and the GPU is granted as any other.
    """
    hangs, slow = (behind(launcher, dgx1_v100, COMPUTE, seconds) for seconds in (HANGS_S, 3))
    lines = (("-n", "1", "--only", "0", "--", "true"), ("--dry-run", "--", "true"))
    waiting = [launcher.start(*line, env=hangs) for line in lines]
    run = launcher.run("--only", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", env=slow)
    assert (run.returncode, run.stdout) == (0, "2\n")
    assert set(run.stderr.splitlines(keepends=True)) == {waits_for(COMPUTE)}
    for launch in waiting:
        assert launch.stderr.readline() == waits_for(COMPUTE)
        assert launch.poll() is None
        launch.kill()
        launch.communicate()


def test_what_only_looks_goes_on(launcher: Launcher, dgx1_v100: FakeNvml) -> None:
    """Whichever call about a GPU hangs, status, top and doctor name it and show all other GPUs."""
    called = ("HandleByIndex", "MigMode", "FieldValues", "ComputeRunningProcesses_v3")
    functions = [f"nvmlDeviceGet{name}" for name in called]
    looking = [
        launcher.start("status", "--json", env=behind(launcher, dgx1_v100, function))
        for function in functions
    ]
    pci = behind(launcher, dgx1_v100, "nvmlDeviceGetPciInfo_v3")
    doctors = [launcher.start("doctor", "--json", *more, env=pci) for more in ((), ("--health",))]
    options = {"env": launcher.environment | {"TERM": "xterm"}, "dimensions": (30, 150)}
    top = pexpect.spawn(launcher.script, ["top"], encoding="utf-8", timeout=None, **options)
    top.expect_exact("q quit")
    dgx1_v100.slow(COMPUTE, HANGS_S, gpu=2)
    for function, run in zip(functions, looking, strict=True):
        printed, said = run.communicate()
        assert said == f"{waits_for(function)}gpulaunch: warning: {left_out(function)}\n"
        assert run.returncode == 0
        free = [gpu["index"] for gpu in json.loads(printed)["gpus"] if gpu["free"]]
        assert free == [0, 1, 3, 4, 5, 6, 7]
    for run in doctors:
        findings = json.loads(run.communicate()[0])["findings"]
        problems = [one["text"] for one in findings if one["state"] == "problem"]
        assert left_out("nvmlDeviceGetPciInfo") in problems
        assert run.returncode == 1
    top.expect_exact("it does not answer")
    top.send("q")
    top.expect(pexpect.EOF)
    top.close()
    assert (top.exitstatus, top.signalstatus) == (0, None)


def test_process_left_behind_holds_nothing(launcher: Launcher, dgx1_v100: FakeNvml) -> None:
    """The process that may be stuck in the driver has none of the output and no terminal.

    So whoever reads the output sees its end, even if nothing can kill that process. It ends with
    the command where the kernel can end it.
    """
    dgx1_v100.slow(COMPUTE, HANGS_S, gpu=2)
    run = launcher.start("status")
    assert run.stderr.readline() == waits_for(COMPUTE)
    (asking,) = children(run.pid)
    outputs = {os.fstat(end.fileno()).st_ino for end in (run.stdout, run.stderr)}
    held = {os.stat(path).st_ino for path in Path(f"/proc/{asking}/fd").iterdir()}
    assert (held & outputs, os.getsid(asking)) == (set(), asking)
    run.send_signal(signal.SIGINT)
    run.communicate()
    assert run.returncode == -signal.SIGINT
    wait_for_end(asking)


@pytest.mark.usefixtures("no_driver")
def test_the_asking_process_may_be_killed() -> None:
    """Somebody may kill the process that asks, or its thread may end: another one answers."""
    driver, answers = driver_calls.DriverApart("gpulaunch.machine.nvidia.driver"), []
    for _ in range(20):
        thread = threading.Thread(target=lambda: answers.append(driver.is_present()))
        thread.start()
        thread.join()
    before = children(os.getpid())
    answers.append(driver.is_present())
    for asking in children(os.getpid()) - before:  # and perhaps a child of the last thread
        os.kill(asking, signal.SIGKILL)
    answers.append(driver.is_present())
    assert answers == [False] * 22
