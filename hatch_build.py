"""Build hook: the wheel has completion scripts and man pages."""

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
        sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
        for name, content in _shell_files():
            build_data["shared_data"][self._written(name, content)] = name

    def _written(self, name: str, content: bytes) -> str:
        """Write a file for the time of the build, and return its path."""
        path = Path(self._place.name) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)


def _shell_files() -> Iterator[tuple[str, bytes]]:
    """Yield the completion scripts and man pages, with their content."""
    from man_pages import man_pages

    from gpulaunch.cli.completion_scripts import completion_script

    for shell, name in COMPLETIONS.items():
        yield name, completion_script(shell).encode()
    for name, text in man_pages().items():
        yield f"share/man/man1/{name}", text.encode()
