"""Sharing as users meet it, on a described machine: options, profiles, table, job variables."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import Held, Launcher, held

BOX = ("--topology", "a100-pcie-4gpu")
DGX = ("--topology", "dgx1-v100")
ENV = ("--", "sh", "-c", "env | grep -E '^CUDA' | sort")
LIGHT = ("--share", "-o", "utilization=10,5", "--memory", "1GiB")
HEAVY = ("--share", "-o", "utilization=95,5", "--memory", "1GiB")


def dry(launcher: Launcher, *options: str) -> dict:
    """Return the document of a dry run, with the exit status."""
    done = launcher.run(*options, "--dry-run", "--json", "--", "train")
    assert done.returncode in (0, 2, 75), done.stderr
    return json.loads(done.stdout) | {"status": done.returncode}


def indices(document: dict) -> list[int]:
    return [gpu["index"] for gpu in document["gpus"]]


def status(launcher: Launcher, *options: str) -> dict:
    return json.loads(launcher.run("status", "--json", *options).stdout)


def test_two_jobs_on_one_gpu(launcher: Launcher) -> None:
    """Two light jobs share a GPU, which status shows; a heavy one gets its own; all are freed."""
    with (
        held(launcher, *DGX, *LIGHT, "--name", "one") as one,
        held(launcher, *DGX, *LIGHT, "--name", "two") as two,
    ):
        assert (one.gpus, two.gpus) == ("GPU-dgx1-v100-0", "GPU-dgx1-v100-0")
        document = status(launcher, *DGX)
        assert [(gpu["state"], len(gpu["leases"])) for gpu in document["gpus"][:2]] == [
            ("shared", 2),
            ("free", 0),
        ]
        assert [
            (lease["shared"], lease["sm_percentage"], lease["share_memory_bytes"])
            for lease in document["leases"]
        ] == [
            (True, 100, 1 << 30),
            (True, 100, 1 << 30),
        ]
        paces = sorted(lease["promised_pace"] for lease in document["leases"])
        assert paces == [pytest.approx(1 / 1.01, rel=1e-3), 1.0]  # at the start of each
        table = launcher.run("status", *DGX).stdout.splitlines()
        assert table[0] == "dgx1-v100: 7 of 8 GPUs free: 1-7 (Tesla V100-SXM2-16GB)"
        assert ["  0 (shared)  " in line for line in table[3:]] == [True, True]
        assert indices(dry(launcher, *DGX, *HEAVY)) != [0]
        assert indices(dry(launcher, *DGX, "-n", "1")) != [0]
        assert dry(launcher, *DGX, "-n", "8")["status"] == 75
    assert status(launcher, *DGX)["leases"] == []
    assert launcher.records() == []


def test_the_documents_tell_with_whom(launcher: Launcher) -> None:
    """A dry run names residents, sums, what is best for all, and what the residents leave."""
    curve = Path(launcher.environment["HOME"]) / "curved.toml"
    curve.write_text(
        'name = "curved"\n[resources]\nmemory_mib = 2048\nsm_utilization_percentage = 40\n'
        'memory_bandwidth_utilization_percentage = 40\npower_w = 150\nsource = "made up"\n'
        "[sm_curve]\nsm_percentage = [10, 20, 30, 100]\nthroughput = [5, 9, 10, 10]\nsource = "
        '"made up"\n'
    )
    with held(launcher, *DGX, "--share", "-p", str(curve), "--name", "saturated"):
        document = dry(launcher, *DGX, *LIGHT)
        like = dry(launcher, *DGX, "--share", "-p", str(curve), "--share=60%")["sharing"]
    sharing = document["sharing"]
    assert (document["shared"], document["reason"].startswith("shared with saturated (")) == (
        True,
        True,
    )
    assert [(one["name"], one["profile"]) for one in sharing["residents"]] == [
        ("saturated", "curved")
    ]
    given = sharing["residents"][0]["sm_percentage"]
    assert 20 <= given <= 30
    assert (sharing["left_sm_percentage"], document["sm_percentage"]) == (100 - given, 100)
    assert (
        sharing["sm_utilization_percentage"],
        sharing["memory_bandwidth_utilization_percentage"],
    ) == (50, 45)
    assert (sharing["memory_bytes"], sharing["power_w"]) == ((1024 + 2253) << 20, None)
    assert len(sharing["optimum_sm_percentages"]) == 2
    assert (sharing["decided_by"], 1.8 < sharing["predicted_stp"] < 2) == ("sums", True)
    # Half of the time both want all bandwidth: 1.16 times as long, and a little more for the caps.
    assert like["predicted_stp"] == pytest.approx(2 / 1.16, rel=0.02)


def test_many_at_once(launcher: Launcher) -> None:
    """Jobs that come at once all find a place, together where they may, and none is told busy."""
    jobs = [
        launcher.start(
            *DGX, *LIGHT, "--", "sh", "-c", "echo started; read line", stdin=subprocess.PIPE
        )
        for _ in range(8)
    ]
    assert [job.stdout.readline() for job in jobs] == ["started\n"] * 8
    clients = sorted(len(gpu["leases"]) for gpu in status(launcher, *DGX)["gpus"])
    assert clients == [0, 0, 0, 0, 0, 2, 3, 3]
    for job in jobs:
        job.communicate("\n")
    assert [job.returncode for job in jobs] == [0] * 8
    assert launcher.records() == []


def test_a_launcher_that_is_killed_keeps_nobody_from_sharing(launcher: Launcher) -> None:
    """A job whose launcher was killed keeps its share, others join it, and its end frees it."""
    job = Held(launcher, *DGX, *LIGHT)
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    beside = dry(launcher, *DGX, *LIGHT)
    assert (indices(beside), beside["shared"]) == ([0], True)
    assert indices(dry(launcher, *DGX)) != [0]
    os.kill(job.job_pid, signal.SIGKILL)
    job.process.communicate()


def test_inside_a_lease_that_is_shared(launcher: Launcher) -> None:
    """A launch inside a job that shares has its share, and is not counted as another job."""
    script = (
        f"gpulaunch {' '.join(DGX)} -- sh -c 'env | grep ^CUDA_MPS | sort; gpulaunch status "
        f"{' '.join(DGX)} --json'"
    )
    done = launcher.run(*DGX, *LIGHT, "--share=40%", "--", "sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    percentage, limit, rest = done.stdout.split("\n", 2)
    assert percentage == "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40"
    assert limit == "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=GPU-dgx1-v100-0=1024M"
    leases = json.loads(rest)["leases"]
    assert [(lease["shared"], lease["sm_percentage"], lease["parent"]) for lease in leases] == [
        (True, 40, None),
        (True, 40, leases[0]["id"]),
    ]


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
