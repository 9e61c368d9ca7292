"""Lists of CPUs as Linux writes them."""
# pure: decides on plain values

MAX_CPUS = 1 << 16
"""Limit of a CPU's number, above that of any kernel: a typing mistake must not fill the memory."""

_MAX_CHARACTERS = 4096


def parse_cpuset(text: str) -> frozenset[int]:
    """Read a Linux CPU list such as "0-19,40-59"; an empty text is the empty set.

    Raises:
        ValueError: the text is no CPU list.
    """
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(text[:_MAX_CHARACTERS])
    cpus: set[int] = set()
    for part in text.split(","):
        if part.strip():
            first, dash, last = part.partition("-")
            low, high = int(first), int(last if dash else first)
            if not low <= high < MAX_CPUS:
                raise ValueError(text)
            cpus.update(range(low, high + 1))
    return frozenset(cpus)


def format_cpuset(cpus: frozenset[int]) -> str:
    """Write a set of CPUs as Linux does: the inverse of parse_cpuset."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
