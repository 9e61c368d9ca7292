"""Stand-ins for a driver's libraries, compiled from C when the tests run."""

import shutil
import subprocess
from pathlib import Path

import pytest


def compiled(source: Path, output: Path) -> Path:
    """Compile a shared library; a machine without gcc skips the test.

    Args:
        source: its C file.
        output: where it is to be.
    """
    compiler = shutil.which("gcc")
    if not compiler:
        pytest.skip("needs gcc")
    options = ("-Wall", "-Wextra", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{output.name}")
    subprocess.run([compiler, *options, "-o", output, source], check=True)
    return output
