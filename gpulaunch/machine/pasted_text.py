"""What people paste: the lines of a text without what mail, Markdown and comments put around them.

A text that cannot be read is named for what it is, with what would do instead.
"""
# pure: decides on plain values

import re
from collections.abc import Iterator

from gpulaunch.records import Record

WANTED = "save what 'nvidia-smi topo -m' prints on that machine"

# Newer drivers underline the header, even when they write into a pipe. Web forms drop the escape
# character before a colour code, and terminals and editors show it as two characters or a symbol.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|(?:\^\[|\u241b)?\[[0-9;]+m")
_QUOTE = re.compile(r"\s*(?:>\s?)+")
_MARKS = re.compile(r"\s*(?:(?:[>#;%]|//)+\s?)+")
_BARS = str.maketrans("│┃║", "|||")

_OTHER_TOOLS = {
    "rocm-smi": re.compile(
        r"ROCm System Management Interface|rocm-smi|\(Topology\)|ROCm SMI|Hops between two GPUs"
    ),
    "amd-smi": re.compile(r"amd-smi|(?:ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE|\bXGMI\b"),
    "xpu-smi": re.compile(r"xpu-smi|GPU [0-9]+/[0-9]+|\bXL[0-9*]+\b"),
    "npu-smi": re.compile(r"npu-smi|\bNPU[0-9]+\b.*\bNPU[0-9]+\b|\bHCCS\b"),
    "mthreads-gmi": re.compile(r"mthreads-gmi|\bMTLink\b|\bMT[0-9]+\b"),
    "mx-smi": re.compile(r"mx-smi|\bMETAX\b|\bMX[0-9]+\b"),
    "lstopo": re.compile(r"^Machine \(|NUMANode L#|Package L#", re.MULTILINE),
    "lspci": re.compile(r"^-\+?-?\[0000:|^[0-9a-f]{2}:[0-9a-f]{2}\.[0-9] ", re.MULTILINE),
}
_OTHER_MAKERS = {"rocm-smi": "AMD", "amd-smi": "AMD", "xpu-smi": "Intel", "npu-smi": "Huawei",
                 "mthreads-gmi": "Moore Threads", "mx-smi": "MetaX"}  # fmt: skip
_OTHER_OUTPUTS = {
    "an XML file": re.compile(r"\A\s*<(?:\?xml|system)\b"),
    "an error of nvidia-smi": re.compile(
        r"NVIDIA-SMI has failed|command line argument must be used|command not found"
        r"|No devices were found|Failed to initialize NVML"
        r"|couldn't communicate with the NVIDIA driver|not recognized as an internal"
    ),
    "the output of nvidia-smi nvlink": re.compile(r"Link [0-9]+: (?:[0-9.]+ GB/s|Remote Device)"),
    "the output of nvidia-smi -L": re.compile(r"^\s*GPU [0-9]+: .", re.MULTILINE),
    "the output of nvidia-smi -q": re.compile(r"NVSMI LOG|Product Name\s+:"),
    "the legend of a matrix without the matrix": re.compile(r"Connection traversing|X    = Self"),
    "the table of nvidia-smi without options": re.compile(r"\| NVIDIA-SMI [0-9]"),
}


class TextError(ValueError):
    """The text is no complete topology of one machine; the caller adds the file's name.

    Args:
        line: line number, from 1.
        message: the mistake in that line.
        hint: what to do about it, or None.
    """

    def __init__(self, line: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.hint = hint


class TextLine(Record):
    """One line that is not blank, with its number from 1."""

    number: int
    text: str


def readings(text: str) -> Iterator[list[TextLine]]:
    """Yield the lines of a text as they are, then without quotation, then without comment marks.

    In each, the cells of Markdown tables are separated by tabs. The first reading in which
    something is found counts: a comment above a matrix does not compete with it.
    """
    lines = [
        TextLine(number, _ESCAPES.sub("", line).replace("\xa0", " ").rstrip("\r"))
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1)
    ]
    for marks in (None, _QUOTE, _MARKS):
        bare = (TextLine(line.number, _without(marks, line.text)) for line in lines)
        yield [line for line in bare if line.text.strip()]


def _without(marks: "re.Pattern[str] | None", line: str) -> str:
    """Return a line without these marks at its start, and with tabs for a table's bars."""
    found = marks.match(line) if marks else None
    line = line[found.end() :] if found else line
    line = line.translate(_BARS)
    if "|" not in line:
        return line
    cells = [cell.strip(" \t*`") for cell in line.strip().split("|")]
    if line.strip().startswith("|"):
        cells = cells[1:]
    return "\t".join(cells).rstrip("\t")


def name_other_text(text: str) -> tuple[str, str] | None:
    """Return what a text that has no matrix of links is, and what would do; None if unknown."""
    for tool, pattern in _OTHER_TOOLS.items():
        if pattern.search(text):
            if tool in _OTHER_MAKERS:
                hint = f"gpulaunch knows NVIDIA's GPUs, and {tool} is about {_OTHER_MAKERS[tool]}'s"
                return f"the output of {tool}", hint
            return f"the output of {tool}", f"it has no NVLinks: {WANTED}"
    for output, pattern in _OTHER_OUTPUTS.items():
        if pattern.search(text):
            return output, WANTED
    return None
