"""The door to all-reduce benchmarks: nccl-tests' all_reduce_perf if installed, else PyTorch."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile

from gpulaunch.errors import FailedError
from gpulaunch.records import Record
from gpulaunch.typing import IO

LEAST_BYTES = 1 << 20
MOST_BYTES = 1 << 30
TIMEOUT_S = 300.0

_PROGRAM = "all_reduce_perf"
_HAS_NCCL = (
    "import sys, torch; sys.exit(not torch.cuda.is_available() or not "
    "torch.distributed.is_nccl_available())"
)
_TORCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_all_reduce.py")


class Benchmark(Record):
    """A program that measures all-reduce bandwidth.

    Attributes:
        name: what messages call it.
        command: argv, to which `run` appends the number of GPUs.
    """

    name: str
    command: tuple[str, ...]


def find_benchmark() -> Benchmark:
    """Return the all-reduce benchmark that is installed here.

    Raises:
        FailedError: there is none.
    """
    program = shutil.which(_PROGRAM)
    if program:
        sizes = ("-b", str(LEAST_BYTES), "-e", str(MOST_BYTES), "-f", "4")
        return Benchmark("nccl-tests", (program, *sizes, "-g"))
    python = shutil.which("python3")
    if python and _succeeds([python, "-c", _HAS_NCCL]):
        return Benchmark("PyTorch", (python, _TORCH, "nccl", str(LEAST_BYTES), str(MOST_BYTES)))
    raise FailedError(
        f"no all-reduce benchmark on PATH: neither {_PROGRAM} nor a python3 with PyTorch for CUDA",
        "build github.com/NVIDIA/nccl-tests, or activate an environment with PyTorch",
    )


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603


def run(
    benchmark: Benchmark, count: int, variables: Mapping[str, str], lease: int
) -> list[tuple[int, float]]:
    """Run the benchmark once and return the bandwidth that it printed.

    Args:
        benchmark: from find_benchmark.
        count: number of GPUs that the variables make visible.
        variables: added to the benchmark's environment.
        lease: a descriptor that the benchmark's processes inherit, so that they still hold the
            lease if this process dies.

    Returns:
        Message size in bytes and bus bandwidth in GB/s, ascending.

    Raises:
        FailedError: it fails, prints no figures, or does not end within TIMEOUT_S seconds.
    """
    command = [*benchmark.command, str(count)]
    # Files, not pipes: a process that the benchmark leaves behind may hold a pipe open for ever.
    with TemporaryFile() as output, TemporaryFile() as complaint:
        process = subprocess.Popen(  # noqa: S603  the benchmark is the user's own program
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=complaint,
            start_new_session=True,
            pass_fds=(lease,),
        )
        try:
            status = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise FailedError(f"{benchmark.name}: not done after {TIMEOUT_S:.0f} s") from None
        finally:  # after success, too: the benchmark may leave processes behind
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed, said = _read_text(output), _read_text(complaint)
    if status:
        last = (said.strip() or printed.strip() or "it says nothing").splitlines()[-1]
        raise FailedError(
            f"{benchmark.name}: {' '.join(command)} ended with status {status}: {last}"
        )
    figures = _parse_figures(printed.splitlines())
    if not any(bandwidth > 0 for _, bandwidth in figures):
        raise FailedError(f"{benchmark.name}: {' '.join(command)} printed no figures")
    return figures


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _parse_figures(lines: Sequence[str]) -> list[tuple[int, float]]:
    """Read the columns size and busbw, the first of each name, from a table of nccl-tests."""
    columns: list[str] = []
    figures = []
    for line in lines:
        words = line.lstrip("# ").split()
        if words[:1] == ["size"] and "busbw" in words:
            columns = words
        elif columns and words and words[0].isdecimal() and len(words) >= len(columns) - 2:
            try:
                figures.append((int(words[0]), float(words[columns.index("busbw")])))
            except ValueError:
                continue
    return sorted(figures)
