"""Build hook: the wheel has what a launch reads faster than shipped TOML files, and shell files.

The former is each of them in JSON, and the tables of machines of up to 8 GPUs. Tables of 16 would
take 10 s a machine to make, and the shipped ones that are not all linked alike are made up. The
latter are completion scripts and man pages.
"""

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
    """Puts generated files into the wheel: compiled profiles, completion scripts, man pages."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files and include them in a wheel that is no editable one."""
        if version == "editable":
            return
        # Not a fixed name: the parent of pip's output directory may be /tmp, which others share.
        self._place = tempfile.TemporaryDirectory()
        sys.path.insert(0, str(ROOT))
        for name, content in _compiled_profiles():
            path = self._written(f"profiles/{name}", content)
            build_data["force_include"][path] = f"gpulaunch/_profiles/{name}"
        for name, content in _shell_files():
            build_data["shared_data"][self._written(name, content)] = name

    def _written(self, name: str, content: bytes) -> str:
        """Write a file for the time of the build, and return its path."""
        path = Path(self._place.name) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)


def _compiled_profiles() -> Iterator[tuple[str, bytes]]:
    """Yield NAME.json, and perhaps NAME.tables, of each NAME.toml, with its content."""
    from gpulaunch.files.document import compiled_text
    from gpulaunch.files.toml import parse_toml

    for path in sorted((ROOT / "profiles").rglob("*.toml")):
        text = path.read_text()
        contents = {".json": compiled_text(text, parse_toml(str(path), text)).encode()}
        if path.is_relative_to(ROOT / "profiles" / "machines"):
            contents |= _tables(path)
        for suffix, content in contents.items():
            yield str(path.relative_to(ROOT / "profiles").with_suffix(suffix)), content


def _shell_files() -> Iterator[tuple[str, bytes]]:
    """Yield the completion scripts and man pages, with their content."""
    from argparse_manpage.manpage import Manpage

    from gpulaunch import __version__
    from gpulaunch.cli.commands import COMMANDS
    from gpulaunch.cli.completion import all_parsers, completion_script

    for shell, name in COMPLETIONS.items():
        yield name, completion_script(shell).encode()
    for words, parser in all_parsers().items():
        page = Manpage(parser, {"manual_title": "User Commands", "version": __version__})
        page.prog = "-".join(("gpulaunch", *words.split()))
        page.description = COMMANDS[words].summary if words in COMMANDS else parser.description
        page.source, page.date = f"gpulaunch {__version__}", ""
        text = re.sub(r"^\.(?=\.)", r"\\&.", str(page), flags=re.MULTILINE)  # text, no macro
        yield f"share/man/man1/{page.prog}.1", text.encode()


def _tables(path: Path) -> dict[str, bytes]:
    """Return the content of the file with a machine's tables by its suffix, if it has some."""
    from gpulaunch.decide.placement.fabric import MAPPED_GPUS, Fabric
    from gpulaunch.decide.placement.tables import tabulate, to_bytes
    from gpulaunch.machine.catalog import load_described_machine

    fabric = Fabric(load_described_machine(str(path))[0])
    if not fabric.has_tables or len(fabric.gpus) > MAPPED_GPUS:
        return {}
    tabulate(fabric)
    return {".tables": to_bytes(fabric)}
