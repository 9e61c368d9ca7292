"""The version of NVLinks: by compute capability, whichever way a driver numbers the versions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import Launcher

if TYPE_CHECKING:
    from fake_nvml import FakeNvml

pytest_plugins = ("fake_nvml",)

NOT_SUPPORTED = 3  # nvmlReturn_t
SWITCH = 18
"""Links of an H100 or B200 into NVSwitches."""

H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "cc": "9.0", "gen": 5, "width": 16}
GB200 = {"name": "NVIDIA GB200", "memory_mib": 189471, "cc": "10.0", "gen": 6, "width": 16}
A6000 = {"name": "NVIDIA RTX A6000", "memory_mib": 49140, "cc": "8.6", "gen": 4, "width": 16}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920, "cc": "8.0", "gen": 4, "width": 16}
V100 = {"name": "Tesla V100-SXM2-16GB", "memory_mib": 16160, "cc": "7.0", "gen": 3, "width": 16}
P100 = {"name": "Tesla P100-SXM2-16GB", "memory_mib": 16276, "cc": "6.0", "gen": 3, "width": 16}


def on_switches(count: int, said: str) -> Iterator[str]:
    """Yield the links of so many GPUs into NVSwitches."""
    for gpu in range(count):
        yield from (f"nvlink {gpu} {link} peer=switch {said}" for link in range(SWITCH))


def describe(nvml: "FakeNvml", gpu: dict, count: int, lines: Iterator[str]) -> None:
    nvml.describe(
        [gpu | {"uuid": f"GPU-{i}", "pci": f"ffff:{i + 1:02x}:00"} for i in range(count)], lines
    )


def effective(launcher: Launcher, count: int) -> float:
    done = launcher.run("-n", str(count), "--dry-run", "--json", "--", "true")
    return json.loads(done.stdout)["scores"]["effective_bandwidth_gb_per_s"]


def topo(launcher: Launcher) -> tuple[int, float]:
    """Return the NVLink version of the first GPU, and the first link's bandwidth."""
    found = json.loads(launcher.run("topo", "--json").stdout)
    return found["gpus"][0]["nvlink_version"], found["links"][0]["bandwidth_gb_per_s"]


# nvml.h counts 3.0, 3.1, 4.0, 5.0, 6.0 as 4, 5, 6, 7, 8; drivers of 2023 and 2024 as 5, 6, 7, 8.
@pytest.mark.parametrize(
    ("gpu", "said", "version", "pair", "planned", "all_eight"),
    [
        pytest.param(H100, "version=6 speed=26562", 4, 450, 370.8, 478.7, id="H100, new driver"),
        pytest.param(H100, "version=7 speed=26562", 4, 450, 370.8, 478.7, id="H100, old driver"),
        pytest.param(GB200, "version=8 speed=53125", 5, 900, 721.8, 842.1, id="GB200, old"),
    ],
)
def test_links_into_switches(
    launcher: Launcher,
    nvml: "FakeNvml",
    gpu: dict,
    said: str,
    version: int,
    pair: float,
    planned: float,
    all_eight: float,
) -> None:
    """H100 has NVLink 4 and GB200 NVLink 5, whatever number the driver has for that."""
    describe(nvml, gpu, 8, on_switches(8, f"{said} hopper state=1"))
    got = (*topo(launcher), effective(launcher, 4), effective(launcher, 8))
    assert got == (version, pair, pytest.approx(planned), pytest.approx(all_eight, abs=0.05))


@pytest.mark.parametrize(
    ("gpu", "links", "said", "want", "planned"),
    [
        pytest.param(A6000, 4, "version=6 speed=14062", (3, 56.25), 48, id="RTX A6000, old"),
        pytest.param(A100, 12, "version=5 speed=25000", (3, 300), 208.8, id="A100, old"),
        pytest.param(V100, 2, "version=4", (2, 50), 40, id="V100, old"),
        pytest.param(P100, 4, "version=99", (1, 80), 72, id="P100"),
    ],
)
def test_links_of_two_gpus(
    launcher: Launcher,
    nvml: "FakeNvml",
    gpu: dict,
    links: int,
    said: str,
    want: tuple[int, float],
    planned: float,
) -> None:
    """Cards before Hopper, too, have the version of their compute capability."""
    ends = (f"nvlink {a} {n} peer={1 - a} {said}" for a in (0, 1) for n in range(links))
    describe(nvml, gpu, 2, ends)
    assert (topo(launcher), effective(launcher, 2)) == (want, pytest.approx(planned))


def test_unknown_compute_capability(launcher: Launcher, nvml: "FakeNvml") -> None:
    """Of a card without a known capability NVML's number tells, as nvml.h counts.

    A later number counts as the newest, and none as the oldest.
    """
    want = {0: 20.0, 1: 20.0, 2: 25.0, 4: 25.0, 6: 25.0, 7: 50.0, 8: 50.0, 99: 50.0}
    pairs = [(2 * n, 2 * n + 1, number) for n, number in enumerate(want)]
    ends = ((a, b, number) for x, y, number in pairs for a, b in ((x, y), (y, x)))
    lines = (f"nvlink {a} 0 peer={b} version={number}" for a, b, number in ends)
    describe(nvml, H100 | {"cc": "13.0"}, 2 * len(want), lines)
    assert nvlinks(launcher) == [*want.values()]
    nvml.answer("nvmlDeviceGetNvLinkVersion", NOT_SUPPORTED)
    Path(launcher.environment["XDG_RUNTIME_DIR"], "gpulaunch.topology.json").unlink()
    nvml.answer("nvmlDeviceGetCudaComputeCapability", NOT_SUPPORTED)
    assert nvlinks(launcher) == [20.0] * len(want)


def nvlinks(launcher: Launcher) -> list[float]:
    """Return the bandwidth of each pair with an NVLink."""
    found = json.loads(launcher.run("topo", "--json").stdout)["links"]
    return [link["bandwidth_gb_per_s"] for link in found if link["nvlink_count"]]
