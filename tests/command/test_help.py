"""Help and version of the installed command, beside what tests/corpus/options.txt holds."""

import re
import subprocess
import sys

from conftest import Launcher

from gpulaunch.launch.options import OPTIONS, SETTINGS, TYPED


def test_help_of_launches_has_all_options(launcher: Launcher) -> None:
    """`help launch` has every option once, and `help settings` every setting, with its text."""
    lines = launcher.run("help", "launch").stdout.splitlines()
    starts = [line.split()[0].rstrip(",") for line in lines if line.startswith("  -")]
    assert sorted(starts) == sorted(
        ["-o", *(row.flags[0] for row in OPTIONS.values() if row.flags)]
    )
    launcher.environment["COLUMNS"] = "1000"
    settings = launcher.run("help", "settings").stdout
    assert re.findall(r"^  (\w+) +\S+: (.+)$", settings, re.MULTILINE) == [
        (name, row.text) for name, row in (SETTINGS | TYPED).items()
    ]
    assert len(SETTINGS) <= 45


def test_version_needs_no_launch_path() -> None:
    """`--version` and an unknown word load neither deciding nor the table."""
    program = (
        "import sys; from gpulaunch.cli import main; main.run(['--version']); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    rooms = ("decide", "leases", "machine", "sharing", "profiles", "process")
    assert [
        name
        for name in done.stdout.split()
        if name.startswith(tuple(f"gpulaunch.{room}" for room in rooms))
    ] == []
