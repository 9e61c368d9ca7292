"""gpulaunch as the prefix of steps: of scripts, GNU parallel and Snakemake."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import SCRIPT, Launcher
from gate import HOLD, Gate

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "workflows.md").read_text()
SNAKEMAKE = os.environ.get("GPULAUNCH_TEST_SNAKEMAKE", "")
JOBS = 6


class Workplace:
    """A directory on a machine of two GPUs, with jobs that hold theirs until a gate opens."""

    def __init__(self, launcher: Launcher, directory: Path) -> None:
        self.launcher, self.directory = launcher, directory
        launcher.environment["GPULAUNCH_TOPOLOGY"] = "rtx-a6000-2"
        (directory / "hold.sh").write_text(HOLD)
        (directory / "train.py").write_text(
            'import os, subprocess\nsubprocess.run(["sh", "hold.sh"], check=True)\n'
            'print(os.environ["CUDA_VISIBLE_DEVICES"])\n'
        )
        self.gate = Gate(directory)

    def start(self, *command: str) -> "subprocess.Popen[str]":
        """Start a command there."""
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.launcher.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str) -> str:
        """Run a command there, let both GPUs be held at once on the way, and return its output."""
        with self.start(*command) as process:
            self.gate.open_at(2)
            output = process.communicate()[0]
        assert process.returncode == 0, output
        assert (self.gate.held(), self.launcher.records()) == (0, [])
        return output


@pytest.fixture
def place(launcher: Launcher, tmp_path: Path) -> Workplace:
    """Return a workplace whose gate is closed."""
    return Workplace(launcher, tmp_path)


def shell(place: Workplace, script: str) -> tuple[int, str]:
    """Run a script by bash; return its exit status and its output."""
    with place.start("bash", "-c", script) as process:
        output = process.communicate()[0]
    return process.returncode, output


def block(language: str, has: str) -> str:
    """Return the block of the page that contains a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = (text for text in blocks if has in text)
    return found


def test_a_program_as_lease_command(place: Workplace) -> None:
    """The page's gpu-lease takes a project's name, and scripts inside see that it holds a lease."""
    program = place.directory / "gpu-lease"
    program.write_text(block("bash", "GPU_LEASE_HELD"))
    program.chmod(0o755)
    inside = "gpulaunch status | grep -o my-project | uniq; kill -0 ${GPU_LEASE_HELD##*:}; exit 4"
    done = shell(place, f"./gpu-lease --project my-project -- sh -c '{inside}'")
    assert done == (4, "my-project\n")


def test_in_place_of_gpu_lock_exec(place: Workplace) -> None:
    """The page's function and its file take what gpu_lock_exec.py takes."""
    (place.directory / "gpu_lock_exec.py").write_text(block("python", "--count"))
    show = "--count 2 -- sh -c 'echo $CUDA_VISIBLE_DEVICES \"$1\"; exit 5' sh 'a  b'"
    function = block("sh", "gpu_lock_exec()").splitlines()[0]
    assert shell(place, f"{function}\ngpu_lock_exec {show}") == (5, "0,1 a  b\n")
    assert shell(place, f"python3 gpu_lock_exec.py {show}") == (5, "0,1 a  b\n")


@pytest.mark.skipif(not shutil.which("parallel"), reason="needs GNU parallel")
def test_more_steps_than_gpus(place: Workplace) -> None:
    """Six steps at once on two GPUs take turns: no GPU is had twice, and each step has one."""
    steps = ("parallel", "-j", f"{JOBS}", "gpulaunch --wait -- python3 train.py", ":::")
    output = place.run(*steps, *map(str, range(JOBS)))
    shown = re.findall(r"^[01]$", output, re.MULTILINE)
    assert (len(shown), set(shown)) == (JOBS, {"0", "1"})


@pytest.mark.skipif(not SNAKEMAKE, reason="needs GPULAUNCH_TEST_SNAKEMAKE, Snakemake's programs")
def test_snakemake(place: Workplace) -> None:
    """With -j 8 on two GPUs the example's steps take turns, and the last one has both."""
    place.launcher.environment["PATH"] = f"{SCRIPT.parent}:{SNAKEMAKE}:{os.environ['PATH']}"
    shutil.copy(ROOT / "examples" / "Snakefile", place.directory)
    place.run("snakemake", "-j", "8")
    trained = [path.read_text() for path in sorted(place.directory.glob("seed-*.txt"))]
    assert (len(trained), set(trained)) == (JOBS, {"0\n", "1\n"})
    assert (place.directory / "final.txt").read_text() == "0,1\n"


@pytest.mark.skipif(not SNAKEMAKE, reason="needs GPULAUNCH_TEST_SNAKEMAKE, Snakemake's programs")
def test_a_prefix_for_all_rules_of_snakemake(place: Workplace) -> None:
    """The page's shell.prefix puts the launch before each rule's command."""
    place.launcher.environment["PATH"] = f"{SCRIPT.parent}:{SNAKEMAKE}:{os.environ['PATH']}"
    rule = "rule all:\n    output: 'gpu'\n    shell: 'printenv CUDA_VISIBLE_DEVICES >{output}'\n"
    (place.directory / "Snakefile").write_text(block("python", "shell.prefix") + rule)
    with place.start("snakemake", "-j", "1") as process:
        output = process.communicate()[0]
    assert process.returncode == 0, output
    assert (place.directory / "gpu").read_text() in ("0\n", "1\n")
