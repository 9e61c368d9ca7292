"""What users see, recorded in real terminals by tmux: docs/reference/screens.md is held to it.

To write the page anew: python tests/host/test_screens.py
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]  # as a program, too

from fake_nvml import NVML_SOURCE, FakeNvml, compiled  # noqa: E402
from values import lease, ticket  # noqa: E402

from gpulaunch.leases.lease import Lease  # noqa: E402
from gpulaunch.leases.table import Table  # noqa: E402
from gpulaunch.leases.ticket import Ticket  # noqa: E402
from gpulaunch.machine.catalog import load_described_machine  # noqa: E402
from gpulaunch.process.system import boot_id, this_process  # noqa: E402
from gpulaunch.records import replace  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "screens.md"
WIDTHS = (120, 80, 40)
LINES = {120: 24, 80: 24, 40: 32}
NOBODY = 65534
LIMIT_S = 30
HOST = "lab"
INTRODUCTION = """# Screens

What `gpulaunch status`, `top`, `logs -f` and `attach` show in terminals of 120, 80 and 40
columns, recorded by `tests/host/test_screens.py`, which holds this page to it. The machine is a
stand-in for a DGX-1; the user is root, whose jobs are bold in `top`. [Status](../guides/status.md)
says what gives way first, [Leaving a job running](../guides/detached.md) what the others do.
"""
TRAINING = """
stty -echo
echo 'loading /data/imagenet: 1,281,167 images in 1,000 classes, with 8 workers for each of 2 GPUs'
for epoch in 1 2 3; do echo "epoch $epoch: loss $((9 - epoch)).2"; done
until read line && [ $line = 4 ]; do true; done
echo 'epoch 4: loss 5.1 (checkpoint in /scratch/exp7/epoch-4.pt, 1.2 GiB, 3.1 s)'
until read line && [ $line = 5 ]; do true; done; echo 'epoch 5: loss nan'; exit 3
"""

SCENES = (
    ("status", "status", ""),
    ("status --gpus", "status --gpus", ""),
    ("top, with a job selected", "top", "j"),
)
"""Title, arguments and keys of each recording."""


class Screen:
    """A terminal of tmux in which one command runs.

    Args:
        place: directory of its socket.
        columns: width of the terminal.
        command: line for the shell.
    """

    def __init__(self, place: Path, columns: int, command: str) -> None:
        # Not the same again: a server that was ended may still be going.
        socket = tempfile.mktemp(dir=place)
        self._tmux = ["tmux", "-S", socket, "-f", "/dev/null"]
        size = ("-x", str(columns), "-y", str(LINES[columns]))
        self._run("new-session", "-d", *size, f"{command}; echo; echo ended; sleep 60")

    def __enter__(self) -> "Screen":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the terminal."""
        self._run("kill-server")

    def press(self, key: str) -> None:
        """Press a key."""
        self._run("send-keys", key)

    def type_until(self, line: str, wanted: str) -> str:
        """Type a line until it is heard, and return what is shown then."""
        for _ in range(LIMIT_S):
            self.press(line)
            self.press("Enter")
            with suppress(AssertionError):  # dtach drops what comes before it is ready
                return self.text_with(wanted, limit_s=1.0)
        return self.text_with(wanted)

    def text_with(self, *wanted: str, limit_s: float = LIMIT_S) -> str:
        """Return what is shown as soon as all of this is there."""
        deadline = time.monotonic() + limit_s
        while not all(one in (shown := self._run("capture-pane", "-p")) for one in wanted):
            assert time.monotonic() < deadline, shown
            time.sleep(0.05)
        return shown

    def _run(self, *words: str) -> str:
        done = subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=True)
        return done.stdout


@contextmanager
def scene(place: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of a DGX-1 with three jobs of two users, and four who wait."""
    for name in ("state", "runtime", "home"):
        (place / name).mkdir(mode=0o700)
    (place / "state").chmod(0o755)
    library = compiled(NVML_SOURCE, place / "libnvidia-ml.so.1").parent
    nvml = FakeNvml(library, place / "nvml.txt")
    topology = load_described_machine("dgx1-v100")[0]
    nvml.tell_of(topology)
    nvml.freeze(10)
    for gpu, busy in enumerate((97, 97, 12, 95, 0, 0, 88, 0)):
        nvml.change(gpu, limit=300, temp=38 + busy // 3)
        nvml.script(gpu, "active", busy)
        nvml.script(gpu, "power", 45 + 2 * busy)
        nvml.script(gpu, "used_mib", 20 + 150 * busy)
    nvml.change(5, throttle=0x40)
    with ExitStack() as held:
        publish(str(place / "state"), [gpu.uuid for gpu in topology.gpus], held)
        yield {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GPULAUNCH_STATE_DIR": str(place / "state"),
            "XDG_RUNTIME_DIR": str(place / "runtime"),
            "HOME": str(place / "home"),
            "LANG": "C.UTF-8",
            **nvml.environment,
        }


def publish(directory: str, uuids: list[str], held: ExitStack) -> None:
    """Write the records, and hold them; times are half a minute off, so that none changes soon."""
    os.environ["GPULAUNCH_STATE_DIR"] = directory
    table = Table(described=False, warn=print, ended_containers=lambda _: set())
    common: dict[str, Any] = {"table": None, "launcher": this_process(), "boot_id": boot_id()}

    def write(owner: int, record: Lease | Ticket) -> None:
        draft = table.draft(record.id)
        held.callback(draft.close)
        os.fchown(draft.fd, owner, -1)
        with table.locked() as locked:
            locked.publish(draft, record)

    def has(id_: str, *gpus: int, minutes: int, **fields: Any) -> Lease:
        chosen = tuple(uuids[gpu] for gpu in gpus)
        more = {"job": this_process(), "uuids": chosen, "started_at": ago(minutes), "assumed": ()}
        return lease(id_, **(common | more | {"name": None, "profile": None} | fields))

    train = ("python", "train.py", "--data", "/data/imagenet", "--epochs", "90", "--amp")
    limit_s = 6 * 3600.0
    mine = has("4f1c09d2a7be", 3, 0, 1, minutes=125, command=train, time_limit_s=limit_s)
    write(0, replace(mine, profile="vgg16"))
    write(NOBODY, has("4f8800c1d2e3", 2, minutes=47, name="fine-tune"))
    command = ("torchrun", "--nproc-per-node", "2", "pretrain.py")
    write(NOBODY, has("b20d55e6f781", 6, 7, minutes=12, command=command, assumed=("pattern",)))
    for number, owner, count in ((1, 0, 8), (2, NOBODY, 4), (3, 0, 2), (4, 0, 2)):
        fields = {"since": ago(40 - number), "profile": None, "name": f"exp{number}"}
        one = ticket(number, count, **common, **fields)
        write(owner, replace(one, id=f"{number}c0ffee0000{number}", uuids=tuple(uuids)))


def ago(minutes: int) -> str:
    """Return the time half a minute and so many minutes ago."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60 * minutes - 30))


def page() -> str:
    """Return the page of all recordings."""
    parts = [INTRODUCTION]
    with tempfile.TemporaryDirectory() as directory, scene(Path(directory)) as environment:
        for title, words, key in SCENES:
            for width in WIDTHS:
                text = recorded(Path(directory), environment, width, words, key)
                parts.append(f"\n## {title}, {width} columns\n\n```\n{text}\n```\n")
    return "".join(parts) + detached_page()


def detached_page() -> str:
    """Return the recordings of a detached job: followed, attached to and left."""
    parts = []
    for width in WIDTHS:
        with tempfile.TemporaryDirectory() as directory:
            for title, text in watched(Path(directory), width):
                parts.append(f"\n## {title}, {width} columns\n\n```\n{text.strip()}\n```\n")
    return "".join(sorted(parts, key=lambda part: list(TITLES).index(part.split(",")[0][4:])))


TITLES = ("logs -f", "attach", "attach, after Ctrl-\\")


def watched(place: Path, width: int) -> Iterator[tuple[str, str]]:
    """Yield titles and screens of commands about one job, which ends meanwhile."""
    for name in ("state", "home"):
        (place / name).mkdir(mode=0o700)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GPULAUNCH_STATE_DIR": str(place / "state"),
        "HOME": str(place / "home"),
        "XDG_STATE_HOME": str(place / "home/.local/state"),
        "LANG": "C.UTF-8",
    }
    launch = ("-qd", "--terminal", "--topology", "dgx1-v100", "-n", "2", "--name", "exp7")
    subprocess.run(
        [Path(sys.executable).with_name("gpulaunch"), *launch, "--", "sh", "-c", TRAINING],
        env=environment | {"TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (log,) = place.glob("home/.local/state/gpulaunch/logs/*.log")
    deadline = time.monotonic() + LIMIT_S
    while "epoch 3" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    follower, viewer = (
        Screen(place, width, line_of(environment, words))
        for words in ("logs -f -n 3 exp7", "attach exp7")
    )
    with follower, viewer:
        follower.text_with("epoch 3")
        yield "attach", viewer.type_until("4", "epoch 4")
        viewer.press("C-\\")
        yield "attach, after Ctrl-\\", viewer.text_with("\nended").partition("\nended")[0]
        with Screen(place, width, line_of(environment, "attach exp7")) as again:
            again.type_until("5", "has ended with 3")
            yield "logs -f", follower.text_with("\nended").partition("\nended")[0]


def line_of(environment: dict[str, str], words: str) -> str:
    """Return a line for a shell in which gpulaunch has this environment."""
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"{variables} env -u COLUMNS -u LINES gpulaunch {words}"


def recorded(place: Path, environment: dict[str, str], width: int, words: str, key: str) -> str:
    """Return what a command shows, on a machine of this name."""
    inside = f"hostname {HOST}; {line_of(environment, words)}"
    command = f"unshare --uts sh -c {shlex.quote(inside)}"
    with Screen(place, width, command) as terminal:
        if not key:
            text = terminal.text_with("\nended")
            return text.partition("\nended")[0].rstrip()
        terminal.text_with("? help")
        terminal.press(key)
        return terminal.text_with("4f1c09d2a7be of root").rstrip()


def why_not() -> str:
    """Return what is missing for recordings, or an empty text."""
    if os.geteuid():
        return "needs root for records of two users"
    missing = [name for name in ("tmux", "dtach", "script") if not shutil.which(name)]
    if missing:
        return f"needs {', '.join(missing)}"
    done = subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "needs a host name of its own (unshare --uts)"


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_page_of_screens() -> None:
    """The page shows what status and top show in terminals of these widths."""
    assert without_times(page()) == without_times(PAGE.read_text())


def without_times(text: str) -> str:
    """Return the page with 0 for the digits of predicted starts and of the time of a recording."""
    times = r"\bin \d\S* to \d+ [a-z]+|Script done on [-0-9 \n:+]+"
    return re.sub(times, lambda found: re.sub(r"\d", "0", found[0]), text)


if __name__ == "__main__":
    PAGE.write_text(page())
