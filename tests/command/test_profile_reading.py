"""`gpulaunch profile scan` of source and of NCCL's log."""

from pathlib import Path

import pytest
from conftest import Launcher
from toml_parser import tomllib

DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(make())\n"
RANK = "host:{pid}:{pid} [{rank}] NCCL INFO "
INIT = RANK + (
    "comm 0x{pid} rank {rank} nranks {ranks} cudaDev {rank} busId {rank}000 commId 0x{group} "
    "- Init COMPLETE\n"
)
CALL = RANK + (
    "AllReduce: opCount {n:x} sendbuff 0x1 recvbuff 0x2 count {count} datatype 7 op 0 root 0 comm "
    "0x{pid} "
    "[nranks={ranks}] stream 0x3\n"
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with a file of each kind."""
    (tmp_path / "train.py").write_text(DDP)
    ranks = [{"pid": 10 + rank, "rank": rank, "ranks": 4, "group": "a"} for rank in range(4)]
    lines = [INIT.format(**rank) for rank in ranks]
    lines += [CALL.format(**rank, n=n, count=2_560_000) for n in range(200) for rank in ranks]
    (tmp_path / "nccl.log").write_text("".join(lines))
    return tmp_path


def read(path: Path) -> dict:
    return tomllib.loads(path.read_text())


@pytest.mark.parametrize(
    ("options", "section", "want"),
    [
        (("train.py",), "communication", {"pattern": "ring", "bandwidth_sensitive": True}),
        (("--nccl-log", "nccl.log"), "communication", {"pattern": "ring"}),
    ],
)
def test_into_a_profile(
    launcher: Launcher, files: Path, options: tuple[str, ...], section: str, want: dict
) -> None:
    """What was read makes a new profile or changes its own section of one; both are valid."""
    done = launcher.run("profile", "scan", *options, "-o", "new.toml", cwd=files)
    assert (done.returncode, done.stderr) == (0, "gpulaunch: info: written to new.toml\n")
    (files / "old.toml").write_text('name = "old" # mine\n\n[sharing]\nshare = false\n')
    quiet = launcher.run("profile", "scan", *options, "-o", "old.toml", "-q", cwd=files)
    assert quiet.stderr == ""
    old = (files / "old.toml").read_text()
    assert old.startswith('name = "old" # mine\n\n[sharing]\nshare = false\n')
    for name in ("new.toml", "old.toml"):
        found = read(files / name)[section]
        assert {key: found[key] for key in want} == want
        assert launcher.run("profile", "show", name, cwd=files).returncode == 0
        dry = ("-p", f"./{name}", "-n", "2", "--topology", "dgx1-v100", "--dry-run", "--", "true")
        assert launcher.run(*dry, cwd=files).returncode == 0


def test_a_log_without_calls(launcher: Launcher, tmp_path: Path) -> None:
    """A log without calls says who is in which communicator, and makes no profile."""
    lost = [{"pid": 10, "rank": 0, "ranks": ranks, "group": "a"} for ranks in (2, 4)]
    (tmp_path / "nccl.log").write_text("".join(INIT.format(**one) for one in lost))
    done = launcher.run("profile", "scan", "--nccl-log", "nccl.log", "-o", "y.toml", cwd=tmp_path)
    assert (done.returncode, (tmp_path / "y.toml").exists()) == (0, False)
    assert "nothing for a profile was found, and nothing is written to y.toml" in done.stderr


def test_a_guess_takes_no_measurement_away(launcher: Launcher, files: Path) -> None:
    """A scan of the source replaces no counters and runs that were measured, and says so."""
    (files / "job.toml").write_text(
        'name = "job"\n[communication]\npattern = "chain"\nedges = [[0, 1, 5.0]]\n'
        'confidence = "certain"\nsource = "counted"\nbandwidth_sensitive = false\n'
        '[sensitivity]\nslowdown_percentage = 1\nsource = "runs"\n'
    )
    done = launcher.run("profile", "scan", "train.py", "-o", "job.toml", cwd=files)
    found = read(files / "job.toml")["communication"]
    want = {"pattern": "chain", "edges": [[0, 1, 5.0]], "bandwidth_sensitive": False}
    assert {key: found[key] for key in want} == want
    assert "job.toml: what was measured of its communication stays" in done.stderr
