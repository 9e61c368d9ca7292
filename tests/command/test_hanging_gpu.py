"""A GPU whose driver hangs: who waits for it says so, and what only looks goes on without it."""

import json
import os
import signal
import threading
from pathlib import Path

import pexpect
import pytest
from conftest import Launcher, children, wait_for_end

from gpulaunch.machine.driver_apart import DriverApart

pytest_plugins = ("fake_nvml",)

HANGS_S = 100_000
COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"


def waits_for(function: str) -> str:
    """Return the line about a call of GPU 2 that hangs."""
    return f"gpulaunch: GPU 2 has not answered {function} for 3 s; waiting for it\n"


def left_out(function: str) -> str:
    """Return why GPU 2 is left out."""
    return f"GPU 2 is left out: it has not answered {function} for 5 s"


@pytest.mark.parametrize(
    "arguments", [("-n", "1", "--only", "0", "--", "true"), ("--dry-run", "--", "true")]
)
def test_launch_says_what_it_waits_for(launcher: Launcher, dgx1_v100, arguments) -> None:
    """A launch that a GPU keeps waiting names the GPU and the call that has not returned."""
    dgx1_v100.slow(COMPUTE, HANGS_S, gpu=2)
    run = launcher.start(*arguments)
    try:
        assert run.stderr.readline() == waits_for(COMPUTE)
        assert run.poll() is None
    finally:
        run.kill()
        run.communicate()


def test_launch_goes_on_after_a_slow_call(launcher: Launcher, dgx1_v100) -> None:
    """A call that is only slow costs one line, and the GPU is granted as any other."""
    dgx1_v100.slow(COMPUTE, 5, gpu=2)
    run = launcher.run("--only", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (run.returncode, run.stdout) == (0, "2\n")
    assert set(run.stderr.splitlines(keepends=True)) == {waits_for(COMPUTE)}


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetFieldValues",
        COMPUTE,
    ],
)
def test_status_goes_on_without_a_gpu_that_hangs(
    launcher: Launcher, dgx1_v100, function: str
) -> None:
    """Whichever call about a GPU hangs, status names it, and shows all other GPUs."""
    dgx1_v100.slow(function, HANGS_S, gpu=2)
    run = launcher.run("status", "--json")
    named = run.stderr.split()[6]  # nvidia-ml-py's name has no version at its end
    want = f"{waits_for(named)}gpulaunch: warning: {left_out(named)}\n"
    assert (run.stderr, function.startswith(named)) == (want, True)
    assert run.returncode == 0
    gpus = json.loads(run.stdout)["gpus"]
    assert [gpu["index"] for gpu in gpus if gpu["free"]] == [0, 1, 3, 4, 5, 6, 7]


def test_doctor_goes_on_without_a_gpu_that_hangs(launcher: Launcher, dgx1_v100) -> None:
    """A GPU that hangs is a problem that doctor reports, with the call, among all other results."""
    dgx1_v100.slow("nvmlDeviceGetPciInfo_v3", HANGS_S, gpu=2)
    for options in ((), ("--health",)):
        run = launcher.run("doctor", "--json", *options)
        findings = json.loads(run.stdout)["findings"]
        problems = [one["text"] for one in findings if one["state"] == "problem"]
        assert left_out("nvmlDeviceGetPciInfo") in problems
        assert run.returncode == 1


def test_top_goes_on_without_a_gpu_that_hangs_later(launcher: Launcher, dgx1_v100) -> None:
    """A GPU that hangs while top is on the screen is said not to answer, and q still ends it."""
    environment = launcher.environment | {"TERM": "xterm"}
    top = pexpect.spawn(
        launcher.script,
        ["top"],
        env=environment,
        dimensions=(30, 150),
        encoding="utf-8",
        timeout=60,
    )
    top.expect_exact("q quit")
    dgx1_v100.slow(COMPUTE, HANGS_S, gpu=2)
    top.expect_exact("it does not answer")
    top.send("q")
    top.expect(pexpect.EOF)
    top.close()
    assert (top.exitstatus, top.signalstatus) == (0, None)


def test_process_left_behind_holds_nothing(launcher: Launcher, dgx1_v100) -> None:
    """The process that may be stuck in the driver has none of the output and no terminal.

    So whoever reads the output sees its end, even if nothing can kill that process. It ends with
    the command where the kernel can end it.
    """
    dgx1_v100.slow(COMPUTE, HANGS_S, gpu=2)
    run = launcher.start("status")
    try:
        assert run.stderr.readline() == waits_for(COMPUTE)
        (asking,) = children(run.pid)
        outputs = {os.fstat(end.fileno()).st_ino for end in (run.stdout, run.stderr)}
        held = {os.stat(path).st_ino for path in Path(f"/proc/{asking}/fd").iterdir()}
        assert (held & outputs, os.getsid(asking)) == (set(), asking)
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate()
    assert run.returncode == -signal.SIGINT
    wait_for_end(asking)


def test_the_asking_process_may_be_killed(no_driver: None) -> None:  # noqa: ARG001
    """Somebody may kill the process that asks, or its thread may end: another one answers."""
    driver, answers = DriverApart("gpulaunch.machine.nvidia.driver"), []
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
