"""What starting costs, in instructions: the same on a busy machine as on an idle one.

The package is built as a wheel and installed in a virtual environment made for this, and once more
in editable form. Each command is a whole process under valgrind, which counts the instructions of
the launcher alone: neither those of the job nor those of any other child.

Run: python tests/bench/start_up.py [--quick]

--quick takes the wheel only and prints one line. Valgrind and a C compiler have to be on PATH; the
compiler makes the stand-in for NVIDIA's driver, which tells of a DGX-1.
"""

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fake_nvml import NVML_SOURCE, FakeNvml, compiled  # noqa: E402

from gpulaunch.machine.catalog import load_described_machine  # noqa: E402

VALGRIND = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
ON_STAND_IN = ["-p", "vgg16", "-n", "3", "--", "true"]
LAUNCH = ["--topology", "dgx1-v100", *ON_STAND_IN]
COMMANDS = [
    ["--version"],
    ["--help"],
    LAUNCH,
    ["--topology", "nvl72", *ON_STAND_IN],
    ON_STAND_IN,
    ["status", "--topology", "dgx1-v100"],
    ["topo", "--topology", "dgx1-v100"],
    ["docker", "ps"],
]
QUICK = [LAUNCH, ["--version"]]

# gpulaunch becomes docker by exec, which would take valgrind's count with it.
UP_TO_EXEC = (
    "import os, sys; os.execvpe = lambda *_: os._exit(0); "
    "from gpulaunch.__main__ import main; sys.exit(main())"
)


class Installed:
    """The package in a virtual environment of its own.

    Args:
        place: an empty directory.
        how: what pip is to install.
    """

    def __init__(self, place: Path, *how: str) -> None:
        venv.create(place / "venv", with_pip=True)
        self._bin = place / "venv" / "bin"
        run([self._bin / "pip", "install", "--quiet", *how])
        docker = place / "path" / "docker"
        docker.parent.mkdir()
        docker.write_text("#!/bin/sh\n")
        docker.chmod(0o755)
        (place / "state").mkdir()
        (place / "runtime").mkdir(mode=0o700)
        nvml = FakeNvml(compiled(NVML_SOURCE, place / "libnvidia-ml.so.1").parent, place / "nvml")
        nvml.tell_of(load_described_machine("dgx1-v100")[0])
        self._log = place / "valgrind.log"
        self._environment = {
            "HOME": str(place),
            "PATH": f"{docker.parent}:{os.environ['PATH']}",
            "PYTHONHASHSEED": "0",
            "GPULAUNCH_STATE_DIR": str(place / "state"),
            "XDG_RUNTIME_DIR": str(place / "runtime"),
            **nvml.environment,
        }

    def bare(self) -> float:
        """Return the millions of instructions of a Python that does nothing."""
        return self._count([self._bin / "python", "-c", "pass"])

    def count(self, words: list[str]) -> float:
        """Return the millions of instructions of a gpulaunch command."""
        program = ["-c", UP_TO_EXEC] if words[0] == "docker" else [self._bin / "gpulaunch"]
        command = [self._bin / "python", *program, *words]
        run(command, self._environment)  # writes what Python compiles
        return self._count(command)

    def _count(self, command: list[str | Path]) -> float:
        watched = [*VALGRIND, "--child-silent-after-fork=yes", f"--log-file={self._log}", *command]
        run(watched, self._environment)
        found = re.search(r"I\s+refs:\s+([\d,]+)", self._log.read_text())
        if not found:
            sys.exit(f"valgrind counted nothing of {command}: {self._log.read_text()}")
        return int(found[1].replace(",", "")) / 1e6


def run(command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    """Run a command, and stop with its output if it fails."""
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{command}: exit status {done.returncode}\n{done.stdout}")


def from_wheel(place: Path) -> Installed:
    """Build a wheel of this checkout, and install it."""
    place.mkdir()
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", place, ROOT])
    return Installed(place, *map(str, place.glob("*.whl")))


def editable(place: Path) -> Installed:
    """Install this checkout in editable form."""
    place.mkdir()
    return Installed(place, "--editable", str(ROOT))


def main() -> None:
    """Print the line, or the table."""
    with tempfile.TemporaryDirectory() as directory:
        wheel = from_wheel(Path(directory, "wheel"))
        if "--quick" in sys.argv[1:]:
            parts = [f"gpulaunch {' '.join(words)}: {wheel.count(words):.1f}" for words in QUICK]
            print(f"millions of instructions: {'; '.join(parts)}; bare Python: {wheel.bare():.1f}")
            return
        source = editable(Path(directory, "editable"))
        print(f"{'millions of instructions':60} {'wheel':>8} {'editable':>9}")
        print(f"{'python -c pass':60} {wheel.bare():8.1f} {source.bare():9.1f}")
        for words in COMMANDS:
            shown = f"gpulaunch {' '.join(words)}"
            shown += " (NVML stand-in)" if words is ON_STAND_IN else ""
            print(f"{shown:60} {wheel.count(words):8.1f} {source.count(words):9.1f}", flush=True)


if __name__ == "__main__":
    main()
