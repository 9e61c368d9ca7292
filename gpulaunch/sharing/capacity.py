"""The capacity of a GPU for jobs that share it."""
# pure: decides on plain values

import math
from collections.abc import Sequence
from typing import Any

from gpulaunch.machine.gpu_model import GpuModel
from gpulaunch.records import Record, field_names

MEMORY_HEADROOM_PERCENTAGE = 10.0
"""What a job may hold beyond its measured peak. Ours: samples miss short peaks, batches differ."""

_MIB = 1 << 20


class Capacity(Record):
    """The figures of one GPU that sharing is decided by.

    Attributes:
        memory_bytes: size of device memory.
        most_clients: number of clients that MPS takes on it at once.
        sm_count: streaming multiprocessors; None if unknown.
        power_limit_w: power limit of the card; None if unknown.
        giga_instructions_per_s_per_sm: warp instructions that one SM issues without stalls, 1e9 a
            second: IPC_max x frequency of cd-search-ics18 Eq. 1; None if unknown.
        llc_gb_per_s: bandwidth of the last-level cache and of the network before it; None if
            unknown.
        dram_gb_per_s: bandwidth of device memory; None if unknown.
    """

    memory_bytes: int
    most_clients: int
    sm_count: int | None = None
    power_limit_w: float | None = None
    giga_instructions_per_s_per_sm: float | None = None
    llc_gb_per_s: float | None = None
    dram_gb_per_s: float | None = None


def capacity_by(model: GpuModel | None, memory_bytes: int, most_clients: int) -> Capacity:
    """Return what a GPU offers, by the figures of its model.

    Args:
        model: the model; None if nobody knows its figures.
        memory_bytes: size of the GPU's memory.
        most_clients: number of clients that MPS takes on it, with its driver.
    """
    if model is None:
        return Capacity(memory_bytes, most_clients)
    return Capacity(
        memory_bytes,
        most_clients,
        sm_count=model.sm_count,
        power_limit_w=model.power_limit_w,
        giga_instructions_per_s_per_sm=model.warp_schedulers_per_sm * model.max_clock_mhz / 1000,
        llc_gb_per_s=model.l2_bandwidth_gb_per_s,
        dram_gb_per_s=model.dram_bandwidth_gb_per_s,
    )


def least_of(capacities: Sequence[Capacity]) -> Capacity:
    """Return what every one of some GPUs offers; nothing where nothing is known of any of them."""
    if not capacities:
        return Capacity(0, 0)
    found: dict[str, Any] = {}
    for name in field_names(Capacity):
        values = [getattr(capacity, name) for capacity in capacities]
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
