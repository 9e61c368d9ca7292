"""What the GPUs that stay free are worth: the bandwidth that jobs to come can expect of them."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.decide.placement.effective import effective_bandwidth
from gpulaunch.decide.placement.fabric import MAPPED_GPUS, Fabric
from gpulaunch.errors import UsageError, quoted
from gpulaunch.records import Record


class JobSizes(Record):
    """The sizes of the jobs that a machine gets.

    Attributes:
        name: where they come from, for messages.
        shares: number of GPUs, and the share of the jobs that ask for so many; they sum to 1.
    """

    name: str
    shares: tuple[tuple[int, float], ...]

    @property
    def table(self) -> str:
        """Name of a machine's table for them: two settings may call different sizes the same."""
        return f"expected {self.shares}"


JOB_SIZES = {
    "philly": JobSizes("philly", ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.05))),
    "helios": JobSizes("helios", ((1, 0.578), (2, 0.244), (4, 0.103), (8, 0.043), (16, 0.018))),
    "pai": JobSizes("pai", ((1, 0.982), (2, 0.004), (4, 0.004), (8, 0.010))),
}
"""Published sizes by name.

philly: Microsoft's, as Gavel (OSDI'20) generates them. helios: SenseTime's, with the published mean
of 3.7 GPUs, falling geometrically over powers of two, which is assumed. pai: jobs of Alibaba's with
whole GPUs (ATC'23, FGD, Table 1).
"""

DEFAULT_SIZES = JOB_SIZES["philly"]

FROM_HISTORY = JobSizes("history", ())
"""Stands for the sizes of what ran on the machine, which are read when they are needed."""

_MOST_GPUS = 1024


def parse_job_sizes(text: str) -> JobSizes:
    """Return published job sizes by name, FROM_HISTORY, or sizes such as "1:70,2:10,4:15,8:5".

    Raises:
        UsageError: it is neither.
    """
    if text in JOB_SIZES:
        return JOB_SIZES[text]
    if text == FROM_HISTORY.name:
        return FROM_HISTORY
    try:
        parts = [part.split(":") for part in text.split(",")]
        shares = {int(gpus): float(share) for gpus, share in parts}
        total = sum(shares.values())
        right = len(shares) == len(parts) and all(1 <= gpus <= _MOST_GPUS for gpus in shares)
        if right and 0 < total < float("inf") and min(shares.values()) >= 0:
            return JobSizes(text, tuple((gpus, shares[gpus] / total) for gpus in sorted(shares)))
    except ValueError:
        pass
    raise UsageError(
        f"{quoted(text)} is no list of numbers of GPUs with shares such as 1:70,2:10,4:15,8:5",
        f"or one of {', '.join((*JOB_SIZES, FROM_HISTORY.name))}",
    )


def expected_of(fabric: Fabric, sizes: JobSizes) -> Sequence[int] | None:
    """Return by mask the bandwidth that the next job can expect of free GPUs, 1e-6 GB/s.

    Returns:
        None where it is not known: on machines of more than MAPPED_GPUS GPUs, or where all GPUs
            are linked alike.
    """
    if not fabric.has_tables or len(fabric.gpus) > MAPPED_GPUS:
        return None
    table = fabric.tables.get(sizes.table)
    if table is None:
        table = fabric.tables[sizes.table] = expected_bandwidths(fabric, sizes)
    return table


def expected_bandwidths(fabric: Fabric, sizes: JobSizes) -> list[int]:
    """Return by mask the bandwidth that the next job can expect of free GPUs, 1e-6 GB/s.

    That is the mean, over the sizes of jobs, of the most effective bandwidth that so many of the
    GPUs have, by the model `cut`; 0 for a job that does not fit, or that has one GPU. Source: ours.

    Cost: 5 ms for 8 GPUs.
    """
    bits = fabric.bit
    expected = [0.0] * (1 << len(bits))
    for size, share in sizes.shares:
        if not 2 <= size <= len(bits):
            continue
        most = [0] * len(expected)
        for mask in range(len(most)):
            free = mask.bit_count()
            if free == size:
                most[mask] = effective_bandwidth(fabric, "cut", mask)
            elif free > size:
                most[mask] = max([most[mask ^ bit] for bit in bits if mask & bit])
        expected = [known + share * more for known, more in zip(expected, most, strict=True)]
    return [round(value) for value in expected]
