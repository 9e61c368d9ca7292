"""The table of commands: what is in it is offered, helped with and dispatched; nothing else lists commands."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Launcher

from gpulaunch.cli import main
from gpulaunch.cli.commands import COMMANDS, Command
from gpulaunch.errors import UsageError

ROOT = Path(__file__).parents[2]


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


def test_readme_shows_every_command() -> None:
    """Somebody who reads the README meets each command."""
    text = (ROOT / "README.md").read_text()
    assert [word for word in COMMANDS if f"gpulaunch {word}" not in text] == []


def test_a_new_command_is_one_module_and_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A made-up command runs, gets its arguments and is listed, though no file of the package knows it."""
    (tmp_path / "greet.py").write_text(
        "def main(arguments):\n    print('hello', *arguments)\n    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "greet", Command("greet", "NAME", "say hello", module="greet"))
    assert main.run(["greet", "--loud", "you"]) == 3
    assert capsys.readouterr().out == "hello --loud you\n"
    main.run(["--help"])
    assert "  greet NAME  say hello\n" in capsys.readouterr().out
    with pytest.raises(UsageError, match="'gpulaunch greet' runs no command, but -- is given"):
        main.run(["greet", "--", "true"])


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
