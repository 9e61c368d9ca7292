"""What DCGM has sampled of a job: shares of SMs and memory, and busy time."""

import pytest

from gpulaunch.errors import UsageError
from gpulaunch.lab.measure.logs.activity import Activity, read_activity

DMON = """\
#Entity   GPUTL  SMACT  DRAMA
ID
GPU 0     92     0.640  0.630
GPU 0     N/A    N/A    N/A
GPU 0     90     0.660  0.610
GPU 1     0      0.001  nan
GPU 1     0      0.000  0.000
"""
TWO = "#Entity GPUTL SMACT DRAMA\nGPU 0 92 0.6 0.6\nGPU 1 10 0.1 0.1\n"
NONE = "a.txt: no samples of SM and DRAM activity under their names"
OLDER = "# Entity  SMACT  DRAMA\n      Id\n  GPU 0  0.500  0.250\n"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (DMON, Activity(65.0, 62.0, 91.0, 2)),
        (OLDER, Activity(50.0, 25.0, None, 1)),
    ],
    ids=["dcgmi dmon", "an older one, without busy time"],
)
def test_tables(text: str, want: Activity) -> None:
    """The means over all samples are in percent."""
    got = read_activity(text, "a.txt")
    assert (got.samples, got.busy_percentage) == (want.samples, want.busy_percentage)
    assert (got.sm_percentage, got.dram_percentage) == pytest.approx(
        (want.sm_percentage, want.dram_percentage)
    )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("\nID\n", NONE),
        ("#Entity SMACT GPUTL\nGPU 0 0.5 50\n", NONE),
        (TWO, "a.txt: 2 GPUs were at work in it, not 1"),
        ("#Entity SMACT DRAMA\nGPU 0 64 0.6\n", "a.txt:2: SMACT is 64, not 0 to 1"),
    ],
    ids=["no header", "no DRAM", "two GPUs", "percent where a part is meant"],
)
def test_wrong_tables(text: str, want: str) -> None:
    """A table without what is needed, or with figures out of range, is refused by line."""
    with pytest.raises(UsageError) as caught:
        read_activity(text, "a.txt")
    assert caught.value.message == want
