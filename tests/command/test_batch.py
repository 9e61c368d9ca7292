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

import pexpect
import pytest
import tomlkit
from conftest import DGX, Launcher, held, until, wait_for_end

from gpulaunch.batch.job_file import load_jobs
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.records import replace
from gpulaunch.simulate.event_loop import Rules, Stay, simulate
from gpulaunch.simulate.read_simulation import read_trace

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
        self._running: list[subprocess.Popen[str] | pexpect.spawn] = []

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
        process = self.launcher.start(
            "batch", self.file.name, *DGX, *options, cwd=self.home, **more
        )
        self._running.append(process)
        return process

    def run(self, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a batch to its end."""
        return self.launcher.run(
            "batch", self.file.name, *DGX, *options, cwd=self.home, timeout=100, **more
        )

    def at_terminal(self, *options: str) -> pexpect.spawn:
        """Start a batch at a terminal of its own."""
        arguments = ["batch", self.file.name, *DGX, *options]
        terminal = pexpect.spawn(
            self.launcher.script,
            arguments,
            env=self.launcher.environment | {"TERM": "xterm"},
            cwd=str(self.home),
            encoding="utf-8",
            timeout=30,
            dimensions=(24, 200),
        )
        terminal.delaybeforesend = None
        self._running.append(terminal)
        return terminal

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
            if isinstance(process, pexpect.spawn):
                process.close(force=True)
            else:
                process.kill()
                process.wait()
                process.stdout.close()
                process.stderr.close()
        for record in (*self.table()["leases"], *self.table()["queue"]):
            self.launcher.run(
                "free", record["id"], env=self.launcher.environment | {"GPULAUNCH_GRACE": "0.1s"}
            )
        self._started.close()


@pytest.fixture
def site(launcher: Launcher, tmp_path: Path) -> Iterator[Site]:
    site = Site(launcher, tmp_path)
    yield site
    site.clear_away()


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return the summary of a batch, which is all that it prints."""
    found = DONE.fullmatch(done.stderr)
    assert found, done.stderr
    return found[1]


# ------------------------------------------------------------------------------------------- a plan


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
    _, errors = process.communicate(timeout=60)
    assert errors.splitlines()[0] == (
        "gpulaunch: info: planned: 5 jobs in 4 groups on 2 GPUs, predicted to take 2 min, 3 min "
        "without sharing"
    )
    assert site.statuses() == dict.fromkeys(range(5), 0)


def test_what_cannot_be_planned(site: Site) -> None:
    """A file of which no job can be planned is refused; jobs beside planned ones run after them."""
    site.write([{"command": ["true"]}, light(1, 20, arrival_s=1, command=["true"])])
    done = site.run("--plan")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        "gpulaunch: error: no job can be planned: none shares one GPU from the beginning and has a "
        "duration_s"
    )
    site.write([{"command": ["true"]}, light(1, 20, command=["true"])])
    done = site.run("--plan")
    assert done.stderr.splitlines()[0] == (
        "gpulaunch: info: planned: 1 job in 1 group on 1 GPU, predicted to take 1 min, 1 min "
        "without sharing; 1 not planned"
    )


def test_a_plan_keeps_to_what_jobs_may_have(site: Site) -> None:
    """Planned jobs stay on the GPUs that a setting leaves them; the others start after them all."""
    jobs = [light(n, 90, command=site.gated(n)) for n in (1, 2, 3)]
    site.write([{"name": "alone", "command": site.gated(0)}, *jobs])
    process = site.start("--plan", env=site.launcher.environment | {"GPULAUNCH_ONLY": "3,5"})
    begun = [site.next_start() for _ in range(2)]
    assert {gpu for _, (gpu,) in begun} == {3, 5}
    site.release(begun[0][0])
    third, (gpu,) = site.next_start()
    assert (third != 0, gpu) == (True, begun[0][1][0])
    site.release(begun[1][0])
    site.release(third)
    assert site.next_start()[0] == 0
    site.release(0)
    assert process.wait(60) == 0


def test_a_part_of_a_gpu_is_not_planned(site: Site) -> None:
    """A job that says how much of a GPU it wants has its share, and no plan changes it."""
    jobs = [light(0, 20, command=["true"]), light(1, 20, share="1/4", command=["true"])]
    site.write(jobs)
    done = site.run("--plan")
    assert (done.returncode, "1 not planned" in done.stderr) == (0, True)


# ------------------------------------------------------------------------------- that all goes well

HOLDING = """
IFS=,; set -- $CUDA_VISIBLE_DEVICES; unset IFS
cd held && mkdir "$@" || exit 9
echo "$0 $CUDA_VISIBLE_DEVICES" >>../order
sleep 0.15
rmdir "$@"
"""


@pytest.mark.parametrize("count", [60])
def test_many_jobs(site: Site, count: int) -> None:
    """Many jobs each run once, in the file's order, alone on the GPUs that their results name."""
    (site.home / "held").mkdir()
    draw = random.Random(7)
    jobs = [
        {
            "gpus": draw.randint(1, 5),
            "bandwidth_sensitive": draw.random() < 0.5,
            "pattern": draw.choice(["ring", "all-to-all", "chain"]),
            "command": ["sh", "-c", HOLDING, str(number)],
        }
        for number in range(count)
    ]
    site.write(jobs)
    done = site.run()
    assert (said(done), done.returncode, done.stdout) == (
        f"{count} of {count} jobs ended with 0",
        0,
        "",
    )
    results = site.results()
    assert list(site.statuses().values()) == [0] * count
    ran = [line.split() for line in (site.home / "order").read_text().splitlines()]
    assert sorted(int(number) for number, _ in ran) == list(range(count))
    assert {int(number): gpus for number, gpus in ran} == {
        number: ",".join(map(str, result["gpus"])) for number, result in results.items()
    }
    assert [len(results[number]["gpus"]) for number in range(count)] == [
        job["gpus"] for job in jobs
    ]
    starts = [results[number]["started_s"] for number in range(count)]
    assert starts == sorted(starts)
    assert max(len(result["gpus"]) for result in results.values()) == 5
    assert any(result["started_s"] > 1 for result in results.values())
    assert site.launcher.records() == []


REPLAYED = ("preserve", "topo-aware")


@pytest.mark.parametrize("policy", REPLAYED)
@pytest.mark.parametrize("count", [12])
def test_the_simulator_says_what_a_batch_does(site: Site, policy: str, count: int) -> None:
    """`batch` and the simulator give a file of jobs the same GPUs and the same order of starts.

    As both papers validate their simulators; here each job ends when the simulation has it end.
    """
    stays = _with_gates(site, policy, count)
    moments = [0.0, *sorted(stay.ended_s for stay in stays)]
    assert len(set(moments)) == len(moments)
    batch = site.start("--at-once", "--policy", policy)
    for moment in moments:
        for stay in stays:
            if stay.ended_s == moment:
                site.release(stay.job.id)
        due = {stay.job.id: list(stay.gpus) for stay in stays if stay.started_s == moment}
        assert dict(site.next_start() for _ in due) == due, moment
    _, stderr = batch.communicate(timeout=30)
    assert (batch.returncode, DONE.fullmatch(stderr)[1]) == (
        0,
        f"{count} of {count} jobs ended with 0",
    )
    results = site.results()
    assert [results[stay.job.id]["gpus"] for stay in stays] == [list(stay.gpus) for stay in stays]
    assert sorted(results, key=lambda number: results[number]["started_s"]) == [
        stay.job.id for stay in stays
    ]
    assert any(stay.started_s > 0 for stay in stays)


def _with_gates(site: Site, policy: str, count: int) -> list[Stay]:
    """Write a file of random jobs that wait at gates; return the simulator's stays by start."""
    draw = random.Random(policy)
    site.write(
        [
            {
                "gpus": draw.randint(1, 5),
                "bandwidth_sensitive": draw.random() < 0.5,
                "pattern": draw.choice(["ring", "all-to-all", "tree"]),
                "duration_s": round(draw.uniform(10, 1000), 3),
                "arrival_s": draw.uniform(0, 1000),
                "profile": draw.choice(["chatty", "quiet"]),
                "command": site.gated(number),
            }
            for number in range(count)
        ],
        profile={
            "chatty": {
                "collocation": {
                    "source": "a test",
                    "slowdown_percentage": {"chatty": 20.0, "quiet": 3.0},
                }
            },
            "quiet": {"collocation": {"source": "a test", "slowdown_percentage": {"chatty": 5.0}}},
        },
    )
    machine = shown_machine("dgx1-v100", pytest.fail)
    trace = read_trace(load_jobs(str(site.file)), machine, pytest.fail)
    jobs = [replace(job, arrival_s=0.0) for job in trace.jobs]
    return simulate(machine.topology, jobs, Rules(policy=policy.replace("-", "_"), model="cut"))


def test_arrivals(site: Site) -> None:
    """Jobs start by arrival, then by place in the file, none early; --at-once does not wait."""
    site.write(
        [
            {"name": str(n), "arrival_s": s, "command": ["true"]}
            for n, s in enumerate([0.6, 0.2, 0.2, 0.0])
        ]
    )
    assert site.run().returncode == 0
    results = site.results()
    assert sorted(results, key=lambda number: results[number]["started_s"]) == [3, 1, 2, 0]
    assert [results[number]["submitted_s"] for number in range(4)] == [0.6, 0.2, 0.2, 0.0]
    assert all(one["started_s"] > one["submitted_s"] for one in results.values())
    site.file.write_text(site.file.read_text().replace("0.6", "600"))
    assert site.run("--at-once", "--results", "second").returncode == 0
    second = [json.loads(line) for line in (site.home / "second").read_text().splitlines()]
    # lines come as jobs end, and these run at once
    assert sorted((line["id"], line["submitted_s"]) for line in second[1:]) == [
        (0, 0.0),
        (1, 0.0),
        (2, 0.0),
        (3, 0.0),
    ]


def test_what_a_result_says(site: Site) -> None:
    """A result has the job's status, GPUs, lease and times; the first line is the batch's."""
    site.write(
        [{"name": "mine", "gpus": 3, "command": ["sh", "-c", "echo $GPULAUNCH_LEASE; exit 3"]}]
    )
    done = site.run()
    assert (said(done), done.returncode) == ("0 of 1 jobs ended with 0, 1 did not: 0 (mine): 3", 1)
    header, result = site.lines()
    assert header == {"batch": header["batch"], "began_at": header["began_at"]}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", header["began_at"])
    seconds = [result.pop(f"{name}_s") for name in ("submitted", "started", "ended")]
    assert 0 == seconds[0] < seconds[1] <= seconds[2] < 30  # a busy machine tells both at once
    assert result == {
        "id": 0,
        "name": "mine",
        "digest": result["digest"],
        "exit_status": 3,
        "gpus": [0, 2, 3],
        "uuids": ["GPU-dgx1-v100-0", "GPU-dgx1-v100-2", "GPU-dgx1-v100-3"],
        "lease": done.stdout.strip(),
        "interrupted": False,
    }


def test_exit_statuses(site: Site) -> None:
    """A job's exit status is that of its launch; the batch's is 1 if any of them is not 0."""
    commands = ["exit 0", "exit 3", "kill -KILL $$", "kill -INT $$", "sleep 60"]
    site.write([{"command": ["sh", "-c", command], "time_limit": "0.3s"} for command in commands])
    done = site.run("-q")
    assert (done.returncode, site.statuses()) == (1, {0: 0, 1: 3, 2: 137, 3: 130, 4: 124})
    assert done.stderr == "gpulaunch: error: the job ran longer than its limit of 0.3 s\n"


def test_a_job_that_gives_up_waiting(site: Site) -> None:
    """A job whose launch waits too long has 124 and no GPUs, and --resume runs it."""
    site.write([{"name": "late", "gpus": 6, "command": ["true"]}, {"command": ["true"]}])
    with held(site.launcher, *DGX, "-n", "4"):
        done = site.run(env=site.launcher.environment | {"GPULAUNCH_WAIT_TIMEOUT": "0.2s"})
    assert done.returncode == 1
    assert site.statuses() == {0: 124, 1: 0}
    assert {key: site.results()[0][key] for key in ("gpus", "lease", "started_s")} == {
        "gpus": [],
        "lease": None,
        "started_s": None,
    }
    done = site.run("--resume")
    assert (said(done), done.returncode, site.statuses()) == (
        "2 of 2 jobs ended with 0",
        0,
        {0: 0, 1: 0},
    )


def test_where_output_goes(site: Site) -> None:
    """Jobs print where the batch prints, with --logs to files."""
    site.write(
        [{"command": ["sh", "-c", f"cat; echo out {n}; echo err {n} >&2"]} for n in range(2)]
    )
    done = site.run("-q", input="for nobody")
    # They run beside each other, in no certain order.
    assert sorted(done.stdout.splitlines()) == ["out 0", "out 1"]
    assert sorted(done.stderr.splitlines()) == ["err 0", "err 1"]
    done = site.run("-q", "--results", "b", "--logs", "logs/of it")
    assert (done.stdout, done.stderr) == ("", "")
    assert [(site.home / f"logs/of it/{n}.log").read_text() for n in range(2)] == [
        f"out {n}\nerr {n}\n" for n in range(2)
    ]


def test_what_a_job_finds(site: Site) -> None:
    """A job is named in `status` and has a launch's variables plus those of its batch."""
    site.write(
        [{"name": "mine", "command": ["sh", "-c", "env >found; echo x >started; read line <gate"]}]
    )
    os.mkfifo(site.home / "gate")
    batch = site.start()
    site._started.readline()
    (lease,) = site.table()["leases"]
    assert (lease["name"], lease["pid"] != batch.pid) == ("mine", True)
    (site.home / "gate").write_text("\n")
    batch.communicate(timeout=30)
    header, _ = site.lines()
    found = dict(line.split("=", 1) for line in (site.home / "found").read_text().splitlines())
    new = {
        name: value
        for name, value in found.items()
        if name not in {*site.launcher.environment, "PWD", "OLDPWD"}
    }
    assert new == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0",
        "NVIDIA_VISIBLE_DEVICES": "GPU-dgx1-v100-0",
        "GPULAUNCH_LEASE": lease["id"],
        "GPULAUNCH_GPU_COUNT": "1",
        "GPULAUNCH_BATCH": f"{header['batch']}.0",
    } | ({"_": new["_"]} if "_" in new else {})


def test_profiles_of_the_file(site: Site) -> None:
    """Profiles in the file are known to its launches and come before others of the same name."""
    show = [
        "sh",
        "-c",
        "gpulaunch profile show vgg16 --json | grep gpus; echo $CUDA_VISIBLE_DEVICES",
    ]
    site.write([{"profile": "vgg16", "command": show}], profile={"vgg16": {"gpus": 5}})
    done = site.run("-q")
    assert done.stdout.splitlines()[-1].count(",") == 4
    assert '"gpus": 5' in done.stdout
    assert os.listdir(site.launcher.state) == []


def test_a_setting_that_no_flag_says(site: Site) -> None:
    """A setting without a flag, such as nvlink = false, is passed on to the launch."""
    site.write([{"only": ["0", "7"], "gpus": 2, "nvlink": False, "command": ["true"]}])
    assert site.run(env=site.launcher.environment | {"GPULAUNCH_NVLINK": "true"}).returncode == 0
    site.write([{"only": ["0", "7"], "gpus": 2, "command": ["true"]}])
    done = site.run("--results", "b", env=site.launcher.environment | {"GPULAUNCH_NVLINK": "true"})
    assert done.returncode == 2


# ----------------------------------------------------------------------------- files that are wrong

OK = '[[job]]\ncommand = ["true"]\n'
BROKEN = [
    ("no command", f"{OK}[[job]]\nname = 'x'\n", "3: job 1 (x) has no command"),
    ("no words", "[[job]]\ncommand = []\n", "2: command: [] is not a list of texts such as"),
    (
        "a command that is not there",
        f'{OK}[[job]]\ncommand = ["./no"]\n',
        "4: command: './no' is not found, or cannot ",
    ),
    (
        "what cannot be executed",
        '[[job]]\ncommand = ["/etc/passwd"]\n',
        "2: command: '/etc/passwd' is not found, or ",
    ),
    (
        "a NUL",
        '[[job]]\ncommand = ["true", "a\\u0000b"]\n',
        "2: command: 'a\\x00b' has a NUL in it, which no program",
    ),
    (
        "too many GPUs",
        f'{OK}[[job]]\nname = "big"\ngpus = 9\n{OK[8:]}',
        "3: job 1 (big) can never run: 9 GPUs requested",
    ),
    ("GPUs that do not exist", f"{OK}only = ['9']\n", "1: job 0 (true): only 9: '9' is no"),
    (
        "a name for nobody",
        f"{OK}name = '{'x' * 1001}'\n",
        f"1: job 0 ({'x' * 1001}): the name has 1001 characters",
    ),
    ("MAPA's columns", "3,ring,0,60,1,vgg16\n", "1: job 0 (vgg16) has no command"),
    (
        "half a character",
        '{"command": ["true", "\\ud800"]}\n',
        "1: command: '\\ud800' is no text that a program can be ",
    ),
]


@pytest.mark.parametrize(("sentence", "text", "want"), BROKEN, ids=[case[0] for case in BROKEN])
def test_a_file_that_is_wrong(site: Site, sentence: str, text: str, want: str) -> None:
    """A mistake is told with path and line before anything starts, and no results are begun."""
    site.file.write_text(
        text.replace('["true"]', '["touch", "ran"]', 1) if '["true"]' in text[:40] else text
    )
    done = site.run()
    expected = f"gpulaunch: error: jobs.toml:{want}".replace("(true)", "(touch)")
    assert (done.returncode, done.stdout, done.stderr[: len(expected)]) == (2, "", expected), (
        sentence
    )
    assert sorted(os.listdir(site.home)) == ["jobs.toml", "started"]


WRONG = [
    (
        ("--policy", "best"),
        2,
        "--policy: unknown policy 'best': did you mean best-fit or best-effort?",
    ),
    (("--results", "."), 125, ".: is a directory"),
    (("--results", "no/where"), 125, "no/where: no such file or directory"),
    (("--results", "started"), 2, "started: is no regular file of your own"),
    (
        ("--results", "jobs.toml"),
        2,
        "jobs.toml holds something other than results of a batch",
    ),
    (("--logs", "jobs.toml"), 125, "jobs.toml: not a directory"),
    (("--", "true"), 2, "'gpulaunch batch' runs no command, but -- is given"),
    (("more",), 2, "unrecognized arguments: more"),
]


@pytest.mark.parametrize(("options", "status", "want"), WRONG)
def test_a_command_line_that_is_wrong(
    site: Site, options: tuple[str, ...], status: int, want: str
) -> None:
    """What cannot be is told before anything starts."""
    site.write([{"command": ["touch", "ran"]}])
    before = site.file.read_text()
    done = site.run(*options)
    assert (done.returncode, done.stdout, done.stderr.splitlines()[0]) == (
        status,
        "",
        f"gpulaunch: error: {want}",
    )
    assert (sorted(os.listdir(site.home)), site.file.read_text()) == (
        ["jobs.toml", "started"],
        before,
    )


# ------------------------------------------------------------------------------------- ending early


def test_the_first_ctrl_c_starts_nothing_more(site: Site) -> None:
    """After the first Ctrl-C running jobs go on, and no more start; --resume runs the rest."""
    site.write(
        [
            {
                "gpus": 3,
                "command": [
                    "sh",
                    "-c",
                    f"trap 'echo INT >>heard' INT; {site.gated(0, 'exit 5')[2]}",
                ],
            },
            {"gpus": 3, "command": site.gated(1)},
            {"gpus": 8, "command": ["touch", "two"]},
            {"gpus": 1, "command": ["touch", "three"]},
        ]
    )
    terminal = site.at_terminal("--logs", "logs")
    assert {site.next_start()[0] for _ in range(2)} == {0, 1}
    until(lambda: site.table()["queue"])
    terminal.sendintr()
    terminal.expect_exact(
        "no more jobs are started, 2 jobs go on to their ends; Ctrl-C again ends them\r\n"
    )
    site.release(1)
    site.release(0)
    terminal.expect_exact(
        "1 of 4 jobs ended with 0, 1 did not: 0 (sh): 5, 2 have not run; results in"
    )
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.signalstatus == signal.SIGINT
    assert (site.statuses(), site.table()["queue"], site.table()["leases"]) == (
        {0: 5, 1: 0},
        [],
        [],
    )
    assert not (site.home / "heard").exists()
    done = site.run("--resume")
    assert (said(done), done.returncode) == ("3 of 4 jobs ended with 0, 1 did not: 0 (sh): 5", 1)
    assert site.statuses() == {0: 5, 1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize(
    ("number", "times", "returned"),
    [
        (signal.SIGINT, 2, -signal.SIGINT),
        (signal.SIGTERM, 1, 143),
        (signal.SIGHUP, 1, 129),
        (signal.SIGQUIT, 1, -3),
    ],
    ids=["INT INT", "TERM", "HUP", "QUIT"],
)
def test_ending_all(site: Site, number: signal.Signals, times: int, returned: int) -> None:
    """The second Ctrl-C, TERM, HUP and QUIT end running jobs by TERM, then by KILL."""
    stubborn = f"trap '' TERM; {site.gated(1)[2]}"
    site.write(
        [
            {"gpus": 2, "command": site.gated(0)},
            {"gpus": 2, "command": ["sh", "-c", stubborn]},
            {"gpus": 8, "command": ["touch", "two"]},
        ]
    )
    batch = site.start(env=site.launcher.environment | {"GPULAUNCH_GRACE": "1s"})
    for _ in range(2):
        site.next_start()
    for _ in range(times):
        batch.send_signal(number)
        said = batch.stderr.readline()
    assert re.fullmatch(r"gpulaunch: info: ending [23] jobs: TERM now, KILL after 1 s\n", said)
    stderr = batch.communicate(timeout=30)[1]
    assert stderr.startswith(
        "gpulaunch: info: 0 of 3 jobs ended with 0, 2 were ended early, 1 has not run; results in "
    )
    assert batch.returncode == returned
    assert {
        n: (line["exit_status"], line["interrupted"]) for n, line in site.results().items()
    } == {
        0: (143, True),
        1: (137, True),
    }
    assert site.launcher.records() == []
    again = site.start("--resume")
    assert {site.next_start()[0] for _ in range(2)} == {0, 1}
    site.release(0)
    site.release(1)
    again.communicate(timeout=30)
    assert (again.returncode, site.statuses()) == (0, {0: 0, 1: 0, 2: 0})


def test_a_third_signal_is_impatient(site: Site) -> None:
    """A third Ctrl-C does not wait for the grace to pass."""
    site.write([{"command": ["sh", "-c", f"trap '' TERM; {site.gated(0)[2]}"]}])
    batch = site.start(env=site.launcher.environment | {"GPULAUNCH_GRACE": "1h"})
    site.next_start()
    for want in ("no more jobs are started", "ending 1 job: TERM now, KILL after 1 h 00 min"):
        batch.send_signal(signal.SIGINT)
        assert want in batch.stderr.readline()
    batch.send_signal(signal.SIGINT)
    batch.communicate(timeout=30)
    assert (site.statuses(), site.launcher.records()) == ({0: 137}, [])


def test_ignored_signals_stay_ignored(site: Site) -> None:
    """Under nohup a hang-up ends neither the batch nor its jobs."""
    site.write([{"command": site.gated(0)}])
    batch = site.start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    site.next_start()
    batch.send_signal(signal.SIGHUP)
    os.kill(site.pid, signal.SIGHUP)
    site.release(0)
    assert (batch.wait(30), site.statuses()) == (0, {0: 0})


def test_a_line_for_each_job_at_a_terminal(site: Site) -> None:
    """Where jobs print to the terminal a line tells of each that has ended; with -q none does."""
    site.write([{"name": "mine", "gpus": 3, "command": ["sh", "-c", "echo here; exit 2"]}])
    terminal = site.at_terminal()
    terminal.expect(
        r"here\r\n"
        r"gpulaunch: info: 1 of 1: job 0 \(mine\) ended with 2 after [\d.]+ s on GPUs 0,2,3\r\n"
    )
    terminal.expect(pexpect.EOF)
    terminal = site.at_terminal("--results", "b", "-q")
    terminal.expect(pexpect.EOF)
    assert terminal.before == "here\r\n"


# ----------------------------------------------------------------------------------------- going on


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
    error = (
        f"gpulaunch: error: {RESULTS}: another batch is writing there, or its jobs are still "
        "ending\n"
    )
    assert (refused.returncode, refused.stderr) == (75, error)
    (lease,) = site.table()["leases"]
    site.release(1)
    wait_for_end(lease["pid"])
    refused = site.run()
    error = f"gpulaunch: error: {RESULTS} already holds results of a batch\n"
    hint = (
        "gpulaunch: hint: --resume continues them; to begin anew, remove the file or give "
        "--results FILE\n"
    )
    assert (refused.returncode, refused.stderr) == (2, error + hint)
    again = site.start("--resume")
    site.next_start()
    site.release(0)
    assert (again.wait(30), site.statuses()) == (0, {0: 0, 1: 0, 2: 0})
    assert (site.home / "ran").read_text().split() == ["0", "1", "1", "2"]


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
    assert said(site.run("--resume")) == "4 of 4 jobs ended with 0"
    assert len((site.home / "ran").read_text().split()) == 6


def test_resume_begins_what_has_not_begun(site: Site) -> None:
    """--resume without results begins the batch, so that one command does for both."""
    site.write([{"command": ["true"]}])
    assert [said(site.run("--resume")) for _ in range(2)] == ["1 of 1 jobs ended with 0"] * 2
    assert len(site.lines()) == 2


# ---------------------------------------------------------------------------------- results on disk


@pytest.mark.parametrize("cut", [1, 20])
def test_a_torn_line(site: Site, cut: int) -> None:
    """A last line torn by a crash is skipped, and its job run again; earlier lines count."""
    site.write([{"command": ["sh", "-c", f"echo {n} >>ran"]} for n in range(3)])
    assert site.run().returncode == 0
    whole = (site.home / RESULTS).read_bytes()
    last = json.loads(whole.splitlines()[-1])["id"]  # they end in any order
    (site.home / RESULTS).write_bytes(whole[:-cut])
    done = site.run("--resume")
    added = (site.home / RESULTS).read_bytes().removeprefix(whole[:-cut])
    if cut == 1:  # only its end is missing
        assert (said(done), added) == ("3 of 3 jobs ended with 0", b"")
    else:
        warning, summary = done.stderr.splitlines(keepends=True)
        assert warning == (
            f"gpulaunch: warning: {RESULTS}:4: passed over: this line is torn, or not a batch's\n"
        )
        assert DONE.fullmatch(summary)[1] == "3 of 3 jobs ended with 0"
        torn, new = added.splitlines()
        assert (torn, json.loads(new)["id"]) == (b"", last)
    again = [str(last)] if cut > 1 else []
    assert sorted((site.home / "ran").read_text().split()) == sorted(["0", "1", "2", *again])


def test_results_that_are_removed(site: Site) -> None:
    """When a running batch's results are removed it says so, and starts no more jobs."""
    site.write([{"command": site.gated(0)}, {"gpus": 8, "command": ["touch", "ran"]}])
    batch = site.start()
    site.next_start()
    (site.home / RESULTS).unlink()
    site.release(0)
    error, summary, *_ = batch.communicate(timeout=30)[1].splitlines()
    assert (
        error == f"gpulaunch: error: {RESULTS}: no such file or directory: no more jobs are started"
    )
    assert DONE.fullmatch(summary + "\n")[1] == "1 of 2 jobs ended with 0, 1 has not run"
    assert (batch.returncode, (site.home / "ran").exists()) == (125, False)


def test_no_room_to_begin(site: Site) -> None:
    """When not even the first line can be written nothing starts, and the file is gone again."""
    site.write([{"command": ["touch", "ran"]}])

    def no_room() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = site.run(preexec_fn=no_room)
    assert (done.returncode, done.stderr) == (125, f"gpulaunch: error: {RESULTS}: file too large\n")
    assert sorted(os.listdir(site.home)) == ["jobs.toml", "started"]
