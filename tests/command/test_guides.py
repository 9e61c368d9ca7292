"""The guides' commands: each page's blocks are run in order, as a reader would type them.

Blocks of language `sh` run by `bash -e`, in one directory for the page, on a described machine, and
end with 0. Blocks of language `console` are run line by line, if their lines begin with `$ `, and
print what they say; a line `...` stands for any lines. Comments on the lines before a block change
that, and readers do not see them:

    <!-- not run: REASON -->    the block is not run; `pytest -rP` lists all of these
    <!-- exit N -->             the block ends with N
    <!-- before: COMMANDS -->   run in the same shell before the block, such as
                                `cp $GPULAUNCH_REPOSITORY/examples/train.py .` or `stand_in docker`,
                                which makes a program of that name that prints its arguments
"""

import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest
import yaml
from conftest import Launcher, wait_for_end
from toml_parser import tomllib

ROOT = Path(__file__).parents[2]
FIRST = [ROOT / "docs" / name for name in ("get-started.md", "first-questions.md")]
EXPLAINED = ROOT / "docs" / "explanation" / "placement.md"
PAGES = [*FIRST, EXPLAINED, *sorted((ROOT / "docs" / "guides").glob("*.md"))]
PROGRAMS = ("make", "screen", "tmux")
"""Programs that pages use and that a machine may lack; all else is made up by `stand_in`."""

MARK = r"<!-- (?:not run|exit|before)\b(?:(?!-->).)*-->\n"
BLOCK = re.compile(
    rf"^(?P<marks>(?: *{MARK})*)(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
STAND_IN = r"""
stand_in() {
    mkdir -p "$HOME/stand-ins"
    for name; do
        printf '#!/bin/sh\necho "%s $*"\n' "$name" >"$HOME/stand-ins/$name"
        chmod +x "$HOME/stand-ins/$name"
    done
}
"""


class Block(NamedTuple):
    """A fenced block of a page, with what the comments before it say."""

    line: int
    language: str
    text: str
    not_run: str | None
    exit: int
    before: str


def blocks(page: Path) -> list[Block]:
    """Return a page's fenced blocks that have a language."""
    text = page.read_text()
    found = []
    for match in BLOCK.finditer(text):
        marks = match["marks"]
        not_run = re.search(r"<!-- not run: (\S.*?) -->", marks, re.DOTALL)
        status = re.search(r"<!-- exit (\d+) -->", marks)
        before = re.findall(r"<!-- before:\s(.*?)\s-->", marks, re.DOTALL)
        line = text.count("\n", 0, match.end("marks")) + 1
        understood = bool(not_run) + bool(status) + len(before)
        assert marks.count("<!--") == understood, f"{page}:{line}: unclear comments: {marks}"
        kept = (not_run and not_run[1], int(status[1]) if status else 0, "\n".join(before))
        found.append(Block(line, match["language"], dedent(match["text"]), *kept))
    return found


class Reader:
    """Whoever types the commands of a page, with a home, a table and a machine of their own."""

    def __init__(self, launcher: Launcher) -> None:
        home = launcher.state.parent
        self._place = home / "page"
        self._place.mkdir()
        self._output = home / "output"
        self._state = launcher.state
        runtime = launcher.environment["XDG_RUNTIME_DIR"]
        self._environment = {
            **launcher.environment,
            "PATH": f"{home}/stand-ins:{launcher.environment['PATH']}",
            "TMUX_TMPDIR": runtime,
            "SCREENDIR": runtime,
            "GPULAUNCH_TOPOLOGY": "dgx1-v100",
            "GPULAUNCH_REPOSITORY": str(ROOT),
        }
        del self._environment["XDG_CONFIG_HOME"]  # pages write to ~/.config

    def run(self, script: str) -> tuple[int, str]:
        """Run a script; return its exit status and what it printed, on stdout or stderr.

        Its shell leads a session, as that of a terminal does, and stays to the end: without `exit`
        bash replaces itself by the last command.
        """
        with self._output.open("w") as file:  # a pipe would be held open by what goes on
            done = subprocess.run(
                ["bash", "-e", "-c", f"{STAND_IN}{script}\nexit"],
                start_new_session=True,
                cwd=self._place,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
        return done.returncode, self._output.read_text()

    def running(self) -> list[int]:
        """Return the pids of all that was started here and has not ended."""
        sign = f"GPULAUNCH_STATE_DIR={self._state}\0".encode()
        found = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError):  # it may end meanwhile, or be another user's
                if sign in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(int(pid))
        return found


@pytest.fixture
def reader(launcher: Launcher) -> Iterator[Reader]:
    """Return a reader whose processes end with the test."""
    reader = Reader(launcher)
    yield reader
    while running := reader.running():
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)


def plain(text: str) -> str:
    """Return output without what differs from run to run: ids, users, times, widths of columns."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    text = re.sub(r"\b[0-9a-f]{12}\b", "ID", text)
    text = re.sub(rf"\b(?:ada|alice|root|{re.escape(user)})\b", "USER", text)
    text = re.sub(r"\b\d+ (?:s|min|h)\b", "TIME", text)
    return re.sub(r" *\n", "\n", re.sub(r"─+", "─", re.sub(r" +", " ", text))).strip("\n")


def check_console(reader: Reader, block: Block, where: str) -> None:
    """Run the commands of an example, and compare what each prints."""
    status = block.exit  # of an example without commands
    for begin, example in enumerate(re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]):
        command, _, want = example.partition("\n")
        status, said = reader.run(command if begin else f"{block.before}\n{command}")
        got, pattern = plain(said), re.escape(plain(want)).replace(r"\.\.\.", r"(?:.|\n)*?")
        assert re.fullmatch(pattern, got), f"{where}: {command}\n{got}\n\nwanted:\n{plain(want)}"
    assert status == block.exit, f"{where}: exit status {status} of the last command"


PARSERS = {
    "python": lambda text: compile(text, "a page", "exec"),
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page(page: Path, reader: Reader) -> None:
    """The commands of a page do, from top to bottom, what the page says.

    TOML and YAML that it shows parses, Python compiles, and each comment has a block.
    """
    text = page.read_text()
    of_blocks = "".join(match["marks"] for match in BLOCK.finditer(text))
    assert of_blocks.count("<!--") == len(re.findall(MARK, text, re.DOTALL))
    for block in blocks(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language in PARSERS:
            PARSERS[block.language](block.text)
        if block.not_run:
            print(f"{where}: not run: {block.not_run}")
        if block.not_run or block.language not in ("sh", "console"):
            continue
        for program in PROGRAMS:
            if re.search(rf"\b{program} ", block.text) and not shutil.which(program):
                pytest.skip(f"{where} needs {program}")
        if block.language == "console":
            check_console(reader, block, where)
            continue
        status, said = reader.run(f"{block.before}\n{block.text}")
        assert status == block.exit, f"{where}: exit status {status}\n{block.text}\n{said}"
