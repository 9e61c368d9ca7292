"""`make release` makes a whole release or none, in a temporary clone."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bare_machine import ROOT, VERSION

pytestmark = pytest.mark.xdist_group("builds")


class Clone:
    """A clone on its branch main, whose version 1.2.3 is not released."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._environment = os.environ | {"GPULAUNCH_STATE_DIR": str(place.parent)}
        origin = place.with_name("origin.git")
        clone = ["git", "clone", "--quiet"]
        subprocess.run([*clone, "--bare", "--no-tags", ROOT, origin], check=True)
        subprocess.run([*clone, origin, place], check=True)
        self.git("checkout", "--quiet", "-B", "main")
        self.git("config", "user.name", "Somebody")
        self.git("config", "user.email", "somebody@example.org")
        self.write(
            "CHANGELOG.md",
            "# Changelog\n\n## 1.2.3 (unreleased)\n\n- Better.\n\n## 0.1.0\n\n- Good.\n",
        )
        project = (place / "pyproject.toml").read_text()
        self.write("pyproject.toml", project.replace(f'version = "{VERSION}"', 'version = "1.2.3"'))

    def git(self, *arguments: str) -> str:
        """Run git in it, and return what it printed."""
        command = ["git", "-C", str(self.place), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def write(self, name: str, text: str) -> None:
        """Write a file, and commit it."""
        (self.place / name).write_text(text)
        self.git("add", name)
        self.git("commit", "--quiet", "-m", f"Write {name}")

    def release(self) -> subprocess.CompletedProcess[str]:
        """Run release.py."""
        command = [sys.executable, "release.py"]
        return subprocess.run(
            command,
            cwd=self.place,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def state(self) -> tuple[str, ...]:
        """Return what a release may change: references, files and work trees."""
        return (
            self.git("show-ref"),
            self.git("status", "--porcelain", "--branch"),
            self.git("worktree", "list"),
        )


def _dirty(clone: Clone) -> None:
    (clone.place / "new").touch()


WRONG = {
    "released": (
        lambda clone: clone.git("tag", "v1.2.3"),
        "1.2.3 is released: write the next version into pyproject.toml",
    ),
    "not clean": (_dirty, "the work tree is not clean: ?? new"),
    "nothing new": (
        lambda clone: clone.write(
            "CHANGELOG.md", "# Changelog\n\n## 1.2.3 (unreleased)\n\n## 0.1.0\n\n- Good.\n"
        ),
        "CHANGELOG.md has nothing under '## 1.2.3 (unreleased)'",
    ),
}


@pytest.mark.parametrize(("prepare", "want"), WRONG.values(), ids=WRONG)
def test_wrong_use(tmp_path: Path, prepare: Callable[[Clone], object], want: str) -> None:
    """Wrong use is answered by one line, and changes nothing."""
    clone = Clone(tmp_path / "clone")
    prepare(clone)
    before = clone.state()
    done = clone.release()
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"release: {want}\n")
    assert clone.state() == before


def test_release(tmp_path: Path) -> None:
    """A release has a dated changelog, a tag, an sdist, a wheel and notes; nothing is pushed."""
    clone = Clone(tmp_path / "clone")
    pushed = clone.git("ls-remote", "origin")
    before = clone.git("rev-parse", "main")
    done = clone.release()
    assert done.returncode == 0, done.stderr
    wheel, sdist, notes = (
        f"gpulaunch-1.2.3{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".md")
    )
    assert done.stdout == (
        f"made dist/{wheel}, dist/{sdist} and, from CHANGELOG.md, dist/{notes}; to publish them:\n"
        "  git push --atomic origin main v1.2.3\n"
        f"  build/release-tools/bin/twine upload dist/{wheel} dist/{sdist}\n"
    )
    assert sorted(path.name for path in (clone.place / "dist").iterdir()) == [wheel, notes, sdist]
    assert (clone.place / "dist" / notes).read_text() == "- Better.\n"
    day = clone.git("show", "-s", "--format=%cd", "--date=format:%Y-%m-%d", "main").strip()
    assert (clone.place / "CHANGELOG.md").read_text() == (
        f"# Changelog\n\n## 1.2.3 ({day})\n\n- Better.\n\n## 0.1.0\n\n- Good.\n"
    )
    assert clone.git("rev-parse", "main~") == before
    assert clone.git("cat-file", "-t", "v1.2.3") == "tag\n"
    assert clone.git("rev-parse", "v1.2.3^{commit}") == clone.git("rev-parse", "main")
    assert clone.git("status", "--porcelain") == ""
    assert clone.git("worktree", "list").count("\n") == 1
    assert clone.git("ls-remote", "origin") == pushed


def test_a_release_that_fails(tmp_path: Path) -> None:
    """If the wheel does not work there is no release: everything is as before."""
    clone = Clone(tmp_path / "clone")
    clone.write("examples/demo.sh", "exit 3\n")
    before = clone.state()
    done = clone.release()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].endswith("examples/demo.sh: exit status 3")
    assert clone.state() == before
    assert not (clone.place / "dist").exists()
