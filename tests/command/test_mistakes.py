"""Mistakes that new users made, and what is said of them."""

import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint, held

D = " ".join(DGX)
SEE = "see 'gpulaunch help launch'"
DASHES = "to run a program, write -- before it: "
POLICIES = (
    "known are baseline, best-effort, best-fit, greedy, preserve, preserve-paper, "
    "topo-aware, topo-aware-drb, topo-aware-p"
)

MISTAKES = [  # line, message, hint
    ("gpulaunch stauts", "unknown command 'stauts': did you mean status?", None),
    ("gpulaunch ls", "unknown command 'ls': did you mean status?", DASHES + "gpulaunch -- ls"),
    ("gpulaunch kill", "unknown command 'kill': did you mean free?", DASHES + "gpulaunch -- kill"),
    ("gpulaunch hold", "unknown command 'hold': did you mean reserve?", None),
    (
        "gpulaunch help stauts",
        "unknown command 'stauts': did you mean status?",
        "see 'gpulaunch --help'",
    ),
    (
        "gpulaunch train.py --epochs 3",
        "unknown command 'train.py'",
        DASHES + "gpulaunch -- python3 train.py --epochs 3",
    ),
    (
        "gpulaunch -n2 python3 -c 'import os;print(1)'",
        "unknown command 'python3'",
        DASHES + "gpulaunch -n2 -- python3 -c 'import os;print(1)'",
    ),
    (
        "gpulaunch -n2 sh -c 'echo $1' -- me",
        "unknown command 'sh'",
        DASHES + "gpulaunch -n2 -- sh -c 'echo $1' -- me",
    ),
    (
        "gpulaunch 'echo hello'",
        "unknown command 'echo hello'",
        DASHES + "gpulaunch -- sh -c 'echo hello'",
    ),
    (
        f"gpulaunch {D} -- 'echo hello'",
        "echo hello: no such file or directory",
        "it is one word, blanks and all: leave out its quotes, or write sh -c 'echo hello'",
    ),
    ("gpulaunch --wiat -- x", "unknown option --wiat: did you mean --wait?", SEE),
    ("gpulaunch --gpu 2 -- x", "unknown option --gpu: did you mean --gpus or --gpu-model?", SEE),
    (
        "gpulaunch setup --nvidia-docker=/x",
        "--nvidia-docker/--no-nvidia-docker takes no value, but '/x' is given",
        "see 'gpulaunch setup --help'",
    ),
    (
        "gpulaunch free --all",
        "unknown option --all: did you mean --mine, for all that are yours?",
        "see 'gpulaunch free --help'",
    ),
    (
        f"gpulaunch {D} --profile VGG16 -- x",
        "unknown profile 'VGG16': did you mean vgg16?",
        "'gpulaunch profile list' lists them",
    ),
    (
        f"gpulaunch {D} --policy preserv -- x",
        "--policy: unknown policy 'preserv': did you mean preserve or preserve-paper?",
        POLICIES,
    ),
    (
        f"gpulaunch {D} -o queue=fifi -- x",
        "-o queue: unknown queue 'fifi': did you mean fifo?",
        "known are backfill, fifo",
    ),
    (
        f"gpulaunch profile measure {D} -o f -- x",
        "dgx1-v100 is only described: there is nothing to measure",
        "leave out --topology",
    ),
]


def typed(launcher: Launcher, line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as a shell does in which it was typed."""
    return subprocess.run(
        ["/bin/sh", "-c", line],
        env=launcher.environment,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    MISTAKES,
    ids=[line for line, *_ in MISTAKES],
)
def test_what_is_said_of_a_mistake(
    line: str, message: str, hint: str | None, launcher: Launcher, tmp_path: Path
) -> None:
    """A mistake is answered by what was probably meant, and by a hint that can be pasted."""
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = typed(launcher, line, tmp_path)
    assert (done.stdout, done.stderr) == ("", complaint(message, hint))
    assert done.returncode == (127 if "no such file" in message else 2)


def test_an_unknown_topology_has_its_neighbours(launcher: Launcher) -> None:
    """The beginning of names is answered by these names."""
    done = launcher.run("--topology", "dgx1", "--", "x")
    want = "unknown topology 'dgx1': did you mean dgx1-p100 or dgx1-v100?"
    assert done.stderr.startswith(complaint(want))
    assert done.returncode == 2


HINTS = [hint.partition(DASHES)[2] for *_, hint in MISTAKES if hint and hint.startswith(DASHES)]


@pytest.mark.parametrize("line", [line for line in HINTS if "ls" in line or "'" in line])
def test_hints_can_be_pasted(line: str, launcher: Launcher, tmp_path: Path) -> None:
    """The line of a hint runs what was meant to run."""
    launcher.environment["GPULAUNCH_TOPOLOGY"] = "dgx1-v100"
    done = typed(launcher, line, tmp_path)
    alone = typed(launcher, shlex.join(shlex.split(line.partition(" -- ")[2])), tmp_path)
    assert (done.returncode, done.stdout) == (0, alone.stdout)


def test_a_wrong_setting_has_its_neighbour(launcher: Launcher) -> None:
    """An unknown key in config.toml is answered by the nearest, or by how to list them."""
    config = Path(launcher.environment["XDG_CONFIG_HOME"], "gpulaunch", "config.toml")
    config.parent.mkdir(parents=True)
    for key, meant in (
        ("polices", "did you mean policy?"),
        ("xyzzy", "'gpulaunch help settings' lists them"),
    ):
        config.write_text(f"{key} = 3\n")
        want = complaint(f"{config}:1: unknown setting '{key}': {meant}")
        assert launcher.run(*DGX, "--", "x").stderr == want


def test_a_refused_launch_is_told_who_has_the_gpus(launcher: Launcher) -> None:
    """Status 75 says who holds the GPUs, and how long, as a waiting launch does."""
    with held(launcher, *DGX, "-n", "8", "--name", "long") as job:
        done = launcher.run(*DGX, "--", "x")
    lease = [line for line in done.stderr.splitlines() if "long" in line]
    assert done.returncode == 75
    assert len(lease) == 1, done.stderr
    assert job.gpus


def test_nothing_is_said_twice(launcher: Launcher) -> None:
    """--dry-run --explain says policy, pattern and what is assumed once."""
    shown = launcher.run(*DGX, "-n", "3", "--dry-run", "--explain", "--", "x").stdout
    for text in ("policy preserve", "pattern all-to-all", "assumed:", "rank order 0,2,3"):
        assert shown.count(text) == 1, text


def test_a_relative_home(launcher: Launcher, tmp_path: Path) -> None:
    """A HOME that is no absolute path stops no launch."""
    launcher.environment["HOME"] = "home"
    done = launcher.run(*DGX, "-n", "1", "--", "true", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
