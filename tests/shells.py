"""Interactive shells with gpulaunch's completion, in which tests press Tab."""

import shutil
from pathlib import Path

import pexpect
import pytest
from conftest import Launcher

_DUMPED = "the line is written"
_READY = "ready to complete"
_TO_FILE = f'> "$DUMPED_TO"; echo {_DUMPED[:4]}""{_DUMPED[4:]}'
_BASH_COMPLETION = "/usr/share/bash-completion/bash_completion"
PLAIN_BASH = "plain bash"
"""bash without the package bash-completion."""

_COMMANDS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    PLAIN_BASH: ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--private", "-i"],
}
_SETTINGS = {
    "bash": f"source {_BASH_COMPLETION}",
    PLAIN_BASH: "true",
    "zsh": "autoload -Uz compinit; compinit -u -D; zstyle ':completion:*' menu no; unsetopt beep",
    "fish": "function fish_prompt; end; function fish_right_prompt; end; set -g fish_autosuggestion_enabled 0",
}
_LOADS = {
    "bash": 'eval "$(gpulaunch completion bash)"',
    "zsh": 'eval "$(gpulaunch completion zsh)"',
    "fish": "gpulaunch completion fish | source",
}
_DUMP_KEYS = {
    "bash": f"""bind -x '"\\C-g": printf %s "$READLINE_LINE" {_TO_FILE}'""",
    "zsh": f"""dump() {{ print -rn -- "$BUFFER" {_TO_FILE} }}; zle -N dump; bindkey '^G' dump""",
    "fish": f"""bind \\cg 'commandline | string collect | read -lz x; printf %s $x {_TO_FILE}'""",
}


class Shell:
    """An interactive shell on a terminal.

    Args:
        name: "bash", "zsh", "fish" or PLAIN_BASH.
        launcher: the gpulaunch that it finds on its PATH, and the directories of that.
        load: command that loads the completion; None for that of the guide.

    Attributes:
        printed: what the last Tab printed on the terminal.
    """

    def __init__(self, name: str, launcher: Launcher, load: str | None = None) -> None:
        kind = name.split()[-1]
        if not shutil.which(kind):
            pytest.skip(f"needs {kind}")
        if name == "bash" and not Path(_BASH_COMPLETION).exists():
            pytest.skip("needs the package bash-completion")
        self._dumped = launcher.state.parent / "line"
        self.printed = ""
        environment = launcher.environment | {
            "DUMPED_TO": str(self._dumped),
            "TERM": "xterm",
            "PS1": "",
        }
        command, *arguments = _COMMANDS[name]
        self._terminal = pexpect.spawn(
            command,
            arguments,
            env=environment,
            cwd=launcher.state.parent,
            encoding="utf-8",
            timeout=30,
            dimensions=(50, 200),
        )
        for line in (_SETTINGS[name], load or _LOADS[kind], _DUMP_KEYS[kind]):
            self._terminal.sendline(line)
        self._terminal.sendline(f'echo {_READY[:3]}""{_READY[3:]}')
        self._terminal.expect_exact(_READY)

    def tab(self, line: str) -> str:
        """Type a line, press Tab, and return what the line is then."""
        self._terminal.send(f"{line}\t\x07")
        self._terminal.expect_exact(_DUMPED)
        self.printed = self._terminal.before
        self._terminal.send("\x15")
        return self._dumped.read_text()

    def close(self) -> None:
        """End the shell."""
        self._terminal.close(force=True)
