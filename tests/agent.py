"""An agent for tests of `gpulaunch mcp`: the client of the package mcp, with its server."""

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from conftest import Launcher

if TYPE_CHECKING:
    from mcp import Client


class Agent:
    """An agent: a client and the server that it has started."""

    def __init__(self, client: "Client") -> None:
        self.client = client

    async def call(self, tool: str, **arguments: object) -> dict:
        """Return the document that a tool returns."""
        done = await self.client.call_tool(tool, arguments)
        assert not done.is_error, done.content[0].text
        assert tool == "free" or json.loads(done.content[0].text) == done.structured_content
        return done.structured_content

    async def fails(self, tool: str, **arguments: object) -> str:
        """Return what a tool says that fails."""
        done = await self.client.call_tool(tool, arguments)
        assert done.is_error, done.structured_content
        return done.content[0].text.removeprefix(f"Error executing tool {tool}: ")


def talk(launcher: Launcher, speak: Callable[[Agent], Awaitable[None]]) -> None:
    """Run an agent to its end beside a launcher's state directory.

    It runs in a fork, because its packages are large, and each later fork would copy them.
    """

    def run_here() -> int:
        from mcp import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client

        server = StdioServerParameters(
            command=launcher.script,
            args=["mcp"],
            env=launcher.environment,
            cwd=launcher.state.parent,
        )

        async def run() -> None:
            async with Client(stdio_client(server)) as client:
                await speak(Agent(client))

        try:
            asyncio.run(run())
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            raise
        return 0

    agent = launcher.call(run_here)
    output = agent.communicate()[0]
    assert agent.returncode == 0, output
