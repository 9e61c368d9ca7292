"""Measurement of this machine's links: all-reduces on idle GPUs, under a lease.

The benchmark is nccl-tests' all_reduce_perf, as in mapa-sc21 3.4.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, Any

from gpulaunch.api.allocate import allocate
from gpulaunch.decide.needs import leased_until_s
from gpulaunch.decide.request import admit_visible
from gpulaunch.errors import FailedError, UsageError, WouldWaitError
from gpulaunch.launch.surroundings import read_shown
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.machine.write_description import machine_document
from gpulaunch.measure.link_fit import Figure, kinds, samples
from gpulaunch.process.system import now
from gpulaunch.records import Record

NAME = "gpulaunch topo --measure"
TOOL = "nccl-tests"

LEAST_BYTES = 1 << 20
MOST_BYTES = 1 << 30
TIMEOUT_S = 300.0

_PROGRAM = "all_reduce_perf"


class Measurement(Record):
    """The measured links of a machine.

    Attributes:
        topology: the machine.
        tool: name of the benchmark.
        figures: the bandwidths, in the order of measuring.
    """

    topology: Topology
    tool: str
    figures: tuple[Figure, ...]


def measure(warn: Callable[[str], None], tell: Callable[[str], None]) -> Measurement:
    """Measure the all-reduce bandwidth of one set of each kind of this machine's idle GPUs.

    Args:
        warn: called with each warning.
        tell: called with each line of progress.

    Raises:
        UsageError: settings put a described machine in this one's place, or it has fewer than two
            whole GPUs.
        WouldWaitError: fewer than two GPUs are idle.
        FailedError: there is no benchmark, or it fails.
    """
    shown, table = read_shown(None, warn)
    machine = shown.machine.topology
    if shown.machine.key:
        raise UsageError(f"{machine.name} is only described: there is nothing to measure")
    scope = [
        gpu
        for gpu in machine.gpus
        if not gpu.mig and (shown.within is None or gpu.uuid in shown.within.uuids)
    ]
    if shown.visible is not None:
        scope = [gpu for gpu in scope if gpu.uuid in admit_visible(machine, shown.visible).uuids]
    if len(scope) < 2:
        raise UsageError(
            f"2 GPUs are needed to measure a link: there {'is' if len(scope) == 1 else 'are'} "
            f"{len(scope)}"
        )
    program = _find_benchmark()
    leases = table.peek().of(shown.machine).leases
    taken = set(leased_until_s(machine, leases, shown.within))
    if shown.within is None:
        taken |= {use.uuid for use in shown.machine.outside}
    idle = [gpu for gpu in scope if gpu.uuid not in taken]
    if len(idle) < 2:
        raise WouldWaitError(
            f"2 idle GPUs are needed to measure a link: {len(idle)} of {len(scope)} is idle",
            "see 'gpulaunch status'",
        )
    with allocate(
        len(idle), only=[gpu.uuid for gpu in idle], uuid=True, wait=False, name=NAME
    ) as lease:
        tell(f"measuring {gpus_text(len(idle))} with {TOOL}")
        uuids = {gpu.index: gpu.uuid for gpu in machine.gpus}
        todo = samples(machine, [gpu.index for gpu in idle])
        figures = []
        for number, sample in enumerate(todo, 1):
            visible = ",".join(uuids[gpu] for gpu in sample.gpus)
            # The benchmark's processes inherit the lease.
            found = _run(program, len(sample.gpus), visible, lease.fileno())
            figure = Figure(sample, tuple(found))
            figures.append(figure)
            gpus = ",".join(map(str, sample.gpus))
            carried = f"{figure.all_reduce_gb_per_s:.4g} GB/s"
            tell(f"{number} of {len(todo)}: GPUs {gpus} ({kinds(sample)}): {carried}")
        return Measurement(machine, TOOL, tuple(figures))


def measured_document(result: Measurement) -> dict[str, Any]:
    """Return the machine file of this machine, with its [[measured]] bandwidths."""
    document = machine_document(result.topology)
    document["source"] = f"{result.topology.source}; [[measured]] by {result.tool}"
    document["measurement"] = {"tool": result.tool, "date": now()}
    cards = sorted({gpu.card for gpu in result.topology.gpus})
    document["measured"] = []
    for figure in result.figures:
        entry = {
            "gpus": [cards.index(gpu) for gpu in figure.sample.gpus],
            "ring": list(figure.sample.ring),
            "all_reduce_gb_per_s": figure.all_reduce_gb_per_s,
            "message_bytes": [size for size, _ in figure.sizes],
            "bus_gb_per_s": [bandwidth for _, bandwidth in figure.sizes],
        }
        document["measured"].append(entry)
    return document


def _find_benchmark() -> str:
    """Return the path of the all-reduce benchmark that is installed here.

    Raises:
        FailedError: there is none.
    """
    program = shutil.which(_PROGRAM)
    if program is None:
        raise FailedError(
            f"no all-reduce benchmark on PATH: {_PROGRAM}",
            "build it from github.com/NVIDIA/nccl-tests",
        )
    return program


def _run(program: str, count: int, visible: str, lease: int) -> list[tuple[int, float]]:
    """Run the benchmark once and return the bandwidth that it printed.

    Args:
        program: path of all_reduce_perf.
        count: number of GPUs that are made visible.
        visible: their UUIDs.
        lease: a descriptor that the benchmark's processes inherit, so that they still hold the
            lease if this process dies.

    Returns:
        Message size in bytes and bus bandwidth in GB/s, ascending.

    Raises:
        FailedError: it fails, prints no figures, or does not end within TIMEOUT_S seconds.
    """
    sizes = ("-b", str(LEAST_BYTES), "-e", str(MOST_BYTES), "-f", "4")
    command = [program, *sizes, "-g", str(count)]
    # Files, not pipes: a process that the benchmark leaves behind may hold a pipe open for ever.
    with TemporaryFile() as output, TemporaryFile() as complaint:
        process = subprocess.Popen(  # noqa: S603  the benchmark is the user's own program
            command,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=complaint,
            start_new_session=True,
            pass_fds=(lease,),
        )
        try:
            status = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise FailedError(f"{TOOL}: not done after {TIMEOUT_S:.0f} s") from None
        finally:  # after success, too: the benchmark may leave processes behind
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed, said = _read_text(output), _read_text(complaint)
    if status:
        last = (said.strip() or printed.strip() or "it says nothing").splitlines()[-1]
        raise FailedError(f"{TOOL}: {' '.join(command)} ended with status {status}: {last}")
    figures = _parse_figures(printed.splitlines())
    if not any(bandwidth > 0 for _, bandwidth in figures):
        raise FailedError(f"{TOOL}: {' '.join(command)} printed no figures")
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
