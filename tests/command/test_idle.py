"""GPUs that do nothing while a job has them: who is told, and when the job is ended."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import until

pytest_plugins = ("fake_nvml",)

SLEEP = ("--", "sh", "-c", "echo on; exec sleep 600")
HOUR_S = 3600


@contextmanager
def running(launcher, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run a job that sleeps, and end it at the end, also of a test that fails."""
    job = launcher.start(*options, *SLEEP)
    try:
        assert job.stdout.readline() == "on\n"
        yield job
    finally:
        job.terminate()
        job.communicate()


def record_of(launcher) -> Path:
    """Return the file of the only lease."""
    (name,) = [name for name in launcher.records() if name.startswith("gpulaunch.lease.")]
    return launcher.state / name


def idle_since(launcher) -> list[str | None]:
    """Return what status says of each lease."""
    status = json.loads(launcher.run("status", "--json").stdout)
    return [lease["idle_since"] for lease in status["leases"]]


@pytest.mark.parametrize("active", [100, None], ids=["busy", "unknown"])
def test_a_busy_gpu_is_noted(launcher, dgx1_v100, active: int | None) -> None:
    """While a kernel runs, the record's modification time goes on, and its content stays.

    A GPU that does not tell counts as busy.
    """
    launcher.environment["GPULAUNCH_IDLE_AFTER"] = "1s"
    if active is not None:
        dgx1_v100.script(0, "active", active)
    with running(launcher, "-n", "1"):
        record = record_of(launcher)
        content = record.read_bytes()
        os.utime(record, (0, 0))
        until(lambda: record.stat().st_mtime > time.time() - 60)
        assert record.read_bytes() == content


def test_the_owner_is_told_of_an_idle_gpu(launcher, dgx1_v100, tmp_path) -> None:
    """Once for each time that the GPUs do nothing for idle_after a line and --notify say so."""
    launcher.environment["GPULAUNCH_IDLE_AFTER"] = "1s"
    heard = tmp_path / "heard"
    os.mkfifo(heard)
    script = f"[ $GPULAUNCH_EVENT = idle ] && env >{heard}"
    dgx1_v100.script(0, "active", 0)
    with running(launcher, "-n", "1", "--name", "mine", "--notify", script) as job:
        record = record_of(launcher)
        os.utime(record, (0, 0))
        lines = [job.stderr.readline()]
        assert record.stat().st_mtime == 0
        for _ in range(2):
            told = dict(line.partition("=")[::2] for line in heard.read_text().splitlines())
            assert {name: text for name, text in told.items() if "_EVENT" in name} == {
                "GPULAUNCH_EVENT": "idle",
                "GPULAUNCH_EVENT_NAME": "mine",
                "GPULAUNCH_EVENT_LEASE": record.name.rpartition(".")[2],
                "GPULAUNCH_EVENT_GPUS": "0",
                "GPULAUNCH_EVENT_IDLE_S": "1",
            }
            dgx1_v100.script(0, "active", 100)
            os.utime(record, (0, 0))
            until(lambda: record.stat().st_mtime > 0)
            dgx1_v100.script(0, "active", 0)
        lines.append(job.stderr.readline())
    assert lines == ["gpulaunch: warning: the GPUs of this job have been idle for 1 s\n"] * 2


@pytest.mark.usefixtures("dgx1_v100")
def test_status_and_those_who_wait_are_told(launcher) -> None:
    """Everybody reads since when, from one minute on; a refused launch is told after 30 min."""
    with running(launcher, "-n", "8"):
        assert idle_since(launcher) == [None]
        busy_s = int(time.time()) - HOUR_S / 3
        os.utime(record_of(launcher), (busy_s, busy_s))
        assert "idle" not in launcher.run("-n", "1", "--", "true").stderr
        busy_s = int(time.time()) - 3 * HOUR_S
        os.utime(record_of(launcher), (busy_s, busy_s))
        since = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(busy_s))
        assert idle_since(launcher) == [since]
        refused = launcher.run("-n", "1", "--", "true")
        assert (refused.returncode, "idle for 3 h" in refused.stderr) == (75, True)
        assert "has been idle for 3 h" in launcher.run("status").stdout


def test_the_limit_ends_the_job(launcher, dgx1_v100) -> None:
    """With idle_limit a job whose GPUs do nothing is ended like by a time limit: 124."""
    launcher.environment["GPULAUNCH_IDLE_LIMIT"] = "1s"
    dgx1_v100.script(0, "active", 0)
    run = launcher.run("-n", "1", *SLEEP)
    assert (run.returncode, run.stderr) == (
        124,
        "gpulaunch: error: the job was ended, as the setting idle_limit asks: its GPUs were idle\n",
    )
    assert launcher.records() == []


def test_nothing_is_watched_on_a_described_machine(launcher) -> None:
    """There is no thread for it, and nobody is said to be idle."""
    with running(launcher, "--topology", "dgx1-v100", "-n", "1") as job:
        assert len(os.listdir(f"/proc/{job.pid}/task")) == 1
        os.utime(record_of(launcher), (0, 0))
        status = launcher.run("status", "--topology", "dgx1-v100", "--json")
        assert json.loads(status.stdout)["leases"][0]["idle_since"] is None
