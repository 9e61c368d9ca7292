"""docs/reference/json.md has the keys that the commands print."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from conftest import DGX, Launcher, held, until

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "reference" / "json.md").read_text()
JOBS = REPOSITORY / "examples" / "jobs.toml"
TOPOLOGY = shlex.join(DGX)
BRIEF = "--time-limit 1m"  # it may pass the launch that waits
COMMANDS = {
    "gpulaunch --dry-run --json": f"{TOPOLOGY} -n 2 {BRIEF} --dry-run --json --explain -- true",
    "gpulaunch --when --json": f"{TOPOLOGY} -n 6 --when --json",
    "gpulaunch status --json": f"status {TOPOLOGY} --json",
    "gpulaunch topo --json": f"topo {TOPOLOGY} --json",
    "gpulaunch history --json": f"history {TOPOLOGY} --json",
    "gpulaunch history --totals --json": f"history {TOPOLOGY} --totals --json",
    "gpulaunch reserve --json": f"reserve {TOPOLOGY} -n 1 --for 1s --keep --json",
    "gpulaunch doctor --json": f"doctor {TOPOLOGY} --json",
    "gpulaunch simulate --json": f"simulate {TOPOLOGY} --jobs {JOBS} --json",
    "gpulaunch plan --json": f"plan {REPOSITORY}/examples/queue.toml --json",
    "gpulaunch cluster map --json": "cluster map --cluster magc-a --gpu-pattern ring --json",
}
"""Heading of the page -> command line, run while one launch has GPUs and another one waits."""


def sections() -> dict[str, set[str]]:
    """Return the documented keys of each document, by its heading."""
    texts = dict(text.split("\n", 1) for text in PAGE.split("\n## ")[1:])
    rows = {name: re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name, text in texts.items()}
    return {name: {*re.findall("`(.+?)`", "".join(keys))} for name, keys in rows.items()}


def keys_of(value: object, path: str = "") -> Iterator[str]:
    """Yield the paths of a document's values, its objects and its lists."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, one in value.items():
            yield from keys_of(one, f"{path}.{name}".removeprefix("."))
    if isinstance(value, list):
        yield f"{path}[]"
        for one in value:
            yield from keys_of(one, f"{path}[]")


def undocumented(printed: set[str], documented: set[str]) -> set[str]:
    """Return the printed keys that neither stand in the page nor lie within one or around one."""

    def within(key: str, other: str) -> bool:
        return key == other or key.startswith((f"{other}.", f"{other}[]"))

    return {
        key
        for key in printed
        if not any(within(key, one) or within(one, key) for one in documented)
    }


def test_keys(launcher: Launcher, tmp_path: Path) -> None:
    """A command prints all keys that the page has for it, and no others."""
    assert {*sections()} == {*COMMANDS, "gpulaunch profile list --json"}
    launcher.run("drain", *DGX, "5", "--reason", "test")
    with held(launcher, *DGX, "-n", "3", "--name", "a", "--time-limit", "1h"):
        waiter = launcher.start(*DGX, "-n", "5", "--wait", "--", "true")
        until(lambda: any(".ticket." in name for name in launcher.records()))
        for heading, line in COMMANDS.items():
            done = launcher.run(*shlex.split(line), cwd=tmp_path)
            printed, documented = {*keys_of(json.loads(done.stdout))}, sections()[heading]
            assert documented - printed == set(), f"{heading}: {done.stderr}"
            assert undocumented(printed, documented) == set(), heading
    waiter.communicate()
    profiles = json.loads(launcher.run("profile", "list", "--json").stdout)
    assert sections()["gpulaunch profile list --json"] <= {*keys_of(profiles)}
