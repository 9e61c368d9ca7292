"""Every section of a profile but the top level: the one table of what a profile may say.

Files are checked against it. The records that code reads, the JSON schema,
docs/reference/profiles.md and the output of `gpulaunch profile show` are derived from it.
"""
# pure: decides on plain values

from gpulaunch.files.fields import Above, RowOf
from gpulaunch.profiles.confidence import CONFIDENCES
from gpulaunch.profiles.document.section import (
    Curve,
    FiguresOf,
    Number,
    Section,
    flag,
    items,
    number,
    percentage,
    table,
    text,
    whole,
    word,
)
from gpulaunch.profiles.pattern import MAX_RANKS, PATTERNS

_ANY_GB_PER_S = (0.0, 1e6)
_SLOWDOWN = (0.0, 1e4)
_SOURCE = "where these figures come from"
_GPU = "the GPU"


class Communication(Section):
    """The communication between the GPUs of a job."""

    required = ("source",)

    pattern = word(
        tuple(PATTERNS), "who talks to whom: " + ", ".join(f"`{name}`" for name in PATTERNS)
    )
    edges = items(
        RowOf((0, MAX_RANKS - 1), (0, MAX_RANKS - 1), Above(0.0, 1e18)),
        "`[[rank, rank, GB], ...]`: what went over each pair of GPUs; the pattern if `pattern` is "
        "missing",
        unit="GB",
    )
    bandwidth_sensitive = flag("whether faster links make the job faster")
    weight = number(
        0.001,
        1000,
        "weight of the job graph's edges: 4 for the smallest batches to 1 for the largest",
        label="weight of edges",
    )
    collective_calls_per_iteration = whole(0, 1 << 62, "of one GPU")
    message_bytes = number(
        0, 1e15, "average size of a collective call's message", label="message size"
    )
    time_percentage = percentage(
        "share of its time in which it waits for its links on the best GPUs; for the "
        "[simulator](../guides/simulate.md)",
        label="time waiting for links",
    )
    split_slowdown_percentage = percentage(
        "how much longer it takes with its GPUs on several sockets; likewise", most=1e4
    )
    confidence = word(CONFIDENCES, "how sure the pattern is")
    source = text(_SOURCE)


class Sensitivity(Section):
    """A job on the best and on the worst placement of a machine (mapa-sc21 2.3)."""

    required = ("source",)
    is_one_measurement = True

    best_gb_per_s = number(
        *_ANY_GB_PER_S, "effective bandwidth of the best placement", label="best bandwidth"
    )
    worst_gb_per_s = number(
        *_ANY_GB_PER_S, "effective bandwidth of the worst placement", label="worst bandwidth"
    )
    best_s = number(
        0, 1e9, "time of a run, or of an iteration, on the best placement", label="best time"
    )
    worst_s = number(0, 1e9, "the same on the worst", label="worst time")
    iterations = whole(1, 1 << 62, "how many iterations were timed; whole runs if missing")
    slowdown_percentage = number(
        -100, 1e6, "how much longer the worst took: `worst_s` / `best_s`, less 1"
    )
    measured_on = text(_GPU)
    source = text(_SOURCE)


class Resources(Section):
    """A job's use of one GPU when it runs there alone."""

    required = ("source",)

    memory_mib = whole(
        1, 1 << 30, "most device memory in use on one GPU; smaller GPUs are not considered"
    )
    memory_mean_mib = number(0, 1 << 30, "average device memory in use on one GPU")
    memory_is_reservation = flag(
        "these figures are what an allocator set aside, so they rule no GPU out"
    )
    sm_utilization_percentage = percentage(
        "average SM utilization; what the rule for sharing adds up"
    )
    sm_utilization_max_percentage = percentage("its maximum")
    sm_occupancy_percentage = percentage("average share of the warps that the SMs can hold")
    memory_bandwidth_utilization_percentage = percentage(
        "average memory-bandwidth utilization", label="memory bandwidth"
    )
    memory_bandwidth_utilization_max_percentage = percentage(
        "its maximum", label="memory bandwidth max"
    )
    utilization = word(
        ("share", "time-active"),
        "what both utilizations are: `share` of the SMs and of the DRAM bandwidth in use (GPM), or "
        "`time-active`: of "
        "the time in which any kernel ran, and memory was accessed (NVML), which is no share of "
        "either",
    )
    time_active_percentage = percentage("average share of time in which any kernel ran")
    idle_percentage = percentage(
        "share of the samples in which none ran at all", label="samples without a kernel"
    )
    power_w = number(0, 1e5, "average power")
    power_max_w = number(0, 1e5, "its maximum")
    power_cap_percentage = percentage(
        "share of time in which the power cap held the clocks down", label="time at the power cap"
    )
    energy_j = number(0, 1e15, "energy of one run")
    duration_s = number(0, 1e9, "time of one run")
    pcie_tx_gb_per_s = number(*_ANY_GB_PER_S, "average of one GPU, from the GPU over PCIe")
    pcie_rx_gb_per_s = number(*_ANY_GB_PER_S, "to the GPU over PCIe")
    nvlink_tx_gb_per_s = number(*_ANY_GB_PER_S, "from the GPU over all its NVLinks")
    nvlink_rx_gb_per_s = number(*_ANY_GB_PER_S, "to the GPU over all its NVLinks")
    samples = whole(0, 1 << 62, "how many samples the averages are of")
    estimated = items(
        tuple(name for name, key in vars().items() if isinstance(key, Number)),
        "names of the figures above that nobody measured on this job; `source` says how they were "
        "derived",
    )
    incomplete = flag("the job failed, or sampling broke off")
    measured_on = text(_GPU)
    driver = text("its driver's version")
    date = text("when it was measured, such as 2025-03-31T14:02:11Z or 2025-03-31 (ISO 8601)")
    source = text(_SOURCE)


class Runs(Section):
    """Differences of figures between runs; each key has the name of its key in `[resources]`."""

    count = whole(1, 1 << 62, "how many runs the averages are of")
    gpus = whole(1, 1 << 20, "how many GPUs the job had in them")
    misfits = whole(0, 1 << 62, "how many of the latest runs, in a row, did not fit")
    spread = FiguresOf(
        Resources, "standard deviation of each figure between runs, in the figure's unit", label="±"
    )
    percentile_95 = FiguresOf(
        Resources, "95th percentile of each figure over the runs, in the figure's unit", label="p95"
    )


class SmCurve(Section):
    """Throughput over the share of SMs (cd-search-ics18 Figure 7, mps-sharing-2024 Figure 1)."""

    required = ("sm_percentage", "throughput", "source")
    is_one_measurement = True

    sm_percentage = items(
        Above(0, 100), "shares of the SMs, ascending", least=1, most=100, label="share of the SMs"
    )
    throughput = Curve(
        Above(0, 1e15),
        "throughput at each of them, in any one unit",
        over="sm_percentage",
        unit_in="unit",
        most=100,
    )
    unit = text("the unit of `throughput`")
    knee_percentage = percentage("fewest SMs that keep 95 % of the best throughput")
    measured_on = text(_GPU)
    incomplete = flag("the job failed before all was measured")
    source = text(_SOURCE)


class Classification(Section):
    """A stated class for a job without curve and counters (cd-search-ics18 4.1)."""

    required = ("source",)

    intensity = word(
        ("memory", "compute"), "memory- or compute-intensive, where neither curve nor counters tell"
    )
    source = text(_SOURCE)


class HardwareCounters(Section):
    """A profiler's counters; those of the last-level cache are per warp instructions."""

    required = ("source",)
    together = ("llc_accesses_per_kilo_instruction", "llc_hit_rate_percentage")

    llc_accesses_per_kilo_instruction = number(
        0, 1e6, "accesses to the last-level cache per 1,000 warp instructions"
    )
    llc_hit_rate_percentage = percentage("how many of them hit")
    bytes_per_access = whole(1, 1024, "32 where the profiler counts sectors (default)")
    warp_occupancy_percentage = percentage(
        "achieved: average share of the warps that the SMs can hold"
    )
    theoretical_warp_occupancy_percentage = percentage(
        "the most that registers, shared memory and block size allow"
    )
    measured_on = text(_GPU)
    source = text(_SOURCE)


class Collocation(Section):
    """A job beside others on one socket (topo-aware-sc17 4.2 and 5.1)."""

    required = ("source",)

    slowdown_percentage = table(
        _SLOWDOWN,
        "table of profile name and number: how much longer it takes beside that job on one "
        "*socket*",
    )
    incomplete = flag("the job failed before all was measured")
    source = text(_SOURCE)


class SharedGpu(Section):
    """A job beside others on one GPU, through MPS."""

    required = ("source",)

    slowdown_percentage = table(
        _SLOWDOWN,
        "table of profile name and number: how much longer it takes beside that job on one *GPU*",
    )
    predicted_from = text(
        "name of the profile whose figures these are, as earlier versions predicted them; they "
        "are measured if missing"
    )
    measured_on = text(_GPU)
    incomplete = flag("the job failed before all was measured")
    source = text(_SOURCE)


class PlacementNeeds(Section):
    """A job's needs of its GPUs; its author decides them, so they have no source."""

    min_bandwidth_gb_per_s = number(
        0.001, 1e6, "least effective bandwidth: the job waits rather than start on less"
    )
    min_utility = number(0, 1, "under this utility the policy `topo-aware-p` lets it wait")
    single_node = flag("of several machines, all its GPUs must be in one")
    one_per_node = flag("or each in a machine of its own; not both")
    host_gb_per_s = number(
        0.001,
        1e6,
        "what the process of each GPU moves in the memory of its socket",
        label="host memory traffic",
    )


class SharingWish(Section):
    """A job's wish to share GPUs."""

    share = flag("whether to [share](../guides/sharing.md) GPUs when the command line does not say")
    sm_percentage = whole(
        1, 100, "share of the SMs that it is to have then", label="share of the SMs"
    )


class Scaling(Section):
    """Profiles of one job at several problem sizes (mps-sharing-2024 Table II)."""

    required = ("parameter", "profiles")
    is_one_measurement = True

    parameter = text("what NAME@PARAMETER=NUMBER asks for, such as `size`")
    profiles = table(str, "table of number and profile name: what was measured at which size")
