"""`gpulaunch topo --measure`: what links carry, by a stand-in benchmark and a fake NVML."""

import json
import os
import select
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import DGX, Launcher, complaint, held
from toml_parser import tomllib

if TYPE_CHECKING:
    from fake_nvml import FakeNvml

pytest_plugins = ("fake_nvml",)

PROGRAM = Path(__file__).parents[1] / "jobs" / "all_reduce_perf"
FOUR = [
    {"uuid": f"GPU-{i}", "name": "V100", "memory_mib": 16160, "pci": f"ffff:{i + 1:02x}:00"}
    for i in range(4)
]
# a square of double NVLinks 0-1 and 2-3, single ones 0-2 and 1-3, and PCIe across
SQUARE = {(0, 1): 2, (2, 3): 2, (0, 2): 1, (1, 3): 1}


class Bench:
    """The stand-in benchmark as the launcher finds it.

    Attributes:
        file: what it tells, in JSON.
    """

    def __init__(self, launcher: Launcher, directory: Path) -> None:
        self.file = directory / "bandwidths.json"
        programs = directory / "programs"
        programs.mkdir()
        shutil.copy(PROGRAM, programs)
        launcher.environment["PATH"] = f"{programs}{os.pathsep}{launcher.environment['PATH']}"
        launcher.environment["BANDWIDTHS"] = str(self.file)

    def tell(self, bandwidths: Mapping[str, object]) -> None:
        """Set the bandwidths that the benchmark finds."""
        self.file.write_text(json.dumps(bandwidths))

    def asked(self) -> list[str]:
        """Return the sets of GPUs that were measured, in order."""
        lines = Path(f"{self.file}.log").read_text().splitlines()
        return [line.split()[0].replace("GPU-", "") for line in lines]


@pytest.fixture
def bench(launcher: Launcher, nvml: "FakeNvml", tmp_path: Path) -> Bench:
    """Describe four V100 in a square; measure 39 GB/s by two NVLinks, 21 by one, 10 by PCIe."""
    used = [0] * 4
    lines = []
    for (a, b), count in SQUARE.items():
        for _ in range(count):
            for gpu, peer in ((a, b), (b, a)):
                lines.append(f"nvlink {gpu} {used[gpu]} peer={peer} version=2")
                used[gpu] += 1
    nvml.describe([gpu | {"cc": "7.0", "gen": 3, "width": 16} for gpu in FOUR], lines)
    bench = Bench(launcher, tmp_path)
    found = {"GPU-0,GPU-1": 39.0, "GPU-0,GPU-2": 21.0, "GPU-0,GPU-3": 6.5, "otherwise": 20.0}
    bench.tell(found | {"GPU-0,GPU-1,GPU-2": 7.0})
    return bench


def own_file(launcher: Launcher) -> Path:
    """Return the user's machine file of this machine."""
    folder = Path(launcher.environment["XDG_CONFIG_HOME"], "gpulaunch", "machines")
    return folder / f"{os.uname().nodename}.toml"


def by_measurement(launcher: Launcher, *options: str) -> dict:
    """Return the decision by what was measured."""
    line = ("-o", "bandwidth_model=measured", *options, "--dry-run", "--json", "--", "true")
    return json.loads(launcher.run(*line).stdout)


def measured(launcher: Launcher, *options: str) -> dict:
    done = launcher.run("topo", "--measure", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


KEYS = ("links", "all_reduce_gb_per_s", "cut_gb_per_s")


def test_one_of_each_kind(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:
    """One ring of each kind is measured, its peak over message sizes kept, and the GPUs freed."""
    found = measured(launcher, "-o", str(tmp_path / "machine.toml"))
    assert bench.asked() == ["0,1", "0,2", "0,3", "0,1,2", "0,1,2,3"]
    kinds = [[entry[key] for key in KEYS] for entry in found["measured"]]
    assert kinds == [
        [["NV2 50"], 39.0, 40.0],
        [["NV1 25"], 21.0, 20.0],
        [["SYS 6"], 6.5, 6.0],
        [["NV2 50", "NV1 25", "SYS 6"], 7.0, 20.0],
        [["NV2 50", "NV2 50", "NV1 25", "NV1 25"], 20.0, 40.0],
    ]
    assert launcher.records() == []


def test_machine_file(launcher: Launcher, bench: Bench, nvml: "FakeNvml") -> None:  # noqa: ARG001
    """Measurements go to the user's machine file, which describes the machine, with their errors.

    -o bandwidth_model=measured gives a set the figure of its kind, and is refused before that and
    with other GPUs.
    """
    model = ("-o", "bandwidth_model=measured", "--", "true")
    done = launcher.run(*model)
    assert (done.returncode, done.stdout) == (2, "")
    told = f"-o bandwidth_model=measured: nothing was measured of {os.uname().nodename}"
    assert done.stderr == complaint(told, "'gpulaunch topo --measure' does it, on idle GPUs")
    errors = measured(launcher)["root_mean_square_error_gb_per_s"]
    assert errors["mapa"] > 0
    want = ((1**2 + 1**2 + 0.5**2 + 13**2 + 20**2) / 5) ** 0.5
    assert errors["cut"] == pytest.approx(want)
    path = own_file(launcher)
    document = tomllib.loads(path.read_text())
    assert document["measurement"]["tool"] == "nccl-tests"
    want = {"gpus": [0, 2], "ring": ["NV1 25"], "all_reduce_gb_per_s": 21.0}
    assert document["measured"][1] == want
    described = json.loads(launcher.run("topo", "--topology", str(path), "--json").stdout)
    assert described["links"] == json.loads(launcher.run("topo", "--json").stdout)["links"]
    for only, want in (("1,3", 21.0), ("1,2", 6.5), ("0,1,3", 7.0)):
        found = by_measurement(launcher, "--only", only, "-n", str(len(only.split(","))))
        assert found["bandwidth_model"] == "measured"
        assert found["scores"]["effective_bandwidth_gb_per_s"] == want
    for gpu in range(4):
        nvml.change(gpu, name="A100", uuid=f"GPU-new-{gpu}")
    done = launcher.run(*model)
    assert (done.returncode, "nothing was measured of" in done.stderr) == (2, True)


def test_measured_model_of_a_kind_that_was_not(launcher: Launcher, bench: Bench) -> None:
    """A kind of set that was not measured has the cut over links that carry what was measured."""
    bench.tell({"GPU-0,GPU-1": 30.0, "GPU-0,GPU-2": 15.0, "GPU-0,GPU-3": 5.0})
    launcher.run("topo", "--measure")
    path = own_file(launcher)
    path.write_text(path.read_text().replace('"NV1 25", "NV1 25"]', '"NV1 25", "other"]'))
    scores = by_measurement(launcher, "-n", "4")["scores"]
    assert scores["effective_bandwidth_gb_per_s"] == 30.0  # two single ones at 15


def test_idle_gpus_alone(launcher: Launcher, bench: Bench, nvml: "FakeNvml") -> None:
    """GPUs that are leased or in use are not touched; with fewer than two others the status is 75.

    Beyond five GPUs all idle ones are measured together, too.
    """
    nvml.add(f"process 2 {os.getpid()} 300")
    with held(launcher, "--only", "0"):
        measured(launcher)
    assert bench.asked() == ["1,3"]
    nvml.add(*(f"process {gpu} {os.getpid()} 300" for gpu in range(2)))
    done = launcher.run("topo", "--measure")
    found = "at least 2 GPUs requested: 1 of 4 is free, 3 are in use outside gpulaunch"
    assert (done.returncode, found in done.stderr, bench.asked()) == (75, True, ["1,3"])
    nvml.describe([{"uuid": f"GPU-{i}", "name": "V100", "memory_mib": 16160} for i in range(7)], [])
    bench.tell({"otherwise": 6.0})
    measured(launcher)
    assert bench.asked()[1:] == ["0,1", "0,1,2", "0,1,2,3", "0,1,2,3,4", "0,1,2,3,4,5,6"]


FAILED = "ended with status 3: Test NCCL failure common.cu:1005 'unhandled system error'\n"


@pytest.mark.parametrize(
    ("told", "want"),
    [({"fails": "GPU-0,GPU-2"}, FAILED), ({"otherwise": 0.0}, " printed no figures\n")],
)
def test_failing_benchmark(launcher: Launcher, bench: Bench, told: dict, want: str) -> None:
    """A failed benchmark is told in its own last words, nothing is written, the GPUs are freed."""
    bench.tell(told)
    done = launcher.run("topo", "--measure")
    assert (done.returncode, done.stdout, done.stderr.endswith(want)) == (125, "", True)
    assert (launcher.records(), own_file(launcher).exists()) == ([], False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["int", "kill"])
def test_interrupted(launcher: Launcher, bench: Bench, tmp_path: Path, number: int) -> None:
    """A signal ends the benchmark, frees the GPUs, writes nothing, and ends by that signal.

    After KILL the GPUs are held for as long as the benchmark runs.
    """
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    bench.tell({"waits": "GPU-0,GPU-2", "fifo": str(fifo)})
    with launcher.start("topo", "--measure") as process:
        writer = os.open(fifo, os.O_WRONLY)  # returns when the benchmark reads
        process.send_signal(number)
        assert process.wait() == -number
        if number == signal.SIGKILL:
            assert launcher.run("--", "true").returncode == 75
        else:
            poll = select.poll()
            poll.register(writer, select.POLLERR)
            assert poll.poll() == [(writer, select.POLLERR)]  # nobody reads any more
        os.close(writer)
    assert launcher.run("--wait", "--", "echo", "ran").stdout == "ran\n"
    assert (launcher.records(), own_file(launcher).exists()) == ([], False)


def test_what_a_benchmark_leaves_behind(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:
    """Processes that a benchmark leaves running are ended before the next one starts."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    bench.tell({"leaves": "GPU-0,GPU-1", "fifo": str(fifo), "otherwise": 20.0})
    reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    measured(launcher, "-o", str(tmp_path / "machine.toml"))
    os.close(reader)
    with pytest.raises(OSError, match="No such device or address"):  # nobody reads any more
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)


def test_inside_a_lease(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:
    """Inside a lease, or under a CUDA_VISIBLE_DEVICES, its GPUs are measured."""
    command = (launcher.script, "topo", "--measure", "-o", str(tmp_path / "machine.toml"))
    assert launcher.run("--only", "1,3", "-n", "2", "--", *command).returncode == 0
    launcher.environment["CUDA_VISIBLE_DEVICES"] = "0,2"
    assert launcher.run(*command[1:]).returncode == 0
    assert bench.asked() == ["1,3", "0,2"]


def test_nothing_to_measure(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:
    """What cannot be measured, or written, is told before anything is measured."""
    own = own_file(launcher)
    own.parent.mkdir(parents=True)
    own.write_text('name = "mine"\n')
    elsewhere = ("-o", str(tmp_path / "x.toml"))
    replaces = f"{own} describes this machine, and measuring would replace it"
    described = "dgx1-v100 is only described: there is nothing to measure"
    hint = "build it from github.com/NVIDIA/nccl-tests"
    for options, changes, status, line in (
        (("-o", "/proc/no/machine.toml"), {}, 125, complaint("/proc/no/machine.toml")),
        ((), {}, 2, complaint(replaces, "-o names another file")),
        (DGX, {}, 2, complaint("--topology: not allowed with argument --measure")),
        (elsewhere, {"GPULAUNCH_TOPOLOGY": "dgx1-v100"}, 2, complaint(described)),
        (
            elsewhere,
            {"PATH": str(tmp_path)},
            125,
            complaint("no all-reduce benchmark on PATH: all_reduce_perf", hint),
        ),
    ):
        environment = launcher.environment | changes
        done = launcher.run("topo", "--measure", *options, env=environment)
        assert (done.returncode, done.stdout) == (status, "")
        assert done.stderr.startswith(line.rstrip("\n"))
    assert own.read_text() == 'name = "mine"\n'
    assert not Path(f"{bench.file}.log").exists()
