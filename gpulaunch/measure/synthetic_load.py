"""A program that puts load on all GPUs that it sees, through the driver's library alone.

A job is measured beside it (cd-search-ics18 and mps-sharing-2024 measure theirs beside other
benchmarks). It needs neither PyTorch nor a CUDA toolkit. Its loads are:

- memory: copies buffers larger than any L2 cache within each GPU
- link: copies between pinned host memory and each GPU, both ways at once, and between all GPUs

It prints lines of JSON: one when the first work is done, one about every second with the work since
the one before, and the total when SECONDS are over, or at TERM or INT, which end it with status 0.
If CUDA fails, it prints one line and ends with status 125.

Usage: synthetic_load.py memory|link [SECONDS]
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations

from gpulaunch.records import Record

MIB = 1 << 20
MEMORY_BYTES = 256 * MIB
"""Size of a buffer of the memory load: twice the largest L2 of 2025 (B200: 126 MiB).

It is halved where memory is short.
"""

LEAST_MEMORY_BYTES = 16 * MIB
LINK_BYTES = 8 * MIB
"""Size of a copy of the link load: a third of a millisecond at PCIe 4.0 x16, many times the cost of
starting a copy.
"""

BATCH_S = 0.01
"""Duration of the work queued on the GPU at a time; a signal waits for about twice as long at most.
"""

REPORT_S = 1.0
MOST_STEPS, MOST_REPEATS = 1000, 64
_FAILED, _USAGE = 125, 2
_OUT_OF_MEMORY = 2  # cuda.h: CUDA_ERROR_OUT_OF_MEMORY
_BLOCKING_SYNC = 4  # CU_CTX_SCHED_BLOCKING_SYNC: waiting takes no CPU from the job
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_PR_SET_PDEATHSIG = 1  # prctl.h

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
    "cuDeviceCanAccessPeer": (_PTR, _INT, _INT),
    "cuCtxCreate_v2": (_PTR, _UINT, _INT),
    "cuCtxSetCurrent": (_PTR,),
    "cuCtxEnablePeerAccess": (_PTR, _UINT),
    "cuMemAlloc_v2": (_PTR, _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemAllocHost_v2": (_PTR, _SIZE),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _PTR),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _PTR, _SIZE, _PTR),
    "cuMemcpyDtoHAsync_v2": (_PTR, _ADDRESS, _SIZE, _PTR),
    "cuMemcpyPeerAsync": (_ADDRESS, _PTR, _ADDRESS, _PTR, _SIZE, _PTR),
    "cuStreamCreate": (_PTR, _UINT),
    "cuStreamSynchronize": (_PTR,),
}


class CudaError(Exception):
    """A missing driver library, or a failed call of it.

    Args:
        message: text that names the call and the error.
        code: the CUresult of the call, or None.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


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
            raise CudaError(f"{name}: {said} ({code})", code)

    def number(self, name: str, *arguments: object) -> int:
        """Call a function and return the int that it writes through its first argument."""
        out = ctypes.c_int()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value

    def handle(self, name: str, *arguments: object) -> int:
        """Call a function and return the 64-bit handle or address that it writes first."""
        out = ctypes.c_void_p()
        self.call(name, ctypes.byref(out), *arguments)
        return out.value or 0


class CudaDevice(Record):
    """A GPU that this process sees.

    Attributes:
        device: CUDA's number of the device in this process.
        context: handle of our context on it.
    """

    device: int
    context: int


class Copy(Record):
    """A copy of the link load.

    Attributes:
        gpu: the GPU whose context starts it.
        stream: a stream of its own, so that it waits for no other copy.
        function: name of the driver's function.
        ends: first arguments of the function: target and source.
    """

    gpu: CudaDevice
    stream: int
    function: str
    ends: tuple[int, ...]


class Work(Record):
    """The repeated work of a load.

    Attributes:
        step: queues the work once on all GPUs, without waiting.
        wait: waits until the GPUs have done all queued work.
        amount: bytes moved by a step.
    """

    step: Callable[[], None]
    wait: Callable[[], None]
    amount: int


def open_gpus(cuda: Cuda) -> list[CudaDevice]:
    """Create a context on each GPU that this process sees.

    Raises:
        CudaError: there is no GPU, or a context cannot be created.
    """
    count = cuda.number("cuDeviceGetCount")
    if not count:
        raise CudaError("no GPU is visible to this process")
    devices = [cuda.number("cuDeviceGet", index) for index in range(count)]
    return [
        CudaDevice(device, cuda.handle("cuCtxCreate_v2", _BLOCKING_SYNC, device))
        for device in devices
    ]


def memory(cuda: Cuda, gpus: Sequence[CudaDevice]) -> Work:
    """Prepare copies within each GPU; the amount counts bytes read and bytes written."""
    copies = []
    for gpu in gpus:
        cuda.call("cuCtxSetCurrent", gpu.context)
        source, target, size = two_buffers(cuda)
        copies.append((gpu, _new_stream(cuda), source, target, size))

    def step() -> None:
        for gpu, stream, source, target, size in copies:
            cuda.call("cuCtxSetCurrent", gpu.context)
            cuda.call("cuMemcpyDtoDAsync_v2", target, source, size, stream)

    streams = [(gpu, stream) for gpu, stream, _, _, _ in copies]
    return Work(step, _make_wait(cuda, streams), sum(2 * size for *_, size in copies))


def two_buffers(cuda: Cuda) -> tuple[int, int, int]:
    """Return two buffers on the current GPU and their size, which is smaller if memory is short.

    Raises:
        CudaError: there is no memory for two buffers of LEAST_MEMORY_BYTES.
    """
    size = MEMORY_BYTES
    while True:
        buffers: list[int] = []
        try:
            buffers += [cuda.handle("cuMemAlloc_v2", size)]
            buffers += [cuda.handle("cuMemAlloc_v2", size)]
        except CudaError as problem:
            for buffer in buffers:
                cuda.call("cuMemFree_v2", buffer)
            if problem.code != _OUT_OF_MEMORY or size <= LEAST_MEMORY_BYTES:
                raise
            size //= 2
        else:
            return buffers[0], buffers[1], size


def link(cuda: Cuda, gpus: Sequence[CudaDevice]) -> Work:
    """Prepare copies between host and each GPU, and between each pair of GPUs, in both directions.

    The amount counts each byte once. Copies from several GPUs overwrite each other, since their
    target is never read. A step has as many copies over each link as keep it busy while the slowest
    link makes one: else NVLinks would wait for PCIe.
    """
    copies: list[Copy] = []
    ends = {}
    for gpu in gpus:
        cuda.call("cuCtxSetCurrent", gpu.context)
        down, up, source, target = (cuda.handle("cuMemAlloc_v2", LINK_BYTES) for _ in range(4))
        there, back = (cuda.handle("cuMemAllocHost_v2", LINK_BYTES) for _ in range(2))
        copies.append(Copy(gpu, _new_stream(cuda), "cuMemcpyHtoDAsync_v2", (down, there)))
        copies.append(Copy(gpu, _new_stream(cuda), "cuMemcpyDtoHAsync_v2", (back, up)))
        ends[gpu.device] = (source, target)
    for gpu, peer in permutations(gpus, 2):
        cuda.call("cuCtxSetCurrent", gpu.context)
        # Without peer access the driver copies through host memory.
        if cuda.number("cuDeviceCanAccessPeer", gpu.device, peer.device):
            cuda.call("cuCtxEnablePeerAccess", peer.context, 0)
        route = (ends[peer.device][1], peer.context, ends[gpu.device][0], gpu.context)
        copies.append(Copy(gpu, _new_stream(cuda), "cuMemcpyPeerAsync", route))
    alone_s = [_seconds_alone(cuda, copy) for copy in copies]
    repeats = [min(MOST_REPEATS, round(max(alone_s) / own_s)) for own_s in alone_s]

    def step() -> None:
        for copy, count in zip(copies, repeats, strict=True):
            _start(cuda, copy, count)

    streams = [(copy.gpu, copy.stream) for copy in copies]
    return Work(step, _make_wait(cuda, streams), LINK_BYTES * sum(repeats))


def _start(cuda: Cuda, copy: Copy, count: int) -> None:
    cuda.call("cuCtxSetCurrent", copy.gpu.context)
    for _ in range(count):
        cuda.call(copy.function, *copy.ends, LINK_BYTES, copy.stream)


def _seconds_alone(cuda: Cuda, copy: Copy) -> float:
    """Return the seconds that a copy takes by itself; it is the second, since the first sets up."""
    took_s = 0.0
    for _ in range(2):
        began = time.monotonic()
        _start(cuda, copy, 1)
        cuda.call("cuStreamSynchronize", copy.stream)
        took_s = time.monotonic() - began
    return took_s


def _new_stream(cuda: Cuda) -> int:
    return cuda.handle("cuStreamCreate", _NON_BLOCKING)


def _make_wait(cuda: Cuda, streams: Sequence[tuple[CudaDevice, int]]) -> Callable[[], None]:
    def wait() -> None:
        for gpu, stream in streams:
            cuda.call("cuCtxSetCurrent", gpu.context)
            cuda.call("cuStreamSynchronize", stream)

    return wait


LOADS: dict[str, Callable[[Cuda, Sequence[CudaDevice]], Work]] = {
    "memory": memory,
    "link": link,
}


def repeat(work: Work, is_over: Callable[[], bool]) -> Iterator[int]:
    """Do the work in batches of about BATCH_S; yield the number of steps of each batch."""
    steps = 1
    while not is_over():
        began = time.monotonic()
        for _ in range(steps):
            work.step()
        work.wait()
        yield steps
        took_s = time.monotonic() - began
        steps = max(1, min(2 * steps, int(steps * BATCH_S / took_s), MOST_STEPS))


def run(kind: str, seconds: float) -> None:
    """Run a load until the time is over or a signal comes.

    Raises:
        CudaError: a call of the driver failed.
    """
    stopped = _note_signals()
    cuda = Cuda()
    gpus = open_gpus(cuda)
    work = LOADS[kind](cuda, gpus)
    began = marked = time.monotonic()
    total = since = 0
    for steps in repeat(work, lambda: bool(stopped) or time.monotonic() - began >= seconds):
        now = time.monotonic()
        if not total:
            _print_json({"ready": kind, "pid": os.getpid(), "gpus": len(gpus)})
        total, since = total + steps, since + steps
        if now - marked >= REPORT_S:
            so_far = total * work.amount / 1e9
            _print_json({**_rates(work, since, now - marked), "gb_so_far": so_far})
            marked, since = now, 0
    _print_json({"total": kind, **_rates(work, total, time.monotonic() - began)})


def _rates(work: Work, steps: int, seconds: float) -> dict[str, float]:
    amount = steps * work.amount / 1e9
    return {"seconds": seconds, "gb": amount, "gb_per_s": amount / seconds if seconds else 0.0}


def _note_signals() -> list[int]:
    """Have TERM and INT only noted in the returned list, so that the total is still printed."""
    noted: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: noted.append(got))
    return noted


def _print_json(document: dict[str, object] | dict[str, float]) -> None:
    print(json.dumps(document), flush=True)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, so that no load is left behind."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    """Run the program and return its exit status."""
    try:
        kind, seconds = arguments[0], float(arguments[1]) if len(arguments) > 1 else float("inf")
        known = kind in LOADS and seconds > 0 and len(arguments) < 3
    except (IndexError, ValueError):
        known = False
    if not known:
        print(
            f"gpulaunch: error: usage: {os.path.basename(__file__)} {'|'.join(LOADS)} [SECONDS]",
            file=sys.stderr,
        )
        return _USAGE
    end_with_parent()
    try:
        run(kind, seconds)
    except CudaError as problem:
        print(f"gpulaunch: error: synthetic {kind} load: {problem}", file=sys.stderr)
        return _FAILED
    except BrokenPipeError:  # the reader has gone: keep the exit from failing on the flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
