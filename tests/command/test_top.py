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
from conftest import DGX, Launcher, complaint, held
from prometheus_client.openmetrics.parser import text_string_to_metric_families

pytest_plugins = ("fake_nvml",)

FOOT = r"q quit"
LIMIT_S = 30


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
        timeout=LIMIT_S,
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
    """Without a terminal top prints its tables once and ends."""
    with held(launcher, *DGX, "-n", "2", "--name", "mine"):
        done = launcher.run("top", *DGX)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "dgx1-v100: 6 of 8 GPUs free: 1-2,4-7 (Tesla V100-SXM2-16GB)"
    assert sum(line.endswith("mine") for line in lines) == 2
    assert sum(line.endswith("free") for line in lines) == 6


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_terminal_without_a_cursor(launcher: Launcher, term: str) -> None:
    """Where the cursor cannot be moved, top prints once."""
    environment = launcher.environment | {"TERM": term}
    options = {"env": environment, "encoding": "utf-8", "timeout": LIMIT_S}
    top = pexpect.spawn(launcher.script, ["top", *DGX], **options)
    top.expect_exact("8 of 8 GPUs free")
    top.expect(pexpect.EOF)
    top.close()
    assert top.exitstatus == 0


# Views of status


def test_views_of_status(launcher: Launcher) -> None:
    """--mine and --user NAME leave out the jobs of others; --gpus has a row for each GPU."""
    with held(launcher, *DGX, "-n", "2", "--name", "held"):
        shown = {
            words: launcher.run("status", *DGX, *words).stdout
            for words in ((), ("--mine",), ("--user", "nobody"), ("--gpus",), ("--gpus", "--mine"))
        }
        document = json.loads(launcher.run("status", *DGX, "--user", "nobody", "--json").stdout)
    assert [text.count("held") for text in shown.values()] == [1, 1, 0, 2, 2]
    assert [text.count("NUMA node") for text in shown.values()] == [0, 0, 0, 2, 1]
    assert (document["leases"], len(document["gpus"])) == ([], 8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mine", "--user", "root"), "--mine and --user do not go together"),
        (("--json", "--openmetrics"), "--gpus, --json and --openmetrics do not go together"),
        (("--gpus", "--json"), "--gpus, --json and --openmetrics do not go together"),
    ],
)
def test_views_that_contradict(launcher: Launcher, words: tuple[str, ...], message: str) -> None:
    """Views that exclude each other are refused."""
    done = launcher.run("status", *DGX, *words)
    assert (done.returncode, done.stderr) == (2, complaint(message))


def test_load_of_gpus(launcher: Launcher, dgx1_v100) -> None:
    """Each GPU tells its utilization, memory, power and temperature; null if it does not."""
    dgx1_v100.freeze(10)
    dgx1_v100.change(0, limit=300, temp=61)
    dgx1_v100.script(0, "active", 97)
    dgx1_v100.script(0, "memactive", 40)
    dgx1_v100.script(0, "power", 250.5)
    dgx1_v100.script(0, "used_mib", 100)
    gpus = json.loads(launcher.run("status", "--json").stdout)["gpus"]
    keys = [
        "utilization_percentage",
        "memory_utilization_percentage",
        "memory_used_bytes",
        "memory_total_bytes",
        "power_w",
        "power_limit_w",
        "temperature_c",
    ]
    assert [gpus[0][key] for key in keys] == [97, 40, 100 << 20, 16160 << 20, 250.5, 300.0, 61]
    assert [gpus[1][key] for key in keys] == [None, None, 0, 16160 << 20, None, None, None]
    row = launcher.run("status", "--gpus").stdout.splitlines()[4]
    assert row.split() == ["0", "97", "%", "0.1/16", "GiB", "250", "W", "61", "free"]


def test_openmetrics(launcher: Launcher, dgx1_v100) -> None:
    """--openmetrics prints what a parser of the format takes, with the load and the leases."""
    dgx1_v100.script(3, "active", 50)
    with held(launcher, "-n", "2", "--name", "it", "--time-limit", "1h"):
        text = launcher.run("status", "--openmetrics").stdout
    families = {one.name: one.samples for one in text_string_to_metric_families(text)}
    (use,) = families["gpulaunch_gpu_utilization_ratio"]
    assert (use.labels["gpu"], use.value) == ("3", 0.5)
    (lease,) = families["gpulaunch_lease_time_limit_seconds"]
    assert (lease.labels["job"], lease.value) == ("it", 3600)
    assert len(families["gpulaunch_gpu_lease"]) == 2


# At a terminal


def test_a_change_is_shown(launcher: Launcher) -> None:
    """A new lease is shown on the next second."""
    with shell(launcher) as child:
        child.sendline(f"{launcher.script} top --topology dgx1-v100")
        child.expect_exact("8 of 8 GPUs free")
        with held(launcher, *DGX, "-n", "3"):
            child.expect_exact("5 of 8 GPUs free")
        child.expect_exact("8 of 8 GPUs free")
        child.send("q")
        child.expect_exact("ready> ")


def test_top_frees_a_job(launcher: Launcher) -> None:
    """The key f asks, and y ends the selected job; any other key does not."""
    with held(launcher, *DGX, "-n", "2", "--name", "doomed") as job, shell(launcher) as child:
        child.sendline(f"{launcher.script} top --topology dgx1-v100")
        child.expect(FOOT)
        child.send("f")
        child.expect_exact("no job is selected")
        child.send("j")
        child.expect("doomed .[0-9a-f]{12}. of")
        child.send("f")
        child.expect_exact("? y/n")
        child.send("n")
        child.expect(FOOT)
        assert job.process.poll() is None
        child.send("f")
        child.expect_exact("? y/n")
        child.send("y")
        assert job.process.wait(LIMIT_S) != 0
        child.expect_exact("8 of 8 GPUs free")
        child.send("q")
        child.expect_exact("ready> ")


def test_keys(launcher: Launcher) -> None:
    """Arrows select, escape selects none, and a key without a meaning shows nothing."""
    with held(launcher, *DGX, "-n", "2", "--name", "job"), shell(launcher) as child:
        child.sendline(f"{launcher.script} top --topology dgx1-v100")
        child.expect(FOOT)
        for key, want in (
            ("\x1b[B", "job .[0-9a-f]{12}. of"),
            ("\x1b", FOOT),
            ("l", "no job is selected"),
            ("x", FOOT),
        ):
            child.send(key)
            child.expect(want)
        child.send("q")
        child.expect_exact("ready> ")


@pytest.mark.parametrize(
    ("how", "status"),
    [("q", 0), ("\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), ("failure", 125)],
)
def test_the_terminal_is_given_back(launcher: Launcher, how, status: int) -> None:
    """However top ends, the terminal has its settings again, and what was on it."""
    with shell(launcher) as child:
        before = settings_of(child)
        child.sendline(f"{launcher.script} top --topology dgx1-v100")
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


def test_stopped_and_continued(launcher: Launcher) -> None:
    """Ctrl-Z gives the terminal back, and fg takes it again."""
    with shell(launcher) as child:
        before = settings_of(child)
        child.sendline(f"{launcher.script} top --topology dgx1-v100")
        for _ in range(2):
            child.expect(FOOT)
            child.send("\x1a")
            child.expect_exact("Stopped")
            child.expect_exact("ready> ")
            assert settings_of(child) == before
            child.sendline("fg")
        child.expect(FOOT)
        child.send("q")
        child.expect_exact("ready> ")
        assert settings_of(child) == before


def test_another_size(launcher: Launcher) -> None:
    """A terminal that changes its size is drawn on anew within a second."""
    with held(launcher, *DGX, "-n", "2"), shell(launcher) as child:
        child.sendline(f"{launcher.script} top --topology dgx1-v100")
        child.expect_exact("j/k select")
        child.setwinsize(24, 40)
        child.expect_exact("q quit  j/k  space")
        child.send("q")
        child.expect_exact("ready> ")


@pytest.mark.parametrize("command", ["status", "top", "history"])
def test_closed_descriptors(launcher: Launcher, command: str) -> None:
    """With stdin and stdout closed there is nothing to show, and that is no fault."""
    line = f"exec {launcher.script} {command} --topology dgx1-v100 <&- >&-"
    done = subprocess.run(
        ["sh", "-c", line], env=launcher.environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
