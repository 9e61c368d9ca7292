"""The capacity of a GPU for jobs that share it."""
# pure: decides on plain values

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpulaunch.machine.gpu_model import GpuModel
from gpulaunch.records import Record, field_names

MEMORY_HEADROOM_PERCENTAGE = 10.0
"""What a job may hold beyond its measured peak. Ours: samples miss short peaks, batches differ."""

_BYTES_PER_CLOCK = 64
"""Bytes that one SM can draw a clock, from Volta on.

An H100 gives 1424 GB/s to a copy on 10 % of its SMs, 94 % of the most to 20 % of them: 64 bytes a
clock at 1.7 GHz (docs/results/sharing-measured.md).
"""

_MIB = 1 << 20


class Capacity(Record):
    """The figures of one GPU that sharing is decided by.

    Attributes:
        memory_bytes: size of device memory.
        most_clients: number of clients that MPS takes on it at once.
        sm_count: streaming multiprocessors; None if unknown.
        power_limit_w: power limit of the card; None if unknown.
        giga_instructions_per_s: warp instructions that all SMs issue without stalls, 1e9 a second:
            #SMs x IPC_max x frequency of cd-search-ics18 Eq. 1; None if unknown.
        llc_gb_per_s: bandwidth of the last-level cache and of the network before it; None if
            unknown.
        dram_gb_per_s: bandwidth of device memory; None if unknown.
        sms_fill_memory: share of the SMs that can use all of that; None if unknown.
    """

    memory_bytes: int
    most_clients: int
    sm_count: int | None = None
    power_limit_w: float | None = None
    giga_instructions_per_s: float | None = None
    llc_gb_per_s: float | None = None
    dram_gb_per_s: float | None = None
    sms_fill_memory: float | None = None


def capacity_by(model: GpuModel | None, memory_bytes: int, most_clients: int) -> Capacity:
    """Return what a GPU offers, by the figures of its model.

    Args:
        model: the model; None if nobody knows its figures.
        memory_bytes: size of the GPU's memory.
        most_clients: number of clients that MPS takes on it, with its driver.
    """
    if model is None:
        return Capacity(memory_bytes, most_clients)
    clock_ghz = model.max_clock_mhz / 1000
    return Capacity(
        memory_bytes,
        most_clients,
        sm_count=model.sm_count,
        power_limit_w=model.power_limit_w,
        giga_instructions_per_s=model.sm_count * model.warp_schedulers_per_sm * clock_ghz,
        llc_gb_per_s=model.l2_bandwidth_gb_per_s,
        dram_gb_per_s=model.dram_bandwidth_gb_per_s,
        sms_fill_memory=(
            model.dram_bandwidth_gb_per_s / (model.sm_count * clock_ghz * _BYTES_PER_CLOCK)
        ),
    )


def least_of(capacities: Mapping[str, Capacity], uuids: Iterable[str]) -> Capacity:
    """Return what every one of some GPUs offers; nothing where nothing is known of any of them."""
    known = [capacities[uuid] for uuid in uuids if uuid in capacities]
    if not known:
        return Capacity(0, 0)
    found: dict[str, Any] = {}
    for name in field_names(Capacity):
        values = [getattr(capacity, name) for capacity in known]
        found[name] = None if None in values else min(values)
    return Capacity(**found)


def with_headroom(peak_bytes: int, sizes: Sequence[int]) -> int:
    """Return the memory limit of a job that is known by its peak.

    It is more, but no more than the smallest GPU has that could hold the peak.

    Args:
        peak_bytes: the most that it was measured to hold.
        sizes: memory of each GPU that it may get, in bytes.
    """
    limit = math.ceil(peak_bytes * (100 + MEMORY_HEADROOM_PERCENTAGE) / 100 / _MIB) * _MIB
    fitting = [size for size in sizes if size >= peak_bytes]  # it stays fit for the smallest
    return max(peak_bytes, min([limit, *(fitting or sizes)]))
