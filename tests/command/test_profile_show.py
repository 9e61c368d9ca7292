"""`profile show NAME` at a terminal and to a pipe; tests/corpus/facts.txt has its text."""

import pexpect
from conftest import SCRIPT, Launcher
from test_profile_view import FULL


def test_show_to_a_pipe(launcher: Launcher) -> None:
    """To a pipe it prints without a control code, and breaks no line; to an ASCII one in ASCII."""
    launcher.environment["PYTHONIOENCODING"] = "ascii"
    done = launcher.run("profile", "show", str(FULL))
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[1]) == (0, "", f"file: {FULL}")
    assert [line for line in lines if not line.isprintable() or not line.isascii()] == []
    assert ("\\u" in done.stdout, max(map(len, lines)) > 80) == (False, True)


def test_bold(launcher: Launcher) -> None:
    """A terminal gets bold headings, unless TERM is dumb."""
    for term, is_bold in (("xterm-256color", True), ("dumb", False)):
        environment = launcher.environment | {"TERM": term}
        child = pexpect.spawn(
            str(SCRIPT), ["profile", "show", str(FULL)], env=environment, dimensions=(50, 80)
        )
        shown = child.read().decode()
        child.close()
        assert (child.exitstatus, "\x1b[1m" in shown) == (0, is_bold)
