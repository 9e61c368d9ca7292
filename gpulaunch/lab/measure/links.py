"""Measurement of this machine's links: all-reduces on idle GPUs, under a lease.

The benchmark is nccl-tests' all_reduce_perf. mapa-sc21 3.4 defines the effective bandwidth of a set
as a measurement, the peak all-reduce bandwidth, and measures one set of each kind. The kind of a
set is the links of its best ring. Bandwidth models are held against the figures.
"""

import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations
from math import comb, sqrt
from statistics import fmean
from tempfile import TemporaryFile
from typing import IO, Any

from gpulaunch.api.allocate import allocate
from gpulaunch.errors import FailedError, UsageError, WouldWaitError
from gpulaunch.launch.surroundings import read_shown
from gpulaunch.machine.catalog import MAX_GPUS
from gpulaunch.machine.gpu import gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.machine.write_description import machine_document
from gpulaunch.placement.fabric import UNIT, Fabric, cut, mapa_equation, ring_counts, ring_links
from gpulaunch.process.system import now
from gpulaunch.records import Record

NAME = "gpulaunch topo --measure"
TOOL = "nccl-tests"

MOST_GPUS = 5
"""Largest size of which every kind of set is measured, as in mapa-sc21."""

_MOST_SETS = 20_000  # sizes with more sets are skipped

LEAST_BYTES = 1 << 20
MOST_BYTES = 1 << 30
TIMEOUT_S = 300.0

_PROGRAM = "all_reduce_perf"


class Figure(Record):
    """The measured all-reduce bandwidth of a set of GPUs, and what each model predicts for it.

    Attributes:
        ring: the links of its best ring, by class, slowest last.
        all_reduce_gb_per_s: the peak bus bandwidth over all message sizes.
        mapa_gb_per_s: prediction of Eq. 2 with the paper's coefficients.
    """

    gpus: tuple[int, ...]
    ring: tuple[str, ...]
    all_reduce_gb_per_s: float
    cut_gb_per_s: float
    mapa_gb_per_s: float


def measure(
    warn: Callable[[str], None], tell: Callable[[str], None]
) -> tuple[Topology, list[Figure]]:
    """Measure the all-reduce bandwidth of one set of each kind of this machine's idle GPUs.

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
    program = shutil.which(_PROGRAM)
    if program is None:
        raise FailedError(
            f"no all-reduce benchmark on PATH: {_PROGRAM}",
            "build it from github.com/NVIDIA/nccl-tests",
        )
    only = whole if len(whole) < len(machine.gpus) else None
    try:
        lease = allocate(f"2-{MAX_GPUS}", only=only, uuid=True, wait=False, name=NAME)
    except WouldWaitError as problem:  # its hint is for programs
        raise WouldWaitError(problem.message, "see 'gpulaunch status'") from None
    with lease:
        tell(f"measuring {gpus_text(len(lease.gpus))} with {TOOL}")
        uuids = {gpu.index: gpu.uuid for gpu in machine.gpus}
        fabric = Fabric(machine)
        todo = _sets_to_measure(fabric, lease.gpus)
        figures = []
        for number, (gpus, ring) in enumerate(todo, 1):
            visible = ",".join(uuids[gpu] for gpu in gpus)
            peak = _run(program, len(gpus), visible, lease.fileno())
            places = [fabric.position[gpu] for gpu in gpus]
            mapa = mapa_equation(*ring_counts(fabric, places))
            figures.append(Figure(gpus, ring, peak, cut(fabric, places) / UNIT, mapa))
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


def _run(program: str, count: int, visible: str, lease: int) -> float:
    """Run the benchmark once and return its peak bus bandwidth over all message sizes, in GB/s.

    Its processes inherit the lease, so that they still hold it if this process dies.
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


def _sets_to_measure(
    fabric: Fabric, idle: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Return one set of each kind, of 2 to MOST_GPUS idle GPUs, and the set of all idle GPUs.

    With each come the links of its best ring, by class, slowest last.
    """
    sizes = [
        size
        for size in range(2, min(MOST_GPUS, len(idle)) + 1)
        if comb(len(idle), size) <= _MOST_SETS
    ]
    if len(idle) > MOST_GPUS:
        sizes.append(len(idle))
    found: dict[tuple[int, tuple[str, ...]], tuple[int, ...]] = {}
    for size in sizes:
        for gpus in combinations(sorted(idle), size):
            ring = ring_links(fabric, [fabric.position[gpu] for gpu in gpus])
            found.setdefault((size, ring), gpus)
    return [(gpus, ring) for (_, ring), gpus in found.items()]


def model_errors(figures: Sequence[Figure]) -> dict[str, float]:
    """Return the root mean square error of each model in GB/s."""
    errors: dict[str, float] = {}
    for model in ("cut", "mapa"):
        off = [getattr(one, f"{model}_gb_per_s") - one.all_reduce_gb_per_s for one in figures]
        errors[model] = sqrt(fmean([each**2 for each in off]))
    return errors


def ring_text(ring: Sequence[str]) -> str:
    """Describe a ring by its link classes, such as "2x NV2 50, NV1 25"."""
    return ", ".join(
        name if count == 1 else f"{count}x {name}" for name, count in Counter(ring).items()
    )
