"""Detached jobs of a user who lingers; systemd-run is a stand-in, since no systemd runs here."""

import os
import pwd
import subprocess
from pathlib import Path

import pytest
from conftest import DGX, Launcher

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")

USER = pwd.getpwuid(os.geteuid()).pw_name
LINGERING = f"""
mkdir -p /var/lib/systemd && mount -t tmpfs tmpfs /var/lib/systemd &&
mkdir /var/lib/systemd/linger && touch /var/lib/systemd/linger/{USER} && exec "$@"
"""
SYSTEMD_RUN = """#!/bin/sh
echo "$1 $2 $3 $4" >>"$ASKED"
[ "$ANSWER" = no ] && echo "Failed to connect to bus" >&2 && exit 1
shift 4
exec env SCOPE=own "$@"
"""


@pytest.mark.parametrize(
    ("lingers", "answer", "scope"), [(True, "yes", "own"), (True, "no", ""), (False, "yes", "")]
)
def test_scope(
    launcher: Launcher, tmp_path: Path, answer: str, scope: str, *, lingers: bool
) -> None:
    """systemd-run --scope starts the launch of one who lingers, if it can, and of nobody else."""
    program, asked = tmp_path / "systemd-run", tmp_path / "asked"
    program.write_text(SYSTEMD_RUN)
    program.chmod(0o755)
    launcher.environment |= {"ANSWER": answer, "ASKED": str(asked)}
    launcher.environment["PATH"] = f"{tmp_path}:{launcher.environment['PATH']}"
    command = [launcher.script, "-qd", *DGX, "--name", "a", "--", "sh", "-c", "echo $SCOPE; exit 3"]
    script = LINGERING if lingers else 'exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *command]
    environment = launcher.environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("may not mount here")
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\n", "")
    assert launcher.run("wait", "a").returncode == 3
    assert launcher.run("logs", "a").stdout == f"{scope}\n"
    assert asked.exists() == lingers
    assert not lingers or asked.read_text() == "--user --scope --quiet --\n"
