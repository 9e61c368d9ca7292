"""The options of a launch: how a command line is read, and where a value comes from."""

import pytest

from gpulaunch.cli.arguments import LaunchParser
from gpulaunch.errors import UsageError
from gpulaunch.launch.options import OPTIONS, Options
from gpulaunch.placement.policies import POLICIES

LINES = {
    "-n3 a --b": ({"gpus": ("-n", "3")}, 1),
    "-qdn 3 a": ({"quiet": ("-q", "true"), "detach": ("-d", "true"), "gpus": ("-n", "3")}, 2),
    "--topology x status --json": ({"topology": ("--topology", "x")}, 2),
    "--insensitive": ({"bandwidth_sensitive": ("--insensitive", "false")}, None),
    "--after a --after b": ({"after": ("--after", "a\0b")}, None),
    "-o queue=fifo -oonly=1,2": ({"queue": ("-o", "fifo"), "only": ("-o", "1,2")}, None),
    "--share docker run --share 1/2": ({"share": ("--share", "true")}, 1),
    "--share 1/2 docker": ({"share": ("--share", "1/2")}, 2),
    "--share=50% 1/2": ({"share": ("--share", "50%")}, 1),
}
"""A command line -> what it gives by name, and the index of its first word."""


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_read_up_to_its_first_word(line: str) -> None:
    """Options are read up to the first word, and --share takes only a part of a GPU."""
    assert LaunchParser(OPTIONS.values()).read(line.split()) == LINES[line]


MISTAKES = {
    "--wai": ("unknown option --wai: did you mean --wait or --wait-timeout?",),
    "-n --wait": ("-n/--gpus needs a value: N|2-4|all",),
    "--no-bind-cpu": ("unknown option --no-bind-cpu", "write -o bind_cpu=false"),
    "-o queu=fifo": ("-o: unknown setting 'queu': did you mean queue?",),
    "-o after=x": ("-o: 'after' is an option, not a setting", "write --after"),
}
"""A command line -> the message and perhaps the hint of its mistake."""


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_on_a_line(line: str) -> None:
    """Options are not abbreviated; one that is only a setting names -o NAME=VALUE."""
    with pytest.raises(UsageError) as caught:
        LaunchParser(OPTIONS.values()).read(line.split())
    told = (caught.value.message, caught.value.hint)
    assert told[: len(MISTAKES[line])] == MISTAKES[line]


def test_what_only_a_command_line_sets() -> None:
    """A variable sets no option that is for the command line alone."""
    variables = {"GPULAUNCH_DRY_RUN": "true", "GPULAUNCH_IGNORE_ENGINE": "true"}
    options = Options({}, variables)
    assert (options.dry_run, options.ignore_engine, options.wait) == (False, False, False)


def test_the_help_names_each_policy() -> None:
    """A policy that has its row is in the help of --policy, too, which is written by hand."""
    words = OPTIONS["policy"].text.replace(",", "").split()
    assert {name.replace("_", "-") for name in POLICIES} <= set(words)
