"""A launch on a described machine: what of it is seen by others, and what cannot stop it."""

import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from conftest import DGX, VGG, Launcher, held, until

from gpulaunch.placement.policies import POLICIES


def status(launcher: Launcher) -> dict:
    """Return the described machine's table."""
    return json.loads(launcher.run("status", *DGX, "--json").stdout)


@pytest.mark.parametrize(
    ("publish", "want"),
    [
        (None, ["sh", "-c", 'read line; exec cat "$RECORDS"/*', "--password", "***"]),
        ("program", ["sh"]),
        ("nothing", []),
    ],
)
def test_what_is_published(launcher: Launcher, publish: str | None, want: list[str]) -> None:
    """Lease and ticket have the command without its secrets, or less of it if that is set."""
    launcher.environment |= {"RECORDS": str(launcher.state)}
    launcher.environment |= {"GPULAUNCH_PUBLISH": publish} if publish else {}
    with held(launcher, *DGX, "-n", "all") as holder:
        job = ("sh", "-c", 'read line; exec cat "$RECORDS"/*', "--password", "hunter2")
        waiter = launcher.start(*DGX, "-n", "8", "--wait", "--", *job, stdin=subprocess.PIPE)
        waiter.stderr.readline()
        (ticket,) = launcher.state.glob("gpulaunch.ticket.*")
        assert json.loads(ticket.read_bytes())["command"] == want
        assert status(launcher)["queue"][0]["command"] == want
        assert launcher.run("status", *DGX).returncode == 0
        holder.end()
    lease, _ = waiter.communicate("\n")
    assert json.loads(lease)["command"] == want


def test_a_record_is_a_private_fact_in_public(launcher: Launcher) -> None:
    """A record is readable for all and sticky whatever the umask, and holds no environment."""
    secret = {**launcher.environment, "TOKEN": "do-not-tell"}
    options = {"env": secret, "umask": 0o077, "stdin": subprocess.PIPE}
    with launcher.start(*VGG, "--", "sh", "-c", "echo; read line", **options) as process:
        process.stdout.readline()
        path = launcher.state / launcher.records()[0]
        assert oct(stat.S_IMODE(path.stat().st_mode)) == "0o1644"
        assert "do-not-tell" not in path.read_text()
        process.communicate("\n")


def test_every_policy_keeps_the_users_order(launcher: Launcher) -> None:
    """By every policy the ranks have the order of the user's CUDA_VISIBLE_DEVICES."""
    environment = {**launcher.environment, "CUDA_VISIBLE_DEVICES": "6,1,4,3"}
    for policy in POLICIES:
        asked = (*DGX, "-n", "4", "--pattern", "chain", "--policy", policy, "--dry-run", "--json")
        got = json.loads(launcher.run(*asked, "--", "x", env=environment).stdout)
        assert [gpu["index"] for gpu in got["gpus"]] == [6, 1, 4, 3], policy


@pytest.mark.parametrize(
    ("program", "prefix"),
    [("apptainer", "APPTAINERENV_"), ("singularity", "SINGULARITYENV_"), ("aptly", None)],
)
def test_containers_without_the_hosts_environment(
    launcher: Launcher, tmp_path: Path, program: str, prefix: str | None
) -> None:
    """With --cleanenv apptainer and singularity pass on only the variables with their prefix."""
    path = tmp_path / program
    path.write_text("#!/bin/sh\nenv\n")
    path.chmod(0o755)
    done = launcher.run(*DGX, "-n", "2", "--", str(path), "exec", "--nv", "--cleanenv", "a.sif")
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    names = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]
    names += ["GPULAUNCH_GPU_COUNT", "GPULAUNCH_LEASE"]
    want = {f"{prefix}{name}": found[name] for name in names if prefix}
    assert {name: value for name, value in found.items() if "ENV_" in name} == want
    assert found["CUDA_VISIBLE_DEVICES"] == "0,3"


def test_the_launch_path_stays_light(launcher: Launcher) -> None:
    """A launch on a described machine imports no networkx, rich, docker, psutil or NVML."""
    environment = {**launcher.environment, "PYTHONPROFILEIMPORTTIME": "1"}
    said = launcher.run(*VGG, "--", "true", env=environment).stderr
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in said.splitlines()}
    heavy = {"networkx", "rich", "docker", "psutil", "pynvml", "filelock", "dataclasses"}
    assert ("gpulaunch" in imported, imported & heavy) == (True, set())


def in_bash(launcher: Launcher, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line in bash, where gpulaunch is in the path."""
    return launcher.run("-c", line, executable="/bin/bash")


def test_a_stderr_that_cannot_be_written_stops_no_job(launcher: Launcher) -> None:
    """What gpulaunch has to say may be lost; the job runs all the same."""
    for stderr in ("/dev/full", " >(true)"):
        done = in_bash(launcher, f"gpulaunch --topology dgx1-v100 --explain -- echo ran 2>{stderr}")
        assert (done.stdout, done.returncode) == ("ran\n", 0)


def test_a_file_size_limit_stops_no_job(launcher: Launcher) -> None:
    """A message beyond the limit on the size of files is lost; a record beyond it is an error."""
    launch = "gpulaunch --topology dgx1-v100 -v -- echo ran"
    full = launcher.state.parent / "full"
    full.write_bytes(bytes(1024))
    done = in_bash(launcher, f"ulimit -f 1; {launch} 2>>{full}")
    assert (done.stdout, done.returncode) == ("ran\n", 0)
    done = in_bash(launcher, f"ulimit -f 0; {launch}")
    error = f"gpulaunch: error: {launcher.state}: cannot write a record: file too large\n"
    assert (done.stdout, done.stderr, done.returncode) == ("", error, 125)


def test_what_others_named_their_jobs_breaks_no_table(launcher: Launcher) -> None:
    """Names with markup, control characters or letters that cannot be encoded are shown still.

    An argument that is no UTF-8 reaches the job as it is; status shows its bytes escaped.
    """
    script = 'printf %s "$1" | od -An -tx1; read line'
    words = ("--name", "[/] \u6f22\x1b[31m", "--", "sh", "-c", script, "x", b"a\xff\n")
    with launcher.start(*VGG, *words, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline().split() == ["61", "ff", "0a"]
        assert status(launcher)["leases"][0]["command"][-1] == "a\\xff\\x0a"
        environment = {**launcher.environment, "PYTHONIOENCODING": "latin-1"}
        done = launcher.run("status", *DGX, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert "[/] \\u6f22\\x1b[31m" in done.stdout
        process.communicate("\n")


def test_a_job_that_is_stopped_and_woken_alone(launcher: Launcher) -> None:
    """STOP and CONT to the job alone, as from cpulimit, leave no launcher stopped behind.

    Meanwhile `status` marks it, and shows how long it may run.
    """
    with held(launcher, *VGG, "--time-limit", "2h") as job:
        for stopped, number in ((True, signal.SIGSTOP), (False, signal.SIGCONT)):
            os.kill(job.job_pid, number)
            until(lambda want=stopped: status(launcher)["leases"][0]["stopped"] == want)
            shown = launcher.run("status", *DGX).stdout
            assert (" stopped " in shown, " of 2 h " in shown) == (stopped, True)
        assert status(launcher)["leases"][0]["time_limit_s"] == 7200.0
        assert job.end() == 7
    assert launcher.records() == []
