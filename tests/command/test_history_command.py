"""`gpulaunch history`: what ran, as a table, as sums and as a document."""

import json
import os
import time
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint, held

NOW = time.time()
OLD = {
    "version": 1,
    "topology": "dgx1-v100",
    "described": True,
    "gpus": ["0", "3"],
    "count": 2,
    "exit_status": 0,
}


def remember(launcher: Launcher, *launches: dict) -> None:
    """Write lines into the user's history, of launches that began so many hours ago."""
    folder = Path(launcher.environment["HOME"], ".local/state/gpulaunch/history")
    folder.mkdir(parents=True)
    lines = []
    for number, launch in enumerate(launches):
        began_s = NOW - 3600 * launch["hours_ago"]
        times = {"submitted_s": began_s, "started_s": began_s, "ended_s": began_s + 1800}
        lines.append(json.dumps({**OLD, "key": f"k{number}", **times, **launch}))
    (folder / f"{os.geteuid()}-2026-01.jsonl").write_text("\n".join(lines) + "\n")


def shown(launcher: Launcher, *options: str) -> dict:
    done = launcher.run("history", *DGX, *options, "--json")
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


def test_it_tells_how_each_launch_ended(launcher: Launcher) -> None:
    """A launch has its exit status; without an end it runs while its lease lives, else: killed."""
    launcher.run(*DGX, "-n", "2", "--name", "exp7", "--", "sh", "-c", "exit 3")
    with held(launcher, *DGX) as job:
        job.kill_all()
    with held(launcher, *DGX, "-p", "vgg16"):
        launches = shown(launcher)["launches"]
        table = launcher.run("history", *DGX).stdout
    assert [
        (one["name"], one["gpus"], one["profile"], one["state"], one["exit_status"])
        for one in launches
    ] == [
        ("exp7", ["0", "3"], None, "ended", 3),
        (None, ["0"], None, "killed", None),
        (None, ["0"], "vgg16", "running", None),
    ]
    assert [one["duration_s"] is None for one in launches] == [False, True, False]
    rows = table.splitlines()[2:]
    assert [word in row for word, row in zip(("exp7", "killed", "running"), rows, strict=True)] == [
        True
    ] * 3


def test_the_newest_stand_last_and_twenty_of_them(launcher: Launcher) -> None:
    """The last 20 launches are shown, or as many as asked; the table says how many are left out."""
    remember(launcher, *({"hours_ago": 30 - n, "name": f"exp{n}"} for n in range(25)))
    table = launcher.run("history", *DGX).stdout
    rows = [line.split()[-1] for line in table.splitlines() if "exp" in line]
    assert rows == [f"exp{n}" for n in range(5, 25)]
    assert table.splitlines()[-1] == "5 earlier: --all shows them"
    assert [one["name"] for one in shown(launcher, "-n", "1")["launches"]] == ["exp24"]
    assert len(shown(launcher, "--all")["launches"]) == 25
    # 6 h ago began exp24, one each hour before that
    assert [one["name"] for one in shown(launcher, "--since", "7.5h")["launches"]] == [
        "exp23",
        "exp24",
    ]


def test_totals_are_by_user_and_job(launcher: Launcher) -> None:
    """GPU-hours and launches are summed by name, else by program and script, largest first."""
    train = {"command": ["/usr/bin/python", "-u", "train.py", "--lr", "0.1"]}
    remember(
        launcher,
        {"hours_ago": 5, "name": "exp7"},
        {"hours_ago": 4, **train},
        {"hours_ago": 3, **train, "exit_status": 1, "gpus": ["0"]},
    )
    rows = shown(launcher, "--totals")["totals"]
    assert [(row["job"], row["launches"], row["failed"], row["gpu_hours"]) for row in rows] == [
        ("python train.py", 2, 1, 1.5),
        ("exp7", 1, 0, 1.0),
    ]
    last = launcher.run("history", *DGX, "--totals").stdout.splitlines()[-1]
    assert last == "2.50 GPU-hours in 3 launches"


def test_each_machine_has_its_own(launcher: Launcher) -> None:
    """Launches on a described machine stand in no other's history, nor in this machine's."""
    remember(launcher, {"hours_ago": 1}, {"hours_ago": 1, "described": False, "topology": "box"})
    assert [one["key"] for one in shown(launcher)["launches"]] == ["k0"]
    for options, keys in (((), ["k1"]), (("--topology", "dgx1-p100"), [])):
        document = json.loads(launcher.run("history", *options, "--json").stdout)
        assert [one["key"] for one in document["launches"]] == keys


def test_those_of_others_need_a_common_place(launcher: Launcher) -> None:
    """Where each user has his own history, those of others are refused with how to have them."""
    if os.path.exists("/var/lib/gpulaunch/history"):
        pytest.skip("this machine has a common history")
    problem = complaint(
        "each user's history is his own here, so those of others cannot be read",
        "sudo gpulaunch setup --history makes a place for all, from then on",
    )
    for options in (("--everyone",), ("--user", "root")):
        done = launcher.run("history", *options)
        assert (done.returncode, done.stdout, done.stderr) == (125, "", problem)
