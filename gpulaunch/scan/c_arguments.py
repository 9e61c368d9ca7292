"""What the arguments of a call in C tell: amounts, and what is handed out at the start."""
# pure: decides on plain values

import re
from collections.abc import Sequence
from math import prod

SMALL_BYTES = 100_000
"""Calls that move less than this gain nothing from fast links (mapa-sc21 2.3, Figure 2a)."""

_WIDEST_BYTES = 8  # of one element
_SIZES = {
    1: "char bool byte int8_t uint8_t",
    2: "short half __half __nv_bfloat16 int16_t uint16_t",
    4: "int unsigned float int32_t uint32_t",
    8: "long double size_t ssize_t int64_t uint64_t uintptr_t float2 cuComplex cufftComplex",
    16: "float4 double2 cuDoubleComplex cufftDoubleComplex",
}
_BYTES = {name: size for size, listed in _SIZES.items() for name in listed.split()}
_SIZEOF = re.compile(
    r"\bsizeof\s*\(\s*(?:(?:std::|const|unsigned|signed|long(?=\s+\w))\s*)*(\w+)\s*\)"
)
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)[uUlLzZ]*")
_HOST = re.compile(r"host_?name|host_?hash", re.IGNORECASE)
_ID = re.compile(
    r"nccl_?(?:unique_?|comm_?)?id\b|&\s*(?:[\w.>-]*[._>])?(?:nccl_?)?(?:unique_?|comm_?)?id\b",
    re.IGNORECASE,
)
_HANDS_OUT = re.compile(r"bcast|broadcast|send|recv", re.IGNORECASE)


def sets_up(name: str, given: Sequence[str]) -> bool:
    """Return whether a call hands out the id of a communicator, or names of hosts."""
    ids = _HANDS_OUT.search(name) and any(map(_ID.search, given))
    return bool(ids) or any(map(_HOST.search, given))


def is_small(number: int, *, of_bytes: bool) -> bool:
    """Return whether a number of elements, or of bytes, is too little for links to matter."""
    return number * (1 if of_bytes else _WIDEST_BYTES) < SMALL_BYTES


def product_of(text: str) -> int | None:
    """Return the value of a product of numbers and sizes; None for anything else.

    `2`, `(4)`, `1 << 20` and `32 * 1024 * sizeof(float)` have one, `sizeof(table)` has none.
    """
    text = _SIZEOF.sub(lambda found: str(_BYTES.get(found[1], found[0])), text)
    text = re.sub(r"[()\s]", "", text)
    base, _, shift = text.partition("<<")
    if shift and _integer(base) is not None and 0 <= (_integer(shift) or 64) < 64:
        return (_integer(base) or 0) << (_integer(shift) or 0)
    found = [_integer(part) for part in text.split("*")]
    return None if None in found else prod(number for number in found if number is not None)


def _integer(text: str) -> int | None:
    match = _NUMBER.fullmatch(text)
    return int(match[1][:20], 16 if match[1][:2] in ("0x", "0X") else 10) if match else None
