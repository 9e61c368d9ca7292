"""An agent for tests of `gpulaunch mcp`: the client of the package mcp, with its server."""

import asyncio
import json
from collections.abc import Awaitable, Callable

from conftest import Launcher
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


class Agent:
    """An agent: a client and the server that it has started."""

    def __init__(self, client: Client) -> None:
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


def parameters(launcher: Launcher) -> StdioServerParameters:
    """Return what starts a server beside a launcher's state directory."""
    return StdioServerParameters(
        command=launcher.script,
        args=["mcp"],
        env=launcher.environment,
        cwd=launcher.state.parent,
    )


def talk(launcher: Launcher, speak: Callable[[Agent], Awaitable[None]]) -> None:
    """Run an agent to its end."""

    async def run() -> None:
        async with Client(stdio_client(parameters(launcher))) as client:
            await speak(Agent(client))

    asyncio.run(run())
