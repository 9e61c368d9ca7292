"""`gpulaunch history`: what ran, as a table, as sums and as a document."""

import json
import os
import time
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint

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


def test_the_newest_stand_last_and_twenty_of_them(launcher: Launcher) -> None:
    """The last 20 launches are shown, or as many as asked; the table says how many are left out.

    Launches on a described machine stand in no other's history, nor in this machine's.
    """
    ours = ({"hours_ago": 30 - n, "name": f"exp{n}"} for n in range(25))
    box = {"hours_ago": 1, "name": "box", "described": False, "topology": "box"}
    remember(launcher, *ours, box)
    here = json.loads(launcher.run("history", "--json").stdout)["launches"]
    assert [one["name"] for one in here] == ["box"]
    table = launcher.run("history", *DGX).stdout
    rows = [line.split()[-1] for line in table.splitlines() if "exp" in line]
    assert rows == [f"exp{n}" for n in range(5, 25)]
    assert table.splitlines()[-1] == "5 earlier: --all shows them"
    assert [one["name"] for one in shown(launcher, "-n", "1")["launches"]] == ["exp24"]
    assert len(shown(launcher, "--all")["launches"]) == 25
    # 6 h ago began exp24, one each hour before that
    since = shown(launcher, "--since", "7.5h")["launches"]
    assert [one["name"] for one in since] == ["exp23", "exp24"]


def test_those_of_others_need_a_common_place(launcher: Launcher) -> None:
    """Where each user has his own history, those of others are refused with how to have them."""
    if os.path.exists("/var/lib/gpulaunch/history"):
        pytest.skip("this machine has a common history")
    done = launcher.run("history", "--everyone")
    problem = "each user's history is his own here, so those of others cannot be read"
    hint = "sudo gpulaunch setup --history makes a place for all, from then on"
    assert (done.returncode, done.stdout, done.stderr) == (125, "", complaint(problem, hint))
