"""Readings of a job's use of its GPUs while it runs, in a thread of the launcher, from NVML.

The launcher sleeps meanwhile. Unlike a process, a thread costs no start-up and cannot be left
behind. A counter that fails now and then is missing in that reading.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import pynvml

from gpulaunch.errors import FailedError
from gpulaunch.lab.measure.run import GpuRun, PeerTraffic, Reading, Usage
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml
from gpulaunch.machine.nvidia.nvml import LOST, LostGpuError, NvmlDevice, PciAddress, read_nvlinks

PERIOD_S = 0.1
"""Time between two readings, unless they cost more than COST allows: the least time between two
GPM samples (nvml.h).
"""

COST = 0.01
"""Part of one CPU that readings may take: after a reading that took 5 ms of CPU there is a pause of
half a second.
"""

START_S = 2.0
"""Time for the driver to answer before the job's start; the job starts without it then."""

STOP_S = 0.5
"""Time for the driver to answer after the job's end; it is not waited for any longer."""


class Sampler:
    """The readings of one job's GPUs.

    Args:
        gpus: the job's, in rank order.

    Attributes:
        problems: why not all GPUs were read from the job's beginning to its end.
    """

    def __init__(self, gpus: Sequence[Gpu], look: Callable[[], None] | None = None) -> None:
        self.problems: list[str] = []
        self._look = look
        self._gpus = gpus
        self._meters: list[Meter] = []
        self._ready, self._over = threading.Event(), threading.Event()
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
        if self._thread.is_alive():
            self.problems.append(
                f"the driver did not answer within {STOP_S:g} s after the job's end"
            )
        self.problems += [meter.problem for meter in self._meters if meter.problem]
        return tuple(meter.run() for meter in self._meters)

    def _work(self) -> None:
        try:
            self._open_meters()
            if self._look:
                self._look()
            self._ready.set()
            self._sample()
        except FailedError as problem:
            self.problems.append(problem.message)
        # Any other failure of the thread: half a measurement must not pass for a whole one.
        except Exception as problem:  # noqa: BLE001
            self.problems.append(f"measuring broke off: {problem!r}")
        finally:
            self._ready.set()
            for meter in self._meters:
                meter.close()

    def _open_meters(self) -> None:
        nvml.open_nvml()
        at: dict[PciAddress, int] = {}  # all GPUs: the job's links may end at any of them
        for index in range(nvml.card_count()):
            with suppress(LostGpuError):
                address = nvml.card_at(index, []).address()
                if address:
                    at[address] = index
        for gpu in self._gpus:
            try:
                self._meters.append(Meter(gpu, nvml.card_of(gpu.uuid, gpu.index), at))
            except LostGpuError as problem:
                self.problems.append(str(problem))

    def _sample(self) -> None:
        pause_s = PERIOD_S
        while not self._over.wait(pause_s):
            before_s = time.thread_time()
            if self._look:
                self._look()
            for meter in self._meters:
                if not self._over.is_set():
                    meter.add()
            spent_s = time.thread_time() - before_s
            pause_s = max(PERIOD_S, spent_s * (1 / COST - 1))
        for meter in self._meters:
            meter.finish()


_SENT = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
_RECEIVED = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
_COUNTER_BYTES = 1024
"""Unit of these two counters. NVLink 5 has others, but joins no two GPUs without an NVSwitch."""

_SILENT = (
    *LOST,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
"""Errors after which the GPU answers no more questions."""

_GPM_METRICS = {
    "sm_percentage": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "occupancy_percentage": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "dram_percentage": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}


class Meter:
    """The door to NVML's counters of one GPU, or of one MIG instance, and its use so far.

    Args:
        at: indices of all GPUs by PCI address.

    Attributes:
        problem: why it was not read until now; "" if it was.

    Raises:
        LostGpuError: the GPU does not answer.
    """

    def __init__(self, gpu: Gpu, card: NvmlDevice, at: Mapping[PciAddress, int]) -> None:
        self._gpu, self._handle = gpu, card.handle
        self.problem = ""
        self._is_lost = False
        self._links: dict[int, list[int]] = {}  # numbers of its NVLinks by the GPU at their end
        self._hides_peers = False
        ends = {} if gpu.mig else read_nvlinks(card, gpu.compute_capability)
        for number, end in ends.items():
            if not end.active:
                continue
            if end.remote in ("switch", ""):
                self._hides_peers = True
            peer = at.get(end.address) if end.address else None
            if peer is not None:
                self._links.setdefault(peer, []).append(number)
        self._carried_before = self._read_links()
        self._carried: dict[int, tuple[int, int]] = {}
        self._gpm = self._open_gpm()
        self._usage = Usage(self._read())

    def add(self) -> None:
        """Add a reading, unless the GPU is lost."""
        if self._is_lost:
            return
        try:
            reading = self._read()
        except LostGpuError as problem:
            self.problem, self._is_lost = str(problem), True
        else:
            silent = f"GPU {self._gpu.index}: the driver tells nothing of it any more"
            self.problem = silent if reading.tells_nothing else ""
            self._usage.add(reading)

    def finish(self) -> None:
        """Add the last reading, and what went over the NVLinks."""
        self.add()
        with suppress(LostGpuError):
            self._carried = self._read_links()

    def run(self) -> GpuRun:
        """Return the readings."""
        gpu, traffic = self._gpu, []
        for peer in self._links:
            before, after = self._carried_before.get(peer), self._carried.get(peer)
            # A driver that was reset has begun to count anew: then nothing is known.
            if before and after and before[0] <= after[0] and before[1] <= after[1]:
                traffic.append(PeerTraffic(peer, after[0] - before[0], after[1] - before[1]))
            else:
                traffic.append(PeerTraffic(peer))
        return GpuRun(
            gpu=gpu.index,
            uuid=gpu.uuid,
            model=gpu.model,
            memory_bytes=gpu.memory_bytes,
            figures=self._usage.figures(),
            samples=self._usage.samples,
            traffic=tuple(traffic),
            hides_peers=self._hides_peers,
        )

    def close(self) -> None:
        """Free the GPM samples."""
        if self._gpm:
            with suppress(pynvml.NVMLError):
                self._gpm.close()

    def _read(self) -> Reading:
        """Read all counters; raise LostGpuError if the GPU does not answer any more."""
        rates = self._ask(pynvml.nvmlDeviceGetUtilizationRates)
        milliwatts = self._ask(pynvml.nvmlDeviceGetPowerUsage)
        millijoules = self._ask(pynvml.nvmlDeviceGetTotalEnergyConsumption)
        return Reading(
            at_s=time.monotonic(),
            time_active_percentage=float(rates.gpu) if rates else None,
            memory_active_percentage=float(rates.memory) if rates else None,
            memory_bytes=self._read_memory(),
            power_w=None if milliwatts is None else milliwatts / 1000,
            energy_j=None if millijoules is None else millijoules / 1000,
            **(self._gpm.metrics() if self._gpm else {}),
        )

    def _ask(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        """Call a function of NVML; None if the GPU does not know the answer."""
        try:
            return function(self._handle, *arguments)
        except pynvml.NVMLError as problem:
            if problem.value in _SILENT:
                raise LostGpuError(f"GPU {self._gpu.index}: {problem}") from None
        return None

    def _read_memory(self) -> int | None:
        newer = self._ask(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
        found = self._ask(pynvml.nvmlDeviceGetMemoryInfo) if newer is None else newer
        return None if found is None else int(found.used)

    def _read_links(self) -> dict[int, tuple[int, int]]:
        """Return the bytes sent and received by peer, as counted since an unknown time.

        A peer with a link that has no counters, or whose counters fail this time, is missing.
        """
        fields = []
        for links in self._links.values():
            for link in links:
                fields += [(_SENT, link), (_RECEIVED, link)]
        told = self._ask(pynvml.nvmlDeviceGetFieldValues, fields) if fields else None
        values = iter(told or ())
        found = {}
        for peer, links in self._links.items():
            own = list(islice(values, 2 * len(links)))
            if own and all(value.nvmlReturn == pynvml.NVML_SUCCESS for value in own):
                sent = sum(value.value.ullVal for value in own[::2])
                received = sum(value.value.ullVal for value in own[1::2])
                found[peer] = (sent * _COUNTER_BYTES, received * _COUNTER_BYTES)
        return found

    def _open_gpm(self) -> "_Gpm | None":
        instance = self._ask(pynvml.nvmlDeviceGetGpuInstanceId)
        handle = self._handle
        if instance is not None:
            handle = self._ask(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle)
        try:
            if not handle or not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                return None
            return _Gpm(handle, instance, self._gpu.index)
        except pynvml.NVMLError:
            return None


class _Gpm:
    """GPU Performance Monitoring of Hopper and later: exact averages between two samples."""

    def __init__(self, handle: Any, instance: int | None, index: int) -> None:  # noqa: ANN401
        self._handle, self._instance, self._index = handle, instance, index
        self._before, self._after = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self._take(self._before)
        self._taken_s = time.monotonic()

    def metrics(self) -> dict[str, float | None]:
        """Return the averages since the last call; none if GPM fails or it was just now."""
        if time.monotonic() - self._taken_s < PERIOD_S:
            return {}
        try:
            self._take(self._after)
            asked = pynvml.c_nvmlGpmMetricsGet_t()
            asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
            asked.sample1, asked.sample2 = self._before, self._after
            asked.numMetrics = len(_GPM_METRICS)
            for place, metric in enumerate(_GPM_METRICS.values()):
                asked.metrics[place].metricId = metric
            pynvml.nvmlGpmMetricsGet(asked)
        except pynvml.NVMLError as problem:
            if problem.value in _SILENT:
                raise LostGpuError(f"GPU {self._index}: {problem}") from None
            return {}
        self._before, self._after = self._after, self._before
        self._taken_s = time.monotonic()
        return {
            name: _metric_percentage(asked.metrics[place])
            for place, name in enumerate(_GPM_METRICS)
        }

    def close(self) -> None:
        for sample in (self._before, self._after):
            pynvml.nvmlGpmSampleFree(sample)

    def _take(self, sample: Any) -> None:  # noqa: ANN401
        if self._instance is None:
            pynvml.nvmlGpmSampleGet(self._handle, sample)
        else:
            pynvml.nvmlGpmMigSampleGet(self._handle, self._instance, sample)


def _metric_percentage(metric: Any) -> float | None:  # noqa: ANN401
    """Return a metric as a percentage; None if unknown or garbage, which some drivers return."""
    if metric.nvmlReturn != pynvml.NVML_SUCCESS or not 0 <= metric.value <= 100.5:
        return None
    return float(metric.value)
