"""The scan of a program's source code for calls that make GPUs communicate."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpulaunch.errors import UsageError, printable
from gpulaunch.lab.scan.c_reader import read_c
from gpulaunch.lab.scan.interfaces import Findings, Use
from gpulaunch.lab.scan.python_reader import read_python
from gpulaunch.profiles.pattern import CONFIDENCES, Confidence, union
from gpulaunch.records import Record, replace

MAX_FILE_BYTES = 4 << 20
_ENDINGS = (".py", ".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp")
_LEFT_OUT = {"build", "node_modules", "site-packages", "dist-packages", "__pycache__"}
_ASSUMED = "all_to_all"  # pattern of a job of which nothing is known (mapa-sc21 3.1)
_MOST_NAMED = 5


class Scan(Record):
    """The communication of a job, as its source code shows it.

    Attributes:
        calls: calls in the order of the files as given, then by line.
        pattern: the smallest built-in pattern that has all edges of all calls.
        sensitive: whether fast links make the job faster; None if the source does not show it.
        confidence: confidence of the calls and the pattern: "certain", "likely" or "guess".
        warnings: files that could not be read or understood, one line each.
        files: number of files that were understood.
    """

    calls: tuple[Use, ...]
    pattern: str
    sensitive: bool | None
    confidence: Confidence
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    files: int


def read_sources(path: str) -> tuple[dict[str, str], list[str]]:
    """Read a source file, or all source files below a folder.

    Hidden folders, build folders, installed packages, links to folders and files of other languages
    are left out.

    Returns:
        The texts by path, with undecodable bytes as surrogates (surrogateescape), and a line for
        each file or folder that was left out although it may matter.

    Raises:
        UsageError: the file cannot be read, or there is no source file.
    """
    files: dict[str, str] = {}
    unread: list[str] = []
    known = " ".join(_ENDINGS)
    alone = not os.path.isdir(path)
    if alone and not path.lower().endswith(_ENDINGS) and os.path.exists(path):
        raise UsageError(f"{printable(path)}: no source file: known are {known}")
    for one in [path] if alone else _find_below(path, unread):
        try:
            files[one] = _read_text(one)
        except OSError as problem:
            unread.append(_complaint(one, problem))
    if alone and unread:
        raise UsageError(unread[0])
    if not files and not unread:
        raise UsageError(f"{printable(path)}: no source file below it: known are {known}")
    return files, unread


def _find_below(folder: str, unread: list[str]) -> Iterator[str]:
    """Yield the paths of source files below a folder, in order."""

    def complain(problem: OSError) -> None:
        unread.append(_complaint(str(problem.filename), problem))

    for directory, folders, names in os.walk(folder, onerror=complain):
        folders[:] = sorted(x for x in folders if x not in _LEFT_OUT and not x.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(_ENDINGS):
                yield os.path.join(directory, name)


def _read_text(path: str) -> str:
    """Return the text of a regular file, with undecodable bytes as surrogates."""
    # O_NONBLOCK: opening a pipe or a device of that name must not block the scan.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("no regular file")
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise OSError(f"larger than {MAX_FILE_BYTES >> 20} MiB")
    return raw.decode("utf-8", "surrogateescape").removeprefix("\ufeff")


def _complaint(path: str, problem: OSError) -> str:
    reason = os.strerror(problem.errno).lower() if problem.errno else str(problem)
    return f"{printable(path)}: {reason}"


def scan_sources(files: Mapping[str, str], unread: Sequence[str] = ()) -> Scan:
    """Find the calls that make GPUs communicate, without running or compiling anything.

    Python is read as a syntax tree, C, C++ and CUDA by tree-sitter; an import, a comment, a string
    or a declaration is no call, and values are not followed through variables. No contents of a
    file make this fail: what cannot be understood becomes a warning.

    Args:
        files: texts of one program by path; the paths' endings tell the language.
        unread: warnings about files that could not be read, which lower the confidence.

    Raises:
        UsageError: all files are C, C++ or CUDA, one has a word that matters, and tree-sitter is
            not installed. Beside Python such a file becomes a warning.

    Source: mapa-sc21 3.1: communication patterns by identifying the calls of NCCL, cudaMemcpyPeer
        and MPI, their graphs combined; 2.3 for sensitivity.

    Example:
        >>> program = {"a.py": "import torch.distributed as d; d.all_reduce(x)"}
        >>> scan_sources(program).calls[0].api
        'torch.distributed.all_reduce'
    """
    found = _read_all(files)
    order = {path: at for at, path in enumerate(files)}
    uses = sorted(found.uses.values(), key=lambda use: (order[use.file], use.line, use.api))
    if any(use.api.endswith(".P2POp") for use in uses):  # whose operations it starts
        uses = [use for use in uses if not use.api.endswith(".batch_isend_irecv")]
    calls = [replace(use, pattern=use.pattern or _ASSUMED) for use in uses]
    counted = _keep_what_counts(calls)
    doubts: list[tuple[Confidence, str]] = []
    for use in uses:
        if not use.interface.pattern:
            if use.pattern:
                doubts.append(("likely", f"{use.api}: pattern by the peer that it names"))
            else:
                doubts.append(("guess", f"{use.api}: its peers are not known"))
    doubts += [("likely", reason) for reason in (found.doubts if uses else found.unseen)]
    if found.named:
        why = "named, but whether it is called, and of what object, does not show"
        doubts.append(("likely", f"{why}: {_join(found.named)}"))
    warnings = (*unread, *found.warnings)
    understood = len(files) - len(found.warnings)
    if warnings:
        many = f"{len(warnings)} files are" if len(warnings) > 1 else "1 file is"
        doubts.append(("likely" if uses else "guess", f"{many} not understood"))
    if found.unknown:
        verb = "do" if len(found.unknown) > 1 else "does"
        doubts.append(("likely", f"what {_join(found.unknown)} {verb} is not known"))
    left = sorted({use.api for use in calls} - {use.api for use in counted})
    if left:
        doubts.append(("likely", f"little, or at the start, so left out: {_join(left)}"))
    # A conclusion is as sure as its weakest ground.
    confidence = max((sure for sure, _ in doubts), key=CONFIDENCES.index, default=CONFIDENCES[0])
    sensitive, why = _judge_sensitivity(calls)
    # What is not known may move much data: that nothing else does is no reason to say no.
    if sensitive is False and (found.unknown or found.named or found.unseen or warnings):
        sensitive = None
        why += "; beside what is not known, whether links matter is left open"
    reasons = dict.fromkeys([why, *(reason for _, reason in doubts)])
    pattern = union(use.pattern for use in counted)
    return Scan(tuple(calls), pattern, sensitive, confidence, tuple(reasons), warnings, understood)


def _read_all(files: Mapping[str, str]) -> Findings:
    scanned = {part for path in files for part in path.removesuffix(".py").split("/")}
    if len(files) == 1:  # the rest of the package around a single file is not scanned
        scanned = {path.removesuffix(".py").rpartition("/")[2] for path in files}
    found = Findings()
    has_python = any(path.lower().endswith(".py") for path in files)
    for path, text in files.items():
        if path.lower().endswith(".py"):
            read_python(path, text, scanned, found)
            continue
        try:
            read_c(path, text, scanned, found)
        except UsageError as problem:
            if not has_python:
                raise
            found.warnings.append(f"{path}: {problem}")
    return found


def _keep_what_counts(found: Sequence[Use]) -> Sequence[Use]:
    """Return the calls that make the pattern, or all if none remained.

    What moves little, or once at the start, is left out beside calls that move more, and so is a
    wrapper for the case that another one does not apply.
    """
    if any(x.interface.traffic == "gradients" and not x.interface.fallback for x in found):
        found = [use for use in found if not use.interface.fallback]
    working = [use for use in found if _matters(use) is not False]
    return working or [use for use in found if not _hands_out(use)] or found


def _hands_out(use: Use) -> bool:
    """Return whether a call hands out data, as programs do once at the start."""
    name = use.api.lower()
    return use.interface.traffic == "setup" or "bcast" in name or "broadcast" in name


def _judge_sensitivity(uses: Sequence[Use]) -> tuple[bool | None, str]:
    """Return whether links matter, and why: they do if much data is moved, and often.

    Source: mapa-sc21 2.3, Figures 2a and 5: transfers under about 10^5 bytes do not gain from fast
        links, and neither do too few of them.
    """
    if not uses:
        return False, "no call moves data between GPUs"
    heavy = [use.api for use in uses if _matters(use)]
    if heavy:
        return True, f"much data in each iteration: {_join(heavy)}"
    unclear = [use.api for use in uses if _matters(use) is None]
    if unclear:
        return None, f"how much, or how often, does not show in the source: {_join(unclear)}"
    return False, f"little data, or not in each iteration: {_join([use.api for use in uses])}"


def _matters(use: Use) -> bool | None:
    """Return whether a use moves much data, and often; None if that is unknown."""
    traffic, amount = use.interface.traffic, use.amount
    if traffic == "gradients":
        return True
    if traffic == "setup" or amount == "small" or (traffic == "small" and amount != "large"):
        return False
    if use.repeats is False:
        return False if _hands_out(use) else None
    # The name alone tells that all ranks take part, unlike that of a send to one peer. What MPI
    # reduces in each iteration may be a few numbers of the host.
    collective = use.interface.pattern and not use.api.lower().startswith("mpi")
    return True if amount == "large" or (use.repeats and collective) else None


def _join(names: Iterable[str]) -> str:
    """Join the first few different names and count the rest: "a, b and c", "a, b and 3 more"."""
    shown = list(dict.fromkeys(names))
    if len(shown) > _MOST_NAMED:
        shown[_MOST_NAMED:] = [f"{len(shown) - _MOST_NAMED} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
