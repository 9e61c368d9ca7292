"""What is built from this repository has the right version, and the same bytes everywhere."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bare_machine import ROOT, VERSION

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


def version_of(place: Path) -> str:
    """Return the version that the package in a directory or wheel prints."""
    if place.suffix == ".whl":
        wheel, place = place, place.parent / "unpacked"
        shutil.unpack_archive(wheel, place, "zip")
    printed = do(
        *(sys.executable, "-S", "-m", "gpulaunch", "--version"),  # none but the one in question
        cwd=Path("/"),
        env={"PYTHONPATH": str(place), "PATH": os.environ["PATH"]},
    )
    return printed.removeprefix("gpulaunch ").rstrip("\n")


def from_sdist(home: Path) -> Path:
    """Return the wheel of an unpacked sdist."""
    shutil.unpack_archive(build(clone(home / "clone"), "sdist"), home)
    return build(home / f"gpulaunch-{VERSION}")


def not_installed(home: Path) -> Path:
    """Return a clone from which nothing was installed."""
    return clone(home / "clone")


@pytest.mark.parametrize(("make", "want"), [(from_sdist, VERSION), (not_installed, "0.0")])
def test_version(tmp_path: Path, make: Callable[[Path], Path], want: str) -> None:
    """The version is that of pyproject.toml, wherever the package comes from."""
    place = make(tmp_path)
    assert version_of(place) == want
    if place.suffix == ".whl":
        assert place.name.split("-")[1] == want


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
