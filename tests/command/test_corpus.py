"""The corpus: command lines with what they print, how they end, and what they ask of an engine.

tests/corpus/*.txt hold scenarios. A line `## TITLE` begins one, in a home of its own. A word in
brackets says more: (NVML) that a stand-in of the driver tells of a DGX-1, (engine) that an engine
writes down what it is asked to make (what docker's client says is left out), (podman) that it
asks Podman, (root) that it needs root, (times) that times and the widths of columns differ.

`$ COMMAND` is run there by a shell; what follows is what it printed (`! ` before lines of standard
error, `> ` before requests to the engine) and `= STATUS`. What differs from run to run (ids, pids,
times, the home) is replaced by a word in capitals.

`PYTHONPATH=tests python tests/command/test_corpus.py [FILE...]` records files anew; git diff then
shows what changed.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from compiled import compiled
from conftest import Launcher
from fake_nvml import NVML_SOURCE, FakeNvml
from recording_engine import RecordingEngine

from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.process.system import user_name

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests/corpus").glob("*.txt"))
ANSWERS = {
    "/containers/json": [],
    "/images/app:1/json": {"Id": "sha256:" + 64 * "0", "Config": {"Env": [], "Labels": {}}},
    "/info": {
        "ID": "writes-down",
        "ServerVersion": "28.5.2",
        "Runtimes": {"runc": {}, "nvidia": {}},
        "DiscoveredDevices": [
            {"Source": "cdi", "ID": f"nvidia.com/gpu=GPU-dgx1-v100-{gpu}"} for gpu in range(8)
        ],
    },
    "/version": {"Version": "28.5.2"},
}
MASKS = (
    (r"\b20\d\d-\d\d-\d\dT\d{6}Z-[0-9a-f]{4}\b", "TIME-ID"),
    (r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?", "TIME"),
    (r"\b[0-9a-f]{12}\b", "ID"),
    (r'("\w*pid": )\d+', r"\1PID"),
    (r"\bpid \d+", "pid PID"),
    (r'("user": )"[^"]+"', r'\1"USER"'),
)
MASKS_OF_TIMES = (
    (r'("\w*_s": )\d+\.\d+', r"\1SECONDS"),
    (r"\b(with)?in [\d.]+( to [\d.]+)? (s|min|h|d)\b", "in SECONDS"),
    (r"\b\d+(\.\d+)? m?s\b", "SECONDS"),
    (r"(?m)^[0-9a-f]{4}(?=  (running|waiting))", "ID"),
    (r"\b\d\d-\d\d \d\d:\d\d\b", "TIME"),
    (r'("gpu_hours": )[\d.]+', r"\1HOURS"),
    (r"[ <]*\b0\.0\d\b", " HOURS"),
    (r"─+", "─"),
    (rf"\b{user_name(os.geteuid())}\b", "USER"),
    (r" +", " "),
)

PLAIN = re.compile(r"""(\w+=[\w,.:/-]* )*gpulaunch ([^'"\\$`|&;<>()*?~{}\[\]]|'[^']*')*""")
"""A command line of gpulaunch in which nothing has a meaning to the shell but single quotes."""


class Scenario(NamedTuple):
    """Commands that are run one after the other in one home."""

    title: str
    commands: list[str]
    recorded: str


def scenarios(file: Path) -> Iterator[Scenario]:
    """Read the scenarios of a file."""
    for block in file.read_text().split("\n## ")[1:]:
        title, _, recorded = block.partition("\n")
        commands = [line[2:] for line in recorded.splitlines() if line.startswith("$ ")]
        yield Scenario(title, commands, recorded.strip("\n"))


def replay(scenario: Scenario, home: Path) -> str:
    """Run a scenario's commands, and return what is recorded of them."""
    launcher = Launcher(home)
    launcher.environment |= {
        "COLUMNS": "100",
        "TZ": "UTC",
        "USER": "user",
        "LOGNAME": "user",
        "ROOT": str(ROOT),
    }
    engine = RecordingEngine(home) if "(engine)" in scenario.title else None
    if engine:
        engine.answers = dict(ANSWERS)
        launcher.environment |= {"DOCKER_HOST": engine.host, "DOCKER_CONFIG": str(home)}
    if "(NVML)" in scenario.title:
        library = compiled(NVML_SOURCE, home / "libnvidia-ml.so.1")
        nvml = FakeNvml(library.parent, home / "nvml")
        nvml.tell_of(load_described_machine("dgx1-v100")[0])
        launcher.environment |= nvml.environment
    text = []
    for command in scenario.commands:
        if engine:
            engine.requests.clear()
        done = run(launcher, command, home)
        text += [f"$ {command}", *on_one_line(done.stdout)]
        own = [line for line in done.stderr.splitlines() if not engine or "gpulaunch" in line]
        text += [f"! {line}" for line in own]
        if engine:
            made = [(path, body) for path, body in engine.requests if body]
            text += [
                f"> {path} {json.dumps(without_defaults(json.loads(body)))}" for path, body in made
            ]
        text += [f"= {done.returncode}", ""]
    if engine:
        engine.close()
    masks = MASKS + MASKS_OF_TIMES if "(times)" in scenario.title else MASKS
    masks += (
        ((rf"\b{re.escape(os.uname().nodename)}\b", "HOST"),) if "(NVML)" in scenario.title else ()
    )
    return masked("\n".join(text).strip("\n"), home, masks)


def run(launcher: Launcher, command: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line, in a fork of this process where a shell would only split it into words.

    Variables that are set before the command's name are understood.
    """
    options = {
        "cwd": home,
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "errors": "backslashreplace",
    }
    environment = dict(launcher.environment)
    if not PLAIN.fullmatch(command):
        return subprocess.run(["sh", "-c", command], env=environment, check=False, **options)
    words = shlex.split(command)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    return launcher.run(*words[1:], env=environment, capture_output=False, **options)


def on_one_line(printed: str) -> list[str]:
    """Return the lines of what was printed; a document of JSON is one."""
    if printed.startswith("{\n"):
        return [json.dumps(json.loads(printed), ensure_ascii=False)]
    return printed.splitlines()


def without_defaults(document: object) -> object:
    """Return what a request says, without the many keys that docker's client leaves empty.

    Variables of the environment have no order.
    """
    if isinstance(document, dict):
        kept = {key: without_defaults(document[key]) for key in sorted(document)}
        if "Env" in kept:
            kept["Env"] = sorted(kept["Env"])
        return {key: value for key, value in kept.items() if value}
    if isinstance(document, list):
        return [without_defaults(entry) for entry in document]
    return document


def masked(text: str, home: Path, masks: tuple[tuple[str, str], ...]) -> str:
    """Replace what differs from run to run."""
    text = text.replace(str(home), "HOME").replace(str(ROOT), "ROOT")
    for pattern, word in masks:
        text = re.sub(pattern, word, text)
    return text


CASES = [
    pytest.param(scenario, id=f"{file.stem}: {scenario.title}")
    for file in FILES
    for scenario in scenarios(file)
]


@pytest.mark.parametrize("scenario", CASES)
def test_corpus(scenario: Scenario, tmp_path: Path) -> None:
    """A command line prints, asks and ends as recorded."""
    if "(root)" in scenario.title and os.geteuid() != 0:
        pytest.skip("needs root")
    for word, program in (("(engine)", "docker"), ("(podman)", "podman")):
        if word in scenario.title and not shutil.which(program):
            pytest.skip(f"needs {program}")
    assert replay(scenario, tmp_path).splitlines() == scenario.recorded.splitlines()


def record(file: Path) -> None:
    """Record a file's scenarios anew."""
    head = file.read_text().partition("\n## ")[0]
    text = head.strip() + "\n"
    for scenario in scenarios(file):
        with tempfile.TemporaryDirectory() as home:
            text += f"\n## {scenario.title}\n\n{replay(scenario, Path(home))}\n"
    file.write_text(text)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else FILES:
        record(path)
