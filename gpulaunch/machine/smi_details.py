"""What other outputs of nvidia-smi, pasted beside a matrix, tell about its GPUs."""
# pure: decides on plain values

import re
from itertools import pairwise

from gpulaunch.records import Record

_LISTED = re.compile(r"^[\s>#]*GPU ([0-9]{1,3}): (\S.*?)(?: \(UUID: [^)]*\))?\s*$", re.MULTILINE)
_TABLED = re.compile(
    r"^[\s>#]*\|\s+([0-9]{1,3})\s+(\S(?: ?\S)*)\s+(?:On|Off|N/A)?\s*\|\s*[0-9A-Fa-f]{8}:",
    re.MULTILINE,
)
_QUERIED = re.compile(
    r"^[\s>#]*GPU [0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]", re.MULTILINE
)
_NAME = re.compile(r"^[\s>#]*Product Name\s*: (\S.*?)\s*$", re.MULTILINE)
_GENERATION = re.compile(r"PCIe Generation\s+(?:[>#\s]*\S.*\n){0,4}?[>#\s]*Max\s+: ([1-9])\b")
_WIDTH = re.compile(r"Link Width\s+(?:[>#\s]*\S.*\n){0,4}?[>#\s]*Max\s+: ([0-9]{1,2})x")
_MEMORY = re.compile(r"FB Memory Usage\s+[>#\s]*Total\s+: ([0-9]+) MiB")


class CardFacts(Record):
    """Facts about one card beside its links; 0 and None are unknown.

    Attributes:
        model: product name.
        memory_bytes: total device memory.
        pcie_generation: highest PCIe generation of card and slot.
        pcie_width: highest number of lanes of card and slot.
        compute_capability: major and minor version, such as "7.0".
    """

    model: str = ""
    memory_bytes: int = 0
    pcie_generation: int = 0
    pcie_width: int = 0
    compute_capability: str | None = None


def read_details(text: str) -> dict[int, CardFacts]:
    """Return what `nvidia-smi -q`, else `-L`, else the table tells, by the GPU's number."""
    text = text.replace("\r", "")
    places = [match.start() for match in _QUERIED.finditer(text)]
    queried = [_read_queried(text[start:end]) for start, end in pairwise([*places, len(text)])]
    if any(facts.model for facts in queried):
        return dict(enumerate(queried))
    for pattern in (_LISTED, _TABLED):
        found = {
            int(number): CardFacts(name)
            for number, name in pattern.findall(text)
            if not name.endswith("...")  # older tables cut names off
        }
        if found:
            return found
    return {}


def _read_queried(section: str) -> CardFacts:
    def ask(pattern: "re.Pattern[str]") -> str:
        found = pattern.search(section)
        return found[1] if found else ""

    return CardFacts(
        ask(_NAME),
        int(ask(_MEMORY) or 0) << 20,
        int(ask(_GENERATION) or 0),
        int(ask(_WIDTH) or 0),
    )
