"""The lock file of CI, and the licences of what it pins."""

import re
import runpy
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from toml_parser import tomllib

ROOT = Path(__file__).parents[2]
LICENCES = runpy.run_path(str(ROOT / "docs" / "licences.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = {*PROJECT["dependencies"]}.union(*PROJECT["optional-dependencies"].values())
LOCK = (ROOT / ".ci" / "lock.txt").read_text()
ENTRIES = re.findall(r"^(\S.*?) \\\n((?:    .*\n)+)", LOCK, re.MULTILINE)
PYTHONS = [{"python_version": f"3.{n}", "python_full_version": f"3.{n}.0"} for n in range(10, 15)]


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python["python_version"])
def test_the_lock_has_what_is_required(python: dict[str, str]) -> None:
    """The lock pins each direct dependency once for each Python, in a version that is allowed."""
    locked: dict[str, list[str]] = {}
    for entry in (Requirement(text) for text, _ in ENTRIES):
        if entry.marker is None or entry.marker.evaluate(python):
            (pin,) = entry.specifier
            locked.setdefault(canonicalize_name(entry.name), []).append(pin.version)
    for requirement in map(Requirement, sorted(REQUIRED)):
        if requirement.marker is None or requirement.marker.evaluate(python):
            (version,) = locked[canonicalize_name(requirement.name)]
            assert version in requirement.specifier, requirement


def test_the_lock_has_hashes_and_no_place() -> None:
    """Every package in the lock has hashes, and no line says where to get it."""
    assert [entry for entry, block in ENTRIES if "--hash=sha256:" not in block] == []
    assert re.findall(r"^\S+==", LOCK, re.MULTILINE) == [
        f"{e.split('==')[0]}==" for e, _ in ENTRIES
    ]
    assert re.findall(r".*(?:://|index|find-links).*", LOCK) == []


def test_licences_are_up_to_date() -> None:
    """The page of licences is as `make docs` writes it for the lock."""
    text = LICENCES["PAGE"].read_text()
    assert LICENCES["page"](text, LOCK) == text
