"""`gpulaunch batch` of lines from stdin, and jobs of a file that come after others."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint


class Site:
    """A directory to run batches in."""

    def __init__(self, launcher: Launcher, home: Path) -> None:
        self.launcher, self.home = launcher, home

    def run(self, file: str, *options: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a batch to its end, with a text on stdin; results go to the file r."""
        words = ("batch", "-q", *DGX, "--results", "r", *options, file)
        return self.launcher.run(*words, cwd=self.home, input=text)

    def lines(self) -> list[str]:
        """Return the lines of the results."""
        return (self.home / "r").read_text().splitlines(keepends=True)

    def statuses(self) -> dict[int, int]:
        """Return the exit status of each job's last result."""
        results = [json.loads(line) for line in self.lines()]
        return {one["id"]: one["exit_status"] for one in results if "id" in one}

    def forget(self, number: int) -> None:
        """Remove the results of a job."""
        kept = [line for line in self.lines() if json.loads(line).get("id") != number]
        (self.home / "r").write_text("".join(kept))

    def read(self, name: str) -> str:
        """Return the content of a file that a job wrote."""
        return (self.home / name).read_text()


@pytest.fixture
def site(launcher: Launcher, tmp_path: Path) -> Site:
    return Site(launcher, tmp_path)


def test_each_line_of_stdin_is_a_job(site: Site) -> None:
    """Lines are for sh, with its quotes and pipes; blank ones and comments are no jobs."""
    text = """# sweeps
    \t
  echo 'a  b' "$((1 + 1))" | cat >0
exit 3
   # echo no >no
echo "$CUDA_VISIBLE_DEVICES" >2 # at the end
kill -9 $$
echo a # b >4
printf crlf >5\r
echo last >6"""
    done = site.run("-", "-n", "2", text=text)
    assert (done.returncode, done.stdout, done.stderr) == (1, "a\n", "")
    assert site.statuses() == {0: 0, 1: 3, 2: 0, 3: 137, 4: 0, 5: 0, 6: 0}
    assert (site.read("0"), site.read("5"), site.read("6")) == ("a  b 2\n", "crlf", "last\n")
    assert len(site.read("2").split(",")) == 2
    assert not (site.home / "no").exists()


def test_lines_are_bytes(site: Site) -> None:
    """A line need not be UTF-8."""
    assert site.run("-", text="printf '%s' '\udcff' >name\udcfe\n").returncode == 0
    assert (site.home / os.fsdecode(b"name\xfe")).read_bytes() == b"\xff"


def test_jobs_do_not_read_the_lines_of_others(site: Site) -> None:
    """The lines are read before the first job, whose stdin is empty."""
    assert site.run("-", text="cat >first\necho second >second\n").returncode == 0
    assert (site.read("first"), site.read("second")) == ("", "second\n")


@pytest.mark.parametrize("text", ["", "\n \n", "# nothing\n"])
def test_no_job(site: Site, text: str) -> None:
    """Without a single job it is a mistake, and no results are begun."""
    done = site.run("-", text=text)
    assert (done.returncode, done.stderr) == (
        2,
        complaint("stdin: there is no job in it", "docs/guides/simulate.md has an example"),
    )
    assert not (site.home / "r").exists()


def test_lines_are_resumed(site: Site) -> None:
    """Lines that have ended are not run again, if it is said where their results are."""
    text = "echo a >>ran\necho b >>ran; exit 1\n"
    assert site.run("-", text=text).returncode == 1
    site.forget(1)
    assert site.run("-", "--resume", text=text).returncode == 1
    assert site.read("ran") == "a\nb\nb\n"
    done = site.launcher.run("batch", *DGX, "--resume", "-", input=text)
    assert (done.returncode, done.stderr) == (
        2,
        complaint("--resume: which results? --results FILE names them"),
    )


def test_a_file_of_commands(site: Site) -> None:
    """A file that has lines with commands is refused with the command that reads them."""
    (site.home / "jobs").write_text("python train.py\n")
    done = site.run("jobs")
    assert done.returncode == 2
    assert done.stderr.splitlines()[1] == (
        "gpulaunch: hint: commands, one a line, are read from stdin: gpulaunch batch - <jobs"
    )


def job(name: str, script: str, *after: str) -> str:
    """Return a job in TOML that runs a script for sh, after others if any are given."""
    text = f'[[job]]\nname = "{name}"\ncommand = ["sh", "-c", "{script}"]\n'
    return text + (f"after = {json.dumps(after)}\n" if after else "")


def test_jobs_that_come_after_others(site: Site) -> None:
    """A job begins after the end of others; it is not run if one failed, unless any end will do.

    Those that wait for others hold up none: the last job lets the first one go on.
    """
    os.mkfifo(site.home / "gate")
    jobs = [
        job("a", "read line <gate; echo a >>ran; exit 3"),
        job("b", "echo b >>ran", "a"),
        job("c", "echo c >>ran", "a:any"),
        job("d", "echo d >>ran", "b:any,c:ok", "a:any"),
        job("e", "echo e >>ran", "b"),
        job("g", "echo g >>ran", "d"),
        job("f", "echo go >gate"),
    ]
    (site.home / "jobs.toml").write_text("".join(jobs))
    done = site.run("jobs.toml")
    assert done.returncode == 1, done.stderr
    assert site.statuses() == {0: 3, 1: 125, 2: 0, 3: 0, 4: 125, 5: 0, 6: 0}
    assert site.read("ran") == "a\nc\nd\ng\n"


@pytest.mark.parametrize(("end", "want"), [("exit 0", {0: 0, 1: 0}), ("exit 3", {0: 3, 1: 125})])
def test_a_resumed_job_comes_after_one_of_the_run_before(
    site: Site, end: str, want: dict[int, int]
) -> None:
    """What ended in an earlier run counts for those that come after it."""
    jobs = job("a", f"echo a >>ran; {end}") + job("b", "echo b >>ran", "a")
    (site.home / "jobs.toml").write_text(jobs)
    site.run("jobs.toml")
    assert site.statuses() == want
    site.forget(1)
    site.run("jobs.toml", "--resume")
    assert site.statuses() == want
    assert site.read("ran") == ("a\nb\nb\n" if want[1] == 0 else "a\n")


@pytest.mark.parametrize(
    ("after", "want"),
    [
        ("no", "no job before this one in the file is called 'no'"),
        ("b", "no job before this one in the file is called 'b'"),
        ("c", "no job before this one in the file is called 'c'"),
        ("a:never", "no job before this one in the file is called 'a:never'"),
        (":any", "':any': a name is missing"),
        ("a,", "'a,': a name is missing"),
        ("", "'': a name is missing"),
    ],
)
def test_a_job_after_what_is_not_there(site: Site, after: str, want: str) -> None:
    """A job comes after jobs before it in the file alone, so there is no circle; nothing starts."""
    jobs = job("a", "touch a") + job("b", "touch b", after) + job("c", "touch c")
    (site.home / "jobs.toml").write_text(jobs)
    done = site.run("jobs.toml")
    assert (done.returncode, done.stderr) == (2, complaint(f"jobs.toml:7: after: {want}"))
    assert not (site.home / "a").exists()


def test_results_of_stdin_are_private(site: Site) -> None:
    """Lines may have secrets in them, and nobody was asked where their results go."""
    home = {**site.launcher.environment, "XDG_STATE_HOME": str(site.home / "state-home")}
    done = site.launcher.run("batch", "-q", *DGX, "-", input="TOKEN=secret true", env=home)
    assert done.returncode == 0
    folder = site.home / "state-home" / "gpulaunch" / "batches"
    assert (folder.stat().st_mode & 0o777, len(list(folder.iterdir()))) == (0o700, 1)


def test_a_stdin_that_is_closed(site: Site) -> None:
    """Without stdin there is nothing to run."""
    command = f"exec {site.launcher.script} batch --topology dgx1-v100 - <&-"
    done = subprocess.run(
        ["sh", "-c", command],
        env=site.launcher.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        complaint("stdin is closed, so there are no jobs to read"),
    )
