"""Pages of the reference, generated or written by people, say what the code has."""

import importlib.util
import os
import re
import runpy
import sys
from pathlib import Path

import pytest
from toml_parser import tomllib

import gpulaunch
from gpulaunch import errors
from gpulaunch.files.document import EXTRAS, install_hint

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_documents_are_up_to_date() -> None:
    """Generated documents are as `python docs/generate.py` writes them."""
    generated = runpy.run_path(str(DOCS / "generate.py"))["GENERATED"]
    texts = {name: (DOCS / name).read_text() for name in generated}
    assert [name for name, text in texts.items() if generated[name](text) != text] == []


def test_python() -> None:
    """The page shows every public name of the package, and no other one."""
    text = (DOCS / "reference/python.md").read_text()
    assert [name for name in gpulaunch.__all__ if not re.search(rf"\b{name}\b", text)] == []
    assert set(re.findall(r"\bgpulaunch\.([A-Za-z]\w*)", text)) <= set(gpulaunch.__all__)


def test_exit_statuses() -> None:
    """The page has the statuses of launches with the errors that Python raises in their place."""
    text = (DOCS / "reference/exit-statuses.md").read_text()
    rows = re.findall(r"^\| (\d+) \| .* \| (?:`(\w+)`)? ?\|$", text, re.MULTILINE)
    public = [getattr(errors, name) for name in gpulaunch.__all__ if "Error" in name]
    # Errors below these have their statuses.
    raised = {
        error.__name__: error.exit_status
        for error in public
        if error.__base__ is errors.GpulaunchError
    }
    assert {name: int(status) for status, name in rows if name} == raised
    assert {int(status) for status, _ in rows} == {
        value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)
    }


@pytest.mark.parametrize(
    ("executable", "pip", "writable", "want"),
    [
        ("/v/bin/python", False, True, "uv pip install --python /v/bin/python 'mcp>=2.0'"),
        ("/v/bin/python", True, False, "sudo /v/bin/python -m pip install 'mcp>=2.0'"),
        ("/a b/python", True, True, "'/a b/python' -m pip install 'mcp>=2.0'"),
    ],
    ids=["uv", "an administrator's", "space in its path"],
)
def test_install_hint(
    monkeypatch: pytest.MonkeyPatch, executable: str, pip: bool, writable: bool, want: str
) -> None:
    """The hint installs what pyproject.toml names for the extra, where gpulaunch runs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    del extras["test"]
    assert {name: list(packages) for name, packages in EXTRAS.items()} == extras
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: pip and name == "pip")
    monkeypatch.setattr(os, "access", lambda *_: writable)
    assert install_hint("mcp") == want
