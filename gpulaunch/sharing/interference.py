"""Which jobs may share a GPU through CUDA MPS, and which one a job likes: mps-sharing-2024 IV.B."""
# pure: decides on plain values

from collections.abc import Iterator, Sequence
from math import fsum
from typing import Literal

from gpulaunch.errors import printable
from gpulaunch.leases.share import Client, Objective
from gpulaunch.profiles.demand import Demand
from gpulaunch.records import Record, replace
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.curve import saturates
from gpulaunch.sharing.partition import Held, partition
from gpulaunch.sharing.prediction import drawn_power, idle_power, rates, steady_gain

MOST_FOR_THROUGHPUT = 2
"""Number of clients beyond which throughput suffers (IV.B criterion 4)."""

MOST_SMALL_FOR_THROUGHPUT = 3
"""Number of clients if all are small.

The conclusions of the paper say "groups of 2-3" of low utilization.
"""

LEAST_GAIN = 1.1
"""Throughput of a pair, against one after the other, from which its sums do not count. Ours.

It is above what noise of 5 % in either figure makes.
"""

LEAST_SLOWDOWN = 0.02
"""Slowdowns below are taken for noise of measurement."""

_STEP_PERCENTAGE = 10.0
"""Percentage points of SM utilization that make a difference in a preference. Ours."""

_NOISE_DIGITS = 9
"""Decimals to which sums are rounded before they are compared.

What is written as 33.3 + 33.3 + 33.4 is 100.
"""


MOST_PERCENTAGE = 100.0
"""Bound of each sum of average utilizations, and of maximum memory; a bound itself is allowed."""

MOST_SLOWDOWN_PERCENTAGE = 25.0
"""Bound of a client's slowdown by its neighbours, as measured.

Ours: it is what a client at 80 % of its speed has, the default tolerance of Objective.
"""

DecidedBy = Literal["sums", "curves", "measured"]

_BY_SUMS: tuple[DecidedBy, float] = ("sums", 0.0)


class Sums(Record):
    """The sums over all clients of a GPU.

    Attributes:
        sm_percentage: average SM utilization; where some tell it as a share of the SMs and others
            as a share of the time, all of it as time.
        memory_bandwidth_percentage: average memory-bandwidth utilization, likewise.
        memory_bytes: the most that they hold.
        power_w: average power; None if one is unknown.
        predicted_power_w: what they are predicted to draw together, the idle GPU's part counted
            once; None if it is unknown.
        interference: mean slowdown of the clients whose slowdown beside any other is known,
            topo-aware-sc17 Eq. 4; 0.1 is 10 %; None if there are none.
    """

    sm_percentage: float
    memory_bandwidth_percentage: float
    memory_bytes: int
    power_w: float | None
    predicted_power_w: float | None
    interference: float | None


class Verdict(Record):
    """The rule's answer on clients that would share a GPU.

    Attributes:
        compatible: whether they may share it.
        reasons: every bound that is exceeded, with figures; empty if they may.
        decided_by: "sums" of what they use; "curves" or "measured" where a pair's throughput, as
            predicted from both curves or as measured, outweighs sums that are exceeded.
        notes: what is worth knowing and no reason to refuse.
        sums: what they use together.
    """

    compatible: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    sums: Sums
    decided_by: DecidedBy = "sums"


def judge(
    clients: Sequence[Client],
    capacity: Capacity,
    held: Held = (),
) -> Verdict:
    """Judge whether clients may share a GPU.

    They must stay within the bounds, and be as few as each one's objective wants. Their order makes
    no difference, and one more client never turns a refusal into a grant.

    Two clients of which more is known may exceed sums: if each was measured beside the other on one
    GPU, or if both curves were measured, and both together reach LEAST_GAIN times the throughput of
    one after the other. A curve outweighs the sum of SM utilization alone, and nothing outweighs
    memory.

    Args:
        clients: all that would be on the GPU, one at least.
        capacity: what the GPU offers.
        held: percentage of the SMs of each client that cannot be chosen any more; None given, all
            can.

    Source: mps-sharing-2024 IV.B: two workflows interfere if their average SM utilization, or their
        average memory-bandwidth utilization, sums to over 100 %, or their maximum memory to over
        the GPU's; throughput wants two clients at most, energy as many as MPS takes. Its criterion
        2 says "under 100 %"; exactly 100 passes here. Departures: docs/decisions/interference.md.
    """
    slowdowns = _known_slowdowns(clients)
    demands = [client.demand for client in clients]
    unlike = _find_unlike(demands)
    if not unlike and len(_kinds(demands)) > 1:
        demands = list(map(_as_time, demands))
    sums = _add_up(demands, capacity, slowdowns)
    sm = _find_exceeded("SM", sums.sm_percentage)
    bandwidth = _find_exceeded("memory-bandwidth", sums.memory_bandwidth_percentage)
    exceeded = [*sm, *bandwidth]
    decided_by, gain = _BY_SUMS
    if exceeded and not any(_is_beyond(demand) for demand in demands):
        decided_by, gain = _weigh(clients, slowdowns, capacity, held)
    if decided_by == "sums" or (decided_by == "curves" and bandwidth):
        decided_by, outweighed = "sums", []
    else:
        exceeded, outweighed = [], exceeded
    reasons = (
        *unlike,
        *exceeded,
        *_find_memory(sums, capacity),
        *_find_crowding(clients, capacity),
        *_find_slowdown(clients, slowdowns),
        *_find_intolerable(clients),
    )
    how = "measured together" if decided_by == "measured" else "by their curves"
    notes = [
        f"{each}, but {how} they reach {gain:.3g} of one after the other" for each in outweighed
    ]
    notes += _write_notes(sums, capacity)
    return Verdict(not reasons, reasons, tuple(notes), sums, decided_by)


def mean_slowdown(slowdowns: Sequence[float]) -> float:
    """Return the mean slowdown of the jobs that a placement affects; 0 if there are none.

    These are the running jobs and the new one.

    Args:
        slowdowns: slowdown of each job: its time with the others, divided by its time alone, less
            1. Those under 2 % count as 0.

    Source: topo-aware-sc17 Eq. 4. Departure: as printed, with the time alone on top, it falls as
        interference grows, so that minimising it would seek interference.

    Example:
        >>> mean_slowdown([0.3, 0.01, 0.0])
        0.09999999999999999
    """
    if not slowdowns:
        return 0.0
    return sum(slowdown for slowdown in slowdowns if slowdown >= LEAST_SLOWDOWN) / len(slowdowns)


def _kinds(demands: Sequence[Demand]) -> set[str]:
    """Return what the utilizations of some jobs are; those of unknown kind go with any."""
    return {demand.utilization for demand in demands if demand.utilization}


def _find_unlike(demands: Sequence[Demand]) -> list[str]:
    """Return why the utilizations of some jobs cannot be added up, if they cannot."""
    if len(_kinds(demands)) < 2:
        return []
    return [
        f"utilization of {printable(demand.name)} is a share of the SMs and that of others of the "
        "time: its busy time is not known"
        for demand in demands
        if demand.utilization == "share" and demand.busy_percentage is None
    ]


def _as_time(demand: Demand) -> Demand:
    """Return a demand with utilizations that are shares of the time.

    Memory is accessed at most while a kernel runs.
    """
    if demand.utilization != "share" or demand.busy_percentage is None:
        return demand
    busy = max(demand.busy_percentage, demand.sm_utilization_percentage)
    return replace(
        demand,
        sm_utilization_percentage=busy,
        memory_bandwidth_utilization_percentage=max(
            busy, demand.memory_bandwidth_utilization_percentage
        ),
        utilization="time-active",
    )


def _weigh(
    clients: Sequence[Client],
    slowdowns: Sequence[float | None],
    capacity: Capacity,
    held: Held,
) -> tuple[DecidedBy, float]:
    """Return what outweighs sums that are exceeded, and the throughput of the clients by that.

    Only a pair is known well enough.
    """
    if len(clients) != 2:
        return _BY_SUMS
    one, other = clients
    measured = other.demand.name in one.on_one_gpu and one.demand.name in other.on_one_gpu
    known = [slowdown for slowdown in slowdowns if slowdown is not None]
    if len(known) == len(clients) and measured:
        gain = fsum(1 / (1 + slowdown) for slowdown in known)
        return ("measured", gain) if gain >= LEAST_GAIN else _BY_SUMS
    demands = [client.demand for client in clients]
    if any(saturates(demand.curve) is None for demand in demands):
        return _BY_SUMS
    gain = partition(demands, capacity, held=held).gain
    return ("curves", gain) if gain >= LEAST_GAIN else _BY_SUMS


def _add_up(
    demands: Sequence[Demand], capacity: Capacity, slowdowns: Sequence[float | None]
) -> Sums:
    powers = [demand.power_w for demand in demands if demand.power_w is not None]
    known = sorted(slowdown for slowdown in slowdowns if slowdown is not None)
    return Sums(
        _round_sum(demand.sm_utilization_percentage for demand in demands),
        _round_sum(demand.memory_bandwidth_utilization_percentage for demand in demands),
        sum(demand.memory_bytes for demand in demands),
        _round_sum(iter(powers)) if len(powers) == len(demands) else None,
        drawn_power(demands, rates(demands), idle_power(capacity)),
        mean_slowdown(known) if known else None,
    )


def _round_sum(values: Iterator[float]) -> float:
    return round(fsum(values), _NOISE_DIGITS)


def _known_slowdowns(clients: Sequence[Client]) -> list[float | None]:
    """Return the slowdown of each client by all its neighbours; None if it is known beside none."""
    found: list[float | None] = []
    for i, client in enumerate(clients):
        others = [other.demand.name for other in (*clients[:i], *clients[i + 1 :])]
        known = [client.slowdowns[name] for name in others if name in client.slowdowns]
        found.append(_round_sum(iter(known)) if known else None)
    return found


def _find_exceeded(what: str, percentage: float) -> list[str]:
    """Return that a sum of utilizations exceeds its bound, if it does."""
    if percentage <= MOST_PERCENTAGE:
        return []
    return [f"average {what} utilization {_percent_of(percentage, MOST_PERCENTAGE)}"]


def find_filled(client: Client) -> str | None:
    """Return which bound a job reaches by itself, so that none may come beside it; None if none.

    Curves and measured slowdowns may outweigh what a job uses.
    """
    demand = client.demand
    if not demand.curve and not client.on_one_gpu:
        for what, used in (
            ("SM", demand.sm_utilization_percentage),
            ("memory-bandwidth", demand.memory_bandwidth_utilization_percentage),
        ):
            if used >= MOST_PERCENTAGE:
                return (
                    f"average {what} utilization {_percent_of(used, MOST_PERCENTAGE)} by itself, "
                    "so nothing fits beside it: -o utilization may say less"
                )
    return None


def _is_beyond(demand: Demand) -> bool:
    """Return whether a job exceeds a bound of utilization all by itself."""
    return (
        demand.sm_utilization_percentage > MOST_PERCENTAGE
        or demand.memory_bandwidth_utilization_percentage > MOST_PERCENTAGE
    )


def _find_memory(sums: Sums, capacity: Capacity) -> Iterator[str]:
    """Yield whether they hold more memory than they may."""
    if sums.memory_bytes > capacity.memory_bytes:
        held, most = _mib(sums.memory_bytes), _mib(capacity.memory_bytes)
        yield f"maximum memory {held} of at most {most}"


def _find_crowding(clients: Sequence[Client], capacity: Capacity) -> Iterator[str]:
    """Yield whether they are more than MPS takes, or than those want that share for throughput."""
    count = len(clients)
    if count > capacity.most_clients:
        yield f"{count} clients of at most {capacity.most_clients} that MPS takes"
    if all(client.objective.name != "throughput" for client in clients):
        return
    small = all(_is_small(client.demand) for client in clients)
    most = MOST_SMALL_FOR_THROUGHPUT if small else MOST_FOR_THROUGHPUT
    if count > most:
        size = "" if small else f" ({MOST_SMALL_FOR_THROUGHPUT} if all are small)"
        yield f"{count} clients of at most {most}{size} that objective throughput wants"


def _is_small(demand: Demand) -> bool:
    """Return whether three such jobs stay within the bound of SM utilization.

    The paper says "low"; the third is ours.
    """
    return demand.sm_utilization_percentage * MOST_SMALL_FOR_THROUGHPUT <= MOST_PERCENTAGE


def _find_slowdown(clients: Sequence[Client], slowdowns: Sequence[float | None]) -> Iterator[str]:
    """Yield the client that is slowed down most, if it is too much."""
    worst, name = max(
        (slowdown or 0.0, client.demand.name)
        for slowdown, client in zip(slowdowns, clients, strict=True)
    )
    percentage = round(100 * worst, _NOISE_DIGITS)
    if percentage > MOST_SLOWDOWN_PERCENTAGE:
        figures = _percent_of(percentage, MOST_SLOWDOWN_PERCENTAGE)
        yield f"measured slowdown of {printable(name)} {figures}"


def _find_intolerable(clients: Sequence[Client]) -> Iterator[str]:
    """Yield the client predicted to lose most, if one that shares for energy or product minds."""
    tolerances = [
        client.objective.throughput_tolerance_percentage
        for client in clients
        if client.objective.name != "throughput"
    ]
    if not tolerances:
        return
    speeds = rates([client.demand for client in clients])
    slowest, name = min(
        (speed, client.demand.name) for speed, client in zip(speeds, clients, strict=True)
    )
    loss = round(100 * (1 - slowest), _NOISE_DIGITS)
    if loss > min(tolerances):
        yield f"predicted throughput loss of {printable(name)} {_percent_of(loss, min(tolerances))}"


def _write_notes(sums: Sums, capacity: Capacity) -> Iterator[str]:
    """Yield that power goes beyond the limit, which is no reason to refuse.

    Source: mps-sharing-2024 V.C saw no throughput go with lowered clocks.
    """
    limit = capacity.power_limit_w
    if limit is None or sums.power_w is None or sums.power_w <= limit:
        return
    drawn = sums.predicted_power_w
    predicted = "" if drawn is None else f" (predicted draw {drawn:.0f} W)"
    found = f"average power sums to {sums.power_w:.0f} W{predicted}"
    yield f"{found}, over the limit of {limit:.0f} W: clocks may be lowered"


def _percent_of(value: float, most: float) -> str:
    """Return a value and its bound, with as many decimals as it takes to see that it exceeds it."""
    return f"{round(value, 2) if round(value, 2) > most else value:.10g} % of at most {most:.10g} %"


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 20):.10g} MiB"


def rank_group(
    request: Demand, residents: Sequence[Demand], objective: Objective, capacity: Capacity
) -> tuple[float, ...]:
    """Return the sort key of a GPU where a job may run; the lowest is best.

    1. For product alone: the product that all are predicted to reach, the largest first.
    2. Average SM utilization of the jobs that are there, in steps of 10 points, the lowest first.
    3. How far the job's average power is from their mean, the farthest first: low goes with high.
    4. Their SM utilization again, exactly.

    Args:
        request: demand of the job that looks for a GPU.
        residents: demands of the jobs on the GPU.
        objective: objective of the job.
        capacity: what the GPU offers.

    Source: mps-sharing-2024 IV.B criterion 1 (lowest utilization) and recommendation 3 (opposing
        power); it ranks neither against the other. Contention matters more than power, it says, so
        utilization comes first, coarsely.
    """
    used = round(fsum(resident.sm_utilization_percentage for resident in residents), _NOISE_DIGITS)
    key = (used // _STEP_PERCENTAGE, -_power_apart(request, residents), used)
    if objective.name != "product":
        return key
    gain = steady_gain([request, *residents], capacity)
    product = gain.log_product(objective.throughput_weight, objective.energy_weight)
    return (-round(product, _NOISE_DIGITS), *key)


def _power_apart(request: Demand, residents: Sequence[Demand]) -> float:
    """Return the distance of a job's power from the mean of the others', in W.

    It is 0 if one is unknown, or there are no others.
    """
    powers = [resident.power_w for resident in residents if resident.power_w is not None]
    if request.power_w is None or not powers or len(powers) < len(residents):
        return 0.0
    return abs(request.power_w - round(fsum(powers), _NOISE_DIGITS) / len(powers))
