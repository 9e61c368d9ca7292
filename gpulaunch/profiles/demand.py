"""The use of each GPU by one job, as far as sharing depends on it."""
# pure: decides on plain values

from gpulaunch.records import Record


class CurvePoint(Record):
    """A job's throughput at one share of the SMs.

    Attributes:
        sm_percentage: share of the GPU's SMs, above 0, 100 at most.
        throughput: throughput in any unit that is the same for all points of a curve; above 0.
    """

    sm_percentage: float
    throughput: float


class Counters(Record):
    """A profiler's counters for the off-SM bandwidth model (cd-search-ics18 4.1.2).

    Attributes:
        llc_accesses_per_kilo_instruction: accesses to the last-level cache per 1,000 warp
            instructions.
        llc_hit_rate: 0 to 1.
        bytes_per_access: 32 where the profiler counts sectors, as current ones do.
    """

    llc_accesses_per_kilo_instruction: float
    llc_hit_rate: float
    bytes_per_access: int = 32


class Demand(Record):
    """A job's use of one GPU when it runs alone there.

    Attributes:
        name: name of the job's profile, or of the job, for messages.
        sm_utilization_percentage: average SM utilization, 0-100.
        memory_bandwidth_utilization_percentage: average, 0-100.
        memory_bytes: maximum device memory.
        power_w: average power; None if unknown.
        curve: throughput over the share of SMs, by ascending share; empty if not measured.
        counters: None if not counted.
        intensity: "memory" or "compute", where neither curve nor counters tell; None if unknown.
        utilization: what both utilizations are: "share" of the SMs and of the bandwidth in use, as
            GPM tells, or "time-active": of the time in which a kernel ran and in which memory was
            accessed, as NVML tells; None if unknown, as published figures are.
        busy_percentage: share of the time in which a kernel ran, 0-100, where the utilizations are
            shares; None if unknown.
    """

    name: str
    sm_utilization_percentage: float
    memory_bandwidth_utilization_percentage: float
    memory_bytes: int
    power_w: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    counters: Counters | None = None
    intensity: str | None = None
    utilization: str | None = None
    busy_percentage: float | None = None
