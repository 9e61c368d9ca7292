"""Tables of this machine: `gpulaunch topo` makes them, and the launches after it go by them."""

import json
import signal
from pathlib import Path
from zlib import crc32

import pytest
from conftest import DGX, Launcher
from fake_nvml import FakeNvml
from values import machine

pytest_plugins = ("fake_nvml",)

THREE = ("-n", "3", "--pattern", "ring", "--sensitive", "--dry-run", "--json", "--", "true")


@pytest.fixture
def runtime(launcher: Launcher) -> Path:
    """Return the directory of the user's caches."""
    path = Path(launcher.environment["XDG_RUNTIME_DIR"])
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def gpus(launcher: Launcher) -> list[int]:
    """Return the GPUs that a sensitive job of three would get."""
    done = launcher.run(*THREE)
    assert (done.returncode, done.stderr) == (0, "")
    return [gpu["index"] for gpu in json.loads(done.stdout)["gpus"]]


def doctored(content: bytes) -> bytes:
    """Return the tables of a DGX-1 whose `cut` says that GPUs 5, 6 and 7 have the most."""
    line, figures = content[4:].split(b"\n", 1)
    assert json.loads(line)["tables"][0] == "cut"
    cut = bytearray(8 << 8)
    cut[8 * 0b111] = 1
    changed = line + b"\n" + cut + figures[len(cut) :]
    return crc32(changed).to_bytes(4, "little") + changed


@pytest.mark.usefixtures("dgx1_v100")
def test_topo_makes_tables_and_launches_read_them(launcher: Launcher, runtime: Path) -> None:
    """A launch makes none, `topo` does once, and what they say is what a launch goes by."""
    tables = runtime / "gpulaunch.tables"
    bare = gpus(launcher)
    assert not tables.exists()
    first = launcher.run("topo")
    assert (first.returncode, first.stderr, tables.stat().st_mode & 0o777) == (0, "", 0o600)
    assert gpus(launcher) == bare != [5, 6, 7]
    content = tables.read_bytes()
    tables.write_bytes(doctored(content))
    assert sorted(gpus(launcher)) == [5, 6, 7]
    assert launcher.run("topo").stdout == first.stdout
    assert sorted(gpus(launcher)) == [5, 6, 7]
    tables.write_bytes(content[:-1])
    assert gpus(launcher) == bare
    launcher.run("topo")
    assert tables.read_bytes() == content
    assert [path.name for path in runtime.glob("gpulaunch.tables*")] == ["gpulaunch.tables"]


@pytest.mark.parametrize("options", [("--json",), ("-o", "-"), DGX], ids=str)
@pytest.mark.usefixtures("dgx1_v100")
def test_topo_with_options_makes_no_tables(
    launcher: Launcher, runtime: Path, options: tuple[str, ...]
) -> None:
    """Only `topo` alone makes tables, and only of this machine."""
    assert launcher.run("topo", *options).returncode == 0
    assert [*runtime.glob("gpulaunch.tables*")] == []


def test_interrupted_topo_leaves_no_tables(
    launcher: Launcher, nvml: FakeNvml, runtime: Path
) -> None:
    """Beyond 8 GPUs the machine is shown, then a line says what takes long; Ctrl-C ends it."""
    nvml.tell_of(machine("torus-2d-16"))
    with launcher.start("topo") as topo:
        said = topo.stderr.readline()
        topo.send_signal(signal.SIGINT)
        shown, _ = topo.communicate()
    want = "making tables of 65,536 sets of GPUs, once per boot, which may take a minute"
    assert said == f"gpulaunch: info: {want}\n"
    assert topo.returncode == -signal.SIGINT
    assert shown.endswith("\nsource: NVML\n")
    assert [*runtime.glob("gpulaunch.tables*")] == []
