"""Interactive shells with gpulaunch's completion, in which tests press Tab."""

import shutil
from pathlib import Path

import pexpect
import pytest
from conftest import Launcher

from gpulaunch.records import Record

BASH_COMPLETION = "/usr/share/bash-completion/bash_completion"
_WRITTEN = "the line is written"
_READY = "ready to complete"


class Kind(Record):
    """A shell, and how tests use it.

    Attributes:
        command: its command line.
        settings: what makes it print as little as possible.
        load: the command of the guide that loads the completion.
        key: what makes Ctrl-G write the line to a file and tell so.
    """

    command: str
    settings: str
    load: str
    key: str


_TELL = f'> "$LINE_FILE"; echo {_WRITTEN[:4]}""{_WRITTEN[4:]}'
_BASH = Kind(
    "bash --norc --noprofile -i",
    "true",
    'eval "$(gpulaunch completion bash)"',
    f"""bind -x '"\\C-g": printf %s "$READLINE_LINE" {_TELL}'""",
)
PLAIN_BASH = "bash without bash-completion"
KINDS = {
    "bash": Kind(_BASH.command, f"source {BASH_COMPLETION}", _BASH.load, _BASH.key),
    PLAIN_BASH: _BASH,
    "zsh": Kind(
        "zsh -f -i",
        "autoload -Uz compinit; compinit -u -D; unsetopt beep",
        'eval "$(gpulaunch completion zsh)"',
        f"""dump() {{ print -rn -- "$BUFFER" {_TELL} }}; zle -N dump; bindkey '^G' dump""",
    ),
    "fish": Kind(
        "fish --private -i",
        "function fish_prompt; end; set -g fish_autosuggestion_enabled 0",
        "gpulaunch completion fish | source",
        f"bind \\cg 'commandline | string collect | read -lz x; printf %s $x {_TELL}'",
    ),
}


class Shell:
    """An interactive shell on a terminal.

    Args:
        name: a key of KINDS.
        launcher: the gpulaunch on its PATH; the shell runs in the parent of its state directory.
        load: what loads the completion; None for the command of the guide.

    Attributes:
        name: its name.
        printed: what the terminal showed after the last Tab.
    """

    def __init__(self, name: str, launcher: Launcher, load: str | None = None) -> None:
        kind = KINDS[name]
        program, *arguments = kind.command.split()
        if not shutil.which(program):
            pytest.skip(f"needs {program}")
        if name == "bash" and not Path(BASH_COMPLETION).exists():
            pytest.skip("needs the package bash-completion")
        home = launcher.state.parent
        self._line_file = home / "line"
        self.name, self.printed = name, ""
        self._terminal = pexpect.spawn(
            program,
            arguments,
            env=launcher.environment | {"LINE_FILE": str(self._line_file), "TERM": "xterm"},
            cwd=home,
            encoding="utf-8",
            timeout=None,
            dimensions=(50, 200),
        )
        ready = f'echo {_READY[:3]}""{_READY[3:]}'
        for line in (kind.settings, load or kind.load, kind.key, ready):
            self._terminal.sendline(line)
        self._terminal.expect_exact(_READY)

    def run(self, line: str) -> None:
        """Run a command that prints nothing."""
        self._terminal.sendline(line)

    def tab(self, line: str) -> str:
        """Type a line, press Tab, and return what is on the line then."""
        self._terminal.send(f"{line}\t\x07")
        self._terminal.expect_exact(_WRITTEN)
        self.printed = self._terminal.before
        self._terminal.send("\x15")  # clear the line
        return self._line_file.read_text().removesuffix("\n")  # which fish 3.3 adds

    def close(self) -> None:
        """End the shell."""
        self._terminal.close(force=True)
