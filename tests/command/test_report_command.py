"""`simulate --report` and its progress, as commands: what they write where, and what they say."""

import json
import os
import re
from pathlib import Path

import pexpect
import pytest
from conftest import Launcher

from gpulaunch.show.report import INDEX
from gpulaunch.simulate.simulator import generated_trace


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    """Return a command line that replays 10 jobs."""
    path = tmp_path / "jobs.toml"
    path.write_text(generated_trace("uniform", 1, 10))
    return [
        "simulate",
        "--topology",
        "dgx1-v100",
        "--jobs",
        str(path),
        "--policy",
        "baseline,preserve",
    ]


def test_report(launcher: Launcher, trace, tmp_path: Path) -> None:
    """--report DIR makes DIR, writes the page and its pictures, and names it below the tables.

    The same replays make the same bytes: on another day, in another process, whatever matplotlib's
    user likes.
    """
    style = tmp_path / "style"
    style.mkdir()
    (style / "matplotlibrc").write_text(
        "figure.facecolor: red\nfont.size: 30\nsvg.fonttype: path\naxes.grid: True\n"
    )
    others = {
        "PYTHONHASHSEED": "7",
        "MPLCONFIGDIR": str(style),
        "SOURCE_DATE_EPOCH": "1",
        "TZ": "Asia/Tokyo",
    }
    place, again = tmp_path / "new" / "report", tmp_path / "again"
    plain = launcher.run(*trace)
    done = launcher.run(*trace, "--report", str(place), umask=0o022)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{plain.stdout}\nthe report: {place}/index.html\n"
    names = sorted(os.listdir(place))
    assert names == ["bandwidth.svg", INDEX, "timeline.svg", "wait.svg"]
    assert {(place / name).stat().st_mode & 0o777 for name in names} == {0o644}
    done = launcher.run(*trace, "--json", "--report", str(again), env=launcher.environment | others)
    assert (done.returncode, done.stderr, json.loads(done.stdout)["runs"][0]["policy"]) == (
        0,
        "",
        "baseline",
    )
    assert sorted(os.listdir(again)) == names
    assert [
        name for name in names if (place / name).read_bytes() != (again / name).read_bytes()
    ] == []


def test_without_matplotlib(launcher: Launcher, trace, tmp_path: Path) -> None:
    """Without matplotlib --report says what to install before the run; all else works."""
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "matplotlib.py").write_text(
        'raise ModuleNotFoundError("No module named \'matplotlib\'", name="matplotlib")\n'
    )
    environment = launcher.environment | {"PYTHONPATH": str(tmp_path / "block")}
    done = launcher.run(*trace, "--report", str(tmp_path / "report"), env=environment)
    assert (done.returncode, done.stdout) == (125, "")
    assert re.fullmatch(
        "gpulaunch: error: a report needs matplotlib: No module named 'matplotlib'\n"
        r"gpulaunch: hint: /.*/python[\d.]* -m pip install 'matplotlib>=3\.10'\n",
        done.stderr,
    )
    assert not (tmp_path / "report").exists()
    assert launcher.run(*trace, env=environment).returncode == 0


def test_without_a_home(launcher: Launcher, trace, tmp_path: Path) -> None:
    """Where matplotlib can keep nothing the report is made silently, and nothing is left."""
    (tmp_path / "temporary").mkdir()
    nowhere = {
        "HOME": "/proc/none",
        "MPLCONFIGDIR": "/proc/none",
        "TMPDIR": str(tmp_path / "temporary"),
    }
    done = launcher.run(
        *trace, "--report", str(tmp_path / "report"), env=launcher.environment | nowhere
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report" / INDEX).exists()
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("{tmp}/file", "not a directory"),
        ("{tmp}/file/report", "not a directory"),
        ("/proc/report", "no such file or directory"),
    ],
    ids=["a file", "within a file", "where nobody may"],
)
def test_place_that_cannot_be_written(
    launcher: Launcher, trace, tmp_path: Path, place, why
) -> None:
    """Where nothing can be written, that is said before the run."""
    (tmp_path / "file").write_text("mine")
    place = place.format(tmp=tmp_path)
    done = launcher.run(*trace, "--report", place)
    assert (done.returncode, done.stdout, done.stderr) == (
        125,
        "",
        f"gpulaunch: error: {place}: {why}\n",
    )
    assert (tmp_path / "file").read_text() == "mine"


# Progress


@pytest.fixture
def long_run(tmp_path: Path) -> list[str]:
    """Return a command line that replays for a few seconds."""
    path = tmp_path / "many.toml"
    path.write_text(generated_trace("poisson", 1, 8000))
    options = [
        "--machines",
        "9",
        "--time-model",
        "bandwidth,interference",
        "--policy",
        "topo-aware,topo-aware-p",
    ]
    return ["simulate", "--topology", "power8-minsky", "--jobs", str(path), *options]


def at_terminal(launcher: Launcher, *arguments: str, **variables: str) -> str:
    """Return what a command shows at a terminal, control characters included."""
    environment = launcher.environment | {"TERM": "xterm", "NO_COLOR": "1", **variables}
    size = (24, 120)
    terminal = pexpect.spawn(
        launcher.script,
        list(arguments),
        env=environment,
        encoding="utf-8",
        timeout=60,
        dimensions=size,
    )
    terminal.expect(pexpect.EOF)
    return terminal.before


def test_progress_at_a_terminal(launcher: Launcher, long_run) -> None:
    """At a terminal a long run shows policy, jobs and time left on one line, gone at the end."""
    seen = re.sub(r"\x1b\[\d*m", "", at_terminal(launcher, *long_run))
    lines, _, rest = seen.rpartition("\r\x1b[2K")
    told = [
        re.fullmatch(r".*(topo-aware(?:-p)?): ([\d,]+) of 8,000 jobs(?:, about .+ left)?", line)
        for line in lines.split("\r\x1b[2K")
    ]
    assert all(told)
    assert {line[1] for line in told} <= {"topo-aware", "topo-aware-p"}
    ended = [int(line[2].replace(",", "")) for line in told if line[1] == "topo-aware-p"]
    assert ended == sorted(ended)
    assert rest.startswith("8000 jobs")
    assert (
        "\x1b[?25l" not in seen
    )  # the cursor is never hidden: whoever ends this by Ctrl-C sees it


def test_no_progress(launcher: Launcher, long_run, trace) -> None:
    """A pipe, a terminal that cannot redraw a line, and a short run show no progress."""
    one = [*long_run, "--policy", "topo-aware"]
    piped = launcher.start(*one)
    assert " of 8,000 jobs" not in at_terminal(launcher, *one, TERM="dumb")
    assert " of 10 jobs" not in at_terminal(launcher, *trace)
    output, told = piped.communicate(timeout=60)
    assert (piped.returncode, told, output.count("topo-aware")) == (0, "", 2)
