"""The documents that docs/generate.py writes are those that the code would make now."""

import runpy
from pathlib import Path

import pytest

from gpulaunch.cli.commands import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
GENERATE = runpy.run_path(str(DOCS / "generate.py"))
GENERATED = GENERATE["GENERATED"]
PROFILES = "reference/profiles.md"
SETTINGS = "reference/settings.md"


@pytest.mark.parametrize("name", GENERATED)
def test_document_is_up_to_date(name: str) -> None:
    """A generated document is as `python docs/generate.py` writes it."""
    text = (DOCS / name).read_text()
    assert GENERATED[name](text) == text


def test_generate_writes_what_has_changed(tmp_path: Path, capsys) -> None:
    """A stale document is written and named; its handwritten text and other documents stay."""
    for name in GENERATED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((DOCS / name).read_bytes())
    text = (DOCS / PROFILES).read_text().replace("# Profiles", "# My profiles")
    (tmp_path / PROFILES).write_text(text.replace("average power", "average heat"))
    GENERATE["main"](tmp_path)
    GENERATE["main"](tmp_path)
    assert capsys.readouterr().out == f"written: {tmp_path / PROFILES}\n"
    assert (tmp_path / PROFILES).read_text() == text


def test_part_without_marks() -> None:
    """A document that lost the marks of its generated part is an error."""
    with pytest.raises(ValueError, match=r"no part between <!-- keys --> and <!-- /keys -->"):
        GENERATED[PROFILES]("# Profiles\n")


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
