"""`gpulaunch mcp`: a server of the Model Context Protocol, over which agents look and launch."""

import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser
from gpulaunch.errors import FailedError
from gpulaunch.files.document import install_hint


def main(arguments: Sequence[str]) -> int:
    """Serve one client on stdin and stdout until it closes stdin."""
    make_parser().parse_args(arguments)
    if sys.stdin is None or sys.stdout is None:
        raise FailedError("stdin or stdout is closed, so there is no client")
    try:
        from gpulaunch.api.mcp_tools import make_server
    except ImportError as problem:
        message = f"gpulaunch mcp needs the Python package mcp, 2.0 or newer: {problem}"
        raise FailedError(message, install_hint("mcp")) from None
    make_server().run()
    return 0


def make_parser() -> Parser:
    """Return the parser of the command's arguments."""
    return Parser(
        "gpulaunch mcp",
        "Serve the Model Context Protocol on stdin and stdout, for a client that starts this: "
        "tools that read, launch detached jobs, and end jobs and leases of its user.",
    )
