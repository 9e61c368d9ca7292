"""Profiles on the command line: launches with a base or a variant, `profile list` and `show`."""

import json
import os
from pathlib import Path

import pexpect
from conftest import DGX, SCRIPT, Launcher
from test_profiles import SHIPPED

from gpulaunch.profiles.catalog import load_profile, profile_names


def test_a_pipe_is_read_only_where_somebody_writes(launcher: Launcher, tmp_path: Path) -> None:
    """A named pipe is refused at once, by show and launch; a pipe from the shell is read."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    want = f"gpulaunch: error: {path}: it is a named pipe, and a file is wanted\n"
    launch = (*DGX, "--dry-run", "-p", str(path), "--", "true")
    for line in (("profile", "show", str(path)), launch):
        done = launcher.run(*line)
        assert (done.returncode, done.stderr) == (2, want)
    end, out = os.pipe()
    os.write(out, b'name = "piped"\n')
    os.close(out)
    assert load_profile(f"/dev/fd/{end}").name == "piped"
    os.close(end)


def test_job_file_profiles_have_bases(launcher: Launcher, tmp_path: Path) -> None:
    """A profile within a file of jobs may stand on another."""
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[profile.mine]\nbase = "kripke-4x"\ngpus = 2\n[[job]]\nprofile = "mine"\narrival_s = 0\n',
        encoding="utf-8",
    )
    simulate = ("simulate", "--topology", "dgx1-v100", "--jobs", str(path))
    done = launcher.run(*simulate, "--policy", "preserve", "--json")
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["runs"][0]["jobs"]
    assert (len(job["gpus"]), job["ended_s"]) == (2, 84.1)
    path.write_text(path.read_text().replace("kripke-4x", "nobody"))
    done = launcher.run(*simulate)
    assert f"{path}:2: base: unknown profile 'nobody'" in done.stderr


def test_measured_edges_are_the_pattern(launcher: Launcher, tmp_path: Path) -> None:
    """A profile's graph is the pattern of as many GPUs; for other numbers it is all to all."""
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "job"\n[communication]\nedges = [[0, 1, 9], [1, 2, 1.5]]\nsource = "counted"'
    )
    for options, want in (
        ((), "pattern job,"),
        (("-n", "3"), "pattern job,"),
        (("-n", "2"), "pattern all-to-all,"),
        (("-n", "3", "--pattern", "ring"), "pattern ring,"),
    ):
        line = ("--topology", "dgx1-v100", "-p", str(path), *options, "--explain", "--dry-run")
        done = launcher.run(*line, "--", "true")
        assert (done.returncode, want in done.stdout) == (0, True), (options, done.stdout)


def test_list_to_a_pipe(launcher: Launcher) -> None:
    """To a pipe it prints without a control code, and breaks no line; to an ASCII one in ASCII."""
    launcher.environment["PYTHONIOENCODING"] = "ascii"
    done = launcher.run("profile", "list")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[1]) == (0, "", "-" * 80)
    assert [line for line in lines if not line.isprintable() or not line.isascii()] == []
    assert ("\\u" in done.stdout, max(map(len, lines)) > 80) == (False, True)


def test_bold(launcher: Launcher) -> None:
    """A terminal gets bold headings, unless TERM is dumb."""
    for term, is_bold in (("xterm-256color", True), ("dumb", False)):
        environment = launcher.environment | {"TERM": term}
        child = pexpect.spawn(str(SCRIPT), ["profile", "list"], env=environment)
        shown = child.read().decode()
        child.close()
        assert (child.exitstatus, "\x1b[1m" in shown) == (0, is_bold)


def test_file_and_name_that_differ(launcher: Launcher, tmp_path: Path) -> None:
    """The list has what can be asked for; a folder is none."""
    own = tmp_path / "gpulaunch" / "profiles"
    (own / "dir.toml").mkdir(parents=True)
    (own / "wrongname.toml").write_text('name = "other"\n[variants.a]\ngpus = 2')
    launcher.environment["XDG_CONFIG_HOME"] = str(tmp_path)
    listed = launcher.run("profile", "list", "--json")
    names = {one["name"]: one["variants"] for one in json.loads(listed.stdout)}
    assert (listed.stderr, names["wrongname"]) == ("", ["wrongname@a"])
    assert not {"other", "dir"} & set(names)


def test_everything_that_is_shipped_can_be_read() -> None:
    """Every shipped profile can be read, with each of its variants and sizes."""
    assert len(SHIPPED) == len(profile_names())
    for path in SHIPPED:
        profile = load_profile(str(path))
        names = [load_profile(f"{path}@{variant}").name for variant in profile.variants]
        assert names == [f"{profile.name}@{variant}" for variant in profile.variants]
