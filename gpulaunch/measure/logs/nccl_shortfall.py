"""What NCCL did with the links that a job's GPUs were chosen for: promise against reality."""
# pure: decides on plain values

from collections.abc import Sequence

from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.link import Link
from gpulaunch.measure.logs.nccl_log import NcclLog

HALF = 0.5
"""Share of the promised bandwidth under which a job is told of it. Our choice: for GPUs that NVLink
joins, the model is 1.86 times too high at worst (docs/explanation/bandwidth.md, published figures).
"""

_NVLINK = ("NVL", "NVB")  # NVB goes through the NVLinks of a third GPU
_STAGED = ("SHM", "NET")


def describe_shortfall(
    log: NcclLog, gpus: Sequence[Gpu], links: Sequence[Link], promised_gb_per_s: float | None
) -> str | None:
    """Return a line on what NCCL's log shows to be worse than promised; None if nothing is.

    Pairs with NVLinks whose data NCCL takes through the host's memory or the network are named.
    NCCL's own reckoning for its rings is held against the promise. Of a job that goes over several
    machines nothing is said.

    Args:
        log: log of this machine's ranks.
        gpus: the job's GPUs.
        links: all links of the machine.
        promised_gb_per_s: effective bandwidth of the placement; None if it is no all-reduce's.
    """
    hosts = {member.gpu[0] for member in log.members.values()}
    # Ranks beyond the job's GPUs are on other machines, whose network the rings cross.
    if len(hosts) > 1 or any(member.ranks > len(gpus) for member in log.members.values()):
        return None
    own = {gpu.index for gpu in gpus}
    wired = {
        (link.a, link.b): link for link in links if link.nvlink_count and {link.a, link.b} <= own
    }
    parts = []
    staged = _find_staged(log, gpus)
    missed = [(pair, staged[pair]) for pair in sorted(staged.keys() & wired.keys())]
    if missed:
        (pair, way), link = missed[0], wired[missed[0][0]]
        wires = f"{link.nvlink_count} NVLinks" if link.nvlink_count > 1 else "NVLink"
        left = len(missed) - 1
        more = f" and {left} more pair{'s' if left > 1 else ''}" if left else ""
        parts.append(
            f"NCCL used {way}, not the {wires} "
            f"({link.nvlink_gb_per_s:.4g} GB/s), between GPUs {pair[0]} and {pair[1]}{more}"
        )
    found = log.ring_graph
    whole = len(wired) == len(own) * (len(own) - 1) // 2 > 0
    if found and promised_gb_per_s and found.gb_per_s < HALF * promised_gb_per_s:
        parts.append(
            f"NCCL reckons with {found.gb_per_s:.3g} GB/s over {found.path}, "
            f"{promised_gb_per_s:.3g} GB/s were promised"
        )
    elif found and whole and found.path not in _NVLINK and not missed:
        parts.append(f"NCCL's rings go over {found.path}, though NVLink joins all of its GPUs")
    return "; ".join(parts) or None


def _find_staged(log: NcclLog, gpus: Sequence[Gpu]) -> dict[tuple[int, int], str]:
    """Return the transport of pairs of GPUs that NCCL does not join directly.

    A line names ranks without their communicator. Where a rank has different GPUs in different
    communicators, nothing can be said.
    """
    by_bus = gpus_by_bus(gpus)
    seats: dict[int, int | None] = {}
    for member in log.members.values():
        if member.ranks > 1:
            gpu = by_bus.get(member.bus) if member.bus is not None else None
            if seats.setdefault(member.rank, gpu) != gpu:
                return {}
    found = {}
    for one in log.connections:
        a, b = seats.get(one.a), seats.get(one.b)
        if one.way in _STAGED and a is not None and b is not None:
            found[min(a, b), max(a, b)] = one.way
    return found


def gpus_by_bus(gpus: Sequence[Gpu]) -> dict[int, int]:
    """Return NCCL's bus ids of GPUs, as far as their PCI addresses are known -> index."""
    return {bus: gpu.index for gpu in gpus if (bus := _bus_number(gpu)) is not None}


def _bus_number(gpu: Gpu) -> int | None:
    """Return a GPU's PCI address as NCCL's busId: the digits of domain, bus, device, function."""
    if not gpu.pci_address:
        return None
    domain, bus, device = gpu.pci_address.split(":")
    return int(f"{domain}{bus}{device.partition('.')[0]}0", 16)
