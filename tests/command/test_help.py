"""Help and version of the installed command."""

import re
import shlex
import subprocess
import sys

from conftest import Launcher

from gpulaunch.cli.commands import COMMANDS
from gpulaunch.launch.options import OPTIONS, SETTINGS, TYPED


def test_every_command_has_its_module_and_help(launcher: Launcher) -> None:
    """Each row's command answers --help with its own usage line; its example can be typed."""
    for word, command in COMMANDS.items():
        done = launcher.run(word, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: gpulaunch {word}")
        if command.example:
            assert f"example: {command.example}" in done.stdout
            program, first, *rest = shlex.split(command.example)
            assert (program, first) == ("gpulaunch", word)
            options = [one for one in rest if one.startswith("-")]
            assert [one for one in options if one not in done.stdout] == []


def test_help_of_a_command(launcher: Launcher) -> None:
    """`gpulaunch help WORD` is `gpulaunch WORD --help`, without a word the short help."""
    for words in (["cluster", "map"], ["status"], []):
        assert launcher.run("help", *words).stdout == launcher.run(*words, "--help").stdout
    assert launcher.run("-V").stdout == launcher.run("--version").stdout


def test_help_of_launches_has_all_options(launcher: Launcher) -> None:
    """`help launch` has every option once, and `help settings` every setting, with its text."""
    lines = launcher.run("help", "launch").stdout.splitlines()
    starts = [line.split()[0].rstrip(",") for line in lines if line.startswith("  -")]
    assert sorted(starts) == sorted(
        ["-o", *(row.flags[0] for row in OPTIONS.values() if row.flags)]
    )
    launcher.environment["COLUMNS"] = "1000"
    settings = launcher.run("help", "settings").stdout
    assert re.findall(r"^  (\w+) +\S+: (.+)$", settings, re.MULTILINE) == [
        (name, row.text) for name, row in (SETTINGS | TYPED).items()
    ]
    assert len(SETTINGS) <= 45


def test_version_needs_no_launch_path() -> None:
    """`--version` and an unknown word load neither deciding nor the table."""
    program = (
        "import sys; from gpulaunch.cli import main; main.run(['--version']); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    rooms = ("decide", "leases", "machine", "sharing", "profiles", "process")
    assert [
        name
        for name in done.stdout.split()
        if name.startswith(tuple(f"gpulaunch.{room}" for room in rooms))
    ] == []
