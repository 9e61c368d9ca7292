"""What NCCL's log of a run tells: calls, sizes, rings, pattern and sensitivity."""

import json
from collections.abc import Iterable
from itertools import product
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.errors import UsageError
from gpulaunch.measure.logs.nccl_log import Member, NcclLog, RingGraph, read_nccl_log
from gpulaunch.measure.logs.nccl_setup import read_setup
from gpulaunch.measure.logs.nccl_traffic import (
    LEAST_GB_PER_S,
    LoggedTraffic,
    communication,
)
from gpulaunch.records import replace
from gpulaunch.show.nccl import nccl_document, nccl_lines

FLOAT = 7
MB = 1_000_000


def said(rank: int, text: str, *, time: str = "", host: str = "box") -> str:
    """Return a line of the process of one rank."""
    return f"{time}{host}:{4000 + rank}:{5000 + rank} [{rank}] NCCL INFO {text}\n"


def call(
    rank: int,
    name: str,
    count: int,
    *,
    kind: int = FLOAT,
    ranks: int = 4,
    root: int = 0,
    comm: str = "",
    time: str = "",
) -> str:
    """Return a call as NCCL prints it."""
    comm = comm or f"0x55d0{rank:08x}"
    buffers = (
        "sendbuff 0x7f0000400000 recvbuff (nil)"
        if name == "Send"
        else "sendbuff (nil) recvbuff 0x7f0000500000"
    )
    text = (
        f"{name}: opCount 1a {buffers} count {count} datatype {kind} op 0 root {root} comm {comm} "
        f"[nranks={ranks}]"
    )
    return said(rank, f"{text} stream 0x550000007ae0", time=time)


def joined(
    rank: int, ranks: int = 4, *, comm: str = "", number: int | None = None, id_: str = "0xb1a3"
) -> str:
    """Return the line of a rank that joins a communicator, as NCCL 2.18 and later print it."""
    own = rank if number is None else number
    comm = comm or f"0x55d0{rank:08x}"
    text = (
        f"comm {comm} rank {own} nranks {ranks} cudaDev {rank} nvmlDev {rank} busId "
        f"{0x18000 + 0x1000 * rank:x}"
    )
    return said(rank, f"ncclCommInitRank {text} commId {id_} - Init COMPLETE")


def every(ranks: int, name: str, count: int, times: int, **options: object) -> list[str]:
    return [
        call(rank, name, count, ranks=ranks, **options)
        for _ in range(times)
        for rank in range(ranks)
    ]


def read(lines: Iterable[str | bytes]) -> tuple[NcclLog, LoggedTraffic]:
    log = read_nccl_log(lines)
    return log, communication(log, "run.log")


# made after lines in NVIDIA/nccl issues 671, 1953, 147 and 1352
PUBLISHED = [
    (
        (
            "north:700:711 [0] NCCL INFO Channel 00/08 :    0   1   2   3\n"
            "north:700:711 [0] NCCL INFO Trees [0] 3/-1/-1->0->-1 [1] -1/-1/-1->0->3\n"
            "north:700:714 [3] NCCL INFO comm 0x7f1200000a10 rank 3 nranks 4 cudaDev 3 busId b000 "
            "- Init COMPLETE\n"
        ),
        {"rings": (((0, 1, 2, 3), 1),), "trees": ((((0, 3),), 1),), "damaged": 0},
    ),
    (
        (
            "south:8000:8000 [0] NCCL INFO Channel 00/02 : 0 1 2 3\n"
            "south:8000:8000 [0] NCCL INFO Ring 00 : 3 -> 0 -> 1\n"
            "south:8000:8000 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"
            "south:8000:8000 [0] NCCL INFO Channel 00/0 : 3[2000] -> 0[2000] [send] via "
            "NET/Socket/0\n"
            "NCCL version 2.18.3+cuda12.1\n"
        ),
        {
            "rings": (((0, 1, 2, 3), 1),),
            "ways": {"P2P": 1, "NET": 1},
            "version": "2.18.3+cuda12.1",
        },
    ),
    (
        (
            "east:310:399 [2] NCCL INFO east:320:320 [7] NCCL INFO Broadcast: opCount 0 "
            "sendbuff 0x7f0000100400 recvbuff 0x7f0000100400 count 53 datatype 4 op 0 root 0 comm "
            "0x7f0000200260 "
            "[nranks=8] stream 0x55000000c1f0\n"
        ),
        {"gpus": 1, "damaged": 0},
    ),
    (
        (
            "west:20:20 [0] NCCL INFO [2] AllReduce: opCount e sendbuff 0x7f0000300c00 recvbuff "
            "0x7f0000300c00 count 1 datatype 1 op 0 root 0 comm 0x5500000059c0 [nranks=4] stream "
            "0x550000002040\n"
        ),
        {"gpus": 1, "damaged": 0},
    ),
]


@pytest.mark.parametrize(("text", "want"), PUBLISHED)
def test_published_logs(text: str, want: dict[str, object]) -> None:
    """Lines of several NCCL versions are read."""
    log = read_nccl_log(text.splitlines())
    assert {name: getattr(log, name) for name in want} == want


def test_members_of_old_and_new_versions() -> None:
    """Ranks of communicators are read from NCCL 2.10, 2.18 and 2.28, and from a split."""
    lines = [
        "a:1:2 [0] NCCL INFO comm 0x7f01 rank 0 nranks 2 cudaDev 0 busId 6000 - Init COMPLETE",
        (
            "a:1:2 [1] NCCL INFO f comm 0x7f02 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 7000 "
            "commId 0xab - I"
        ),
        (
            "a:9:9 [1] NCCL INFO [Rank 1] f comm 0x7f03 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId "
            "8c000 commId 0x3a - I"
        ),
        (
            "a:9:9 [1] NCCL INFO f comm 0x7f04 rank 0 nranks 1 cudaDev 1 busId 8c000 parent 0x7f03 "
            "splitCount 1 color 0 -"
        ),
    ]
    found = {key.comm: value for key, value in read_nccl_log(lines).members.items()}
    assert found["0x7f01"] == Member(0, 2, ("a", "6000"), 0x6000, ("2",))
    assert found["0x7f02"] == Member(1, 2, ("a", "7000"), 0x7000, ("id", "0xab"))
    assert found["0x7f03"] == Member(1, 2, ("a", "8c000"), 0x8C000, ("id", "0x3a"))
    assert found["0x7f04"] == Member(
        0, 1, ("a", "8c000"), 0x8C000, ("split", "id", "0x3a", "1", "0")
    )


@pytest.mark.parametrize(
    ("kind", "size"), list(enumerate([1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1])), ids=str
)
def test_data_types(kind: int, size: int) -> None:
    """Each data type of NCCL has its size; an unknown one cannot be read."""
    (found,) = read_nccl_log([call(0, "AllReduce", 1000, kind=kind)]).calls
    assert found.message_bytes == 1000 * size
    assert read_nccl_log([call(0, "AllReduce", 1000, kind=12)]).damaged == 1


def test_sizes_and_calls() -> None:
    """Each function has its calls, sizes, large calls, and what all ranks send for them."""
    lines = [
        *every(4, "AllReduce", 25_000, 2),
        *every(4, "AllReduce", 24_999, 1),
        *every(4, "AllGather", 250_000, 5),
    ]
    log, found = read(lines)
    gather, reduce = found.collectives
    assert (gather.name, gather.calls, gather.message_bytes, gather.large_calls) == (
        "AllGather",
        20,
        4 * MB,
        20,
    )
    assert gather.sent_gb == pytest.approx(20 * 3 * MB / 1e9)
    assert (reduce.calls, reduce.large_calls, reduce.sizes) == (12, 8, ((99_996, 4), (100_000, 8)))
    assert reduce.sent_gb == pytest.approx((8 * 150_000 + 4 * 149_994) / 1e9)
    assert (found.ranks, log.gpus, found.calls_per_gpu) == (4, 4, 8)


def test_rings_from_each_ranks_place() -> None:
    """Where no rank prints rings, they are built from each rank's place; an open one is none."""
    order = [0, 3, 1, 2]
    lines = [
        said(rank, f"Ring {channel:02} : {order[at - 1]} -> {rank} -> {order[(at + 1) % 4]}")
        for channel in range(2)
        for at, rank in enumerate(order)
    ]
    assert read_nccl_log(lines).rings == (((0, 3, 1, 2), 2),)
    assert read_nccl_log(lines[1:4]).rings == ()
    apart = [
        said(rank, f"Ring 00 : {peer} -> {rank} -> {peer}")
        for rank, peer in ((0, 1), (1, 0), (2, 3), (3, 2))
    ]
    assert read_nccl_log(apart).rings == ()


def test_rings_that_were_cut_off() -> None:
    """NCCL cuts long rings off: a ring without all its ranks is not reported."""
    line = said(
        0, "Channel 00/16 :" + "".join(f" {rank:3}" for rank in (0, 7, 6, 5, 4, 3, 2, 1, 8, 15, 14))
    )
    assert read_nccl_log([line]).rings == ()


@pytest.mark.parametrize(
    ("sentence", "lines", "pattern"),
    [
        ("large all-reduces use rings", every(4, "AllReduce", MB, 9), "ring"),
        ("small ones trees", every(4, "AllReduce", 100, 9), "tree"),
        (
            "much of both both",
            [*every(4, "AllReduce", 50_000, 9), *every(4, "AllReduce", 20_000, 9)],
            "ring+tree",
        ),
        (
            "a few small ones beside large ones nothing",
            every(4, "AllReduce", 9 * MB, 9) + every(4, "AllReduce", 1, 9),
            "ring",
        ),
        (
            "sharded training is a ring",
            every(4, "AllGather", MB, 9) + every(4, "ReduceScatter", MB, 9),
            "ring",
        ),
        ("an all-to-all is one", every(4, "AlltoAll", MB, 9), "all_to_all"),
        (
            "with a ring it still is",
            every(4, "AlltoAll", MB, 9) + every(4, "AllReduce", MB, 9),
            "all_to_all",
        ),
        ("scattering is a star", every(4, "Scatter", MB, 9), "star"),
        ("one rank talks to nobody", [call(0, "AllReduce", MB, ranks=1)], "none"),
    ],
)
def test_pattern(sentence: str, lines: list[str], pattern: str) -> None:
    """The pattern is the union of those of all functions that move something."""
    assert read(lines)[1].pattern == pattern, sentence


def test_pipeline_from_send_and_recv() -> None:
    """Sends from stage to stage give the chain and its edges; a Recv tells of the same bytes."""
    lines = [joined(rank) for rank in range(4)]
    for rank in range(3):
        lines += [call(rank, "Send", MB, root=rank + 1)] * 50 + [
            call(rank + 1, "Recv", MB, root=rank)
        ] * 50
    found = read(lines)[1]
    assert found.pattern == "chain"
    assert found.edges == ((0, 1, 0.2), (1, 2, 0.2), (2, 3, 0.2))
    assert (found.confidence, found.ranks) == ("guess", 4)
    unjoined = read(lines[4:])[1]
    assert (unjoined.pattern, unjoined.edges, unjoined.confidence) == ("chain", (), "guess")


def test_experts_exchange_with_everybody() -> None:
    """Sends from each rank to all others are an all-to-all."""
    lines = [joined(rank) for rank in range(4)]
    lines += [
        call(a, name, MB, root=b)
        for a, b in product(range(4), repeat=2)
        for name in ("Send", "Recv")
    ]
    found = read(lines)[1]
    assert found.pattern == "all_to_all"
    assert len(found.edges) == 6


def test_communicators_of_a_part() -> None:
    """Tensor- and data-parallel pairs in one job: edges join the job's ranks, not each group's."""
    lines = [joined(rank) for rank in range(4)]
    for rank in range(4):
        lines += [joined(rank, 2, comm=f"0xaa{rank}", number=rank % 2, id_=f"0x{rank // 2}")]
        lines += [joined(rank, 2, comm=f"0xbb{rank}", number=rank // 2, id_=f"0x1{rank % 2}")]
        lines += [call(rank, "AllReduce", MB, ranks=2, comm=f"0xaa{rank}")] * 30
        lines += [call(rank, "AllReduce", MB, ranks=2, comm=f"0xbb{rank}")] * 10
    found = read(lines)[1]
    assert found.edges == ((0, 1, 0.24), (0, 2, 0.08), (1, 3, 0.08), (2, 3, 0.24))
    assert found.pattern == "all_to_all"  # a ring with edges of 3 and 1 is no ring: similarity 0.89
    assert any("no named pattern" in reason for reason in found.reasons)


def stamped(
    count: int, calls: int, seconds: int, form: str = "[2025-06-01 12:{:02}:{:02}] "
) -> list[str]:
    """Return all-reduces of two ranks, evenly over so many seconds."""
    times = [form.format(*divmod(round(i * seconds / (calls - 1)), 60)) for i in range(calls)]
    return [
        call(rank, "AllReduce", count, ranks=2, time=time) for time in times for rank in range(2)
    ]


@pytest.mark.parametrize(
    ("sentence", "lines", "sensitive", "confidence"),
    [
        ("4 GB/s are a lot", stamped(25 * MB, 2401, 60), True, "likely"),
        ("1 GB/s are just enough", stamped(25 * MB, 601, 60), True, "guess"),
        ("0.6 GB/s are just too little", stamped(25 * MB, 361, 60), False, "guess"),
        ("0.1 GB/s are nothing", stamped(25 * MB, 61, 60), False, "likely"),
        (
            "a second is too short to tell: size and calls do",
            stamped(25 * MB, 200, 1),
            True,
            "guess",
        ),
        ("large messages without times", every(2, "AllReduce", MB, 200), True, "guess"),
        ("too few of them", every(2, "AllReduce", MB, 20), None, "guess"),
        ("small messages", every(2, "AllReduce", 1000, 5000), False, "guess"),
    ],
)
def test_sensitivity(
    sentence: str, lines: list[str], sensitive: bool | None, confidence: str
) -> None:
    """Sensitive is what sends enough in large messages; without times it is a guess by size."""
    found = read(lines)[1]
    assert (found.sensitive, found.confidence) == (sensitive, confidence), sentence


def test_rate_over_the_log() -> None:
    """The rate is of one GPU, from the first call to the last, with fractions where logged."""
    log, found = read(stamped(25 * MB, 41, 20, "2025-06-01T23:{:02}:{:02}.500Z "))
    assert log.duration_s == 20
    assert found.gb_per_s == pytest.approx(41 * 0.1 / 20)
    assert pytest.approx(0.05) == LEAST_GB_PER_S * (1 / 12 - 1 / 50)


def test_duration_in_any_order() -> None:
    """The first and the last time count wherever they stand; one call has no duration."""
    lines = stamped(25 * MB, 41, 20)
    assert read(lines[30:] + lines[:30])[0].duration_s == 20
    assert read(lines[:2])[0].duration_s == 0
    assert read(lines[:1])[0].duration_s is None


# calls as mapa-sc21 Figure 5b has them; average sizes as far as its 2.3 has them: over or under 1e5
# bytes
FIGURE_5 = {
    "AlexNet": (80_001, 200_000, True),
    "Inception-v3": (2_830_001, 200_000, True),
    "VGG-16": (160_001, 200_000, True),
    "CaffeNet": (84_936, 200_000, False),
    "GoogLeNet": (640_001, 50_000, False),
    "ResNet-50": (1_600_001, 50_000, True),  # not among those that the paper calls large
}


def test_figure_5_of_mapa() -> None:
    """By size alone CaffeNet is wrongly sensitive, ResNet-50 with small messages wrongly not."""
    wrong = set()
    for name, (calls, size, sensitive) in FIGURE_5.items():
        line = call(0, "AllReduce", size // 4, ranks=2)
        log = read_nccl_log([line, call(1, "AllReduce", size // 4, ranks=2)])
        log = replace(log, calls=dict.fromkeys(log.calls, calls))
        found = communication(log, name)
        assert found.confidence == "guess"
        if found.sensitive is not sensitive:
            wrong.add(name)
    assert wrong == {"CaffeNet", "ResNet-50"}


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


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["Epoch 1", "Epoch 2"], "run.log: no lines of NCCL"),
        ([said(0, "NET/Socket : Using eth0")], "run.log: no calls in its lines of NCCL"),
        ([], "run.log: no lines of NCCL"),
    ],
)
def test_no_calls(lines: list[str], message: str) -> None:
    """A log without calls, rings and connections is refused, with what to set."""
    with pytest.raises(UsageError) as caught:
        read(lines)
    assert caught.value.message == message
    assert caught.value.hint is not None
    assert "NCCL_DEBUG_SUBSYS=INIT,COLL,GRAPH" in caught.value.hint


def test_one_ranks_log() -> None:
    """A log of one rank of four gives calls of that one, and says so."""
    found = read([call(0, "AllReduce", MB)] * 200)[1]
    assert (found.calls_per_gpu, found.pattern, found.sensitive) == (200, "ring", True)
    assert "the log has the calls of 1 of 4 GPUs" in found.reasons


def test_document() -> None:
    """The document has the keys of a source scan and more, and is JSON."""
    lines = ["noise", *every(4, "Broadcast", MB, 1), *every(4, "AllReduce", 25 * MB, 200)]
    log, found = read(lines)
    document = json.loads(json.dumps(nccl_document(log, found, "run.log"), allow_nan=False))
    assert document["calls"] == [
        {"file": "run.log", "line": 2, "api": "ncclBroadcast", "pattern": "ring"},
        {"file": "run.log", "line": 6, "api": "ncclAllReduce", "pattern": "ring"},
    ]
    assert (document["pattern"], document["sensitive"]) == ("ring", True)
    assert (document["confidence"], document["pattern_confidence"]) == ("guess", "certain")
    assert document["collectives"][0]["sizes"] == [[100 * MB, 800]]


@given(
    st.lists(
        st.one_of(st.text(), st.binary(), st.sampled_from([call(0, "Send", 9), joined(1)])),
        max_size=9,
    ),
    st.data(),
)
def test_nothing_in_a_log_is_fatal(lines: list[str | bytes], data: st.DataObject) -> None:
    """Reading any log, cut anywhere, raises nothing but the error that there are no calls."""
    torn = [line[data.draw(st.integers(0, 60)) :] for line in lines]
    log = read_nccl_log(torn)
    try:
        nccl_document(log, communication(log, "run.log"), "run.log")
    except UsageError:
        assert not log.calls


def test_garbage_is_read_in_linear_time() -> None:
    """A long line without blanks, colons or an end takes no longer than its length."""
    lines = [
        "NCCL " + "a" * 2_000_000,
        "NCCL " + "a:1:" * 500_000,
        "opCount" + ": opCount 1" * 100_000,
    ]
    torn = said(0, "Channel 00/1 : 9999998[0] -> 9999999[1] via P2P/IPC")
    begin = perf_counter()
    read_nccl_log(lines)
    assert read([torn])[1].pattern == "all_to_all"
    assert perf_counter() - begin < 10  # 0.3 s on an idle core


# ------------------------------------------------------------------ logs of NCCL_DEBUG=INFO alone
# formats as in NVIDIA/nccl issues 226 (2.4), 300 (2.5), 671 (2.10), 1027 (2.18) and 1538 (2.22)


def logged(version: str, *lines: tuple[int, str]) -> str:
    """Return a log of NCCL_DEBUG=INFO: its version, then what each rank says."""
    return f"NCCL version {version}\n" + "".join(said(rank, text) for rank, text in lines)


OLD = logged(
    "2.4.8+cuda10.1",
    (0, "Channel 00 :    0   1   2   3"),
    (0, "Ring 00 : 0[0] -> 1[1] via P2P/IPC"),
    (1, "Ring 00 : 1 -> 2 [send] via NET/Socket/0"),
    (2, "Ring 00 : 2[2] -> 3[3] via direct shared memory"),
    (0, "Trees [0] -1->0->1/-1/-1"),
    (1, "Trees [0] 0->1->2/3/-1"),
    (2, "Trees [0] 1->2->-1/-1/-1"),
    (3, "Trees [0] 1->3->-1/-1/-1"),
    (3, "comm 0x7f145c002250 rank 3 nranks 4 cudaDev 3 nvmlDev 3 - Init COMPLETE"),
)
FIVE = logged(
    "2.5.6+cuda10.2",
    (0, "Channel 00/02 :    0   1   2"),
    (0, "Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1"),
    (1, "Trees [0] 2/-1/-1->1->0|0->1->2/-1/-1"),
    (2, "Trees [0] -1/-1/-1->2->1|1->2->-1/-1/-1"),
    (0, "Ring 00 : 0[6000] -> 1[7000] via P2P/IPC"),
)
SPLIT = "ncclCommSplit comm 0x{0} rank {0} nranks 2 cudaDev {0} busId 1{0}000 - Init COMPLETE"


def late(*lines: tuple[int, str], ranks: int = 4) -> str:
    """Return a log of NCCL 2.22, which connects when a call first needs it."""
    channel = (0, "Channel 00/02 : " + " ".join(map(str, range(ranks))))
    return logged("2.22.3+cuda12.6", channel, (0, "Trees [0] 1/-1/-1->0->-1"), *lines)


COUNTS = "comm 0x5{0} rank {0} nRanks 8 nNodes 1 localRanks 8 localRank {0} MNNVL 0"


def test_counts_of_2_20() -> None:
    """The ranks of a communicator are those that any line about it names, with nranks or nRanks."""
    lines = logged(
        "2.20.5+cuda12.4", (6, COUNTS.format(6)), (0, "Trees [0] 1/-1/-1->0->-1"), (6, "Trees")
    ).splitlines()
    found = read_setup(read_nccl_log(lines))
    assert found is not None
    assert found.ranks == 8
    ((endpoint, member),) = read_nccl_log(lines).members.items()
    assert (endpoint.comm, member.rank, member.gpu) == ("0x56", 6, ("box 4006", "6"))


def test_counts_do_not_replace_what_is_known_of_the_gpu() -> None:
    """A line with the number of ranks alone leaves a rank the GPU that an earlier line names."""
    own = said(6, "comm 0x56 rank 6 nranks 8 cudaDev 6 busId 1e000 commId 0xb1 - Init START")
    first = read_nccl_log([own]).members
    assert read_nccl_log([own, said(6, COUNTS.format(6))]).members == first
    assert read_nccl_log([said(6, COUNTS.format(6)), own]).members == first


def test_setup_of_2_4() -> None:
    """Rings, trees and transports are read from NCCL 2.4, whose trees stand the other way round."""
    log = read_nccl_log(OLD.splitlines())
    assert log.rings == (((0, 1, 2, 3), 1),)
    assert log.trees == ((((0, 1), (1, 2), (1, 3)), 1),)
    assert log.ways == {"P2P": 1, "NET": 1, "SHM": 1}


def test_trees_of_2_5() -> None:
    """NCCL 2.5 prints each rank's place in its tree twice; it is one tree."""
    assert read_nccl_log(FIVE.splitlines()).trees == ((((0, 1), (1, 2)), 1),)


def test_rings_that_nccl_reckons_with() -> None:
    """The best of NCCL's ring graphs counts, in the words of old and new versions."""
    lines = [
        said(0, "Pattern 4, crossNic 0, nChannels 2, speed 10.000000/10.0, type PHB/PIX, same 1"),
        said(0, "Pattern 1, crossNic 0, nChannels 9, bw 90.000000/90.000000, type NVL/PIX, same 1"),
        said(1, "Pattern 4, crossNic 0, nChannels 6, bw 20.000000/20.000000, type NVL/PIX, same 1"),
    ]
    assert read_nccl_log(lines).ring_graph == RingGraph(6, 120.0, "NVL")
    assert read_nccl_log(lines[:1]).ring_graph == RingGraph(2, 20.0, "PHB")
    assert read_nccl_log(lines[1:2]).ring_graph is None


@pytest.mark.parametrize(
    ("sentence", "text", "pattern", "confidence"),
    [
        ("before 2.22 rings and trees are there for any job", OLD, "ring+tree", "guess"),
        (
            "also where long rings are cut off",
            OLD.replace("Channel 00 :    0   1   2   3", "Channel 00 :    0   1   3"),
            "ring+tree",
            "guess",
        ),
        (
            "since 2.22 connected rings were used",
            late((0, "Connected all rings")),
            "ring",
            "likely",
        ),
        (
            "and so were connected trees",
            late((0, "Connected all rings, use ring PXN 0 GDR 1"), (0, "Connected all trees")),
            "ring+tree",
            "likely",
        ),
        ("nothing was connected", late(), "unknown", "guess"),
        (
            "Send and Recv from stage to stage are a chain",
            late(
                *((r, f"Channel 00/1 : {r}[{r}] -> {r + 1}[{r + 1}] via P2P/IPC") for r in range(3))
            ),
            "chain",
            "guess",
        ),
        (
            "with rings they are a ring",
            late(
                (0, "Connected all rings"),
                *(
                    (r, f"Channel 00/1 : {r}[{r}] -> {r + 1}[{r + 1}] via P2P/IPC")
                    for r in range(3)
                ),
            ),
            "ring",
            "guess",
        ),
        (
            "communicators of a part hide who sends what",
            OLD + said(0, SPLIT.format(0)) + said(1, SPLIT.format(1)),
            "unknown",
            "guess",
        ),
        (
            "one rank",
            said(0, "comm 0x7f rank 0 nranks 1 cudaDev 0 busId 6000 - I"),
            "none",
            "likely",
        ),
    ],
)
def test_pattern_without_calls(sentence: str, text: str, pattern: str, confidence: str) -> None:
    """Without calls, what NCCL set up gives the pattern, as sure as it can be."""
    found = read(text.splitlines())[1]
    assert (found.pattern, found.confidence) == (pattern, confidence), sentence


@pytest.mark.parametrize(
    "torn",
    [
        "Trees [0] -1/-1/-1->0->9999999",
        "Channel 00/1 : 0[0] -> 9999999[1] via P2P/IPC",
        "comm 0x8f rank 0 nranks 0 cudaDev 0 - Init COMPLETE",
        "comm 0x8f rank 9999999 nranks 7 cudaDev 0 - Init COMPLETE",
    ],
)
def test_torn_lines_make_no_ranks(torn: str) -> None:
    """Where communicators are known, a rank beyond them in a torn line is none."""
    log = read_nccl_log((OLD + said(0, torn)).splitlines())
    assert log.trees == read_nccl_log(OLD.splitlines()).trees
    found = read_setup(log)
    assert found is not None
    assert (found.ranks, found.pattern) == (4, "ring+tree")


def test_a_communicator_without_ranks_is_none() -> None:
    """A log whose only communicator has no ranks tells nothing."""
    line = said(0, "comm 0x8f rank 0 nranks 0 cudaDev 0 - Init COMPLETE")
    assert read_setup(read_nccl_log([line])) is None


def test_without_calls_sizes_are_unknown() -> None:
    """Without calls nothing is said of sizes and sensitivity, but how to learn them."""
    found = read(OLD.splitlines())[1]
    assert (found.ranks, found.sensitive, found.message_bytes, found.calls_per_gpu) == (
        4,
        None,
        None,
        None,
    )
    assert "NCCL set up rings and trees, channels: 1" in found.reasons
    assert "NCCL_DEBUG_SUBSYS=INIT,COLL,GRAPH" in found.reasons[-1]


@pytest.mark.parametrize(("pairs", "count"), [(((0, 1),), "1 pair"), (((0, 1), (1, 2)), "2 pairs")])
def test_pairs_are_counted(pairs: tuple[tuple[int, int], ...], count: str) -> None:
    """The reason of a pattern from Send and Recv says how many pairs of ranks they joined."""
    said_of = ((a, f"Channel 00/1 : {a}[{a}] -> {b}[{b}] via P2P/IPC") for a, b in pairs)
    found = read(late(*said_of).splitlines())[1]
    assert any(f"Send and Recv between {count} of ranks" in reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            OLD,
            [
                "ring 0 1 2 3: 1 channel",
                "1 tree",
                "connections: P2P 1, NET 1, SHM 1",
                "",
                "pattern:    ring+tree (4 ranks)",
            ],
        ),
        (call(0, "AllReduce", MB, ranks=1), ["pattern:    none (1 rank)", "sensitive:  no"]),
    ],
)
def test_lines_without_calls(text: str, lines: list[str]) -> None:
    """What NCCL set up is shown, and a log with only [nranks=1] calls has its conclusion."""
    log, found = read(text.splitlines())
    assert nccl_lines(nccl_document(log, found, "run.log"))[: len(lines)] == lines
