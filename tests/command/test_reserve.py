"""gpulaunch reserve: GPUs for a shell, a notebook, the steps of a CI job."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DGX, SHOW, Launcher, complaint, held, until, wait_for_end
from fake_nvml import FakeNvml

from gpulaunch.process.system import parse_time

pytest_plugins = ("fake_nvml",)

RESERVE = ("reserve", *DGX, "-n", "2", "--for", "1h")
KEEP = (*RESERVE, "--keep")


@pytest.fixture(autouse=True)
def _nothing_stays(launcher: Launcher) -> Iterator[None]:
    """End what a test reserves."""
    yield
    for machine in (DGX, ()):
        launcher.run("free", "--mine", *machine)


class Shell:
    """A bash that leads a session of its own, as after a login."""

    def __init__(self, launcher: Launcher) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            env=launcher.environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, line: str) -> str:
        """Run a line in it; return what it prints."""
        self._process.stdin.write(f"{line}\necho over\n")
        self._process.stdin.flush()
        lines = []
        while (said := self._process.stdout.readline()) != "over\n":
            assert said, lines
            lines.append(said)
        return "".join(lines)

    def log_out(self) -> None:
        """End it."""
        self._process.communicate()


@pytest.fixture
def shell(launcher: Launcher) -> Iterator[Shell]:
    """Return a shell that ends with the test."""
    opened = Shell(launcher)
    yield opened
    opened.log_out()


def leases(launcher: Launcher) -> list[dict]:
    """Return the leases in `gpulaunch status`."""
    return json.loads(launcher.run("status", *DGX, "--json").stdout)["leases"]


def past(launcher: Launcher) -> list[dict]:
    """Return the lines of the history."""
    directory = Path(launcher.environment["HOME"]) / ".local/state/gpulaunch/history"
    rows = [row for path in directory.iterdir() for row in path.read_text().splitlines()]
    return [json.loads(row) for row in rows]


def test_a_shell_takes_what_is_printed(launcher: Launcher, shell: Shell) -> None:
    """After eval a shell has the variables of a job; a launch inside uses exactly these GPUs."""
    said = shell.run(f'eval "$(gpulaunch {" ".join(RESERVE)} --name nb)"')
    (lease,) = leases(launcher)
    gpus = ",".join(map(str, lease["gpus"]))
    assert said.startswith(f"gpulaunch: info: GPUs {gpus} of dgx1-v100 are held until ")
    assert said.endswith("'gpulaunch free nb' or the end of this session frees them earlier\n")
    assert (lease["name"], lease["command"]) == ("nb", ["reserve", "1h"])
    variables = shell.run("env | grep -E '^(CUDA|NVIDIA|GPULAUNCH_[GL])' | sort").splitlines()
    assert variables == [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        f"CUDA_VISIBLE_DEVICES={gpus}",
        "GPULAUNCH_GPU_COUNT=2",
        f"GPULAUNCH_LEASE={lease['id']}",
        f"NVIDIA_VISIBLE_DEVICES={','.join(lease['uuids'])}",
    ]
    assert shell.run("gpulaunch -n all -- sh -c 'echo $CUDA_VISIBLE_DEVICES'") == f"{gpus}\n"
    assert shell.run("gpulaunch -n 3 -- true; echo $?") == (
        complaint(f"3 GPUs requested: lease {lease['id']} has 2") + "2\n"
    )


def test_a_shell_after_its_reservation(launcher: Launcher, shell: Shell) -> None:
    """What a lease that is over has set is no wish, and a warning names it; a user's own wish is.

    The same holds for a reservation from such a shell, and for Python.
    """
    shell.run(f'eval "$(gpulaunch {" ".join(RESERVE)} -q)"')
    (lease,) = leases(launcher)
    shell.run("gpulaunch free $GPULAUNCH_LEASE")
    over = f"GPULAUNCH_LEASE={lease['id']} is not a live lease, so it is ignored: unset "
    ours = "GPULAUNCH_LEASE GPULAUNCH_GPU_COUNT"
    warning = f"{over}{ours} CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES\n"
    line = f"gpulaunch {' '.join(DGX)} -n 3"
    assert shell.run(f"{line} {shlex.join(SHOW)}") == f"gpulaunch: warning: {warning}0,2,3\n"
    assert shell.run(f"CUDA_VISIBLE_DEVICES=5 {line} -- true") == (
        f"gpulaunch: warning: {over}{ours}\n"
        + complaint("3 GPUs requested: 1 of dgx1-v100's 8 satisfy CUDA_VISIBLE_DEVICES=5")
    )
    python = "import gpulaunch; print(*gpulaunch.allocate(3, topology='dgx1-v100').gpus)"
    assert shell.run(f'{sys.executable} -c "{python}"') == f"{warning}0 2 3\n"
    again = f"gpulaunch reserve {' '.join(DGX)} -n 3 --for 1h -q"
    assert shell.run(f"{again} | grep CUDA_V") == "export CUDA_VISIBLE_DEVICES=0,2,3\n"


@pytest.mark.parametrize(
    ("options", "variables", "want"), [("", "", 0), ("--keep", "", 1), ("", "CI=true ", 1)]
)
def test_it_ends_with_the_session(
    launcher: Launcher, options: str, variables: str, want: int
) -> None:
    """Logout frees the GPUs, but not with --keep, nor where CI=true."""
    shell = Shell(launcher)
    shell.run(f"{variables}gpulaunch {' '.join(RESERVE)} {options}")
    (lease,) = leases(launcher)
    shell.log_out()
    if not want:
        wait_for_end(lease["pid"])
    assert len(leases(launcher)) == want


def test_it_is_refused(launcher: Launcher) -> None:
    """Without a shell to end with, the time or a reader nothing is held."""
    done = launcher.run(*RESERVE, start_new_session=True)
    error = complaint("there is no shell with which it could end", "add --keep")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", error)
    done = launcher.run("reserve", *DGX)
    assert done.stderr == complaint("--for is missing", "gpulaunch reserve -n 2 --for 2h")
    line = f"gpulaunch {' '.join(KEEP)}"
    script = f"{line} >/dev/full 2>&-; echo $?; {line} >&-; echo $?; {line} -n 9 0>&- 2>&-; echo $?"
    printed = subprocess.check_output(["sh", "-c", script], env=launcher.environment)
    assert printed == b"125\n125\n2\n"
    until(lambda: launcher.records() == [])


def test_it_ends_at_its_limit(launcher: Launcher) -> None:
    """At the limit the GPUs are free, the record is gone, and the history has a good end."""
    done = launcher.run("reserve", *DGX, "--keep", "--for", "0.5s")
    assert done.returncode == 0
    until(lambda: past(launcher)[0].get("exit_status") is not None)
    (line,) = past(launcher)
    assert (line["exit_status"], line["command"]) == (0, ["reserve", "0.5s"])
    assert line["ended_s"] - line["started_s"] > 0.45  # it is noted after the limit begins
    assert launcher.records() == []


def test_it_has_a_document_and_can_be_freed(launcher: Launcher) -> None:
    """--json has lease, GPUs, end and variables; how many it got of a range of GPUs, too.

    `gpulaunch free NAME` frees the GPUs; for the history that is a good end, too.
    """
    done = launcher.run(*KEEP, "-q", "--json", "-n", "2-4", "--name", "nb")
    document = json.loads(done.stdout)
    (lease,) = leases(launcher)
    assert len(document["gpus"]) == 4
    assert document == {
        "lease": lease["id"],
        "name": "nb",
        "topology": "dgx1-v100",
        "gpus": lease["gpus"],
        "uuids": lease["uuids"],
        "until": document["until"],
        "env": document["env"],
    }
    assert (len(document["env"]), document["env"]["GPULAUNCH_LEASE"]) == (5, lease["id"])
    until_s = parse_time(document["until"]).timestamp()
    assert abs(until_s - parse_time(lease["ends_at"]).timestamp()) < 60
    assert launcher.run("free", "nb").stdout == "ended nb (GPUs 0-3)\n"
    assert launcher.records() == []
    assert [line["exit_status"] for line in past(launcher)] == [0]


def test_a_runner_finds_and_kills_it(launcher: Launcher) -> None:
    """The keeper has the variables of its CI job, by which a runner ends what that has left."""
    launcher.is_executed = True
    launcher.environment |= {"RUNNER_TRACKING_ID": "job 7", "CI": "true"}
    assert launcher.run(*RESERVE, start_new_session=True).returncode == 0
    (lease,) = leases(launcher)
    environment = Path(f"/proc/{lease['pid']}/environ").read_bytes().split(b"\0")
    assert b"RUNNER_TRACKING_ID=job 7" in environment
    os.kill(lease["pid"], signal.SIGKILL)
    wait_for_end(lease["pid"])
    assert leases(launcher) == []


def test_busy_gpus_are_waited_for_on_request(launcher: Launcher) -> None:
    """With --wait the terminal shows the wait, and then the GPUs.

    Ctrl-C, and a signal to the command line alone, end the waiting for good.
    """
    with held(launcher, *DGX, "-n", "8") as job:
        waiting = [launcher.start(*KEEP, "--wait", start_new_session=True) for _ in range(3)]
        for waiter in waiting:
            assert "waiting as number " in waiter.stderr.readline()
        interrupted, ended, patient = waiting
        os.killpg(interrupted.pid, signal.SIGINT)
        ended.terminate()
        for waiter, number in ((interrupted, signal.SIGINT), (ended, signal.SIGTERM)):
            waiter.communicate()
            assert waiter.returncode == -number
        job.end()
    out, said = patient.communicate()
    assert (patient.returncode, out.count("export "), len(leases(launcher))) == (0, 5, 1)
    assert "are held until" in said


def test_gpus_of_a_driver(launcher: Launcher, dgx1_v100: FakeNvml) -> None:
    """GPUs that NVML tells of are reserved like described ones, and named so."""
    document = json.loads(launcher.run("reserve", "--for", "1h", "--keep", "-qn2", "--json").stdout)
    assert document["uuids"] == dgx1_v100.uuids(*document["gpus"]).split(",")
    assert launcher.run("-n", "7", "--", "true").returncode == 75
    inside = launcher.environment | document["env"]
    shown = launcher.run("-n", "2", *SHOW, env=inside)
    assert shown.stdout == f"{document['env']['CUDA_VISIBLE_DEVICES']}\n"
