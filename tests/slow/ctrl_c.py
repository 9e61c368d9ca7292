"""Ctrl-C into a Python program that takes and releases leases, and what it leaves behind.

Run: python tests/slow/ctrl_c.py [--interrupts N] [--threads N,...] [--python PATH]

A child takes and releases one GPU after the other, with so many threads beside it that sleep. It
asks for an interrupt, which comes at a random moment within a few leases; once it has left the loop
and garbage is collected it looks at its own process from outside of gpulaunch. What is wrong is
counted, and it asks for the next one. Another interpreter (--python) needs no package but this
checkout. The exit status is 1 if anything was wrong.
"""

import argparse
import fcntl
import gc
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
THREADS = (0, 1, 4)
WRONG = ("lock held", "signals blocked", "leases without owner", "descriptors open")
"""What may be wrong after an interrupt."""

OTHER_ENDS = "other ends"
"""Exceptions that Python itself may make of an interrupt."""

LONGEST_PAUSE_S = 0.005
"""Until an interrupt. A lease takes 1 or 2 ms."""

GRACE_S = 30.0
"""Time for a thread or process at work for the child to finish what was interrupted."""

LOST_S = 10.0
"""Time after which an interrupt has had no effect, which may be Python's fault: another is sent."""

LOST_AT_MOST = 5

_FLOCK = "hhqqi4x"  # struct flock: l_type, l_whence, l_start, l_len, l_pid


class Interrupted:
    """The child: a process that is interrupted, and looks at what is left of that.

    Args:
        state: its state directory.
    """

    def __init__(self, state: str) -> None:
        self._state = state
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self._open = descriptors()
        self.counts: Counter[str] = Counter()

    def look(self) -> None:
        """Count what is wrong."""
        gc.collect()
        deadline = time.monotonic() + GRACE_S
        while (wrong := self._wrong()) and time.monotonic() < deadline:
            time.sleep(0.001)  # nothing tells when somebody else is done
        self.counts.update(wrong)

    def _wrong(self) -> list[str]:
        wrong = []
        fd = os.open(self._state, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wrong.append("lock held")
        finally:
            os.close(fd)
        if signal.pthread_sigmask(signal.SIG_BLOCK, []) != self._mask:
            wrong.append("signals blocked")
        if any(self._is_alive(name) for name in os.listdir(self._state)):
            wrong.append("leases without owner")
        if len(descriptors()) > len(self._open):
            wrong.append("descriptors open")
        return wrong

    def _is_alive(self, name: str) -> bool:
        question = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        with suppress(FileNotFoundError), open(os.path.join(self._state, name)) as file:
            answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, question)
            return struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK
        return False


def descriptors() -> set[int]:
    """Return the descriptors that this process has open, without that of the listing itself."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            os.fstat(int(name))
            found.add(int(name))
    return found


def be_interrupted(interrupts: int, threads: int, asking: int) -> None:
    """Be the child: ask for interrupts by writing to a descriptor, and print what was wrong."""
    import gpulaunch

    def lease() -> None:
        gpulaunch.allocate(1, topology="dgx1-v100").release()

    for _ in range(threads):
        threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
    for _ in range(3):  # what is imported or opened once for all
        lease()
    gc.collect()
    gc.freeze()  # later collections are quick
    child = Interrupted(os.environ["GPULAUNCH_STATE_DIR"])
    for _ in range(interrupts):
        try:
            os.write(asking, b"?")
            while True:
                lease()
        except KeyboardInterrupt:
            pass
        except BaseException as problem:  # noqa: BLE001  an interrupt in disguise
            child.counts[OTHER_ENDS] += 1
            print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
        child.look()
    print(json.dumps(child.counts))


def interrupt(interrupts: int, threads: int, python: str = sys.executable) -> dict[str, int]:
    """Run a child, interrupt it so many times, and return how often what was wrong.

    Raises:
        RuntimeError: the child has failed.
    """
    chance = random.Random(interrupts)
    asking, answer = os.pipe()
    with tempfile.TemporaryDirectory() as state:
        arguments = ("--child", str(answer), f"--interrupts={interrupts}", f"--threads={threads}")
        child = subprocess.Popen(
            [python, __file__, *arguments],
            env=os.environ | {"GPULAUNCH_STATE_DIR": state, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(answer,),
        )
        os.close(answer)
        with child, open(asking, "rb", buffering=0) as questions:
            lost = 0
            while lost <= LOST_AT_MOST:
                if not select.select([questions], [], [], LOST_S)[0]:
                    lost += 1
                elif not questions.read(1):
                    break
                time.sleep(chance.random() * LONGEST_PAUSE_S)  # this is the random moment
                child.send_signal(signal.SIGINT)
            else:
                child.kill()  # it is stuck
            out, _ = child.communicate()
    if child.returncode:
        raise RuntimeError(f"the child ended with {child.returncode}")
    counts = json.loads(out)
    return {what: counts.get(what, 0) for what in (*WRONG, OTHER_ENDS)}


def main() -> None:
    """Print what was wrong, a line for each number of threads, or be the child."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interrupts", type=int, default=300)
    parser.add_argument("--threads", default=",".join(map(str, THREADS)), metavar="N,...")
    parser.add_argument("--python", default=sys.executable, metavar="PATH")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads = [int(word) for word in options.threads.split(",")]
    if options.child is not None:
        be_interrupted(options.interrupts, threads[0], options.child)
        return
    wrong = False
    for number in threads:
        counts = interrupt(options.interrupts, number, options.python)
        print(f"{number} more threads, {options.interrupts} interrupts: {counts}", flush=True)
        wrong |= any(counts[what] for what in WRONG)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
