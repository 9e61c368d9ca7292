"""On an NVIDIA GPU with CUDA MPS and PyTorch only: what jobs that share a GPU see, and their ends.

Run: python -m pytest tests/gpu/test_real_sharing.py -s. docs/results/sharing-measured.md tells what
is measured and how. No setting of a GPU is changed; the GPU is one that nobody uses, and the jobs'
MPS daemon is theirs alone.
"""

import os
import time

import pytest
from real_gpu import KINDS, MEMORY_MIB, Bench, is_alive, mps_of

from gpulaunch.machine.nvidia import nvml

pytest_plugins = ("real_gpu",)

SETTLED_S = 20.0
"""After a launch: gpulaunch has then checked at 1, 3, 7 and 15 s whether the job is attached."""

_INITIAL_PID_NAMESPACE = 4026531836  # PROC_PID_INIT_INO of the kernel


def test_a_job_is_attached(bench: Bench) -> None:
    """A job that shares is a client of its group's daemon, which confirms it; no warning comes.

    NVML lists it among the GPU's MPS clients, which tells it from use without MPS. A container it
    does not tell the pids of its own processes.
    """
    job = bench.share("memory", 50, 1)
    facts = job.said()
    assert job.warnings == []
    assert facts["variables"]["CUDA_MPS_PIPE_DIRECTORY"].startswith(f"{bench.mps}/")
    assert mps_of(facts).clients() == {facts["pid"]}
    if os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE:
        nvml.open_nvml()
        assert facts["pid"] in nvml.card_of(bench.gpu.uuid, 0).pids("mps")
    time.sleep(max(0.0, job.began + SETTLED_S - time.monotonic()))
    job.go()
    assert job.said()["iterations_per_s"] > 0
    assert (job.end(), job.warnings) == (0, [])


def test_memory_is_bounded(bench: Bench) -> None:
    """A job gets the memory of its lease, and beyond that CUDA is out of memory on a larger GPU."""
    small, large = MEMORY_MIB // 3, MEMORY_MIB * 4 // 3
    jobs = [bench.share("allocate", 50, mib, profile="memory") for mib in (small, large)]
    within, beyond = (job.said() for job in jobs)
    want = f"{bench.gpu.uuid}={MEMORY_MIB}M"
    for facts in (within, beyond):
        assert facts["variables"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == want
    assert (within["allocated"], beyond["allocated"]) == (True, False)
    assert "out of memory" in beyond["problem"]
    assert [job.end() for job in jobs] == [0, 0]
    assert bench.plain("allocate", large).said()["allocated"]


def test_two_jobs_share(bench: Bench) -> None:
    """Two jobs on a GPU are clients of one server and shown by status; an unshared one gets 75."""
    jobs = [bench.share("memory", 30, 1), bench.share("compute", 70, 1)]
    facts = [job.said() for job in jobs]
    assert mps_of(facts[0]).clients() == {one["pid"] for one in facts}
    assert len(mps_of(facts[0]).servers()) == 1
    status = bench.status()
    gpu = next(gpu for gpu in status["gpus"] if gpu["uuid"] == bench.gpu.uuid)
    assert (gpu["state"], sorted(gpu["leases"])) == ("shared", sorted(map(bench.lease_of, jobs)))
    shares = {lease["profile"]: lease["sm_percentage"] for lease in status["leases"]}
    assert shares == {"memory": 30, "compute": 70}
    assert bench.launcher.run("--only", bench.gpu.uuid, "--", "true").returncode == 75


def test_nothing_is_left(bench: Bench) -> None:
    """The daemon stays while a job is left and goes with the last: no process, lease, directory."""
    jobs = [bench.share(kind, 50, 1) for kind in KINDS]
    facts = [job.said() for job in jobs]
    daemon = mps_of(facts[0]).processes()
    assert len(daemon) == 2
    for job, left in zip(jobs, (daemon, []), strict=True):
        job.go()
        job.said()
        assert job.end() == 0
        assert [pid for pid in daemon if is_alive(pid)] == left
    assert (bench.launcher.records(), bench.left_of_mps()) == ([], [])


@pytest.mark.parametrize("options", [("--deaf",), ()])
def test_one_is_ended_and_the_other_goes_on(bench: Bench, options: tuple[str, ...]) -> None:
    """`free` detaches a job before KILL, or TERM that it does not catch; the other goes on as fast.

    Without a handler it ends by TERM, or with status 1 if CUDA's error reaches PyTorch before that.
    """
    deaf, other = bench.share("memory", 50, 600, *options), bench.share("compute", 50, 14)
    gone, there = deaf.said(), other.said()
    mps = mps_of(there)
    servers = mps.servers()
    for job in (deaf, other):
        job.go()
    time.sleep(1)
    done = bench.launcher.run("free", bench.lease_of(deaf))
    assert (done.returncode, done.stderr) == (0, "")
    assert deaf.end() in ((128 + 9,) if options else (128 + 15, 1))
    command = f"Cmd:terminate_client {servers[0]} {gone['pid']}\n"
    answer = mps.log().partition(command)[2].partition("UI closed")[0]
    assert "] 0\n" in answer, mps.log()  # 0: it has been taken off
    assert (mps.servers(), mps.clients()) == (servers, {there["pid"]})
    assert mps.ask(f"get_server_status {servers[0]}").strip() == "ACTIVE"
    # The deaf one has gone in the first half.
    before, after = other.said()["iterations_per_s_of_halves"]
    assert (other.end(), other.warnings) == (0, [])
    assert after > 0.8 * before > 0
