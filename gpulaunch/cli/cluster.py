"""`gpulaunch cluster WORD`: a file for each word, gpulaunch/cli/cluster_WORD.py with `main`."""

import importlib
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser
from gpulaunch.errors import UsageError, quoted

WORDS = {"map": "which rank on which node, core and GPU"}
"""Word -> its description."""


def main(arguments: Sequence[str]) -> int:
    """Run the word's own main with the arguments after it."""
    known = ", ".join(WORDS)
    if not arguments:
        raise UsageError("no word given after cluster", f"known are {known}")
    word, *rest = arguments
    if word in ("-h", "--help"):
        _print_help()
        return 0
    if word not in WORDS:
        raise UsageError(f"unknown word {quoted(word)} after cluster", f"known are {known}")
    return int(importlib.import_module(f"gpulaunch.cli.cluster_{word}").main(rest))


def _print_help() -> None:
    words = "\n".join(f"  {word:6} {summary}" for word, summary in WORDS.items())
    Parser(
        "gpulaunch cluster",
        "Past one machine.",
        "gpulaunch cluster WORD [OPTIONS]",
        epilog=f"words, each with a --help of its own:\n{words}",
    ).print_help()
