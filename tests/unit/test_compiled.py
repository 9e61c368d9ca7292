"""The compiled form of shipped data files: what a wheel has of them in JSON."""

import json
from pathlib import Path

import pytest

from gpulaunch.files import document
from gpulaunch.files.document import compiled_path, compiled_text, read_document
from gpulaunch.files.toml import parse_toml

SHIPPED = sorted((Path(__file__).parents[2] / "profiles").rglob("*.toml"))


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """Write a TOML file where a wheel keeps its data, with its compiled form."""
    directory = tmp_path / "gpulaunch" / "_profiles"
    directory.mkdir(parents=True)
    path = directory / "one.toml"
    path.write_text("a = 1\n")
    Path(compiled_path(str(path))).write_text(compiled_text("a = 1\n", {"a": "compiled"}))
    return path


def test_a_shipped_file_is_read_from_its_compiled_form(shipped: Path) -> None:
    """What the JSON says is taken, and the text is there for messages."""
    assert read_document(str(shipped)).data == {"a": "compiled"}
    assert read_document(str(shipped)).text == "a = 1\n"


def test_a_changed_file_is_parsed(shipped: Path) -> None:
    """A file that was edited after the wheel was made is read as it stands."""
    shipped.write_text("a = 2\n")
    assert read_document(str(shipped)).data == {"a": 2}


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_damaged_compiled_form_is_left_alone(shipped: Path, content: str) -> None:
    """Without a usable compiled form the TOML is parsed."""
    Path(compiled_path(str(shipped))).write_text(content)
    assert read_document(str(shipped)).data == {"a": 1}


def test_files_elsewhere_have_no_compiled_form(tmp_path: Path) -> None:
    """JSON beside a user's own file means nothing."""
    path = tmp_path / "own.toml"
    path.write_text("a = 1\n")
    Path(compiled_path(str(path))).write_text(compiled_text("a = 1\n", {"a": "no"}))
    assert read_document(str(path)).data == {"a": 1}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_compiling_loses_nothing(path: Path) -> None:
    """JSON gives back exactly what TOML said, types included."""
    text = path.read_text()
    data = parse_toml(str(path), text)
    assert repr(json.loads(compiled_text(text, data))["data"]) == repr(data)
    assert document.SHIPPED not in str(path)
