"""What gpulaunch loads where nothing is launched."""

import subprocess
import sys


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
