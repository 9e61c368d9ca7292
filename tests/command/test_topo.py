"""`gpulaunch topo`: every form of output, to every kind of place, from every kind of source."""

import json
import stat
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pexpect
import pytest
from conftest import DGX, Launcher, complaint

from gpulaunch.files.toml import tomllib

TEXT = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-3\t0\nGPU1\tNV4\t X \t4-7\t1\n"
SUMMIT = ("--topology", "summit")


def topo(launcher: Launcher, *options: str, **more: object) -> tuple[int, str, str]:
    done = launcher.run("topo", *options, **more)
    return done.returncode, done.stdout, done.stderr


# Sources


def test_import(launcher: Launcher, tmp_path: Path) -> None:
    """What nvidia-smi printed becomes a machine file of the same machine as the text itself."""
    text, machine = tmp_path / "box.txt", tmp_path / "box.toml"
    text.write_text(TEXT)
    assert topo(launcher, "--import", str(text), "-o", str(machine)) == (0, "", "")
    by_text = json.loads(launcher.run("topo", "--topology", str(text), "--json").stdout)
    by_file = json.loads(launcher.run("topo", "--topology", str(machine), "--json").stdout)
    assert by_file == by_text
    assert [gpu["memory_bytes"] for gpu in by_text["gpus"]] == [None, None]
    assert (by_text["links"][0]["path"], by_text["links"][0]["nvlink_count"]) == ("NVL", 4)


def test_import_of_stdin(launcher: Launcher, tmp_path: Path) -> None:
    """The text may come from a pipe, and the machine is then called as its file."""
    machine = tmp_path / "their-box.toml"
    assert topo(launcher, "--import", "-", "-o", str(machine), input=TEXT) == (0, "", "")
    assert tomllib.loads(machine.read_text())["name"] == "their-box"
    status, printed, _ = topo(launcher, "--import", "-", input=TEXT)
    assert (status, tomllib.loads(printed)["name"]) == (0, "stdin")


def test_import_of_something_else(launcher: Launcher) -> None:
    """A text without a matrix is told so, with what would do, and not taken for TOML."""
    text = "NVIDIA-SMI has failed because it could not communicate with the driver.\n"
    hint = "save what 'nvidia-smi topo -m' prints on that machine"
    line = "/dev/stdin:1: no line of column names such as 'GPU0 GPU1 CPU Affinity', so no matrix"
    assert topo(launcher, "--import", "-", input=text) == (2, "", complaint(line, hint))


def test_name_that_is_a_file_here(launcher: Launcher, tmp_path: Path) -> None:
    """A file in the current directory is not taken for a name; the hint says how to write it."""
    (tmp_path / "saved").write_text(TEXT)
    status, _, errors = topo(launcher, "--topology", "saved", cwd=tmp_path)
    assert (status, errors.endswith("or give ./saved\n")) == (2, True)


def test_own_machine(launcher: Launcher) -> None:
    """A machine of the user's own is known by name."""
    own = Path(launcher.environment["XDG_CONFIG_HOME"], "gpulaunch", "machines", "mine.toml")
    own.parent.mkdir(parents=True)
    assert topo(launcher, *SUMMIT, "-o", str(own))[0] == 0
    assert topo(launcher, "--topology", "mine")[1] == topo(launcher, *SUMMIT)[1]


# Outputs


def test_svg(launcher: Launcher, tmp_path: Path) -> None:
    """--svg draws the machine, with the GPUs that are leased."""
    picture = tmp_path / "dgx1.svg"
    with launcher.start(
        *DGX, "--only", "2", "--", "sh", "-c", "echo held; read line", stdin=subprocess.PIPE
    ) as job:
        job.stdout.readline()
        assert topo(launcher, *DGX, "--svg", str(picture)) == (0, "", "")
        job.communicate("")
    classes = [
        group.get("class", "") for group in ET.parse(picture).iter("{http://www.w3.org/2000/svg}g")
    ]
    assert ([c for c in classes if "leased" in c], len([c for c in classes if "free" in c])) == (
        ["gpu leased"],
        7,
    )


@pytest.mark.parametrize(("option", "begin"), [("--svg", "<svg"), ("-o", "name = ")])
def test_output_to_stdout(launcher: Launcher, tmp_path: Path, option: str, begin: str) -> None:
    """A single dash is stdout."""
    status, printed, errors = topo(launcher, *SUMMIT, option, "-", cwd=tmp_path)
    assert (status, printed.startswith(begin), errors, list(tmp_path.glob("-"))) == (
        0,
        True,
        "",
        [],
    )


@pytest.mark.parametrize("option", ["--svg", "-o"])
@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("no/such/file", "no such file or directory"),
        ("file/x", "not a directory"),
        (".", "is a directory"),
        ("/dev/full", "no space left on device"),
    ],
)
def test_places_that_take_nothing(
    launcher: Launcher, tmp_path: Path, option: str, place: str, words: str
) -> None:
    """A place that cannot be written is one line with the path, and nothing is made or left."""
    (tmp_path / "file").write_text("old")
    before = sorted(tmp_path.rglob("*"))
    assert topo(launcher, *SUMMIT, option, place, cwd=tmp_path) == (
        125,
        "",
        complaint(f"{place}: {words}"),
    )
    assert (sorted(tmp_path.rglob("*")), (tmp_path / "file").read_text()) == (before, "old")


def test_file_that_is_there(launcher: Launcher, tmp_path: Path) -> None:
    """A file is replaced whole; it keeps its permissions, and a symbolic link to it stays one."""
    file, name = tmp_path / "machine.toml", tmp_path / "link.toml"
    file.write_text("old")
    file.chmod(0o640)
    name.symlink_to(file)
    assert topo(launcher, *SUMMIT, "-o", str(name)) == (0, "", "")
    assert (name.is_symlink(), file.read_text().startswith('name = "summit"')) == (True, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "link.toml",
        "machine.toml",
    ]


def test_measurements_are_kept(launcher: Launcher, tmp_path: Path) -> None:
    """A machine file that is written from another one has what was measured."""
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    topo(launcher, *SUMMIT, "-o", str(first))
    first.write_text(
        first.read_text() + '\n[[measured]]\nring = ["NV2 50"]\nall_reduce_gb_per_s = 41.5\n'
    )
    topo(launcher, "--topology", str(first), "-o", str(second))
    run = ("-o", "bandwidth_model=measured", "-n", "2", "--dry-run", "--json", "--", "true")
    scores = json.loads(launcher.run("--topology", str(second), *run).stdout)["scores"]
    assert scores["effective_bandwidth_gb_per_s"] == 41.5


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--json", "--svg", "x"), "--json and --svg are given: one of them is enough"),
        (("-o", "x", "--svg", "y"), "--svg and -o are given: one of them is enough"),
        (("--import", "x", *SUMMIT), "--import and --topology are given: each names the machine"),
        (("--measure", *SUMMIT), "--measure is about this machine, but another one is named"),
        (("-o", ""), "--output has an empty value"),
        (("--svg", ""), "--svg has an empty value"),
        (("--import", ""), "--import has an empty value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_that_contradict(launcher: Launcher, options: tuple[str, ...], line: str) -> None:
    """Options that do not go together are named."""
    assert topo(launcher, *options) == (2, "", complaint(line))


@pytest.mark.parametrize(
    ("variable", "coloured"),
    [(("LANG", "C.UTF-8"), True), (("NO_COLOR", "1"), False), (("TERM", "dumb"), False)],
)
def test_colours(launcher: Launcher, variable: tuple[str, str], coloured: bool) -> None:
    """A terminal gets colours, unless it or its user wants none."""
    environment = launcher.environment | {"TERM": "xterm", variable[0]: variable[1]}
    printed = pexpect.run(f"{launcher.script} topo --topology summit", env=environment)
    assert (b"\x1b[" in printed) == coloured


# What a machine is asked for


@pytest.mark.parametrize(("only", "want"), [("4-6", "4-6"), ("0,6-7", "0,6-7"), ("03", "3")])
def test_ranges(launcher: Launcher, only: str, want: str) -> None:
    """--only takes the ranges that status prints."""
    done = launcher.run(*DGX, "--only", only, "-n", "all", "--dry-run", "--json", "--", "true")
    indices = sorted(gpu["index"] for gpu in json.loads(done.stdout)["gpus"])
    first, _, rest = want.partition(",")
    wanted = [int(first)] if rest else []
    low, _, high = (rest or want).partition("-")
    assert indices == [*wanted, *range(int(low), int(high or low) + 1)]


@pytest.mark.parametrize(
    "only", ["6-9", "7-6", "1-", "0-99999999999", "9" * 5000, f"0-{'9' * 5000}"]
)
def test_ranges_that_are_none(launcher: Launcher, only: str) -> None:
    """A range beyond the machine, or backwards, names no GPUs."""
    done = launcher.run(*DGX, "--only", only, "--", "true")
    assert (done.returncode, "is no GPU of dgx1-v100, which has GPUs 0-7" in done.stderr) == (
        2,
        True,
    )


def test_model_that_would_speak_to_the_terminal(launcher: Launcher, tmp_path: Path) -> None:
    """Control characters in a machine file's model reach no terminal."""
    path = tmp_path / "odd.toml"
    topo(launcher, *SUMMIT, "-o", str(path))
    path.write_text(path.read_text().replace("Tesla", "\\u001b[2J"))
    for command in (("--dry-run", "--", "true"), ("--explain", "--dry-run", "--", "true")):
        done = launcher.run("--topology", str(path), *command)
        assert (done.returncode, "\x1b" in done.stdout + done.stderr) == (0, False)


def test_memory_that_nobody_knows(launcher: Launcher, tmp_path: Path) -> None:
    """On a machine whose memory is not known, a request by memory is told so."""
    (tmp_path / "box.txt").write_text(TEXT)
    done = launcher.run("--topology", str(tmp_path / "box.txt"), "--memory", "16GiB", "--", "true")
    want = complaint("--memory 16GiB: how much memory the GPUs of box have is not known")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", want)


def test_line_of_a_mistake_in_a_long_file(launcher: Launcher, tmp_path: Path) -> None:
    """The line of a mistake is found behind values of many lines, and before as many."""
    links = "".join(f"    [{a}, {b}, 1],\n" for a in range(40) for b in range(a + 1, 40))
    text = (
        'name = "x"\nsource = "y"\n\n[gpus]\ncount = 40\nmodel = "m"\n\n[nvlink]\nversion = '
        f"3\nlinks = [\n{links}]\n"
    )
    text += "\n[pcie]\ngeneration = 4\nwidth = 16\n" + "# a = b\n" * 100
    path = tmp_path / "big.toml"
    path.write_text(
        text
        + "\n[[numa]]\ngpus = [1]\n\n[[numa]]\nnode = 1\ngpus = [\n 2,\n 1,\n]\n"
        + "# c = d\n" * 500
    )
    line = path.read_text().split("\n").index("node = 1") + 2
    assert topo(launcher, "--topology", str(path)) == (
        2,
        "",
        complaint(f"{path}:{line}: GPU 1 is in two NUMA nodes"),
    )
