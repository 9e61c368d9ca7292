"""Readings of a job's use of its GPUs while it runs, in a thread of the launcher, from NVML.

The launcher sleeps meanwhile. Unlike a process, a thread costs no start-up and cannot be left
behind. A counter that the card or driver does not have is asked for only once; one that fails now
and then is missing in that reading.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pynvml

from gpulaunch.errors import FailedError
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.nvidia import nvml
from gpulaunch.machine.nvidia.nvml import LOST, LostGpuError, NvmlDevice, PciAddress
from gpulaunch.machine.nvidia.nvml_links import NvlinkEnd, read_nvlinks
from gpulaunch.measure.run import CountedLink, GpuRun, LinkBytes, Reading, Usage
from gpulaunch.records import replace

PERIOD_S = 0.1
"""Time between two readings, unless they cost more than COST allows: the least time between two
GPM samples (nvml.h).
"""

COST = 0.01
"""Part of one CPU that readings may take: after a reading that took 5 ms of CPU there is a pause of
half a second.
"""

SLOW_S = 1.0
"""Time between two readings of what takes long: seventy-two NVLink counters."""

START_S = 2.0
"""Time for the driver to answer before the job's start; the job starts without it then."""

STOP_S = 0.5
"""Time for the driver to answer after the job's end; it is not waited for any longer."""

_NO_ANSWER = "the driver tells nothing of it any more"


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
        self._meters: list[Meter] = []
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
        return tuple(meter.run(late) for meter in self._meters)

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
            for meter in self._meters:
                meter.close()

    def _open_meters(self) -> None:
        nvml.open_nvml()
        at = _indices_by_address()
        for gpu in self._gpus:
            try:
                card = nvml.card_of(gpu.uuid, gpu.index)
                ends = {} if gpu.mig else read_nvlinks(card, gpu.compute_capability)
                self._meters.append(Meter(gpu, card, _active_links(ends, at)))
            except LostGpuError as problem:
                self.problems.append(str(problem))

    def _sample(self) -> None:
        slow_s = time.monotonic()
        pause_s = PERIOD_S
        while not self._over.wait(pause_s):
            slowly = time.monotonic() - slow_s >= SLOW_S
            slow_s = time.monotonic() if slowly else slow_s
            before_s = time.thread_time()
            for meter in self._meters:
                if not self._over.is_set():
                    meter.add(with_links=slowly)
            spent_s = time.thread_time() - before_s
            self._spent_s += spent_s
            pause_s = max(PERIOD_S, spent_s * (1 / COST - 1))
        for meter in self._meters:
            meter.add(with_links=True)


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


_NEVER = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
)
_NVLINK_COUNTERS = (
    ((202, 204), 1),  # NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, _RCV_BYTES: NVLink 5
    (
        (
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        ),
        1024,
    ),
)
"""Alternatives, of which a card has one: fields for sent and received, and bytes in a unit."""

_SILENT = (
    *LOST,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
"""Errors after which the GPU answers no more questions."""

_SIGNED = (pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG,)
_WIDE = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)

_GPM_METRICS = {
    "sm_percentage": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "occupancy_percentage": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "dram_percentage": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}


class Meter:
    """The door to NVML's counters of one GPU, or of one MIG instance, and its use so far.

    Args:
        gpu: the GPU.
        card: the same as NVML knows it.
        links: its NVLinks that are up.
    """

    def __init__(self, gpu: Gpu, card: NvmlDevice, links: tuple[CountedLink, ...]) -> None:
        self._gpu, self._handle, self._links = gpu, card.handle, links
        self._problem: str | None = None
        self._absent: set[object] = set()
        self._counted_links, self._link_fields, self._link_unit = self._find_link_counters()
        self._gpm = self._open_gpm()
        self._usage = Usage(self._read(with_links=True))

    def add(self, *, with_links: bool) -> None:
        """Add a reading, unless the GPU is lost.

        Args:
            with_links: whether to read the counters of its NVLinks, too, which are many.
        """
        if self._problem and self._problem != _NO_ANSWER:
            return
        try:
            reading = self._read(with_links=with_links)
        except LostGpuError as problem:
            self._problem = str(problem)
        else:
            self._problem = _NO_ANSWER if reading.tells_nothing else None
            self._usage.add(reading)

    def run(self, late: str | None) -> GpuRun:
        """Return the readings; `late` is the problem of a driver that answers too late."""
        gpu, carried = self._gpu, self._usage.carried()
        links = []
        for link in self._links:
            counted = carried.get(link.number)
            sent, received = (counted.sent, counted.received) if counted else (None, None)
            links.append(replace(link, sent=sent, received=received))
        return GpuRun(
            gpu=gpu.index,
            uuid=gpu.uuid,
            model=gpu.model,
            memory_bytes=gpu.memory_bytes,
            figures=self._usage.figures(),
            has_gpm=self._gpm is not None,
            links=tuple(links),
            problem=self._problem or late,
        )

    def close(self) -> None:
        """Free the GPM samples."""
        if self._gpm:
            with suppress(pynvml.NVMLError):
                self._gpm.close()

    def _read(self, *, with_links: bool) -> Reading:
        """Read all counters.

        Raises:
            LostGpuError: the GPU does not answer any more.
        """
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
            links=self._read_links() if with_links and self._counted_links else None,
            **(self._gpm.metrics() if self._gpm else {}),
        )

    def _ask(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        """Call a function of NVML; None if the GPU does not know the answer.

        Raises:
            LostGpuError: the GPU does not answer any more.
        """
        if (function, arguments) in self._absent:
            return None
        try:
            return function(self._handle, *arguments)
        except pynvml.NVMLError as problem:
            if problem.value in _SILENT:
                raise LostGpuError(f"GPU {self._gpu.index}: {problem}") from None
            if problem.value in _NEVER:
                self._absent.add((function, arguments))
        return None

    def _read_memory(self) -> int | None:
        newer = self._ask(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
        found = self._ask(pynvml.nvmlDeviceGetMemoryInfo) if newer is None else newer
        return None if found is None else int(found.used)

    def _find_link_counters(self) -> tuple[tuple[int, ...], tuple[int, int], int]:
        """Return the links that have counters, the fields to read, and the bytes in a unit."""
        links = [link.number for link in self._links]
        for fields, unit in _NVLINK_COUNTERS:
            counted = tuple(
                n for n in links if None not in self._read_fields([(field, n) for field in fields])
            )
            if counted:
                return counted, fields, unit
        return (), (0, 0), 1

    def _read_links(self) -> dict[int, LinkBytes]:
        """Return the bytes carried by number of the link, without links that fail this time."""
        values = iter(
            self._read_fields(
                [(field, link) for link in self._counted_links for field in self._link_fields]
            )
        )
        return {
            link: LinkBytes(sent * self._link_unit, received * self._link_unit)
            for link, sent, received in zip(self._counted_links, values, values, strict=True)
            if sent is not None and received is not None
        }

    def _read_fields(self, fields: list[tuple[int, int]]) -> list[int | None]:
        """Return the values of (field, scope) in their order; None for each that is unknown."""
        try:
            return list(map(_field_value, pynvml.nvmlDeviceGetFieldValues(self._handle, fields)))
        except pynvml.NVMLError as problem:
            if problem.value in _SILENT:
                raise LostGpuError(f"GPU {self._gpu.index}: {problem}") from None
        return [None] * len(fields)

    def _open_gpm(self) -> "_Gpm | None":
        query = getattr(pynvml, "nvmlGpmQueryDeviceSupport", None)  # pynvml 11.525 has no GPM
        instance = self._ask(pynvml.nvmlDeviceGetGpuInstanceId)
        handle = self._handle
        if instance is not None:
            handle = self._ask(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle)
        try:
            if query is None or handle is None or not query(handle).isSupportedDevice:
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


def _field_value(field: Any) -> int | None:  # noqa: ANN401
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    if field.valueType in _WIDE:
        return int(field.value.ullVal)
    return int(field.value.sllVal if field.valueType in _SIGNED else field.value.uiVal)
