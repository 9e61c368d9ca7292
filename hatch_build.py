"""Build hook: the wheel has completion scripts and man pages."""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


COMPLETIONS = {
    "bash": "share/bash-completion/completions/gpulaunch",
    "zsh": "share/zsh/site-functions/_gpulaunch",
    "fish": "share/fish/vendor_completions.d/gpulaunch.fish",
}


class GeneratedFiles(BuildHookInterface):
    """Puts generated files into the wheel: completion scripts and man pages."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files and include them in a wheel that is no editable one."""
        if version == "editable":
            return
        # Not a fixed name: the parent of pip's output directory may be /tmp, which others share.
        self._place = tempfile.TemporaryDirectory()
        sys.path.insert(0, str(ROOT))
        for name, content in _shell_files(self.metadata.version):
            build_data["shared_data"][self._written(name, content)] = name

    def _written(self, name: str, content: bytes) -> str:
        """Write a file for the time of the build, and return its path."""
        path = Path(self._place.name) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)


def _shell_files(version: str) -> Iterator[tuple[str, bytes]]:
    """Yield the completion scripts and man pages of a version, with their content."""
    from argparse_manpage.manpage import Manpage

    from gpulaunch.cli.commands import COMMANDS
    from gpulaunch.cli.completion import all_parsers, completion_script

    for shell, name in COMPLETIONS.items():
        yield name, completion_script(shell).encode()
    for words, parser in all_parsers().items():
        page = Manpage(parser, {"manual_title": "User Commands", "version": version})
        page.prog = "-".join(("gpulaunch", *words.split()))
        page.description = COMMANDS[words].summary if words in COMMANDS else parser.description
        page.source, page.date = f"gpulaunch {version}", ""
        text = re.sub(r"^\.(?=\.)", r"\\&.", str(page), flags=re.MULTILINE)  # text, no macro
        yield f"share/man/man1/{page.prog}.1", text.encode()
