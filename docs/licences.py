"""Write docs/reference/licences.md, the licences of dependencies: `python docs/licences.py`.

There is a row for each package in .ci/lock.txt. The licence of a package that is installed here, in
a version that the lock has, is read from its metadata. A row shows that of the newest version, and
stays as it is where another one is installed, or none.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution
from pathlib import Path

from gpulaunch.files.toml_parser import tomllib

ROOT = Path(__file__).parents[1]
LOCK = ROOT / ".ci" / "lock.txt"
PAGE = ROOT / "docs" / "reference" / "licences.md"

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CECILL-C", "ISC"),
    *("MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib"),
}
"""SPDX identifiers that a project under the MIT licence may depend on, and BSD for any of its
forms: licences without terms for programs that merely use the package."""

SPDX = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Older metadata's words for a licence -> its identifier."""

HEAD = """\
# Licences of dependencies

gpulaunch is under the [MIT licence](../../LICENSE) and contains no code of other projects; pip
installs what it depends on. This page, written by `make docs`, lists every package that
`.ci/lock.txt` pins for Linux, with the licence that its metadata states. MPL-2.0 and CECILL-C have
terms only for changes to a package's own files.

| package | licence | needed by |
|---|---|---|
"""
_ROW = re.compile(r"^\| (\S+) \| (.+?) \| .+ \|$", re.MULTILINE)
_PINNED = re.compile(r"^([\w.-]+)==(\S+)(?: ; .+)? \\\n((?:    .*\n)*)", re.MULTILINE)
_PARENT = re.compile(r"#(?: via|  ) ([\w.-]+)")


def locked(lock: str) -> dict[str, list[str]]:
    """Return the versions that a lock file has of each package, ascending."""
    found: dict[str, list[str]] = {}
    for name, version, _ in _PINNED.findall(lock):
        found.setdefault(name, []).append(version)
    return found


def licence_of(name: str, metadata: PackageMetadata) -> str:
    """Return the licence that a package's metadata states.

    Raises:
        ValueError: it is not among those allowed, or there is none.
    """
    keys = ("License-Expression", "License", "Classifier")
    texts = [text for key in keys for text in metadata.get_all(key, [])]
    kinds = [text for text in texts if text.startswith("License ::") or " :: " not in text]
    said = [kind.split(" :: ")[-1].split("\n")[0] for kind in kinds]
    for text in said:
        licence: str = SPDX.get(text, text)
        if set(re.findall(r"[^\s()]+", licence)) - {"AND", "OR"} <= ALLOWED:
            return licence
    raise ValueError(f"{name}: none of {said} is among ALLOWED in docs/licences.py")


def page(text: str, lock: str) -> str:
    """Return the page for a lock file, with rows of the page there is for what is not installed.

    Raises:
        ValueError: a licence is not allowed, or a package has no row and is not installed.
    """
    rows = dict(_ROW.findall(text))
    users = _users(lock)
    lines = []
    for name, versions in sorted(locked(lock).items()):
        with suppress(PackageNotFoundError):
            own = distribution(name)
            if own.version in versions:
                licence = licence_of(name, own.metadata)
                rows[name] = licence if own.version == versions[-1] else rows.get(name, licence)
        if name not in rows:
            raise ValueError(f"{name} {' or '.join(versions)} has to be installed here")
        lines.append(f"| {name} | {rows[name]} | {users[name]} |\n")
    return HEAD + "".join(lines)


def _users(lock: str) -> dict[str, str]:
    """Return what needs each package: gpulaunch itself, else some of its extras, else its tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    parents = {name: _PARENT.findall(block) for name, _, block in _PINNED.findall(lock)}
    own = _needed(project["dependencies"], parents)
    found = {name: _needed(some, parents) for name, some in extras.items() if name != "test"}
    users = {}
    for name in parents:
        some = ", ".join(f"`{extra}`" for extra, needed in found.items() if name in needed)
        users[name] = "gpulaunch" if name in own else some or "tests"
    return users


def _needed(needs: Iterable[str], parents: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the names of some requirements and of all that they require."""
    names = {re.split(r"[^\w.-]", text)[0].lower().replace("_", "-") for text in needs}
    before = 0
    while before < len(names):
        before = len(names)
        names |= {name for name, ups in parents.items() if not names.isdisjoint(ups)}
    return names


def main() -> None:
    """Write the page if it has changed."""
    text = PAGE.read_text() if PAGE.exists() else ""
    new = page(text, LOCK.read_text())
    if new != text:
        PAGE.write_text(new)
        print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
