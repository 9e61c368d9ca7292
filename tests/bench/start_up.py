"""What starting costs, in instructions: the same on a busy machine as on an idle one.

The package is built as a wheel and installed in a virtual environment made for this. Each command
is a whole process under valgrind, which counts the instructions of the launcher alone: neither
those of the job nor those of any other child.

Run: python tests/bench/start_up.py [--quick]

--quick prints one line, on a launch and --version. Valgrind has to be on PATH.
"""

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
VALGRIND = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
LAUNCH = ["--topology", "dgx1-v100", "-p", "vgg16", "-n", "3", "--", "true"]
QUICK = [LAUNCH, ["--version"]]
COMMANDS = [["--version"], LAUNCH, ["status", "--topology", "dgx1-v100"], ["docker", "ps"]]

# gpulaunch becomes docker by exec, which would take valgrind's count with it.
UP_TO_EXEC = (
    "import os, sys; os.execvpe = lambda *_: os._exit(0); "
    "from gpulaunch.__main__ import main; sys.exit(main())"
)


class Installed:
    """The wheel of this checkout in a virtual environment of its own.

    Args:
        place: an empty directory.
    """

    def __init__(self, place: Path) -> None:
        venv.create(place / "venv", with_pip=True)
        self._bin = place / "venv" / "bin"
        run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", place, ROOT])
        run([self._bin / "pip", "install", "--quiet", *place.glob("*.whl")])
        docker = place / "path" / "docker"
        docker.parent.mkdir()
        docker.write_text("#!/bin/sh\n")
        docker.chmod(0o755)
        (place / "state").mkdir()
        (place / "runtime").mkdir(mode=0o700)
        self._log = place / "valgrind.log"
        self._environment = {
            "HOME": str(place),
            "PATH": f"{docker.parent}:{os.environ['PATH']}",
            "PYTHONHASHSEED": "0",
            "GPULAUNCH_STATE_DIR": str(place / "state"),
            "XDG_RUNTIME_DIR": str(place / "runtime"),
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


def main() -> None:
    """Print the line, or the table."""
    with tempfile.TemporaryDirectory() as directory:
        wheel = Installed(Path(directory))
        if "--quick" in sys.argv[1:]:
            parts = [f"gpulaunch {' '.join(words)}: {wheel.count(words):.1f}" for words in QUICK]
            print(f"millions of instructions: {'; '.join(parts)}; bare Python: {wheel.bare():.1f}")
            return
        print(f"{'python -c pass':60} {wheel.bare():8.1f}")
        for words in COMMANDS:
            shown = f"gpulaunch {' '.join(words)}"
            print(f"{shown:60} {wheel.count(words):8.1f}", flush=True)


if __name__ == "__main__":
    main()
