"""Record the README's scene anew: `python docs/picture.py`, from any directory.

examples/demo.sh plays in a real terminal of 100 columns. What it prints becomes the block below its
command in the README and, with its colours, docs/picture.svg.
"""

import os
import pwd
import re
import sys
import tempfile
from pathlib import Path

import pexpect
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "picture.svg"
PAGE = ROOT / "README.md"
COLUMNS = 100
LIMIT_S = 120
COMMAND = "sh examples/demo.sh"
BLOCK = re.compile(rf"(```sh\n{re.escape(COMMAND)}\n```\n\n```console\n)(.*?)(?=```)", re.DOTALL)


def lay_out(directory: Path) -> None:
    """Make an empty directory look like a clone, with the gpulaunch of this Python in .venv."""
    (directory / "examples").symlink_to(ROOT / "examples")
    (directory / ".venv").symlink_to(sys.prefix)


def start(directory: Path, **variables: str) -> pexpect.spawn:
    """Start the demo in a terminal, in a directory that is laid out, with these variables."""
    return pexpect.spawn(
        COMMAND,
        timeout=LIMIT_S,
        encoding="utf-8",
        cwd=str(directory),
        env={"PATH": os.environ["PATH"], "TERM": "xterm-256color", **variables},
        dimensions=(50, COLUMNS),
    )


def finish(terminal: pexpect.spawn) -> tuple[int, str]:
    """Return the exit status of what runs in a terminal, and all that it prints from now on."""
    terminal.expect(pexpect.EOF)
    terminal.close()
    return terminal.exitstatus, terminal.before.replace("\r\n", "\n").strip("\n")


def draw(scene: str) -> str:
    """Return the picture of a terminal's output, as SVG."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi(scene))
    svg = console.export_svg(title=COMMAND, theme=DIMMED_MONOKAI, unique_id="picture")
    svg = re.sub(r"\s*@font-face {.*?}", "", svg, flags=re.DOTALL)  # they ask another host
    return "".join(line.rstrip() + "\n" for line in svg.splitlines())


def shown() -> str:
    """Return the scene as the page has it."""
    return BLOCK.search(PAGE.read_text())[2]


def lasting(scene: str) -> str:
    """Return a scene without what differs from run to run: ids, users, paths, times, widths."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    text = Text.from_ansi(scene).plain
    for pattern, stands in (
        (r" /.*/gpulaunch/logs/\S+", " LOG"),
        (r"(examples/tr).*…", r"\1…"),
        (r"\b[0-9a-f]{4,12}\b", "ID"),
        (rf"\b(?:ada|root|user\d+|{re.escape(user)})\b", "USER"),
        (r"\b[\d.]*\d (?:s|min|h)(?: \d+ (?:s|min|h))*\b", "TIME"),
        (r"\b(?:within|in (?:[\d.]+|TIME) to) TIME\b", "in TIME"),
        (r"─+", "─"),
        (r" +", " "),
    ):
        text = re.sub(pattern, stands, text)
    return re.sub(r" *\n", "\n", text).strip()


def main() -> None:
    """Play the demo, and write what it printed into the picture and the page."""
    with tempfile.TemporaryDirectory() as directory:
        lay_out(Path(directory))
        status, scene = finish(start(Path(directory)))
    if status:
        sys.exit(f"{COMMAND}: exit status {status}\n{scene}")
    PICTURE.write_text(draw(scene))
    block = Text.from_ansi(scene).plain
    PAGE.write_text(BLOCK.sub(lambda match: f"{match[1]}{block}\n", PAGE.read_text()))
    print(f"written: {PICTURE} and the scene in {PAGE}")


if __name__ == "__main__":
    main()
