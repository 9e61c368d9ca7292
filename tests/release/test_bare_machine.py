"""gpulaunch is installed on a new Debian and a new Ubuntu, in every way that the documents name."""

import re

from bare_machine import REPOSITORY, ROOT, BareMachine

CLONE = f"git clone --quiet file://{REPOSITORY} && cd gpulaunch && "


def readme_command(part: str) -> str:
    """Return the README's command that has this part."""
    lines = (ROOT / "README.md").read_text().splitlines()
    return next(line for line in lines if line.startswith("python3 -m venv") and part in line)


def test_readme_runs_a_job(bare_machine: BareMachine) -> None:
    """The README's first command runs a job in a clone, and leaves the clone clean."""
    user = bare_machine.add_user()
    command = readme_command("examples/train.py")
    printed = bare_machine.do(user, f"{CLONE}{command} && git status --porcelain")
    assert re.fullmatch("training on GPUs 0,2,3 under lease [0-9a-f]{12}\n", printed)


def test_readme_passes_the_tests(bare_machine: BareMachine) -> None:
    """The README's test command passes in a clone, here for the unit tests."""
    user = bare_machine.add_user()
    done = bare_machine.run(user, f"{CLONE}{readme_command('-m pytest')} -q -m unit")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1])
