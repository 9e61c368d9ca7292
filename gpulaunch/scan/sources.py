"""The scan of a program's source code for calls that make GPUs communicate."""
# pure: decides on plain values

from collections.abc import Collection, Iterable, Sequence

from gpulaunch.scan.c_calls import read_c
from gpulaunch.scan.c_tokens import Macro, Unit, read_unit
from gpulaunch.scan.call import PYTHON_ENDINGS, FileFindings, Scan, SourceFile
from gpulaunch.scan.python_calls import read_python
from gpulaunch.scan.verdict import verdict

_MOST_MACROS = 20_000


def scan_sources(
    files: Iterable[SourceFile], unread: Sequence[str] = (), known_modules: Collection[str] = ()
) -> Scan:
    """Find the calls that make GPUs communicate, without running or compiling anything.

    Python is read as a syntax tree, C, C++ and CUDA as tokens; an import, a comment, a string or a
    declaration is no call. No contents of a file make this fail: what cannot be understood becomes
    a warning.

    Args:
        files: files of one program; their endings tell the language.
        unread: warnings about files that could not be read, which lower the confidence.
        known_modules: Python modules that are known not to make GPUs communicate, such as those of
            the standard library; the result names modules that are neither scanned nor known.

    Returns:
        Calls in the order of the files, then by line, one per name and line, with the pattern, the
        sensitivity and the confidence.

    Source: mapa-sc21 3.1: communication patterns by identifying the calls of NCCL, cudaMemcpyPeer
        and MPI, their graphs combined; 2.3 for sensitivity.

    Cost: about 4 s for 1 MB of C, 0.6 s for 1 MB of Python.

    Example:
        >>> program = SourceFile("a.py", "import torch.distributed as d; d.all_reduce(x)")
        >>> scan_sources([program]).calls
        (Call(file='a.py', line=1, api='torch.distributed.all_reduce', pattern='ring'),)
    """
    sources = list(files)
    units = {
        file.path: read_unit(file.text)
        for file in sources
        if not file.path.lower().endswith(PYTHON_ENDINGS)
    }
    headers = {path.rpartition("/")[2]: unit for path, unit in units.items()}
    scanned = (part for file in sources for part in file.path.removesuffix(".py").split("/"))
    modules = frozenset([*scanned, *known_modules])
    names = frozenset(headers)
    readings: list[tuple[str, FileFindings]] = []
    for file in sources:
        unit = units.get(file.path)
        if unit is None:
            readings.append((file.path, read_python(file.path, file.text, modules)))
        else:
            readings.append((file.path, read_c(unit, _included_macros(unit, headers), names)))
    return verdict(readings, unread)


def _included_macros(unit: Unit, headers: dict[str, Unit]) -> list[Macro]:
    """Return the macros of the scanned headers that a file includes, directly or indirectly."""
    found: list[Macro] = []
    seen: set[str] = set()
    left = list(unit.includes)
    while left and len(found) < _MOST_MACROS:
        name = left.pop().rpartition("/")[2]
        if name in headers and name not in seen:
            seen.add(name)
            found += headers[name].macros
            left += headers[name].includes
    return found
