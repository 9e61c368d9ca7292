"""gpulaunch -d, logs, wait, attach, --after and --notify: jobs that nobody sits before."""

import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest
from conftest import DGX, Launcher, complaint, held, until, wait_for_end

QUIET = ("-qd", *DGX)


class Site:
    """Where detached jobs are started, and told when to end.

    Attributes:
        launcher: of the table.
        home: the home directory.
    """

    def __init__(self, launcher: Launcher, home: Path) -> None:
        self.launcher, self.home = launcher, home

    def detach(self, *arguments: str, **options) -> str:
        """Detach a launch; return its name."""
        done = self.launcher.run(*QUIET, *arguments, cwd=self.home, **options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.removesuffix("\n")

    def held(self, name: str, *options: str, end: str = "exit 3") -> None:
        """Detach a job that prints, waits for a line in the FIFO of its name, and ends."""
        os.mkfifo(self.home / name)
        script = f'echo "begun $GPULAUNCH_DETACHED"; read line <{name}; echo "got $line"; {end}'
        self.detach("--name", name, *options, "--", "sh", "-c", script)

    def end(self, name: str) -> None:
        """Let a held job end."""
        (self.home / name).write_text("word\n")

    def wait(self, *names: str) -> int:
        """Return the exit status of `gpulaunch wait`."""
        return self.launcher.run("wait", *names).returncode

    def logs(self, name: str, *options: str) -> str:
        """Return the output of a job."""
        return self.launcher.run("logs", name, *options).stdout

    def past(self) -> dict[str, dict]:
        """Return the lines of the history, by name."""
        lines = []
        for path in (self.home / ".local/state/gpulaunch/history").glob("*.jsonl"):
            lines += map(json.loads, path.read_text().splitlines())
        return {line["name"]: line for line in lines}

    def begun(self, name: str) -> dict:
        """Wait until a job has its GPUs and has printed; return its line in the history."""
        until(lambda: "begun" in self.logs(name))
        return self.past()[name]


@pytest.fixture
def site(launcher: Launcher, tmp_path: Path) -> Site:
    """Return a site whose history is empty."""
    return Site(launcher, tmp_path)


def test_a_detached_launch_prints_its_name_and_goes_on(site: Site) -> None:
    """It says where the job runs; status and output are kept, and the job knows of nothing.

    The history is where it is, whatever the working directory.
    """
    os.mkfifo(site.home / "go")
    script = "echo begun $GPULAUNCH_DETACHED; read line <go; echo $line >&2; exit 3"
    environment = site.launcher.environment | {"XDG_STATE_HOME": "relative"}
    arguments = ("-d", *DGX, "--name", "exp7", "--", "sh", "-c", script)
    done = site.launcher.run(*arguments, cwd=site.home, env=environment)
    (log,) = site.home.glob(".local/state/gpulaunch/logs/*")
    line = site.past()["exp7"]
    assert (done.returncode, done.stdout) == (0, "exp7\n")
    assert done.stderr == "gpulaunch: info: exp7 is running on GPU 0; gpulaunch logs -f exp7\n"
    assert log.name == f"exp7-{line['key']}.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    (site.home / "go").write_text("over\n")
    assert site.wait("exp7") == 3
    assert site.logs("exp7") == "begun\nover\n"
    assert site.past()["exp7"]["exit_status"] == 3
    assert site.launcher.records() == []


def test_a_detached_launch_that_waits(site: Site) -> None:
    """It says its place, or after whom it comes; freed by name or id, it ends with 143."""

    def said(name: str, *options: str) -> str:
        run = (*options, "--", "touch", "ran")
        done = site.launcher.run("-d", *DGX, "--name", name, *run, cwd=site.home)
        assert (done.returncode, done.stdout) == (0, f"{name}\n")
        return done.stderr.removeprefix(f"gpulaunch: info: {name} waits")

    site.held("a", "-n", "8")
    assert said("z", "--after", "a:any") == " for the end of a; gpulaunch logs -f z\n"
    assert said("b", "-n", "8", "-q") == ""
    (id_,) = (name[-12:] for name in site.launcher.records() if ".ticket." in name)
    assert re.match(" as number 2 in the queue, probably (in|within) ", said("c", "-n", "8"))
    for text in (id_, id_[:4]):
        done = site.launcher.run("logs", text)
        assert (done.returncode, done.stdout) == (0, site.logs("b"))
    assert site.launcher.run("logs", id_[:3]).returncode == 2
    left = site.launcher.run("free", "z", "b", "c").stdout
    gone = "{} has left the queue\n".format
    assert left == "z has been ended before it was in the queue\n" + gone("b") + gone("c")
    assert [site.wait(name) for name in "zbc"] == [143] * 3
    site.end("a")
    assert (site.wait("a"), (site.home / "ran").exists()) == (3, False)


def test_a_launcher_that_is_killed_before_it_has_gpus(site: Site) -> None:
    """`-d` has printed its name by then, and says that it has ended."""
    directory = os.open(site.launcher.environment["GPULAUNCH_STATE_DIR"], os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    starting = site.launcher.start("-d", *DGX, "--name", "a", "--", "true", cwd=site.home)
    until(lambda: "a" in site.past())
    os.kill(site.past()["a"]["launcher"][0], signal.SIGKILL)
    error = complaint("a ended before it had GPUs or a place in the queue")
    assert (starting.communicate(), starting.returncode) == (("a\n", error), 125)
    os.close(directory)


REFUSED = [
    (("-n", "9", "--", "true"), 2, "9 GPUs requested: dgx1-v100 has 8"),
    (("--", "no-such"), 127, "no-such: no such file or directory"),
    (("--after", "no", "--", "true"), 2, "--after: no job of yours is called 'no'"),
    (("-o", "json_status_fd=1", "--", "true"), 2, ""),
    (("--name=-x", "--", "true"), 2, "the name '-x' begins with -"),
    (("--name", "mine", "--", "true"), 2, "a job of yours that has not ended is called 'mine'"),
    (("-o", "history=false", "--", "true"), 2, ""),
]


def test_what_could_never_run_is_refused_at_once(site: Site) -> None:
    """Nothing is detached, logged or in the history then; without a history nothing is detached."""
    site.held("mine")
    for arguments, status, problem in REFUSED:
        done = site.launcher.run(*QUIET, *arguments, cwd=site.home)
        assert (done.returncode, done.stdout) == (status, "")
        assert done.stderr.startswith(f"gpulaunch: error: {problem}"), done.stderr
    logs = list(site.home.glob(".local/state/gpulaunch/logs/*"))
    assert (site.past().keys(), len(logs)) == ({"mine"}, 1)
    site.end("mine")
    assert site.wait("mine") == 3
    assert site.detach("--name", "mine", "--", "true") == "mine"
    assert site.wait("mine") == 0


def test_names_are_made_and_kept_apart(site: Site) -> None:
    """Without --name it is the program's with the smallest free number, also of many at once."""
    (site.home / "train.py").write_text("true")
    assert site.detach("--", "sh", "train.py") == "train-1"
    command = (*QUIET, "--", "sh", "-c", "exit 0")
    running = [site.launcher.start(*command, cwd=site.home) for _ in range(8)]
    names = {process.communicate()[0].strip() for process in running}
    assert names == {f"sh-{number}" for number in range(1, 9)}
    assert site.wait(*names, "train-1") == 0


def test_a_terminal_that_is_closed_takes_nothing_along(site: Site) -> None:
    """The hang-up of the terminal where it was detached does not reach the job."""
    os.mkfifo(site.home / "go")
    shell = pexpect.spawn(
        "bash", ["--norc"], env=site.launcher.environment, cwd=site.home, encoding="utf-8"
    )
    line = f"{site.launcher.script} {' '.join(QUIET)} --name stays -- sh -c 'read line <go; exit 3'"
    shell.sendline(line)
    shell.expect("\r\nstays\r\n")
    launcher = site.past()["stays"]["launcher"][0]
    assert os.getsid(launcher) == launcher
    shell.close(force=True)
    wait_for_end(shell.pid)
    site.end("go")
    assert site.wait("stays") == 3


def test_logs(site: Site) -> None:
    """All of it, the last lines, or nothing of a launch that was not detached."""
    site.detach("--name", "a", "--", "sh", "-c", "printf '1\\n2\\n3\\n4'")
    assert site.wait("a") == 0
    assert [site.logs("a", "-n", n) for n in "0129"] == ["", "4", "3\n4", "1\n2\n3\n4"]
    assert site.logs(site.past()["a"]["key"]) == "1\n2\n3\n4"
    site.launcher.run(*DGX, "--name", "b", "--", "true")
    done = site.launcher.run("logs", "b")
    error = complaint("b is not detached: its output went where it was started")
    assert (done.returncode, done.stderr) == (2, error)


@contextmanager
def following(site: Site, name: str) -> Iterator[subprocess.Popen[str]]:
    """Follow a job's output, of which the first line has come."""
    process = site.launcher.start("logs", "-f", name)
    assert process.stdout.readline().startswith("begun")
    yield process
    process.stdout.close()
    process.stderr.close()


def test_logs_are_followed_to_the_end(site: Site) -> None:
    """The follower prints what comes, and says how the job has ended when all is printed.

    Ctrl-C ends a follower only.
    """
    site.held("a", end="seq 30000; exit 3")
    with following(site, "a") as impatient:
        impatient.send_signal(signal.SIGINT)
        assert impatient.wait() == -signal.SIGINT
    with following(site, "a") as follower:
        site.end("a")
        printed, said = follower.communicate()
    assert printed == "got word\n" + "".join(f"{n}\n" for n in range(1, 30001))
    assert (follower.returncode, said) == (0, "gpulaunch: info: a has ended with 3\n")
    ended = site.launcher.run("logs", "-f", "-n1", "a")
    assert (ended.stdout, ended.stderr) == ("30000\n", said)


def test_a_launcher_that_is_killed(site: Site) -> None:
    """The job's output goes on and is followed; the exit status is said to be unknown, once known.

    Its lease is over with the job, and so begins what comes after its end.
    """
    site.held("a", end="echo a >>order")
    os.kill(site.begun("a")["launcher"][0], signal.SIGKILL)
    site.detach("--name", "b", "--after", "a:any", "--", "sh", "-c", "echo b >>order")
    site.detach("--name", "c", "--after", "a", "--", "sh", "-c", "echo c >>order")
    with following(site, "a") as follower:
        waiting = site.launcher.start("wait", "a")
        site.end("a")
        printed, said = follower.communicate()
    unknown = "a: its launcher was killed, so nobody knows how the job has ended"
    assert (printed, said) == ("got word\n", f"gpulaunch: warning: {unknown}\n")
    assert (waiting.communicate(), waiting.returncode) == (("", complaint(unknown)), 125)
    assert [site.wait("b"), site.wait("c")] == [0, 125]
    assert (site.home / "order").read_text() == "a\nb\n"
    until(lambda: site.launcher.records() == [])


def test_a_launcher_that_is_killed_while_it_tidies_up(site: Site) -> None:
    """The exit status is in the history from the job's end on."""
    site.held("a", end="sleep 60 & exit 3")
    launcher = site.begun("a")["launcher"][0]
    site.end("a")
    until(lambda: "exit_status" in site.past()["a"])
    os.kill(launcher, signal.SIGKILL)
    assert site.wait("a") == 3
    assert site.launcher.run("free", site.past()["a"]["id"]).returncode == 0


def test_another_process_with_the_launchers_number_is_not_taken_for_it(site: Site) -> None:
    """Who reads the history compares the start time too, and the boot."""
    site.detach("--name", "a", "--", "true")
    assert site.wait("a") == 0
    (path,) = site.home.glob(".local/state/gpulaunch/history/*")
    line = json.loads(path.read_text())
    del line["exit_status"]
    line["launcher"][0] = os.getpid()
    path.write_text(json.dumps(line) + "\n")
    assert site.wait("a") == 125
    path.write_text(json.dumps(line | {"boot_id": "earlier"}) + "\n")
    done = site.launcher.run("wait", "a")
    error = "a: it ran before this machine was started, or on another machine"
    assert (done.returncode, done.stderr) == (125, complaint(error))


def test_after(site: Site) -> None:
    """A launch begins after others; not if one of them has failed, unless any end will do.

    `wait` ends as the first of its jobs that failed. A name with a comma is taken as a whole.
    """
    site.held("a")
    site.held("x,y")
    for name, after in (("b", "a:any"), ("c", "a"), ("d", "b,a:any"), ("e", "x,y")):
        site.detach("--name", name, "--after", after, "--", "sh", "-c", f"echo {name} >>order")
    site.end("a")
    site.end("x,y")
    assert [site.wait(name) for name in "abcde"] == [3, 0, 125, 0, 125]
    assert [site.wait("b", "d"), site.wait("b", "a", "c"), site.wait("c", "a")] == [0, 3, 125]
    assert (site.home / "order").read_text() == "b\nd\n"
    done = site.launcher.run(*DGX, "--after", "b,d", "--", "echo", "now")
    assert (done.returncode, done.stdout, done.stderr) == (0, "now\n", "")


def test_a_job_on_another_table(site: Site, tmp_path: Path) -> None:
    """Nobody says of a job on another table that it was killed, or ends it or runs after it.

    In the history it runs while its lease lives, and is killed if it has no end then.
    """
    site.held("k")
    os.kill(site.begun("k")["launcher"][0], signal.SIGKILL)
    own = site.launcher.environment["GPULAUNCH_STATE_DIR"]
    (tmp_path / "other").mkdir()
    other = site.launcher.environment | {"GPULAUNCH_STATE_DIR": str(tmp_path / "other")}

    def asked(*arguments: str) -> tuple[int, str]:
        done = site.launcher.run(*arguments, env=other)
        return done.returncode, done.stderr

    def state(environment: dict[str, str]) -> str:
        document = site.launcher.run("history", *DGX, "--json", env=environment).stdout
        return json.loads(document)["launches"][0]["state"]

    until(lambda: state(other) == "unknown")
    there = f"on another table, GPULAUNCH_STATE_DIR={own}"
    unknown = f"k: its launcher was killed, and its job is {there}"
    assert asked("wait", "k") == (125, complaint(unknown))
    assert asked("logs", "-f", "k") == (0, f"gpulaunch: warning: {unknown}\n")
    error = complaint(f"not run: {unknown}")
    assert asked(*DGX, "-q", "--after", "k:any", "--", "true") == (125, error)
    assert asked("free", "--mine", *DGX) == (0, "")
    assert state(site.launcher.environment) == "running"
    assert site.launcher.run("free", "--mine", *DGX).returncode == 0
    assert state(site.launcher.environment) == "killed"


def test_a_launch_that_comes_after_another_is_shown(site: Site) -> None:
    """`status` and `top` show it until it queues, has ended, or its launcher is gone.

    `free --mine` ends it before what it comes after, so that nothing starts.
    """
    site.held("a", "-n", "8")
    for name, after in (("b", "a:any"), ("c", "a,b:any"), ("d", "a:any")):
        site.detach("--name", name, "-n", "8", "--after", after, "--", "touch", "ran")
    os.kill(site.past()["d"]["launcher"][0], signal.SIGKILL)
    assert site.wait("d") == 125

    def shown(*options: str) -> list[tuple[str, int, list[str]]]:
        document = json.loads(site.launcher.run("status", *options, "--json").stdout)
        return [(one["name"], one["gpus"], one["after"]) for one in document["dependent"]]

    assert shown(*DGX) == [("b", 8, ["a:any"]), ("c", 8, ["a", "b:any"])]
    assert shown("--topology", "dgx2") == shown(*DGX, "--user", "nobody") == []
    for command in ("status", "top"):
        done = site.launcher.run(command, *DGX, env=site.launcher.environment | {"COLUMNS": "80"})
        after = re.compile(r"^([bc]) .* (after [^,\s]+(?:, \S+)?) ", re.MULTILINE)
        assert dict(after.findall(done.stdout)) == {"b": "after a:any", "c": "after a, b:any"}
    done = site.launcher.run("free", "--mine", *DGX)
    before = "has been ended before it was in the queue"
    assert sorted(done.stdout.splitlines()) == [f"b {before}", f"c {before}", "ended a (GPUs 0-7)"]
    assert [site.wait(name) for name in "abc"] == [143] * 3
    assert (shown(*DGX), (site.home / "ran").exists()) == ([], False)


def test_a_launch_in_the_foreground_does_not_hide_a_detached_one(site: Site) -> None:
    """Of launches of a name a detached one that runs is meant; once it has ended, the newest."""
    site.held("a", end="exit 9")
    site.begun("a")
    site.launcher.run(*DGX, "--name", "a", "--", "true")
    assert site.logs("a").startswith("begun")
    site.detach("--name", "b", "--after", "a", "--", "true")
    site.end("a")
    assert site.wait("b") == 125  # not 0, with which the newest a has ended
    assert site.wait("a") == 0


def test_a_stdout_that_cannot_be_written(site: Site) -> None:
    """Without stdout nothing is detached; if its name cannot be printed, a line says so."""
    line = f"gpulaunch -d {' '.join(DGX)} --name"
    script = f"{line} a -- true >&-; echo $?; {line} b -- true >/dev/full; echo $?"
    done = site.launcher.run("-c", script, executable="/bin/sh")
    assert done.stdout == "125\n0\n"
    assert "stdout is closed, so nobody could know the name of the job" in done.stderr
    assert "cannot write to stdout: no space left on device; b is running on GPU" in done.stderr
    assert (site.wait("b"), list(site.past())) == (0, ["b"])


def test_notify(site: Site) -> None:
    """The command hears of start and end, with lease, GPUs, exit status and duration; by itself."""
    for event in ("start", "failure", "end"):  # a pipe each: of one, both may come in one read
        os.mkfifo(site.home / event)
    script = "env | grep ^GPULAUNCH_ >$GPULAUNCH_EVENT"
    job = ("--name", "a", "-n", "2", "--", "sh", "-c", "exit $STATUS")
    for status, event in (("3", "failure"), ("0", "end")):
        environment = site.launcher.environment | {"STATUS": status}
        options = {"env": environment, "cwd": site.home}
        running = site.launcher.start(*DGX, "--notify", script, *job, **options)
        begin, end = (
            dict(re.findall(r"GPULAUNCH_(\w+)=(\S*)", (site.home / name).read_text()))
            for name in ("start", event)
        )
        assert running.wait() == int(status)
        for heard in (begin, end):
            del heard["STATE_DIR"]
        lease = begin["EVENT_LEASE"]
        about = {"EVENT_NAME": "a", "EVENT_LEASE": lease, "EVENT_GPUS": "0,3"}
        assert begin == about | {"EVENT": "start"}
        assert end.pop("EVENT_DURATION_S").isdecimal()
        ended = {"EVENT": event, "EVENT_EXIT_STATUS": status}
        assert end == about | ended


def test_notify_of_a_wait_in_vain(site: Site) -> None:
    """A launch that has waited, and gets nothing, is told of; one that is refused at once is not.

    Nothing is said then of a lease, GPUs and a duration.
    """
    os.mkfifo(site.home / "heard")
    notify = ("--notify", f"env | grep ^GPULAUNCH_EVENT >{site.home / 'heard'}")
    with held(site.launcher, *DGX, "-n", "8"):
        assert site.launcher.run(*DGX, *notify, "--", "true").returncode == 75
        waits = (*DGX, *notify, "--wait-timeout", "0.1s", "--name", "a", "--", "true")
        assert site.launcher.run(*waits).returncode == 124
        text = (site.home / "heard").read_text()
    heard = re.findall(r"GPULAUNCH_EVENT_?(\w*)=(\S*)", text)
    assert sorted(heard) == [("", "failure"), ("EXIT_STATUS", "124"), ("NAME", "a")]


def test_a_notification_that_hangs_holds_nothing(site: Site) -> None:
    """The launch ends, its GPUs are free and its pipes closed, while the command still runs."""
    os.mkfifo(site.home / "heard")
    script = "trap '' HUP INT; echo $$ >heard; exec sleep 1000"
    options = ("--notify", script, "--", "echo", "done")
    running = site.launcher.start(*DGX, *options, cwd=site.home)
    pids = []
    while len(pids) < 2:  # start and end may come in one
        pids += map(int, (site.home / "heard").read_text().split())
    assert (running.communicate(), running.returncode) == (("done\n", ""), 0)
    assert site.launcher.records() == []
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(
    shutil.which("dtach") is None or shutil.which("script") is None, reason="needs dtach and script"
)
def test_attach_and_leave(site: Site) -> None:
    r"""Ctrl-\ leaves a job to its terminal, who comes back may type, and the log has it all."""
    site.launcher.environment |= {"SHELL": "/bin/of-the-user", "TERM": "xterm"}
    script = 'echo "begun $SHELL"; test -t 0 && read a && echo "got $a"; exit 3'
    site.detach("--terminal", "--name", "a", "--", "sh", "-c", script)
    site.begun("a")

    def attach() -> pexpect.spawn:
        options = {"env": site.launcher.environment, "encoding": "utf-8", "timeout": None}
        terminal = pexpect.spawn(site.launcher.script, ["attach", "a"], **options)
        terminal.expect(re.escape(r"Ctrl-\ leaves a to itself"))
        terminal.expect(re.escape("\x1b[H\x1b[J"))
        return terminal

    first = attach()
    first.send("\x1c")
    first.expect("detached")
    second = attach()
    second.send("hello\r")
    second.expect("got hello")
    second.expect("a has ended with 3")
    assert site.wait("a") == 3
    log = site.launcher.run("logs", "-f", "a")
    assert "begun /bin/of-the-user\nhello\ngot hello\n" in log.stdout
    assert log.stderr == "gpulaunch: info: a has ended with 3\n"


def test_attach_without_a_terminal(site: Site) -> None:
    """One line says what is missing, and where the output is."""
    site.held("a")
    done = site.launcher.run("attach", "a")
    how = "-d --terminal gives a job one"
    error = complaint(f"a has no terminal: {how}", "'gpulaunch logs -f a' shows its output")
    assert (done.returncode, done.stderr) == (2, error)
    site.end("a")
    assert site.wait("a") == 3


def test_without_dtach_a_terminal_that_is_asked_for_is_refused(site: Site) -> None:
    """The option is an error then; the setting for all launches is passed over."""
    programs = site.home / "programs"
    programs.mkdir()
    for name in ("sh", "true"):
        (programs / name).symlink_to(shutil.which(name))
    environment = site.launcher.environment | {"PATH": str(programs)}
    done = site.launcher.run(*QUIET, "--terminal", "--", "true", env=environment)
    error = complaint("--terminal: dtach is not installed")
    assert (done.returncode, done.stderr) == (125, error)
