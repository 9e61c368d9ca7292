"""The communication pattern and link sensitivity of a job, from the calls in its NCCL log."""
# pure: decides on plain values

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import fsum

from gpulaunch.errors import UsageError
from gpulaunch.measure.logs.nccl_log import LARGE_BYTES, Calls, Endpoint, NcclLog
from gpulaunch.measure.logs.nccl_setup import read_setup
from gpulaunch.measure.nearest_pattern import nearest_pattern
from gpulaunch.measure.traffic import NOISE_SHARE
from gpulaunch.profiles.confidence import Confidence, weakest
from gpulaunch.profiles.pattern import Edge
from gpulaunch.profiles.pattern_union import union
from gpulaunch.records import Record

FAST_GB_PER_S = 50.0
SLOW_GB_PER_S = 12.0
"""Bandwidths of a double NVLink and of PCIe in the DGX-1 (mapa-sc21 Table 1)."""

LEAST_SLOWDOWN = 0.05
"""Least possible slowdown, from the fast to the slow bandwidth, of a sensitive job. Our choice:
mapa-sc21 4 takes a measured 3 %; this is an estimate, and an upper bound at that.
"""

LEAST_GB_PER_S = LEAST_SLOWDOWN / (1 / SLOW_GB_PER_S - 1 / FAST_GB_PER_S)
"""Least average rate of a GPU's large messages in a sensitive job: 0.79 GB/s.

Each GB takes 63 ms longer over PCIe than over the double NVLink. A job that sends at this rate
loses 5 % if it cannot compute meanwhile, and less if it can.
"""

LEAST_DURATION_S = 10.0
"""Least duration for which a rate is computed: NCCL's times are whole seconds by default, an error
of 10 % at most over this duration. Our choice.
"""

LEAST_CALLS = 100
"""Least number of large messages per GPU that is evidence of a steady load, in a log without times.
Our choice.
"""

_FIRMLY = 2.0  # a rate this factor above or below the bound is more than a guess
_RINGS = ("AllReduce", "AllGather", "AllGatherV", "ReduceScatter", "Broadcast", "Reduce")
_EVERYONE = ("AlltoAll", "AllToAll", "AlltoAllv", "AllToAllv")
_ONE_ROOT = ("Gather", "Scatter")
_PEERS = ("Send", "Recv")
_WITHOUT_CALLS = "calls and sizes are not logged: NCCL_DEBUG_SUBSYS=INIT,COLL,GRAPH adds them"
_HINT = "run the job with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL,GRAPH"


class Collective(Record):
    """All calls of one function.

    Attributes:
        name: name of the function, such as "AllReduce".
        line: line of the log where it first appears.
        pattern: name of the pattern between ranks that it causes.
        ranks: number of ranks of the largest communicator it was called on.
        calls: number of calls by all ranks in the log.
        message_bytes: average message size, as nccl-tests count it.
        large_calls: number of calls of LARGE_BYTES and more.
        sizes: message sizes with their number of calls, ascending.
        sent_gb: GB that the ranks in the log sent for it, if NCCL uses rings.
    """

    name: str
    line: int
    pattern: str
    ranks: int
    calls: int
    message_bytes: float
    large_calls: int
    sizes: tuple[tuple[int, int], ...]
    sent_gb: float


class LoggedTraffic(Record):
    """The communication of a job, as its log shows it.

    Attributes:
        ranks: number of ranks of the job.
        collectives: all functions, the one that moves most first.
        pattern: the union of the graphs of all functions that move more than NOISE_SHARE of all
            bytes.
        edges: GB between ranks, if the calls do not all involve all ranks; () otherwise, or if
            unknown.
        calls_per_gpu: number of calls that move data to another GPU; None if no calls were logged.
        message_bytes: average message size of these calls; None if no calls were logged.
        gb_per_s: average rate that each GPU sent in large messages; None if the log has no times.
        sensitive: whether faster links make the job faster; None if the log does not show it.
        confidence: the weaker confidence of pattern and sensitivity.
        pattern_confidence: confidence of the pattern alone.
        reasons: sentences for the user.
    """

    ranks: int
    collectives: tuple[Collective, ...]
    pattern: str
    edges: tuple[Edge, ...]
    calls_per_gpu: float | None
    message_bytes: float | None
    gb_per_s: float | None
    sensitive: bool | None
    confidence: Confidence
    pattern_confidence: Confidence
    reasons: tuple[str, ...]


def communication(log: NcclLog, name: str) -> LoggedTraffic:
    """Return the pattern and sensitivity of the job that left a log.

    Args:
        log: from read_nccl_log.
        name: what errors call the file.

    Raises:
        UsageError: the log has neither calls nor what NCCL set up for them.

    Source: mapa-sc21 2.3: fast links pay for messages of 10^5 bytes and more, if there are enough
        of them; 3.1: the graphs of all calls are united. The paper has no bound for "enough";
        docs/explanation/communication.md says what ours is and which of the paper's networks it
        gets wrong.
    """
    if not log.calls:
        setup = read_setup(log)
        if setup:
            return LoggedTraffic(
                setup.ranks,
                (),
                setup.pattern,
                (),
                None,
                None,
                None,
                setup.sensitive,
                setup.confidence,
                setup.confidence,
                (*setup.reasons, _WITHOUT_CALLS),
            )
        what = "no calls in its" if log.lines else "no"
        raise UsageError(f"{name}: {what} lines of NCCL", _HINT)
    moving = {call: count for call, count in log.calls.items() if call.ranks > 1}
    ranks = max(
        [1, *(call.ranks for call in moving), *(member.ranks for member in log.members.values())]
    )
    collectives = _find_collectives(log, moving)
    pattern, edges, sure, why = _find_pattern(log, ranks, moving, collectives)
    rate = _large_gb_per_s(log, moving)
    calls = sum(count for call, count in moving.items() if call.name != "Recv")
    mean = _mean_message_bytes(moving)
    large = sum(
        count
        for call, count in moving.items()
        if call.name != "Recv" and call.message_bytes >= LARGE_BYTES
    )
    sensitive, certainty, because = (
        _judge_sensitivity(mean, large / log.gpus, rate) if moving else (False, sure, "")
    )
    reasons = [text for text in (why, because, *_describe_gaps(log, ranks)) if text]
    return LoggedTraffic(
        ranks,
        collectives,
        pattern,
        edges,
        calls / log.gpus,
        mean,
        rate,
        sensitive,
        weakest([sure, certainty]),
        sure,
        tuple(reasons),
    )


def _sent_bytes(call: Calls) -> float:
    """Return the bytes that a rank sends for a call; on average, where the root's part differs.

    Source: nccl-tests' doc/PERFORMANCE.md, whose bus bandwidth counts these bytes.
    """
    ranks, size = call.ranks, call.message_bytes
    if call.name == "AllReduce":
        return 2 * size * (ranks - 1) / ranks
    if call.name in ("AllGather", "ReduceScatter", *_EVERYONE, *_ONE_ROOT):
        return size * (ranks - 1) / ranks / (ranks if call.name in _ONE_ROOT else 1)
    return 0.0 if call.name == "Recv" else float(size)


def _find_collectives(log: NcclLog, moving: dict[Calls, int]) -> tuple[Collective, ...]:
    by_name: dict[str, list[tuple[Calls, int]]] = defaultdict(list)
    for call, count in moving.items():
        by_name[call.name].append((call, count))
    found = [_sum_up(name, log.first_lines[name], calls) for name, calls in by_name.items()]
    return tuple(sorted(found, key=lambda one: (-one.sent_gb, one.name)))


def _sum_up(name: str, line: int, calls: Sequence[tuple[Calls, int]]) -> Collective:
    sizes: Counter[int] = Counter()
    for call, count in calls:
        sizes[call.message_bytes] += count
    number = sizes.total()
    return Collective(
        name,
        line,
        _pattern_of(name, calls),
        max(call.ranks for call, _ in calls),
        number,
        fsum(size * count for size, count in sizes.items()) / number,
        sum(count for size, count in sizes.items() if size >= LARGE_BYTES),
        tuple(sorted(sizes.items())),
        fsum(_sent_bytes(call) * count for call, count in calls) / 1e9,
    )


def _pattern_of(name: str, calls: Sequence[tuple[Calls, int]]) -> str:
    """Return the pattern that a function causes; for Send and Recv, a guess by number of peers.

    NCCL runs AllReduce over rings if messages are large and over trees if they are small; for its
    other collectives on one machine it has rings only.
    """
    if name in _EVERYONE:
        return "all_to_all"
    if name in _ONE_ROOT:
        return "star"
    if name in _PEERS:
        peers: dict[Endpoint, set[int]] = defaultdict(set)
        for call, _ in calls:
            peers[call.endpoint].add(call.peer)
        few = max(map(len, peers.values())) <= 2
        return "chain" if few else "all_to_all"
    if name != "AllReduce":
        return "ring" if name in _RINGS else "all_to_all"
    large = fsum(_sent_bytes(call) * n for call, n in calls if call.message_bytes >= LARGE_BYTES)
    small = fsum(_sent_bytes(call) * n for call, n in calls if call.message_bytes < LARGE_BYTES)
    least = NOISE_SHARE * fsum((large, small))
    moved = (("ring", large), ("tree", small))
    return union(pattern for pattern, amount in moved if amount >= least)


def _find_pattern(
    log: NcclLog, ranks: int, moving: dict[Calls, int], collectives: Sequence[Collective]
) -> tuple[str, tuple[Edge, ...], Confidence, str]:
    """Return the pattern, its edges, its confidence and the reason."""
    if not moving:
        return "none", (), "likely", "every communicator has one rank"
    total = fsum(one.sent_gb for one in collectives)
    parts = [
        one
        for one in collectives
        if one.sent_gb >= NOISE_SHARE * total and (one.sent_gb or one.name == "Recv")
    ]
    names = ", ".join(f"{one.name} ({one.pattern})" for one in parts)
    everybody = all(call.ranks == ranks for call in moving if _sent_bytes(call))
    if everybody and not any(one.name in _PEERS for one in parts):
        return union(one.pattern for one in parts), (), "certain", f"calls: {names}"
    edges = _find_edges(log, ranks, moving)
    if edges is None:
        why = f"calls: {names}; the log does not tell which ranks they joined"
        return union(one.pattern for one in parts), (), "guess", why
    near = nearest_pattern(ranks, edges)
    if near.name is None:
        return "all_to_all", edges, "guess", f"calls: {names}; their graph is like no named pattern"
    return (
        near.name,
        edges,
        "likely",
        f"calls: {names}; their graph is {near.similarity:.0%} like {near.name}",
    )


def _find_edges(log: NcclLog, ranks: int, moving: dict[Calls, int]) -> tuple[Edge, ...] | None:
    """Return the GB between ranks; None if the log does not have all ranks."""
    numbers = _number_gpus(log, ranks)
    seats = {(member.group, member.rank): member.gpu for member in log.members.values()}
    if log.gpus < ranks or len(numbers) != ranks or len(seats) != len(log.members):
        return None
    sent: Counter[tuple[int, int]] = Counter()
    received: Counter[tuple[int, int]] = Counter()
    for call, count in moving.items():
        member = log.members.get(call.endpoint)
        if member is None:
            return None
        own = numbers[member.gpu]
        for peer, amount in _find_partners(call, member.rank):
            other = numbers.get(seats.get((member.group, peer), ("", "")))
            if other is None:
                return None
            if call.name == "Recv":
                received[other, own] += round(amount * count)
            elif other != own:
                sent[own, other] += round(amount * count)
    pairs: Counter[tuple[int, int]] = Counter()
    # Sender and receiver log one transfer each: `|` takes the larger of the two.
    for (a, b), amount in (sent | received).items():
        if a != b:
            pairs[min(a, b), max(a, b)] += amount
    floor = NOISE_SHARE * max(pairs.values(), default=0)
    return tuple((*pair, amount / 1e9) for pair, amount in sorted(pairs.items()) if amount > floor)


def _number_gpus(log: NcclLog, ranks: int) -> dict[tuple[str, str], int]:
    """Return each GPU's rank in a communicator of all GPUs; without one, by machine and bus id."""
    whole = {member.gpu: member.rank for member in log.members.values() if member.ranks == ranks}
    gpus = {member.gpu for member in log.members.values()}
    if whole.keys() == gpus and len({*whole.values()}) == len(gpus):
        return whole
    return {
        gpu: number
        for number, gpu in enumerate(sorted(gpus, key=lambda gpu: (gpu[0], gpu[1].zfill(16))))
    }


def _find_partners(call: Calls, rank: int) -> Iterator[tuple[int, float]]:
    """Yield each peer that a rank sends to in a call (in a Recv: receives from), with the bytes."""
    if call.name in _PEERS:
        yield call.peer, call.message_bytes
    elif call.name in _EVERYONE:
        yield from (
            (peer, call.message_bytes / call.ranks) for peer in range(call.ranks) if peer != rank
        )
    elif call.name in _ONE_ROOT:
        if rank != call.peer:
            yield call.peer, call.message_bytes / call.ranks
    else:
        yield (rank + 1) % call.ranks, _sent_bytes(call)


def _mean_message_bytes(moving: dict[Calls, int]) -> float:
    """Return the average message size in bytes."""
    calls = [(call.message_bytes, count) for call, count in moving.items() if call.name != "Recv"]
    return fsum(size * count for size, count in calls) / max(1, sum(count for _, count in calls))


def _large_gb_per_s(log: NcclLog, moving: dict[Calls, int]) -> float | None:
    """Return the average GB/s of a GPU in large messages; None if the log is too short for it."""
    if log.duration_s is None or log.duration_s < LEAST_DURATION_S:
        return None
    large = fsum(
        _sent_bytes(call) * count
        for call, count in moving.items()
        if call.message_bytes >= LARGE_BYTES
    )
    return large / 1e9 / log.gpus / log.duration_s


def _judge_sensitivity(
    mean: float, large_calls: float, rate: float | None
) -> tuple[bool | None, Confidence, str]:
    """Return whether faster links make the job faster, the confidence and the reason."""
    if rate is not None:
        far = rate >= _FIRMLY * LEAST_GB_PER_S or rate <= LEAST_GB_PER_S / _FIRMLY
        why = (
            f"each GPU sends {rate:.3g} GB/s in messages of 100 kB and more; links matter from "
            f"{LEAST_GB_PER_S:.2g} on"
        )
        return rate >= LEAST_GB_PER_S, "likely" if far else "guess", why
    size = f"{mean / 1e6:.3g} MB" if mean >= 1e6 else f"{mean / 1e3:.3g} kB"
    text = f"messages have {size} on average, fast links pay from 100 kB on"
    if mean < LARGE_BYTES:
        return False, "guess", text
    if large_calls < LEAST_CALLS:
        return (
            None,
            "guess",
            f"{text}; but {large_calls:.0f} such calls of a GPU are too few to tell",
        )
    return (
        True,
        "guess",
        f"{text}; without times in the log nobody knows how much of the run they take",
    )


def _describe_gaps(log: NcclLog, ranks: int) -> Iterator[str]:
    if log.gpus < ranks:
        yield f"the log has the calls of {log.gpus} of {ranks} GPUs"
    if log.damaged:
        yield f"{log.damaged} of {log.damaged + sum(log.calls.values())} calls cannot be read"
