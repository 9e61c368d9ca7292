"""The main job on a described machine: right GPUs, held while it runs, freed however it ends."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DGX, SHOW, VGG, Launcher, held, wait_for_end

from gpulaunch.decide.placement.policies import POLICIES


def status(launcher: Launcher) -> dict:
    """Return the described machine's table."""
    return json.loads(launcher.run("status", *DGX, "--json").stdout)


def test_two_launches_share_nothing(launcher: Launcher) -> None:
    """While one launch holds GPUs a second gets others, and a third would have to wait."""
    with held(launcher, *VGG) as first, held(launcher, *VGG) as second:
        assert (first.gpus, second.gpus) == ("0,2,3", "4,6,7")
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
        assert launcher.run(*VGG, *SHOW).stdout == "0,2,3\n"


@pytest.mark.parametrize("signal_name", ["TERM", "HUP", "INT", "QUIT", "USR1"])
def test_a_signal_that_kills_the_job_frees_its_gpus(launcher: Launcher, signal_name: str) -> None:
    """A signal to the launcher reaches the job; the status tells of its death, the lease ends."""
    number = getattr(signal, f"SIG{signal_name}")
    with held(launcher, *VGG) as job:
        job.process.send_signal(number)
        job.process.wait(30)
        own_death = number in (signal.SIGINT, signal.SIGQUIT)
        assert job.process.returncode == (-number if own_death else 128 + number)
        assert launcher.records() == []


def test_status_tells_who_has_what(launcher: Launcher) -> None:
    """`status --json` has all GPUs with their state and all leases with user, pids and command."""
    with held(launcher, *VGG, "--name", "my job") as job:
        table = status(launcher)
        lease = table["leases"][0]
        assert [gpu["index"] for gpu in table["gpus"] if gpu["leases"] == [lease["id"]]] == [
            0,
            2,
            3,
        ]
        assert {gpu["state"] for gpu in table["gpus"]} == {"free", "leased"}
        assert (lease["pid"], lease["job_pid"]) == (job.process.pid, job.job_pid)
        assert (lease["gpus"], lease["profile"], lease["name"]) == ([0, 2, 3], "vgg16", "my job")
        assert lease["command"][:2] == ["sh", "-c"]
        assert lease["started_at"].endswith("Z")
        assert (lease["shared"], lease["sm_percentage"], lease["container"], table["queue"]) == (
            False,
            None,
            None,
            [],
        )
        shown = launcher.run("status", *DGX).stdout
        assert "my job" in shown
        assert "5 of 8 GPUs free: 1,4-7 (" in shown


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
    lease, _ = waiter.communicate("\n", timeout=30)
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


def test_undecodable_arguments_are_kept_and_shown_escaped(launcher: Launcher) -> None:
    r"""An argument that is no UTF-8 reaches the job as it is; status shows its bytes as \xNN."""
    script = 'printf %s "$1" | od -An -tx1; read line'
    with launcher.start(
        *DGX, "--", "sh", "-c", script, "x", b"a\xff\n", stdin=subprocess.PIPE
    ) as process:
        assert process.stdout.readline().split() == ["61", "ff", "0a"]
        assert status(launcher)["leases"][0]["command"][-1] == "a\\xff\\x0a"
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
        outer.wait(30)
        left = status(launcher)["leases"]
        assert [lease["id"] for lease in left] == [child["id"]]
        outer.stdin.close()
        wait_for_end(child["pid"])
    assert status(launcher)["leases"] == []


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_the_users_order(launcher: Launcher, policy: str) -> None:
    """By every policy the ranks have the user's order, and the scores are those of that order."""
    asked = (*DGX, "-n", "4", "--pattern", "chain", "--policy", policy, "--dry-run", "--json")
    environment = {**launcher.environment, "CUDA_VISIBLE_DEVICES": "6,1,4,3"}
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


BIG_MACHINE = """
name = "big"
source = "made up"
[gpus]
count = 32
model = "GPU"
memory_mib = 1024
[pcie]
generation = 3
width = 16
"""


def test_the_launch_path_stays_light(launcher: Launcher) -> None:
    """A launch on a described machine imports no networkx, rich, docker, psutil or NVML."""
    done = launcher.run(
        *VGG, "--", "true", env={**launcher.environment, "PYTHONPROFILEIMPORTTIME": "1"}
    )
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert "gpulaunch" in imported
    heavy = {
        "networkx",
        "rich",
        "docker",
        "psutil",
        "pynvml",
        "filelock",
        "dataclasses",
        "importlib.metadata",
    }
    assert imported & heavy == set()


def in_bash(launcher: Launcher, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line in bash, where gpulaunch is in the path."""
    command = ["bash", "-c", line]
    return subprocess.run(
        command, env=launcher.environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("options", ["--explain", "-v"])
@pytest.mark.parametrize("stderr", ["/dev/full", " >(true)"])
def test_a_stderr_that_cannot_be_written_stops_no_job(
    launcher: Launcher, options: str, stderr: str
) -> None:
    """What gpulaunch has to say may be lost; the job runs all the same."""
    done = in_bash(launcher, f"gpulaunch --topology dgx1-v100 {options} -- echo ran 2>{stderr}")
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


def test_explain_of_more_candidates_than_can_be_listed(launcher: Launcher) -> None:
    """Policy baseline, which weighs nothing, explains itself whatever the number of candidates."""
    big = launcher.state.with_name("big.toml")
    big.write_text(BIG_MACHINE)
    options = ("--topology", str(big), "-n", "16", "--policy", "baseline", "--explain")
    done = launcher.run(*options, "--", "echo", "ran")
    assert (done.stdout, done.returncode) == ("ran\n", 0)
    assert done.stderr.startswith("601,080,390 candidates, what the policy takes first")


def test_what_others_named_their_jobs_breaks_no_table(launcher: Launcher) -> None:
    """Names with markup, control characters or letters that cannot be encoded are shown still."""
    with held(launcher, *VGG, "--name", "[/] \u6f22\x1b[31m"):
        environment = {**launcher.environment, "PYTHONIOENCODING": "latin-1"}
        done = launcher.run("status", *DGX, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert "[/] \\u6f22\\x1b[31m" in done.stdout


def test_ctrl_c_while_starting_is_no_traceback(launcher: Launcher) -> None:
    """A launcher that is interrupted while it starts ends by that signal and says nothing."""
    environment = {**launcher.environment, "PYTHONPROFILEIMPORTTIME": "1"}
    with launcher.start(*DGX, "--", "sleep", "60", env=environment) as process:
        for line in process.stderr:
            if line.rstrip().endswith(" gpulaunch.files.fields"):  # in the midst of its imports
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        process.wait(30)
    assert (process.returncode, "Traceback" in rest) == (-signal.SIGINT, False)


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
        assert process.wait(30) == 0
    assert launcher.records() == []


def test_machine_without_an_engine_loads_none(launcher: Launcher) -> None:
    """Where no container engine answers, a launch loads nothing that could ask one."""
    code = (
        "import sys; from gpulaunch.cli.main import run; from gpulaunch.containers import engines;"
        "engines.docker.DEFAULT_SOCKET = engines.docker.ROOTLESS_SOCKET = '/nowhere';"
        "run(sys.argv[1:]); print([m for m in sys.modules if m in ('_socket', "
        "'gpulaunch.containers.in_use', 'gpulaunch.containers.docker.client')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *VGG, "--dry-run", "-q", "--", "true"],
        env=launcher.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_import_is_cheap() -> None:
    """Patterns and their file readers import without networkx, dataclasses or an XML parser."""
    code = (
        "import sys, gpulaunch.profiles.pattern_file; print([m for m in sys.argv[1:] if m in "
        "sys.modules])"
    )
    heavy = [
        "networkx",
        "numpy",
        "dataclasses",
        "statistics",
        "argparse",
        "xml.etree.ElementTree",
        "random",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


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
