"""Which jobs may share a GPU through CUDA MPS: the rule of mps-sharing-2024 IV.B."""
# pure: decides on plain values

from collections.abc import Iterator, Sequence
from math import fsum
from typing import Literal

from gpulaunch.errors import printable
from gpulaunch.leases.lease import Client, Objective
from gpulaunch.profiles.demand import Demand, tells_all
from gpulaunch.records import Record, replace
from gpulaunch.sharing.caps import BUSY, MOST_CAP, best_caps
from gpulaunch.sharing.speed import Capacity, Pace, kernels_of, pace, speeds

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

_NOISE_DIGITS = 9
"""Decimals to which sums are rounded before they are compared.

What is written as 33.3 + 33.3 + 33.4 is 100.
"""


MOST_PERCENTAGE = 100.0
"""Bound of each sum of average utilizations, and of maximum memory; a bound itself is allowed."""

Held = Sequence[int | None]
"""For each job the cap that it has already, or None if it is still to be chosen."""

DecidedBy = Literal["sums", "curves", "measured"]


class Sums(Record):
    """The sums over all clients of a GPU.

    Attributes:
        sm_percentage: average SM utilization; where some tell it as a share of the SMs and others
            as a share of the time, all of it as time.
        power_w: average power; None if one is unknown.
    """

    sm_percentage: float
    memory_bandwidth_percentage: float
    memory_bytes: int
    power_w: float | None


class Verdict(Record):
    """The rule's answer on clients that would share a GPU.

    Attributes:
        reasons: every bound that is exceeded, with figures; empty if they may.
        decided_by: "sums" of what they use; "curves" or "measured" where a pair's throughput, as
            predicted from both curves or as measured, outweighs sums that are exceeded.
        caps: cap of each in % of the SMs, as held or as is best; none if they may not share.
        pace: their predicted speeds at these caps; None if they may not share.
        why: why these caps, in a sentence; None if they may not share.
    """

    compatible: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    sums: Sums
    decided_by: DecidedBy = "sums"
    caps: tuple[int, ...] = ()
    pace: Pace | None = None
    why: str | None = None


def judge(
    clients: Sequence[Client],
    capacity: Capacity,
    held: Held = (),
    reached: float = 0.0,
    measured: Sequence[float] = (),
) -> Verdict:
    """Judge whether clients may share a GPU, and find their caps.

    They must stay within the bounds, be as few as each one's objective wants, and none may be
    predicted to lose more to its neighbours than it tolerates. Their order makes no difference.

    Two clients of which more is known may exceed sums: if each was measured beside the other on one
    GPU, or if both curves were measured, and both together reach LEAST_GAIN times the throughput of
    one after the other. A curve outweighs the sum of SM utilization alone, and nothing outweighs
    memory.

    Args:
        clients: all that would be on the GPU, one at least.
        held: cap of each client in % of the SMs, as far as it cannot be chosen any more.
        reached: system throughput of just these clients, where launches of them were measured; it
            outweighs sums, and slowdowns that were measured at other caps do not count.
        measured: speed of each at the caps held, by these launches.

    Source: mps-sharing-2024 IV.B: two workflows interfere if their average SM utilization, or their
        average memory-bandwidth utilization, sums to over 100 %, or their maximum memory to over
        the GPU's; throughput wants two clients at most, energy as many as MPS takes. Its criterion
        2 says "under 100 %"; exactly 100 passes here. Departures: docs/decisions/interference.md.
    """
    slowdowns = [None] * len(clients) if reached else _known_slowdowns(clients)
    own = [client.demand for client in clients]
    demands, unlike = _in_one_kind(own)
    sums = _add_up(demands)
    sm = _find_exceeded("SM", sums.sm_percentage)
    bandwidth = _find_exceeded("memory-bandwidth", sums.memory_bandwidth_percentage)
    exceeded = [*sm, *bandwidth]
    decided_by: DecidedBy = "sums"
    notes: list[str] = []
    if exceeded:
        decided_by, gain = _weigh(
            clients, slowdowns, reached, capacity, held, only_sm=not bandwidth
        )
        if decided_by != "sums":
            how = "measured together" if decided_by == "measured" else "by their curves"
            reach = f"but {how} they reach {gain:.3g} of one after the other"
            notes = [f"{each}, {reach}" for each in exceeded]
            exceeded = []
    reasons = [*unlike, *exceeded]
    if sums.memory_bytes > capacity.memory_bytes:
        most, has = _mib(capacity.memory_bytes), _mib(sums.memory_bytes)
        reasons.append(f"maximum memory {has} of at most {most}")
    reasons += _find_crowding(clients, capacity)
    reasons += _find_taken(clients, capacity, held)
    if not reasons:
        caps = best_caps(own, capacity, _objective_of(clients), held)
        at = Pace(tuple(measured)) if measured else pace(own, capacity, caps)
        reasons = sorted({*_find_losers(clients, capacity, caps, held, measured, slowdowns)})
    if reasons:
        return Verdict(False, tuple(reasons), tuple(notes), sums, decided_by)
    limit_w = capacity.power_limit_w
    if limit_w and at.power_w and at.power_w >= limit_w:
        # No reason to refuse: mps-sharing-2024 V.C saw no throughput go with lowered clocks.
        notes.append(f"predicted to draw all that its limit of {limit_w:.0f} W allows")
    why = _explain_caps(own, held, at)
    return Verdict(True, (), tuple(notes), sums, decided_by, caps, at, why)


def _objective_of(clients: Sequence[Client]) -> Objective:
    """Return what caps have to suit: the purpose of all, or throughput if they have several."""
    first, *others = [client.objective for client in clients]
    wanted = [(one.name, one.throughput_weight, one.energy_weight) for one in (first, *others)]
    return first if len({*wanted}) == 1 else Objective()


def _explain_caps(demands: Sequence[Demand], held: Held, at: Pace) -> str:
    """Return why the last job gets its cap, and what its prediction stands on."""
    if held and held[-1] is not None:
        return "as asked for"
    estimated = [printable(demand.name) for demand in demands if not tells_all(demand.curve)]
    by = f"; estimated: the curve of {' and '.join(estimated)}" if estimated else ""
    if len(demands) == 1:
        return f"enough for 95 % of its best throughput, {MOST_CAP} % at most{by}"
    return f"predicted throughput {at.stp:.3g} of one after the other{by}"


def _in_one_kind(own: Sequence[Demand]) -> tuple[list[Demand], list[str]]:
    """Return demands whose utilizations can be added up, or why they cannot be.

    Where some tell shares of the SMs and others the time, all go by the time. Memory is accessed at
    most while a kernel runs.
    """
    demands = list(own)
    unlike: list[str] = []
    if len({demand.utilization for demand in own if demand.utilization}) < 2:
        return demands, unlike
    for i, demand in enumerate(own):
        if demand.utilization != "share":
            continue
        if demand.busy_percentage is None:
            unlike.append(
                f"utilization of {printable(demand.name)} is a share of the SMs and that of others "
                "of the time: its busy time is not known"
            )
            continue
        busy = max(demand.busy_percentage, demand.sm_utilization_percentage)
        demands[i] = replace(
            demand,
            sm_utilization_percentage=busy,
            memory_bandwidth_utilization_percentage=max(
                busy, demand.memory_bandwidth_utilization_percentage
            ),
        )
    return demands, unlike


def _weigh(
    clients: Sequence[Client],
    slowdowns: Sequence[float | None],
    reached: float,
    capacity: Capacity,
    held: Held,
    *,
    only_sm: bool,
) -> tuple[DecidedBy, float]:
    """Return what outweighs sums that are exceeded, and the throughput of the clients by that.

    But by launches of just these clients, only a pair is known well enough.
    """
    demands = [client.demand for client in clients]
    if reached >= LEAST_GAIN:
        return "measured", reached
    if len(clients) != 2:
        return "sums", 0.0
    one, other = clients
    measured = other.demand.name in one.on_one_gpu and one.demand.name in other.on_one_gpu
    known = [slowdown for slowdown in slowdowns if slowdown is not None]
    how: DecidedBy = "sums"
    gain = 0.0
    if len(known) == len(clients) and measured:
        gain, how = fsum(1 / (1 + slowdown) for slowdown in known), "measured"
    elif only_sm and all(tells_all(demand.curve) for demand in demands):
        caps = best_caps(demands, capacity, Objective(), held)
        gain, how = fsum(pace(demands, capacity, caps).speeds), "curves"
    return (how, gain) if gain >= LEAST_GAIN else ("sums", 0.0)


def _add_up(demands: Sequence[Demand]) -> Sums:
    powers = [demand.power_w for demand in demands if demand.power_w is not None]
    return Sums(
        _round_sum(demand.sm_utilization_percentage for demand in demands),
        _round_sum(demand.memory_bandwidth_utilization_percentage for demand in demands),
        sum(demand.memory_bytes for demand in demands),
        _round_sum(iter(powers)) if len(powers) == len(demands) else None,
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
    used, what = max(
        (demand.sm_utilization_percentage, "SM"),
        (demand.memory_bandwidth_utilization_percentage, "memory-bandwidth"),
    )
    if used < MOST_PERCENTAGE or demand.curve or client.on_one_gpu:
        return None
    return (
        f"average {what} utilization {_percent_of(used, MOST_PERCENTAGE)} by itself, so nothing "
        "fits beside it: -o utilization may say less"
    )


def _find_crowding(clients: Sequence[Client], capacity: Capacity) -> Iterator[str]:
    """Yield whether they are more than MPS takes, or than those want that share for throughput."""
    count = len(clients)
    if count > capacity.most_clients:
        yield f"{count} clients of at most {capacity.most_clients} that MPS takes"
    if all(client.objective.name != "throughput" for client in clients):
        return
    # The paper says "low"; that three such jobs stay within the bound is ours.
    largest = max(client.demand.sm_utilization_percentage for client in clients)
    small = largest * MOST_SMALL_FOR_THROUGHPUT <= MOST_PERCENTAGE
    most = MOST_SMALL_FOR_THROUGHPUT if small else MOST_FOR_THROUGHPUT
    if count > most:
        size = "" if small else f" ({MOST_SMALL_FOR_THROUGHPUT} if all are small)"
        yield f"{count} clients of at most {most}{size} that objective throughput wants"


def _find_taken(clients: Sequence[Client], capacity: Capacity, held: Held) -> Iterator[str]:
    """Yield that a busy client has all SMs already, and another one is busy, too.

    Without caps blocks are dealt out as SMs get free, and one of the two may hardly run.
    """
    busy = [kernels_of(client.demand, capacity).busy > BUSY for client in clients]
    if sum(busy) < 2:
        return
    for client, is_busy, cap in zip(clients, busy, held or [None] * len(clients), strict=True):
        if is_busy and cap == 100:
            yield f"{printable(client.demand.name)} is busy and has no cap"


def _find_losers(
    clients: Sequence[Client],
    capacity: Capacity,
    caps: Sequence[int],
    held: Held,
    measured: Sequence[float],
    slowdowns: Sequence[float | None],
) -> Iterator[str]:
    """Yield each client that loses more to its neighbours than it tolerates.

    What was measured goes before predictions, for which neither what its own cap costs it counts
    nor the limit of power: speeds at these caps, if they were tried, else slowdowns at others. Who
    comes last does not lose more than that either to the caps that the others have already.
    """
    if len(clients) == 1:
        return
    demands = [client.demand for client in clients]
    beside = measured or speeds(demands, capacity, caps)
    each = zip(demands, caps, strict=True)
    wanted = [speeds([demand], capacity, [cap])[0] for demand, cap in each]
    if any(held) and not all(held):
        free = best_caps(demands, capacity, _objective_of(clients))
        freely = speeds(demands, capacity, free)
        wanted = [
            one if has else max(one, min(1.0, most))
            for has, one, most in zip(held, wanted, freely, strict=True)
        ]
    for client, most_speed, speed, known in zip(clients, wanted, beside, slowdowns, strict=True):
        kept = speed / most_speed if known is None else 1 / (1 + known)
        how = "predicted" if known is None and not measured else "measured"
        loss = round(100 * (1 - kept), _NOISE_DIGITS)
        most = client.objective.throughput_tolerance_percentage
        if loss > most:
            yield f"{how} loss of {printable(client.demand.name)} {_percent_of(loss, most)}"


def _percent_of(value: float, most: float) -> str:
    """Return a value and its bound, with as many decimals as it takes to see that it exceeds it."""
    return f"{round(value, 2) if round(value, 2) > most else value:.10g} % of at most {most:.10g} %"


def _mib(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 20):.10g} MiB"
