"""`gpulaunch cluster WORD`: a file for each word, gpulaunch/cli/cluster_WORD.py with `main`."""

import importlib
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser
from gpulaunch.cli.output import prepare_stdout
from gpulaunch.errors import UsageError, did_you_mean, quoted

WORDS = {
    "map": "which rank on which node, core and GPU of a described cluster",
    "run": "run a command's ranks where such a map puts them, in an allocation",
}
"""Word -> its description."""


_RUN = "run"
_CALLED_BY_OTHERS = ("node",)  # by run, on each node of an allocation


def main(arguments: Sequence[str], command: Sequence[str] | None) -> int:
    """Run the word's own main.

    Args:
        arguments: the word and the arguments after it, before the --.
        command: command after the --; None if there is no --.
    """
    prepare_stdout()
    known = ", ".join(WORDS)
    if not arguments:
        raise UsageError("no word given after cluster", f"known are {known}")
    word, *rest = arguments
    if word in ("-h", "--help"):
        make_parser().print_help()
        return 0
    if word not in (*WORDS, *_CALLED_BY_OTHERS):
        meant = did_you_mean(word, WORDS)
        raise UsageError(f"unknown word {quoted(word)} after cluster{meant}", f"known are {known}")
    module = importlib.import_module(f"gpulaunch.cli.cluster_{word}")
    if word == _RUN:
        return int(module.main(rest, command))
    if command is not None:
        raise UsageError(f"cluster {word} runs no command, but -- is given")
    return int(module.main(rest))


def make_parser() -> Parser:
    """Return the parser that prints the help; each word has its own."""
    words = "\n".join(f"  {word:6} {summary}" for word, summary in WORDS.items())
    parser = Parser(
        "gpulaunch cluster",
        "Past one machine.",
        "gpulaunch cluster WORD [OPTIONS]",
        epilog=f"words, each with a --help of its own:\n{words}",
    )
    parser.add_argument("word", metavar="WORD", choices=WORDS, help="one of the words below")
    return parser
