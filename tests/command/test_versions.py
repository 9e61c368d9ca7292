"""Records of other versions of gpulaunch in one table; test_model.py has those that hold GPUs."""

import json
import os

import pytest
from conftest import DGX, SHOW, VGG, Launcher, held
from test_table import put

from gpulaunch.process.system import boot_id

ID = "aaaaaaaaaaaa"
LEASE, TICKET = f"gpulaunch.lease.{ID}", f"gpulaunch.ticket.00000001.{ID}"


@pytest.fixture
def own(launcher: Launcher) -> dict:
    """Return the document of a lease of one GPU, under the id of LEASE and TICKET."""
    with held(launcher, *DGX, "-n", "1"):
        (name,) = launcher.records()
        return json.loads((launcher.state / name).read_text()) | {"id": ID}


def test_ticket_of_a_later_version_keeps_its_place(launcher: Launcher, own: dict) -> None:
    """A ticket with keys and forms that nobody knows yet bars those that come later."""
    later = own | {"number": 1, "gpus": 8, "uuids": [f"GPU-dgx1-v100-{gpu}" for gpu in range(8)]}
    later |= {"mood": [1, {"a": None}], "launcher": {"pidfd": 7}}
    descriptor = put(launcher, TICKET, json.dumps(later).encode(), live=True)
    done = launcher.run(*VGG, *SHOW)
    assert (done.returncode, "an earlier request for 8 GPUs waits" in done.stderr) == (75, True)
    (shown,) = json.loads(launcher.run("status", *DGX, "--json").stdout)["queue"]
    assert (shown["id"], shown["gpus"]) == (ID, 8)
    os.close(descriptor)
    assert launcher.run(*VGG, *SHOW).returncode == 0


def test_version_that_is_too_old_says_so(launcher: Launcher, own: dict) -> None:
    """A record that needs a later reader stops a launch, which never advises to end that job."""
    descriptor = put(launcher, LEASE, json.dumps(own | {"version": 2}).encode(), live=True)
    done = launcher.run(*VGG, *SHOW)
    os.close(descriptor)
    assert (done.returncode, done.stdout) == (125, "")
    error, hint = done.stderr.splitlines()
    assert "it needs a gpulaunch that reads version 2 of the records" in error
    assert hint.endswith("uses a later gpulaunch: use that one, too")


def test_record_of_an_earlier_boot_is_dead(launcher: Launcher, own: dict) -> None:
    """An unlocked record of a container holds nothing once the machine has been started anew."""
    path = launcher.state / LEASE
    for boot, status in ((boot_id(), 75), ("0b47fc0e-another", 0)):
        path.write_text(json.dumps(own | {"engine": "nosuch", "boot_id": boot}))
        assert launcher.run(*DGX, "-n", "8", *SHOW).returncode == status
