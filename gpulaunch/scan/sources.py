"""The scan of a program's source code for calls that make GPUs communicate."""

from collections.abc import Collection, Iterable, Sequence

from gpulaunch.scan.call import PYTHON_ENDINGS, FileFindings, Scan, SourceFile
from gpulaunch.scan.python_reader import read_python
from gpulaunch.scan.verdict import verdict


def scan_sources(
    files: Iterable[SourceFile], unread: Sequence[str] = (), known_modules: Collection[str] = ()
) -> Scan:
    """Find the calls that make GPUs communicate, without running or compiling anything.

    Python is read as a syntax tree, C, C++ and CUDA by tree-sitter; an import, a comment, a string
    or a declaration is no call. No contents of a file make this fail: what cannot be understood
    becomes a warning.

    Args:
        files: files of one program; their endings tell the language.
        unread: warnings about files that could not be read, which lower the confidence.
        known_modules: Python modules that are known not to make GPUs communicate, such as those of
            the standard library; the result names modules that are neither scanned nor known.

    Raises:
        UsageError: all files are C, C++ or CUDA, one has a word that matters, and tree-sitter is
            not installed. Beside Python such a file becomes a warning.

    Returns:
        Calls in the order of the files, then by line, one per name and line, with the pattern, the
        sensitivity and the confidence.

    Source: mapa-sc21 3.1: communication patterns by identifying the calls of NCCL, cudaMemcpyPeer
        and MPI, their graphs combined; 2.3 for sensitivity.

    Cost: about 0.4 s for 1 MB of C, 0.8 s for 1 MB of Python.

    Example:
        >>> program = SourceFile("a.py", "import torch.distributed as d; d.all_reduce(x)")
        >>> scan_sources([program]).calls
        (Call(file='a.py', line=1, api='torch.distributed.all_reduce', pattern='ring'),)
    """
    sources = list(files)
    scanned = [part for file in sources for part in file.path.removesuffix(".py").split("/")]
    if len(sources) == 1:  # the rest of the package around a single file is not scanned
        scanned = scanned[-1:]
    modules = frozenset([*scanned, *known_modules])
    others = [file for file in sources if not file.path.lower().endswith(PYTHON_ENDINGS)]
    alone = len(others) == len(sources)
    readings: dict[str, FileFindings] = {}
    if others:
        from gpulaunch.scan.c_reader import read_c_files

        readings = read_c_files(others, alone=alone)
    for file in sources:
        if file.path not in readings:
            readings[file.path] = read_python(file.path, file.text, modules)
    return verdict([(file.path, readings[file.path]) for file in sources], unread)
