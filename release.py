"""Make a release: python release.py X.Y.Z, or make release VERSION=X.Y.Z.

It dates the section Unreleased of CHANGELOG.md, commits and tags that, builds the sdist and the
wheel, and tries them. All of this happens in a work tree of its own: if anything fails, nothing has
changed. Nothing is pushed: the commands that publish the release are printed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
TOOLS = ROOT / "build" / "release-tools"
_UNRELEASED = re.compile(r"^## Unreleased\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


class NoReleaseError(Exception):
    """Why there is no release, in one line."""


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """Run a program that must succeed, and return what it printed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise NoReleaseError(f"{' '.join(map(str, command))}: exit status {done.returncode}")
    return done.stdout.strip()


def refuse(version: str) -> None:
    """Raise NoReleaseError unless this is a version and the checkout is ready for it."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NoReleaseError(f"'{version}' is no version: it has the form X.Y.Z")
    if run("git", "tag", "--list", f"v{version}"):
        raise NoReleaseError(f"the tag v{version} is there already")
    newest = max((_numbers(tag) for tag in run("git", "tag", "--list", "v*").split()), default=())
    if _numbers(version) < newest:
        raise NoReleaseError(f"{version} is older than {'.'.join(map(str, newest))}")
    branch = run("git", "branch", "--show-current")
    if branch != "main":
        raise NoReleaseError(f"releases are made on main, not on {branch or 'no branch'}")
    changed = run("git", "status", "--porcelain").splitlines()
    if changed:
        raise NoReleaseError(f"the work tree is not clean: {changed[0].strip()}")
    if not notes(changelog(ROOT)):
        raise NoReleaseError("CHANGELOG.md has nothing under Unreleased")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def changelog(place: Path) -> str:
    """Return the text of CHANGELOG.md."""
    return (place / "CHANGELOG.md").read_text()


def notes(text: str) -> str:
    """Return what a changelog has under Unreleased."""
    found = _UNRELEASED.search(text)
    return found[1].strip() if found else ""


def dated(text: str, version: str, day: str) -> str:
    """Return a changelog whose section Unreleased has become a version's."""
    section = f"## Unreleased\n\n## {version} ({day})\n\n{notes(text)}\n\n"
    return _UNRELEASED.sub(lambda _: section, text, count=1).rstrip("\n") + "\n"


@contextmanager
def tagged(version: str) -> Iterator[Path]:
    """Commit and tag the dated changelog in a work tree; if the block fails, remove the tag."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "gpulaunch"
        run("git", "worktree", "add", "--detach", "--quiet", place, "main")
        try:
            text, day = changelog(place), datetime.now(timezone.utc).date().isoformat()
            (place / "CHANGELOG.md").write_text(dated(text, version, day))
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
    """Install the wheel in a new environment, and run the README's first command with it."""
    run(sys.executable, "-m", "venv", place / ".venv")
    run(place / ".venv" / "bin" / "pip", "install", "-q", wheel)
    printed = run(place / ".venv" / "bin" / "gpulaunch", "--version", cwd=place)
    if printed != f"gpulaunch {version}":
        raise NoReleaseError(f"the wheel says '{printed}', not 'gpulaunch {version}'")
    lines = (place / "README.md").read_text().splitlines()
    command = next(line for line in lines if line.endswith("examples/train.py"))
    path = f"{place / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    state = place / ".state"  # not the table of whoever makes the release
    state.mkdir()
    job = command.split(" && ")[-1]
    run("sh", "-c", job, cwd=place, PATH=path, GPULAUNCH_STATE_DIR=str(state))


def main() -> None:
    """Make the release, and print how to publish it."""
    if len(sys.argv) != 2:
        raise NoReleaseError("usage: python release.py X.Y.Z")
    version = sys.argv[1]
    refuse(version)
    text = notes(changelog(ROOT))
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
