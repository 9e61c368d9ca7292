"""Records that a scan works on and returns."""
# pure: decides on plain values

from gpulaunch.profiles.confidence import Confidence
from gpulaunch.records import Record
from gpulaunch.typing import Literal

Traffic = Literal["gradients", "each", "data", "setup", "small"]
TRAFFICS: tuple[Traffic, ...] = ("gradients", "each", "data", "setup", "small")
Amount = Literal["large", "small", "unknown"]

Doubt = tuple[Confidence, str]

C_ENDINGS = (".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp")
PYTHON_ENDINGS = (".py",)


class SourceFile(Record):
    """A source file of a program.

    Attributes:
        path: path that calls are shown with; its ending tells the language.
        text: its contents, with undecodable bytes as surrogates (surrogateescape).
    """

    path: str
    text: str


class Interface(Record):
    """A function, class or method that makes GPUs communicate.

    Attributes:
        pattern: name of a built-in pattern; "" if it follows from the arguments that name peers.
        traffic: "gradients": much, in each iteration; "each": an unknown amount in each iteration;
            "data": what the caller passes; "setup": once, before the work begins; "small": too
            little for links to matter.
        sure: confidence of the pattern by the name alone.
        peers: positions of the arguments that name peers.
        keywords: keywords of the arguments that name peers, in Python.
        elements: position of the number of elements; -1: there is none, or it is an array.
        pair: whether the peers are the two ends of a copy.
        kernel: whether it counts only where it is launched as a kernel.
        fallback: whether it is left out of the pattern where the program has another wrapper.
    """

    pattern: str
    traffic: Traffic = "data"
    sure: Confidence = "certain"
    peers: tuple[int, ...] = ()
    keywords: tuple[str, ...] = ()
    elements: int = -1
    pair: bool = False
    fallback: bool = False
    kernel: bool = False


class Use(Record):
    """A place in a file where an interface is used.

    Attributes:
        line: line number, 1 or more.
        name: name of the interface.
        interface: what is known of it.
        pattern: pattern by its peers or of the interface; "" if neither is known.
        repeats: whether it runs over and over; None if unknown.
        amount: how much it moves, as far as the arguments show.
    """

    line: int
    name: str
    interface: Interface
    pattern: str
    repeats: bool | None
    amount: Amount


class FileFindings(Record):
    """The findings in one file.

    Attributes:
        uses: uses of interfaces in the order of their lines.
        grid: pattern of a process grid that is set up here; "" if there is none.
        words: number of words in the text that tell of pipelines, and of rings.
        doubts: reasons why the pattern may be another, each with the confidence that remains.
        unseen: reasons why there may be unseen calls, each with the confidence that remains.
        modules: imported modules of which nothing is known.
        headers: included headers that are not scanned and of which nothing is known.
        warnings: what could not be read, one line each, with path and line.
    """

    uses: tuple[Use, ...] = ()
    grid: str = ""
    words: tuple[int, int] = (0, 0)
    doubts: tuple[Doubt, ...] = ()
    unseen: tuple[Doubt, ...] = ()
    modules: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Call(Record):
    """A call that makes GPUs communicate.

    Attributes:
        file: path as it was given.
        line: line of the function's name, 1 or more.
        api: full name, such as "ncclAllReduce" or "torch.distributed.all_reduce".
        pattern: name of a built-in pattern.
    """

    file: str
    line: int
    api: str
    pattern: str


class Scan(Record):
    """The communication of a job, as its source code shows it.

    Attributes:
        calls: calls in the order of the files as given, then by line.
        pattern: the smallest built-in pattern that has all edges of all calls.
        sensitive: whether fast links make the job faster; None if the source does not show it.
        confidence: confidence of the calls and the pattern: "certain", "likely" or "guess".
        reasons: sentences that give the reasons.
        warnings: files that could not be read or understood, one line each.
        files: number of files that were understood.
    """

    calls: tuple[Call, ...]
    pattern: str
    sensitive: bool | None
    confidence: Confidence
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    files: int
