"""The command line as data: every command's parser by its words, without running a command."""

import importlib

from gpulaunch.cli.arguments import Parser
from gpulaunch.cli.commands import COMMANDS
from gpulaunch.cli.help import make_launch_parser


def all_parsers() -> dict[str, Parser]:
    """Return the parser of each command by its words, such as "cluster map"; "" is a launch."""
    parsers = {"": make_launch_parser()}
    for command in COMMANDS.values():
        module = importlib.import_module(command.module or f"gpulaunch.cli.{command.word}")
        parsers[command.word] = module.make_parser()
        if hasattr(module, "word_parsers"):
            for word, parser in module.word_parsers().items():
                parsers[f"{command.word} {word}"] = parser
            continue
        for word in getattr(module, "WORDS", ()):
            below = importlib.import_module(f"{module.__name__}_{word}")
            parsers[f"{command.word} {word}"] = below.make_parser()
    return parsers
