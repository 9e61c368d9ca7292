"""What all tests share: the installed command, a state directory of their own, and the rule about skipping."""

import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(sysconfig.get_path("scripts")) / "gpulaunch"
NO_SKIPS = "GPULAUNCH_TEST_NO_SKIPS"
"""Set where everything that the tests need must be there: a skipped test then fails."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get(NO_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped although {NO_SKIPS} is set: {report.longrepr}"
    return report


class Launcher:
    """The installed `gpulaunch`, run as a user would, away from the machine's own table and settings.

    Attributes:
        environment: of every run; tests may change it.
        state: the state directory.
    """

    script = str(SCRIPT)

    def __init__(self, home: Path) -> None:
        self.state = home / "state"
        self.state.mkdir()
        self.environment = {
            "PATH": f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "GPULAUNCH_STATE_DIR": str(self.state),
            "LANG": "C.UTF-8",
        }

    def run(self, *arguments: str | bytes, timeout: float = 60, **options) -> subprocess.CompletedProcess[str]:
        """Run to the end; output as text, undecodable bytes as surrogates."""
        options = {"env": self.environment, "capture_output": True, "timeout": timeout, **options}
        if options["capture_output"]:
            options |= {"text": True, "errors": "surrogateescape"}
        return subprocess.run([self.script, *arguments], check=False, **options)

    def start(self, *arguments: str | bytes, **options) -> subprocess.Popen[str]:
        """Start and return at once; output as text."""
        options = {"env": self.environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([self.script, *arguments], **options)

    def records(self) -> list[str]:
        """Names of the records in the table."""
        return sorted(name for name in os.listdir(self.state) if name.startswith("gpulaunch."))


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """A launcher whose table is empty."""
    return Launcher(tmp_path)


@pytest.fixture(autouse=True)
def _no_real_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads or writes this machine's own table, settings or leases, even by accident."""
    for name in list(os.environ):
        if name.startswith(("GPULAUNCH_", "CUDA_")) and name != NO_SKIPS:
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPULAUNCH_STATE_DIR", str(tmp_path / "no-table-here"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-settings-here"))
