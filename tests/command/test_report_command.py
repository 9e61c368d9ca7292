"""`simulate --report` as a command: what it writes where, and what it says."""

import json
import os
import re
from pathlib import Path

import pytest
from conftest import Launcher, complaint

import gpulaunch
from gpulaunch.cli.simulate import INDEX
from gpulaunch.files.write import document_text


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    """Return a command line that replays 10 jobs."""
    path = tmp_path / "jobs.toml"
    path.write_text(document_text(gpulaunch.generate_trace("uniform", 1, 10)))
    replay = ("simulate", "--topology", "dgx1-v100", "--policy", "baseline,preserve")
    return [*replay, "--jobs", str(path)]


def test_report(launcher: Launcher, trace, tmp_path: Path) -> None:
    """--report DIR makes DIR, writes the page and its pictures, and names it below the tables.

    The same replays make the same bytes: on another day, in another process, whatever matplotlib's
    user likes.
    """
    style = tmp_path / "style"
    style.mkdir()
    (style / "matplotlibrc").write_text("figure.facecolor: red\nfont.size: 30\naxes.grid: True\n")
    others = {"PYTHONHASHSEED": "7", "MPLCONFIGDIR": str(style), "TZ": "Asia/Tokyo"}
    place, again = tmp_path / "new" / "report", tmp_path / "again"
    plain = launcher.run(*trace)
    done = launcher.run(*trace, "--report", str(place), umask=0o022)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{plain.stdout}\nthe report: {place}/index.html\n"
    names = sorted(os.listdir(place))
    assert names == ["bandwidth.svg", INDEX, "timeline.svg", "wait.svg"]
    assert {(place / name).stat().st_mode & 0o777 for name in names} == {0o644}
    done = launcher.run(*trace, "--json", "--report", str(again), env=launcher.environment | others)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["runs"][0]["policy"] == "baseline"
    assert sorted(os.listdir(again)) == names
    for name in names:
        assert (place / name).read_bytes() == (again / name).read_bytes()


def test_without_matplotlib(launcher: Launcher, trace, tmp_path: Path) -> None:
    """Where there can be no report that is said before the run; all else works."""
    (tmp_path / "matplotlib.py").write_text(
        'raise ModuleNotFoundError("No module named \'matplotlib\'", name="matplotlib")\n'
    )
    for place in (f"{tmp_path}/matplotlib.py", f"{tmp_path}/matplotlib.py/report"):
        done = launcher.run(*trace, "--report", place)
        assert (done.returncode, done.stdout) == (125, "")
        assert done.stderr == complaint(f"{place}: not a directory")
    launcher.environment["PYTHONPATH"] = str(tmp_path)
    done = launcher.run(*trace, "--report", str(tmp_path / "report"))
    assert (done.returncode, done.stdout) == (125, "")
    assert re.fullmatch(
        "gpulaunch: error: a report needs matplotlib: No module named 'matplotlib'\n"
        r"gpulaunch: hint: /.*/python[\d.]* -m pip install 'matplotlib>=3\.10'\n",
        done.stderr,
    )
    assert not (tmp_path / "report").exists()
    assert launcher.run(*trace).returncode == 0


def test_without_a_home(launcher: Launcher, trace, tmp_path: Path) -> None:
    """Where matplotlib can keep nothing the report is made silently, and nothing is left."""
    (tmp_path / "temporary").mkdir()
    nowhere = dict.fromkeys(("HOME", "MPLCONFIGDIR"), "/proc/none")
    launcher.environment |= {**nowhere, "TMPDIR": str(tmp_path / "temporary")}
    launcher.is_executed = True
    done = launcher.run(*trace, "--report", str(tmp_path / "report"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report" / INDEX).exists()
    assert os.listdir(tmp_path / "temporary") == []
