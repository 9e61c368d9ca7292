"""How well `profile --scan` reads public programs that were labelled before it first saw them.

Run with `python tests/bench/scan_public.py [FOLDER] [--wrong]`. FOLDER holds the programs as
NAME/PATH or OWNER/NAME/PATH; what is missing there is fetched into it by its address. Without a
FOLDER a temporary one is used. The labels are in
scan_public.toml, scan_held_back.toml and scan_fresh.toml.
"""

import io
import sys
import tarfile
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from toml_parser import tomllib

from gpulaunch.errors import GpulaunchError
from gpulaunch.lab.scan.sources import Scan, read_sources, scan_sources

SETS = ("scan_public.toml", "scan_held_back.toml", "scan_fresh.toml")
Label = tuple[bool, str, str]


def fetch(address: str, paths: list[str], folder: Path) -> None:
    """Fetch the files of one source archive (NAME==VERSION) or repository (OWNER/NAME@COMMIT)."""
    if "@" in address:
        name, commit = address.split("@")
        for path in paths:
            url = f"https://raw.githubusercontent.com/{name}/{commit}/{path}"
            keep(folder / name / path, urllib.request.urlopen(url, timeout=60).read())
        return
    name, version = address.split("==")
    place = f"https://files.pythonhosted.org/packages/source/{name[0]}/{name}"
    try:
        raw = urllib.request.urlopen(f"{place}/{name}-{version}.tar.gz", timeout=300).read()
    except OSError:
        stem = name.replace("-", "_")
        raw = urllib.request.urlopen(f"{place}/{stem}-{version}.tar.gz", timeout=300).read()
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        for member in archive:
            path = member.name.partition("/")[2]
            if path in paths:
                keep(folder / name / path, archive.extractfile(member).read())


def keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def main() -> None:
    arguments = [one for one in sys.argv[1:] if one != "--wrong"]
    folder = Path(arguments[0] if arguments else tempfile.mkdtemp())
    for name in SETS:
        labels = tomllib.loads(Path(__file__).with_name(name).read_text())
        print(f"\n{name}")
        report(judged(labels, folder))


def judged(programs: Mapping[str, Mapping[str, Label]], folder: Path) -> Counter[str]:
    """Return the counts of all programs that are in the folder, or can be fetched into it."""
    count = Counter[str]()
    for address, labels in programs.items():
        home = folder / address.replace("==", "@").split("@")[0]
        for path, label in labels.items():
            try:
                if not (home / path).exists():
                    fetch(address, list(labels), folder)
                found = scan_sources(*read_sources(str(home / path)))
            except (OSError, GpulaunchError) as problem:
                print(f"{home / path}: {problem}")
            else:
                judge(f"{home.name}/{path}", found, label, count)
    return count


def judge(name: str, found: Scan, label: Label, count: Counter[str]) -> None:
    """Count one program, and print it with --wrong if anything is wrong about it."""
    talks, patterns, sensitive = label
    right = found.pattern in patterns.split("|")
    says = {True: "yes", False: "no", None: "unknown"}[found.sensitive]
    count["programs"] += 1
    count["talk"] += talks
    count["said"] += bool(found.calls)
    count["found"] += talks and bool(found.calls)
    count["pattern"] += right
    count["sensitive"] += says in sensitive.split("|") or (not talks and says == "unknown")
    count[found.confidence] += 1
    count[f"{found.confidence}, wrong"] += not right or bool(found.calls) != talks
    if "--wrong" in sys.argv and not right:
        print(f"{name}: {found.pattern}, {found.confidence}; label {patterns}; {found.reasons[:2]}")


def report(count: Counter[str]) -> None:
    """Print the figures."""
    figures = {
        "recall": (count["found"], count["talk"]),
        "precision": (count["found"], count["said"]),
        "pattern": (count["pattern"], count["programs"]),
        "sensitivity": (count["sensitive"], count["programs"]),
    }
    for confidence in ("certain", "likely", "guess"):
        figures[f"{confidence} and wrong"] = count[f"{confidence}, wrong"], count[confidence]
    print(f"{count['programs']} programs, {count['talk']} that communicate")
    for name, (part, whole) in figures.items():
        print(f"{name:18} {part:3} of {whole:3}  {100 * part / (whole or 1):5.1f} %")


if __name__ == "__main__":
    main()
