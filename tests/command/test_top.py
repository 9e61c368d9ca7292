"""top and the views of status, at terminals and without one."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest
from conftest import DGX, Launcher, held

pytest_plugins = ("fake_nvml",)

FOOT = r"q quit"


@contextmanager
def shell(launcher: Launcher, columns: int = 100) -> Iterator[pexpect.spawn]:
    """Yield an interactive shell at a terminal of its own."""
    environment = launcher.environment | {"TERM": "xterm", "PS1": "ready> "}
    child = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile", "--noediting", "-i"],
        env=environment,
        dimensions=(30, columns),
        encoding="utf-8",
        timeout=None,
    )
    child.expect_exact("ready> ")
    try:
        yield child
    finally:
        child.close(force=True)


def settings_of(child: pexpect.spawn) -> str:
    """Return the settings of the shell's terminal, as stty tells them."""
    child.sendline("stty -g")
    child.expect(r"[0-9a-f]+(:[0-9a-f]+)+")
    found = child.match[0]
    child.expect_exact("ready> ")
    return found


def pid_of_top(child: pexpect.spawn) -> int:
    """Return the process of the top that the shell runs."""
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    return int(children[-1])


# Without a terminal


def test_top_without_a_terminal(launcher: Launcher) -> None:
    """Without a terminal top prints its tables once and ends, as where no cursor can be moved.

    With stdin and stdout closed there is nothing to show, and that is no fault.
    """
    with held(launcher, *DGX, "-n", "2", "--name", "mine"):
        done = launcher.run("top", *DGX)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "dgx1-v100: 6 of 8 GPUs free: 1-2,4-7 (Tesla V100-SXM2-16GB)"
    assert sum(line.endswith("mine") for line in lines) == 2
    assert sum(line.endswith("free") for line in lines) == 6
    environment = launcher.environment | {"TERM": "dumb"}
    top = pexpect.spawn(launcher.script, ["top", *DGX], env=environment, timeout=None)
    top.expect_exact("8 of 8 GPUs free")
    top.expect(pexpect.EOF)
    line = f"exec gpulaunch top {' '.join(DGX)} <&- >&-"
    done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


# Views of status


def test_load_of_gpus(launcher: Launcher, dgx1_v100) -> None:
    """Each GPU tells its utilization, memory, power and temperature; null if it does not."""
    dgx1_v100.freeze(10)
    dgx1_v100.change(0, limit=300, temp=61)
    for what, value in (("active", 97), ("memactive", 40), ("power", 250.5), ("used_mib", 100)):
        dgx1_v100.script(0, what, value)
    gpus = json.loads(launcher.run("status", "--json").stdout)["gpus"]
    want = {
        "utilization_percentage": (97, None),
        "memory_utilization_percentage": (40, None),
        "memory_used_bytes": (100 << 20, 0),
        "memory_total_bytes": (16160 << 20, 16160 << 20),
        "power_w": (250.5, None),
        "power_limit_w": (300.0, None),
        "temperature_c": (61, None),
    }
    assert {key: (gpus[0][key], gpus[1][key]) for key in want} == want
    row = launcher.run("status", "--gpus").stdout.splitlines()[3]
    assert row.split() == ["0", "0", "97", "%", "0.1/16", "GiB", "250", "W", "61", "free"]


# At a terminal


def test_top_frees_a_job(launcher: Launcher) -> None:
    """A lease is shown on the next second; f asks, and y ends the selected job, nothing else does.

    Arrows select as j and k do, and escape selects none. A new size is drawn on anew.
    """
    with held(launcher, *DGX, "-n", "2", "--name", "doomed") as job, shell(launcher) as child:
        child.sendline(f"{launcher.script} top --topology dgx1-v100")
        child.expect(FOOT)
        child.send("f")  # without a job that is selected this does nothing
        with held(launcher, *DGX, "-n", "3"):
            child.expect_exact("3 of 8 GPUs free")
        child.send("j")
        child.expect("[0-9a-f]{12}, doomed, running")
        child.send("\x1b")
        child.expect(FOOT)
        child.send("\x1b[B")
        child.expect("[0-9a-f]{12}, doomed, running")
        child.setwinsize(24, 40)
        child.expect("q quit  j/k select a job")
        child.setwinsize(30, 100)
        child.send("f")
        child.expect_exact("? y/n")
        child.send("n\r")
        child.expect(FOOT)
        assert job.process.poll() is None
        child.send("f")
        child.expect_exact("? y/n")
        child.send("y\r")
        assert job.process.wait() != 0
        child.expect_exact("enter goes back")
        child.send("\r")
        child.expect_exact("8 of 8 GPUs free")
        child.send("q")
        child.expect_exact("ready> ")


@pytest.mark.parametrize(
    ("how", "status"), [("q", 0), ("\x03", 130), (signal.SIGTERM, 143), ("failure", 125)]
)
def test_the_terminal_is_given_back(launcher: Launcher, how, status: int) -> None:
    """However top ends or stops, the terminal has its settings again, and what was on it."""
    with shell(launcher) as child:
        before = settings_of(child)
        child.sendline(f"{launcher.script} top --topology dgx1-v100")
        child.expect(FOOT)
        if how == "q":  # Ctrl-Z gives the terminal back, too, and fg takes it again
            child.send("\x1a")
            child.expect_exact("Stopped")
            child.expect_exact("ready> ")
            assert settings_of(child) == before
            child.sendline("fg")
            child.expect(FOOT)
        if how == "failure":
            launcher.state.rmdir()
        elif isinstance(how, str):
            child.send(how)
        else:
            os.kill(pid_of_top(child), how)
        child.expect_exact("\x1b[?1049l")  # leaves the other screen
        child.expect_exact("ready> ")
        child.sendline("echo status=$?")
        child.expect(r"status=(\d+)")
        assert int(child.match[1]) == status
        child.expect_exact("ready> ")
        assert settings_of(child) == before
