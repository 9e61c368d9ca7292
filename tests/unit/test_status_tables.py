"""The tables of status and top: what gives way on a narrow terminal, and what the words say."""

import io
import re
from datetime import datetime, timedelta, timezone
from itertools import product

import pytest
from values import box, lease, ticket

from gpulaunch.cli.screen import Console, Grid, Parts, cut, make_console
from gpulaunch.cli.status import Status, of_user, openmetrics_text
from gpulaunch.cli.status_table import (
    gpus_cell,
    gpus_view,
    job_names,
    job_notes,
    job_state,
    jobs_table,
    status_table,
    title_of,
    waiting,
)
from gpulaunch.cli.top import TopScreen
from gpulaunch.errors import FailedError
from gpulaunch.leases.lease import EngineJob, Lease
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.driver import Load
from gpulaunch.machine.find import Machine
from gpulaunch.process.system import this_process

NOW = datetime(2026, 1, 2, 5, 10, tzinfo=timezone.utc)  # values.lease began at 03:04:05
USERS = {1000: "alice", 1001: "bob"}


def document(loads: bool = True, waiting: int = 3) -> dict:
    """Return the document of a box with leases of two users and some who wait."""
    load = tuple(
        Load(f"GPU-{index}", 10 * index, 5, index << 30, 250.5, 300.0, 40 + index)
        for index in range(8)
    )
    leases = [
        lease("abcd00000001", 0, 1, 2, 3, time_limit_s=7200.0, job=lease("x").launcher),
        lease("abce00000002", 5, 4, user_id=1001, name=None),
    ]
    tickets = [
        ticket(number, 4, id=f"{number:012x}", user_id=1000 + number % 2, name=f"exp{number}")
        for number in range(1, waiting + 1)
    ]
    status = Status(Machine(box(), (), None), Snapshot(leases, tickets))
    status.load = load if loads else ()
    told = status.document()
    for record, one in zip((*told["leases"], *told["queue"]), (*leases, *tickets), strict=True):
        record["user"] = USERS[one.user_id]
    return told


def lease_document(one: Lease) -> dict:
    """Return the document of a lease of a box."""
    status = Status(Machine(box(), (), None), Snapshot([one], []))
    return status.document()["leases"][0]


def printed(table: object, width: int) -> list[str]:
    """Return the lines of a table on a terminal of this width."""
    stream = io.StringIO()
    make_console(stream, width).print(table)
    return stream.getvalue().splitlines()


def screen(width: int, height: int) -> Console:
    """Return a screen of this size that nobody sees."""
    made = make_console(io.StringIO())
    made.size = (width, height)
    return made


# Tables


def sample() -> Grid:
    """Return a table with all that can give way."""
    table = Grid("id", "user", "since", "profile", "command", leave=("profile", "since"))
    table.add_row("0123456789ab", "alice", "2 h 05 min", "vgg16", cut("train " * 20))
    table.add_row("0123456789cd", "bob", "1 min", "", cut("true"))
    return table


def test_columns_leave_in_their_order() -> None:
    """Where there is no room columns leave in the stated order, and a line says which."""
    every = ["id", "user", "since", "profile", "command"]
    for width, columns, said in (
        (200, every, []),
        (52, every, []),
        (51, ["id", "user", "since", "command"], ["no room for: profile"]),
        (40, ["id", "user", "command"], ["no room for: profile, since"]),
    ):
        lines = printed(sample(), width)
        assert lines[0].split() == columns
        assert lines[2].endswith("…") == (width < 200)
        assert [line for line in lines if line.startswith("no room")] == said
        assert max(map(len, lines)) <= width


def test_text_of_others_is_text() -> None:
    """Markup, codes of emoji and wide characters of a name are shown as they are, in line."""
    table = Grid("name", "command")
    for name in ("[red]x[/]", ":smile:", "模型"):
        table.add_row(name, cut("\x1b[31mtrue"))
    assert printed(table, 200)[2:] == [
        "[red]x[/]  \\x1b[31mtrue",
        ":smile:    \\x1b[31mtrue",
        "模型       \\x1b[31mtrue",
    ]


# Words


def test_names() -> None:
    """A job is called by its name; where that is long or not the only one, an id is added."""
    told = document(waiting=2)
    names = ["x" * 30, None, "exp", "exp"]
    users = ["alice", "bob", "alice", "alice"]
    for record, name, user in zip((*told["leases"], *told["queue"]), names, users, strict=True):
        record |= {"name": name, "user": user}
    assert job_names(told) == {
        "abcd00000001": f"{'x' * 17} (abcd)",
        "abce00000002": "abce",
        "000000000001": "exp (000000000001)",
        "000000000002": "exp (000000000002)",
    }
    told["queue"][0]["user"] = "bob"
    assert job_names(told)["000000000001"] == "exp"
    told["queue"][0]["name"] = "abce"  # which is what another job without a name is called
    assert job_names(told)["000000000001"] == "abce (000000000001)"


def test_states() -> None:
    """The state of a lease is one of few words, what has gone wrong before what it does."""
    for fields, want in (
        ({}, "running"),
        ({"command": ("reserve", "2h")}, "running"),  # a program of that name
        ({"command": ("reserve", "2h"), "job": lease("x").launcher}, "reserved"),
        ({"watches_use": True, "launcher": this_process()}, "idle"),
    ):
        entry = lease_document(lease("a", 0, **fields))
        now = datetime.now(timezone.utc)
        assert job_state(entry, now) == want
        entry["stopped"] = True
        assert job_state(entry, now) == "stopped"
        entry["left_over_pids"] = [1]
        assert job_state(entry, now) == "left over"


def test_gpus_in_rank_order() -> None:
    """GPUs are in rank order, and a shared one has its part with it."""
    for gpus, fields, want in (
        ((3, 0, 1, 2, 7), {}, "3,0-2,7"),
        ((4, 5), {}, "4,5"),
        ((1,), {"shared": True, "sm_percentage": 100}, "1 (shared)"),
        ((1,), {"shared": True, "sm_percentage": 20, "guest": True}, "1 (20 %, guest)"),
    ):
        assert gpus_cell(lease_document(lease("a", *gpus)) | fields) == want


def test_one_table() -> None:
    """Those who have GPUs come first, by their first GPU, then the queue; the command is shown."""
    told = document(waiting=1)
    told["leases"].reverse()
    told["dependent"] = [
        {"name": "last", "user": "bob", "gpus": 2, "since": "2026-01-02T05:09:00Z"}
        | {"after": ["exp1"], "command": ["sh", "x y"]}
    ]
    lines = [title_of(told), *printed(Parts(*status_table(told, NOW)), 200)]
    assert lines[0] == "box: 2 of 8 GPUs free: 6-7 (test)"
    rows = [re.split("  +", line) for line in (lines[1], *lines[3:7])]
    assert rows == [
        ["NAME", "STATE", "USER", "GPUS", "TIME", "STARTS", "COMMAND"],
        ["my job", "running", "alice", "0-3", "2 h 05 min of 2 h", "python train.py ''"],
        ["abce", "running", "bob", "5,4", "2 h 05 min", "python train.py ''"],
        ["exp1", "waiting", "bob", "any 4", "2 h 05 min", "python train.py ''"],
        ["last", "waiting", "bob", "any 2", "1 min", "after exp1", "sh 'x y'"],
    ]
    assert lines[7:] == []


def test_ranks_of_a_step() -> None:
    """The lease of each rank of a step has a row, which names the rank."""
    engine = EngineJob(engine="slurm", id="7.0", user_id=1000, ranks=2, rank=1)
    step = [lease("abc100000001", 0, 1, name="r1", engine_job=engine)]
    told = Status(Machine(box(), (), None), Snapshot(step, [])).document()
    row = re.split("  +", printed(Parts(*status_table(told, NOW)), 200)[2])
    assert (row[0], row[3], row[-1].partition(":")[0]) == ("r1", "0,1", "slurm 7.0, rank 1 of 2")


def test_predicted_start() -> None:
    """A predicted start is rounded, not cut, and in one unit."""
    told = document()
    for first_s, last_s, want in (
        (301, 1500, "in 5 to 25 min"),
        (5400, 104400, "in 1.5 to 29 h"),
        (40, 40, "in 40 s"),
        (86400, 432000, "in 1 to 5 d"),
        (-5, 30, "within 30 s"),
    ):
        ends = [(NOW + timedelta(seconds=end_s)).isoformat() for end_s in (first_s, last_s)]
        told["queue"][0]["predicted_start"] = dict(zip(("from", "to"), ends, strict=True))
        assert want in re.split("  +", printed(jobs_table(told, waiting(told), NOW), 200)[2])


def test_why_nobody_has_a_gpu() -> None:
    """A GPU is another user's, free, or out of reach as long as a record cannot be understood."""
    status = Status(Machine(box(3), (), None), Snapshot([lease("a", 0)], []))
    for problems, want in (([], "free"), ([FailedError("garbage")], "granted to nobody now")):
        status.problems = problems
        told = of_user(status.document(), "nobody")
        lines = printed(Parts(*gpus_view(told, NOW)), 200)
        assert [line.split("  ")[-1].strip() for line in lines[2:5]] == [
            "of another user",
            want,
            want,
        ]


# The screen of top


def top(waiting: int = 3, selected: str = "") -> TopScreen:
    """Return what alice sees of a box."""
    shown = TopScreen("alice")
    shown.document = document(waiting=waiting)
    shown.selected = selected
    return shown


def test_the_screen_is_full_and_no_more() -> None:
    """Whatever its size, the screen has exactly its lines, none of which is too long.

    How many wait is told above, since the queue may be out of sight.
    """
    sizes = ((120, 40), (80, 24), (40, 12), (20, 10))
    for (width, height), selected in product(sizes, ("", "abcd00000001", "000000000040")):
        lines = top(40, selected).lines(NOW, screen(width, height))
        assert len(lines) == height, selected
        assert max(line.cell_len for line in lines) <= width, selected
    assert (
        top(40).lines(NOW, screen(80, 12))[0].plain
        == "box: 2 of 8 GPUs free: 6-7 (test), 40 waiting"
    )


def test_selection_goes_through_leases_and_tickets() -> None:
    """The key j goes through leases by their GPUs, then through the queue, and stays at the end."""
    shown, seen = top(), []
    for _ in range(6):
        shown.step(1)
        seen.append(shown.selected)
    assert [int(one, 16) & 0xF for one in seen] == [1, 2, 1, 2, 3, 3]
    shown.selected = ""
    shown.step(-1)
    assert shown.selected == "000000000003"


def test_a_selected_job_is_shown_in_full() -> None:
    """The lines at the bottom tell all of the selected job; rows of one's own jobs are bold."""
    lines = top(selected="abcd00000001").lines(NOW, screen(40, 24))
    text = " ".join(line.plain for line in lines)
    assert (
        "abcd00000001, my job, running, alice, 0-3, 2 h 05 min of 2 h, python train.py ''" in text
    )
    reverse = [line.plain for line in lines if "reverse" in str(line.style)]
    assert [line[0] for line in reverse] == ["0", "1", "2", "3"]
    bold = [line.plain.split()[0] for line in lines if "bold" in str(line.style)]
    assert bold == ["box:", "waiting", "0", "1", "2", "3", "exp2"]  # the title is on two lines


# Metrics


def test_metrics() -> None:
    """The metrics are OpenMetrics, and tell GPUs by state, their load, leases and the queue.

    Quotes, line ends and bytes that are no text keep a metric on its line.
    """
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    told = document()
    told["leases"][1]["command"] = ['x"y\\', "z\udcff\n"]
    text = openmetrics_text(told)
    families = {one.name: one.samples for one in parser.text_string_to_metric_families(text)}

    def values(name: str) -> list[float]:
        return [one.value for one in families[f"gpulaunch_{name}"]]

    states = {one.labels["state"]: one.value for one in families["gpulaunch_gpus"]}
    assert states == {"free": 2, "leased": 6, "shared": 0, "outside": 0, "drained": 0, "barred": 0}
    use = values("gpu_utilization_ratio")
    assert use == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    memory = families["gpulaunch_gpu_memory_used_bytes"][3]
    assert (memory.labels["gpu"], memory.value) == ("3", 3 << 30)
    leases = [
        (one.labels["lease"], one.labels["user"], one.value)
        for one in families["gpulaunch_lease_gpus"]
    ]
    assert leases == [("abcd00000001", "alice", 4), ("abce00000002", "bob", 2)]
    assert (values("queue_requests"), values("queue_gpus")) == ([3], [12])
    assert values("lease_time_limit_seconds") == [7200]
    assert text.endswith("# EOF\n")


def test_note_on_a_container_that_has_ended() -> None:
    """A job whose container has ended is not said to have a restart policy, which it may not."""
    told = document()
    told["leases"][0] |= {"container_name": "job", "container_state": "exited"}
    assert job_notes(told, NOW)[0].plain == (
        "my job keeps its GPUs: container job has ended, and may be started again: "
        "'gpulaunch free abcd00000001' ends that"
    )
