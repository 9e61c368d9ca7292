"""Whether a pattern fits a set of GPUs so that no edge is slower than asked."""
# pure: decides on plain values

from collections.abc import Iterator

from gpulaunch.decide.placement.traffic import Traffic

_ENDLESS = 1 << 60


class Embedding:
    """A pattern over those links that are fast enough.

    Args:
        traffic: the pattern over the links, with speeds.
        floor: the least speed of an edge, 1e-6 GB/s.

    Attributes:
        steps: partial mappings that were tried.
    """

    def __init__(self, traffic: Traffic, floor: int) -> None:
        fabric = traffic.fabric
        self.steps = 0
        self._traffic = traffic.connected
        self._ranks = traffic.connected_order
        self._last = 0
        # of each share of weight and each GPU: the GPUs that an edge of that weight may lead to
        self._fast = [
            fabric.reached([speed >= floor for speed in speeds])
            for speeds in self._traffic.speed or ()
        ]
        self._bits = len(fabric.bit)
        self._fewest = min(self._traffic.degree)
        self._where = [0] * self._traffic.ranks

    def fits(self, mask: int, effort: int) -> bool:
        """Return whether the ranks can be put on these GPUs, or on as many of them as there are.

        Args:
            mask: the GPUs.
            effort: partial mappings to try before it counts as not fitting.
        """
        self._last = self.steps + effort
        fast, fewest = self._fast[-1], self._fewest
        usable, left = 0, mask
        while left:
            bit = left & -left
            left ^= bit
            if (fast[self._bits - bit.bit_length()] & mask).bit_count() >= fewest:
                usable |= bit
        return any(self._put(0, part, part) for part in self._parts(usable))

    def _parts(self, mask: int) -> Iterator[int]:
        """Yield the parts of a set that fast links connect, those with enough GPUs."""
        fast = self._fast[-1]
        while mask:
            part, new = 0, mask & -mask
            while new:
                part |= new
                reached = 0
                while new:
                    bit = new & -new
                    new ^= bit
                    reached |= fast[self._bits - bit.bit_length()]
                new = reached & mask & ~part
            mask ^= part
            if part.bit_count() >= self._traffic.ranks:
                yield part

    def _put(self, rank: int, free: int, mask: int) -> bool:
        traffic, fast = self._traffic, self._fast
        if rank == traffic.ranks:
            return True
        self.steps += 1
        allowed = free
        for other, share in traffic.earlier[rank]:
            allowed &= fast[share][self._where[other]]
        degree = traffic.degree[rank]
        while allowed:
            bit = allowed & -allowed
            allowed ^= bit
            gpu = self._bits - bit.bit_length()
            if (fast[-1][gpu] & mask).bit_count() >= degree:
                self._where[rank] = gpu
                if self._put(rank + 1, free ^ bit, mask):
                    return True
                if self.steps > self._last:
                    return False
                if not rank and traffic.turns:  # then no other rank can be there
                    free ^= bit
                    if free.bit_count() < traffic.ranks:
                        return False
        return False

    def find(self, mask: int) -> list[int]:
        """Return a mapping to GPUs that are known to fit, as positions by rank."""
        self.fits(mask, _ENDLESS)
        where = dict(zip(self._ranks, self._where, strict=True))
        return [where[rank] for rank in range(len(where))]
