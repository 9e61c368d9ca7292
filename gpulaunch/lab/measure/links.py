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
from gpulaunch.errors import FailedError, UsageError, WouldWaitError
from gpulaunch.lab.measure.link_fit import Figure, ring_text, sets_to_measure
from gpulaunch.launch.surroundings import read_shown
from gpulaunch.machine.gpu import gpus_text
from gpulaunch.machine.read_description import MAX_GPUS
from gpulaunch.machine.topology import Topology
from gpulaunch.machine.write_description import machine_document
from gpulaunch.process.system import now

NAME = "gpulaunch topo --measure"
TOOL = "nccl-tests"

LEAST_BYTES = 1 << 20
MOST_BYTES = 1 << 30
TIMEOUT_S = 300.0

_PROGRAM = "all_reduce_perf"


def measure(
    warn: Callable[[str], None], tell: Callable[[str], None]
) -> tuple[Topology, list[Figure]]:
    """Measure the all-reduce bandwidth of one set of each kind of this machine's idle GPUs.

    Args:
        warn: called with each warning.
        tell: called with each line of progress.

    Returns:
        The machine, and the bandwidths in the order of measuring.

    Raises:
        UsageError: settings put a described machine in this one's place, or it has fewer than two
            whole GPUs.
        WouldWaitError: fewer than two of them are free.
        FailedError: there is no benchmark, or it fails.
    """
    shown, _ = read_shown(None, warn)
    machine = shown.machine.topology
    if shown.machine.key:
        raise UsageError(f"{machine.name} is only described: there is nothing to measure")
    whole = [gpu.uuid for gpu in machine.gpus if not gpu.mig]
    if len(whole) < 2:
        raise UsageError(f"2 whole GPUs are needed to measure a link: found {len(whole)}")
    program = _find_benchmark()
    only = whole if len(whole) < len(machine.gpus) else None
    try:
        lease = allocate(f"2-{MAX_GPUS}", only=only, uuid=True, wait=False, name=NAME)
    except WouldWaitError as problem:  # its hint is for programs
        raise WouldWaitError(problem.message, "see 'gpulaunch status'") from None
    with lease:
        tell(f"measuring {gpus_text(len(lease.gpus))} with {TOOL}")
        uuids = {gpu.index: gpu.uuid for gpu in machine.gpus}
        todo = sets_to_measure(machine, lease.gpus)
        figures = []
        for number, (gpus, ring) in enumerate(todo, 1):
            visible = ",".join(uuids[gpu] for gpu in gpus)
            # The benchmark's processes inherit the lease.
            peak = _run(program, len(gpus), visible, lease.fileno())
            figures.append(Figure(gpus, ring, peak))
            named = ",".join(map(str, gpus))
            tell(f"{number} of {len(todo)}: GPUs {named} ({ring_text(ring)}): {peak:.4g} GB/s")
        return machine, figures


def measured_document(topology: Topology, figures: Sequence[Figure]) -> dict[str, Any]:
    """Return the machine file of this machine, with its [[measured]] bandwidths."""
    document = machine_document(topology)
    document["source"] = f"{topology.source}; [[measured]] by {TOOL}"
    document["measurement"] = {"tool": TOOL, "date": now()}
    cards = sorted({gpu.card for gpu in topology.gpus})
    document["measured"] = []
    for figure in figures:
        entry = {
            "gpus": [cards.index(gpu) for gpu in figure.gpus],
            "ring": list(figure.ring),
            "all_reduce_gb_per_s": figure.all_reduce_gb_per_s,
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


def _run(program: str, count: int, visible: str, lease: int) -> float:
    """Run the benchmark once and return its peak bus bandwidth over all message sizes, in GB/s.

    Args:
        program: path of all_reduce_perf.
        count: number of GPUs that are made visible.
        visible: their UUIDs.
        lease: a descriptor that the benchmark's processes inherit, so that they still hold the
            lease if this process dies.

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
    peak = _parse_peak(printed.splitlines())
    if peak <= 0:
        raise FailedError(f"{TOOL}: {' '.join(command)} printed no figures")
    return peak


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _parse_peak(lines: Sequence[str]) -> float:
    """Return the largest figure in the first column busbw of a table of nccl-tests; 0 if none."""
    columns: list[str] = []
    peak = 0.0
    for line in lines:
        words = line.lstrip("# ").split()
        if words[:1] == ["size"] and "busbw" in words:
            columns = words
        elif columns and words and words[0].isdecimal() and len(words) >= len(columns) - 2:
            with suppress(ValueError):
                peak = max(peak, float(words[columns.index("busbw")]))
    return peak
