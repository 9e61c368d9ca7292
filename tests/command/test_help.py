"""The man pages that a wheel has, and what `--version` loads."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Launcher

from gpulaunch.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"MANWIDTH": "1000", "LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}


@pytest.mark.skipif(not shutil.which("man"), reason="needs man")
def test_pages_have_every_option(launcher: Launcher, tmp_path: Path) -> None:
    """Every command has a page; man has no warning about one, and it has each of its options."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    made = runpy.run_path(str(ROOT / "hatch_build.py"))["_shell_files"]("1.2.3")
    pages = {Path(name).stem: content for name, content in made if name.startswith("share/man/")}
    assert {"gpulaunch", *(f"gpulaunch-{word}" for word in COMMANDS)} <= pages.keys()
    for name in ("gpulaunch", "gpulaunch-cluster-map", "gpulaunch-status"):
        asked = [*name.split("-")[1:], "--help"] if "-" in name else ["help", "launch"]
        lines = launcher.run(*asked).stdout.splitlines()
        flags = [flag for line in lines for flag in re.findall(r"(?:^  |, )(-[\w-]+)", line)]
        (tmp_path / "page.1").write_bytes(pages[name])
        command = ["man", "--warnings", "-l", str(tmp_path / "page.1")]
        page = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
        assert (page.stderr, b"gpulaunch 1.2.3" in pages[name]) == ("", True)
        found = re.findall(r"(?:^ +|, )(-[\w-]+)", page.stdout, re.MULTILINE)
        assert {*flags} - {"-h", "--help"} - {*found} == set(), name


def test_version_needs_no_launch_path() -> None:
    """`--version` and an unknown word load neither deciding nor the table."""
    program = "import sys, gpulaunch.cli.main as m; m.run(['--version']); print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rooms = ("decide", "placement", "leases", "machine", "sharing", "profiles", "process")
    loaded = [name.split(".")[1] for name in done.stdout.split() if name.startswith("gpulaunch.")]
    assert loaded
    assert {*rooms} & {*loaded} == set()
