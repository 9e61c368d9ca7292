"""The man pages that a wheel has."""

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Launcher

from gpulaunch.cli.cluster import WORDS as CLUSTER_WORDS
from gpulaunch.cli.commands import COMMANDS
from gpulaunch.cli.profile import WORDS as PROFILE_WORDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write all pages into a folder of a MANPATH."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    made = runpy.run_path(str(ROOT / "hatch_build.py"))["_shell_files"]("1.2.3")
    directory = tmp_path_factory.mktemp("man") / "man1"
    directory.mkdir()
    for name, content in made:
        if name.startswith("share/man/"):
            (directory / Path(name).name).write_bytes(content)
    return directory


def shown(pages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Show a page by man, as wide as no line is."""
    if not shutil.which("man"):
        pytest.skip("needs man")
    environment = {"MANPATH": str(pages.parent), "MANWIDTH": "1000", "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        ["man", "--warnings", *arguments],
        env=environment | {"PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )


def test_every_command_has_a_page(pages: Path) -> None:
    """There is a page for each command, and one for gpulaunch itself, each with the version."""
    words = [*COMMANDS, *(f"cluster-{word}" for word in CLUSTER_WORDS)]
    words += [f"profile-{word}" for word in PROFILE_WORDS]
    names = {"gpulaunch", *(f"gpulaunch-{word}" for word in words)}
    assert {path.stem for path in pages.iterdir()} == names
    assert {
        path.name for path in pages.iterdir() if "gpulaunch 1.2.3" not in path.read_text()
    } == set()


def test_pages_have_every_option(pages: Path, launcher: Launcher) -> None:
    """Each page has every option of its command but --help, and man has no warning about it."""
    missing = {}
    for path in pages.iterdir():
        words = path.stem.split("-")[1:]
        text = launcher.run(*(words or ["help", "launch"]), *["--help"] * bool(words)).stdout
        lines = [line for line in text.splitlines() if line.startswith("  -")]
        flags = {flag for line in lines for flag in re.findall(r"(?:^  |, )(-[\w-]+)", line)}
        page = shown(pages, path.stem)
        assert page.stderr == ""
        found = re.findall(r"(?:^ +|, )(-[\w-]+)", page.stdout, re.MULTILINE)
        missing[path.stem] = flags - {"-h", "--help"} - set(found)
    assert missing == {path.stem: set() for path in pages.iterdir()}
