"""A run's NCCL_DEBUG=INFO log: what it called, how much it moved, and over which rings and trees.

Read are the lines of NCCL_DEBUG_SUBSYS=INIT,COLL,GRAPH as NCCL 2.4 to 2.28 prints them, those of
all ranks mixed, with other programs' output between them. A log of a run is what ranks printed
through one pipe: lines may be torn, glued together, coloured, and hold bytes that are no text.
"""
# pure: decides on plain values

import calendar
import re
from collections import Counter
from collections.abc import Iterable

from gpulaunch.records import Record, replace

LARGE_BYTES = 100_000
"""From such messages on fast links pay (mapa-sc21 2.3 and Figure 2a)."""

_TYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""By ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, float16, 32, 64, bfloat16,
float8e4m3, float8e5m2.
"""

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CALL = re.compile(
    r"(?P<name>[A-Za-z]{1,30}): opCount [0-9a-f]{1,16} sendbuff \S{1,20} recvbuff \S{1,20} count (?P<count>\d{1,19})"
    r" datatype (?P<type>\d{1,3}) op \d{1,9} root (?P<root>-?\d{1,9}) comm (?P<comm>0x[0-9a-f]{1,16})"
    r" \[nranks=(?P<ranks>\d{1,7})\]"
)
_PREFIX = re.compile(
    r"(?P<host>[^\s:]{1,255}):(?P<pid>\d{1,10}):\d{1,10} \[(?P<device>\d{1,4})\] NCCL INFO (?:\[[^\]]{1,20}\] )?$"
)
_COMM = re.compile(
    r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) n[rR]anks (?P<ranks>\d{1,7}) cudaDev (?P<device>\d{1,4})"
    r"(?: nvmlDev \d{1,4})?(?: busId (?P<bus>[0-9a-f]{1,16}))?(?: commId (?P<id>0x[0-9a-f]{1,16}))?"
    r"(?: parent (?P<parent>0x[0-9a-f]{1,16}) (?:split|child)Count (?P<split>\d{1,9}) color (?P<color>-?\d{1,10}))?"
)
_CHANNEL = re.compile(r"NCCL INFO Channel \d{1,4}/\d{1,4} :(?P<order>(?: +\d{1,5}){2,64})\s*$")
_RING = re.compile(
    r"NCCL INFO Ring (?P<channel>\d{1,4}) : \d{1,7} -> (?P<rank>\d{1,7}) -> (?P<next>\d{1,7})\s*$"
)
_TREE = re.compile(
    r"\[(?P<channel>\d{1,4})\] -?\d{1,7}/-?\d{1,7}/-?\d{1,7}->(?P<rank>\d{1,7})->(?P<up>\d{1,7})\b"
)
_VIA = re.compile(
    r"-> \d{1,7}\[[0-9a-f]{1,9}\](?: \[(?:send|receive)\])? via (?P<way>[A-Z][A-Z0-9]{1,8})"
)
_VERSION = re.compile(r"NCCL version (?P<version>\d[\w.+-]{1,40})")
_TIME = re.compile(
    r"(?P<year>[12]\d{3})-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])[ T]"
    r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)(?P<part>[.,]\d{1,9})?"
)
_BEFORE = 400  # characters before a message that can be its prefix


class Endpoint(Record):
    """One rank's side of a communicator.

    Attributes:
        host: name of its machine; "" if the line had lost its beginning.
        pid: of its process, as text.
        comm: address of the communicator in that process.
    """

    host: str
    pid: str
    comm: str


class Member(Record):
    """What the log says of one rank's side of a communicator.

    Attributes:
        rank: of this side in the communicator.
        ranks: how many it has.
        gpu: machine and bus id, or where that is missing process and device number.
        group: the same for all its sides: NCCL's id of it, or where it was split off from; what is
            known, if neither.
    """

    rank: int
    ranks: int
    gpu: tuple[str, str]
    group: tuple[str, ...]


class Call(Record):
    """All calls of one kind and size by one rank.

    Attributes:
        name: such as "AllReduce" or "Send".
        endpoint: who called.
        ranks: of the communicator.
        message_bytes: size as nccl-tests count it: of the whole buffer, of which each rank has a
            part in an AllGather.
        peer: of Send and Recv, and the root of others: a rank in the communicator.
    """

    name: str
    endpoint: Endpoint
    ranks: int
    message_bytes: int
    peer: int


class NcclLog(Record):
    """What a log tells.

    Attributes:
        version: NCCL's; None if it is not there.
        lines: how many NCCL printed.
        damaged: messages of calls that cannot be read: torn, or of an unknown data type.
        calls: how often each call was made.
        first_lines: name of a call -> the line where it first stands, from 1 on.
        members: what is known of communicators.
        gpus: how many GPUs' calls are in the log.
        rings: orders of ranks, and how many channels use each, the most used first.
        trees: edges between ranks, and how many channels use each such tree.
        ways: how ranks are connected, such as "P2P", "SHM" or "NET", and how many connections are.
        duration_s: from the first to the last call that has a time; None if fewer than two have.
    """

    version: str | None
    lines: int
    damaged: int
    calls: dict[Call, int]
    first_lines: dict[str, int]
    members: dict[Endpoint, Member]
    gpus: int
    rings: tuple[tuple[tuple[int, ...], int], ...]
    trees: tuple[tuple[tuple[tuple[int, int], ...], int], ...]
    ways: tuple[tuple[str, int], ...]
    duration_s: float | None


def read_nccl_log(lines: Iterable[str | bytes]) -> NcclLog:
    """Read a log; what is not NCCL's is passed over.

    Args:
        lines: in any encoding that has ASCII in it.

    Cost: about 8 us a line of NCCL's.
    """
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        text = line.decode("ascii", "replace") if isinstance(line, bytes) else line
        if "NCCL" in text or "opCount" in text:
            reader.read(number, _CONTROL.sub("", text))
    return reader.log()


class _Reader:
    """What was found so far."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.lines = self.damaged = 0
        self.calls: Counter[Call] = Counter()
        self.first_lines: dict[str, int] = {}
        self.members: dict[Endpoint, Member] = {}
        self.devices: set[tuple[str, ...]] = set()
        self.channels: Counter[tuple[int, ...]] = Counter()
        self.nexts: dict[str, dict[int, int]] = {}
        self.ups: dict[str, set[tuple[int, int]]] = {}
        self.ways: Counter[str] = Counter()
        self.times: list[float] = []

    def read(self, number: int, line: str) -> None:
        """Take in one line."""
        self.lines += 1
        announced = line.count(": opCount ")
        if announced:
            found = [match for match in _CALL.finditer(line) if self._call(number, line, match)]
            self.damaged += announced - len(found)
        elif "cudaDev" in line:
            self._member(line)
        elif "Channel" in line or "Ring" in line:
            self._ring(line)
        elif "Trees" in line:
            for tree in _TREE.finditer(line):
                rank, up = int(tree["rank"]), int(tree["up"])
                self.ups.setdefault(tree["channel"], set()).add((min(rank, up), max(rank, up)))
        elif version := _VERSION.search(line):
            self.version = version["version"]

    def _call(self, number: int, line: str, match: re.Match[str]) -> bool:
        """Count one call; False if its size cannot be known."""
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
            Call(match["name"], Endpoint(host, pid, match["comm"]), ranks, size, int(match["root"]))
        ] += 1
        self.first_lines.setdefault(match["name"], number)
        if prefix:
            self.devices.add((host, pid, device))
            if time := _TIME.search(before):
                self.times.append(_seconds(time))
        return True

    def _member(self, line: str) -> None:
        """A rank that joined a communicator."""
        found = _COMM.search(line)
        before, info, _ = line[: found.start()].rpartition("NCCL INFO ") if found else ("", "", "")
        prefix = _PREFIX.search(before[-_BEFORE:] + info)
        if not found or not prefix:
            return
        endpoint = Endpoint(prefix["host"], prefix["pid"], found["comm"])
        gpu = (
            (prefix["host"], found["bus"])
            if found["bus"]
            else (f"{prefix['host']} {prefix['pid']}", found["device"])
        )
        known = self.members.get(endpoint)
        group = self._group(found, endpoint)
        if known and known.ranks == int(found["ranks"]) and len(known.group) > len(group):
            group = known.group
        self.members[endpoint] = Member(int(found["rank"]), int(found["ranks"]), gpu, group)

    def _group(self, found: re.Match[str], endpoint: Endpoint) -> tuple[str, ...]:
        """What tells one communicator from others."""
        if found["id"]:
            return ("id", found["id"])
        if found["parent"]:
            parent = self.members.get(replace(endpoint, comm=found["parent"]))
            return ("split", *(parent.group if parent else ()), found["split"], found["color"])
        return (found["ranks"],)

    def _ring(self, line: str) -> None:
        """A ring as rank 0 prints it, one rank's place in a ring, or a connection."""
        if channel := _CHANNEL.search(line):
            order = tuple(map(int, channel["order"].split()))
            if sorted(order) == list(
                range(len(order))
            ):  # NCCL cuts off what is longer than its buffer
                self.channels[_turned(order)] += 1
        elif ring := _RING.search(line):
            self.nexts.setdefault(ring["channel"], {})[int(ring["rank"])] = int(ring["next"])
        elif via := _VIA.search(line):
            self.ways[via["way"]] += 1

    def log(self) -> NcclLog:
        """All of it."""
        rings = self.channels or Counter(filter(None, map(_closed, self.nexts.values())))
        trees = Counter(tuple(sorted(edges)) for edges in self.ups.values())
        duration = max(self.times) - min(self.times) if len(self.times) > 1 else None
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
            tuple(self.ways.most_common()),
            duration,
        )


def _turned(order: tuple[int, ...]) -> tuple[int, ...]:
    """A ring from rank 0 on."""
    at = order.index(0)
    return order[at:] + order[:at]


def _closed(nexts: dict[int, int]) -> tuple[int, ...]:
    """A ring of each rank's successor; () if it does not close over all of them."""
    order = [0]
    while (following := nexts.get(order[-1], 0)) and len(order) < len(nexts):
        order.append(following)
    return tuple(order) if len({*order}) == len(nexts) > 1 and nexts.get(order[-1]) == 0 else ()


def _seconds(time: re.Match[str]) -> float:
    """A time as seconds from some beginning."""
    whole = calendar.timegm(
        tuple(int(time[name]) for name in ("year", "month", "day", "hour", "minute", "second"))
    )
    return whole + float((time["part"] or ".0").replace(",", "."))
