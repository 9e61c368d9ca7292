"""Readings of a job's use of its GPUs while it runs, in a thread of the launcher.

The launcher sleeps meanwhile. Unlike a process, a thread costs no start-up and cannot be left
behind.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpulaunch.errors import FailedError
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml
from gpulaunch.machine.nvidia.nvlink import NvlinkEnd, PciAddress
from gpulaunch.machine.nvidia.nvml import LostGpuError
from gpulaunch.machine.nvidia.nvml_links import read_nvlinks
from gpulaunch.measure.measured_run import CountedLink, GpuRun
from gpulaunch.measure.nvml_counters import GPM_LEAST_S, Meter
from gpulaunch.measure.usage import Usage

PERIOD_S = GPM_LEAST_S
"""Time between two readings, unless they cost more than COST allows."""

COST = 0.01
"""Part of one CPU that readings may take: after a reading that took 5 ms of CPU there is a pause of
half a second.
"""

SLOW_S = 1.0
"""Time between two readings of what takes long: seventy-two NVLink counters, and PCIe where it has
no counters.
"""

START_S = 2.0
"""Time for the driver to answer before the job's start; the job starts without it then."""

STOP_S = 0.5
"""Time for the driver to answer after the job's end; it is not waited for any longer."""

_SILENT = "the driver tells nothing of it any more"


class _Watched:
    """A GPU, its meter, and its use so far."""

    def __init__(self, gpu: Gpu, meter: Meter, links: tuple[CountedLink, ...]) -> None:
        self.gpu, self.meter, self.links = gpu, meter, links
        self.problem: str | None = None
        self.usage = Usage(meter.read(with_links=True, with_pcie=False))

    def read(self, *, with_links: bool, with_pcie: bool) -> None:
        """Add a reading, unless the GPU is lost."""
        if self.problem and self.problem != _SILENT:
            return
        try:
            reading = self.meter.read(with_links=with_links, with_pcie=with_pcie)
        except LostGpuError as problem:
            self.problem = str(problem)
        else:
            self.problem = _SILENT if reading.tells_nothing else None
            self.usage.add(reading)

    def run(self, late: str | None) -> GpuRun:
        """Return the readings; `late` is the problem of a driver that answers too late."""
        gpu = self.gpu
        return GpuRun(
            gpu=gpu.index,
            uuid=gpu.uuid,
            model=gpu.model,
            memory_bytes=gpu.memory_bytes,
            figures=self.usage.figures(),
            has_gpm=self.meter.has_gpm,
            links=self.links,
            problem=self.problem or late,
        )


class Sampler:
    """The readings of one job's GPUs.

    Args:
        gpus: the job's, in rank order.

    Attributes:
        problems: why not all GPUs were read from the job's beginning.
    """

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.problems: list[str] = []
        self._gpus = gpus
        self._watched: list[_Watched] = []
        self._ready, self._over = threading.Event(), threading.Event()
        self._broken: str | None = None
        self._began_s = time.monotonic()
        self._spent_s = 0.0
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait for the first readings, for START_S at most."""
        self._thread.start()
        if not self._ready.wait(START_S):
            self.problems.append(
                f"the driver did not answer within {START_S:g} s before the job's start"
            )

    def stop(self) -> tuple[GpuRun, ...]:
        """Take a last reading, end the thread, and return the readings by rank."""
        self._over.set()
        self._thread.join(STOP_S)
        late = self._broken
        if self._thread.is_alive():
            late = f"the driver did not answer within {STOP_S:g} s after the job's end"
        return tuple(one.run(late) for one in self._watched)

    @property
    def cost(self) -> float:
        """Part of one CPU that the readings took so far."""
        return self._spent_s / max(time.monotonic() - self._began_s, 1e-9)

    def _work(self) -> None:
        try:
            self._open_meters()
            self._ready.set()
            self._sample()
        except FailedError as problem:
            self.problems.append(problem.message)
        # Any other failure of the thread: half a measurement must not pass for a whole one.
        except Exception as problem:  # noqa: BLE001
            self._broken = f"measuring broke off: {problem!r}"
            self.problems.append(self._broken)
        finally:
            self._ready.set()
            for one in self._watched:
                one.meter.close()

    def _open_meters(self) -> None:
        nvml.open_nvml()
        at = _indices_by_address()
        for gpu in self._gpus:
            try:
                card = nvml.card_of(gpu.uuid, gpu.index)
                ends = {} if gpu.mig else read_nvlinks(card, gpu.compute_capability)
                links = _active_links(ends, at)
                meter = Meter(card, tuple(link.number for link in links))
                self._watched.append(_Watched(gpu, meter, links))
            except LostGpuError as problem:
                self.problems.append(str(problem))

    def _sample(self) -> None:
        slow_s = time.monotonic()
        pause_s = PERIOD_S
        while not self._over.wait(pause_s):
            slowly = time.monotonic() - slow_s >= SLOW_S
            slow_s = time.monotonic() if slowly else slow_s
            before_s = time.thread_time()
            for one in self._watched:
                if not self._over.is_set():
                    one.read(with_links=slowly, with_pcie=slowly)
            spent_s = time.thread_time() - before_s
            self._spent_s += spent_s
            pause_s = max(PERIOD_S, spent_s * (1 / COST - 1))
        for one in self._watched:
            # The job has ended and the launcher waits: leave out PCIe, which takes 40 ms.
            one.read(with_links=True, with_pcie=False)


def _indices_by_address() -> dict[PciAddress, int]:
    """Return the indices of all GPUs by PCI address: the job's links may end at any of them."""
    found = {}
    for index in range(nvml.card_count()):
        with suppress(LostGpuError):
            address = nvml.card_at(index, []).address()
            if address:
                found[address] = index
    return found


def _active_links(
    ends: Mapping[int, NvlinkEnd], at: Mapping[PciAddress, int]
) -> tuple[CountedLink, ...]:
    return tuple(
        CountedLink(number, end.remote, at.get(end.address) if end.address else None)
        for number, end in ends.items()
        if end.active
    )
