"""Pages of the reference that people write say what the code has."""

import re
from pathlib import Path

import gpulaunch
from gpulaunch import errors
from gpulaunch.history.line import COMMON
from gpulaunch.launch.open_table import TMPFILES
from gpulaunch.leases import record_file, state_directory

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_python() -> None:
    """The page shows every public name of the package, and no other one."""
    text = (REFERENCE / "python.md").read_text()
    assert [name for name in gpulaunch.__all__ if not re.search(rf"\b{name}\b", text)] == []
    assert set(re.findall(r"\bgpulaunch\.([A-Za-z]\w*)", text)) <= set(gpulaunch.__all__)


def test_exit_statuses() -> None:
    """The page has the statuses of launches with the errors that Python raises in their place."""
    text = (REFERENCE / "exit-statuses.md").read_text()
    rows = re.findall(r"^\| (\d+) \| .* \| (?:`(\w+)`)? ?\|$", text, re.MULTILINE)
    public = [getattr(errors, name) for name in gpulaunch.__all__ if "Error" in name]
    # Errors below these have their statuses.
    raised = {
        error.__name__: error.exit_status
        for error in public
        if error.__base__ is errors.GpulaunchError
    }
    assert {name: int(status) for status, name in rows if name} == raised
    assert {int(status) for status, _ in rows} == {
        value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)
    }


def test_files() -> None:
    """The page names every kind of record, and every place that is not below a home directory."""
    text = (REFERENCE / "files.md").read_text()
    kinds = [value for name, value in vars(record_file).items() if name.endswith("_PREFIX")]
    places = [state_directory.SET_UP, COMMON, TMPFILES]
    assert [name for name in (*kinds, *places) if f"`{name}" not in text] == []
