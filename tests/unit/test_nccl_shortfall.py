"""What NCCL's log says of a measured run: its pattern, and the links that GPUs were chosen for."""

import pytest
from gpulaunch.measure.measured_pattern import communication_of
from gpulaunch.measure.measured_run import GpuRun, Run
from gpulaunch.measure.usage import Figures
from values import machine

from gpulaunch.machine.topology import Topology
from gpulaunch.measure.logs.nccl_log import read_nccl_log
from gpulaunch.measure.logs.nccl_shortfall import describe_shortfall
from gpulaunch.records import field_names, replace

RANKS = (0, 3, 2)  # GPUs of the ranks, all joined by double NVLinks but 0 and 2


def addressed(name: str = "dgx1-v100") -> Topology:
    """Return a shipped machine whose GPUs have the bus ids 10000, 20000 and so on."""
    known = machine(name)
    gpus = tuple(replace(gpu, pci_address=f"0000:{gpu.index + 1:x}0:00") for gpu in known.gpus)
    return replace(known, gpus=gpus)


def joined(rank: int, gpu: int, host: str = "box", ranks: int = 3) -> str:
    return (
        f"{host}:{rank}:1 [0] NCCL INFO comm 0x{rank}{gpu}{ranks} rank {rank} nranks {ranks} "
        f"cudaDev 0 nvmlDev {gpu} busId {gpu + 1}0000 commId 0x{ranks} - Init COMPLETE"
    )


def via(a: int, b: int, way: str) -> str:
    return f"box:{a}:1 [0] NCCL INFO Channel 00/0 : {a}[{RANKS[a]}] -> {b}[{RANKS[b]}] via {way}"


def rings(channels: int, gb_per_s: float, path: str) -> str:
    return (
        f"box:0:1 [0] NCCL INFO Pattern 4, crossNic 0, nChannels {channels}, "
        f"bw {gb_per_s:f}/{gb_per_s:f}, type {path}/PIX, sameChannels 1"
    )


MEMBERS = [joined(rank, gpu) for rank, gpu in enumerate(RANKS)]


@pytest.mark.parametrize(
    ("sentence", "lines", "promised", "want"),
    [
        (
            "NVLink is used",
            [*MEMBERS, via(0, 1, "P2P/IPC"), rings(2, 20, "NVL")],
            40,
            None,
        ),
        (
            "host memory instead of NVLink",
            [*MEMBERS, via(0, 1, "SHM/direct/direct"), via(1, 2, "NET/Socket/0")],
            40,
            "NCCL used SHM, not the 2 NVLinks (50 GB/s), between GPUs 0 and 3 and 1 more pair",
        ),
        (
            "host memory where there is no NVLink but PCIe is no shortfall",
            [joined(0, 0, ranks=2), joined(1, 5, ranks=2), via(0, 1, "SHM/direct/direct")],
            None,
            None,
        ),
        (
            "host memory instead of a single NVLink",
            [joined(0, 0, ranks=2), joined(1, 1, ranks=2), via(0, 1, "SHM/direct/direct")],
            None,
            "NCCL used SHM, not the NVLink (25 GB/s), between GPUs 0 and 1",
        ),
        (
            "under half of the promise",
            [*MEMBERS, rings(2, 9.9, "PHB")],
            40,
            "NCCL reckons with 19.8 GB/s over PHB, 40 GB/s were promised",
        ),
        ("half of it", [*MEMBERS, rings(2, 10, "NVL")], 40, None),
        (
            "both in one line",
            [*MEMBERS, via(1, 2, "SHM/direct/direct"), rings(1, 9, "SYS")],
            40,
            (
                "NCCL used SHM, not the 2 NVLinks (50 GB/s), between GPUs 2 and 3; "
                "NCCL reckons with 9 GB/s over SYS, 40 GB/s were promised"
            ),
        ),
        (
            "rings beside NVLink",
            [*MEMBERS, rings(2, 12, "PIX")],
            None,
            "NCCL's rings go over PIX, though NVLink joins all of its GPUs",
        ),
        (
            "a rank with several GPUs tells nothing",
            [*MEMBERS, joined(0, 2, ranks=2), via(0, 1, "SHM/direct/direct")],
            None,
            None,
        ),
        (
            "a communicator of one rank does no harm",
            [*MEMBERS, joined(0, 2, ranks=1), via(0, 1, "SHM/direct/direct")],
            None,
            "NCCL used SHM, not the 2 NVLinks (50 GB/s), between GPUs 0 and 3",
        ),
        (
            "ranks of several machines tell nothing",
            [*MEMBERS, joined(2, 0, host="other"), via(0, 1, "NET/IB/0"), rings(1, 1, "NVL")],
            40,
            None,
        ),
        (
            "ranks of other machines, which have their own log, tell nothing",
            [joined(rank, gpu, ranks=6) for rank, gpu in enumerate(RANKS)]
            + [via(0, 1, "NET/IB/0"), rings(1, 1, "NVL")],
            40,
            None,
        ),
        ("no log", [], 40, None),
    ],
)
def test_shortfall(
    sentence: str, lines: list[str], promised: float | None, want: str | None
) -> None:
    """What is worse than promised is one line with the numbers; all else is none."""
    known = addressed()
    # GPUs 0 and 5 have no NVLink between them, and 0, 2, 3 all have.
    text = "".join(lines)
    own = (0, 5) if "busId 60000" in text else (0, 1) if "busId 20000" in text else RANKS
    gpus = [known.gpus[index] for index in own]
    found = describe_shortfall(read_nccl_log(lines), gpus, known.links, promised)
    assert found == want, sentence


def test_gpus_without_address() -> None:
    """Of GPUs whose PCI addresses are unknown only the rings are judged."""
    known = machine("dgx1-v100")
    log = read_nccl_log([*MEMBERS, via(0, 1, "SHM/direct/direct"), rings(1, 9, "PHB")])
    found = describe_shortfall(log, [known.gpus[index] for index in RANKS], known.links, 40)
    assert found == "NCCL reckons with 9 GB/s over PHB, 40 GB/s were promised"


@pytest.mark.parametrize(
    ("nccl", "want"),
    [("ring", "ring"), ("none", None), ("unknown", None), (None, None)],
)
def test_pattern_where_counters_show_nothing(nccl: str | None, want: str | None) -> None:
    """NCCL's pattern counts without counters; that it moved nothing, or is unknown, does not."""
    nothing = Figures(*(None for _ in field_names(Figures)[:-1]), {})
    gpus = tuple(GpuRun(i, f"GPU-{i}", "V100", 16 << 30, nothing, has_gpm=False) for i in (0, 1))
    run = Run(
        ("true",), 0, 1.0, gpus, None, "2026-01-02", nccl_pattern=nccl, nccl_confidence="likely"
    )
    assert communication_of(run, "here").section.get("pattern") == want
