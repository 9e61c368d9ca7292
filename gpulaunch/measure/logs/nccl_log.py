"""Reader of a run's NCCL_DEBUG=INFO log: calls, message sizes, rings and trees.

It reads the lines of NCCL_DEBUG_SUBSYS=INIT,COLL,GRAPH, or of INIT alone, as NCCL 2.4 to 2.28
prints them, those of all ranks mixed, with other programs' output between them. All ranks print
through one pipe: lines may be torn, glued together, coloured, and hold bytes that are no text.
"""
# pure: decides on plain values

import calendar
import re
from collections import Counter
from collections.abc import Iterable

from gpulaunch.records import Record, replace

LARGE_BYTES = 100_000
"""Least size of messages that gain from fast links (mapa-sc21 2.3 and Figure 2a)."""

_TYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Sizes by ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, float16, 32, 64, bfloat16,
float8e4m3, float8e5m2.
"""

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
    r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) n[rR]anks (?P<ranks>\d{1,7})"
    r"(?: nNodes \d{1,7}| cudaDev (?P<device>\d{1,4}))"
    r"(?: nvmlDev \d{1,4})?(?: busId (?P<bus>[0-9a-f]{1,16}))?"
    r"(?: commId (?P<id>0x[0-9a-f]{1,16}))?(?: parent (?P<parent>0x[0-9a-f]{1,16})"
    r" (?:split|child)Count (?P<split>\d{1,9}) color (?P<color>-?\d{1,10}))?"
)
_CHANNEL = re.compile(r"NCCL INFO Channel \d{1,4}(?:/\d{1,4})? :(?P<order>(?: +\d{1,5}){2,64})\s*$")
_RING = re.compile(
    r"NCCL INFO Ring (?P<channel>\d{1,4}) : \d{1,7} -> (?P<rank>\d{1,7}) -> (?P<next>\d{1,7})\s*$"
)
# "below->rank->above" for each channel; NCCL 2.4 has it the other way round.
_TREE = re.compile(
    r"\[(?P<channel>\d{1,4})\] (?:"
    r"-?\d{1,7}/-?\d{1,7}/-?\d{1,7}->(?P<rank>\d{1,7})->(?P<up>\d{1,7})\b"
    r"|(?P<old_up>\d{1,7})->(?P<old_rank>\d{1,7})->-?\d{1,7}/)"
)
_VIA = re.compile(
    r"\d{1,4}(?:/(?P<use>\d))? : (?P<a>\d{1,7})(?:\[[0-9a-f]{1,9}\])? ->"
    r" (?P<b>\d{1,7})(?:\[[0-9a-f]{1,9}\])?(?: \[(?:send|receive)\])?"
    r" via (?P<way>[A-Z][A-Z0-9]{1,8}|direct shared memory)"
)
_CONNECTED = re.compile(r"NCCL INFO Connected all (?P<shape>ring|tree)s")
_RING_GRAPH = re.compile(
    r"NCCL INFO Pattern 4, .{0,40}nChannels (?P<channels>\d{1,4}),"
    r" (?:bw|speed) (?P<gb_per_s>\d{1,6}(?:\.\d{1,9})?)/\S{1,20}, type (?P<path>[A-Z0-9]{2,4})/"
)
_VERSION = re.compile(r"NCCL version (?P<version>\d[\w.+-]{1,40})")
_TIME = re.compile(
    r"(?P<year>[12]\d{3})-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])[ T]"
    r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)(?P<part>[.,]\d{1,9})?"
)
_BEFORE = 400  # characters before a message that are searched for its prefix


class Endpoint(Record):
    """One rank's side of a communicator.

    Attributes:
        host: name of the rank's machine; "" if the beginning of the line was lost.
        pid: its process id, as text.
        comm: address of the communicator in that process.
    """

    host: str
    pid: str
    comm: str


class Member(Record):
    """A rank of a communicator.

    Attributes:
        rank: number of the rank in the communicator.
        ranks: number of ranks of the communicator.
        gpu: machine and bus id; without a bus id, process and device number.
        bus: bus id as a number; None if the log does not have it.
        group: identity of the communicator, equal for all its ranks: NCCL's id of it, or what it
            was split off from; its number of ranks, if neither is known.
    """

    rank: int
    ranks: int
    gpu: tuple[str, str]
    bus: int | None
    group: tuple[str, ...]


class Calls(Record):
    """All calls of one kind and size by one rank.

    Attributes:
        name: name of the function, such as "AllReduce" or "Send".
        endpoint: the caller's side of the communicator.
        ranks: number of ranks of the communicator.
        message_bytes: size as nccl-tests count it: that of the whole buffer, of which each rank has
            a part in an AllGather.
        peer: rank in the communicator: the peer of Send and Recv, the root of other functions.
    """

    name: str
    endpoint: Endpoint
    ranks: int
    message_bytes: int
    peer: int


class Connection(Record):
    """A way from one rank to another.

    Attributes:
        a: the sending rank, in its communicator.
        b: the receiving rank.
        way: transport, such as "P2P", "SHM" or "NET".
        by_send: whether Send and Recv use it, rather than rings and trees.
    """

    a: int
    b: int
    way: str
    by_send: bool


class RingGraph(Record):
    """What NCCL reckons with for its rings on one machine.

    Attributes:
        channels: number of channels.
        gb_per_s: bandwidth of all of them together.
        path: the worst path between two GPUs, such as "NVL" or "PHB".
    """

    channels: int
    gb_per_s: float
    path: str


class NcclLog(Record):
    """The contents of a log.

    Attributes:
        version: version of NCCL; None if the log does not have it.
        lines: number of lines of NCCL.
        damaged: number of calls that cannot be read: torn, or of an unknown data type.
        calls: number of times that each call was made.
        first_lines: line where each function first appears, from 1 on, by its name.
        members: known ranks of communicators.
        gpus: number of GPUs whose calls are in the log.
        rings: orders of ranks with their number of channels, the most used first.
        trees: edges of each tree with its number of channels, the most used first.
        connections: ways between ranks with the number of lines about each.
        connected: "ring" and "tree", if ranks were joined to all rings or trees.
        ring_graph: the best rings that NCCL found; None if it does not tell.
        duration_s: seconds from the first to the last call that has a time; None if fewer than two
            have.
    """

    version: str | None
    lines: int
    damaged: int
    calls: dict[Calls, int]
    first_lines: dict[str, int]
    members: dict[Endpoint, Member]
    gpus: int
    rings: tuple[tuple[tuple[int, ...], int], ...]
    trees: tuple[tuple[tuple[tuple[int, int], ...], int], ...]
    connections: dict[Connection, int]
    connected: frozenset[str]
    ring_graph: RingGraph | None
    duration_s: float | None

    @property
    def ways(self) -> dict[str, int]:
        """Transports with their number of connections, the most used first."""
        found: Counter[str] = Counter()
        for connection, count in self.connections.items():
            found[connection.way] += count
        return dict(found.most_common())

    @property
    def buses(self) -> set[int]:
        """Bus ids of all GPUs that are known by them."""
        return {member.bus for member in self.members.values() if member.bus is not None}


def read_nccl_log(lines: Iterable[str | bytes]) -> NcclLog:
    """Read a log; lines that are not NCCL's are skipped.

    Args:
        lines: lines of text, or bytes in any encoding that contains ASCII.

    Cost: about 8 us a line of NCCL's.
    """
    reader = _LogReader()
    for number, line in enumerate(lines, 1):
        text = line.decode("ascii", "replace") if isinstance(line, bytes) else line
        if "NCCL" in text or "opCount" in text:
            reader.read(number, _CONTROL.sub("", text))
    return reader.log()


class _LogReader:
    """A reader that collects what the lines of a log say."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.lines = self.damaged = 0
        self.calls: Counter[Calls] = Counter()
        self.first_lines: dict[str, int] = {}
        self.members: dict[Endpoint, Member] = {}
        self.devices: set[tuple[str, ...]] = set()
        self.channels: Counter[tuple[int, ...]] = Counter()
        self.nexts: dict[str, dict[int, int]] = {}
        self.ups: dict[str, set[tuple[int, int]]] = {}
        self.connections: Counter[Connection] = Counter()
        self.connected: set[str] = set()
        self.ring_graphs: list[RingGraph] = []
        self.times: list[float] = []  # the first and the last

    def read(self, number: int, line: str) -> None:
        """Read one line."""
        self.lines += 1
        announced = line.count(": opCount ")
        if announced:
            found = [
                match for match in _CALL.finditer(line) if self._count_call(number, line, match)
            ]
            self.damaged += announced - len(found)
        elif "cudaDev" in line or "nRanks" in line:
            self._note_member(line)
        elif "nChannels" in line:
            self._note_ring_graph(line)
        elif "Channel" in line or "Ring" in line:
            self._note_ring(line)
        elif "Trees" in line:
            for tree in _TREE.finditer(line):
                rank, up = int(tree["rank"] or tree["old_rank"]), int(tree["up"] or tree["old_up"])
                self.ups.setdefault(tree["channel"], set()).add((min(rank, up), max(rank, up)))
        elif connected := _CONNECTED.search(line):
            self.connected.add(connected["shape"])
        elif version := _VERSION.search(line):
            self.version = version["version"]

    def _count_call(self, number: int, line: str, match: re.Match[str]) -> bool:
        """Count one call; return False if its size is unknown."""
        kind, ranks = int(match["type"]), int(match["ranks"])
        if kind >= len(_TYPE_BYTES) or not ranks:
            return False
        before = line[max(0, match.start() - _BEFORE) : match.start()]
        prefix = _PREFIX.search(before)
        host, pid, device = (
            (prefix["host"], prefix["pid"], prefix["device"]) if prefix else ("", "", "")
        )
        size = int(match["count"]) * _TYPE_BYTES[kind]
        if match["name"] in (
            "AllGather",
            "ReduceScatter",
            "AlltoAll",
            "AllToAll",
            "Gather",
            "Scatter",
        ):
            size *= ranks
        self.calls[
            Calls(
                match["name"], Endpoint(host, pid, match["comm"]), ranks, size, int(match["root"])
            )
        ] += 1
        self.first_lines.setdefault(match["name"], number)
        if prefix:
            self.devices.add((host, pid, device))
            if time := _TIME.search(before):
                times = [*self.times, _to_seconds(time)]
                self.times = [min(times), max(times)] if len(times) > 1 else times
        return True

    def _note_member(self, line: str) -> None:
        """Note a rank that joined a communicator."""
        found = _COMM.search(line)
        before, info, _ = line[: found.start()].rpartition("NCCL INFO ") if found else ("", "", "")
        prefix = _PREFIX.search(before[-_BEFORE:] + info)
        # A torn line may have any rank.
        if not found or not prefix or int(found["rank"]) >= int(found["ranks"]):
            return
        endpoint = Endpoint(prefix["host"], prefix["pid"], found["comm"])
        bus = int(found["bus"], 16) if found["bus"] else None
        if found["bus"]:
            gpu = (prefix["host"], found["bus"])
        else:
            gpu = (f"{prefix['host']} {prefix['pid']}", found["device"] or prefix["device"])
        known = self.members.get(endpoint)
        if known and not found["device"]:  # a line of counts says less than one of the GPU
            return
        group = self._identify_group(found, endpoint)
        if known and known.ranks == int(found["ranks"]) and len(known.group) > len(group):
            group = known.group
        self.members[endpoint] = Member(int(found["rank"]), int(found["ranks"]), gpu, bus, group)

    def _identify_group(self, found: re.Match[str], endpoint: Endpoint) -> tuple[str, ...]:
        """Return the identity of a communicator, as far as the line has it."""
        if found["id"]:
            return ("id", found["id"])
        if found["parent"]:
            parent = self.members.get(replace(endpoint, comm=found["parent"]))
            return ("split", *(parent.group if parent else ()), found["split"], found["color"])
        return (found["ranks"],)

    def _note_ring(self, line: str) -> None:
        """Note a ring as rank 0 prints it, one rank's place in a ring, or a connection."""
        if channel := _CHANNEL.search(line):
            order = tuple(map(int, channel["order"].split()))
            # A ring that is longer than NCCL's line buffer is cut off.
            if sorted(order) == list(range(len(order))):
                self.channels[_rotate_to_zero(order)] += 1
        elif ring := _RING.search(line):
            self.nexts.setdefault(ring["channel"], {})[int(ring["rank"])] = int(ring["next"])
        elif via := _VIA.search(line):
            way = via["way"] if via["way"].isupper() else "SHM"
            self.connections[Connection(int(via["a"]), int(via["b"]), way, via["use"] == "1")] += 1

    def _note_ring_graph(self, line: str) -> None:
        if found := _RING_GRAPH.search(line):
            channels = int(found["channels"])
            amount = channels * float(found["gb_per_s"])
            self.ring_graphs.append(RingGraph(channels, amount, found["path"]))

    def log(self) -> NcclLog:
        """Return all that was read."""
        rings = self.channels or Counter(filter(None, map(_close_ring, self.nexts.values())))
        trees = Counter(filter(None, map(self._plausible_edges, self.ups.values())))
        duration = self.times[1] - self.times[0] if len(self.times) > 1 else None
        return NcclLog(
            self.version,
            self.lines,
            self.damaged,
            dict(self.calls),
            self.first_lines,
            self.members,
            len(self.devices) or int(bool(self.calls)),
            tuple(rings.most_common()),
            tuple(trees.most_common()),
            dict(self.connections),
            frozenset(self.connected),
            max(self.ring_graphs, key=lambda graph: graph.gb_per_s, default=None),
            duration,
        )

    def _plausible_edges(self, edges: set[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """Return a tree's edges, sorted, between ranks that the largest known communicator has."""
        largest = max((member.ranks for member in self.members.values()), default=None)
        return tuple(sorted(edge for edge in edges if largest is None or edge[1] < largest))


def _rotate_to_zero(order: tuple[int, ...]) -> tuple[int, ...]:
    """Rotate a ring so that it begins at rank 0."""
    at = order.index(0)
    return order[at:] + order[:at]


def _close_ring(nexts: dict[int, int]) -> tuple[int, ...]:
    """Return the ring of each rank's successor; () if it does not close over all ranks."""
    order = [0]
    while (following := nexts.get(order[-1], 0)) and len(order) < len(nexts):
        order.append(following)
    is_complete = len({*order}) == len(nexts) > 1
    return tuple(order) if is_complete and nexts.get(order[-1]) == 0 else ()


def _to_seconds(time: re.Match[str]) -> float:
    """Convert a time to seconds, for differences only: the time zone is unknown."""
    whole = calendar.timegm(
        tuple(int(time[name]) for name in ("year", "month", "day", "hour", "minute", "second"))
    )
    return whole + float((time["part"] or ".0").replace(",", "."))
