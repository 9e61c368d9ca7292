"""A fake libnvidia-ml.so.1, compiled from nvml.c for the real nvidia-ml-py, and described machines.

A test module that writes pytest_plugins = ("fake_nvml",) has these fixtures. A machine is a fixture
that turns `launcher` into one that runs there.

PYTEST_DONT_REWRITE: a module that imports from here does so before pytest hears of the plugin.
"""

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from compiled import compiled

from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.gpu import Gpu, format_cpuset
from gpulaunch.machine.topology import Topology

NVML_SOURCE = Path(__file__).with_name("nvml.c")

_PATH_LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
_KEYS = re.compile(r"sm|occupancy|dram|active|memactive|power|used_mib|link:\d+:[rt]x")
_NVML_VERSIONS = (0, 1, 2, 4, 6, 7, 8)  # of nvmlDeviceGetNvLinkVersion, by major version


class FakeNvml:
    """What the fake library says from the next call on; nvml.c tells the form.

    Args:
        library: directory of libnvidia-ml.so.1.
        file: where to write what it says.

    Attributes:
        environment: variables of a process that is to meet it.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self.environment = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_FILE": str(file)}
        self._file = file
        self._gpus: list[dict[str, object]] = []
        self._lines: list[str] = []
        self._clock = ""
        self._scripts: dict[tuple[int, str], _Script] = {}
        self._stamp_ns = 0
        self._write()

    def describe(self, gpus: Iterable[dict[str, object]], lines: Iterable[str]) -> None:
        """Tell of a machine.

        Args:
            gpus: the keys of each GPU's line.
            lines: everything else.
        """
        self._gpus, self._lines, self._scripts = [dict(gpu) for gpu in gpus], list(lines), {}
        self._write()

    def tell_of(self, topology: Topology) -> None:
        """Tell of this machine, as NVML would of a real one.

        What NVML does not know of a machine is not told: its name, stated PCIe bandwidths.
        """
        cards = {gpu.card: gpu for gpu in sorted(topology.gpus, key=lambda gpu: gpu.card)}
        links = {
            tuple(sorted((_card(topology, link.a), _card(topology, link.b)))): link
            for link in topology.links
        }
        direct = {pair: link.nvlink_count for pair, link in links.items() if link.kind == "nvlink"}
        lines = []
        for (a, b), link in links.items():
            if a != b:
                lines.append(f"ancestor {a} {b} {_PATH_LEVELS[link.pcie_path]}")
                lines.append(f"p2p {a} {b} {int(link.peer_to_peer is False)}")
        for card, gpu in cards.items():
            ends = [
                peer
                for pair, count in direct.items()
                if card in pair
                for peer in set(pair) - {card}
                for _ in range(count)
            ]
            ends += ["switch"] * gpu.nvswitch_links + ["cpu"] * gpu.cpu_nvlinks
            said = f"version={_NVML_VERSIONS[gpu.nvlink_version]}"
            said += f" speed={round(gpu.nvlink_gb_per_s * 1000)}" if gpu.nvlink_gb_per_s else ""
            said += " hopper state=1" if float(gpu.compute_capability or 0) >= 9 else ""
            lines += [f"nvlink {card} {link} peer={peer} {said}" for link, peer in enumerate(ends)]
        self.describe(
            [_card_line(card, gpu) for card, gpu in cards.items()],
            lines + [_instance_line(g) for g in topology.gpus if g.mig],
        )

    def uuids(self, *gpus: int) -> str:
        """Return the UUIDs of GPUs, with commas between."""
        return ",".join(str(self._gpus[gpu]["uuid"]) for gpu in gpus)

    def change(self, gpu: int, **values: object) -> None:
        """Change keys of a GPU; None takes one away."""
        self._gpus[gpu] = {
            key: value for key, value in (self._gpus[gpu] | values).items() if value is not None
        }
        self._write()

    def swap(self, a: int, b: int) -> None:
        """Swap two cards, as a reboot may count them: the slots and their links stay."""
        self._gpus[a]["uuid"], self._gpus[b]["uuid"] = self._gpus[b]["uuid"], self._gpus[a]["uuid"]
        self._write()

    def add(self, *lines: str) -> None:
        """Say this, too."""
        self._lines += lines
        self._write()

    def drop(self, beginning: str) -> None:
        """Say no longer what begins so."""
        self._lines = [line for line in self._lines if not line.startswith(beginning)]
        self._write()

    def answer(self, function: str, code: int, gpu: int | None = None) -> None:
        """Let a function answer with an error.

        Args:
            function: the exported symbol, "*" for every one, "gpm:ID" or "field:ID" for one metric
                or field alone.
            code: of nvmlReturn_t.
            gpu: its first argument, or None for every one and for a function that is about no GPU.
        """
        self._rule("error", function, code, gpu)

    def slow(self, function: str, seconds: float, gpu: int | None = None) -> None:
        """Let a function sleep for so many seconds before it answers; see `answer`."""
        self._rule("slow", function, seconds, gpu)

    def cost(self, function: str, cpu_us: float, gpu: int | None = None) -> None:
        """Let a function use so many microseconds of CPU before it answers; see `answer`."""
        self._rule("cost", function, cpu_us, gpu)

    # -------------------------------------------------------------------------------- use over time

    def begin_script(self) -> float:
        """Let the script's second 0 be now; return it in time.monotonic()."""
        at = time.monotonic()
        self._clock = f"clock {at!r}"
        self._write()
        return at

    def freeze(self, at: float) -> None:
        """Let it be this second of the script, until told otherwise."""
        self._clock = f"clock frozen {float(at)!r}"
        self._write()

    def script(self, gpu: int, key: str, values: str | float, period: float | None = None) -> None:
        """Tell how a value changes; another script of the same key goes before it.

        Args:
            gpu: index; of a MIG instance the number that nvml.c tells of.
            key: one of those in nvml.c.
            values: each from its second of the script's time on, such as "0:50,1.5:90"; or one
                value for ever.
            period: after so many seconds it begins anew.
        """
        assert _KEYS.fullmatch(key), key
        text = values if isinstance(values, str) else f"0:{values}"
        pairs = [pair.split(":") for pair in text.split(",")]
        points = tuple((float(at), float(value)) for at, value in pairs)
        line = f"script {gpu} {key} {text}" + (f" period {period}" if period else "")
        self._scripts[gpu, key] = _Script(points, period, line)
        self._write()

    def integral(self, gpu: int, key: str, start: float, end: float) -> float:
        """Return a value's true sum over a window of script time, in % s, J, GB or MiB s."""
        script = self._scripts[gpu, key]
        return _integral(script, end) - _integral(script, start)

    def mean(self, gpu: int, key: str, start: float, end: float) -> float:
        """Return a value's true average over a window of script time; see `integral`."""
        return self.integral(gpu, key, start, end) / (end - start)

    def _rule(self, kind: str, function: str, number: float, gpu: int | None) -> None:
        indices = (-1, *range(len(self._gpus))) if gpu is None else (gpu,)
        self.add(*(f"{kind} {function} {index} {number}" for index in indices))

    def _write(self) -> None:
        lines = [
            f"gpu {index} "
            + " ".join(f"{key}={value}".replace(" ", "_") for key, value in gpu.items())
            for index, gpu in enumerate(self._gpus)
        ]
        lines += self._lines + [script.line for script in self._scripts.values()]
        draft = self._file.with_suffix(".new")
        draft.write_text("".join(f"{line}\n" for line in [*lines, self._clock] if line))
        self._stamp_ns = max(self._stamp_ns + 1, time.time_ns())
        os.utime(
            draft, ns=(self._stamp_ns, self._stamp_ns)
        )  # by which a reader sees that it is another
        os.replace(draft, self._file)  # who reads meanwhile sees all of the old or all of the new


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a libnvidia-ml.so.1 that has just been compiled."""
    return compiled(NVML_SOURCE, tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1").parent


@pytest.fixture
def nvml(launcher, fake_nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """Return the NVML of a machine with a driver and no GPU, which `launcher` now meets."""
    fake = FakeNvml(fake_nvml_library, tmp_path / "nvml.txt")
    launcher.environment |= fake.environment
    return fake


@pytest.fixture
def dgx1_v100(nvml: FakeNvml) -> FakeNvml:
    """Describe a DGX-1 with eight V100, as profiles/machines/dgx1-v100.toml does."""
    nvml.tell_of(load_described_machine("dgx1-v100")[0])
    for gpu in range(8):
        nvml.change(gpu, uuid=f"GPU-v100-{gpu}", reserved_mib=300)
    return nvml


@pytest.fixture
def hgx_h100(nvml: FakeNvml) -> FakeNvml:
    """Describe eight H100, each with eighteen NVLinks into NVSwitches, as in dgx-h100.toml."""
    nvml.tell_of(load_described_machine("dgx-h100")[0])
    for gpu in range(8):
        nvml.change(gpu, uuid=f"GPU-h100-{gpu}", reserved_mib=600)
    return nvml


class _Script(NamedTuple):
    """A value over time: pairs (second from which on, value) in order, and the script's line."""

    points: tuple[tuple[float, float], ...]
    period: float | None
    line: str


def _integral(script: _Script, end: float) -> float:
    """Integrate from second 0 on."""
    if not script.period:
        return _first_integral(script, end)
    periods, rest = divmod(end, script.period)
    return periods * _first_integral(script, script.period) + _first_integral(script, rest)


def _first_integral(script: _Script, end: float) -> float:
    ends = [*(at for at, _ in script.points[1:]), float("inf")]
    return sum(
        value * max(0, min(end, until) - at)
        for (at, value), until in zip(script.points, ends, strict=True)
    )


def _card(topology: Topology, index: int) -> int:
    return next(gpu.card for gpu in topology.gpus if gpu.index == index)


def _card_line(card: int, gpu: Gpu) -> dict[str, object]:
    """Return what the gpu line of a card says."""
    line: dict[str, object] = {
        "uuid": gpu.mig.card_uuid if gpu.mig else gpu.uuid,
        "name": gpu.model.partition(" MIG ")[0],
        "memory_mib": gpu.memory_bytes >> 20,
        "pci": f"ffff:{card:02x}:00",
        "cc": gpu.compute_capability,
        "gen": gpu.pcie_generation,
        "width": gpu.pcie_width,
        "numa": gpu.numa_node,
        "cpus": format_cpuset(gpu.cpuset) or None,
        "mig": int(gpu.mig is not None),
    }
    return {key: value for key, value in line.items() if value is not None}


def _instance_line(gpu: Gpu) -> str:
    number = 1000 * (gpu.mig.card + 1) + gpu.mig.instance
    return (
        f"gpu {number} uuid={gpu.uuid} name={gpu.model.replace(' ', '_')} "
        f"memory_mib={gpu.memory_bytes >> 20}"
    )
