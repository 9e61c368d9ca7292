"""Several versions of gpulaunch on one machine share one table."""

import fcntl
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from conftest import DGX, SHOW, VGG, Launcher, held

from gpulaunch.leases import record_file as records
from gpulaunch.process.system import boot_id

PACKAGE = Path(records.__file__).parents[1]

FORMS = {
    "the first, before leases were ordered by the clock": {
        "id": "aaaaaaaaaaaa",
        "table": ["dgx1-v100", "6df14b0d", "/x/dgx1-v100.toml"],
        "uuids": ["GPU-dgx1-v100-0"],
        "launcher": [100, 5],
        "job": [101, 6],
        "command": ["python", "train.py"],
        "profile": "vgg16",
        "assumed": ["pattern"],
        "name": None,
        "started_at": "2026-11-21T10:00:00Z",
        "ancestors": [],
        "boot_id": "b",
        "engine": None,
        "container": None,
        "host_gb_per_s": 0.0,
        "apart_from": [],
        "version": 1,
    },
    "the least that tells which GPUs are taken": {
        "version": 1,
        "id": "aaaaaaaaaaaa",
        "table": ["dgx1-v100", "6df14b0d", "/x/dgx1-v100.toml"],
        "uuids": ["GPU-dgx1-v100-0"],
        "ancestors": [],
    },
    "a later one, with keys and forms that nobody knows yet": {
        "version": 1,
        "id": "aaaaaaaaaaaa",
        "table": ["dgx1-v100", "6df14b0d", "/x/dgx1-v100.toml"],
        "uuids": ["GPU-dgx1-v100-0"],
        "ancestors": [],
        "job": {"pid": 5, "cgroup": "/user.slice"},
        "command": {"program": "python"},
        "share": {"slice": 3},
        "mood": [1, {"good": True}],
    },
}


class Versioned(Launcher):
    """Another version of the package, on the table of a launcher.

    Args:
        launcher: whose table and environment it uses.
        place: empty directory for the copy.
        edits: for each file of the package, texts to replace.
    """

    def __init__(
        self, launcher: Launcher, place: Path, edits: dict[str, list[tuple[str, str]]]
    ) -> None:
        shutil.copytree(PACKAGE, place / "gpulaunch", ignore=shutil.ignore_patterns("__pycache__"))
        (place / "profiles").symlink_to(PACKAGE.parent / "profiles")
        for name, pairs in edits.items():
            file = place / "gpulaunch" / name
            text = file.read_text()
            for old, new in pairs:
                assert text.count(old) == 1, old
                text = text.replace(old, new)
            file.write_text(text)
        script = place / "gpulaunch-other"
        script.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(place)!r})\n"
            "from gpulaunch.cli.main import main\nsys.exit(main())\n"
        )
        script.chmod(0o755)
        self.script = str(script)
        self.state, self.environment = launcher.state, launcher.environment


@pytest.fixture
def later(launcher: Launcher, tmp_path: Path) -> Versioned:
    """Make a later version, whose records have more keys, and other forms of old ones."""
    new = '{"version": VERSION, "mood": [1, {"a": None}], "launcher": {"pidfd": 7}}'
    edits = {
        "leases/lease.py": [('document["version"] = VERSION', f"document |= {new}")],
        "leases/ticket.py": [('| {"version": VERSION}', f"| {new}")],
    }
    return Versioned(launcher, tmp_path / "later", edits)


@pytest.mark.parametrize("form", FORMS)
def test_record_of_every_form_holds_its_gpus(launcher: Launcher, form: str) -> None:
    """A live record holds its GPUs whatever version wrote it, and `status` shows it."""
    with held(launcher, *DGX, "-n", "1") as job:
        (name,) = launcher.records()
        own = json.loads((launcher.state / name).read_text())
        assert job.gpus == "0"
    document = FORMS[form] | {"table": own["table"]}
    fd = os.open(launcher.state / "gpulaunch.lease.aaaaaaaaaaaa", os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, json.dumps(document).encode())
    fcntl.fcntl(
        fd, fcntl.F_OFD_SETLK, records.struct.pack(records._FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0)
    )
    assert launcher.run(*DGX, "--only", "0,1", "-n", "1", *SHOW).stdout == "1\n"
    status = json.loads(launcher.run("status", *DGX, "--json").stdout)
    assert [(lease["id"], lease["gpus"]) for lease in status["leases"]] == [("a" * 12, [0])]
    assert launcher.run("status", *DGX).returncode == 0
    os.close(fd)


def test_versions_launch_beside_each_other(launcher: Launcher, later: Versioned) -> None:
    """Each version leaves the other's GPUs alone, shows its leases and can free them."""
    with held(later, *VGG) as others:
        assert launcher.run(*VGG, *SHOW).stdout == "4,6,7\n"
        (lease,) = json.loads(launcher.run("status", *DGX, "--json").stdout)["leases"]
        assert sorted(lease["gpus"]) == [0, 2, 3]
        with held(launcher, *DGX, "-n", "5") as own:
            assert others.gpus == "0,2,3"
            assert sorted(own.gpus.split(",")) == ["1", "4", "5", "6", "7"]
            assert later.run(*DGX, "-n", "1", *SHOW).returncode == 75
        assert launcher.run("free", *DGX, lease["id"]).returncode == 0
        assert others.process.wait(timeout=30) == 128 + signal.SIGTERM
    assert launcher.run(*DGX, "-n", "8", *SHOW).returncode == 0


def test_versions_wait_for_each_other(launcher: Launcher, later: Versioned) -> None:
    """A ticket of another version keeps its place in the queue."""
    with held(launcher, *DGX, "-n", "8"):
        first = later.start(*DGX, "-n", "8", "--wait", "--", "sh", "-c", "echo first; read line")
        assert "waiting as number 1" in first.stderr.readline()
        second = launcher.start(*DGX, "-n", "8", "--wait", "--", "echo", "second")
        assert "waiting as number 2" in second.stderr.readline()
    assert first.stdout.readline() == "first\n"
    assert second.poll() is None
    first.communicate("\n", timeout=30)
    assert second.communicate(timeout=30)[0] == "second\n"


def test_version_that_is_too_old_says_so(launcher: Launcher, tmp_path: Path) -> None:
    """A record that needs a later reader stops a launch, which never advises to end that job."""
    edit = {"leases/record_fields.py": [("VERSION = 1\n", "VERSION = 2\n")]}
    later = Versioned(launcher, tmp_path / "later", edit)
    with held(later, *VGG):
        assert later.run(*VGG, *SHOW).stdout == "4,6,7\n"
        done = launcher.run(*VGG, *SHOW)
        assert (done.returncode, done.stdout) == (125, "")
        error, hint = done.stderr.splitlines()
        assert "it needs a gpulaunch that reads version 2 of the records" in error
        assert hint.endswith("uses a later gpulaunch: use that one, too")


def test_record_of_an_earlier_boot_is_dead(launcher: Launcher) -> None:
    """An unlocked record of a container holds nothing once the machine has been started anew."""
    path = launcher.state / "gpulaunch.lease.aaaaaaaaaaaa"
    with held(launcher, *DGX, "-n", "1"):
        (name,) = launcher.records()
        own = json.loads((launcher.state / name).read_text())
    record = own | {"id": "a" * 12, "engine": "nosuch"}
    path.write_text(json.dumps(record | {"boot_id": boot_id()}))
    assert launcher.run(*DGX, "-n", "8", *SHOW).returncode == 75
    path.write_text(json.dumps(record | {"boot_id": "0b47fc0e-another"}))
    assert launcher.run(*DGX, "-n", "8", *SHOW).returncode == 0
