"""Plans as `gpulaunch plan` prints them."""

import json
from pathlib import Path

import pytest
from toml_parser import tomllib


def planned(launcher, *arguments: str) -> dict:
    done = launcher.run("plan", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def queue_file(tmp_path):
    """Return a function that writes a queue file and returns its path."""

    def write(text: str) -> str:
        path = tmp_path / "queue.toml"
        path.write_text(text)
        return str(path)

    return write


HEAD = 'gpu = "a100x"\ngpu_memory = "80GiB"\n'

FULL = "sm = 10\nmemory_bandwidth = 1\nmemory = '1GiB'\nduration_s = 5\n"


def test_figures_of_a_job_count_more_than_its_profiles(launcher, queue_file) -> None:
    """A queue may correct a profile's figures; without power, energy is unknown."""
    path = queue_file(
        f"{HEAD}[[job]]\nname = 'a'\nprofile = 'kripke-4x'\nduration_s = 7\n[[job]]\nname = "
        f"'b'\n{FULL}"
    )
    document = planned(launcher, path)
    assert [member["alone_s"] for member in document["groups"][0]["jobs"]] == [5, 7]
    assert document["predicted"]["energy_j"] is document["predicted"]["product"] is None
    assert document["sequential"] == {"time_s": 12, "energy_j": None}


LIGHT = "sm = 40\nmemory_bandwidth = 20\nmemory = '1GiB'\npower_w = 150\nduration_s = 100\n"
LIGHT_PAIR = f"[[job]]\nname = 'a'\n{LIGHT}[[job]]\nname = 'b'\n{LIGHT}"


def test_the_head_of_a_queue_counts(launcher, queue_file) -> None:
    """Number of GPUs, idle power and weights are what the file says.

    The first of the weights is the exponent of the throughput, the second of the efficiency. For
    energy, jobs that would lose more of their speed than the file says run alone.
    """
    document = planned(launcher, queue_file(f"{HEAD}gpus = 2\nidle_power_w = 40\n{LIGHT_PAIR}"))
    assert [group["gpu"] for group in document["groups"]] == [0, 1]
    assert (document["idle_power_w"], document["idle_power_estimated"]) == (40, False)
    assert document["sequential"]["energy_j"] == pytest.approx(2 * 150 * 100)
    gains = planned(launcher, queue_file(f"{HEAD}weights = [2, 1]\n{LIGHT_PAIR}"))["predicted"]
    assert gains["throughput"] > gains["energy_efficiency"] > 1
    assert gains["product"] == pytest.approx(gains["throughput"] ** 2 * gains["energy_efficiency"])
    head = f"{HEAD}objective = 'energy'\nthroughput_tolerance_percentage = 1\n"
    groups = planned(launcher, queue_file(head + LIGHT_PAIR))["groups"]
    assert [len(group["jobs"]) for group in groups] == [1, 1]
    assert groups[0]["why_alone"].endswith("of at most 1 %")


def test_a_job_after_another(launcher, queue_file) -> None:
    """A job begins when all tasks of the one before it have ended."""
    path = queue_file(
        f"{HEAD}[[job]]\nname = 'a'\nrepetitions = 3\n{FULL}"
        f"[[job]]\nname = 'b'\nafter = ['a']\n{FULL}"
    )
    groups = planned(launcher, path)["groups"]
    found = [(one["name"], one["tasks"]) for group in groups for one in group["jobs"]]
    assert found == [("a", 3), ("b", 1)]
    assert [group["predicted"]["start_s"] for group in groups] == [0, 15]


WRONG = tomllib.loads(Path(__file__).with_name("wrong_queues.toml").read_text())["mistake"]


@pytest.mark.parametrize("mistake", WRONG, ids=lambda mistake: mistake["says"])
def test_mistakes_are_one_line_with_its_number(launcher, queue_file, mistake) -> None:
    """What is wrong in a queue is said with path and line, and the status is 2."""
    path = queue_file(mistake["queue"])
    done = launcher.run("plan", path)
    assert (done.returncode, done.stdout) == (2, "")
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"gpulaunch: error: {path}{mistake['place']}: ")
    assert mistake["says"] in first
