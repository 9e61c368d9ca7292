"""A program that puts load on all GPUs that it sees, through the driver's library alone.

A job is measured beside it (cd-search-ics18 and mps-sharing-2024 measure theirs beside other
benchmarks). It needs neither PyTorch nor a CUDA toolkit. Its loads are:

- memory: copies buffers larger than any L2 cache within each GPU
- link: copies between pinned host memory and each GPU, both ways at once

It prints a line of JSON when the first work is done, and then one about every half second with how
many rounds of copies it has done and when, by the monotonic clock; it works until TERM or INT,
which end it with status 0. If CUDA fails, it prints one line and ends with status 125.

Usage: synthetic_load.py memory|link
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable

MIB = 1 << 20
MEMORY_BYTES = 256 * MIB
"""Size of a buffer of the memory load: twice the largest L2 of 2025 (B200: 126 MiB)."""

LINK_BYTES = 8 * MIB
"""Size of a copy of the link load: a third of a millisecond at PCIe 4.0 x16, many times the cost of
starting a copy.
"""

COPIES = 16
"""Number of copies queued on the GPU at a time, which share a wait: a signal waits for them, for 3
to 30 ms on cards from an H100 to a T4.
"""

TELL_S = 0.5
"""Time between two lines of progress."""

_FAILED = 125
_BLOCKING_SYNC = 4  # CU_CTX_SCHED_BLOCKING_SYNC: waiting takes no CPU from the job
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING

_INT, _UINT, _SIZE, _PTR, _ADDRESS = (
    ctypes.c_int,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_uint64,
)
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "cuInit": (_UINT,),
    "cuGetErrorName": (_INT, _PTR),
    "cuDeviceGetCount": (_PTR,),
    "cuDeviceGet": (_PTR, _INT),
    "cuCtxCreate_v2": (_PTR, _UINT, _INT),
    "cuCtxSetCurrent": (_PTR,),
    "cuMemAlloc_v2": (_PTR, _SIZE),
    "cuMemAllocHost_v2": (_PTR, _SIZE),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _PTR),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _PTR, _SIZE, _PTR),
    "cuMemcpyDtoHAsync_v2": (_PTR, _ADDRESS, _SIZE, _PTR),
    "cuStreamCreate": (_PTR, _UINT),
    "cuStreamSynchronize": (_PTR,),
}


class CudaError(Exception):
    """A missing driver library, or a failed call of it, which the message names."""


class Cuda:
    """The CUDA driver's library.

    Raises:
        CudaError: the library is missing or too old, or finds no GPU.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
            for name, types in _SIGNATURES.items():
                getattr(self._library, name).argtypes = types
        except (OSError, AttributeError) as problem:
            raise CudaError(
                f"libcuda.so.1, the NVIDIA driver's library, cannot be used: {problem}"
            ) from None
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver.

        Raises:
            CudaError: it failed; the message has the error's name.
        """
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            said = (text.value or b"an error without a name").decode(errors="replace")
            raise CudaError(f"{name}: {said} ({code})")

    def get(self, name: str, *arguments: object) -> int:
        """Call a function and return the number, handle or address that it writes first.

        An int fills the lower half: hosts of NVIDIA GPUs are little-endian.
        """
        out = ctypes.c_uint64()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value


Copy = tuple[str, int, int, int]
"""A copy to be queued again and again: function of the driver, target, source, and bytes."""


def open_gpus(cuda: Cuda) -> list[int]:
    """Create a context on each GPU that this process sees, and return their handles.

    Raises:
        CudaError: there is no GPU, or a context cannot be created.
    """
    count = cuda.get("cuDeviceGetCount")
    if not count:
        raise CudaError("no GPU is visible to this process")
    devices = [cuda.get("cuDeviceGet", index) for index in range(count)]
    return [cuda.get("cuCtxCreate_v2", _BLOCKING_SYNC, device) for device in devices]


def memory(cuda: Cuda) -> list[Copy]:
    """Prepare a copy within the current GPU."""
    source, target = (cuda.get("cuMemAlloc_v2", MEMORY_BYTES) for _ in range(2))
    return [("cuMemcpyDtoDAsync_v2", target, source, MEMORY_BYTES)]


def link(cuda: Cuda) -> list[Copy]:
    """Prepare copies between host and the current GPU, in both directions at once."""
    down, up = (cuda.get("cuMemAlloc_v2", LINK_BYTES) for _ in range(2))
    there, back = (cuda.get("cuMemAllocHost_v2", LINK_BYTES) for _ in range(2))
    return [
        ("cuMemcpyHtoDAsync_v2", down, there, LINK_BYTES),
        ("cuMemcpyDtoHAsync_v2", back, up, LINK_BYTES),
    ]


LOADS: dict[str, Callable[[Cuda], list[Copy]]] = {"memory": memory, "link": link}


def run(kind: str) -> None:
    """Run a load until a signal comes.

    Raises:
        CudaError: a call of the driver failed.
    """
    stopped: list[int] = []  # TERM and INT are only noted, so that queued work still ends
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: stopped.append(got))
    cuda = Cuda()
    queues: list[tuple[int, int, Copy]] = []  # with context and stream
    for context in open_gpus(cuda):
        cuda.call("cuCtxSetCurrent", context)
        queues += [
            (context, cuda.get("cuStreamCreate", _NON_BLOCKING), copy) for copy in LOADS[kind](cuda)
        ]
    count, done, told_s = 1, 0, time.monotonic()
    while not stopped:
        for context, stream, (function, target, source, size) in queues * count:
            cuda.call("cuCtxSetCurrent", context)
            cuda.call(function, target, source, size, stream)
        for context, stream, _ in queues:
            cuda.call("cuCtxSetCurrent", context)
            cuda.call("cuStreamSynchronize", stream)
        if count == 1:
            print(json.dumps({"ready": kind, "pid": os.getpid()}), flush=True)
        done, count, now_s = done + count, COPIES, time.monotonic()
        if now_s > told_s + TELL_S:
            print(json.dumps({"done": done, "at_s": now_s}), flush=True)
            told_s = now_s


def main(kind: str) -> int:
    """Run the program and return its exit status."""
    try:
        run(kind)
    except CudaError as problem:
        print(f"gpulaunch: error: synthetic {kind} load: {problem}", file=sys.stderr)
        return _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
