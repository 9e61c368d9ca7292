"""The synthetic loads, against a fake libcuda that checks each call as the driver would."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpulaunch.lab.measure import synthetic_load

if TYPE_CHECKING:
    from fake_cuda import FakeCuda

pytest_plugins = ("fake_cuda",)

PROGRAM = synthetic_load.__file__
TOOLKIT = Path(
    os.environ.get("GPULAUNCH_TEST_CUDA") or "/usr/local/cuda"
)  # read now: no test sees such a variable
MIB = 1 << 20
COPIES = {
    "memory": {"cuMemcpyDtoDAsync_v2": 256 * MIB},
    "link": {"cuMemcpyHtoDAsync_v2": 8 * MIB, "cuMemcpyDtoHAsync_v2": 8 * MIB},
}


def start(cuda: "FakeCuda", *arguments: str) -> subprocess.Popen[str]:
    """Start the program; its stdout and stderr are pipes."""
    command, environment = [sys.executable, PROGRAM, *arguments], cuda.environment(os.environ)
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=environment, text=True, **pipes)


@pytest.mark.parametrize(
    ("kind", "gpus", "number"), [("memory", 1, signal.SIGTERM), ("link", 3, signal.SIGINT)]
)
def test_it_works_until_a_signal(cuda: "FakeCuda", kind: str, gpus: int, number: int) -> None:
    """A load makes only calls that a driver accepts, says when it works, and ends by a signal."""
    cuda.settings["FAKE_CUDA_GPUS"] = str(gpus)
    with start(cuda, kind) as process:
        ready = json.loads(process.stdout.readline())
        os.kill(ready["pid"], number)
        printed, said = process.communicate()
    assert ready["ready"] == kind
    assert (process.returncode, said) == (0, "")
    assert all(json.loads(line).keys() == {"done", "at_s"} for line in printed.splitlines())
    assert [call for call in cuda.calls() if call.code] == []
    copies = {call.name: call.amount for call in cuda.calls() if call.name.startswith("cuMemcpy")}
    assert copies == COPIES[kind]
    assert len(cuda.calls("cuStreamCreate")) == gpus * len(copies)
    # A load that spins while it waits would take a CPU from the job: CU_CTX_SCHED_BLOCKING_SYNC.
    assert [call.amount for call in cuda.calls("cuCtxCreate_v2")] == [4] * gpus


FAILURES = {
    "cuInit:100": "cuInit: CUDA_ERROR_NO_DEVICE (100)",
    "cuStreamSynchronize:700:5": "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)",
    "cuMemcpyDtoDAsync_v2:4242": "cuMemcpyDtoDAsync_v2: an error without a name (4242)",
}


@pytest.mark.parametrize("fail", FAILURES)
def test_cuda_fails(cuda: "FakeCuda", fail: str) -> None:
    """Where CUDA fails, at any time, one line names call and error, and the status is 125."""
    cuda.settings["FAKE_CUDA_FAIL"] = fail
    with start(cuda, "memory") as process:
        _, said = process.communicate()
    line = f"gpulaunch: error: synthetic memory load: {FAILURES[fail]}\n"
    assert (process.returncode, said) == (125, line)


def test_no_driver(tmp_path: Path) -> None:
    """Without libcuda.so.1 one line says so, and the status is 125."""
    Path(tmp_path, "libcuda.so.1").write_text("no library")  # before one that this machine may have
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, PROGRAM, "memory"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    want = "gpulaunch: error: synthetic memory load: libcuda.so.1, the NVIDIA driver's library, "
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (125, "", 1)
    assert done.stderr.startswith(f"{want}cannot be used: ")


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
