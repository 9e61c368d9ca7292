"""Pictures in DOT, read by Graphviz itself."""

import shutil
import subprocess

import pytest
from gpulaunch.show.topology.dot import topology_dot
from test_pictures import EVERY


@EVERY
@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_it(topology):
    """Graphviz draws every machine without complaint."""
    command = ["dot", "-Tsvg", "-o", "/dev/null"]
    done = subprocess.run(
        command,
        input=topology_dot(topology),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
