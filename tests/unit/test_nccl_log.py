"""What NCCL's log of a run tells: calls, sizes, who talks to whom, pattern and sensitivity."""

import json
from collections.abc import Iterable

import pytest
from values import cases

from gpulaunch.cli.profile_scan import nccl_document, nccl_lines
from gpulaunch.errors import UsageError
from gpulaunch.lab.measure.nccl_log import (
    LoggedTraffic,
    Member,
    NcclLog,
    communication,
    read_nccl_log,
)

FLOAT = 7
MB = 1_000_000


def said(rank: int, text: str) -> str:
    """Return a line of the process of one rank."""
    return f"box:{4000 + rank}:{5000 + rank} [{rank}] NCCL INFO {text}\n"


def call(
    rank: int,
    name: str,
    count: int,
    *,
    kind: int = FLOAT,
    ranks: int = 4,
    root: int = 0,
    comm: str = "",
) -> str:
    """Return a call as NCCL prints it."""
    comm = comm or f"0x55d0{rank:08x}"
    where = f"datatype {kind} op 0 root {root} comm {comm} [nranks={ranks}]"
    text = f"{name}: opCount 1a sendbuff 0x7f00 recvbuff (nil) count {count} {where}"
    return said(rank, f"{text} stream 0x550000007ae0")


def joined(rank: int, ranks: int = 4, comm: str = "", number: int = -1, id_: str = "0xb1") -> str:
    """Return the line of a rank that joins a communicator, as NCCL 2.18 and later print it."""
    comm = comm or f"0x55d0{rank:08x}"
    own = f"rank {rank if number < 0 else number} nranks {ranks} cudaDev {rank} nvmlDev {rank}"
    text = f"comm {comm} {own} busId {0x18000 + 0x1000 * rank:x} commId {id_} - Init COMPLETE"
    return said(rank, f"ncclCommInitRank {text}")


def every(name: str, count: int) -> list[str]:
    """Return nine calls of each of four ranks."""
    return [call(rank, name, count) for _ in range(9) for rank in range(4)]


def read(lines: Iterable[str | bytes]) -> tuple[NcclLog, LoggedTraffic]:
    log = read_nccl_log(lines)
    return log, communication(log, "run.log")


# made after lines in NVIDIA/nccl issues 671, 1953, 147 and 1352
PUBLISHED = """\
north:700:711 [0] NCCL INFO Channel 00/08 :    0   1   2   3
north:700:711 [0] NCCL INFO Trees [0] 3/-1/-1->0->-1 [1] -1/-1/-1->0->3
north:700:714 [3] NCCL INFO comm 0x7f1200000a10 rank 3 nranks 4 cudaDev 3 busId b000 - Init COMPLETE
south:8000:8000 [0] NCCL INFO Channel 00/0 : 3[2000] -> 0[2000] [send] via NET/Socket/0
NCCL version 2.18.3+cuda12.1
"""
CALL = (
    "Broadcast: opCount 0 sendbuff 0x7f00 recvbuff 0x7f00 count 53 datatype 4 op 0 root 0 comm "
    "0x7f260 [nranks=8] stream 0x55c1f0"
)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (PUBLISHED, (0, 0, 1)),
        (f"east:310:399 [2] NCCL INFO east:320:320 [7] NCCL INFO {CALL}", (1, 0, 0)),
        (f"west:20:20 [0] NCCL INFO [2] {CALL}", (1, 0, 0)),
        (f"west:20:20 [0] NCCL INFO {CALL.replace('datatype 4', 'datatype 12')}", (0, 1, 0)),
    ],
)
def test_published_logs(text: str, want: tuple[int, ...]) -> None:
    """Lines of several NCCL versions are read: the calls, what is damaged, who has joined."""
    log = read_nccl_log(text.splitlines())
    assert (sum(log.calls.values()), log.damaged, len(log.members)) == want


def test_members_of_old_and_new_versions() -> None:
    """Ranks of communicators are read from NCCL 2.10, 2.18 and 2.28, and from a split."""
    one = "rank 1 nranks 2 cudaDev 1 nvmlDev 1"
    alone = "rank 0 nranks 1 cudaDev 1 busId 8c000"
    lines = [
        "a:1:2 [0] NCCL INFO comm 0x7f01 rank 0 nranks 2 cudaDev 0 busId 6000 - Init COMPLETE",
        f"a:1:2 [1] NCCL INFO f comm 0x7f02 {one} busId 7000 commId 0xab - I",
        f"a:9:9 [1] NCCL INFO [Rank 1] f comm 0x7f03 {one} busId 8c000 commId 0x3a - I",
        f"a:9:9 [1] NCCL INFO f comm 0x7f04 {alone} parent 0x7f03 splitCount 1 color 0 -",
    ]
    found = {key[2]: value for key, value in read_nccl_log(lines).members.items()}
    assert found["0x7f01"] == Member(0, 2, ("a", "6000"), ("2",))
    assert found["0x7f02"] == Member(1, 2, ("a", "7000"), ("id", "0xab"))
    assert found["0x7f03"] == Member(1, 2, ("a", "8c000"), ("id", "0x3a"))
    assert found["0x7f04"] == Member(0, 1, ("a", "8c000"), ("split", "id", "0x3a", "1", "0"))


def test_size_of_a_message() -> None:
    """A message is the whole buffer, of which each rank may have a part, by the data type."""
    for name, kind, size in (
        ("AllReduce", 0, 1000),
        ("AllReduce", 8, 8000),
        ("AllReduce", 9, 2000),
        ("AllGather", FLOAT, 4 * 4000),
        ("Scatter", FLOAT, 4 * 4000),
    ):
        (found,) = read_nccl_log([call(0, name, 1000, kind=kind)]).calls
        assert found.message_bytes == size


PATTERNS = {
    "large all-reduces use rings": (every("AllReduce", MB), "ring"),
    "small ones trees": (every("AllReduce", 100), "tree"),
    "much of both both": (every("AllReduce", 50_000) + every("AllReduce", 20_000), "ring+tree"),
    "few small ones nothing": (every("AllReduce", 9 * MB) + every("AllReduce", 1), "ring"),
    "shards are a ring": (every("AllGather", MB) + every("ReduceScatter", MB), "ring"),
    "an all-to-all is one": (every("AlltoAll", MB) + every("AllReduce", MB), "all_to_all"),
    "scattering is a star": (every("Scatter", MB), "star"),
    "one rank talks to nobody": ([call(0, "AllReduce", MB, ranks=1)], "none"),
}


@cases(PATTERNS, "lines", "pattern")
def test_pattern(lines: list[str], pattern: str) -> None:
    """The pattern is the union of those of all functions that move something."""
    assert read(lines)[1].pattern == pattern


def test_pipeline_from_send_and_recv() -> None:
    """Sends from stage to stage give edges; the Recv of the same bytes is not added to them."""
    lines = [joined(rank) for rank in range(4)]
    for rank in range(3):
        lines += [call(rank, "Send", MB, root=rank + 1)] * 50 + [
            call(rank + 1, "Recv", MB, root=rank)
        ] * 50
    found = read(lines)[1]
    assert found.edges == ((0, 1, 0.2), (1, 2, 0.2), (2, 3, 0.2))
    assert (found.pattern, found.confidence, found.ranks) == ("unknown", "likely", 4)
    unjoined = read(lines[4:])[1]
    assert (unjoined.pattern, unjoined.edges, unjoined.confidence) == ("chain", (), "guess")


def pairs_of_pairs(*, calls: bool) -> list[str]:
    """Return a log of four ranks in tensor-parallel and in data-parallel pairs."""
    lines = [joined(rank) for rank in range(4)]
    for rank in range(4):
        lines += [joined(rank, 2, comm=f"0xaa{rank}", number=rank % 2, id_=f"0x{rank // 2}")]
        lines += [joined(rank, 2, comm=f"0xbb{rank}", number=rank // 2, id_=f"0x1{rank % 2}")]
        lines += [call(rank, "AllReduce", MB, ranks=2, comm=f"0xaa{rank}")] * 30 * calls
        lines += [call(rank, "AllReduce", MB, ranks=2, comm=f"0xbb{rank}")] * 10 * calls
    return lines


def test_communicators_of_a_part() -> None:
    """Communicators of some ranks are told by the job's ranks, and edges join these, as lines do.

    The document is JSON.
    """
    found = read(pairs_of_pairs(calls=True))[1]
    assert found.groups == ((0, 1), (0, 2), (1, 3), (2, 3))
    edges = ((0, 1, 0.24), (0, 2, 0.08), (1, 3, 0.08), (2, 3, 0.24))
    assert (found.pattern, found.edges) == ("unknown", edges)
    silent = read(pairs_of_pairs(calls=False))[1]
    assert (silent.groups, silent.edges, silent.message_bytes) == (found.groups, (), None)
    assert "NCCL_DEBUG_SUBSYS=INIT,COLL" in silent.reasons[0]
    document = json.loads(json.dumps(nccl_document(found), allow_nan=False))
    assert nccl_lines(document)[:6] == [
        "ncclAllReduce  ring  160 calls  4 MB on average",
        "communicators of ranks 0 1, 0 2, 1 3, 2 3",
        "ranks 0 and 1: 0.24 GB",
        "ranks 0 and 2: 0.08 GB",
        "ranks 1 and 3: 0.08 GB",
        "ranks 2 and 3: 0.24 GB",
    ]


def test_sensitivity() -> None:
    """Sensitive is a job of which each GPU makes 100 calls of 100 kB on average, or more."""
    for count, times, want in ((25_000, 100, True), (25_000, 99, None), (24_999, 5000, False)):
        assert read([call(0, "AllReduce", count)] * times)[1].sensitive is want


def test_mess() -> None:
    """Other output, colours, bytes that are no text, glued lines do no harm; torn calls count."""
    whole = call(0, "AllReduce", MB, ranks=2)
    lines: list[str | bytes] = [
        "Epoch 3: loss 0.25 NCCL is fine",
        b"\xff\xfe\x00 \x80 progress \r 50%",
        f"\x1b[32m{whole.replace('NCCL', chr(27) + '[1mNCCL')}\x1b[0m",
        whole.strip() + call(1, "AllReduce", MB, ranks=2),
        whole.encode() + b"\xff",
        whole[:120],
        whole[whole.index("AllReduce") :],
        "",
    ]
    log, found = read(lines)
    assert sum(log.calls.values()) == 5
    assert log.damaged == 1
    assert log.gpus == 2
    assert "1 of 6 calls cannot be read" in found.reasons


def test_no_calls() -> None:
    """A log without calls and communicators is refused, with what to set."""
    for lines, message in (
        (["Epoch 1", "Epoch 2"], "run.log: no lines of NCCL"),
        ([said(0, "NET/Socket : Using eth0")], "run.log: no calls in its lines of NCCL"),
    ):
        with pytest.raises(UsageError) as caught:
            read(lines)
        assert caught.value.message == message
        assert "NCCL_DEBUG_SUBSYS=INIT,COLL" in str(caught.value.hint)


def test_nothing_in_a_log_is_fatal() -> None:
    """Reading any log, cut anywhere, raises nothing but the error that there are no calls."""
    for line in (call(0, "Send", 9, root=1), joined(1), f"{call(0, 'AllReduce', 9)}\xff\x00"):
        for i in range(len(line)):
            for text in (line[i:], line[:i], line[:i] + line[i + 1 :], line[:i] + line):
                log = read_nccl_log([text, text.encode()])
                try:
                    nccl_lines(nccl_document(communication(log, "run.log")))
                except UsageError:
                    assert not log.calls
