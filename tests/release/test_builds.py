"""What is built from this repository has the right version, and the same bytes everywhere."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bare_machine import ROOT

pytestmark = pytest.mark.xdist_group("builds")


def do(*command: str | Path, cwd: Path, **options) -> str:
    """Run a command that must succeed, and return what it printed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clone(place: Path, **options) -> Path:
    """Clone this checkout's last commit."""
    do("git", "clone", "--quiet", ROOT, place, cwd=ROOT, **options)
    return place


def build(source: Path, target: str = "wheel", **options) -> Path:
    """Build a wheel or an sdist, and return its path."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    output = source.parent / f"{source.name}-{target}"
    hatchling = (sys.executable, "-m", "hatchling", "build")
    do(*hatchling, "-t", target, "-d", output, cwd=source, **options)
    (built,) = output.iterdir()
    return built


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_same_bytes(tmp_path: Path, target: str) -> None:
    """Two builds in different directories, with other times and umasks, give the same bytes."""
    digests = set()
    for name, umask, time in (("one", 0o022, 1_000_000_000), ("another-one", 0o077, 1_500_000_000)):
        source = clone(tmp_path / name, umask=umask)
        for path in source.rglob("*"):
            os.utime(path, (time, time), follow_symlinks=False)
        environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "TZ": f"{name}+{len(name)}"}
        built = build(source, target, umask=umask, env=environment)
        digests.add(hashlib.sha256(built.read_bytes()).hexdigest())
    assert len(digests) == 1
