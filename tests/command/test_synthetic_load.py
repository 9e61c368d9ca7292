"""The synthetic loads, against a fake libcuda that checks each call as the driver would."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpulaunch.measure import synthetic_load

if TYPE_CHECKING:
    from fake_cuda import Call, FakeCuda

pytest_plugins = ("fake_cuda",)

PROGRAM = synthetic_load.__file__
KINDS = tuple(synthetic_load.LOADS)
TOOLKIT = Path(
    os.environ.get("GPULAUNCH_TEST_CUDA") or "/usr/local/cuda"
)  # read now: no test sees such a variable
MIB = 1 << 20


def start(cuda: "FakeCuda", *arguments: str) -> subprocess.Popen[str]:
    """Start the program; its stdout and stderr are pipes."""
    command, environment = [sys.executable, PROGRAM, *arguments], cuda.environment(os.environ)
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(cuda: "FakeCuda", *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Return exit status, lines and complaint of the program."""
    with start(cuda, *arguments) as process:
        printed, said = process.communicate(timeout=60)
    return process.returncode, [json.loads(line) for line in printed.splitlines()], said


def copied(cuda: "FakeCuda", since: int = 0) -> int:
    """Return the bytes of all copies from a certain call on."""
    return sum(call.amount for call in cuda.calls()[since:] if call.name.startswith("cuMemcpy"))


def failed(cuda: "FakeCuda") -> "list[Call]":
    """Return the calls that the library refused."""
    return [call for call in cuda.calls() if call.code]


@pytest.mark.parametrize("gpus", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_driver_is_content(cuda: "FakeCuda", kind: str, gpus: int) -> None:
    """Each load makes only calls that a driver accepts, says when it works, and sums up."""
    cuda.settings["FAKE_CUDA_GPUS"] = str(gpus)
    status, lines, said = finished(cuda, kind, "0.2")
    assert (status, said, failed(cuda)) == (0, "", [])
    assert lines[0] == {"ready": kind, "pid": lines[0]["pid"], "gpus": gpus}
    total = lines[-1]
    assert (total["total"], total["seconds"] >= 0.2) == (kind, True)
    assert total["gb_per_s"] == pytest.approx(total["gb"] / total["seconds"])


def test_memory_counts_what_is_read_and_written(cuda: "FakeCuda") -> None:
    """The memory load copies 256 MiB at a time in the GPU, and totals twice the bytes copied."""
    _, lines, _ = finished(cuda, "memory", "0.2")
    assert {call.amount for call in cuda.calls("cuMemcpyDtoDAsync_v2")} == {256 * MIB}
    assert lines[-1]["gb"] == pytest.approx(2 * copied(cuda) / 1e9)


def test_link_goes_both_ways_and_between_all_gpus(cuda: "FakeCuda") -> None:
    """The link load copies to, from and between all GPUs, each way on its own stream."""
    cuda.settings["FAKE_CUDA_GPUS"] = "3"
    _, lines, _ = finished(cuda, "link", "0.2")
    assert (len(cuda.calls("cuStreamCreate")), len(cuda.calls("cuCtxEnablePeerAccess"))) == (
        2 * 3 + 3 * 2,
        6,
    )
    names = {call.name for call in cuda.calls() if call.name.startswith("cuMemcpy")}
    assert names == {"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyPeerAsync"}
    trials = 2 * 12 * synthetic_load.LINK_BYTES  # each way twice by itself, before
    assert lines[-1]["gb"] == pytest.approx((copied(cuda) - trials) / 1e9)


def test_gpus_that_do_not_reach_each_other(cuda: "FakeCuda") -> None:
    """Without peer access none is asked for, and the copies between GPUs are made as well."""
    cuda.settings |= {"FAKE_CUDA_GPUS": "2", "FAKE_CUDA_PEERS": "0"}
    status, _, _ = finished(cuda, "link", "0.1")
    assert (status, cuda.calls("cuCtxEnablePeerAccess")) == (0, [])
    assert cuda.calls("cuMemcpyPeerAsync")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
@pytest.mark.parametrize("kind", KINDS)
def test_signal_ends_it(cuda: "FakeCuda", kind: str, number: int) -> None:
    """TERM and INT end a load without an end of its own with status 0 and its total."""
    with start(cuda, kind) as process:
        ready = json.loads(process.stdout.readline())
        os.kill(ready["pid"], number)
        printed, said = process.communicate(timeout=20)
    last = json.loads(printed.splitlines()[-1])
    assert (process.returncode, said, last["total"]) == (0, "", kind)


def test_throughput_each_second(cuda: "FakeCuda") -> None:
    """About once a second a line tells what was done since and so far, never above the total."""
    _, lines, _ = finished(cuda, "memory", "2.2")
    marks = [line for line in lines if not {"ready", "total"} & line.keys()]
    assert len(marks) in (1, 2)
    assert all(mark["seconds"] >= 1 for mark in marks)
    assert marks[-1]["gb_so_far"] == pytest.approx(sum(mark["gb"] for mark in marks))
    assert marks[-1]["gb_so_far"] <= lines[-1]["gb"]


@pytest.mark.parametrize(
    ("fail", "kind", "want"),
    [
        ("cuInit:100", "memory", "cuInit: CUDA_ERROR_NO_DEVICE (100)"),
        ("cuMemAlloc_v2:2", "memory", "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)"),
        (
            "cuStreamSynchronize:700:5",
            "memory",
            "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)",
        ),
        (
            "cuMemcpyHtoDAsync_v2:4242",
            "link",
            "cuMemcpyHtoDAsync_v2: an error without a name (4242)",
        ),
    ],
)
def test_cuda_fails(cuda: "FakeCuda", fail: str, kind: str, want: str) -> None:
    """Where CUDA fails, at any time, one line names call and error, and the status is 125."""
    cuda.settings["FAKE_CUDA_FAIL"] = fail
    status, _, said = finished(cuda, kind, "20")
    assert (status, said) == (125, f"gpulaunch: error: synthetic {kind} load: {want}\n")


def test_no_driver(tmp_path: Path) -> None:
    """Without libcuda.so.1 one line says so, and the status is 125."""
    Path(tmp_path, "libcuda.so.1").write_text("no library")  # before one that this machine may have
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, PROGRAM, "memory", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (125, "", 1)
    want = (
        "gpulaunch: error: synthetic memory load: libcuda.so.1, the NVIDIA driver's library, "
        "cannot be used: "
    )
    assert done.stderr.startswith(want)


@pytest.mark.parametrize(
    "arguments", [(), ("heat",), ("memory", "soon"), ("memory", "0"), ("memory", "1", "2")]
)
def test_usage(cuda: "FakeCuda", arguments: tuple[str, ...]) -> None:
    """Another load, or a time that is no positive number, ends with 2, and CUDA is not asked."""
    status, _, said = finished(cuda, *arguments)
    want = "gpulaunch: error: usage: synthetic_load.py memory|link [SECONDS]\n"
    assert (status, said, cuda.calls()) == (2, want, [])


@pytest.mark.parametrize(("free_mib", "want_mib"), [(8192, 256), (400, 128), (33, 16)])
def test_memory_is_short(cuda: "FakeCuda", free_mib: int, want_mib: int) -> None:
    """Without room for two buffers of 256 MiB smaller ones are taken; a lone one is given back."""
    cuda.settings["FAKE_CUDA_MEMORY_MIB"] = str(free_mib)
    status, _, _ = finished(cuda, "memory", "0.1")
    assert (status, {call.amount for call in cuda.calls("cuMemcpyDtoDAsync_v2")}) == (
        0,
        {want_mib * MIB},
    )


def test_memory_is_full(cuda: "FakeCuda") -> None:
    """Without room for two buffers of 16 MiB the load fails instead of staying in the cache."""
    cuda.settings["FAKE_CUDA_MEMORY_MIB"] = "31"
    status, _, said = finished(cuda, "memory", "0.1")
    assert (status, "CUDA_ERROR_OUT_OF_MEMORY" in said) == (125, True)


def test_queue_is_bounded(cuda: "FakeCuda") -> None:
    """There is never more than 20 ms of work between two waits, and several pieces if short."""
    finished(cuda, "memory", "0.5")
    waits = [call.amount for call in cuda.calls("cuStreamSynchronize")]
    assert 5_000 < max(waits) <= 20_000
    assert len(cuda.calls("cuMemcpyDtoDAsync_v2")) > len(waits)  # several pieces a wait


def test_waiting_takes_no_cpu(cuda: "FakeCuda") -> None:
    """Contexts use CU_CTX_SCHED_BLOCKING_SYNC: a load that spins would take a CPU from the job."""
    finished(cuda, "memory", "0.1")
    assert [call.amount for call in cuda.calls("cuCtxCreate_v2")] == [4]


def test_load_dies_with_its_parent(cuda: "FakeCuda") -> None:
    """When the process that started a load is killed, the kernel kills the load."""
    text = f"import subprocess, sys; subprocess.run([sys.executable, {PROGRAM!r}, 'memory'])"
    environment = cuda.environment(os.environ)
    with subprocess.Popen(
        [sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE, text=True
    ) as parent:
        ready = json.loads(parent.stdout.readline())
        load = os.pidfd_open(ready["pid"])
        parent.kill()
        ended, _, _ = select.select([load], [], [], 10)  # while its output can still be read
        if not ended:
            signal.pidfd_send_signal(load, signal.SIGKILL)
    os.close(load)
    assert ended


def test_reader_goes(cuda: "FakeCuda") -> None:
    """When its output is read no more, a load ends at its next line, without a traceback."""
    with start(cuda, "memory") as process:
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (125, "")


def test_prototypes_are_those_of_cuda_h() -> None:
    """Each function has as many arguments as in cuda.h, if that is there, and the same widths."""
    header = TOOLKIT / "include" / "cuda.h"
    if not header.exists():
        pytest.skip("needs a CUDA toolkit's cuda.h")
    text = header.read_text()
    wide = re.compile(r"\*|CUdeviceptr|size_t|CUcontext|CUstream")
    for name, types in synthetic_load._SIGNATURES.items():
        if name == "cuCtxCreate_v2":  # kept for programs of old; no header of CUDA 13 has it
            continue
        found = re.search(rf"CUDAAPI {name.removesuffix('_v2')}\(([^)]*)\);", text)
        want = [bool(wide.search(argument)) for argument in found[1].split(",")]
        assert [synthetic_load.ctypes.sizeof(kind) == 8 for kind in types] == want, name
