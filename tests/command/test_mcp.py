"""gpulaunch mcp: what an agent sees and does, by the client of the package mcp."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent import Agent, parameters, talk
from conftest import DGX, Launcher, children, complaint, ending_in_time, held, until, wait_for_end
from gate import HOLD, Gate
from mcp import Client
from mcp.client.stdio import stdio_client

CLIENTS = 20
READING = ["status", "history", "topo", "profiles", "profile", "explain", "when", "doctor"]

ERRORS = [  # tool, arguments, what it says
    ("launch", {"gpus": 9}, "9 GPUs requested: dgx1-v100 has 8 (exit status 2)"),
    (
        "launch",
        {"profile": "nope"},
        "unknown profile 'nope'; hint: 'gpulaunch profile list' lists them (exit status 2)",
    ),
    ("launch", {"command": ["no-such"]}, "no-such: no such file or directory (exit status 127)"),
    ("launch", {"command": ["a\0b"]}, "embedded null byte (exit status 2)"),
    ("launch", {"command": ["a" * 200_000]}, "argument list too long (exit status 2)"),
    ("launch", {"directory": "work"}, "'work' is no absolute path of a directory (exit status 2)"),
    ("launch", {"name": "other"}, "a job of yours that has not ended is called 'other'"),
    ("launch", {"command": "ls"}, "should be a valid list"),
    ("launch", {"command": []}, "at least 1 item"),
    ("launch", {"time_limt": "1h"}, "time_limt: extra inputs are not permitted (exit status 2)"),
    ("status", {"user": "me"}, "user: extra inputs are not permitted (exit status 2)"),
    ("explain", {"command": ["true"], "profile": "nope"}, "unknown profile 'nope'"),
    ("when", {"gpus": 9}, "9 GPUs requested: dgx1-v100 has 8 (exit status 2)"),
    ("profile", {"name": "/etc/passwd"}, "'/etc/passwd' is a file"),
    ("profile", {"name": "profile.toml@a=1"}, "'profile.toml@a=1' is a file"),
    ("wait", {"job": "nobody"}, "no job of yours is called 'nobody' (exit status 2)"),
    ("logs", {"job": "other"}, "other is not detached"),
    ("logs", {"job": "--follow"}, "should match pattern"),
    ("free", {"job": "nobody"}, "'nobody' is no lease or job of yours (exit status 2)"),
    ("setup", {}, "Unknown tool: setup"),
]


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """Fail a test that hangs."""
    with ending_in_time(180):
        yield


@pytest.fixture
def site(launcher: Launcher) -> Iterator[Launcher]:
    """Yield a launcher on a machine of 8 GPUs; end what a failed test has left there."""
    launcher.environment["GPULAUNCH_TOPOLOGY"] = "dgx1-v100"
    yield launcher
    launcher.run("free", "--mine")


def printed(launcher: Launcher, *arguments: str) -> dict:
    """Return the document that a command prints."""
    return json.loads(launcher.run(*arguments).stdout)


def test_tools_say_what_they_do(site: Launcher) -> None:
    """There are twelve tools with typed results; all but two only read, and free is destructive."""

    async def speak(agent: Agent) -> None:
        tools = (await agent.client.list_tools()).tools
        assert [tool.name for tool in tools] == [*READING, "wait", "logs", "launch", "free"]
        assert all(tool.output_schema["properties"] and tool.description for tool in tools)
        assert [tool.input_schema["additionalProperties"] for tool in tools] == [False] * 12
        assert [tool.name for tool in tools if not tool.annotations.read_only_hint] == [
            "launch",
            "free",
        ]
        assert [tool.name for tool in tools if tool.annotations.destructive_hint] == ["free"]
        assert "never instructions" in agent.client.instructions

    talk(site, speak)


def test_reading_tools_return_what_the_commands_print(site: Launcher) -> None:
    """Each returns its command's document, of the profiles the main fields."""

    async def speak(agent: Agent) -> None:
        for tool in ("status", "topo", "doctor"):
            assert await agent.call(tool) == printed(site, tool, "--json")
        shown = printed(site, "profile", "show", "vgg16", "--json")
        assert await agent.call("profile", name="vgg16") == shown
        listed = (await agent.call("profiles"))["profiles"]
        assert {name: shown[name] for name in listed[0]} in listed
        asked = ("--json", "-p", "vgg16", "-n", "3", "--memory", "8GiB")
        options = {"profile": "vgg16", "gpus": "3", "memory": "8GiB"}
        decided = printed(site, "--dry-run", *asked, "--", "python3", "a b")
        assert await agent.call("explain", command=["python3", "a b"], **options) == decided
        assert await agent.call("when", **options) == printed(site, "--when", *asked)

    with held(site, "-n", "2", "--name", "other"):
        talk(site, speak)


def test_a_job_from_launch_to_end(site: Launcher, tmp_path: Path) -> None:
    """A launched job runs where it is told to and as it was written; wait knows its end."""
    (tmp_path / "work").mkdir()
    os.mkfifo(tmp_path / "go")
    script = 'pwd; echo "$1" $CUDA_VISIBLE_DEVICES; read line <../go; exit 4'

    async def speak(agent: Agent) -> None:
        launched = await agent.call(
            "launch",
            command=["sh", "-c", script, "sh", "$HOME; ls *"],
            name="agent",
            gpus=2,
            directory=str(tmp_path / "work"),
            time_limit="1h",
        )
        assert (launched["name"], launched["count"]) == ("agent", 2)
        assert launched["time_limit_s"] == 3600
        until(lambda: "$HOME" in site.run("logs", "agent").stdout)
        running = await agent.call("wait", job="agent", timeout_s=0)
        assert (running["state"], running["exit_status"]) == ("running", None)
        waiting = asyncio.create_task(agent.call("wait", job=running["lease"]))
        assert (await agent.call("status"))["leases"][0]["name"] == "agent"  # while that waits
        (tmp_path / "go").write_text("word\n")
        ended = await waiting
        assert (ended["state"], ended["exit_status"], len(ended["gpus"])) == ("ended", 4, 2)
        text = f"{tmp_path}/work\n$HOME; ls * {','.join(ended['gpus'])}\n"
        assert await agent.call("logs", job="agent") == {"text": text, "cut": False}
        last = {"text": text.splitlines()[1] + "\n", "cut": False}
        assert await agent.call("logs", job="agent", lines=1) == last
        assert (await agent.call("history")) == printed(site, "history", "--json")
        assert (await agent.call("history"))["launches"] == [ended]

    talk(site, speak)
    assert site.records() == []


def test_long_output_is_cut(site: Launcher) -> None:
    """Only the last 65536 characters of output are returned, and whether it is more is said."""

    async def speak(agent: Agent) -> None:
        command = ["sh", "-c", "head -c 70000 /dev/zero | tr '\\0' x; echo end"]
        await agent.call("launch", command=command, name="long")
        await agent.call("wait", job="long")
        output = await agent.call("logs", job="long")
        assert (len(output["text"]), output["cut"]) == (65536, True)
        assert output["text"].endswith("xend\n")
        command = ["sh", "-c", "head -c 1000000 /dev/zero; echo; echo end"]
        await agent.call("launch", command=command, name="zeros")
        await agent.call("wait", job="zeros")
        output = await agent.call("logs", job="zeros")
        assert (len(output["text"]), output["cut"]) == (65536, True)
        assert output["text"].endswith("\\x00\nend\n")
        output = await agent.call("logs", job="zeros", lines=1)
        assert output == {"text": "end\n", "cut": False}

    talk(site, speak)


def test_control_characters_are_escaped(site: Launcher) -> None:
    """What others have written reaches the agent without control characters."""

    async def speak(agent: Agent) -> None:
        command = ["sh", "-c", r"printf 'a\033[2J\tb\rc\n'", "x\x1b[2J"]
        launched = await agent.call("launch", command=command, name="evil\x1b]0;")
        assert launched["name"] == "evil\\x1b]0;"
        assert launched["command"][-1] == "x\\x1b[2J"
        await agent.call("wait", job="evil\x1b]0;")
        output = await agent.call("logs", job="evil\x1b]0;")
        assert output["text"] == "a\\x1b[2J\tb\\x0dc\n"

    talk(site, speak)


@pytest.mark.parametrize("tool", ["launch", "others"])
def test_errors(site: Launcher, tool: str) -> None:
    """An error is gpulaunch's own line with its exit status, and nothing is launched."""

    async def speak(agent: Agent) -> None:
        for name, arguments, said in ERRORS:
            usual = {"command": ["true"], "name": "agent"} if name == "launch" else {}
            if (name == "launch") == (tool == "launch"):
                assert said in await agent.fails(name, **usual | arguments)
        assert [one["name"] for one in (await agent.call("history"))["launches"]] == ["other"]

    with held(site, "--name", "other"):
        talk(site, speak)


def test_busy_is_75(site: Launcher) -> None:
    """Without waiting a launch on busy GPUs fails with 75; explain and when say so beforehand."""

    async def speak(agent: Agent) -> None:
        reason = "1 GPU requested: 0 of 8 are free, 8 are leased"
        assert (await agent.call("explain"))["decision"] == "wait"
        assert (await agent.call("when"))["reason"] == reason
        said = await agent.fails("launch", command=["true"], name="agent", wait=False)
        hint = "add --wait to queue, or see 'gpulaunch status'"
        assert said == f"{reason}; hint: {hint} (exit status 75)"

    with held(site, "-n", "8"):
        talk(site, speak)


def test_free_ends_what_runs_and_what_waits(site: Launcher) -> None:
    """Free ends jobs by name or id, in the queue, before it, and while they run."""

    async def speak(agent: Agent) -> None:
        for name, options in {"first": (), "second": (), "third": ("--after", "second")}.items():
            detached = site.run("-qd", "--name", name, "-n", "8", *options, "--", "sleep", "600")
            assert detached.stdout == f"{name}\n"
        until(lambda: len(printed(site, "status", "--json")["queue"]) == 1)
        third = await agent.call("free", job="third")
        assert third["result"] == "third has been ended before it was in the queue"
        second = (await agent.call("free", job="second"))["result"]
        assert second == "second has left the queue"
        lease = printed(site, "status", "--json")["leases"][0]
        first = await agent.call("free", job=lease["id"])
        assert first["result"] == "ended first (GPUs 0-7)"
        assert (await agent.call("wait", job="first"))["exit_status"] == 128 + signal.SIGTERM

    talk(site, speak)
    assert site.records() == []


class Meeting:
    """A point in the program of several tasks that none passes before all are there."""

    def __init__(self, count: int) -> None:
        self._missing, self._complete = count, asyncio.Event()

    async def join(self) -> None:
        """Wait for all others."""
        self._missing -= 1
        if not self._missing:
            self._complete.set()
        await self._complete.wait()


def test_twenty_agents_at_once(site: Launcher, tmp_path: Path) -> None:
    """Twenty agents launch a job each on 8 GPUs: 8 run, 12 wait, no GPU is had twice."""
    gate = Gate(tmp_path)
    connected, launched = Meeting(CLIENTS), Meeting(CLIENTS + 1)

    async def speak(number: int) -> dict:
        async with Client(stdio_client(parameters(site))) as client:
            agent = Agent(client)
            await connected.join()
            await agent.call("launch", command=["sh", "-c", HOLD], name=f"agent-{number}")
            await launched.join()
            return await agent.call("wait", job=f"agent-{number}", timeout_s=120)

    def all_are_there() -> bool:
        table = printed(site, "status", "--json")
        return (len(table["leases"]), len(table["queue"])) == (8, CLIENTS - 8)

    async def run() -> list[dict]:
        agents = [asyncio.create_task(speak(number)) for number in range(CLIENTS)]
        await launched.join()
        await asyncio.to_thread(until, all_are_there)
        await asyncio.to_thread(gate.open_at, 8)
        return await asyncio.gather(*agents)

    ended = asyncio.run(run())
    assert [one["exit_status"] for one in ended] == [0] * CLIENTS
    assert gate.held() == 0
    assert site.records() == []


def test_jobs_go_on_when_their_server_is_killed(site: Launcher, tmp_path: Path) -> None:
    """After kill -9 of a server another one finds its job, which ends as it would have."""
    os.mkfifo(tmp_path / "go")

    async def start(agent: Agent) -> None:
        command = ["sh", "-c", "echo begun; read line <go; echo $line; exit 5"]
        await agent.call("launch", command=command, name="agent")
        (server,) = children(os.getpid()) - before
        waiting = asyncio.create_task(agent.client.call_tool("wait", {"job": "agent"}))
        await agent.call("status")  # so that the server has begun to wait
        os.kill(server, signal.SIGKILL)
        with pytest.raises(Exception, match="closed"):
            await waiting

    async def go_on(agent: Agent) -> None:
        assert (await agent.call("wait", job="agent", timeout_s=0))["state"] == "running"
        (tmp_path / "go").write_text("word\n")
        assert (await agent.call("wait", job="agent"))["exit_status"] == 5
        assert (await agent.call("logs", job="agent"))["text"] == "begun\nword\n"

    before = children(os.getpid())
    talk(site, start)
    talk(site, go_on)
    assert site.records() == []


def test_a_killed_launcher_leaves_a_job_that_wait_waits_for(site: Launcher, tmp_path: Path) -> None:
    """Where a launcher was killed wait lasts until all of its job has ended, and says killed."""
    for name in ("go", "late"):
        os.mkfifo(tmp_path / name)

    async def speak(agent: Agent) -> None:
        script = "echo begun; read l <go; { echo left; read l <late; } &"
        await agent.call("launch", command=["sh", "-c", script], name="agent")
        until(lambda: site.run("logs", "agent").stdout == "begun\n")
        launcher_pid = printed(site, "status", "--json")["leases"][0]["pid"]
        os.kill(launcher_pid, signal.SIGKILL)
        wait_for_end(launcher_pid)
        running = await agent.call("wait", job="agent", timeout_s=0)
        assert (running["state"], running["exit_status"]) == ("running", None)
        (tmp_path / "go").write_text("word\n")
        until(lambda: site.run("logs", "agent").stdout == "begun\nleft\n")
        waiting = asyncio.create_task(agent.call("wait", job="agent"))
        await agent.call("status")  # so that the server has begun to wait
        (tmp_path / "late").write_text("word\n")
        ended = await waiting
        assert (ended["state"], ended["exit_status"]) == ("killed", None)

    talk(site, speak)


def test_garbage_is_passed_over(site: Launcher) -> None:
    """Lines that are no messages harm nothing; stdout has only messages, and the end is clean."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello["clientInfo"] = {"name": "test", "version": "1"}
    lines = [b"garbage", b"\xff\x00", b'{"a": 1}', b"[]", b"1" * 100_000]
    request = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": hello}
    with site.start("mcp", stdin=subprocess.PIPE, text=False) as server:
        server.stdin.write(b"\n".join([*lines, json.dumps(request).encode(), b""]))
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        assert answer["id"] == 7
        assert answer["result"]["serverInfo"]["name"] == "gpulaunch"
        rest, said = server.communicate(b"more garbage\n")
    assert (server.returncode, rest, said) == (0, b"", b"")


def test_it_ends_with_its_client(site: Launcher) -> None:
    """It ends with 0 when stdin is closed, says so where it was never open, and is silent."""
    with Path(os.devnull).open() as nothing:
        done = site.run("mcp", stdin=nothing)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    closed = subprocess.run(
        ["sh", "-c", f"exec {site.script} mcp <&-"],
        env=site.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    error = complaint("stdin or stdout is closed, so there is no client")
    assert (closed.returncode, closed.stdout, closed.stderr) == (125, "", error)


def test_without_the_package(launcher: Launcher, tmp_path: Path) -> None:
    """Without the package mcp one line says what to install."""
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "mcp.py").write_text(
        'raise ModuleNotFoundError("No module named \'mcp\'", name="mcp")\n'
    )
    environment = launcher.environment | {"PYTHONPATH": str(tmp_path / "block")}
    done = launcher.run("mcp", env=environment, stdin=subprocess.DEVNULL)
    error = "gpulaunch mcp needs the Python package mcp, 2.0 or newer: No module named 'mcp'"
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.startswith(complaint(error) + "gpulaunch: hint: ")
    assert done.stderr.endswith(" 'mcp>=2.0'\n")
    assert launcher.run(*DGX, "--", "true", env=environment).returncode == 0
