"""What a scan works on and what it returns."""
# pure: decides on plain values

from gpulaunch.profiles.confidence import Confidence
from gpulaunch.records import Record
from gpulaunch.typing import Literal

Traffic = Literal["gradients", "each", "data", "setup", "small"]
Amount = Literal["large", "small", "unknown"]

Doubt = tuple[Confidence, str]

C_ENDINGS = (".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp")
PYTHON_ENDINGS = (".py",)


class SourceFile(Record):
    """One file of a program.

    Attributes:
        path: what calls in it are shown with; its ending tells the language.
        text: what it holds, undecodable bytes as Python's surrogateescape carries them.
    """

    path: str
    text: str


class Interface(Record):
    """What is known of a function, class or method that makes GPUs communicate.

    Attributes:
        pattern: name of a built-in pattern; "" if it follows from the arguments that name peers.
        traffic: "gradients": much, in each iteration; "each": in each iteration, how much is not
            known; "data": what the caller hands over; "setup": once, before the work begins;
            "small": too little for links to matter.
        sure: how well the name alone tells the pattern.
        peers: positions of the arguments that name peers.
        keywords: names of the same, in Python.
        elements: position of the number of elements; -1: there is none, or it is an array.
    """

    pattern: str
    traffic: Traffic = "data"
    sure: Confidence = "certain"
    peers: tuple[int, ...] = ()
    keywords: tuple[str, ...] = ()
    elements: int = -1


class Use(Record):
    """A place in a file where an interface is used.

    Attributes:
        line: 1 or more.
        name: of the interface.
        interface: what is known of it.
        pattern: by its peers, or as the interface has it; "" if neither tells.
        repeats: whether it runs over and over; None: cannot be told.
        amount: how much it moves, as far as the arguments say.
    """

    line: int
    name: str
    interface: Interface
    pattern: str
    repeats: bool | None
    amount: Amount


class Reading(Record):
    """What one file says.

    Attributes:
        uses: in order of their lines.
        grid: pattern of a process grid that is set up here; "" if none is.
        doubts: why the pattern may be another: how sure one can be at most, and a sentence.
        unseen: why there may be calls that a scan does not see, likewise.
        modules: that are imported and of which nothing is known.
        headers: that are included, are not scanned, and of which nothing is known.
        warnings: one line each, with path and line: what could not be read.
    """

    uses: tuple[Use, ...] = ()
    grid: str = ""
    doubts: tuple[Doubt, ...] = ()
    unseen: tuple[Doubt, ...] = ()
    modules: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Call(Record):
    """A call that makes GPUs communicate.

    Attributes:
        file: path as it was given.
        line: where the name of the function stands, 1 or more.
        api: such as "ncclAllReduce" or "torch.distributed.all_reduce".
        pattern: name of a built-in pattern.
    """

    file: str
    line: int
    api: str
    pattern: str


class Scan(Record):
    """What source code tells of a job.

    Attributes:
        calls: by file as given, then by line.
        pattern: the smallest built-in pattern that has all edges of all calls.
        sensitive: whether fast links make the job faster; None if the source does not tell.
        confidence: "certain", "likely" or "guess", of the calls and the pattern.
        reasons: sentences that say why.
        warnings: one line each: files that could not be read or understood.
        files: how many were understood.
    """

    calls: tuple[Call, ...]
    pattern: str
    sensitive: bool | None
    confidence: Confidence
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    files: int
