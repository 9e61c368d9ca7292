"""Jobs that compute on GPUs outside their leases: who is told of them, and of what nobody is."""

import json
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from conftest import Launcher, until
from fake_nvml import FakeNvml
from values import box, lease

import gpulaunch
from gpulaunch.launch.surroundings import find_strays, name_strays
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.process.system import identify

pytest_plugins = ("fake_nvml",)

USER = pwd.getpwuid(os.getuid()).pw_name
PIDS = "echo $$ $!; read line; kill $!"
CARRIES = "env -u CUDA_VISIBLE_DEVICES sleep 600 & "
DESCENDS = "env -i sleep 600 & "


@contextmanager
def running(
    launcher: Launcher, *options: str, job: str = CARRIES
) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """Run a job for the block; yield gpulaunch, the job's pid, and that of what it began last."""
    command = ("sh", "-c", job + PIDS)
    with launcher.start(*options, "--", *command, stdin=subprocess.PIPE) as process:
        main, child = process.stdout.readline().split()
        yield process, int(main), int(child)
        process.stdin.close()  # ends the job


def document(launcher: Launcher, command: str = "status") -> dict:
    """Return what a command prints with --json."""
    return json.loads(launcher.run(command, "--json").stdout)


def job_pids(launcher: Launcher) -> dict[str, int]:
    """Return the pids of jobs by their names."""
    return {one["name"]: one["job_pid"] for one in document(launcher)["leases"]}


def strays(launcher: Launcher) -> dict[int, list[int]]:
    """Return the pids of strays on each GPU that has any."""
    gpus = document(launcher)["gpus"]
    return {gpu["index"]: [one["pid"] for one in gpu["strays"]] for gpu in gpus if gpu["strays"]}


def test_a_stray_job_has_its_name_everywhere(launcher, dgx1_v100: FakeNvml) -> None:
    """What carries a lease is the job's on other GPUs as well."""
    with running(launcher, "--only", "0", "--name", "stray") as (_, main, child):
        dgx1_v100.add(f"process 0 {main} 300", f"process 2 {child} 300")
        told = document(launcher)
        gpu, id_ = told["gpus"][2], told["leases"][0]["id"]
        screens = [launcher.run(*words).stdout for words in (["status"], ["status", "--gpus"])]
        screens.append(launcher.run("top").stdout)
        doctor = document(launcher, "doctor")["findings"]
        refused = launcher.run("-n", "8", "--", "true").stderr
        explained = launcher.run("-n", "1", "--dry-run", "--explain", "--", "true").stdout
    who = f"job stray (lease {id_[:4]}) of {USER}, which does not have it"
    assert gpu["strays"] == [{"pid": child, "lease": id_, "who": who}]
    assert (gpu["state"], gpu["free"], gpu["outside"]) == ("outside", False, f"pid {child}, {USER}")
    for screen in screens:
        assert f"GPU 2 is in use by {who}" in screen.splitlines()
        assert "outside gpulaunch" not in screen
    found = [(one["state"], one["text"]) for one in doctor if one["subject"] == "leases"]
    assert found == [("problem", f"GPU 2 is in use by {who} (pid {child})")]
    assert f"6 of 8 are free, 1 is leased, 1 is in use by {who}\n" in refused
    assert f"in use by {who}" in explained


def test_a_stray_job_on_the_gpu_of_another(launcher, dgx1_v100: FakeNvml) -> None:
    """On a GPU that another job has, it is told of beside that one; it descends from its job."""
    with (
        running(launcher, "--only", "2", "--name", "right") as (_, owner, _),
        running(launcher, "--only", "0", "--name", "stray", job=DESCENDS) as (_, _, child),
    ):
        dgx1_v100.add(f"process 2 {owner} 300", f"process 2 {child} 300")
        found, lines = strays(launcher), launcher.run("status").stdout.splitlines()
    assert found == {2: [child]}
    assert sum(line.startswith("GPU 2 is in use by job stray (lease ") for line in lines) == 1


def test_its_launcher_says_so_twice(launcher, dgx1_v100: FakeNvml) -> None:
    """The launcher says one line when it first sees that its job strays, and one at the end."""
    launcher.environment["GPULAUNCH_IDLE_AFTER"] = "1s"
    options = ("--only", "0,1", "-n", "2", "--name", "stray")
    with running(launcher, *options) as (process, main, child):
        dgx1_v100.add(f"process 0 {main} 300", f"process 2 {child} 300")
        first = process.stderr.readline()
        process.stdin.close()
        rest = process.stderr.read()
    where = "on GPU 2, outside its lease (GPUs 0-1)"
    kept = "it has to keep the CUDA_VISIBLE_DEVICES that it got"
    assert first == f"gpulaunch: warning: job stray computes {where}: {kept}\n"
    assert rest == f"gpulaunch: warning: the job computed {where}\n"


def test_jobs_inside_jobs(launcher, dgx1_v100: FakeNvml) -> None:
    """A job inside another has its GPUs and the other's; one apart from it strays from neither."""
    inner = f"{launcher.script} --only 1 --name inner -- sleep 600 & "
    apart = f"env -u GPULAUNCH_LEASE -u CUDA_VISIBLE_DEVICES {launcher.script} --only 4"
    job = f"{inner} {apart} --name apart -- sleep 600 & "
    launcher.environment["GPULAUNCH_IDLE_AFTER"] = "1s"
    with (
        running(launcher, "--only", "0,1", "-n", "2", "--name", "outer", job=job) as (outer, *_),
        ExitStack() as at_the_end,
    ):
        for name in ("inner", "apart"):
            at_the_end.callback(launcher.run, "free", name)
        until(lambda: len(job_pids(launcher)) == 3)
        pid = job_pids(launcher)
        dgx1_v100.add(f"process 0 {pid['inner']} 300", f"process 4 {pid['apart']} 300")
        dgx1_v100.add(f"process 1 {pid['apart']} 300", f"process 6 {pid['inner']} 300")
        found, told = strays(launcher), outer.stderr.readline()
    assert found == {6: [pid["inner"]]}
    assert told.startswith("gpulaunch: warning: job inner computes on GPU 6, outside its lease")


def test_a_process_with_several_leases(launcher, dgx1_v100: FakeNvml) -> None:
    """A Python program has the GPUs of all leases that it holds, and strays on all others."""

    def hold() -> int:
        with gpulaunch.allocate(only="1"), gpulaunch.allocate(only="3"):
            print("holds", flush=True)
            return signal.pause() or 0

    with launcher.call(hold) as program:
        assert program.stdout.readline() == "holds\n"
        dgx1_v100.add(*(f"process {gpu} {program.pid} 300" for gpu in (1, 3, 7)))
        found = strays(launcher)
        program.kill()
    assert found == {7: [program.pid]}


def test_an_mps_server_is_nobodys_stray(launcher, dgx1_v100: FakeNvml, tmp_path: Path) -> None:
    """An MPS server computes for its clients: it is not the job's that happened to start it."""
    server = shutil.copy("/bin/sleep", tmp_path / "nvidia-cuda-mps-server")
    dgx1_v100.change(2, mode=3)  # EXCLUSIVE_PROCESS, in which the server keeps others out
    with running(launcher, "--only", "0", job=f"{server} 600 & ") as (_, main, child):
        dgx1_v100.add(f"process 2 {child} 300", f"process 5 {main} 300")
        found, screen = strays(launcher), launcher.run("status").stdout
    assert found == {5: [main]}
    assert f"EXCLUSIVE_PROCESS: pid {child}, {USER}" in screen


def test_what_another_user_wrote_names_nobody() -> None:
    """A job is a lease's only if its process, or that one's parent, is of the lease's owner."""
    uses, job, own = [OutsideUse("GPU-7", "", (os.getpid(),))], identify(os.getpid()), os.getuid()
    leases = [
        lease("aaaa", 0, user_id=own, job=job),
        lease("bbbb", 0, user_id=own + 12345, job=job),
        lease("cccc", 0, user_id=own + 12345, job=identify(1)),
    ]
    named = [[use.stray for use in find_strays(box(), uses, [one])] for one in leases]
    assert named == [["aaaa"], [], []]


def test_a_fault_stays_a_fault() -> None:
    """What bars a GPU is said also where a stray uses it, and other processes keep their pids."""
    stray = lease("aaaa", 0, user_id=os.getuid(), job=identify(os.getpid()))
    pids = (os.getpid(), 1)
    uses = [OutsideUse("GPU-6", "a fault", pids, state="barred"), OutsideUse("GPU-7", "pids", pids)]
    barred, used = name_strays(box(), uses, [stray])
    assert (barred, used.stray, used.pids) == (uses[0], "aaaa", pids)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to run a process of another user")
def test_an_id_in_the_environment_of_another_user() -> None:
    """A lease that a process of another user carries is not its own."""
    mine, named = lease("aaaa", 0, user_id=0), []
    for user in (0, 12345):
        carries = {"GPULAUNCH_LEASE": "aaaa"}
        with subprocess.Popen(
            ["/bin/cat"], user=user, env=carries, stdin=subprocess.PIPE
        ) as process:
            uses = [OutsideUse("GPU-7", "", (process.pid,))]
            named.append([use.stray for use in find_strays(box(), uses, [mine])])
    assert named == [["aaaa"], []]
