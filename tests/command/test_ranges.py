"""Launches that take as many GPUs as are free: `-n 2-4`."""

import json
import subprocess

import pytest
from conftest import DGX, Launcher, complaint, held

COUNT = ("--", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $GPULAUNCH_GPU_COUNT"')


def counted(launcher: Launcher, *options: str) -> tuple[int, str]:
    """Return the number of GPUs of a job, and what GPULAUNCH_GPU_COUNT tells it."""
    gpus, count = launcher.run(*DGX, *options, *COUNT).stdout.rstrip("\n").split(" ")
    return len(gpus.split(",")), count


@pytest.mark.parametrize(("busy", "want"), [(0, 4), (4, 4), (5, 3), (6, 2)])
def test_as_many_as_are_free(launcher: Launcher, busy: int, want: int) -> None:
    """A job gets the most of its range that is free, and learns how many that are."""
    if busy == 0:
        assert counted(launcher, "-n", "2-4") == (want, str(want))
        return
    with held(launcher, *DGX, "-n", str(busy)):
        assert counted(launcher, "-n", "2-4") == (want, str(want))


@pytest.mark.parametrize(("options", "want"), [(("2-2",), 2), (("1-1",), 1)])
def test_a_range_of_one_number(launcher: Launcher, options: tuple[str, ...], want: int) -> None:
    """A job learns its number however narrow the range is, so that scripts can rely on it."""
    assert counted(launcher, "-n", *options) == (want, str(want))


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
        assert waiting.communicate(timeout=30)[0].rstrip().rpartition(" ")[2] == "4"
        assert four.process.poll() is None


REFUSED = [
    (("-n", "9-12"), "at least 9 GPUs requested: dgx1-v100 has 8", None),
    (("-n", "4-2"), "-n: '4-2' is no range of numbers of GPUs such as 2-4", None),
    (("-n", "0-2"), "-n: 0 GPUs requested: at least 1 is needed", None),
    (("-n", "2-4-6"), "-n: '2-4-6' is neither a number of GPUs nor 'all'", None),
    (
        ("-n", "2-4", "--pattern", "./three.edges"),
        "-n 2-4: pattern three.edges has 3 ranks",
        "say one number of GPUs",
    ),
]


@pytest.mark.parametrize(("options", "message", "hint"), REFUSED)
def test_what_can_never_be(
    launcher: Launcher, tmp_path, options: tuple[str, ...], message: str, hint: str | None
) -> None:
    """A range beyond the machine, one that is none, and ranks of a fixed number are refused."""
    (tmp_path / "three.edges").write_text("0 1\n1 2\n")
    done = launcher.run(*DGX, *options, *COUNT, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, complaint(message, hint))


def test_a_range_over_the_machine_is_cut(launcher: Launcher) -> None:
    """Of 7-12 on a machine of 8 the preview grants 8, and of 4-4 it grants 4."""
    for text, want in (("7-12", 8), ("4-4", 4)):
        shown = launcher.run(*DGX, "-n", text, "--dry-run", "--json", "--", "x").stdout
        assert len(json.loads(shown)["gpus"]) == want


def test_a_range_and_what_else_narrows_the_choice(launcher: Launcher) -> None:
    """One GPU has no links to be asked for."""
    assert counted(launcher, "-n", "1-3", "--nvlink", "--only", "0") == (1, "1")
    with held(launcher, *DGX, "--only", "2-7", "-n", "6"):
        assert counted(launcher, "-n", "1-2", "--policy", "topo-aware") == (2, "2")


def test_every_job_is_told_its_number(launcher: Launcher) -> None:
    """A job finds its own number of GPUs: without a range, shared, and inside another job."""
    assert counted(launcher, "-n", "2") == (2, "2")
    assert counted(launcher, "--share=1/2", "--memory", "1GiB") == (1, "1")
    assert counted(launcher) == (1, "1")
    inner = "gpulaunch -n 1 -- printenv GPULAUNCH_GPU_COUNT"
    assert launcher.run(*DGX, "-n", "2-3", "--", "sh", "-c", inner).stdout == "1\n"


def test_ranges_at_the_same_moment(launcher: Launcher) -> None:
    """Three launches of 1-3 at once, which all choose the same GPUs, get 3, 3 and 2 of eight."""
    script = 'echo "$CUDA_VISIBLE_DEVICES $GPULAUNCH_GPU_COUNT"; read line'
    pipes = {"stdin": subprocess.PIPE}
    crowd = [launcher.start(*DGX, "-n", "1-3", "--", "sh", "-c", script, **pipes) for _ in range(3)]
    got = [one.stdout.readline().split() for one in crowd]
    said = [one.communicate("\n", timeout=60)[1] for one in crowd]
    assert sorted(int(count) for _, count in got) == [2, 3, 3], said
    assert len({index for gpus, _ in got for index in gpus.split(",")}) == 8
