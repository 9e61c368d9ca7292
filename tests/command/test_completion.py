"""What Tab does in bash, zsh and fish."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DGX, Launcher, complaint, held
from shells import PLAIN_BASH, Shell

from gpulaunch.cli.completion_scripts import completion_script
from gpulaunch.cli.completion_values import all_arguments

NAMES = ("exp7", "my job", "it's", 'say "x"', "vllm@tp=4", "a:b")
ONE_OF = "--gpu-pool"
"""An option that only the docker of these tests has."""
DOCKER = {
    "bash": f"_docker() {{ COMPREPLY=($(compgen -W {ONE_OF} -- $2)); }}; complete -F _docker docker",
    "zsh": f"_docker() {{ compadd -- {ONE_OF} }}; compdef _docker docker",
    "fish": f"complete -c docker -l {ONE_OF[2:]}",
}
LOAD = {
    "bash": 'eval "$(gpulaunch completion bash)"',
    "zsh": 'eval "$(gpulaunch completion zsh)"',
    "fish": "gpulaunch completion fish | source",
}


@pytest.fixture
def home(launcher: Launcher, tmp_path: Path) -> Path:
    """Return a home with a history of jobs, a profile, a machine, and a docker on its PATH."""
    launcher.environment["XDG_STATE_HOME"] = str(tmp_path / "state_home")
    launcher.environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{launcher.environment['PATH']}"
    for name in NAMES:
        assert launcher.run(*DGX, "--name", name, "--", "true").returncode == 0
    (tmp_path / "jobs.toml").touch()
    (tmp_path / "out").mkdir()
    for kind in ("profiles", "machines"):
        path = tmp_path / "config" / "gpulaunch" / kind
        path.mkdir(parents=True)
        (path / f"own-{kind[:-1]}.toml").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").symlink_to("/bin/true")
    return tmp_path


@pytest.fixture(params=["bash", PLAIN_BASH, "zsh", "fish"])
def shell(request: pytest.FixtureRequest, launcher: Launcher, home: Path) -> Iterator[Shell]:
    """Start a shell with the completion as the guide loads it."""
    one = Shell(
        request.param,
        launcher,
        f"{LOAD[request.param.split()[-1]]}; {DOCKER[request.param.split()[-1]]}",
    )
    yield one
    one.close()


WORDS = {  # what is typed -> what Tab makes of its last word
    "gpulaunch stat": "status",
    "gpulaunch --dry": "--dry-run",
    "gpulaunch run --dry": "--dry-run",
    "gpulaunch -p own": "own-profile",
    "gpulaunch --profile=own": "--profile=own-profile",
    "gpulaunch --topology own": "own-machine",
    "gpulaunch --topology=dgx1-v": "--topology=dgx1-v100",
    "gpulaunch --topology dgx1-v100 status --gp": "--gpus",
    "gpulaunch --queue back": "backfill",
    "gpulaunch --policy best-f": "best-fit",
    "gpulaunch --topology ./jo": "./jobs.toml",
    "gpulaunch --time-limit jo": "jo",
    "gpulaunch --notify chgr": "chgrp",
    "gpulaunch --after exp7,vllm": "exp7,vllm@tp=4",
    "gpulaunch --after=exp7,vllm": "--after=exp7,vllm@tp=4",
    "gpulaunch status --user roo": "root",
    "gpulaunch plan jo": "jobs.toml",
    "gpulaunch simulate --report ou": "out/",
    "gpulaunch simulate --policy baseline,best-f": "baseline,best-fit",
    "gpulaunch profiles sh": "show",
    "gpulaunch profiles show own": "own-profile",
    "gpulaunch profile --sensit": "--sensitivity",
    "gpulaunch profile --time-l": "--time-limit",
    "gpulaunch cluster ma": "map",
    "gpulaunch cluster map --gpu-pattern stencil-2": "stencil-2d",
    "gpulaunch help clus": "cluster",
    "gpulaunch help cluster sh": "show",
    "gpulaunch completion fi": "fish",
    "gpulaunch logs exp": "exp7",
    "gpulaunch attach exp": "exp7",
    "gpulaunch wait exp7 vllm": "vllm@tp=4",
    "gpulaunch logs my": r"my\ job",
    "gpulaunch logs my\\ j": r"my\ job",
    'gpulaunch logs "my': '"my job"',
    "gpulaunch logs 'my": "'my job'",
    "gpulaunch logs it": r"it\'s",
    'gpulaunch logs "it': '"it\'s"',
    "gpulaunch logs say": r"say\ \"x\"",
    "gpulaunch logs vllm@t": "vllm@tp=4",
    "gpulaunch logs vllm@tp=": "vllm@tp=4",
    "gpulaunch logs a:": "a:b",
    "gpulaunch -n 2 -- chgr": "chgrp",
    "gpulaunch -n 2 -- python3 jo": "jobs.toml",
    "gpulaunch docker --gpu-p": ONE_OF,
    "gpulaunch --wait docker --gpu-p": ONE_OF,
    "gpulaunch --share -- docker --gpu-p": ONE_OF,
}
NOT_IN = {PLAIN_BASH: ONE_OF}
"""What a shell cannot do without more packages."""


def test_tab_completes_words(shell: Shell, launcher: Launcher, request) -> None:
    """Commands, options, values, names and files are completed, and so is the job's own command."""
    left_out = NOT_IN.get(request.node.callspec.params["shell"])
    got, want = {}, {}
    for typed, word in WORDS.items():
        if word != left_out:
            before = typed[: -len(typed.split(" ")[-1])].removesuffix("my\\ ")
            before = before[: before.rfind("my")] if before.endswith("my\\ ") else before
            got[typed] = shell.tab(typed).removesuffix(" ")
            want[typed] = before + word
            assert "gpulaunch:" not in shell.printed
    assert got == want
    assert launcher.records() == []
