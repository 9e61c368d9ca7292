"""The main job on a described machine: right GPUs, held while it runs, freed however it ends."""

import json
import os
import pwd
import re
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


def test_the_best_three_of_an_idle_dgx1_are_0_2_3(launcher: Launcher) -> None:
    """VGG-16 on three GPUs of an idle DGX-1 V100 gets 0,2,3 in rank order."""
    done = launcher.run(*VGG, *SHOW)
    assert (done.stdout, done.stderr, done.returncode) == ("0,2,3\n", "", 0)


def test_the_job_finds_its_variables(launcher: Launcher) -> None:
    """A job finds its GPUs by index and UUID, their number and order, its lease, and no more."""
    done = launcher.run(*VGG, "--", "env", "-0")
    got = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    new = {name: got.pop(name) for name in list(got) if name not in launcher.environment}
    lease_id = new.pop("GPULAUNCH_LEASE")
    assert got == launcher.environment
    assert new == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,2,3",
        "GPULAUNCH_GPU_COUNT": "3",
        "NVIDIA_VISIBLE_DEVICES": "GPU-dgx1-v100-0,GPU-dgx1-v100-2,GPU-dgx1-v100-3",
    }
    assert len(lease_id) == 12


def test_uuids_on_demand(launcher: Launcher) -> None:
    """--uuid names the GPUs by UUID."""
    done = launcher.run(*DGX, "-n", "2", "--uuid", *SHOW)
    assert done.stdout == "GPU-dgx1-v100-0,GPU-dgx1-v100-3\n"


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


def test_the_jobs_status_is_the_launchers(launcher: Launcher) -> None:
    """The launcher ends with the job's own exit status, and the lease ends with it."""
    with held(launcher, *VGG) as job:
        assert len(launcher.records()) == 1
        assert job.end() == 7
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


def test_status_knows_what_was_assumed(launcher: Launcher) -> None:
    """Without a profile the pattern and the sensitivity are assumed, and the document says so."""
    with held(launcher, *DGX, "-n", "2"):
        assert status(launcher)["leases"][0]["assumed"] == ["pattern", "bandwidth_sensitive"]


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


def test_a_launch_inside_a_lease_takes_from_it(launcher: Launcher) -> None:
    """Launches inside a lease choose among its GPUs alone, on its machine, and share nothing."""
    inner = (
        "gpulaunch -n 2 -- sh -c 'echo $CUDA_VISIBLE_DEVICES; gpulaunch -n 1 -- sh -c \"echo "
        "\\$CUDA_VISIBLE_DEVICES\"'"
    )
    done = launcher.run(
        *VGG, "--", "sh", "-c", f"{inner}; gpulaunch -n all -- sh -c 'echo $CUDA_VISIBLE_DEVICES'"
    )
    assert (done.stderr, done.stdout.split()) == ("", ["0,3", "0", "0,2,3"])
    done = launcher.run(*VGG, "--", "gpulaunch", "-n", "4", "--", "true")
    assert done.returncode == 2
    assert "4 GPUs requested: lease " in done.stderr


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


def test_a_dead_inherited_lease_is_one_warning(launcher: Launcher) -> None:
    """A GPULAUNCH_LEASE that has ended gives one warning and a normal launch; -q silences it."""
    environment = {**launcher.environment, "GPULAUNCH_LEASE": "0123456789ab"}
    done = launcher.run(*VGG, *SHOW, env=environment)
    warning = (
        "gpulaunch: warning: GPULAUNCH_LEASE=0123456789ab is not a live lease, so it is ignored: "
        "unset GPULAUNCH_LEASE\n"
    )
    assert (done.stdout, done.stderr) == ("0,2,3\n", warning)
    assert launcher.run(*VGG, "-q", *SHOW, env=environment).stderr == ""


@pytest.mark.parametrize(
    ("sentence", "value", "expected"),
    [
        ("a list restricts like --only", "1,4,5", "1,5"),
        ("an entry that names no GPU hides itself and the rest", "4,5,-1,1", "4,5"),
        ("a UUID may stand for an index", "GPU-dgx1-v100-7,GPU-dgx1-v100-6", "7,6"),
        ("its order is kept", "3,2", "3,2"),
        ("so is that of those that are chosen of more", "7,6,3,2,1,0", "3,0"),
        ("a GPU that is listed twice counts once", "3,2,3", "3,2"),
    ],
)
def test_visible_devices_that_are_set_restrict(
    launcher: Launcher, sentence: str, value: str, expected: str
) -> None:
    """A CUDA_VISIBLE_DEVICES that is already set restricts the choice and gives the rank order."""
    environment = {**launcher.environment, "CUDA_VISIBLE_DEVICES": value}
    assert launcher.run(*DGX, "-n", "2", *SHOW, env=environment).stdout == f"{expected}\n", sentence


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_the_users_order(launcher: Launcher, policy: str) -> None:
    """By every policy the ranks have the user's order, and the scores are those of that order."""
    asked = (*DGX, "-n", "4", "--pattern", "chain", "--policy", policy, "--dry-run", "--json")
    environment = {**launcher.environment, "CUDA_VISIBLE_DEVICES": "6,1,4,3"}
    got = json.loads(launcher.run(*asked, "--", "x", env=environment).stdout)
    assert [gpu["index"] for gpu in got["gpus"]] == [6, 1, 4, 3]
    hops = 12 + 12 + 12  # GB/s from 6 to 1, 1 to 4 and 4 to 3, none of which has an NVLink
    assert got["scores"]["aggregate_bandwidth_gb_per_s"] == hops


def test_the_order_that_a_lease_has_set_is_nobodys_wish(launcher: Launcher) -> None:
    """Launches inside a job have the rank order that suits them, or the one that its user sets."""
    inner = "gpulaunch -n 4 -p ddp -- sh -c 'echo $CUDA_VISIBLE_DEVICES'"
    chosen = f"CUDA_VISIBLE_DEVICES=1,3,2,0 {inner}"
    script = f"echo $CUDA_VISIBLE_DEVICES; {inner}; {chosen}"
    done = launcher.run(*DGX, "-n", "8", "--pattern", "chain", "--", "sh", "-c", script)
    assert done.stdout == "0,3,2,1,5,6,7,4\n0,1,2,3\n1,3,2,0\n"


def test_no_visible_device_can_never_be(launcher: Launcher) -> None:
    """An empty CUDA_VISIBLE_DEVICES leaves nothing to choose from."""
    done = launcher.run(*DGX, *SHOW, env={**launcher.environment, "CUDA_VISIBLE_DEVICES": ""})
    found = "1 GPU requested: 0 of dgx1-v100's 8 satisfy CUDA_VISIBLE_DEVICES="
    error = f"gpulaunch: error: {found}: it hides them all: unset it\n"
    assert (done.returncode, done.stderr) == (2, error)


def test_constraints_narrow_the_choice(launcher: Launcher) -> None:
    """--only, --exclude, --memory and --gpu-model narrow the choice."""
    assert (
        launcher.run(
            *DGX, "-n", "2", "--only", "1,2,GPU-dgx1-v100-3", "--exclude", "2", *SHOW
        ).stdout
        == "1,3\n"
    )
    assert (
        launcher.run(*DGX, "--memory", "15GiB", "--gpu-model", "v100-sxm2", *SHOW).stdout == "0\n"
    )


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        (("--memory", "32GiB"), "the largest has 15.78 GiB (16.9 GB)"),
        (("--memory", "40G"), "the largest has 15.78 GiB (16.9 GB)"),
        (("--gpu-model", "a100"), "they are Tesla V100-SXM2-16GB"),
    ],
)
def test_a_refusal_says_what_there_is(
    launcher: Launcher, options: tuple[str, str], instead: str
) -> None:
    """Where no GPU has what is asked for, the refusal says what the GPUs have."""
    done = launcher.run(*DGX, *options, *SHOW)
    found = f"1 GPU requested: 0 of dgx1-v100's 8 satisfy {' '.join(options)}: {instead}"
    assert (done.returncode, done.stderr) == (2, f"gpulaunch: error: {found}\n")


@pytest.mark.parametrize(
    ("machine", "size"),
    [
        ("dgx1-v100", "16G"),
        ("dgx2", "32G"),
        ("rtx-4090-8", "24G"),
        ("rtx-5090-8", "32G"),
        ("l40s-8", "48G"),
        ("dgx-a100", "40G"),
        ("dgx-h100", "80G"),
        ("hgx-h200", "141G"),
    ],
)
def test_memory_as_on_the_box(launcher: Launcher, machine: str, size: str) -> None:
    """--memory 80G fits a GPU that is sold with 80 GB, by itself and where its job shares."""
    options = ("--topology", machine, "--memory", size)
    assert launcher.run(*options, *SHOW).stdout == "0\n"
    shared = launcher.run(*options, "--share", "-outilization=1,1", "-v", *SHOW)
    assert (shared.returncode, "to be shared: " in shared.stderr) == (0, True)


def test_settings_come_in_order(launcher: Launcher) -> None:
    """The command line beats the environment, then the profile, the user's file and the default."""
    config = Path(launcher.environment["XDG_CONFIG_HOME"]) / "gpulaunch"
    (config / "profiles").mkdir(parents=True)
    mine = 'name = "mine"\ngpus = 2\n[communication]\npattern = "chain"\nsource = "me"\n'
    (config / "profiles" / "mine.toml").write_text(mine)

    def count(*options: str, **environment: str) -> int:
        done = launcher.run(*DGX, *options, *SHOW, env={**launcher.environment, **environment})
        assert done.returncode == 0, done.stderr
        return len(done.stdout.split(","))

    assert count() == 1
    (config / "config.toml").write_text('gpus = 4\npolicy = "greedy"\n')
    assert count() == 4
    assert count("-p", "mine") == 2
    assert count("-p", "mine", GPULAUNCH_GPUS="3") == 3
    assert count("-p", "mine", "-n", "5", GPULAUNCH_GPUS="3") == 5
    document = json.loads(launcher.run(*DGX, "--dry-run", "--json", "--", "x").stdout)
    assert document["policy"] == "greedy"


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


def test_gpulaunch_alone_prints_the_short_help(launcher: Launcher) -> None:
    """Without any argument it is as with --help, and no mistake."""
    alone, asked = launcher.run(), launcher.run("--help")
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, asked.stdout, "")
    assert alone.stdout.startswith("usage: gpulaunch [OPTIONS] -- COMMAND [ARG...]\n")


def test_a_decision_needs_no_command(launcher: Launcher) -> None:
    """--dry-run decides about a job of any command, and so does --explain without one."""
    document = json.loads(launcher.run(*VGG, "--dry-run", "--json").stdout)
    other = json.loads(launcher.run(*VGG, "--dry-run", "--json", "--", "x").stdout)
    assert document == other | {"argv": []}
    explained = launcher.run(*VGG, "--explain")
    assert explained.stdout == launcher.run(*VGG, "--explain", "--dry-run", "--", "x").stdout
    assert (explained.returncode, explained.stderr) == (0, "")
    assert launcher.run(*DGX, "-n", "9", "--explain").returncode == 2


def test_a_dry_run_prints_the_decision_and_takes_nothing(launcher: Launcher) -> None:
    """--dry-run --json prints one object with the contract's keys, and leaves no record."""
    done = launcher.run(*VGG, "--dry-run", "--json", "--", "python", "train.py")
    got = json.loads(done.stdout)
    assert done.returncode == 0
    assert {
        key: got[key]
        for key in ("decision", "policy", "bandwidth_model", "shared", "sm_percentage", "argv")
    } == {
        "decision": "grant",
        "policy": "preserve",
        "bandwidth_model": "cut",
        "shared": False,
        "sm_percentage": None,
        "argv": ["python", "train.py"],
    }
    assert got["scores"] == {
        "aggregate_bandwidth_gb_per_s": 125.0,
        "effective_bandwidth_gb_per_s": 60.0,
        "preserved_bandwidth_gb_per_s": 311.0,
        "lasting_bandwidth_gb_per_s": 622.0,  # on an idle machine nobody has to leave for it
        "fragmentation": 0.25,  # GPU 1 stays free of the four of its socket
        "communication_cost": 3,  # three pairs, each with an NVLink
    }
    first = {
        "index": 0,
        "name": "0",
        "uuid": "GPU-dgx1-v100-0",
        "model": "Tesla V100-SXM2-16GB",
        "numa_node": 0,
        "node": 0,
    }
    assert [gpu["index"] for gpu in got["gpus"]] == [0, 2, 3]
    assert got["gpus"][0] == first
    assert got["env"]["CUDA_VISIBLE_DEVICES"] == "0,2,3"
    assert launcher.records() == []


def test_a_single_gpu_has_no_edge(launcher: Launcher) -> None:
    """Scores that do not exist are null."""
    got = json.loads(launcher.run(*DGX, "--dry-run", "--json", "--", "x").stdout)
    assert got["scores"] == {
        "aggregate_bandwidth_gb_per_s": None,
        "effective_bandwidth_gb_per_s": None,
        "preserved_bandwidth_gb_per_s": 558.0,
        "lasting_bandwidth_gb_per_s": 1116.0,
        "fragmentation": 0.75,
        "communication_cost": 0,
    }


@pytest.mark.parametrize(
    ("decision", "options", "exit_status"), [("wait", ("-n", "6"), 75), ("refuse", ("-n", "9"), 2)]
)
def test_a_dry_run_tells_by_its_status(
    launcher: Launcher, decision: str, options: tuple[str, ...], exit_status: int
) -> None:
    """A dry run prints its object and exits 75 for wait and 2 for refuse."""
    with held(launcher, *VGG):
        done = launcher.run(*DGX, *options, "--dry-run", "--json", "--", "x")
        got = json.loads(done.stdout)
        assert (got["decision"], got["gpus"], got["env"], done.returncode) == (
            decision,
            [],
            {},
            exit_status,
        )


def test_explain_says_why_the_winner_won(launcher: Launcher) -> None:
    """--explain lists the best candidates on stderr, since stdout is the job's, and the reason."""
    done = launcher.run(*VGG, "--explain", "--policy", "greedy", *SHOW)
    assert done.stdout == "0,2,3\n"
    won = "0,2-3: the most aggregate bandwidth (125 GB/s)"
    assert f"{won}; 1-3 is equal in all, 0,2-3 has the lower indices\n" in done.stderr
    with held(launcher, *DGX, "-n", "1", "--only", "0"):
        done = launcher.run(
            *DGX,
            "-n",
            "2",
            "--pattern",
            "ring",
            "--explain",
            "--dry-run",
            "--only",
            "1,2,3",
            "--",
            "x",
        )
        won = "2-3: the most effective bandwidth (40 GB/s)"
        less = "less lasting bandwidth (708 instead of 733 GB/s)"
        assert f"{won}; 1-2 has as much, but {less}\n" in done.stdout


def test_explain_says_what_is_left_out_and_what_waiting_would_bring(launcher: Launcher) -> None:
    """--explain names the holders of the GPUs, and what the idle machine would give if faster."""
    bridged = ("--topology", "a100-pcie-4gpu")
    with held(launcher, *bridged, "-n", "2", "--only", "1,2", "--name", "first"):
        (lease,) = json.loads(launcher.run("status", *bridged, "--json").stdout)["leases"]
        document = json.loads(
            launcher.run(*bridged, "-n", "2", "--explain", "--dry-run", "--json", "--", "x").stdout
        )
        why = f"leased by {lease['user']}: first ({lease['id']})"
        assert document["excluded"] == [
            {"index": index, "name": str(index), "why": why} for index in (1, 2)
        ]
        assert [candidate["gpus"] for candidate in document["candidates"]] == [[0, 3]]
        assert document["if_idle"] == {
            "instead": "-o min_bandwidth=208.8 --wait",
            "gpus": [0, 1],
            "effective_bandwidth_gb_per_s": 208.8,
        }
        done = launcher.run(*bridged, "-n", "2", "--explain", *SHOW)
        assert done.stdout == "0,3\n"
        assert (
            "the idle machine would give 0,1 with 208.8 GB/s: -o min_bandwidth=208.8 --wait waits "
            "for as much" in done.stderr
        )


def test_preserve_paper_goes_by_the_papers_model_unless_another_is_named(
    launcher: Launcher,
) -> None:
    """preserve-paper goes by Eq. 2, others by the slowest cut; bandwidth_model overrules both."""

    def shown(*options: str) -> tuple[str, float]:
        asked = (*DGX, "-n", "3", "--pattern", "ring", *options)
        document = json.loads(launcher.run(*asked, "--dry-run", "--json", "--", "x").stdout)
        return document["bandwidth_model"], document["scores"]["effective_bandwidth_gb_per_s"]

    eq2 = ("mapa", 57.857167)  # of two double links and a single one
    assert shown("--policy", "preserve") == ("cut", 60.0)
    assert shown("--policy", "preserve-paper") == eq2
    assert shown("--policy", "preserve-paper", "-o", "bandwidth_model=cut") == ("cut", 60.0)
    assert shown("--policy", "preserve", "-o", "bandwidth_model=mapa") == eq2


def test_one_gpu_needs_no_nvlink_to_itself(launcher: Launcher) -> None:
    """--nvlink is about the links within a job: one GPU is granted on a machine that has none."""
    asked = ("--topology", "pcie-8gpu-workstation", "--nvlink")
    assert launcher.run(*asked, "-n", "1", *SHOW).stdout == "0\n"
    assert launcher.run(*asked, "-n", "2", *SHOW).returncode == 2


def test_explain_says_what_would_work_instead(launcher: Launcher) -> None:
    """Where nothing is granted, --explain lists lesser requests that would be, and their GPUs."""
    bridged = ("--topology", "a100-pcie-4gpu")
    with held(launcher, *bridged, "-n", "2", "--only", "1,2"):
        asked = (*bridged, "-n", "2", "--nvlink", "--explain")
        done = launcher.run(*asked, "--dry-run", "--json", "--", "x")
        document = json.loads(done.stdout)
        assert (done.returncode, document["decision"], document["candidates"]) == (75, "wait", [])
        assert document["reason"] == "2 GPUs requested joined by NVLink: no 2 of the 2 free are"
        assert document["alternatives"] == [
            {"instead": "drop --nvlink", "gpus": [0, 3], "effective_bandwidth_gb_per_s": 12.0}
        ]  # one GPU would do, too, but has no link at all
        refused = launcher.run(*asked, "--", "x")
        assert refused.returncode == 75
        assert "drop --nvlink               12  0,3" in refused.stderr
    with held(launcher, *DGX, "-n", "6"):
        document = json.loads(
            launcher.run(*DGX, "-n", "3", "--explain", "--dry-run", "--json", "--", "x").stdout
        )
        assert [(one["instead"], len(one["gpus"])) for one in document["alternatives"]] == [
            ("ask for 2 GPUs", 2)
        ]


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

BAD_INPUT: list[tuple[str, tuple[str, ...], int, str]] = [
    ("unknown profile", (*DGX, "-p", "vgg17", "--", "x"), 2, "unknown profile 'vgg17'"),
    ("unknown policy", (*DGX, "--policy", "best", "--", "x"), 2, "--policy: unknown policy 'best'"),
    (
        "unknown pattern",
        (*DGX, "--pattern", "star7", "--", "x"),
        2,
        "--pattern: unknown pattern 'star7'",
    ),
    (
        "unknown model",
        (*DGX, "-o", "bandwidth_model=x", "--", "x"),
        2,
        "-o bandwidth_model: unknown bandwidth model 'x'",
    ),
    ("unknown topology", ("--topology", "dgx9", "--", "x"), 2, "unknown topology 'dgx9'"),
    (
        "no such file",
        ("--topology", "./none.toml", "--", "x"),
        2,
        "./none.toml: no such file or directory",
    ),
    ("no GPUs", (*DGX, "-n", "0", "--", "x"), 2, "-n: 0 GPUs requested: at least 1 is needed"),
    (
        "negative GPUs",
        (*DGX, "-n", "-1", "--", "x"),
        2,
        "-n: -1 GPUs requested: at least 1 is needed",
    ),
    (
        "GPUs in words",
        (*DGX, "--gpus=three", "--", "x"),
        2,
        "--gpus: 'three' is neither a number of GPUs nor 'all'",
    ),
    ("too many GPUs", (*DGX, "-n", "9", "--", "x"), 2, "9 GPUs requested: dgx1-v100 has 8"),
    (
        "a GPU that does not exist",
        (*DGX, "--only", "0,9", "--", "x"),
        2,
        "--only 0,9: '9' is no GPU of dgx1-v100, which has GPUs 0-7",
    ),
    (
        "an ambiguous UUID",
        (*DGX, "--only", "GPU-", "--", "x"),
        2,
        "--only GPU-: 'GPU-' fits 8 GPUs of dgx1-v100, which ",
    ),
    (
        "memory in words",
        (*DGX, "--memory", "lots", "--", "x"),
        2,
        "--memory: 'lots' is no amount of memory such as 8GiB",
    ),
    ("unknown option", (*DGX, "--profil", "vgg16", "--", "x"), 2, "unknown option --profil"),
    ("unknown letter", ("-xn3", "--", "x"), 2, "unknown option -x"),
    ("missing value", (*DGX, "-n"), 2, "-n/--gpus needs a value: N|2-4|all"),
    (
        "value for a switch",
        (*DGX, "--uuid=yes", "--", "x"),
        2,
        "--uuid takes no value, but 'yes' is given",
    ),
    ("no command", (*DGX, "--"), 2, "no command given"),
    ("the word alone", ("run",), 2, "no command given"),
    ("detached nothing", (*DGX, "-d"), 2, "no command given"),
    ("forgotten --", (*DGX, "train.py"), 2, "unknown command 'train.py'"),
    (
        "a command for status",
        ("status", "--", "x"),
        2,
        "'gpulaunch status' runs no command, but -- is given",
    ),
    (
        "JSON on the job's stdout",
        (*DGX, "--json", "--", "x"),
        2,
        "--json needs --dry-run, since stdout belongs to the job",
    ),
    ("nerdctl", (*DGX, "nerdctl", "run", "x"), 2, "launching with nerdctl is not built yet"),
    (
        "nerdctl after --",
        (*DGX, "--", "/usr/bin/nerdctl", "run", "x"),
        2,
        "launching with nerdctl is not built yet",
    ),
    (
        "no such program",
        (*DGX, "--", "no-such-program"),
        127,
        "no-such-program: no such file or directory",
    ),
    ("a program called status", (*DGX, "--", "status"), 127, "status: no such file or directory"),
    ("not executable", (*DGX, "--", "/etc/passwd"), 126, "/etc/passwd: permission denied"),
    ("a directory", (*DGX, "--", "/"), 126, "/: permission denied"),
    ("an empty value", (*DGX, "-p", "", "--", "x"), 2, "-p has an empty value"),
    (
        "digits of another script",
        (*DGX, "-n", "\u0663", "--", "x"),
        2,
        "-n: '\u0663' is neither a number of GPUs nor",
    ),
    ("an empty command name", (*DGX, "--", ""), 127, "'': no such file or directory"),
    (
        "too many partitions",
        ("--topology", "minsky-cluster", "-n", "6", "--policy", "best-effort", "--", "x"),
        125,
        "20 GPUs are free: policy best-effort can partition at most 16",
    ),
    (
        "terminal control",
        (*DGX, "-p", "\x1b[31mred", "--", "x"),
        2,
        "unknown profile '\\x1b[31mred'",
    ),
]


@pytest.mark.parametrize(
    ("sentence", "arguments", "exit_status", "message"),
    BAD_INPUT,
    ids=[row[0] for row in BAD_INPUT],
)
def test_bad_input_is_one_clear_line(
    launcher: Launcher, sentence: str, arguments: tuple[str, ...], exit_status: int, message: str
) -> None:
    """Bad input gets one error line, at most one hint and the right status, and no GPUs."""
    big = launcher.state.with_name("big.toml")
    big.write_text(BIG_MACHINE)
    done = launcher.run(*(str(big) if argument == "BIG" else argument for argument in arguments))
    error, *hint = done.stderr.splitlines()
    assert error.startswith(f"gpulaunch: error: {message}"), sentence
    assert len(hint) <= 1
    assert all(line.startswith("gpulaunch: hint: ") for line in hint)
    assert (done.returncode, done.stdout, launcher.records()) == (exit_status, "", [])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.toml", "gpus = 2\npolicy = \n", ":2: invalid value"),
        ("config.toml", "gpus = 2\npolicies = 3\n", ":2: unknown setting 'policies'"),
        ("config.toml", "\n\ngpus = 0\n", ":3: gpus: 0 GPUs requested: at least 1 is needed"),
        (
            "profiles/mine.toml",
            'name = "mine"\ngpus = "2"\n',
            ":2: gpus: '2' is not a whole number",
        ),
        ("profiles/mine.toml", 'name = "mine\n', ":1: illegal character '\\n'"),
    ],
)
def test_a_broken_file_is_named_with_its_line(
    launcher: Launcher, name: str, text: str, message: str
) -> None:
    """A mistake in a file is reported with path and line, and nothing is allocated."""
    path = Path(launcher.environment["XDG_CONFIG_HOME"]) / "gpulaunch" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    done = launcher.run(*DGX, *(["-p", "mine"] if "profiles" in name else []), "--", "true")
    assert (done.returncode, done.stderr.startswith(f"gpulaunch: error: {path}{message}")) == (
        2,
        True,
    ), done.stderr
    assert launcher.records() == []


def test_grammar_of_short_options(launcher: Launcher) -> None:
    """Short options may be joined, their value attached or next; `run` spells out the main job."""
    for options in (
        ["-n3"],
        ["-n", "3"],
        ["-qn3"],
        ["-qn", "3"],
        ["--gpus=3"],
        ["run", "-n", "3"],
        ["-q", "run", "-n3"],
    ):
        done = launcher.run(*DGX, "-p", "vgg16", *options, *SHOW)
        assert (done.stdout, done.stderr) == ("0,2,3\n", ""), options


def test_verbose_says_why_these_gpus(launcher: Launcher) -> None:
    """-v says on stderr in one line which GPUs the job got, why, and what they leave to others."""
    done = launcher.run(*VGG, "-v", *SHOW)
    assert done.stdout == "0,2,3\n"
    assert done.stderr == (
        "gpulaunch: info: GPUs 0,2,3 of dgx1-v100: 60 GB/s effective bandwidth, the most of 56 "
        "candidates; leaves 311 GB/s between free GPUs\n"
    )


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


def test_output_that_nobody_reads(launcher: Launcher) -> None:
    """`gpulaunch topo | head -1` ends quietly."""
    done = in_bash(launcher, "gpulaunch topo --topology dgx1-v100 | head -1")
    assert (done.stdout, done.stderr) == ("dgx1-v100: 8 x Tesla V100-SXM2-16GB, 15.78 GiB\n", "")


def test_topology_document(launcher: Launcher) -> None:
    """`topo --json` has all GPUs and a link for every two of them."""
    got = json.loads(launcher.run("topo", *DGX, "--json").stdout)
    assert (got["name"], len(got["gpus"]), len(got["links"])) == ("dgx1-v100", 8, 28)
    keys = ("a", "b", "path", "nvlink_count", "bandwidth_gb_per_s")
    link = {key: got["links"][2][key] for key in keys}
    assert link == {"a": 0, "b": 3, "path": "NVL", "nvlink_count": 2, "bandwidth_gb_per_s": 50.0}
    assert sum(link["bandwidth_gb_per_s"] for link in got["links"]) == 744


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("profile", "list"), "vgg16"),
        (("profile", "show", "cholla-mhd-4x"), "88.58"),
        (("topo", "--topology", "pcie-4gpu-workstation"), "PHB 20"),
        (("--help",), "--profile NAME|FILE"),
        (("--version",), "gpulaunch "),
    ],
)
def test_commands_that_print(launcher: Launcher, arguments: tuple[str, ...], expected: str) -> None:
    """Each command that prints says what it is for."""
    done = launcher.run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert expected in done.stdout


@pytest.mark.usefixtures("no_driver")
def test_described_machine_needs_no_gpus_and_no_silent_default(launcher: Launcher) -> None:
    """Without NVML and without --topology a launch ends with 125 and the hint; nothing runs."""
    done = launcher.run("--", "echo", "ran")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.splitlines() == [
        "gpulaunch: error: no NVML library (libnvidia-ml.so.1) found, so no NVIDIA driver",
        "gpulaunch: hint: without GPUs, try a described machine: --topology dgx1-v100",
    ]


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


@pytest.mark.parametrize(
    "arguments",
    ["--help", "--version", "--topology dgx1-v100 --dry-run --json -- x", "status --help"],
)
def test_a_stdout_that_cannot_be_written_is_one_line(launcher: Launcher, arguments: str) -> None:
    """A full disk under stdout is one error line and 125; a reader that has gone is no error."""
    full = in_bash(launcher, f"gpulaunch {arguments} >/dev/full")
    error = "gpulaunch: error: cannot write to stdout: no space left on device\n"
    assert (full.stderr, full.returncode) == (error, 125)
    assert in_bash(launcher, f"gpulaunch {arguments} | true").stderr == ""


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


def test_one_broken_profile_hides_no_other(launcher: Launcher) -> None:
    """`profiles` warns of a broken file and lists the rest."""
    directory = Path(launcher.environment["XDG_CONFIG_HOME"]) / "gpulaunch" / "profiles"
    directory.mkdir(parents=True)
    (directory / "broken.toml").write_text("name = \n")
    done = launcher.run("profile", "list")
    assert (done.returncode, "vgg16" in done.stdout) == (0, True)
    assert done.stderr == f"gpulaunch: warning: {directory}/broken.toml:1: invalid value\n"


def test_a_refusal_says_who_has_the_gpus(launcher: Launcher) -> None:
    """A launch that would have to wait says who has which GPUs, unless -q, and what to type."""
    user = pwd.getpwuid(os.getuid()).pw_name
    error = "gpulaunch: error: 1 GPU requested: 0 of 8 are free, 8 are leased"
    hint = "gpulaunch: hint: add --wait to queue, or see 'gpulaunch status --topology dgx1-v100'"
    with held(launcher, *DGX, "-n", "8", "--name", "big"):
        first, second, third = launcher.run(*DGX, *SHOW).stderr.splitlines()
        assert (first, third) == (error, hint)
        assert re.fullmatch(rf"gpulaunch: info: {user} has GPUs 0-7 \(big for \d+ s\)", second)
        assert launcher.run(*DGX, "-q", *SHOW).stderr.splitlines() == [error, hint]


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
        "engines.SOCKETS = {'docker': ('NO_HOST', ('/nowhere',), engines._connect_to_docker)};"
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
