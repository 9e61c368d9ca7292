"""Every way of launching, over a stand-in for NVML: what only GPUs of this machine's own have.

Other tests launch on described machines, whose GPUs are not watched for idleness, faults or use.
Containers and clusters are in tests/host.
"""

from pathlib import Path

import pytest
from conftest import Launcher, until

pytest_plugins = ("fake_nvml",)

JOB = 'echo "gpus $CUDA_VISIBLE_DEVICES"; exit 3'
FILES = {
    "job": JOB,
    "jobs.toml": f"[[job]]\nname = 'job'\ngpus = 2\ncommand = ['sh', '-c', '''{JOB}''']\n",
    "program.py": """
import sys, gpulaunch
with gpulaunch.allocate(2) as lease:
    print("gpus", ",".join(map(str, lease.gpus)))
    sys.exit(3)
""",
}
WAYS = {
    "attached": "gpulaunch -n 2 -- sh job",
    "detached": "gpulaunch -qd -n 2 --name a -- sh job; gpulaunch logs -f a; gpulaunch wait a",
    "batch": "gpulaunch batch -q jobs.toml; grep -q 'exit_status\": 3' *.results.jsonl && exit 3",
    "program": "python program.py",
}


@pytest.mark.usefixtures("dgx1_v100")
@pytest.mark.parametrize("line", WAYS.values(), ids=WAYS)
def test_on_gpus_that_nvml_tells_of(launcher: Launcher, tmp_path: Path, line: str) -> None:
    """However a job is launched on this machine's own GPUs, its status arrives, and all is free."""
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    done = launcher.run("-c", line, executable="/bin/sh", cwd=tmp_path)
    assert (done.returncode, "gpus 0,3\n" in done.stdout) == (3, True), done
    until(lambda: launcher.records() == [])  # a detached launch may just be about to end
