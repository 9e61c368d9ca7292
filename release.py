"""Make a release of the version in pyproject.toml: python release.py, or make release.

It dates the version's section of CHANGELOG.md, commits and tags that, builds the sdist and the
wheel, and tries them. All of this happens in a work tree of its own: if anything fails, nothing has
changed. Nothing is pushed: the commands that publish the release are printed.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import tomlkit

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
TOOLS = ROOT / "build" / "release-tools"


class NoReleaseError(Exception):
    """Why there is no release, in one line."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a program that must succeed, and return what it printed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise NoReleaseError(f"{' '.join(map(str, command))}: exit status {done.returncode}")
    return done.stdout.strip()


def refuse(version: str) -> None:
    """Raise NoReleaseError unless the checkout is ready for a release of this version."""
    if run("git", "tag", "--list", f"v{version}"):
        raise NoReleaseError(f"{version} is released: write the next version into pyproject.toml")
    branch = run("git", "branch", "--show-current")
    if branch != "main":
        raise NoReleaseError(f"releases are made on main, not on {branch or 'no branch'}")
    changed = run("git", "status", "--porcelain").splitlines()
    if changed:
        raise NoReleaseError(f"the work tree is not clean: {changed[0].strip()}")
    if not notes(changelog(ROOT), version):
        raise NoReleaseError(f"CHANGELOG.md has nothing under '## {version} (unreleased)'")


def changelog(place: Path) -> str:
    """Return the text of CHANGELOG.md."""
    return (place / "CHANGELOG.md").read_text()


def notes(text: str, version: str) -> str:
    """Return what a changelog has under a version that is not released yet."""
    _, _, rest = text.partition(f"\n## {version} (unreleased)\n")
    return re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0].strip()


@contextmanager
def tagged(version: str) -> Iterator[Path]:
    """Commit and tag the dated changelog in a work tree; if the block fails, remove the tag."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "gpulaunch"
        run("git", "worktree", "add", "--detach", "--quiet", place, "main")
        try:
            text, day = changelog(place), datetime.now(timezone.utc).date().isoformat()
            dated = text.replace(f"## {version} (unreleased)", f"## {version} ({day})", 1)
            (place / "CHANGELOG.md").write_text(dated)
            # Hooks want the checkout's environment, which this work tree lacks.
            run("git", "commit", "--quiet", "--no-verify", "-am", f"Release {version}", cwd=place)
            run("git", "tag", "-a", f"v{version}", "-m", f"gpulaunch {version}", cwd=place)
            try:
                yield place
            except BaseException:
                run("git", "tag", "-d", f"v{version}")
                raise
        finally:
            run("git", "worktree", "remove", "--force", place)


def build(place: Path) -> list[Path]:
    """Build and check the sdist and the wheel of a work tree; return where they are in it."""
    python = TOOLS / "bin" / "python"
    run(sys.executable, "-m", "venv", TOOLS)
    run(python, "-m", "pip", "install", "-q", "build", "twine")
    run(python, "-m", "build", cwd=place)
    built = sorted((place / "dist").iterdir())
    run(python, "-m", "twine", "check", "--strict", *built)
    return built


def try_out(place: Path, wheel: Path, version: str) -> None:
    """Install the wheel in a new environment, and play the README's scene with it."""
    run(sys.executable, "-m", "venv", place / ".venv")
    run(place / ".venv" / "bin" / "pip", "install", "-q", wheel)
    printed = run(place / ".venv" / "bin" / "gpulaunch", "--version", cwd=place)
    if printed != f"gpulaunch {version}":
        raise NoReleaseError(f"the wheel says '{printed}', not 'gpulaunch {version}'")
    run("sh", "examples/demo.sh", cwd=place)


def main() -> None:
    """Make the release, and print how to publish it."""
    version = str(tomlkit.parse((ROOT / "pyproject.toml").read_text())["project"]["version"])
    refuse(version)
    text = notes(changelog(ROOT), version)
    with tagged(version) as place:
        built = build(place)
        try_out(place, built[0], version)
        run("git", "merge", "--quiet", "--ff-only", f"v{version}")
        DIST.mkdir(exist_ok=True)
        files = [Path(shutil.move(path, DIST / path.name)) for path in built]
    release_notes = DIST / f"gpulaunch-{version}.md"
    release_notes.write_text(f"{text}\n")
    wheel, sdist, about = (path.relative_to(ROOT) for path in (*files, release_notes))
    print(f"made {wheel}, {sdist} and, from CHANGELOG.md, {about}; to publish them:")
    print(f"  git push --atomic origin main v{version}")
    print(f"  {TOOLS.relative_to(ROOT)}/bin/twine upload {wheel} {sdist}")


if __name__ == "__main__":
    try:
        main()
    except NoReleaseError as problem:
        sys.exit(f"release: {problem}")
