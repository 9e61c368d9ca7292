"""Amounts of memory as people write them."""
# pure: decides on plain values

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_size(text: str) -> int:
    """Return the bytes in "8GiB", "8G" (both binary), "8GB" (decimal) or "1024", in any case.

    Raises:
        ValueError: the text is no positive amount of memory.
    """
    number = text.strip().upper()
    if number.endswith("B"):
        number = number[:-1]
        units = _UNITS if number.endswith("I") else _DECIMAL
        number = number.removesuffix("I")
    else:
        units = _UNITS
    unit = number[-1:] if number[-1:] in _DECIMAL else ""
    amount = float(number.removesuffix(unit)) * (units[unit] if unit else 1)
    if not 1 <= amount < 1 << 63:
        raise ValueError(text)
    return int(amount)


def format_size(size_bytes: int) -> str:
    """Return an amount in the largest binary unit that leaves a figure of at least 1."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
