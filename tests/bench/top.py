"""What `gpulaunch top` costs: CPU of a screen that is left open, by the stand-in for NVML.

A DGX-1 with eight busy GPUs, a lease on each, and 100 who wait; the screen is redrawn every second.

Run: python tests/bench/top.py [--seconds N] [--waiters N] [--size COLUMNSxLINES]
"""

import argparse
import fcntl
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fake_nvml import NVML_SOURCE, FakeNvml, compiled  # noqa: E402
from values import lease, ticket  # noqa: E402

from gpulaunch.leases.table import Table  # noqa: E402
from gpulaunch.machine.catalog import load_described_machine  # noqa: E402
from gpulaunch.process.system import boot_id, this_process  # noqa: E402
from gpulaunch.records import replace  # noqa: E402

WARM_UP_S = 5.0
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the share of a core."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--waiters", type=int, default=100)
    parser.add_argument("--size", default="120x40")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as held:
        place = Path(directory)
        environment = machine(place)
        os.environ.update(environment)
        fill(options.waiters, held)
        columns, lines = map(int, options.size.split("x"))
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(sys.executable, [sys.executable, "-m", "gpulaunch", "top"], dict(os.environ))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        run_for(terminal, WARM_UP_S)
        before, began = cpu_s(pid), time.monotonic()
        written = run_for(terminal, options.seconds)
        used, took = cpu_s(pid) - before, time.monotonic() - began
        os.write(terminal, b"q")
        run_for(terminal, 1)
        os.waitpid(pid, 0)
    print(
        f"top at 1 s, 8 GPUs, {options.waiters} waiters, {options.size}: {100 * used / took:.2f} % "
        f"of a core, {1000 * used / took:.1f} ms a second, {written / took:.0f} bytes a second"
    )


def machine(place: Path) -> dict[str, str]:
    """Return the environment of a DGX-1 that is busy."""
    (place / "state").mkdir()
    (place / "runtime").mkdir(mode=0o700)
    nvml = FakeNvml(compiled(NVML_SOURCE, place / "libnvidia-ml.so.1").parent, place / "nvml")
    nvml.tell_of(load_described_machine("dgx1-v100")[0])
    nvml.begin_script()
    for gpu in range(8):
        nvml.change(gpu, limit=300, temp=60 + gpu)
        nvml.script(gpu, "active", "0:97,3:91", 6)
        nvml.script(gpu, "power", "0:280,2:260", 4)
        nvml.script(gpu, "used_mib", "0:12000,5:12100", 10)
    return {
        "GPULAUNCH_STATE_DIR": str(place / "state"),
        "XDG_RUNTIME_DIR": str(place / "runtime"),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        **nvml.environment,
    }


def fill(waiters: int, held: ExitStack) -> None:
    """Publish a lease on each GPU and the waiters' tickets, and hold them."""
    table = Table(described=False, warn=print, ended_containers=lambda _: set())
    topology = load_described_machine("dgx1-v100")[0]
    common = {
        "user_id": os.geteuid(),
        "table": None,
        "launcher": this_process(),
        "boot_id": boot_id(),
        "command": ("python", "train.py", "--data", "/data/imagenet", "--epochs", "90"),
    }
    for gpu in topology.gpus:
        draft = table.draft()
        held.callback(draft.close)
        fields = common | {"uuids": (gpu.uuid,), "job": this_process(), "name": None}
        record = lease(draft.id, **fields, time_limit_s=7200.0)
        with table.locked() as locked:
            locked.publish(draft, record)
    for number in range(1, waiters + 1):
        draft = table.draft()
        held.callback(draft.close)
        record = ticket(number, 2, **common, name=f"exp{number}")
        record = replace(record, id=draft.id, uuids=tuple(gpu.uuid for gpu in topology.gpus))
        with table.locked() as locked:
            locked.publish(draft, record)


def run_for(terminal: int, seconds: float) -> int:
    """Take what is drawn for so many seconds; return the bytes."""
    end, count = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            try:
                count += len(os.read(terminal, 65536))
            except OSError:
                return count
    return count


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main()
