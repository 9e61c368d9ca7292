"""`gpulaunch topo`: every form of output, to every kind of place, from every kind of source."""

import json
import stat
import subprocess
from pathlib import Path

import pexpect
import pytest
from conftest import DGX, Launcher, complaint
from toml_parser import tomllib

TEXT = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-3\t0\nGPU1\tNV4\t X \t4-7\t1\n"
SUMMIT = ("--topology", "summit")
DRY = ("--dry-run", "--json", "--", "true")


def topo(launcher: Launcher, *options: str, **more: object) -> tuple[int, str, str]:
    done = launcher.run("topo", *options, **more)
    return done.returncode, done.stdout, done.stderr


# Sources


def test_a_text(launcher: Launcher, tmp_path: Path) -> None:
    """What nvidia-smi printed becomes a machine file of the same machine as the text itself.

    The text may come from a pipe.
    """
    text, machine = tmp_path / "box.txt", tmp_path / "box.toml"
    text.write_text(TEXT)
    assert topo(launcher, "--topology", str(text), "-o", str(machine)) == (0, "", "")
    by_text = json.loads(launcher.run("topo", "--topology", str(text), "--json").stdout)
    by_file = json.loads(launcher.run("topo", "--topology", str(machine), "--json").stdout)
    assert (by_file["name"], by_file["links"]) == ("box", by_text["links"])
    assert [gpu["memory_bytes"] for gpu in by_text["gpus"]] == [None, None]
    assert (by_text["links"][0]["path"], by_text["links"][0]["nvlink_count"]) == ("NVL", 4)
    status, printed, _ = topo(launcher, "--topology", "/dev/stdin", "-o", "-", input=TEXT)
    assert (status, tomllib.loads(printed)["name"]) == (0, "stdin")


GB200 = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    NV18    NV18    SYS     0-71    0,3-9,11-17             2
GPU1    NV18     X      NV18    NV18    SYS     0-71    0,3-9,11-17             10
GPU2    NV18    NV18     X      NV18    SYS     72-143  1,19-25,27-33           18
GPU3    NV18    NV18    NV18     X      SYS     72-143  1,19-25,27-33           26
"""


def test_sockets_of_a_text(launcher: Launcher, tmp_path: Path) -> None:
    """Beside a busy GPU a job gets GPUs of the other socket, on Grace, too.

    How much memory its GPUs have nobody knows, and a request by memory is told so.
    """
    (tmp_path / "box.txt").write_text(GB200)
    on_box = ("--topology", str(tmp_path / "box.txt"))
    hold = ("--only", "0", "--", "sh", "-c", "echo held; read line")
    with launcher.start(*on_box, *hold, stdin=subprocess.PIPE) as job:
        job.stdout.readline()
        for options in ((), ("-o", "numa=strict")):
            done = launcher.run(*on_box, "-n", "2", *options, *DRY)
            assert [gpu["index"] for gpu in json.loads(done.stdout)["gpus"]] == [2, 3]
        job.communicate("")
    done = launcher.run(*on_box, "--memory", "16GiB", "--", "true")
    want = complaint("--memory 16GiB: how much memory the GPUs of box have is not known")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", want)


# Outputs


def test_a_machine_that_is_too_large_to_draw(launcher: Launcher) -> None:
    """What joins 72 GPUs stands in place of their matrix; eight of 36 sockets are named."""
    _, printed, _ = topo(launcher, "--topology", "nvl72")
    lines = printed.splitlines()
    assert lines[1] == "72 GPUs, every two of them joined by NV18 900 GB/s"
    named = [line for line in lines if line.startswith("NUMA")]
    assert named[7:] == ["NUMA 7 (CPUs 504-575): GPUs 14,15"]
    assert lines[lines.index(named[7]) + 1 :][:2] == ["and 28 more sockets", ""]


def test_places_of_output(launcher: Launcher, tmp_path: Path) -> None:
    """A single dash is stdout.

    A place that cannot be written is one line with the path, and nothing is made or left.
    """
    (tmp_path / "file").write_text("old")
    before = sorted(tmp_path.rglob("*"))
    status, printed, errors = topo(launcher, *SUMMIT, "-o", "-", cwd=tmp_path)
    assert (status, printed.startswith("name = "), errors) == (0, True, "")
    for place, words in {
        "no/such/file": "no such file or directory",
        "file/x": "not a directory",
        ".": "is a directory",
        "/dev/full": "no space left on device",
    }.items():
        got = topo(launcher, *SUMMIT, "-o", place, cwd=tmp_path)
        assert got == (125, "", complaint(f"{place}: {words}"))
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
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {file.name, name.name}


def test_options_that_contradict(launcher: Launcher) -> None:
    """Options that do not go together are named."""
    for options, line in {
        ("--json", "--output", "x"): "--json and -o are given: one of them is enough",
        ("--measure", *SUMMIT): "--topology: not allowed with argument --measure",
    }.items():
        status, printed, errors = topo(launcher, *options)
        assert (status, printed, errors.splitlines()[0] + "\n") == (2, "", complaint(line))


@pytest.mark.parametrize(("variable", "coloured"), [("LANG=C.UTF-8", True), ("NO_COLOR=1", False)])
def test_colours(launcher: Launcher, variable: str, coloured: bool) -> None:
    """A terminal gets colours, unless its user wants none."""
    environment = launcher.environment | {"TERM": "xterm"} | dict([variable.split("=")])
    printed = pexpect.run(f"{launcher.script} topo --topology summit", env=environment)
    assert (b"\x1b[3" in printed) == coloured


# What a machine is asked for


def test_ranges_that_are_none(launcher: Launcher) -> None:
    """A range beyond the machine, or backwards, names no GPUs."""
    for only in ("6-9", "7-6", "1-", f"0-{'9' * 5000}"):
        done = launcher.run(*DGX, "--only", only, "--", "true")
        assert done.returncode == 2
        assert "is no GPU of dgx1-v100, which has GPUs 0-7" in done.stderr


def test_model_that_would_speak_to_the_terminal(launcher: Launcher, tmp_path: Path) -> None:
    """Control characters in a machine file's model reach no terminal."""
    path = tmp_path / "odd.toml"
    topo(launcher, *SUMMIT, "-o", str(path))
    path.write_text(path.read_text().replace("Tesla", "\\u001b[2J"))
    done = launcher.run("--topology", str(path), "--explain", "--dry-run", "--", "true")
    assert (done.returncode, "\x1b" in done.stdout + done.stderr) == (0, False)
