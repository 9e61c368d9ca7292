"""Write docs/reference/licences.md, the licences of dependencies: `python docs/licences.py`.

Each package in .ci/lock.txt is listed with its licence. The licence of a package that is installed
here, in a version that the lock has, is read from its metadata. The page shows that of the newest
version, and keeps what it says where another one is installed, or none.
"""

import re
from contextlib import suppress
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution
from pathlib import Path

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
`.ci/lock.txt` pins for Linux by the licence that its metadata states. MPL-2.0 and CECILL-C have
terms only for changes to a package's own files.

| licence | packages |
|---|---|
"""
_ROW = re.compile(r"^\| (.+?) \| (.+) \|$", re.MULTILINE)
_PINNED = re.compile(r"^([\w.-]+)==(\S+)(?: ; .+)? \\$", re.MULTILINE)


def locked(lock: str) -> dict[str, list[str]]:
    """Return the versions that a lock file has of each package, ascending."""
    found: dict[str, list[str]] = {}
    for name, version in _PINNED.findall(lock):
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
    """Return the page for a lock file; what is not installed stays as the page there is has it.

    Raises:
        ValueError: a licence is not allowed, or a package is neither in the page nor installed.
    """
    known = {name: licence for licence, row in _ROW.findall(text) for name in row.split(", ")}
    packages: dict[str, list[str]] = {}
    for name, versions in sorted(locked(lock).items()):
        with suppress(PackageNotFoundError):
            own = distribution(name)
            if own.version in versions:
                licence = licence_of(name, own.metadata)
                known[name] = licence if own.version == versions[-1] else known.get(name, licence)
        if name not in known:
            raise ValueError(f"{name} {' or '.join(versions)} has to be installed here")
        packages.setdefault(known[name], []).append(name)
    rows = (f"| {licence} | {', '.join(names)} |\n" for licence, names in sorted(packages.items()))
    return HEAD + "".join(rows)


def main() -> None:
    """Write the page if it has changed."""
    text = PAGE.read_text() if PAGE.exists() else ""
    new = page(text, LOCK.read_text())
    if new != text:
        PAGE.write_text(new)
        print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
