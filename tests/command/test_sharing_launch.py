"""Sharing as users meet it, on a described machine: options, profiles, table, job variables."""

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import Launcher, held

BOX = ("--topology", "a100-pcie-4gpu")
DGX = ("--topology", "dgx1-v100")
ENV = ("--", "sh", "-c", "env | grep -E '^CUDA' | sort")
LIGHT = ("--share", "-o", "utilization=10,5", "--memory", "1GiB")
HEAVY = ("--share", "-o", "utilization=95,5", "--memory", "1GiB")

GPU_MIB = 16160  # profiles/machines/dgx1-v100.toml


def dry(launcher: Launcher, *options: str) -> dict:
    """Return the document of a dry run, with the exit status."""
    done = launcher.run(*options, "--dry-run", "--json", "--", "train")
    assert done.returncode in (0, 2, 75), done.stderr
    return json.loads(done.stdout) | {"status": done.returncode}


def indices(document: dict) -> list[int]:
    return [gpu["index"] for gpu in document["gpus"]]


def status(launcher: Launcher, *options: str) -> dict:
    return json.loads(launcher.run("status", "--json", *options).stdout)


def profile(launcher: Launcher, mib: int = 2048, more: str = "", bandwidth: int = 10) -> str:
    """Write a profile, and return its path."""
    path = Path(launcher.environment["HOME"], f"of-{mib}.toml")
    path.write_text(
        f'name = "of-{mib}"\n[resources]\nmemory_mib = {mib}\nsm_utilization_percentage = 40\n'
        f'memory_bandwidth_utilization_percentage = {bandwidth}\nsource = "made up"\n{more}'
    )
    return str(path)


def test_two_jobs_on_one_gpu(launcher: Launcher) -> None:
    """Two light jobs share a GPU, which status shows; a heavy one gets its own; all are freed."""
    with held(launcher, *DGX, *LIGHT) as one, held(launcher, *DGX, *LIGHT) as two:
        assert (one.gpus, two.gpus) == ("GPU-dgx1-v100-0", "GPU-dgx1-v100-0")
        document = status(launcher, *DGX)
        states = [(gpu["state"], len(gpu["leases"])) for gpu in document["gpus"][:2]]
        assert states == [("shared", 2), ("free", 0)]
        for lease in document["leases"]:
            # Of the first 66 % of the SMs keep 95 % of its speed.
            assert (66 <= lease["sm_percentage"] <= 80, lease["share_memory_bytes"]) == (
                True,
                1 << 30,
            )
            assert lease["pace"] <= lease["promised_pace"] < 1
        assert sorted(lease["pace"] < lease["promised_pace"] for lease in document["leases"]) == [
            False,
            True,
        ]  # the first is slower now than at its start
        assert indices(dry(launcher, *DGX, *HEAVY)) != [0]
        assert indices(dry(launcher, *DGX, "-n", "1")) != [0]
        assert dry(launcher, *DGX, "-n", "8")["status"] == 75
    assert status(launcher, *DGX)["leases"] == []
    assert launcher.records() == []


def test_many_at_once(launcher: Launcher) -> None:
    """Jobs that come at once all find a place, together where they may, and none is told busy."""
    job = (*DGX, *LIGHT, "--", "sh", "-c", "echo started; read line")
    jobs = [launcher.start(*job, stdin=subprocess.PIPE) for _ in range(8)]
    assert [job.stdout.readline() for job in jobs] == ["started\n"] * 8
    clients = sorted(len(gpu["leases"]) for gpu in status(launcher, *DGX)["gpus"])
    assert clients == [0, 0, 0, 0, 0, 2, 3, 3]
    for job in jobs:
        job.communicate("\n")
    assert [job.returncode for job in jobs] == [0] * 8
    assert launcher.records() == []


def test_a_lease_that_has_ended_leaves_no_share(launcher: Launcher) -> None:
    """A waiter whose shared lease has ended gets a GPU of its own, without a share."""
    script = (
        f"gpulaunch {' '.join(DGX)} -- sh -c 'echo $GPULAUNCH_LEASE; exec sleep 600' & read line"
    )
    outer = launcher.start(*DGX, *LIGHT, "--", "sh", "-c", script, stdin=subprocess.PIPE)
    first = outer.stdout.readline().strip()
    (around,) = [lease["id"] for lease in status(launcher, *DGX)["leases"] if lease["id"] != first]
    inside = launcher.environment | {"GPULAUNCH_LEASE": around}
    second = launcher.start(*DGX, "--wait", *ENV, env=inside)
    assert "waiting as number 1" in second.stderr.readline()
    outer.stdin.write("\n")
    outer.stdin.flush()
    outer.wait()
    found, said = second.communicate()
    assert [line.partition("=")[0] for line in found.splitlines()] == [
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
    ]
    assert "CUDA_VISIBLE_DEVICES=0\n" not in found
    assert f"lease {around} has ended, so the job gets GPUs outside of it" in said
    assert launcher.run("free", first).returncode == 0
    for stream in (outer.stdin, outer.stdout, outer.stderr):
        stream.close()


def test_a_waiting_sharer_is_woken_by_those_it_may_join(launcher: Launcher) -> None:
    """A waiter barred from free GPUs still joins a shared one as soon as there is room."""
    half = ("--share", "-o", "utilization=45,5", "--memory", "1GiB")
    with (
        held(launcher, *BOX, "--only", "0,1,3", "-n", "3"),
        held(launcher, *BOX, *half, "--only", "2"),
        held(launcher, *BOX, *half, "--only", "2") as leaver,
    ):
        first = launcher.start(*BOX, "-n", "2", "--only", "0,1", "--wait", "--", "true")
        assert "waiting as number 1" in first.stderr.readline()
        second = launcher.start(*BOX, *half, "--wait", *ENV)
        assert "waiting as number 2" in second.stderr.readline()
        assert leaver.end() == 7
        output, _ = second.communicate()
        assert "CUDA_VISIBLE_DEVICES=GPU-a100-pcie-4gpu-2" in output
        assert first.poll() is None
    first.communicate()


def test_from_python(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python program shares, too, by the same rules and in the same table."""
    import gpulaunch

    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(launcher.state))
    figures = {"utilization": [10, 5.5], "memory": "1GiB"}
    with (
        gpulaunch.allocate(topology="dgx1-v100", share=True, **figures) as one,
        gpulaunch.allocate(topology="dgx1-v100", share="25%", **figures) as two,
    ):
        assert (one.gpus, two.gpus) == ((0,), (0,))
        assert two.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        assert two.env["CUDA_VISIBLE_DEVICES"] == "GPU-dgx1-v100-0"
    assert launcher.records() == []


def test_a_program_hands_no_share_on(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is rid of another job's share in its environment while its own lease applies."""
    import gpulaunch

    found = {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/gpulaunch.mps.1000/0a1b2c3d",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(launcher.state))
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    with gpulaunch.allocate(topology="dgx1-v100") as lease:
        lease.apply()
        assert [name for name in os.environ if name.startswith("CUDA_MPS")] == []
    assert {name: os.environ[name] for name in os.environ if name.startswith("CUDA_MPS")} == found


# ------------------------------------------------- parts of a GPU; tests/corpus/shares.txt has each


def test_parts_fill_a_gpu(launcher: Launcher) -> None:
    """Parts come together on one GPU up to the whole, guests too, and no further."""
    with ExitStack() as stack:
        for part in ("10%",) * 4 + ("1/3",):
            stack.enter_context(held(launcher, *DGX, "--only", "0", f"--share={part}"))
        guest = stack.enter_context(held(launcher, *DGX, "--share=1/4", "--guest"))
        assert guest.gpus == "GPU-dgx1-v100-0"
        guests = [lease["guest"] for lease in status(launcher, *DGX)["leases"]]
        assert sorted(guests) == [False] * 5 + [True]
        shown = launcher.run("status", *DGX).stdout
        assert (shown.count("0 (25 %, guest)"), shown.count("0 (10 %)")) == (1, 4)
        refused = dry(launcher, *DGX, "--only", "0", "--share=1/4")
        assert (refused["status"], "average SM utilization 1" in refused["reason"]) == (75, True)
        assert indices(dry(launcher, *DGX, "--share=1/4")) != [0]


def test_what_may_come_together_counts_limits(launcher: Launcher) -> None:
    """Two peaks that fit are kept apart if their limits do not; status tells the limit.

    Measured on a part of the job, a profile sets no limit below what is free.
    """
    share = (*DGX, "--only", "0", "--share", "-p")
    large = (*share, profile(launcher, 7500))
    with held(launcher, *large):
        (lease,) = status(launcher, *DGX)["leases"]
        assert lease["share_memory_bytes"] == 8250 << 20
        refused = dry(launcher, *large)
        assert (refused["status"], "maximum memory 16500 MiB" in refused["reason"]) == (75, True)
        light = dry(launcher, *share, profile(launcher))
        assert light["sharing"]["memory_bytes"] == (8250 + 2253) << 20
        short = (*share, profile(launcher, 2048, "incomplete = true\n"))
        found = dry(launcher, *short)["env"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
        assert found == f"GPU-dgx1-v100-0={GPU_MIB - 8250}M"
        with held(launcher, *short):
            refused = dry(launcher, *share, profile(launcher))
            assert (refused["status"], "maximum memory" in refused["reason"]) == (75, True)
