"""What is predicted for two jobs that were measured on an H100: docs/results/sharing-measured.md.

The figures are that page's. Where the prediction is wrong, these tests say by how much.
"""

from collections.abc import Sequence

import pytest

from gpulaunch.profiles.demand import CurvePoint, Demand
from gpulaunch.sharing.capacity import Capacity
from gpulaunch.sharing.partition import partition
from gpulaunch.sharing.prediction import predict

PERCENTAGES = (10, 20, 30, 40, 50, 60, 80, 100)
GB_PER_S = (1424, 2828, 3071, 3044, 3037, 3034, 3023, 3012)
TFLOP_PER_S = (89.07, 192.6, 280.3, 370.7, 442.7, 486.6, 603.1, 675.5)
H100 = Capacity(80 << 30, most_clients=48, sm_count=132, power_limit_w=700)


def job(name: str, throughputs: Sequence[float], bandwidth: float, power_w: float | None) -> Demand:
    """Return a job that never pauses."""
    curve = tuple(map(CurvePoint, PERCENTAGES, throughputs))
    return Demand(name, 100, bandwidth, 3 << 30, power_w=power_w, curve=curve)


MADE_UP = [job("memory", GB_PER_S, 50, None), job("compute", TFLOP_PER_S, 50, None)]
"""As the test on the GPU says."""

MEASURED = [job("memory", GB_PER_S, 89, 400), job("compute", TFLOP_PER_S, 26, 702)]
"""With the bandwidth and power that `gpulaunch profile` measured."""


@pytest.mark.parametrize(
    ("caps", "stp", "want"),
    [
        ((100, 100), 1.080, [53, 33]),
        ((50, 50), 1.109, [50, 33]),
        ((20, 80), 1.350, [36, 2]),
    ],
)
def test_error(caps: tuple[int, int], stp: float, want: list[int]) -> None:
    """Predictions exceed what the GPU did by so many percent: by made-up and by measured figures.

    Power and bandwidth make the prediction for the best caps a good one, and not the others.
    """
    got = [round(100 * (predict(jobs, H100, caps).stp / stp - 1)) for jobs in (MADE_UP, MEASURED)]
    assert got == want


def test_caps() -> None:
    """The test's caps come from what it makes up; what was measured gives others, not tried yet."""
    found = [partition(jobs, H100) for jobs in (MADE_UP, MEASURED)]
    got = [(one.sm_percentages, round(one.gain, 2)) for one in found]
    assert got == [((20, 80), 1.83), ((58, 42), 1.51)]
