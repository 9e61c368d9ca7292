"""What a job communicates, from its NCCL_DEBUG=INFO log: calls, sizes, and who talks to whom.

It reads the lines of NCCL_DEBUG_SUBSYS=INIT,COLL as NCCL 2.4 to 2.28 prints them, those of
all ranks mixed, with other programs' output between them. All ranks print through one pipe: lines
may be torn, glued together, coloured, and hold bytes that are no text.
"""
# pure: decides on plain values

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum

from gpulaunch.errors import UsageError
from gpulaunch.lab.measure.run import NOISE_SHARE
from gpulaunch.profiles.pattern import Confidence, Edge, union
from gpulaunch.records import Record

LARGE_BYTES = 100_000
"""Least size of messages that gain from fast links (mapa-sc21 2.3 and Figure 2a)."""

LEAST_CALLS = 100
"""Least number of large messages per GPU that is evidence of a steady load. Our choice."""

UNKNOWN = "unknown"
"""Stands for a pattern that has no name, or that the log does not show."""

_EVERYONE = ("AlltoAll", "AllToAll", "AlltoAllv", "AllToAllv")
_ONE_ROOT = ("Gather", "Scatter")
_PEERS = ("Send", "Recv")
_BY_PEER = ("ncclSend", "ncclRecv")
_PARTS = ("AllGather", "ReduceScatter", "AlltoAll", "AllToAll", *_ONE_ROOT)
_PATTERNS = {
    **dict.fromkeys(("AllGather", "AllGatherV", "ReduceScatter", "Broadcast", "Reduce"), "ring"),
    **dict.fromkeys(_ONE_ROOT, "star"),
}
_HINT = "run the job with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL"

_TYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Sizes by ncclDataType_t, from int8 to float8e5m2."""

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CALL = re.compile(
    r"(?P<name>[A-Za-z]{1,30}): opCount [0-9a-f]{1,16} sendbuff \S{1,20} recvbuff \S{1,20}"
    r" count (?P<count>\d{1,19}) datatype (?P<type>\d{1,3}) op \d{1,9} root (?P<root>-?\d{1,9})"
    r" comm (?P<comm>0x[0-9a-f]{1,16}) \[nranks=(?P<ranks>\d{1,7})\]"
)
_PREFIX = re.compile(
    r"(?P<host>[^\s:]{1,255}):(?P<pid>\d{1,10}):\d{1,10} \[(?P<device>\d{1,4})\] NCCL INFO"
    r" (?:\[[^\]]{1,20}\] )?$"
)
_COMM = re.compile(
    r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) nranks (?P<ranks>\d{1,7})"
    r" cudaDev (?P<device>\d{1,4})(?: nvmlDev \d{1,4})?(?: busId (?P<bus>[0-9a-f]{1,16}))?"
    r"(?: commId (?P<id>0x[0-9a-f]{1,16}))?(?: parent (?P<parent>0x[0-9a-f]{1,16})"
    r" (?:split|child)Count (?P<split>\d{1,9}) color (?P<color>-?\d{1,10}))?"
)
_BEFORE = 400  # characters before a message that are searched for its prefix


Endpoint = tuple[str, str, str]
"""One rank's side of a communicator: host, process id and address of the communicator there; the
first two are "" if the beginning of the line was lost.
"""


Gpu = tuple[str, str]
"""Machine and bus id of a GPU; without a bus id, process and device number."""


class Member(Record):
    """A rank of a communicator.

    Attributes:
        group: identity of the communicator, equal for all its ranks: NCCL's id of it, or what it
            was split off from; its number of ranks, if neither is known.
    """

    rank: int
    ranks: int
    gpu: Gpu
    group: tuple[str, ...]


class Calls(Record):
    """All calls of one kind and size by one rank.

    Attributes:
        name: name of the function, such as "AllReduce" or "Send".
        message_bytes: size as nccl-tests count it: that of the whole buffer, of which each rank has
            a part in an AllGather.
        peer: rank in the communicator: the peer of Send and Recv, the root of other functions.
    """

    name: str
    endpoint: Endpoint
    ranks: int
    message_bytes: int
    peer: int


class NcclLog:
    """The contents of a log, as far as its lines were read.

    Attributes:
        damaged: number of calls that cannot be read: torn, or of an unknown data type.
        devices: GPUs whose calls are in the log, by machine, process and number.
    """

    def __init__(self) -> None:
        self.lines = self.damaged = 0
        self.calls: Counter[Calls] = Counter()
        self.members: dict[Endpoint, Member] = {}
        self.devices: set[tuple[str, ...]] = set()

    @property
    def gpus(self) -> int:
        """Number of GPUs whose calls are in the log."""
        return len(self.devices) or int(bool(self.calls))

    def read(self, line: str) -> None:
        """Read one line."""
        self.lines += 1
        announced = line.count(": opCount ")
        if announced:
            found = [match for match in _CALL.finditer(line) if self._count_call(line, match)]
            self.damaged += announced - len(found)
        elif "cudaDev" in line:
            self._note_member(line)

    def _count_call(self, line: str, match: re.Match[str]) -> bool:
        """Count one call; return False if its size is unknown."""
        kind, ranks = int(match["type"]), int(match["ranks"])
        if kind >= len(_TYPE_BYTES) or not ranks:
            return False
        prefix = _PREFIX.search(line[max(0, match.start() - _BEFORE) : match.start()])
        host, pid = (prefix["host"], prefix["pid"]) if prefix else ("", "")
        size = int(match["count"]) * _TYPE_BYTES[kind]
        if match["name"] in _PARTS:
            size *= ranks
        self.calls[
            Calls(match["name"], (host, pid, match["comm"]), ranks, size, int(match["root"]))
        ] += 1
        if prefix:
            self.devices.add((host, pid, prefix["device"]))
        return True

    def _note_member(self, line: str) -> None:
        found = _COMM.search(line)
        before, info, _ = line[: found.start()].rpartition("NCCL INFO ") if found else ("", "", "")
        prefix = _PREFIX.search(before[-_BEFORE:] + info)
        # A torn line may have any rank.
        if not found or not prefix or int(found["rank"]) >= int(found["ranks"]):
            return
        endpoint = prefix["host"], prefix["pid"], found["comm"]
        if found["bus"]:
            gpu = (prefix["host"], found["bus"])
        else:
            gpu = (f"{prefix['host']} {prefix['pid']}", found["device"])
        known = self.members.get(endpoint)
        group = self._identify_group(found, endpoint)
        if known and known.ranks == int(found["ranks"]) and len(known.group) > len(group):
            group = known.group
        self.members[endpoint] = Member(int(found["rank"]), int(found["ranks"]), gpu, group)

    def _identify_group(self, found: re.Match[str], endpoint: Endpoint) -> tuple[str, ...]:
        """Return the identity of a communicator, as far as the line has it."""
        if found["id"]:
            return ("id", found["id"])
        if found["parent"]:
            parent = self.members.get((*endpoint[:2], found["parent"]))
            return ("split", *(parent.group if parent else ()), found["split"], found["color"])
        return (found["ranks"],)


def read_nccl_log(lines: Iterable[str | bytes]) -> NcclLog:
    """Read a log; lines that are not NCCL's are skipped.

    Args:
        lines: lines of text, or bytes in any encoding that contains ASCII.

    Cost: about 8 us a line of NCCL's.
    """
    log = NcclLog()
    for line in lines:
        text = line.decode("ascii", "replace") if isinstance(line, bytes) else line
        if "NCCL" in text or "opCount" in text:
            log.read(_CONTROL.sub("", text))
    return log


class Function(Record):
    """All calls of one function.

    Attributes:
        api: its name, such as "ncclAllReduce".
        message_bytes: average message size, as nccl-tests count it.
        moved_gb: GB that the ranks in the log sent or received for it, if NCCL uses rings.
    """

    api: str
    pattern: str
    calls: int
    message_bytes: float
    moved_gb: float


class LoggedTraffic(Record):
    """The communication of a job, as its log shows it.

    Attributes:
        groups: ranks of each communicator of only a part of the ranks.
        calls: all functions, the one that moves most first.
        pattern: the union of the graphs of all functions that move more than NOISE_SHARE of all
            bytes; UNKNOWN if they do not all involve all ranks: then the edges tell.
        sensitive: whether faster links make the job faster; None if the log does not show it.
        confidence: confidence of the pattern; the sensitivity is a guess by the sizes.
        edges: GB between ranks, if the calls do not all involve all ranks; () otherwise, or if
            unknown.
        message_bytes: average message size of its calls; None if no calls were logged.
    """

    ranks: int
    groups: tuple[tuple[int, ...], ...]
    calls: tuple[Function, ...] = ()
    pattern: str = UNKNOWN
    sensitive: bool | None = None
    confidence: Confidence = "guess"
    reasons: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()
    message_bytes: float | None = None


def communication(log: NcclLog, name: str) -> LoggedTraffic:
    """Return the pattern and sensitivity of the job that left a log.

    Raises:
        UsageError: the log has neither calls nor communicators.

    Source: mapa-sc21 2.3: fast links pay for messages of 10^5 bytes and more, if there are enough
        of them; 3.1: the graphs of all calls are united. The paper has no bound for "enough".
    """
    if not (log.calls or log.members):
        what = "no calls in its" if log.lines else "no"
        raise UsageError(f"{name}: {what} lines of NCCL", _HINT)
    moving = {call: count for call, count in log.calls.items() if call.ranks > 1}
    sizes = [call.ranks for call in moving] + [member.ranks for member in log.members.values()]
    ranks = max([1, *sizes])
    numbers = _number_gpus(log, ranks)
    groups = _find_groups(log, ranks, numbers)
    if not moving and (log.calls or ranks == 1):
        why = "every communicator has one rank"
        return LoggedTraffic(ranks, groups, (), "none", False, "likely", (why,))
    if not moving:
        why = "calls and sizes are not logged: NCCL_DEBUG_SUBSYS=INIT,COLL adds them"
        return LoggedTraffic(ranks, groups, reasons=(why,))
    functions = _sum_up(moving)
    pattern, edges, sure, why = _find_pattern(log, ranks, moving, functions, numbers)
    mean = fsum(call.message_bytes * n for call, n in moving.items()) / sum(moving.values())
    large = sum(n for call, n in moving.items() if call.message_bytes >= LARGE_BYTES) / log.gpus
    sensitive, because = _judge_sensitivity(mean, large)
    reasons = [why, because]
    if log.gpus < ranks:
        reasons.append(f"the log has the calls of {log.gpus} of {ranks} GPUs")
    if log.damaged:
        total = log.damaged + log.calls.total()
        reasons.append(f"{log.damaged} of {total} calls cannot be read")
    return LoggedTraffic(
        ranks, groups, functions, pattern, sensitive, sure, tuple(reasons), edges, mean
    )


def _moved_bytes(call: Calls) -> float:
    """Return the bytes that a rank moves in a call; on average, where the root's part differs.

    Source: nccl-tests' doc/PERFORMANCE.md, whose bus bandwidth counts these bytes.
    """
    ranks, size = call.ranks, float(call.message_bytes)
    if call.name == "AllReduce":
        return 2 * size * (ranks - 1) / ranks
    if call.name in ("AllGather", "ReduceScatter", *_EVERYONE):
        return size * (ranks - 1) / ranks
    return size * (ranks - 1) / ranks**2 if call.name in _ONE_ROOT else size


def _sum_up(moving: Mapping[Calls, int]) -> tuple[Function, ...]:
    by_name: dict[str, list[tuple[Calls, int]]] = defaultdict(list)
    for call, count in moving.items():
        by_name[call.name].append((call, count))
    found = []
    for name, calls in by_name.items():
        number = sum(count for _, count in calls)
        mean = fsum(call.message_bytes * count for call, count in calls) / number
        moved = fsum(_moved_bytes(call) * count for call, count in calls) / 1e9
        pattern = _pattern_of(name, calls)
        found.append(Function(f"nccl{name}", pattern, number, mean, moved))
    return tuple(sorted(found, key=lambda one: (-one.moved_gb, one.api)))


def _pattern_of(name: str, calls: Sequence[tuple[Calls, int]]) -> str:
    """Return the pattern that a function causes; for Send and Recv, a guess by number of peers.

    NCCL runs AllReduce over rings if messages are large and over trees if they are small; for its
    other collectives on one machine it has rings only.
    """
    if name == "AllReduce":
        moved = {"ring": 0.0, "tree": 0.0}
        for call, count in calls:
            shape = "ring" if call.message_bytes >= LARGE_BYTES else "tree"
            moved[shape] += _moved_bytes(call) * count
        least = NOISE_SHARE * sum(moved.values())
        return union(shape for shape, amount in moved.items() if amount >= least)
    if name in _PEERS:
        peers: dict[Endpoint, set[int]] = defaultdict(set)
        for call, _ in calls:
            peers[call.endpoint].add(call.peer)
        return "chain" if max(map(len, peers.values())) <= 2 else "all_to_all"
    return _PATTERNS.get(name, "all_to_all")


def _find_pattern(
    log: NcclLog,
    ranks: int,
    moving: Mapping[Calls, int],
    functions: Sequence[Function],
    numbers: Mapping[Gpu, int],
) -> tuple[str, tuple[Edge, ...], Confidence, str]:
    total = fsum(one.moved_gb for one in functions)
    parts = [one for one in functions if one.moved_gb >= NOISE_SHARE * total]
    names = ", ".join(f"{one.api} ({one.pattern})" for one in parts)
    everybody = all(call.ranks == ranks for call in moving)
    if everybody and not any(one.api in _BY_PEER for one in parts):
        return union(one.pattern for one in parts), (), "certain", f"calls: {names}"
    edges = _find_edges(log, ranks, moving, numbers)
    if edges is None:
        why = f"calls: {names}; the log does not tell which ranks they joined"
        return union(one.pattern for one in parts), (), "guess", why
    return UNKNOWN, edges, "likely", f"calls: {names}; the edges tell which ranks they joined"


def _find_edges(
    log: NcclLog, ranks: int, moving: Mapping[Calls, int], numbers: Mapping[Gpu, int]
) -> tuple[Edge, ...] | None:
    """Return the GB between ranks; None if the log does not have all ranks."""
    seats = {(member.group, member.rank): member.gpu for member in log.members.values()}
    if log.gpus < ranks or len(numbers) != ranks or len(seats) != len(log.members):
        return None
    pairs: Counter[tuple[int, int]] = Counter()
    for call, count in moving.items():
        member = log.members.get(call.endpoint)
        if member is None:
            return None
        if call.name == "Recv":  # its sender has logged it, too
            continue
        own = numbers[member.gpu]
        for peer, amount in _find_partners(call, member.rank):
            other = numbers.get(seats.get((member.group, peer), ("", "")))
            if other is None:
                return None
            if other != own:
                pairs[min(own, other), max(own, other)] += round(amount * count)
    floor = NOISE_SHARE * max(pairs.values(), default=0)
    return tuple((*pair, amount / 1e9) for pair, amount in sorted(pairs.items()) if amount > floor)


def _number_gpus(log: NcclLog, ranks: int) -> dict[Gpu, int]:
    """Return each GPU's rank in a communicator of all GPUs; without one, by machine and bus id."""
    whole = {member.gpu: member.rank for member in log.members.values() if member.ranks == ranks}
    gpus = {member.gpu for member in log.members.values()}
    if whole.keys() == gpus and len({*whole.values()}) == len(gpus):
        return whole
    ordered = sorted(gpus, key=lambda gpu: (gpu[0], gpu[1].zfill(16)))
    return {gpu: number for number, gpu in enumerate(ordered)}


def _find_groups(
    log: NcclLog, ranks: int, numbers: Mapping[Gpu, int]
) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each communicator that has some of the job's ranks, but not all."""
    groups: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for member in log.members.values():
        # Without NCCL's id, all communicators of a size look like one.
        if 1 < member.ranks < ranks and len(member.group) > 1:
            groups[member.group].add(numbers[member.gpu])
    return tuple(sorted({tuple(sorted(group)) for group in groups.values()}))


def _find_partners(call: Calls, rank: int) -> Iterator[tuple[int, float]]:
    """Yield each peer that a rank sends to in a call, with the bytes."""
    if call.name in _PEERS:
        yield call.peer, call.message_bytes
    elif call.name in _EVERYONE:
        for peer in {*range(call.ranks)} - {rank}:
            yield peer, call.message_bytes / call.ranks
    elif call.name in _ONE_ROOT:
        if rank != call.peer:
            yield call.peer, call.message_bytes / call.ranks
    else:
        yield (rank + 1) % call.ranks, _moved_bytes(call)


def _judge_sensitivity(mean: float, large_calls: float) -> tuple[bool | None, str]:
    """Return whether faster links make the job faster, and the reason; it is always a guess."""
    size = f"{mean / 1e6:.3g} MB" if mean >= 1e6 else f"{mean / 1e3:.3g} kB"
    text = f"messages have {size} on average, fast links pay from 100 kB on"
    if mean < LARGE_BYTES:
        return False, text
    if large_calls < LEAST_CALLS:
        return None, f"{text}; but {large_calls:.0f} such calls of a GPU are too few to tell"
    return True, f"{text}; how much of the run they take is not logged"
