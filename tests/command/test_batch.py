"""`gpulaunch batch`: a file of jobs through the queue, in order, once each, whatever befalls it."""

import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from conftest import DGX, Launcher, complaint, held, until, wait_for_end

RESULTS = "jobs.toml.results.jsonl"
DONE = re.compile(
    r"gpulaunch: info: (.*); results in jobs\.toml\.results\.jsonl(; --resume runs the rest)?\n"
)


class Site:
    """A directory to run batches in, and jobs that start and end under the test's control.

    Attributes:
        launcher: of the table.
        home: the directory.
        file: the file of jobs.
    """

    def __init__(self, launcher: Launcher, home: Path) -> None:
        self.launcher = launcher
        self.home = home / "work"
        self.home.mkdir()
        self.file = self.home / "jobs.toml"
        os.mkfifo(self.home / "started")
        self._started = os.fdopen(os.open(self.home / "started", os.O_RDWR))
        self._running: list[subprocess.Popen[str]] = []

    def write(self, jobs: Sequence[dict[str, Any]], **top: Any) -> None:
        """Write the file of jobs."""
        self.file.write_text(tomlkit.dumps({"job": list(jobs), **top}))

    def gated(self, number: int, then: str = "exit 0") -> list[str]:
        """Return a command that prints its number and GPUs, waits for release, then runs `then`."""
        gate = self.home / f"gate.{number}"
        if not gate.exists():
            os.mkfifo(gate)
        script = (
            f'echo "{number} $CUDA_VISIBLE_DEVICES $$" >started; read line <gate.{number}; {then}'
        )
        return ["sh", "-c", script]

    def next_start(self) -> tuple[int, list[int]]:
        """Return number and GPUs of the job that starts next."""
        number, gpus, pid = self._started.readline().split()
        self.pid = int(pid)
        return int(number), [int(gpu.rpartition("-")[2]) for gpu in gpus.split(",")]

    def release(self, number: int) -> None:
        """Let a job go on, once it waits for that."""
        (self.home / f"gate.{number}").write_text("\n")

    def start(self, *options: str, **more: Any) -> subprocess.Popen[str]:
        """Start a batch."""
        words = ("batch", self.file.name, *DGX, *options)
        process = self.launcher.start(*words, cwd=self.home, **more)
        self._running.append(process)
        return process

    def run(self, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a batch to its end."""
        return self.launcher.run("batch", self.file.name, *DGX, *options, cwd=self.home, **more)

    def lines(self) -> list[dict[str, Any]]:
        """Return the records of the results file, line by line."""
        return [json.loads(line) for line in (self.home / RESULTS).read_text().splitlines()]

    def results(self) -> dict[int, dict[str, Any]]:
        """Return the last result of each job."""
        return {line["id"]: line for line in self.lines() if "id" in line}

    def statuses(self) -> dict[int, int]:
        """Return the exit statuses of jobs."""
        return {number: result["exit_status"] for number, result in sorted(self.results().items())}

    def table(self) -> dict[str, Any]:
        """Return the table of the machine."""
        return json.loads(self.launcher.run("status", *DGX, "--json").stdout)

    def clear_away(self) -> None:
        for process in self._running:
            with process:
                process.kill()
        environment = self.launcher.environment | {"GPULAUNCH_GRACE": "0.1s"}
        self.launcher.run("free", "--mine", *DGX, env=environment)
        self._started.close()


@pytest.fixture
def site(launcher: Launcher, tmp_path: Path) -> Iterator[Site]:
    site = Site(launcher, tmp_path)
    yield site
    site.clear_away()


def from_stdin(site: Site, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a batch of lines."""
    words = ("batch", "-q", *DGX, "--results", RESULTS, *options, "-")
    return site.launcher.run(*words, cwd=site.home, input=text)


def forget(site: Site, *numbers: int) -> None:
    """Remove the results of some jobs."""
    path = site.home / RESULTS
    kept = path.read_text().splitlines(keepends=True)
    path.write_text("".join(one for one in kept if json.loads(one).get("id") not in numbers))


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return the summary of a batch, which is all that it prints."""
    found = DONE.fullmatch(done.stderr)
    assert found, done.stderr
    return found[1]


def light(number: int, sm: float, **more: Any) -> dict[str, Any]:
    return {
        "name": f"job {number}",
        "share": True,
        "utilization": [sm, 5],
        "memory": "1GiB",
        "duration_s": 60,
        **more,
    }


def test_a_plan_is_carried_out(site: Site) -> None:
    """Jobs start in the groups of the plan; the next on a GPU waits for the last of the group."""
    utilizations = [90, 90, 90, 8, 8]
    jobs = [light(n, sm, command=site.gated(n)) for n, sm in enumerate(utilizations)]
    site.write(jobs)
    where = ("--topology", "rtx-a6000-2")
    process = site.launcher.start("batch", site.file.name, *where, "--plan", cwd=site.home)
    assert dict(site.next_start() for _ in range(3)) == {3: [0], 4: [0], 0: [1]}
    site.release(3)
    until(lambda: 3 in site.results())
    table = json.loads(site.launcher.run("status", *where, "--json").stdout)
    assert (len(table["leases"]), table["queue"]) == (2, [])
    site.release(4)
    assert site.next_start() == (2, [0])
    site.release(0)
    assert site.next_start() == (1, [1])
    site.release(1)
    site.release(2)
    _, errors = process.communicate()
    assert errors.splitlines()[0] == (
        "gpulaunch: info: planned: 5 jobs in 4 groups on 2 GPUs, predicted to take 2 min, 3 min "
        "without sharing"
    )
    assert site.statuses() == dict.fromkeys(range(5), 0)


def test_what_cannot_be_planned(site: Site) -> None:
    """A file of which no job can be planned is refused; jobs beside planned ones run after them.

    A job that says how much of a GPU it wants has its share, and no plan changes it.
    """
    rest = [{"command": ["true"]}, light(1, 20, share="1/4", command=["true"])]
    site.write([*rest, light(2, 20, arrival_s=1, command=["true"])])
    done = site.run("--plan")
    problem = "no job can be planned: none shares one GPU"
    assert (done.returncode, problem in done.stderr) == (2, True)
    site.write([*rest, light(2, 20, command=["true"])])
    assert "planned: 1 job in 1 group on 1 GPU, " in site.run("--plan").stderr
    assert site.statuses() == {0: 0, 1: 0, 2: 0}


def test_the_simulator_says_what_a_batch_does(site: Site) -> None:
    """`batch` and the simulator give a file of jobs the same GPUs and the same order of starts.

    As both papers validate their simulators; here each job ends when the simulation has it end.
    """
    draw = random.Random("preserve")
    jobs = [
        {
            "gpus": draw.randint(1, 5),
            "bandwidth_sensitive": draw.random() < 0.5,
            "pattern": draw.choice(["ring", "all-to-all", "tree"]),
            "duration_s": round(draw.uniform(10, 1000), 3),
            "command": site.gated(number),
        }
        for number in range(8)
    ]
    site.write(jobs)
    options = ("--jobs", site.file.name, "--policy", "preserve", "--json")
    done = site.launcher.run("simulate", *DGX, *options, cwd=site.home)
    stays = json.loads(done.stdout)["runs"][0]["jobs"]
    batch = site.start("--policy", "preserve")
    for moment in sorted({0.0, *(stay["ended_s"] for stay in stays)}):
        for stay in stays:
            if stay["ended_s"] == moment:
                site.release(stay["id"])
        due = {stay["id"]: stay["gpus"] for stay in stays if stay["started_s"] == moment}
        assert dict(site.next_start() for _ in due) == due, moment
    assert (batch.communicate()[0], batch.returncode) == ("", 0)
    results = site.results()
    assert [results[stay["id"]]["gpus"] for stay in stays] == [stay["gpus"] for stay in stays]
    assert any(stay["started_s"] > 0 for stay in stays)


def test_arrivals(site: Site) -> None:
    """Jobs start by arrival, then by place in the file, none early; --at-once does not wait."""
    arrivals = [0.3, 0.1, 0.1, 0.0]
    site.write([{"arrival_s": arrival, "command": ["true"]} for arrival in arrivals])
    assert site.run().returncode == 0
    results = site.results()
    assert sorted(results, key=lambda number: results[number]["started_s"]) == [3, 1, 2, 0]
    assert [results[number]["submitted_s"] for number in range(4)] == arrivals
    assert all(one["started_s"] > one["submitted_s"] for one in results.values())
    site.write([{"arrival_s": 600, "command": ["true"]}])
    assert site.run("--at-once", "--results", "b").returncode == 0


def test_what_a_job_finds_and_a_result_says(site: Site) -> None:
    """A job has a launch's variables and its batch's; a result its status, GPUs, lease and times.

    The first line of the results is the batch's.
    """
    script = "env | grep ^GPULAUNCH_[BGL] >found; exit 3"
    site.write([{"name": "mine", "gpus": 3, "command": ["sh", "-c", script]}])
    done = site.run()
    assert (said(done), done.returncode) == ("0 of 1 jobs ended with 0, 1 did not: 0 (mine): 3", 1)
    header, result = site.lines()
    assert header == {"batch": header["batch"], "began_at": header["began_at"]}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", header["began_at"])
    seconds = [result.pop(f"{name}_s") for name in ("submitted", "started", "ended")]
    assert 0 == seconds[0] < seconds[1] <= seconds[2]  # a busy machine tells both at once
    assert result == {
        "id": 0,
        "name": "mine",
        "digest": result["digest"],
        "exit_status": 3,
        "gpus": [0, 2, 3],
        "uuids": ["GPU-dgx1-v100-0", "GPU-dgx1-v100-2", "GPU-dgx1-v100-3"],
        "lease": result["lease"],
        "interrupted": False,
    }
    assert sorted((site.home / "found").read_text().splitlines()) == [
        f"GPULAUNCH_BATCH={header['batch']}.0",
        "GPULAUNCH_GPU_COUNT=3",
        f"GPULAUNCH_LEASE={result['lease']}",
    ]


def test_exit_statuses_and_output(site: Site) -> None:
    """A job's exit status is that of its launch; the batch's is 1 if any of them is not 0.

    Jobs print where the batch prints, with --logs to files, and have no stdin.
    """
    commands = ["cat; echo out", "echo err >&2; exit 3", "kill -KILL $$", "kill -INT $$"]
    jobs = [{"command": ["sh", "-c", command]} for command in commands]
    site.write([*jobs, {"command": ["sleep", "60"], "time_limit": "0.3s"}])
    late = "gpulaunch: error: the job ran longer than its limit of 0.3 s\n"
    done = site.run("-q", input="for nobody")
    assert (done.returncode, site.statuses()) == (1, {0: 0, 1: 3, 2: 137, 3: 130, 4: 124})
    assert (done.stdout, sorted(done.stderr.splitlines(keepends=True))) == (
        "out\n",
        ["err\n", late],
    )
    done = site.run("-q", "--results", "b", "--logs", "logs/of it")
    assert (done.stdout, done.stderr) == ("", "")
    logs = [(site.home / f"logs/of it/{n}.log").read_text() for n in range(5)]
    assert logs == ["out\n", "err\n", "", "", late]


def test_settings_and_profiles_of_the_file(site: Site) -> None:
    """Profiles in the file come before others of the same name; what no flag says is passed on."""
    show = "gpulaunch profile show vgg16 --json | grep gpus; echo $CUDA_VISIBLE_DEVICES"
    pair = {"only": ["0", "7"], "gpus": 2, "nvlink": False, "command": ["true"]}
    site.write(
        [pair, {"profile": "vgg16", "command": ["sh", "-c", show]}], profile={"vgg16": {"gpus": 5}}
    )
    done = site.run("-q", env=site.launcher.environment | {"GPULAUNCH_NVLINK": "true"})
    assert (done.returncode, done.stdout.splitlines()[-1].count(",")) == (0, 4)
    assert '"gpus": 5' in done.stdout
    assert site.launcher.records() == []


def test_a_job_that_gives_up_waiting(site: Site) -> None:
    """A job whose launch waits too long has 124 and no GPUs, and --resume runs it."""
    site.write([{"name": "late", "gpus": 6, "command": ["true"]}, {"command": ["true"]}])
    with held(site.launcher, *DGX, "-n", "4"):
        done = site.run(env=site.launcher.environment | {"GPULAUNCH_WAIT_TIMEOUT": "0.2s"})
    assert done.returncode == 1
    assert site.statuses() == {0: 124, 1: 0}
    late = site.results()[0]
    assert (late["gpus"], late["lease"], late["started_s"]) == ([], None, None)
    done = site.run("--resume")
    assert (said(done), site.statuses()) == ("2 of 2 jobs ended with 0", {0: 0, 1: 0})


OK = '[[job]]\ncommand = ["touch", "ran"]\n'
BROKEN = {
    f"{OK}[[job]]\nname = 'x'\n": "3: job 1 (x) has no command",
    f'{OK}[[job]]\ncommand = ["./no"]\n': "4: command: './no' is not found, or cannot ",
    f'{OK}[[job]]\ncommand = ["true", "a\\u0000b"]\n': "4: command: 'a\\x00b' is no text that",
    f'{OK}[[job]]\ncommand = ["true"]\ngpus = 9\n': "3: job 1 (true) can never run: 9 GPUs",
    "# nothing\n": " there is no job in it",
    f"{OK}name = 'a'\nafter = ['a']\n": "4: after: no job before this one in the file",
    f"{OK}name = 'a'\nafter = [':any']\n": "4: after: ':any': a name is missing",
}


WRONG = [
    (("--policy", "best"), 2, "--policy: unknown policy 'best'"),
    (("--results", "no/where"), 125, "no/where: no such file or directory"),
    (("--results", "started"), 2, "started: is no regular file of your own"),
    (("--results", "jobs.toml"), 2, "jobs.toml holds something other than results of a batch"),
    (("--logs", "jobs.toml"), 125, "jobs.toml: not a directory"),
]


def test_what_is_wrong(site: Site) -> None:
    """A mistake is told, in a file with its line, before anything starts or results are begun."""
    mistakes = [(text, (), 2, f"jobs.toml:{want}") for text, want in BROKEN.items()]
    for text, options, status, want in [*mistakes, *((OK, *row) for row in WRONG)]:
        site.file.write_text(text)
        done = site.run(*options)
        assert done.stderr.startswith(f"gpulaunch: error: {want}"), done.stderr
        assert (done.returncode, done.stdout) == (status, "")
        found = (sorted(os.listdir(site.home)), site.file.read_text())
        assert found == (["jobs.toml", "started"], text)


def test_the_first_ctrl_c_starts_nothing_more(site: Site) -> None:
    """After the first Ctrl-C running jobs go on, and no more start; --resume runs the rest."""
    deaf = f"trap 'echo INT >>heard' INT; {site.gated(0, 'exit 5')[2]}"
    site.write(
        [
            {"gpus": 3, "command": ["sh", "-c", deaf]},
            {"gpus": 3, "command": site.gated(1)},
            {"gpus": 8, "command": ["touch", "two"]},
        ]
    )
    batch = site.start("--logs", "logs", start_new_session=True)
    assert {site.next_start()[0] for _ in range(2)} == {0, 1}
    until(lambda: site.table()["queue"])
    os.killpg(batch.pid, signal.SIGINT)
    assert batch.stderr.readline() == (
        "gpulaunch: info: no more jobs are started, 2 jobs go on to their ends; Ctrl-C again ends "
        "them\n"
    )
    site.release(1)
    site.release(0)
    summary = "1 of 3 jobs ended with 0, 1 did not: 0 (sh): 5, 1 has not run"
    assert DONE.fullmatch(batch.communicate()[1])[1] == summary
    assert batch.returncode == -signal.SIGINT
    table = site.table()
    assert (site.statuses(), table["queue"], table["leases"]) == ({0: 5, 1: 0}, [], [])
    assert not (site.home / "heard").exists()
    done = site.run("--resume")
    assert (said(done), done.returncode) == ("2 of 3 jobs ended with 0, 1 did not: 0 (sh): 5", 1)
    assert site.statuses() == {0: 5, 1: 0, 2: 0}


@pytest.mark.parametrize(
    ("number", "times", "grace", "returned"),
    [(signal.SIGINT, 3, "1 h 00 min", -signal.SIGINT), (signal.SIGTERM, 1, "0.3 s", 143)],
    ids=["INT INT INT", "TERM"],
)
def test_ending_all(
    site: Site, number: signal.Signals, times: int, grace: str, returned: int
) -> None:
    """The second Ctrl-C and TERM end running jobs by TERM, then by KILL, the third at once."""
    stubborn = f"trap '' TERM; {site.gated(1)[2]}"
    site.write(
        [
            {"gpus": 2, "command": site.gated(0)},
            {"gpus": 2, "command": ["sh", "-c", stubborn]},
            {"gpus": 8, "command": ["touch", "two"]},
        ]
    )
    setting = {"GPULAUNCH_GRACE": "1h" if times > 1 else "0.3s"}
    batch = site.start(env=site.launcher.environment | setting)
    for _ in range(2):
        site.next_start()
    told = ""
    while "ending" not in told:
        batch.send_signal(number)
        told = batch.stderr.readline()
    want = f"gpulaunch: info: ending [23] jobs: TERM now, KILL after {grace}\n"
    assert re.fullmatch(want, told)
    if times > 1:
        batch.send_signal(number)
    summary = "0 of 3 jobs ended with 0, 2 were ended early, 1 has not run"
    assert DONE.fullmatch(batch.communicate()[1])[1] == summary
    ended = {n: (one["exit_status"], one["interrupted"]) for n, one in site.results().items()}
    assert (batch.returncode, ended) == (returned, {0: (143, True), 1: (137, True)})
    assert site.launcher.records() == []


def test_ignored_signals_stay_ignored(site: Site) -> None:
    """Under nohup a hang-up ends neither the batch nor its jobs."""
    site.write([{"command": site.gated(0)}])
    batch = site.start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    site.next_start()
    batch.send_signal(signal.SIGHUP)
    os.kill(site.pid, signal.SIGHUP)
    site.release(0)
    assert (batch.wait(), site.statuses()) == (0, {0: 0})


def test_kill_and_resume(site: Site) -> None:
    """After kill -9 of the batch its jobs get TERM; --resume waits for their ends, and runs them.

    Of three jobs one has ended, one takes a while to end, and one still waits for GPUs.
    """
    slow = f"trap 'echo heard >started; read line <gate.1' TERM; {site.gated(0)[2]}"
    site.write(
        [
            {"command": ["sh", "-c", "echo 0 >>ran"]},
            {"gpus": 3, "command": ["sh", "-c", f"echo 1 >>ran; {slow}"]},
            {"gpus": 8, "command": ["sh", "-c", "echo 2 >>ran"]},
        ]
    )
    os.mkfifo(site.home / "gate.1")
    batch = site.start(env=site.launcher.environment | {"GPULAUNCH_GRACE": "1h"})
    site.next_start()
    until(lambda: site.table()["queue"] and 0 in site.results())
    batch.kill()
    assert site._started.readline() == "heard\n"
    until(lambda: not site.table()["queue"])
    refused = site.run("--resume")
    problem = f"{RESULTS}: another batch is writing there, or its jobs are still ending"
    assert (refused.returncode, refused.stderr) == (75, complaint(problem))
    (lease,) = site.table()["leases"]
    site.release(1)
    wait_for_end(lease["pid"])
    refused = site.run()
    problem = f"{RESULTS} already holds results of a batch"
    hint = "--resume continues them; to begin anew, remove the file or give --results FILE"
    assert (refused.returncode, refused.stderr) == (2, complaint(problem, hint))
    again = site.start("--resume")
    site.next_start()
    site.release(0)
    assert (again.wait(), site.statuses()) == (0, {0: 0, 1: 0, 2: 0})
    assert (site.home / "ran").read_text().split() == ["0", "1", "1", "2"]


def test_ended_jobs_leave_nothing_open(site: Site) -> None:
    """A batch closes the two descriptors that it has of each job when that has ended."""
    batch = "$(grep PPid /proc/$PPID/status | cut -f 2)"
    count = ["sh", "-c", f"ls /proc/{batch}/fd | wc -l >>counts"]
    site.write([{"command": count, "gpus": 8}] * 8)
    assert site.run().returncode == 0
    first, *_, last = map(int, (site.home / "counts").read_text().split())
    assert last - first < 8  # the next job may have begun or not; 7 ended ones would have 14


def test_a_job_that_has_changed(site: Site) -> None:
    """--resume runs a job again whose entry or place in the file has changed, but not its times."""
    jobs = [{"name": name, "command": ["sh", "-c", f"echo {name} >>ran"]} for name in "abcd"]
    site.write(jobs[:3])
    assert site.run().returncode == 0
    jobs[0]["duration_s"] = 7.0
    jobs[0]["arrival_s"] = 0.0
    jobs[1]["gpus"] = 2
    site.write([*jobs[:2], jobs[3], jobs[2]])
    assert said(site.run("--resume")) == "4 of 4 jobs ended with 0"
    ran = (site.home / "ran").read_text().split()
    assert (sorted(ran[:3]), sorted(ran[3:])) == (["a", "b", "c"], ["b", "c", "d"])


def test_a_torn_line(site: Site) -> None:
    """A last line torn by a crash is skipped, and its job run again; earlier lines count.

    --resume without results begins the batch. A line of which only the end is missing counts.
    """
    site.write([{"command": ["sh", "-c", f"echo {n} >>ran"]} for n in range(3)])
    assert site.run("--resume").returncode == 0
    whole = (site.home / RESULTS).read_bytes()
    last = json.loads(whole.splitlines()[-1])["id"]  # they end in any order
    (site.home / RESULTS).write_bytes(whole[:-1])
    assert said(site.run("--resume")) == "3 of 3 jobs ended with 0"
    (site.home / RESULTS).write_bytes(whole[:-20])
    done = site.run("--resume")
    added = (site.home / RESULTS).read_bytes().removeprefix(whole[:-20])
    warning, summary = done.stderr.splitlines(keepends=True)
    assert warning == (
        f"gpulaunch: warning: {RESULTS}:4: passed over: this line is torn, or not a batch's\n"
    )
    assert DONE.fullmatch(summary)[1] == "3 of 3 jobs ended with 0"
    torn, new = added.splitlines()
    assert (torn, json.loads(new)["id"]) == (b"", last)
    ran = (site.home / "ran").read_text().split()
    assert sorted(ran) == sorted(["0", "1", "2", str(last)])


def test_results_that_are_removed(site: Site) -> None:
    """When a running batch's results are removed it says so, and starts no more jobs."""
    site.write([{"command": site.gated(0)}, {"gpus": 8, "command": ["touch", "ran"]}])
    batch = site.start()
    site.next_start()
    (site.home / RESULTS).unlink()
    site.release(0)
    error, summary, *_ = batch.communicate()[1].splitlines()
    assert (
        error == f"gpulaunch: error: {RESULTS}: no such file or directory: no more jobs are started"
    )
    assert DONE.fullmatch(summary + "\n")[1] == "1 of 2 jobs ended with 0, 1 has not run"
    assert (batch.returncode, (site.home / "ran").exists()) == (125, False)


def test_each_line_of_stdin_is_a_job(site: Site) -> None:
    """Lines are for sh, with its quotes and pipes; blank ones and comments are no jobs.

    They are read before the first job, whose stdin is empty, and need not be UTF-8.
    """
    text = """# sweeps
    \t
  echo 'a  b' "$((1 + 1))" | cat >0
   # echo no >no
echo "$CUDA_VISIBLE_DEVICES" >1 # at the end
cat >2; printf '%s' '\udcff' >name\udcfe
printf crlf >3\r
exit 3"""
    done = from_stdin(site, text, "-n", "2")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert site.statuses() == {0: 0, 1: 0, 2: 0, 3: 0, 4: 3}
    read = [(site.home / name).read_text() for name in "023"]
    assert read == ["a  b 2\n", "", "crlf"]
    assert (site.home / os.fsdecode(b"name\xfe")).read_bytes() == b"\xff"
    assert len((site.home / "1").read_text().split(",")) == 2
    assert not (site.home / "no").exists()


def test_lines_are_resumed(site: Site) -> None:
    """Lines that have ended are not run again, if it is said where their results are.

    Else these are private, since lines may have secrets in them.
    """
    text = "echo a >>ran\necho b >>ran; exit 1\n"
    assert from_stdin(site, text).returncode == 1
    forget(site, 1)
    assert from_stdin(site, text, "--resume").returncode == 1
    assert (site.home / "ran").read_text() == "a\nb\nb\n"
    done = site.launcher.run("batch", *DGX, "--resume", "-", input=text)
    error = complaint("--resume: which results? --results FILE names them")
    assert (done.returncode, done.stderr) == (2, error)
    home = {**site.launcher.environment, "XDG_STATE_HOME": str(site.home / "state-home")}
    assert site.launcher.run("batch", "-q", *DGX, "-", input="true", env=home).returncode == 0
    folder = site.home / "state-home" / "gpulaunch" / "batches"
    assert (folder.stat().st_mode & 0o777, len(list(folder.iterdir()))) == (0o700, 1)


def job(name: str, script: str, *after: str) -> dict[str, Any]:
    """Return a job that runs a script for sh, after others if any are given."""
    later = {"after": list(after)} if after else {}
    return {"name": name, "command": ["sh", "-c", script], **later}


def test_jobs_that_come_after_others(site: Site) -> None:
    """A job begins after the end of others; it is not run if one failed, unless any end will do.

    Those that wait for others hold up none: the last job lets the first one go on. What ended in an
    earlier run counts, too.
    """
    os.mkfifo(site.home / "gate")
    site.write(
        [
            job("a", "read line <gate; echo a >>ran; exit 3"),
            job("b", "echo b >>ran", "a"),
            job("c", "echo c >>ran", "a:any"),
            job("d", "echo d >>ran", "b:any,c", "a:any"),
            job("e", "echo e >>ran", "b"),
            job("g", "echo g >>ran", "d"),
            job("f", "echo go >gate"),
        ]
    )
    want = {0: 3, 1: 125, 2: 0, 3: 0, 4: 125, 5: 0, 6: 0}
    assert (site.run("-q").returncode, site.statuses()) == (1, want)
    assert (site.home / "ran").read_text() == "a\nc\nd\ng\n"
    forget(site, 1, 3)
    assert (site.run("-q", "--resume").returncode, site.statuses()) == (1, want)
    assert (site.home / "ran").read_text() == "a\nc\nd\ng\nd\n"
