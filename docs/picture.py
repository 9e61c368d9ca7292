"""Record the README's picture anew: `python docs/picture.py`, from any directory.

Each command runs in a real terminal of 96 columns, on a described machine; what it prints, with
its colours, becomes docs/picture.svg. tests/command/test_picture.py holds the picture to it.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import pexpect
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

DOCS = Path(__file__).parent
PICTURE = DOCS / "picture.svg"
COLUMNS = 96
LIMIT_S = 60
COMMANDS = (
    "gpulaunch --profile vgg16 -n 3 --explain -- python3 examples/train.py",
    "gpulaunch -qd -n 2 --time-limit 2h -- ./finetune.sh",
    "gpulaunch -qd -n 8 --time-limit 1h -- ./pretrain.sh",
    "gpulaunch status",
)
"""What the picture shows, in order."""


def record(directory: Path) -> str:
    """Run the commands with a state directory of their own, and return the SVG.

    Args:
        directory: an empty directory for the table, the home and the jobs' files.
    """
    (directory / "examples").symlink_to(DOCS.parent / "examples")
    for name in ("finetune.sh", "pretrain.sh"):
        (directory / name).write_text("#!/bin/sh\nexec sleep 600\n")
        (directory / name).chmod(0o755)
    environment = {
        "HOME": str(directory),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "GPULAUNCH_STATE_DIR": str(directory),
        "GPULAUNCH_TOPOLOGY": "dgx1-v100",
    }
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    try:
        for command in COMMANDS:
            prompt = Text("$ ", style="cyan") + Text(command, style="bold")
            console.print(prompt, Text.from_ansi(_run(command, directory, environment)), sep="\n")
            console.print()
    finally:
        _run("gpulaunch free --mine", directory, environment)
    svg = console.export_svg(
        title="gpulaunch on a described DGX-1", theme=DIMMED_MONOKAI, unique_id="picture"
    )
    svg = re.sub(r"\s*@font-face {.*?}", "", svg, flags=re.DOTALL)  # they ask another host
    return "".join(line.rstrip() + "\n" for line in svg.splitlines())


def _run(command: str, directory: Path, environment: dict[str, str]) -> str:
    """Return what a command prints in a terminal; the jobs that it leaves running go on."""
    output, status = pexpect.run(
        command,
        timeout=LIMIT_S,
        withexitstatus=True,
        cwd=str(directory),
        env=environment,
        dimensions=(50, COLUMNS),
    )
    text = output.decode().replace("\r\n", "\n").rstrip("\n")
    if status:
        raise RuntimeError(f"{command}: exit status {status}: {text}")
    return str(text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PICTURE.write_text(record(Path(made)))
    print(f"written: {PICTURE}")
