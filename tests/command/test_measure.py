"""`gpulaunch topo --measure`: what links carry, by a stand-in benchmark and a fake NVML."""

import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import DGX, Launcher

from gpulaunch.files.toml import tomllib

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
        return [
            line.split()[0].replace("GPU-", "")
            for line in Path(f"{self.file}.log").read_text().splitlines()
        ]


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
    bench.tell(
        {
            "GPU-0,GPU-1": 39.0,
            "GPU-0,GPU-2": 21.0,
            "GPU-0,GPU-3": 6.5,
            "GPU-0,GPU-1,GPU-2": 7.0,
            "otherwise": 20.0,
        }
    )
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


def test_one_of_each_kind(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:
    """One ring of each kind is measured, its peak over message sizes kept, and the GPUs freed."""
    found = measured(launcher, "-o", str(tmp_path / "machine.toml"))
    assert bench.asked() == ["0,1", "0,2", "0,3", "0,1,2", "0,1,2,3"]
    assert [
        (entry["links"], entry["all_reduce_gb_per_s"], entry["cut_gb_per_s"])
        for entry in found["measured"]
    ] == [
        (["NV2 50"], 39.0, 40.0),
        (["NV1 25"], 21.0, 20.0),
        (["SYS 6"], 6.5, 6.0),
        (["NV2 50", "NV1 25", "SYS 6"], 7.0, 20.0),
        (["NV2 50", "NV2 50", "NV1 25", "NV1 25"], 20.0, 40.0),
    ]
    assert launcher.records() == []


def test_refit(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:  # noqa: ARG001
    """Eq. 2 fitted to this machine stands beside cut and published coefficients, with errors."""
    found = measured(launcher, "-o", str(tmp_path / "machine.toml"))
    errors = found["root_mean_square_error_gb_per_s"]
    assert errors["refit"] == pytest.approx(0, abs=1e-6)  # 14 coefficients for five sets
    assert errors["mapa"] > errors["refit"]
    want = ((1**2 + 1**2 + 0.5**2 + 13**2 + 20**2) / 5) ** 0.5
    assert errors["cut"] == pytest.approx(want)
    table = launcher.run("topo", "--measure", "-o", str(tmp_path / "machine.toml")).stdout
    assert "2x NV2 50, 2x NV1 25" in table
    assert "refit: the 14 coefficients of Eq. 2 by least squares over these 5 sets" in table


def test_machine_file(launcher: Launcher, bench: Bench) -> None:  # noqa: ARG001
    """Measurements go to the user's machine file, with date and tool, and describe the machine."""
    done = launcher.run("topo", "--measure")
    path = own_file(launcher)
    assert f"written to {path}; -o bandwidth_model=measured goes by it" in done.stdout
    document = tomllib.loads(path.read_text())
    assert document["measurement"]["tool"] == "nccl-tests"
    want = {"gpus": [0, 2], "ring": ["NV1 25"], "all_reduce_gb_per_s": 21.0}
    assert document["measured"][1] == want
    described = json.loads(launcher.run("topo", "--topology", str(path), "--json").stdout)
    found = json.loads(launcher.run("topo", "--json").stdout)
    assert described["links"] == found["links"]


@pytest.mark.parametrize(
    ("only", "want"),
    [("1,3", 21.0), ("1,2", 6.5), ("0,1,3", 7.0)],
)
def test_measured_model(launcher: Launcher, bench: Bench, only: str, want: float) -> None:  # noqa: ARG001
    """-o bandwidth_model=measured gives a set the figure of its kind."""
    launcher.run("topo", "--measure")
    document = by_measurement(launcher, "--only", only, "-n", str(len(only.split(","))))
    found = document["scores"]["effective_bandwidth_gb_per_s"]
    assert (document["bandwidth_model"], found) == ("measured", want)


def test_measured_model_of_a_kind_that_was_not(launcher: Launcher, bench: Bench) -> None:
    """A kind of set that was not measured has the cut over links that carry what was measured."""
    bench.tell({"GPU-0,GPU-1": 30.0, "GPU-0,GPU-2": 15.0, "GPU-0,GPU-3": 5.0})
    launcher.run("topo", "--measure")
    path = own_file(launcher)
    path.write_text(path.read_text().replace('"NV1 25", "NV1 25"]', '"NV1 25", "other"]'))
    scores = by_measurement(launcher, "-n", "4")["scores"]
    assert scores["effective_bandwidth_gb_per_s"] == 30.0  # two single ones at 15


def test_nothing_measured(launcher: Launcher, bench: Bench) -> None:  # noqa: ARG001
    """Without measurements the model is refused, with the command that makes them."""
    done = launcher.run("-o", "bandwidth_model=measured", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gpulaunch: error: -o bandwidth_model=measured: nothing was measured of "
        f"{os.uname().nodename}\n"
        "gpulaunch: hint: 'gpulaunch topo --measure' does it, on idle GPUs\n"
    )


def test_idle_gpus_alone(launcher: Launcher, bench: Bench, nvml: "FakeNvml") -> None:
    """GPUs that are leased or in use are not touched, and what is measured is held meanwhile."""
    nvml.add(f"process 2 {os.getpid()} 300")
    hold = ("--only", "0", "--", "sh", "-c", "echo held; read line")
    with launcher.start(*hold, stdin=subprocess.PIPE) as holder:
        holder.stdout.readline()
        measured(launcher)
        holder.communicate("")
    assert bench.asked() == ["1,3"]


def test_too_few_idle(launcher: Launcher, bench: Bench, nvml: "FakeNvml") -> None:
    """With fewer than two idle GPUs there is nothing to measure yet: status 75."""
    nvml.add(*(f"process {gpu} {os.getpid()} 300" for gpu in range(3)))
    done = launcher.run("topo", "--measure")
    found = "at least 2 GPUs requested: 1 of 4 is free, 3 are in use outside gpulaunch"
    assert (done.returncode, found in done.stderr) == (75, True), done.stderr
    assert not Path(f"{bench.file}.log").exists()


def test_failing_benchmark(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:
    """A failed benchmark is told in its own last words, nothing is written, the GPUs are freed."""
    bench.tell({"fails": "GPU-0,GPU-2"})
    done = launcher.run("topo", "--measure", "-o", str(tmp_path / "machine.toml"))
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.endswith(
        "ended with status 3: Test NCCL failure common.cu:1005 'unhandled system error'\n"
    )
    assert (launcher.records(), (tmp_path / "machine.toml").exists()) == ([], False)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGHUP],
    ids=["int", "hup"],
)
def test_interrupted(launcher: Launcher, bench: Bench, tmp_path: Path, number: int) -> None:
    """A signal ends the benchmark, frees the GPUs, writes nothing, and ends by that signal."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    bench.tell({"waits": "GPU-0,GPU-2", "fifo": str(fifo)})
    with launcher.start("topo", "--measure", "-o", str(tmp_path / "machine.toml")) as process:
        writer = os.open(fifo, os.O_WRONLY)  # returns when the benchmark reads
        process.send_signal(number)
        assert process.wait(20) == -number
        poll = select.poll()
        poll.register(writer, select.POLLERR)
        assert poll.poll(20_000) == [(writer, select.POLLERR)]  # nobody reads any more
        os.close(writer)
    assert (launcher.records(), (tmp_path / "machine.toml").exists()) == ([], False)


def test_figures_of_nothing(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:
    """A benchmark whose links carry nothing has failed, and no unreadable file is written."""
    bench.tell({"otherwise": 0.0})
    done = launcher.run("topo", "--measure", "-o", str(tmp_path / "machine.toml"))
    assert (done.returncode, done.stderr.endswith(" printed no figures\n")) == (125, True)
    assert not (tmp_path / "machine.toml").exists()


def test_other_gpus_by_now(launcher: Launcher, bench: Bench, nvml: "FakeNvml") -> None:  # noqa: ARG001
    """What was measured with other GPUs in this machine does not count."""
    launcher.run("topo", "--measure")
    for gpu in range(4):
        nvml.change(gpu, name="A100", uuid=f"GPU-new-{gpu}")
    done = launcher.run("-o", "bandwidth_model=measured", "--", "true")
    assert (done.returncode, "nothing was measured of" in done.stderr) == (2, True)


def test_all_gpus_together(
    launcher: Launcher, bench: Bench, nvml: "FakeNvml", tmp_path: Path
) -> None:
    """Beyond five GPUs all idle ones are measured together, too."""
    nvml.describe([{"uuid": f"GPU-{i}", "name": "V100", "memory_mib": 16160} for i in range(7)], [])
    bench.tell({"otherwise": 6.0})
    measured(launcher, "-o", str(tmp_path / "machine.toml"))
    assert bench.asked() == ["0,1", "0,1,2", "0,1,2,3", "0,1,2,3,4", "0,1,2,3,4,5,6"]


def test_killed(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:
    """After the launcher is killed, the GPUs are held for as long as the benchmark runs."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    bench.tell({"waits": "GPU-0,GPU-2", "fifo": str(fifo)})
    with launcher.start("topo", "--measure", "-o", str(tmp_path / "machine.toml")) as process:
        writer = os.open(fifo, os.O_WRONLY)
        process.kill()
        process.wait()
        assert launcher.run("--", "true").returncode == 75
        os.close(writer)  # the benchmark goes on, and ends
    assert launcher.run("--wait-timeout", "20s", "--", "echo", "ran").stdout == "ran\n"


def test_what_a_benchmark_leaves_behind(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:
    """Processes that a benchmark leaves running are ended before the next one starts."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    bench.tell({"leaves": "GPU-0,GPU-1", "fifo": str(fifo), "otherwise": 20.0})
    reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    measured(launcher, "-o", str(tmp_path / "machine.toml"))
    os.close(reader)
    with pytest.raises(
        OSError, match="No such device or address"
    ):  # nobody has it open for reading
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)


def test_inside_a_lease(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:
    """Inside a lease, or under a CUDA_VISIBLE_DEVICES, its GPUs are measured."""
    command = (launcher.script, "topo", "--measure", "-o", str(tmp_path / "machine.toml"))
    assert launcher.run("--only", "1,3", "-n", "2", "--", *command).returncode == 0
    launcher.environment["CUDA_VISIBLE_DEVICES"] = "0,2"
    assert launcher.run(*command[1:]).returncode == 0
    assert bench.asked() == ["1,3", "0,2"]


@pytest.mark.usefixtures("bench")
def test_nowhere_to_write(launcher: Launcher, tmp_path: Path) -> None:
    """An unwritable file, or one that the user wrote, is told before anything is measured."""
    done = launcher.run("topo", "--measure", "-o", "/proc/no/machine.toml")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith("gpulaunch: error: /proc/no/machine.toml")
    own = own_file(launcher)
    own.parent.mkdir(parents=True)
    own.write_text('name = "mine"\n')
    done = launcher.run("topo", "--measure")
    assert (done.returncode, done.stderr) == (
        2,
        (
            f"gpulaunch: error: {own} describes this machine, and measuring would replace it\n"
            "gpulaunch: hint: -o names another file\n"
        ),
    )
    assert own.read_text() == 'name = "mine"\n'
    assert not Path(tmp_path, "bandwidths.json.log").exists()


def test_described_machine(launcher: Launcher) -> None:
    """A described machine has nothing to measure."""
    done = launcher.run("topo", "--measure", *DGX)
    assert (done.returncode, done.stderr) == (
        2,
        "gpulaunch: error: --measure is about this machine, but another one is named\n",
    )
    launcher.environment["GPULAUNCH_TOPOLOGY"] = "dgx1-v100"
    done = launcher.run("topo", "--measure")
    assert (
        done.stderr
        == "gpulaunch: error: dgx1-v100 is only described: there is nothing to measure\n"
    )


def test_no_benchmark(launcher: Launcher, bench: Bench, tmp_path: Path) -> None:  # noqa: ARG001
    """Without a benchmark at hand one line says what was looked for."""
    programs = tmp_path / "few"
    programs.mkdir()
    Path(programs, "gpulaunch").symlink_to(launcher.script)
    launcher.environment["PATH"] = str(programs)
    done = launcher.run("topo", "--measure")
    assert (done.returncode, done.stderr) == (
        125,
        (
            "gpulaunch: error: no all-reduce benchmark on PATH: all_reduce_perf\n"
            "gpulaunch: hint: build it from github.com/NVIDIA/nccl-tests\n"
        ),
    )
