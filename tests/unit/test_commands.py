"""The table of commands: what is in it is offered and dispatched; nothing else lists commands."""

from pathlib import Path

import pytest

from gpulaunch import cli
from gpulaunch.cli import main
from gpulaunch.cli.commands import COMMANDS, GROUPS, Command
from gpulaunch.errors import UsageError


def test_a_new_command_is_one_module_and_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new command runs, gets its arguments and is listed without a change to the package."""
    (tmp_path / "greet.py").write_text(
        "def main(arguments):\n    print('hello', *arguments)\n    return 3\n"
    )
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    row = Command("greet", "NAME", "say hello")
    monkeypatch.setitem(COMMANDS, "greet", row)
    monkeypatch.setitem(GROUPS, "greetings", (row,))
    assert main.run(["greet", "--loud", "you"]) == 3
    assert capsys.readouterr().out == "hello --loud you\n"
    main.run(["--help"])
    assert "  greet NAME            say hello\n" in capsys.readouterr().out
    with pytest.raises(UsageError, match="'gpulaunch greet' runs no command, but -- is given"):
        main.run(["greet", "--", "true"])
