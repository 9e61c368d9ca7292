"""`gpulaunch history`: what ran, as a table, as sums and as a document."""

import json
import os
import time
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint


def test_the_newest_stand_last_and_twenty_of_them(launcher: Launcher) -> None:
    """The last 20 launches are shown, or as many as asked; the table says how many are left out.

    Launches on a described machine stand in no other's history, nor in this machine's.
    """
    folder = Path(launcher.environment["HOME"], ".local/state/gpulaunch/history")
    folder.mkdir(parents=True)
    with (folder / f"{os.geteuid()}-2026-01.jsonl").open("w") as file:
        for number in range(25):
            began_s = time.time() - 3600 * (30 - number)
            times = {"submitted_s": began_s, "started_s": began_s, "ended_s": began_s + 1800}
            where = {"topology": "dgx1-v100", "described": True, "gpus": ["0", "3"], "count": 2}
            name = {"version": 1, "key": f"k{number}", "name": f"exp{number}", "exit_status": 0}
            file.write(json.dumps({**name, **where, **times}) + "\n")
        here = {"key": "k", "name": "box", "topology": "box", "described": False}
        file.write(json.dumps({**name, **where, **times, **here}) + "\n")

    def shown(*options: str) -> list[str]:
        document = json.loads(launcher.run("history", *options, "--json").stdout)
        return [one["name"] for one in document["launches"]]

    assert shown() == ["box"]
    table = launcher.run("history", *DGX).stdout
    rows = [line.split()[-1] for line in table.splitlines() if "exp" in line]
    assert rows == [f"exp{n}" for n in range(5, 25)]
    assert table.splitlines()[-1] == "5 earlier: --all shows them"
    assert shown(*DGX, "-n", "1") == ["exp24"]
    assert len(shown(*DGX, "--all")) == 25
    # 6 h ago began exp24, one each hour before that
    assert shown(*DGX, "--since", "7.5h") == ["exp23", "exp24"]


def test_those_of_others_need_a_common_place(launcher: Launcher) -> None:
    """Where each user has his own history, those of others are refused with how to have them."""
    if os.path.exists("/var/lib/gpulaunch/history"):
        pytest.skip("this machine has a common history")
    done = launcher.run("history", "--everyone")
    problem = "each user's history is his own here, so those of others cannot be read"
    hint = "sudo gpulaunch setup --history makes a place for all, from then on"
    assert (done.returncode, done.stdout, done.stderr) == (125, "", complaint(problem, hint))
