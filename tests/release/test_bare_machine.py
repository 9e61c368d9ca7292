"""gpulaunch is installed on a new Debian and a new Ubuntu as docs/guides/install.md says."""

import re
import sys
import time
from pathlib import Path

import pexpect
import pytest
from bare_machine import PATIENCE_S, ROOT, VERSION, BareMachine

sys.path.append(str(ROOT / "docs"))

import picture

CLONE = "git clone --quiet ADDRESS && cd gpulaunch && "
GUIDE = (ROOT / "docs/guides/install.md").read_text()
JOB = "gpulaunch --topology dgx1-v100 -n 2 -- sh -c 'echo $CUDA_VISIBLE_DEVICES'"
FISH = re.search(r"```fish\n(.*?)```", GUIDE, re.DOTALL)[1]
SAYS_ITS_VERSION = f"gpulaunch {VERSION}\n"


def guide(heading: str) -> list[str]:
    """Return the blocks of commands below a heading of the guide."""
    section = re.search(rf"^#+ {heading}$(.*?)(^#|\Z)", GUIDE, re.MULTILINE | re.DOTALL)[1]
    return re.findall(r"^```sh\n(.*?)\n```$", section, re.MULTILINE | re.DOTALL)


def check(machine: BareMachine, user: str) -> None:
    """Check that a user who logs in finds gpulaunch, and that it runs jobs."""
    assert machine.do(user, "gpulaunch --version") == SAYS_ITS_VERSION
    assert re.fullmatch(r"\d,\d\n", machine.do(user, JOB))


@pytest.mark.parametrize("who", ["user", "root"])
def test_demo(bare_machine: BareMachine, who: str) -> None:
    """examples/demo.sh installs gpulaunch in a clone, plays its scene, and leaves nothing else."""
    user = bare_machine.add_user() if who == "user" else "root"
    bare_machine.do(user, f"git clone --quiet ADDRESS 'demo of {who}'")
    places = ("/home", "/root", "/run", "/tmp", "/var/tmp", "/var/lib")
    before = bare_machine.files(*places)
    first, again = (
        in_terminal(bare_machine, user, f"cd /; sh ~/'demo of {who}'/examples/demo.sh")
        for _ in "12"
    )
    installing, scene = first.split("\n", 1)
    assert re.fullmatch(rf"installing gpulaunch into /.*/demo of {who}/.venv", installing)
    assert picture.lasting(scene) == picture.lasting(picture.shown())
    assert picture.lasting(again) == picture.lasting(picture.shown())
    new = bare_machine.files(*places) - before
    built = rf"demo of {who}/(\.venv/|(.*/)?__pycache__/)"
    assert {path for path in new if not re.search(built, path)} == set()
    assert bare_machine.do(user, f"git -C 'demo of {who}' status --porcelain") == ""


def in_terminal(machine: BareMachine, user: str, script: str) -> str:
    """Run a script that must succeed in a terminal, and return what it printed."""
    began = time.monotonic()
    program, *arguments = machine.command(user, script)
    terminal = pexpect.spawn(
        program, arguments, encoding="utf-8", timeout=PATIENCE_S, dimensions=(50, picture.COLUMNS)
    )
    status, printed = picture.finish(terminal)
    print(f"{script}: {time.monotonic() - began:.1f} s\n{printed}")
    assert status == 0
    return printed


def test_pip(bare_machine: BareMachine) -> None:
    """A clone, Python's venv and a link are enough."""
    user = bare_machine.add_user()
    (commands,) = guide("With pip")
    bare_machine.do(user, CLONE + commands)
    check(bare_machine, user)


@pytest.mark.parametrize(
    ("tool", "source"),
    [
        ("pipx", "repository"),
        ("uv", "wheel"),
    ],
)
def test_tools(bare_machine: BareMachine, wheel: Path, tool: str, source: str) -> None:
    """The tools install from the repository's address and from a wheel, and remove it again."""
    user = bare_machine.add_user()
    if tool == "uv":
        bare_machine.do(user, "pipx install uv")
    (command,) = guide(f"With {tool}")
    if source == "wheel":
        command = command.replace("git+ADDRESS", bare_machine.copy(wheel))
    bare_machine.do(user, command)
    check(bare_machine, user)
    (completion,) = guide("Completion and manual pages")
    bare_machine.do(user, completion)
    tab_completes(bare_machine, user, "bash")
    assert "GPULAUNCH(1)" in bare_machine.do(user, "man gpulaunch")
    bare_machine.do(user, f"{tool.replace('uv', 'uv tool')} uninstall gpulaunch")
    assert bare_machine.run(user, "gpulaunch --version").returncode == 127


def test_without_a_network(bare_machine: BareMachine) -> None:
    """The wheels that pip has collected are all that an installation needs."""
    user = bare_machine.add_user()
    collect, install = guide("Without a network")
    bare_machine.do(user, f"python3 -m venv v && {collect.replace('python3', 'v/bin/python', 1)}")
    bare_machine.do(user, install)
    check(bare_machine, user)


def test_for_all_users(bare_machine: BareMachine) -> None:
    """What an administrator installs is there for all users, and an update ends no job."""
    install, update, remove, forget = _as_root("For all users of a machine")
    users = (bare_machine.add_user(), bare_machine.add_user())
    before = bare_machine.files("/etc", "/opt", "/run", "/usr/local")
    bare_machine.do("root", install)
    for user in users:
        check(bare_machine, user)
        for shell in ("bash", "zsh", "fish"):
            tab_completes(bare_machine, user, shell)
        assert "GPULAUNCH(1)" in bare_machine.do(user, "man gpulaunch")
        assert "/run/gpulaunch, of root" in bare_machine.run(user, "gpulaunch doctor --json").stdout
    printed = bare_machine.do("root", f"cd /tmp\n{WHILE_A_JOB_RUNS % (users[0], update)}")
    assert printed == "the job has ended\n"
    check(bare_machine, users[1])
    bare_machine.do("root", remove)
    bare_machine.do("root", forget)
    assert bare_machine.files("/etc", "/opt", "/run", "/usr/local") - before == set()


WHILE_A_JOB_RUNS = """
mkfifo -m 666 started go
su - %s -c 'gpulaunch --topology dgx1-v100 -- \\
    sh -c "> /tmp/started; read x < /tmp/go; echo the job has ended"' &
cat started
%s
echo > go
wait
rm started go
"""


def _as_root(heading: str) -> list[str]:
    return [block.replace("sudo ", "") for block in guide(heading)]


def tab_completes(machine: BareMachine, user: str, shell: str) -> None:
    """Check that Tab completes a word in a shell that a user starts after login."""
    program, *arguments = machine.command(user)
    terminal = pexpect.spawn(program, arguments, encoding="utf-8", timeout=60)
    if shell == "zsh":
        terminal.sendline("echo 'autoload -Uz compinit; compinit -u' > ~/.zshrc; exec zsh -i")
    if shell == "fish":
        for line in FISH.splitlines():
            terminal.sendline(line)
        terminal.sendline("exec fish")
    terminal.sendline('echo rea""dy')
    terminal.expect_exact("ready")
    terminal.send("gpulaunch hist\t--help\r")
    terminal.expect_exact("usage: gpulaunch history")
    terminal.close(force=True)
