"""What the GPUs that stay free are worth: the bandwidth that jobs to come can expect of them."""
# pure: decides on plain values

from collections.abc import Callable, Sequence

from gpulaunch.decide.placement.effective import cut
from gpulaunch.decide.placement.fabric import MAPPED_GPUS, Fabric
from gpulaunch.records import Record


SENSITIVE = 0.5
"""Share of the jobs of several GPUs that are taken to be bandwidth-sensitive; assumed."""


class JobSizes(Record):
    """The sizes of the jobs that a machine gets.

    Attributes:
        name: where they come from, for messages.
        shares: number of GPUs, and the share of the jobs that ask for so many; they sum to 1.
    """

    name: str
    shares: tuple[tuple[int, float], ...]


JOB_SIZES = {
    "philly": JobSizes("philly", ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.05))),
}
"""Published sizes by name: those of Microsoft's Philly cluster as Gavel (OSDI'20) generates them."""

DEFAULT_SIZES = JOB_SIZES["philly"]


def expected_of(fabric: Fabric, sizes: JobSizes) -> Callable[[int], int] | None:
    """Return what tells the bandwidth that jobs to come can expect of free GPUs, 1e-6 GB/s.

    Returns:
        None for a machine of more than MAPPED_GPUS GPUs, or of GPUs that are all linked alike.
    """
    if len(fabric.gpus) > MAPPED_GPUS or len(fabric.kinds) <= 2:
        return None
    if sizes.name not in fabric.tables:
        fabric.tables[sizes.name] = expected_bandwidths(fabric, sizes)
    return fabric.tables[sizes.name].__getitem__


def expected_bandwidths(fabric: Fabric, sizes: JobSizes) -> list[int]:
    """Return by mask the sum of bandwidths that jobs to come can expect of free GPUs, 1e-6 GB/s.

    Jobs come one after the other, of sizes that are drawn from these, until one does not fit, and
    none ends meanwhile. A sensitive job gets the GPUs with the most bandwidth, and of these such as
    leave the most to those after it; any other job such as leave the most. The bandwidths of the
    sensitive ones count. Source: ours.

    Cost: 3 to the power of the number of GPUs: 10 ms for 8.
    """
    count = len(fabric.gpus)
    shares = dict(sizes.shares)
    speed, size = [0] * (1 << count), [mask.bit_count() for mask in range(1 << count)]
    for mask in range(1 << count):
        if size[mask] > 1 and size[mask] in shares:
            known = fabric.effective.setdefault("cut", {})
            if mask not in known:
                known[mask] = cut(fabric, fabric.positions(mask))
            speed[mask] = known[mask]
    worth = [0] * (1 << count)
    for free in range(1, 1 << count):
        sparing: dict[int, int] = {}
        serving: dict[int, tuple[int, int]] = {}
        taken = free
        while taken:
            n = size[taken]
            if n in shares:
                rest = worth[free ^ taken]
                sparing[n] = max(sparing.get(n, 0), rest)
                serving[n] = max(serving.get(n, (0, 0)), (speed[taken], rest))
            taken = taken - 1 & free
        worth[free] = round(
            sum(
                shares[n] * (SENSITIVE * sum(serving[n]) + (1 - SENSITIVE) * sparing[n])
                for n in sparing
            )
        )
    return worth
