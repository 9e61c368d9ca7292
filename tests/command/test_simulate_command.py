"""`gpulaunch simulate`: job files in three forms, their mistakes, and what is printed."""

import json
from pathlib import Path

import pytest
from conftest import DGX, Launcher

HEADER = "gpus,pattern,arrival,time,sensitive,name"
COLUMNS = "3,ring,0,10,1,vgg16.sh\n\n2,ring,2,5,0,googlenet.sh\n"
LINES = (
    '{"name": "vgg16", "gpus": 3, "pattern": "ring", "arrival_s": 0, "duration_s": 10, '
    '"bandwidth_sensitive": true}\n'
    '{"name": "googlenet", "gpus": 2, "pattern": "ring", "arrival_s": 2, "duration_s": 5, '
    '"bandwidth_sensitive": false}\n'
)
TOML = """\
[[job]]
profile = "vgg16"
gpus = 3
duration_s = 10

[[job]]
name = "googlenet"
gpus = 2
pattern = "ring"
bandwidth_sensitive = false
arrival_s = 2
duration_s = 5
"""


def simulated(launcher: Launcher, jobs: Path, *options: str) -> dict:
    done = launcher.run(
        "simulate", "--topology", "dgx1-v100", "--jobs", str(jobs), *options, "--json"
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


def written(tmp_path: Path, text: str, name: str = "jobs.txt") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [COLUMNS, LINES, TOML], ids=["columns", "JSON lines", "TOML"])
def test_three_forms_of_a_job_file(launcher: Launcher, tmp_path: Path, text: str) -> None:
    """The columns of mapa-sc21's simulator, JSON lines and TOML mean the same."""
    (run,) = simulated(launcher, written(tmp_path, text))["runs"]
    assert (run["policy"], run["topology"], run["machines"], run["seed"]) == (
        "preserve",
        "dgx1-v100",
        1,
        None,
    )
    assert [
        (j["id"], j["name"], j["sensitive"], j["submitted_s"], j["started_s"], j["ended_s"])
        for j in run["jobs"]
    ] == [
        (0, "vgg16", True, 0, 0, 10),
        (1, "googlenet", False, 2, 2, 7),
    ]
    assert run["jobs"][0]["gpus"] == [0, 2, 3]
    assert (
        run["jobs"][0] | {"effective_bandwidth_gb_per_s": 60.0, "slowdown": 1.0, "machine": 0}
        == run["jobs"][0]
    )
    assert (run["makespan_s"], run["throughput_jobs_per_hour"]) == (10, 720)


def test_same_seed_same_bytes(launcher: Launcher, tmp_path: Path) -> None:
    """A seed always makes the same file, and a file the same results, byte for byte."""
    first, second = (
        launcher.run("simulate", "--generate", "uniform", "--seed", "5", "--count", "60")
        for _ in range(2)
    )
    assert (
        first.stdout
        == second.stdout
        != launcher.run("simulate", "--generate", "uniform", "--count", "60").stdout
    )
    path = written(tmp_path, first.stdout)
    command = (
        "simulate",
        "--topology",
        "dgx1-v100",
        "--jobs",
        str(path),
        "--policy",
        "baseline,preserve,topo-aware",
    )
    outputs = {
        launcher.run(
            *command, "--json", env={**launcher.environment, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in "123"
    }
    assert len(outputs) == 1
    assert len(json.loads(outputs.pop())["runs"]) == 3


def test_generated_jobs_bring_their_profiles(launcher: Launcher, tmp_path: Path) -> None:
    """Generated jobs of topo-aware-sc17 run as printed: on five machines, neighbours and all."""
    path = written(
        tmp_path,
        launcher.run("simulate", "--generate", "poisson", "--seed", "2", "--count", "50").stdout,
    )
    options = (
        "--machines",
        "5",
        "--time-model",
        "bandwidth,interference",
        "--policy",
        "topo-aware-p,best-fit",
    )
    done = launcher.run(
        "simulate", "--topology", "power8-minsky", "--jobs", str(path), *options, "--json"
    )
    patient, packed = json.loads(done.stdout)["runs"]
    assert (patient["slo_violations"], len(patient["jobs"])) == (0, 50)
    assert packed["slo_violations"] > 0
    assert {job["machine"] for job in patient["jobs"]} <= set(range(5))


def test_table(launcher: Launcher, tmp_path: Path) -> None:
    """Without --json there is a table with a line per policy, uncut in a pipe, and no stderr."""
    path = written(tmp_path, COLUMNS)
    done = launcher.run(
        "simulate",
        "--topology",
        "dgx1-v100",
        "--jobs",
        str(path),
        "--policy",
        "greedy,preserve-paper",
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "2 jobs (1 bandwidth-sensitive) on dgx1-v100, backfill"
    assert [line.split()[0] for line in lines if line.startswith(("greedy", "preserve-paper"))] == [
        "greedy",
        "preserve-paper",
    ] * 2


BROKEN = [
    ("too few columns", "3,ring,0,10,1\n", f"1: 5 columns, 6 are expected: {HEADER}"),
    (
        "a text for GPUs",
        "3,ring,0,10,1,a\n2.5,ring,0,10,1,b\n",
        "2: gpus: '2.5' is neither a number of GPUs nor 'all'",
    ),
    ("a sensitivity that is neither", "3,ring,0,5,7,a\n", "1: sensitive: '7' is neither 0 nor 1"),
    (
        "a number beyond TOML's",
        f"[[job]]\ngpus = 0x{'f' * 5000}\n",
        "2: gpus: a number of more than 64 bits",
    ),
    ("an unknown pattern", "2,rnig,0,10,1,a\n", "1: pattern: unknown pattern 'rnig'"),
    (
        "a time that is none",
        "2,ring,0,nan,1,a\n",
        "1: duration_s: nan is not within 0.001 to 1000000000",
    ),
    ("no JSON", '{"gpus": 2\n', "1: no JSON: Expecting ',' delimiter: line 1 column 11 (char 10)"),
    (
        "a list in JSON lines",
        '{"gpus": 2, "duration_s": 1}\n[1]\n',
        "2: [1] is not a table of keys and values",
    ),
    (
        "an unknown key",
        '{"gpu": 2, "duration_s": 1}\n',
        "1: unknown key 'gpu': nearest is 'gpus' or 'gpu_model'",
    ),
    ("no duration", '{"gpus": 2, "name": "x"}\n', "1: job 'x': nobody says its duration_s"),
    (
        "a wrong value in TOML",
        '[[job]]\nduration_s = 1\ngpus = "two"\n',
        "3: gpus: 'two' is neither a number of GPUs nor 'all'",
    ),
    (
        "no such profile",
        '[[job]]\nduration_s = 1\nprofile = "vgg61"\n',
        "1: unknown profile 'vgg61'",
    ),
    ("no job", "# nothing\n", " there is no job in it"),
    ("not TOML", "[[job]\n", "1: "),
    (
        "a command that is a text",
        '[[job]]\nduration_s = 1\ncommand = "sleep 1"\n',
        "3: command: 'sleep 1' is not a list",
    ),
]


@pytest.mark.parametrize(("sentence", "text", "want"), BROKEN, ids=[case[0] for case in BROKEN])
def test_mistakes_in_a_job_file(
    launcher: Launcher, tmp_path: Path, sentence: str, text: str, want: str
) -> None:
    """A mistake is one line with path, line and what was expected, status 2, and no simulation."""
    path = written(tmp_path, text)
    done = launcher.run("simulate", "--topology", "dgx1-v100", "--jobs", str(path))
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"gpulaunch: error: {path}:{want}"), (sentence, first)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines()) <= 2) == (2, "", True)


@pytest.mark.parametrize(
    ("options", "want"),
    [
        (("--jobs", "JOBS", "--policy", "presreve"), "--policy: unknown policy 'presreve'"),
        (("--jobs", "JOBS", "--time-model", "guess"), "--time-model: unknown time model 'guess'"),
        (
            ("--jobs", "JOBS", "--machines", "0"),
            "--machines: '0' is no whole number from 1 to 100000",
        ),
        (("--jobs", "/nowhere"), "/nowhere: no such file or directory"),
        ((), "one of the arguments --jobs --generate is required"),
        (("--jobs", "JOBS", "--queue", "lifo"), "--queue: invalid choice: 'lifo'"),
    ],
)
def test_mistakes_on_the_command_line(
    launcher: Launcher, tmp_path: Path, options: tuple[str, ...], want: str
) -> None:
    """A wrong option is named in one line, with status 2."""
    path = str(written(tmp_path, COLUMNS))
    done = launcher.run(
        "simulate",
        "--topology",
        "dgx1-v100",
        *(path if word == "JOBS" else word for word in options),
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"gpulaunch: error: {want}"), done.stderr


def test_lines_of_json_end_where_json_says(launcher: Launcher, tmp_path: Path) -> None:
    """A Unicode line separator in a text ends no line, and a byte order mark is not read."""
    text = '\ufeff{"name": "a\u2028b", "gpus": 1, "duration_s": 2}\n{"gpus": 1, "duration_s": 3}\n'
    (run,) = simulated(launcher, written(tmp_path, text))["runs"]
    assert [(job["name"], job["ended_s"]) for job in run["jobs"]] == [("a\u2028b", 2), ("job", 3)]


def test_columns_may_have_a_header(launcher: Launcher, tmp_path: Path) -> None:
    """The names of the columns may stand above them."""
    (run,) = simulated(launcher, written(tmp_path, f"{HEADER}\n{COLUMNS}"))["runs"]
    assert [job["name"] for job in run["jobs"]] == ["vgg16", "googlenet"]


def test_a_name_is_what_the_file_calls_a_job(launcher: Launcher, tmp_path: Path) -> None:
    """Jobs with names of their own stay apart, as launches do; a command is no name."""
    nameless = '[[job]]\ncommand = ["sleep"]\nduration_s = 9\n'
    apart = f'{nameless}\n{nameless}apart_from = ["sleep"]\n'
    for text, want in (
        (apart, [[0], [1]]),
        (apart.replace("duration", 'name = "sleep"\nduration', 1), [[0], [2]]),
    ):
        path = written(tmp_path, text)
        done = launcher.run(
            "simulate", "--topology", "power8-minsky", "--jobs", str(path), "--json"
        )
        assert [job["gpus"] for job in json.loads(done.stdout)["runs"][0]["jobs"]] == want


def test_a_job_that_can_never_run_is_named_with_its_file(launcher, tmp_path) -> None:
    """A job that no machine has GPUs for stops the replay, named with its file."""
    path = tmp_path / "jobs.toml"
    path.write_text("[[job]]\nname = 'big'\ngpus = 9\nduration_s = 1\n")
    done = launcher.run("simulate", *DGX, "--jobs", str(path))
    assert (done.returncode, done.stderr) == (
        2,
        f"gpulaunch: error: {path}: job 0 (big) can never run: 9 GPUs requested: dgx1-v100 has 8\n",
    )
