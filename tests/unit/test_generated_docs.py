"""The documents that docs/generate.py writes are those that the code would make now."""

import runpy
from pathlib import Path

import pytest

from gpulaunch.cli.commands import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
GENERATE = runpy.run_path(str(DOCS / "generate.py"))
GENERATED = GENERATE["GENERATED"]
SETTINGS = "reference/settings.md"


def test_documents_are_up_to_date() -> None:
    """Generated documents are as `python docs/generate.py` writes them."""
    texts = {name: (DOCS / name).read_text() for name in GENERATED}
    assert [name for name, text in texts.items() if GENERATED[name](text) != text] == []


def test_setting_that_the_page_does_not_explain() -> None:
    """A setting that has no row with a default in the page is an error."""
    text = (DOCS / SETTINGS).read_text().replace("| `grace` |", "| `disgrace` |")
    with pytest.raises(ValueError, match=r"settings.md does not say the default of grace"):
        GENERATED[SETTINGS](text)


def test_commands_have_a_line_each() -> None:
    """The page of commands has one line for each command that the command line knows."""
    lines = (DOCS / "reference/commands.md").read_text().splitlines()
    for word in COMMANDS:
        assert len([line for line in lines if line.startswith(f"| `gpulaunch {word}` | ")]) == 1
