"""What DCGM and Nsight Systems have sampled of a job: shares of SMs and memory, and busy time."""

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
NSYS = """\
timestamp,GR Active [Throughput %],SMs Active [Throughput %],DRAM Read Bandwidth [Throughput %],\
DRAM Write Bandwidth [Throughput %]
1,90,60,30,20
2,94,70,40,10
"""
FIELDS = "DCGM_FI_PROF_SM_ACTIVE,DCGM_FI_PROF_DRAM_ACTIVE\n0.5,0.25\n"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (DMON, Activity(65.0, 62.0, 91.0, 2)),
        (NSYS, Activity(65.0, 50.0, 92.0, 2)),  # reads and writes are added up
        (FIELDS, Activity(50.0, 25.0, None, 1)),
    ],
    ids=["dcgmi dmon", "Nsight Systems", "fields of DCGM"],
)
def test_tables(text: str, want: Activity) -> None:
    """The means over all samples are in percent, by whatever name the columns go."""
    got = read_activity(text, "a.csv")
    assert (got.samples, got.busy_percentage) == (want.samples, want.busy_percentage)
    assert (got.sm_percentage, got.dram_percentage) == pytest.approx(
        (want.sm_percentage, want.dram_percentage)
    )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "a.csv: no samples of SM and DRAM activity under their names"),
        ("SMACT,GPUTL\n0.5,50\n", "a.csv: no samples of SM and DRAM activity under their names"),
        (TWO, "a.csv: 2 GPUs were at work in it, not 1"),
        ("SMACT,DRAMA\n64,0.6\n", "a.csv:2: SMACT is 64, not 0 to 1"),
    ],
    ids=["empty", "no DRAM", "two GPUs", "percent where a part is meant"],
)
def test_wrong_tables(text: str, want: str) -> None:
    """A table without what is needed, or with figures out of range, is refused by line."""
    with pytest.raises(UsageError) as caught:
        read_activity(text, "a.csv")
    assert caught.value.message == want
