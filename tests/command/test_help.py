"""Help and version of the installed command."""

import subprocess
import sys

from conftest import Launcher

from gpulaunch.cli.commands import COMMANDS


def test_every_command_has_its_module_and_help(launcher: Launcher) -> None:
    """Each row's command answers --help with its own usage line."""
    for word in COMMANDS:
        done = launcher.run(word, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: gpulaunch {word}")


def test_help_lists_every_command(launcher: Launcher) -> None:
    """The usage line and the list of `gpulaunch --help` come from the table."""
    shown = launcher.run("--help").stdout
    assert f"gpulaunch {'|'.join(COMMANDS)} [OPTIONS]" in " ".join(shown.split())
    for command in COMMANDS.values():
        assert any(
            line.startswith(f"  {command.word}") and line.endswith(command.summary)
            for line in shown.splitlines()
        )


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
