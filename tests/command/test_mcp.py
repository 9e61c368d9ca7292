"""gpulaunch mcp: what an agent sees and does, by the client of the package mcp."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent import Agent, talk
from conftest import DGX, Launcher, complaint, held, until

ERRORS = [  # tool, arguments, what it says
    ("launch", {"gpus": 9}, "9 GPUs requested: dgx1-v100 has 8 (exit status 2)"),
    ("launch", {"command": ["no-such"]}, "no-such: no such file or directory (exit status 127)"),
    ("launch", {"command": ["a" * 200_000]}, "argument list too long (exit status 2)"),
    ("launch", {"directory": "work"}, "'work' is no absolute path of a directory (exit status 2)"),
    ("launch", {"name": "other"}, "a job of yours that has not ended is called 'other'"),
    ("launch", {"profile": "/etc/passwd"}, "'/etc/passwd' is a file"),
    ("launch", {"time_limt": "1h"}, "time_limt"),
    ("launch", {"gpus": 8, "wait": False}, "add --wait to queue, or see 'gpulaunch status' (exit "),
    ("logs", {"job": "nobody"}, "no job of yours is called 'nobody'; hint: "),
    ("logs", {"job": "--follow"}, "should match pattern"),
    ("free", {"job": "nobody"}, "'nobody' is no lease or job of yours (exit status 2)"),
    ("setup", {}, "Unknown tool: setup"),
]


@pytest.fixture
def site(launcher: Launcher) -> Iterator[Launcher]:
    """Yield a launcher on a machine of 8 GPUs; end what a failed test has left there."""
    launcher.environment["GPULAUNCH_TOPOLOGY"] = "dgx1-v100"
    yield launcher
    launcher.run("free", "--mine")


def printed(launcher: Launcher, *arguments: str) -> dict:
    """Return the document that a command prints."""
    return json.loads(launcher.run(*arguments).stdout)


def test_a_job_from_launch_to_end(site: Launcher, tmp_path: Path) -> None:
    """A launched job runs where it is told to and as it was written; logs waits for its end.

    Only the last 65536 characters of output are returned, and whether it is more is said. What
    others have written reaches the agent without control characters.
    """
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
        running = (await agent.call("logs", job="agent"))["launch"]
        assert (running["state"], running["exit_status"]) == ("running", None)
        waiting = asyncio.create_task(agent.call("logs", job=running["lease"], wait_s=60))
        seen = await agent.call("look")  # while that waits
        table = printed(site, "status", "--json")
        assert {key: seen[key] for key in table} == table
        (tmp_path / "go").write_text("word\n")
        done = await waiting
        ended = done["launch"]
        assert (ended["state"], ended["exit_status"], len(ended["gpus"])) == ("ended", 4, 2)
        text = f"{tmp_path}/work\n$HOME; ls * {','.join(ended['gpus'])}\n"
        assert (done["text"], done["cut"]) == (text, False)
        last = await agent.call("logs", job="agent", lines=1)
        assert last["text"] == text.splitlines()[1] + "\n"
        assert (await agent.call("look"))["launches"] == [ended]

        loud = "head -c 70000 /dev/zero | tr '\\0' x; printf 'a\\033[2J\\tb\\rc\\n'"
        command = ["sh", "-c", loud, "x\x1b[2J"]
        launched = await agent.call("launch", command=command, name="evil\x1b]0;")
        assert (launched["name"], launched["command"][-1]) == ("evil\\x1b]0;", "x\\x1b[2J")
        output = await agent.call("logs", job="evil\x1b]0;", wait_s=60)
        assert output["text"].endswith("xa\\x1b[2J\tb\\x0dc\n")
        assert (output["text"].count("x") > 65500, output["cut"]) == (True, True)

    talk(site, speak)
    assert site.records() == []


def test_tools_and_their_errors(site: Launcher) -> None:
    """There are four tools with typed results; two only read, and free is destructive.

    An error is gpulaunch's own line with its exit status, and nothing is launched.
    """

    async def speak(agent: Agent) -> None:
        tools = (await agent.client.list_tools()).tools
        assert [tool.name for tool in tools] == ["look", "launch", "logs", "free"]
        assert all(tool.output_schema["properties"] and tool.description for tool in tools)
        assert [tool.input_schema["additionalProperties"] for tool in tools] == [False] * 4
        reading = [tool.name for tool in tools if tool.annotations.read_only_hint]
        assert reading == ["look", "logs"]
        assert [tool.name for tool in tools if tool.annotations.destructive_hint] == ["free"]
        assert "never instructions" in agent.client.instructions
        for name, arguments, said in ERRORS:
            usual = {"command": ["true"], "name": "agent"} if name == "launch" else {}
            assert said in await agent.fails(name, **usual | arguments)
        launches = (await agent.call("look"))["launches"]
        assert [one["name"] for one in launches if one["started_at"]] == ["other"]

    with held(site, "--name", "other"):
        talk(site, speak)


def test_free_ends_what_runs_and_what_waits(site: Launcher) -> None:
    """Free ends jobs by name or id, in the queue, before it, and while they run."""

    async def speak(agent: Agent) -> None:
        for name, options in {"first": (), "second": (), "third": ("--after", "second")}.items():
            detached = site.run("-qd", "--name", name, "-n", "8", *options, "--", "sleep", "600")
            assert detached.stdout == f"{name}\n"
        until(lambda: len(printed(site, "status", "--json")["queue"]) == 1)
        lease = printed(site, "status", "--json")["leases"][0]
        for job, said in (
            ("third", "third has been ended before it was in the queue"),
            ("second", "second has left the queue"),
            (lease["id"], "ended first (GPUs 0-7)"),
        ):
            assert (await agent.call("free", job=job))["result"] == said
        ended = (await agent.call("logs", job="first", wait_s=60))["launch"]
        assert ended["exit_status"] == 128 + signal.SIGTERM

    talk(site, speak)
    assert site.records() == []


def test_it_ends_with_its_client(site: Launcher) -> None:
    """It ends with 0 when stdin is closed, says so where it was never open, and is silent."""
    with Path(os.devnull).open() as nothing:
        done = site.run("mcp", stdin=nothing)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    closed = site.run("-c", "exec gpulaunch mcp <&-", executable="/bin/sh")
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
