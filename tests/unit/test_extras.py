"""Optional packages are named by their requirements, for the environment that gpulaunch runs in."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from gpulaunch.files.extras import EXTRAS, install_hint
from gpulaunch.files.toml import tomllib

ROOT = Path(__file__).parents[2]


def test_requirements_are_those_of_pyproject() -> None:
    """What a hint installs is what pyproject.toml names for the extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    del extras["test"]
    assert {name: list(packages) for name, packages in EXTRAS.items()} == extras


@pytest.mark.parametrize(
    ("executable", "pip", "writable", "want"),
    [
        ("/v/bin/python", False, True, "uv pip install --python /v/bin/python 'matplotlib>=3.10'"),
        ("/v/bin/python", True, False, "sudo /v/bin/python -m pip install 'matplotlib>=3.10'"),
        ("/a b/python", True, True, "'/a b/python' -m pip install 'matplotlib>=3.10'"),
    ],
    ids=["uv", "an administrator's", "space in its path"],
)
def test_install_hint(
    monkeypatch: pytest.MonkeyPatch, executable: str, pip: bool, writable: bool, want: str
) -> None:
    """The hint is a command for the environment's own Python, with what the user has there."""
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: pip and name == "pip")
    monkeypatch.setattr(os, "access", lambda *_: writable)
    assert install_hint("report") == want
