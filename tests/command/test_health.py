"""Which GPUs are fit for jobs: faults that bar them, marks that drain them, Xids of a job."""

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest
from conftest import DGX, complaint, until

from gpulaunch.errors import FailedError
from gpulaunch.leases.directory import remove_drain, write_drain

pytest_plugins = ("fake_nvml",)

SHOW_GPUS = ("--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
STATUS_HINT = "add --wait to queue, or see 'gpulaunch status'"
GPU_IS_LOST = 15  # nvmlReturn_t

RESET = "the driver says that it "
FABRIC = "its registration with the NVSwitch fabric "
BARRING = {
    1: ("remap_failure=1", "the remapping of a memory row has failed"),
    2: ("recovery=1", f"{RESET}has to be reset"),
    3: ("recovery=9", f"{RESET}needs action 9"),
    4: ("fabric=1", f"{FABRIC}has not started, so that CUDA fails with error 802"),
    5: ("fabric=2", f"{FABRIC}is in progress, so that CUDA fails with error 802"),
    6: ("fabric=3 fabric_status=999", f"{FABRIC}failed (NVML 999)"),
}
WARNING = {
    1: ("ecc=2", "2 uncorrectable ECC errors since the driver was loaded"),
    2: ("rows_pending=1", "memory rows are to be remapped at its next reset"),
    3: ("pages_pending=1", "memory pages are to be retired at its next reset"),
    4: ("nvlink_recoveries=3", "its NVLinks had to recover from errors 3 times"),
    5: ("throttle=8", "slowed down by its hardware"),
    6: ("throttle=64", "slowed down by its hardware, as it is too hot"),
}
HARMLESS = ("fabric=3", "fabric=0", "recovery=0", "remap_failure=0", "ecc=0", "throttle=4")


def change(fake, gpu: int, text: str) -> None:
    fake.change(gpu, **dict(word.split("=") for word in text.split()))


def gpus_of(launcher) -> list[dict]:
    run = launcher.run("status", "--json")
    assert (run.returncode, run.stderr) == (0, "")
    return json.loads(run.stdout)["gpus"]


def health_of(launcher, *options: str) -> tuple[int, list[tuple[str, str]]]:
    run = launcher.run("doctor", "--health", "--json", *options)
    findings = json.loads(run.stdout)["findings"]
    return run.returncode, [(found["state"], found["text"]) for found in findings]


def outcome(launcher, *arguments: str) -> tuple[int, str, str]:
    run = launcher.run(*arguments)
    return run.returncode, run.stdout, run.stderr


def states(launcher, *options: str) -> list[str]:
    document = json.loads(launcher.run("status", "--json", *options).stdout)
    return [gpu["state"] for gpu in document["gpus"]]


# ------------------------------------------------------------------------------------------ faults


def test_a_fault_bars_a_gpu(launcher, hgx_h100) -> None:
    """A GPU with a fault is granted to nobody, and the refusal, status and doctor say why."""
    for gpu, (fault, _) in BARRING.items():
        change(hgx_h100, gpu, fault)
    run = launcher.run("-n", "8", *SHOW_GPUS)
    assert (run.returncode, "2 of 8 are free, 6 are out of service" in run.stderr) == (75, True)
    assert launcher.run("-n", "all", *SHOW_GPUS).stdout == "0,7\n"
    found = gpus_of(launcher)
    table = launcher.run("status").stdout.replace("\n", " ")
    for gpu, (_, why) in BARRING.items():
        one = found[gpu]
        assert (one["state"], one["free"], one["problems"]) == ("barred", False, [why])
        assert gpu > 5 or f"GPU {gpu} is barred: {why}"[:70] in table
    reasons = [("problem", f"GPU {gpu} is granted to nobody: {BARRING[gpu][1]}") for gpu in BARRING]
    assert health_of(launcher) == (1, reasons)
    for gpu in (2, 3, 4, 5, 6):
        change(hgx_h100, gpu, "recovery=0 fabric=0")
    run = launcher.run("-n", "8", *SHOW_GPUS)
    reason = f"8 GPUs requested: 7 of 8 are free, 1 is out of service (GPU 1: {BARRING[1][1]})"
    assert (run.returncode, run.stderr) == (75, complaint(reason, STATUS_HINT))


def test_a_sign_only_warns(launcher, hgx_h100) -> None:
    """A GPU with a sign is granted like any other, and status and doctor tell of the sign."""
    for gpu, (sign, _) in WARNING.items():
        change(hgx_h100, gpu, sign)
    assert launcher.run("-n", "8", *SHOW_GPUS).stdout == "0,1,2,3,4,5,6,7\n"
    found = gpus_of(launcher)
    for gpu, (_, text) in WARNING.items():
        one = found[gpu]
        assert (one["state"], one["problems"], one["warnings"]) == ("free", [], [text])
    signs = [("warning", f"GPU {gpu}: {text}") for gpu, (_, text) in WARNING.items()]
    assert health_of(launcher) == (0, signs)


@pytest.mark.parametrize("machine", ["dgx1_v100", "hgx_h100"])
def test_links_that_are_down_warn(launcher, request, machine: str) -> None:
    """NVLinks that are down are told of, of cards that are asked link by link as of newer ones."""
    nvml = request.getfixturevalue(machine)
    for link in (1, 2):
        nvml.drop(f"nvlink 3 {link} ")
        nvml.add(f"nvlink 3 {link} hopper state=0")
    assert gpus_of(launcher)[3]["warnings"] == ["NVLinks 1, 2 down"]
    assert health_of(launcher) == (0, [("warning", "GPU 3: NVLinks 1, 2 down")])


def test_a_healthy_answer(launcher, hgx_h100) -> None:
    """A GPU that answers that all is well is no finding.

    A driver that knows none of the calls tells of no fault, and every GPU is granted.
    """
    for gpu, answer in enumerate(HARMLESS):
        change(hgx_h100, gpu, answer)
    well = "8 GPUs: nothing wrong, as far as the driver tells"
    assert health_of(launcher) == (0, [("ok", well)])
    change(hgx_h100, 3, "remap_failure=1 fabric=2")
    for function in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfoV"):
        hgx_h100.answer(function, 13)
    assert launcher.run("-n", "8", *SHOW_GPUS).stdout == "0,1,2,3,4,5,6,7\n"


def test_a_mig_instance_has_the_health_of_its_card(launcher, nvml) -> None:
    """A fault of a card bars its MIG instances."""
    card = {"uuid": "GPU-a", "name": "A100", "memory_mib": 40960, "cc": "8.0", "mig": 1}
    nvml.describe(
        [card | {"remap_failure": 1}],
        ["gpu 1000 uuid=MIG-a name=A100_MIG_1g.5gb memory_mib=4864"],
    )
    run = launcher.run("-n", "1", *SHOW_GPUS)
    assert run.returncode == 75
    assert "GPU 0:0: the remapping of a memory row has failed" in run.stderr


def test_a_job_inside_a_lease_gets_no_barred_gpu(launcher, dgx1_v100) -> None:
    """A GPU of a lease that a fault bars meanwhile is not granted to a launch inside the lease."""
    within = f"{launcher.script} -n 1 --only 1 -- true; {launcher.script} -n 2 -- true"
    with launcher.start(
        "-n", "2", "--only", "0,1", "--", "sh", "-c", f"echo on; read x; {within}", stdin=-1
    ) as job:
        assert job.stdout.readline() == "on\n"
        change(dgx1_v100, 0, "remap_failure=1")
        _, errors = job.communicate("\n")
    assert (job.returncode, "1 of 2 is free, 1 is out of service (GPU 0: " in errors) == (75, True)


# ------------------------------------------------------------------------------------------ drains


@pytest.mark.usefixtures("dgx1_v100")
def test_draining_and_undraining(launcher) -> None:
    """A drained GPU is granted to nobody until it is undrained; status tells who, why and when."""
    out = outcome(launcher, "drain", "2", "--reason", "fan is loud")
    assert out == (0, f"drained GPU 2 of {os.uname().nodename}\n", "")
    found = gpus_of(launcher)[2]
    who = found["drained"]["by"]
    assert (found["state"], found["drained"]["reason"]) == ("drained", "fan is loud")
    run = launcher.run("-n", "8", *SHOW_GPUS)
    why = f"drained by {who}: fan is loud"
    reason = f"8 GPUs requested: 7 of 8 are free, 1 is out of service (GPU 2: {why})"
    assert (run.returncode, run.stderr) == (75, complaint(reason, STATUS_HINT))
    assert f"GPU 2 is drained by {who} for " in launcher.run("status").stdout
    assert launcher.run("-n", "all", *SHOW_GPUS).stdout == "0,1,3,4,5,6,7\n"
    back = f"GPU 2 of {os.uname().nodename}"
    assert outcome(launcher, "undrain", "2") == (0, f"{back} in service again\n", "")
    again = outcome(launcher, "undrain", "2")
    assert again == (0, "", f"gpulaunch: warning: {back}: not drained\n")
    assert launcher.run("-n", "8", *SHOW_GPUS).stdout == "0,1,2,3,4,5,6,7\n"
    assert launcher.records() == []


def test_a_job_on_a_drained_gpu_goes_on(launcher) -> None:
    """Draining lets a job that is there finish, with launches inside its lease.

    Its GPUs are leased, and then drained.
    """
    inside = f"read x; {launcher.script} -n 2 -- sh -c 'echo $CUDA_VISIBLE_DEVICES'"
    with launcher.start(*DGX, "-n", "8", "--", "sh", "-c", f"echo on; {inside}", stdin=-1) as job:
        assert job.stdout.readline() == "on\n"
        out = outcome(launcher, "drain", "1-2", "3-4", *DGX)
        assert out == (0, "drained GPUs 1-4 of dgx1-v100; 1 job on them may finish\n", "")
        assert states(launcher, *DGX)[1:3] == ["leased", "leased"]
        out, errors = job.communicate("\n")
    assert (job.returncode, len(out.split(",")), errors) == (0, 2, "")
    assert states(launcher, *DGX)[1:3] == ["drained", "drained"]


def test_undraining_wakes_who_waits(launcher) -> None:
    """Who waits for a drained GPU is told why, and starts when it is undrained."""
    launcher.run("drain", "7", *DGX, "--reason", "new fan")
    with launcher.start(*DGX, "-n", "8", "--wait", *SHOW_GPUS) as waiter:
        said = waiter.stderr.readline()
        assert "1 is out of service (GPU 7: drained by " in said
        assert "new fan)" in said
        launcher.run("undrain", "7", *DGX)
        assert waiter.communicate()[0] == "0,1,2,3,4,5,6,7\n"


def test_marks_that_do_not_count(launcher) -> None:
    """A mark of an earlier boot, of another user or that is no mark at all drains nothing."""
    launcher.run("drain", "7", *DGX)
    (mark,) = launcher.state.glob("gpulaunch.drained.*")
    text = mark.read_text()
    assert states(launcher, *DGX)[7] == "drained"
    earlier = json.dumps(json.loads(text) | {"boot_id": "another"}).encode()
    for content in (earlier, b"", b"{}", b"[1]", b"\xff", b"[" * 4000, b'{"uuid": "x"}'):
        mark.write_bytes(content)
        assert set(states(launcher, *DGX)) == {"free"}, content
    mark.write_text(text)
    if os.getuid() == 0:
        os.chown(mark, 65534, 65534)
        assert states(launcher, *DGX)[7] == "free"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be somebody else")
def test_only_root_and_the_owner_may_drain() -> None:
    """Neither draining nor undraining is for users who do not own the state directory."""
    with tempfile.TemporaryDirectory() as directory:
        os.seteuid(65534)
        try:
            with pytest.raises(FailedError, match="only root may take GPUs out of service or back"):
                write_drain(directory, "GPU-a", None, "")
            with pytest.raises(FailedError, match="only root may take GPUs out of service or back"):
                remove_drain(directory, "GPU-a", None)
        finally:
            os.seteuid(0)


# -------------------------------------------------------------------------------------------- Xids


def run_until(launcher, fake, *lines: str, ending: str, gpu: str = "3") -> str:
    """Run a job on a GPU, let faults happen while it runs, and return what gpulaunch said."""
    script = f"echo on; read x; {ending}"
    with launcher.start("--only", gpu, "--", "sh", "-c", script, stdin=-1) as job:
        assert job.stdout.readline() == "on\n"
        until(lambda: watches(job.pid))
        for line in lines:
            before = watch_sleeps(job.pid)
            fake.add(line)
            until(lambda: watch_sleeps(job.pid) > before)  # noqa: B023
        return job.communicate("\n")[1]


def watch_status(pid: int) -> dict[str, str]:
    """Return what the kernel says of the thread that listens for Xids."""
    (thread,) = watches(pid)
    lines = Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def watch_sleeps(pid: int) -> int:
    """Return how often the thread has gone to sleep; 0 while it is awake."""
    status = watch_status(pid)
    return int(status["voluntary_ctxt_switches"]) if status["State"].startswith("S") else 0


def watches(pid: int) -> list[str]:
    """Return the threads of a launcher that listen for Xids: one, once it has begun."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [task.name for task in tasks if task.joinpath("comm").read_text() == "xid watch\n"]


def test_a_job_is_told_of_its_xids(launcher, dgx1_v100) -> None:
    """One line at the job's end tells of its GPU's Xids, in their order, with their meaning.

    Neither the Xid of another GPU nor one from before the job is told. A failed job whose GPU does
    not answer any more is told so.
    """
    dgx1_v100.add("xid 3 13")
    lost = f"error * 3 {GPU_IS_LOST}"
    xids = ("xid 3 31", "xid 4 48", "xid 3 79", "xid 3 777", lost)
    said = run_until(launcher, dgx1_v100, *xids, ending="exit 9")
    assert said == (
        "gpulaunch: warning: GPU 3 had Xid 31 (GPU memory page fault, most often a fault of the "
        "program), then Xid 79 (GPU has fallen off the bus), then Xid 777, see NVIDIA's Xid "
        "catalogue\n"
        "gpulaunch: warning: GPU 3 does not answer any more\n"
    )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -2)])
@pytest.mark.usefixtures("dgx1_v100")
def test_signals_beside_the_watch(launcher, number: int, status: int) -> None:
    """A signal to gpulaunch reaches the job: the thread that listens for Xids blocks them all."""
    with launcher.start("-n", "1", "--", "sh", "-c", "echo on; exec sleep 60") as job:
        assert job.stdout.readline() == "on\n"
        until(lambda: watches(job.pid))
        blocked = int(watch_status(job.pid)["SigBlk"], 16)
        os.kill(job.pid, number)
        job.communicate()
    assert blocked & 1 << (number - 1)
    assert job.returncode == status


def test_no_events_no_watch(launcher, dgx1_v100) -> None:
    """On a driver without events a job runs as ever."""
    dgx1_v100.answer("nvmlEventSetCreate", 3)
    run = launcher.run("-n", "1", *SHOW_GPUS)
    assert (run.returncode, run.stdout, run.stderr) == (0, "0\n", "")
