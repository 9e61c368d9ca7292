"""The door to NVML's counters: the use of one GPU, now and since the reading before.

A counter that the card or driver does not have is asked for only once; one that fails now and then
is missing in that reading.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pynvml

from gpulaunch.machine.nvidia.load import read_busy, read_power_w
from gpulaunch.machine.nvidia.nvml import LOST, LostGpuError, NvmlDevice
from gpulaunch.measure.usage import LinkBytes, Reading
from gpulaunch.records import Record
from gpulaunch.typing import Any

GPM_LEAST_S = 0.1
"""Least time between two GPM samples (nvml.h)."""

_NEVER = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
)
# NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES, which older pynvml do not name.
_PCIE_COUNTERS = (197, 198)
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

_PCIE_SENT, _PCIE_RECEIVED = pynvml.NVML_PCIE_UTIL_TX_BYTES, pynvml.NVML_PCIE_UTIL_RX_BYTES
_SILENT = (
    *LOST,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
"""Errors after which the GPU answers no more questions."""

_POWER_CAP = 0x4  # nvmlClocksEventReasonSwPowerCap
_SIGNED = (pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG,)
_WIDE = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)


class _GpmMetrics(Record):
    """Averages between two GPM samples, 0-100; None for what is unknown."""

    sm_percentage: float | None = None
    occupancy_percentage: float | None = None
    dram_percentage: float | None = None


_GPM_IDS = (
    pynvml.NVML_GPM_METRIC_SM_UTIL,
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
)


class Meter:
    """A reader of the use of one GPU, or of one MIG instance.

    Args:
        card: the GPU or MIG instance.
        links: numbers of its NVLinks that are up.
    """

    def __init__(self, card: NvmlDevice, links: tuple[int, ...]) -> None:
        self._handle = card.handle
        self.index = card.index
        self._absent: set[object] = set()
        self._counts_pcie = None not in self._read_fields([(field, 0) for field in _PCIE_COUNTERS])
        self._counted_links, self._link_fields, self._link_unit = self._find_link_counters(links)
        self._gpm = self._open_gpm()

    @property
    def has_gpm(self) -> bool:
        """Whether this GPU has GPM, and so reports true SM and DRAM shares."""
        return self._gpm is not None

    def read(self, *, with_links: bool, with_pcie: bool) -> Reading:
        """Read all counters.

        Args:
            with_links: whether to read the counters of its NVLinks, too, which are many.
            with_pcie: whether to measure PCIe traffic for the next 20 ms in each direction, if the
                GPU has no counters of it.

        Raises:
            LostGpuError: the GPU does not answer any more.
        """
        busy = read_busy(self._ask)
        gpm = self._gpm.metrics() if self._gpm else _GpmMetrics()
        millijoules = self._ask(pynvml.nvmlDeviceGetTotalEnergyConsumption)
        violation = self._ask(pynvml.nvmlDeviceGetViolationStatus, pynvml.NVML_PERF_POLICY_POWER)
        sent = received = None
        if self._counts_pcie:
            sent, received = self._read_fields([(field, 0) for field in _PCIE_COUNTERS])
        look = with_pcie and not self._counts_pcie
        return Reading(
            at_s=time.monotonic(),
            time_active_percentage=float(busy.gpu_percentage) if busy else None,
            memory_active_percentage=float(busy.memory_percentage) if busy else None,
            sm_percentage=gpm.sm_percentage,
            occupancy_percentage=gpm.occupancy_percentage,
            dram_percentage=gpm.dram_percentage,
            memory_bytes=self._read_memory(),
            power_w=read_power_w(self._ask),
            is_capped=self._is_capped() if violation is None else None,
            pcie_sent_gb_per_s=self._measure_pcie(_PCIE_SENT) if look else None,
            pcie_received_gb_per_s=self._measure_pcie(_PCIE_RECEIVED) if look else None,
            energy_j=None if millijoules is None else millijoules / 1000,
            capped_s=None if violation is None else violation.violationTime / 1e9,
            pcie_sent_bytes=sent,
            pcie_received_bytes=received,
            links=self._read_links() if with_links and self._counted_links else None,
        )

    def close(self) -> None:
        """Free the GPM samples."""
        if self._gpm:
            with suppress(pynvml.NVMLError):
                self._gpm.close()

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
                raise LostGpuError(f"GPU {self.index}: {problem}") from None
            if problem.value in _NEVER:
                self._absent.add((function, arguments))
        return None

    def _read_memory(self) -> int | None:
        newer = self._ask(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
        found = self._ask(pynvml.nvmlDeviceGetMemoryInfo) if newer is None else newer
        return None if found is None else int(found.used)

    def _is_capped(self) -> bool | None:
        newer = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        reasons = self._ask(newer) if newer else None
        if reasons is None:
            reasons = self._ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return None if reasons is None else bool(reasons & _POWER_CAP)

    def _measure_pcie(self, direction: int) -> float | None:
        """Return GB/s in one direction; the driver counts for 20 ms and reports KB/s."""
        found = self._ask(pynvml.nvmlDeviceGetPcieThroughput, direction)
        return None if found is None else found * 1000 / 1e9

    def _find_link_counters(
        self, links: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, int], int]:
        """Return the links that have counters, the fields to read, and the bytes in a unit."""
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
                raise LostGpuError(f"GPU {self.index}: {problem}") from None
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
            return _Gpm(handle, instance, self.index)
        except pynvml.NVMLError:
            return None


class _Gpm:
    """GPU Performance Monitoring of Hopper and later: exact averages between two samples."""

    def __init__(self, handle: Any, instance: int | None, index: int) -> None:  # noqa: ANN401
        self._handle, self._instance, self._index = handle, instance, index
        self._before, self._after = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self._take(self._before)
        self._taken_s = time.monotonic()

    def metrics(self) -> _GpmMetrics:
        """Return the averages since the last call; all None if GPM fails or it was just now."""
        if time.monotonic() - self._taken_s < GPM_LEAST_S:
            return _GpmMetrics()
        try:
            self._take(self._after)
            asked = pynvml.c_nvmlGpmMetricsGet_t()
            asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
            asked.sample1, asked.sample2 = self._before, self._after
            asked.numMetrics = len(_GPM_IDS)
            for place, metric in enumerate(_GPM_IDS):
                asked.metrics[place].metricId = metric
            pynvml.nvmlGpmMetricsGet(asked)
        except pynvml.NVMLError as problem:
            if problem.value in _SILENT:
                raise LostGpuError(f"GPU {self._index}: {problem}") from None
            return _GpmMetrics()
        self._before, self._after = self._after, self._before
        self._taken_s = time.monotonic()
        return _GpmMetrics(
            *(_metric_percentage(asked.metrics[place]) for place in range(len(_GPM_IDS)))
        )

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
