"""The main job on a described machine: right GPUs, held while it runs, freed however it ends."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DGX, SHOW, VGG, Launcher, held, until, wait_for_end

from gpulaunch.decide.placement.policies import POLICIES


def status(launcher: Launcher) -> dict:
    """Return the described machine's table."""
    return json.loads(launcher.run("status", *DGX, "--json").stdout)


def test_two_launches_share_nothing(launcher: Launcher) -> None:
    """While one launch holds GPUs a second gets others, and a third would have to wait."""
    with held(launcher, *VGG, "--name", "mine") as first, held(launcher, *VGG) as second:
        assert (first.gpus, second.gpus) == ("0,2,3", "4,6,7")
        table = status(launcher)
        (lease,) = (one for one in table["leases"] if one["name"])
        taken = [gpu["index"] for gpu in table["gpus"] if gpu["leases"] == [lease["id"]]]
        assert taken == lease["gpus"] == [0, 2, 3]
        assert (lease["pid"], lease["job_pid"]) == (first.process.pid, first.job_pid)
        assert (lease["profile"], lease["command"][:2]) == ("vgg16", ["sh", "-c"])
        third = launcher.run(*VGG, *SHOW)
        assert (third.returncode, third.stdout) == (75, "")
        assert (
            third.stderr.splitlines()[0]
            == "gpulaunch: error: 3 GPUs requested: 2 of 8 are free, 6 are leased"
        )
    assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"
    assert launcher.records() == []


def test_kill_9_of_launcher_and_job_gives_the_gpus_back(launcher: Launcher) -> None:
    """After kill -9 of all its processes the next launch gets the GPUs and clears the record."""
    with held(launcher, *VGG) as job:
        job.kill_all()
        assert len(launcher.records()) == 1
        assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"
        assert launcher.records() == []


def test_a_killed_launcher_leaves_the_lease_with_its_job(launcher: Launcher) -> None:
    """With only the launcher killed the lease stays until the job ends."""
    with held(launcher, *VGG) as job:
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait()
        assert launcher.run(*VGG, *SHOW).stdout == "4,6,7\n"
        job.process.stdin.close()  # the job reads the end of its input, and ends
        wait_for_end(job.job_pid)
        until(lambda: launcher.records() == [])
        assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"


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


def test_a_nested_lease_outlives_its_parent(launcher: Launcher) -> None:
    """A lease taken from another stays when that one ends, and its GPUs stay taken."""
    script = "gpulaunch -n 1 -- sh -c 'echo started; read line' <&3 & read line"
    outer = launcher.start(*VGG, "--", "sh", "-c", f"exec 3<&0; {script}", stdin=subprocess.PIPE)
    with outer:
        assert outer.stdout.readline() == "started\n"
        parent, child = sorted(
            status(launcher)["leases"], key=lambda lease: lease["parent"] is not None
        )
        assert child["parent"] == parent["id"]
        os.kill(parent["job_pid"], signal.SIGKILL)
        outer.wait()
        left = status(launcher)["leases"]
        assert [lease["id"] for lease in left] == [child["id"]]
        outer.stdin.close()
        wait_for_end(child["pid"])
    assert status(launcher)["leases"] == []


def test_every_policy_keeps_the_users_order(launcher: Launcher) -> None:
    """By every policy the ranks have the user's order, and the scores are those of that order."""
    environment = {**launcher.environment, "CUDA_VISIBLE_DEVICES": "6,1,4,3"}
    for policy in POLICIES:
        asked = (*DGX, "-n", "4", "--pattern", "chain", "--policy", policy, "--dry-run", "--json")
        got = json.loads(launcher.run(*asked, "--", "x", env=environment).stdout)
        assert [gpu["index"] for gpu in got["gpus"]] == [6, 1, 4, 3]
        hops = 12 + 12 + 12  # GB/s from 6 to 1, 1 to 4 and 4 to 3, none of which has an NVLink
        assert got["scores"]["aggregate_bandwidth_gb_per_s"] == hops


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
    done = launcher.run(
        *VGG, "--", "true", env={**launcher.environment, "PYTHONPROFILEIMPORTTIME": "1"}
    )
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    heavy = {"networkx", "rich", "docker", "psutil", "pynvml", "filelock", "dataclasses"}
    assert ("gpulaunch" in imported, imported & heavy) == (True, set())


def in_bash(launcher: Launcher, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line in bash, where gpulaunch is in the path."""
    command = ["bash", "-c", line]
    return subprocess.run(
        command, env=launcher.environment, capture_output=True, text=True, check=False
    )


def test_a_stderr_that_cannot_be_written_stops_no_job(launcher: Launcher) -> None:
    """What gpulaunch has to say may be lost; the job runs all the same."""
    for stderr in ("/dev/full", " >(true)"):
        done = in_bash(launcher, f"gpulaunch --topology dgx1-v100 --explain -- echo ran 2>{stderr}")
        assert (done.stdout, done.returncode) == ("ran\n", 0)


def test_a_file_size_limit_stops_no_job(launcher: Launcher) -> None:
    """A message beyond the limit on the size of files is lost; a record beyond it is an error."""
    line = (
        "head -c 1024 /dev/zero >full; ulimit -f 1; gpulaunch --topology dgx1-v100 -v -- echo ran"
    )
    done = in_bash(launcher, f"cd {launcher.state.parent}; {line} 2>>full")
    assert (done.stdout, done.returncode) == ("ran\n", 0)
    done = in_bash(launcher, "ulimit -f 0; gpulaunch --topology dgx1-v100 -- echo ran")
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
    """STOP and CONT to the job alone, as from cpulimit, leave no launcher stopped behind."""
    script = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    process = launcher.start(*VGG, "--", sys.executable, "-c", script, start_new_session=True)
    with process:
        while not (leases := status(launcher)["leases"]):
            assert process.poll() is None
        job_pid = leases[0]["job_pid"]
        while Path(f"/proc/{job_pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert process.poll() is None
        os.kill(job_pid, signal.SIGCONT)
        assert process.wait() == 0
    assert launcher.records() == []


def test_status_tells_what_is_stopped_and_for_how_long(launcher: Launcher) -> None:
    """`status` marks a job that Ctrl-Z has stopped, and shows how long a job may run."""
    with held(launcher, *VGG, "--time-limit", "2h") as job:
        for stopped, number in ((True, signal.SIGSTOP), (False, signal.SIGCONT)):
            os.kill(job.job_pid, number)
            found = [] if stopped else [{"stopped": True}]
            while [lease["stopped"] for lease in found] != [stopped]:
                found = json.loads(launcher.run("status", *DGX, "--json").stdout)["leases"]
            assert found[0]["time_limit_s"] == 7200.0
            shown = launcher.run("status", *DGX).stdout
            assert (" stopped " in shown, " of 2 h " in shown) == (stopped, True)
    with held(launcher, *VGG):
        (name,) = launcher.records()
        assert "time_limit_s" not in json.loads((launcher.state / name).read_text())
