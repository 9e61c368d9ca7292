"""What is built from this repository has the right version, and the same bytes everywhere."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.xdist_group("builds")


def do(*command: str | Path, cwd: Path, **options) -> str:
    """Run a command that must succeed, and return what it printed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clone(place: Path, *, tag: str | None = None, **options) -> Path:
    """Clone this checkout's last commit without its tags, and tag it."""
    do("git", "clone", "--quiet", "--no-tags", ROOT, place, cwd=ROOT, **options)
    if tag:
        do("git", "tag", tag, cwd=place)
    return place


def build(source: Path, target: str = "wheel", **options) -> Path:
    """Build a wheel or an sdist, and return its path."""
    pytest.importorskip("hatch_vcs", reason="hatch-vcs is not installed")
    output = source.parent / f"{source.name}-{target}"
    do(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        target,
        "-d",
        output,
        cwd=source,
        **options,
    )
    (built,) = output.iterdir()
    return built


def version_of(place: Path) -> str:
    """Return the version that the package in a directory or wheel prints."""
    printed = do(
        *(sys.executable, "-m", "gpulaunch", "--version"),
        cwd=Path("/"),
        env={"PYTHONPATH": str(place), "PATH": os.environ["PATH"]},
    )
    return printed.removeprefix("gpulaunch ").rstrip("\n")


def archive(source: Path, place: Path) -> Path:
    """Unpack what `git archive` makes of a clone."""
    place.mkdir()
    do("sh", "-c", f"git archive HEAD | tar -x -C {place}", cwd=source)
    return place


def tagged(home: Path) -> Path:
    """Return the wheel of a clone whose commit has a tag."""
    return build(clone(home / "clone", tag="v1.2.3"))


def after_a_tag(home: Path) -> Path:
    """Return the wheel of a clone with a commit after the tagged one."""
    source = clone(home / "clone", tag="v1.2.3")
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    do("git", *author, "commit", "--quiet", "--allow-empty", "-m", "More", cwd=source)
    return build(source)


def without_tags(home: Path) -> Path:
    """Return the wheel of a clone without tags."""
    return build(clone(home / "clone"))


def from_sdist(home: Path) -> Path:
    """Return the wheel of an unpacked sdist."""
    shutil.unpack_archive(build(clone(home / "clone", tag="v1.2.3"), "sdist"), home)
    return build(home / "gpulaunch-1.2.3")


def from_git_archive(home: Path) -> Path:
    """Return the wheel of what `git archive` makes."""
    return build(archive(clone(home / "clone", tag="v1.2.3"), home / "archive"))


def without_git(home: Path) -> Path:
    """Return the wheel of a copy of the files alone."""
    source = clone(home / "clone", tag="v1.2.3")
    shutil.rmtree(source / ".git")
    return build(source)


def not_installed(home: Path) -> Path:
    """Return a clone from which nothing was installed."""
    return clone(home / "clone", tag="v1.2.3")


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (tagged, "1.2.3"),
        (after_a_tag, "1.2.4.dev1+g*"),
        (without_tags, "0.1.dev*+g*"),
        (from_sdist, "1.2.3"),
        (from_git_archive, "1.2.3"),
        (without_git, "0.0"),
        (not_installed, "0.0"),
    ],
)
def test_version(tmp_path: Path, make: Callable[[Path], Path], want: str) -> None:
    """The version is that of the tag, wherever the package comes from."""
    place = make(tmp_path)
    assert Path(version_of(place)).match(want)
    if place.suffix == ".whl":
        assert Path(place.name.split("-")[1]).match(want)


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_same_bytes(tmp_path: Path, target: str) -> None:
    """Two builds in different directories, with other times and umasks, give the same bytes."""
    digests = set()
    for name, umask, time in (("one", 0o022, 1_000_000_000), ("another-one", 0o077, 1_500_000_000)):
        source = clone(tmp_path / name, tag="v1.2.3", umask=umask)
        for path in source.rglob("*"):
            os.utime(path, (time, time), follow_symlinks=False)
        environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "TZ": f"{name}+{len(name)}"}
        built = build(source, target, umask=umask, env=environment)
        digests.add(hashlib.sha256(built.read_bytes()).hexdigest())
    assert len(digests) == 1
