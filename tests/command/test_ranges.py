"""Launches that take as many GPUs as are free: `-n 2-4`."""

import json
import subprocess

from conftest import DGX, Launcher, complaint, held

COUNT = ("--", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $GPULAUNCH_GPU_COUNT"')


def test_as_many_as_are_free(launcher: Launcher) -> None:
    """A job gets the most of its range that is free, and learns how many that are."""
    with held(launcher, *DGX, "--only", "0-4", "-n", "5"):
        assert launcher.run(*DGX, "-n", "2-4", *COUNT).stdout == "5,6,7 3\n"
        # One GPU has no links to be asked for.
        narrow = launcher.run(*DGX, "-n", "1-3", "--nvlink", "--only", "5", *COUNT)
        assert narrow.stdout == "5 1\n"


def test_too_few_are_free(launcher: Launcher) -> None:
    """With fewer than the least free it is refused with the numbers, or waits for the least."""
    with held(launcher, *DGX, "-n", "4") as four, held(launcher, *DGX, "-n", "3") as three:
        done = launcher.run(*DGX, "-n", "2-4", *COUNT)
        told = "at least 2 GPUs requested: 1 of 8 is free, 7 are leased"
        assert (done.returncode, done.stdout) == (75, "")
        assert done.stderr.startswith(complaint(told))
        waiting = launcher.start(*DGX, "--wait", "-n", "2-4", *COUNT)
        assert told in waiting.stderr.readline()
        queue = json.loads(launcher.run("status", *DGX, "--json").stdout)["queue"]
        assert [one["gpus"] for one in queue] == [2]
        three.end()
        assert waiting.communicate()[0].rstrip().rpartition(" ")[2] == "4"
        assert four.process.poll() is None


def test_what_is_no_range(launcher: Launcher, tmp_path) -> None:
    """What is no range is refused, and so are ranks of a fixed number."""
    told = "-n: '4-2' is no range of numbers of GPUs such as 2-4"
    done = launcher.run(*DGX, "-n", "4-2", *COUNT)
    assert (done.returncode, done.stderr) == (2, complaint(told))
    (tmp_path / "three.edges").write_text("0 1\n1 2\n")
    done = launcher.run(*DGX, "-n", "2-4", "--pattern", "./three.edges", *COUNT, cwd=tmp_path)
    told = complaint("-n 2-4: pattern three.edges has 3 ranks", "say one number of GPUs")
    assert (done.returncode, done.stderr) == (2, told)


def test_ranges_at_the_same_moment(launcher: Launcher) -> None:
    """Three launches of 1-3 at once, which all choose the same GPUs, get 3, 3 and 2 of eight."""
    script = f"{COUNT[-1]}; read line"
    pipes = {"stdin": subprocess.PIPE}
    crowd = [launcher.start(*DGX, "-n", "1-3", "--", "sh", "-c", script, **pipes) for _ in range(3)]
    got = [one.stdout.readline().split() for one in crowd]
    said = [one.communicate("\n")[1] for one in crowd]
    assert sorted(int(count) for _, count in got) == [2, 3, 3], said
    assert len({index for gpus, _ in got for index in gpus.split(",")}) == 8
