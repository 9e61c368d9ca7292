"""The history's lines: what is written is what is read."""

import io
import os
import resource
import time
from pathlib import Path

import pytest

from gpulaunch.cli.history import history_table
from gpulaunch.cli.screen import draw
from gpulaunch.errors import UsageError
from gpulaunch.history.line import HistoryLine, history_directory
from gpulaunch.history.past_launch import PastLaunch, find_past, parse_past_launch
from gpulaunch.history.read import read_dependent, read_history
from gpulaunch.leases.record import shortened
from gpulaunch.process import Process

ASKED = {
    "key": "0a1b2c3d4e5f",
    "name": "exp7",
    "command": ["python", "train.py"],
    "directory": "/data",
    "topology": "dgx1-v100",
    "described": True,
    "count": 2,
    "profile": "vgg16",
    "pattern": "ring",
    "bandwidth_sensitive": True,
    "submitted_s": 1_790_000_000.0,
    "time_limit_s": 3600.0,
    "launcher": [17, 4711],
    "boot_id": "b",
    "log": "/tmp/log",
    "terminal": None,
}
GOT = {"id": "feed", "gpus": ["0", "3"], "sm_percentage": None, "started_s": 1_790_000_010.0}


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test have a history of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def files() -> list[Path]:
    """Return the files of the history."""
    return sorted(Path(history_directory()).iterdir())


def test_a_launch_has_one_line_that_is_rewritten_in_place() -> None:
    """However often it is updated, a launch has one line, of a length that never changes."""
    line = HistoryLine(**ASKED)
    before = files()[0].read_bytes()
    line.update(**GOT)
    line.update(ended_s=1_790_000_070.0, exit_status=3, mood="a later version's")
    after = files()[0].read_bytes()
    assert (len(after), after.count(b"\n")) == (len(before), 1)
    fields = ASKED | GOT | {"command": ("python", "train.py"), "gpus": ("0", "3")}
    fields |= {"launcher": Process(17, 4711), "user_id": os.geteuid()}
    del fields["terminal"]
    assert read_history() == [PastLaunch(**fields, ended_s=1_790_000_070.0, exit_status=3)]


def test_hours_count_each_gpu_by_its_part() -> None:
    """GPU-hours are GPUs times hours, by the part of the SMs; without an end there are none."""
    line = HistoryLine(**ASKED)
    line.update(**GOT)
    entry = read_history()[0]
    assert (entry.ended_s, entry.exit_status, entry.duration_s, entry.gpu_hours) == (
        *[None] * 3,
        0.0,
    )
    line.update(ended_s=1_790_003_610.0)
    assert read_history()[0].gpu_hours == 2.0
    line.update(sm_percentage=50)
    assert read_history()[0].gpu_hours == 1.0


def test_a_line_that_outgrows_its_place_is_written_anew() -> None:
    """If the GPUs' names do not fit the place, the launch's last line counts."""
    line = HistoryLine(**ASKED)
    other = HistoryLine(**ASKED | {"key": "ffff"})
    line.update(gpus=[str(number) for number in range(500)])
    line.update(exit_status=1)
    other.update(exit_status=2)
    found = {entry.key: (len(entry.gpus), entry.exit_status) for entry in read_history()}
    assert found == {"0a1b2c3d4e5f": (500, 1), "ffff": (0, 2)}


def test_each_month_has_its_file() -> None:
    """The file is that of the user and the month in which the launch began, in UTC."""
    HistoryLine(**ASKED)
    HistoryLine(**ASKED | {"submitted_s": 1_791_000_000.0, "key": "b"})
    own = os.geteuid()
    assert [file.name for file in files()] == [f"{own}-2026-09.jsonl", f"{own}-2026-10.jsonl"]
    assert [entry.key for entry in read_history()] == ["0a1b2c3d4e5f", "b"]


@pytest.mark.parametrize(
    "damage",
    [
        *(b"{\n", b"[]\n", b'{"version": 9, "key": "x"}\n', b"\xff\n"),
        b"{" + b'"a": {' * 100_000 + b"\n",
        b'{"version": 1, "key": "x", "submitted_s": 1e15}\n',  # no time that has a date
    ],
    ids=["torn", "list", "later", "bytes", "deep", "time"],
)
def test_damaged_and_unknown_lines_are_passed_over(damage: bytes) -> None:
    """A torn line, one of a later version, or one that another user made up, hides no other."""
    HistoryLine(**ASKED)
    with files()[0].open("ab") as file:
        file.write(damage)
    HistoryLine(**ASKED | {"key": "b"})
    assert [entry.key for entry in read_history()] == ["0a1b2c3d4e5f", "b"]


def test_a_history_that_cannot_be_written_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be made, the launch has no line, and nothing fails."""
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    line = HistoryLine(**ASKED)
    line.update(exit_status=1)
    assert read_history() == []


def test_a_full_disk_tears_no_other_line() -> None:
    """A line that finds too little room says so and is taken back whole; the next one is read."""
    HistoryLine(**ASKED)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (files()[0].stat().st_size + 100, before[1]))
    try:
        torn = HistoryLine(**ASKED | {"key": "b"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(torn.problem) == "[Errno 28] No space left on device"
    assert HistoryLine(**ASKED | {"key": "c"}).problem is None
    assert [launch.key for launch in read_history()] == ["0a1b2c3d4e5f", "c"]


def test_a_file_with_two_links_is_nobodys(tmp_path: Path) -> None:
    """What another could have put there is neither written nor read."""
    HistoryLine(**ASKED)
    os.link(files()[0], tmp_path / "other")
    HistoryLine(**ASKED | {"key": "b"})
    assert (read_history(), len((tmp_path / "other").read_text().splitlines())) == ([], 1)


def test_what_waits_for_others() -> None:
    """Launches that come after others count as long as they have neither GPUs nor an end."""
    asked = ASKED | {"submitted_s": time.time()}
    HistoryLine(**asked | {"key": "a", "after": ["exp6", "exp5:any"]})
    HistoryLine(**asked | {"key": "b"})
    HistoryLine(**asked | {"key": "c", "after": ["exp6"]}).update(**GOT)
    HistoryLine(**asked | {"key": "d", "after": ["exp6"]}).update(ended_s=1.0, exit_status=125)
    assert [(one.key, one.after) for one in read_dependent()] == [("a", ("exp6", "exp5:any"))]


def test_what_is_recent() -> None:
    """Files of months before the time that is asked for are not read."""
    day_s = 86400.0
    for key, age_s in (("old", 100 * day_s), ("young", 20 * day_s), ("new", 0.0)):
        HistoryLine(**ASKED | {"key": key, "submitted_s": time.time() - age_s})
    assert [one.key for one in read_history()] == ["old", "young", "new"]
    assert [one.key for one in read_history(within_s=21 * day_s)] == ["young", "new"]


def test_totals_of_several_users_end_with_a_sum_for_each() -> None:
    """After the jobs' rows each user's GPU-hours are summed, those with most of them first."""
    keys = ("user", "job", "gpu_hours", "launches", "failed")
    jobs = [("alice", "a", 3.0, 2, 0), ("bob", "b", 2.5, 1, 0), ("bob", "c", 2.25, 4, 0)]
    stream = io.StringIO()
    rows = [dict(zip(keys, job, strict=True)) for job in jobs]
    draw(history_table({"totals": rows}, several_users=True), stream)
    assert [line.strip() for line in stream.getvalue().splitlines()[-3:]] == [
        "7.75 GPU-hours in 7 launches",
        "bob: 4.75 GPU-hours in 5 launches",
        "alice: 3.00 GPU-hours in 2 launches",
    ]


def test_which_launch_is_meant() -> None:
    """A name goes before the id of a lease; a beginning that fits several is refused with all."""
    document = {"version": 1, "submitted_s": 1.0}
    keys = {"aaaa00000001": "feed00000001", "aaaa00000002": "feed00000002", "cccc00000003": ""}
    launches = [parse_past_launch(document | {"key": key, "id": keys[key]}, 0) for key in keys]
    named = parse_past_launch(document | {"key": "bbbb00000004", "name": "feed00000001"}, 0)
    assert find_past("feed00000001", [*launches, named]).key == "bbbb00000004"
    assert find_past("cccc", launches).key == "cccc00000003"  # it has no lease yet
    with pytest.raises(UsageError, match="'feed' may be any of feed00000001, feed00000002"):
        find_past("feed", launches)


def test_a_long_command_is_cut() -> None:
    """A record keeps so many characters of a command; where it is cut, dots say so."""
    command = ["python", "train.py"]
    assert shortened(command, len("python train.py")) == command
    assert shortened(command, len("python train")) == ["python", "train..."]
    assert shortened(command, len("python")) == ["python", "..."]
