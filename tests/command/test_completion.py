"""What Tab does in bash, zsh and fish."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint, held
from shells import KINDS, PLAIN_BASH, Shell

OF_DOCKER = "--gpu-pool"
"""An option that only the docker of these tests has."""
DOCKER = {
    "bash": f"_d() {{ COMPREPLY=($(compgen -W {OF_DOCKER} -- $2)); }}; complete -F _d docker",
    PLAIN_BASH: "true",
    "zsh": f"_d() {{ compadd -- {OF_DOCKER} }}; compdef _d docker",
    "fish": f"complete -c docker -l {OF_DOCKER[2:]}",
}


TAB_ADDS = {
    "gpulaunch stat": "us",
    "gpulaunch run --dry": "-run",
    "gpulaunch run -n 2 --profile own": "-profile",
    "gpulaunch --topology ./jo": "bs.toml",
    "gpulaunch --policy best-f": "it",
    "gpulaunch -o idle_l": "imit",
    "gpulaunch --after exp": "7",
    "gpulaunch status --user roo": "t",
    "gpulaunch cluster map -o ou": "t/",
    "gpulaunch profile measure --sensitivi": "ty",
    "gpulaunch cluster map --policy multi": "sect",
    "gpulaunch help cluster ma": "p",
    "gpulaunch completion fi": "sh",
    "gpulaunch logs exp": "7",
    "gpulaunch -n 2 -- chgr": "p",
    "gpulaunch -n 2 -- cat jo": "bs.toml",
    f"gpulaunch --wait docker {OF_DOCKER[:-2]}": OF_DOCKER[-2:],
    f"gpulaunch -n 2 -- docker {OF_DOCKER[:-2]}": OF_DOCKER[-2:],
}
IN_EVERY_SHELL = (
    "gpulaunch run --dry",
    "gpulaunch --topology ./jo",
    "gpulaunch -o idle_l",
    "gpulaunch cluster map -o ou",
    "gpulaunch -n 2 -- chgr",
    f"gpulaunch -n 2 -- docker {OF_DOCKER[:-2]}",
)
"""Those that a shell completes by ways of its own; the words are the same in each."""


@pytest.fixture
def launched(launcher: Launcher, tmp_path: Path) -> Launcher:
    """Return a launcher with a history of jobs, a profile, a machine, and a docker on its PATH."""
    launcher.environment["XDG_STATE_HOME"] = str(tmp_path / "state_home")
    for name in ("exp7", "my job"):
        assert launcher.run(*DGX, "--name", name, "--", "true").returncode == 0
    (tmp_path / "jobs.toml").touch()
    (tmp_path / "out").mkdir()
    for kind in ("profile", "machine"):
        path = tmp_path / "config" / "gpulaunch" / f"{kind}s" / f"own-{kind}.toml"
        path.parent.mkdir(parents=True)
        path.touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").symlink_to("/bin/true")
    launcher.environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{launcher.environment['PATH']}"
    return launcher


@pytest.fixture(params=KINDS)
def shell(request: pytest.FixtureRequest, launcher: Launcher) -> Iterator[Shell]:
    """Start each of the shells with the completion as the guide loads it, and one of docker's."""
    one = Shell(request.param, launcher)
    one.run(DOCKER[request.param])
    yield one
    one.close()


def test_tab_completes_words(launched: Launcher, shell: Shell) -> None:
    """Commands, options, values, names and files are completed, and the job's own command line.

    Leases are, too. A state directory or settings that cannot be read leave the line as it is.
    """
    added, printed = {}, ""
    lines = TAB_ADDS if shell.name == "bash" else IN_EVERY_SHELL
    for typed in lines:
        line = shell.tab(typed)
        added[typed] = line.removeprefix(typed).rstrip(" =")
        printed += shell.printed
    want = {typed: TAB_ADDS[typed] for typed in lines}
    if shell.name == PLAIN_BASH:
        want |= {typed: "" for typed in lines if OF_DOCKER[:-2] in typed}
    assert added == want
    assert launched.records() == []
    with held(launched, *DGX, "--name", "running-one"):
        (record,) = launched.records()
        lease = record.rpartition(".")[2]
        assert shell.tab("gpulaunch free runn").rstrip() == "gpulaunch free running-one"
        assert shell.tab(f"gpulaunch free {lease[:4]}").rstrip() == f"gpulaunch free {lease}"
    shell.run("export GPULAUNCH_STATE_DIR=/dev/null/none XDG_CONFIG_HOME=/dev/null")
    assert shell.tab("gpulaunch free x") == "gpulaunch free x"
    printed += shell.printed
    assert "gpulaunch: " not in printed


def test_completion_of_an_unknown_shell(launcher: Launcher) -> None:
    """A shell has to be named, and be known."""
    error = complaint("no shell given", "known are bash, zsh, fish")
    done = launcher.run("completion")
    assert (done.returncode, done.stderr) == (2, error)
    assert launcher.run("completion", "tcsh").returncode == 2
