"""Calls, pattern and sensitivity from source code: a labelled set of programs, and odd files."""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.errors import UsageError
from gpulaunch.files.extras import install_hint
from gpulaunch.files.toml import tomllib
from gpulaunch.profiles.pattern import PATTERNS, union
from gpulaunch.scan import c_reader
from gpulaunch.scan.peers import pattern_of_peer
from gpulaunch.scan.sources import MAX_FILE_BYTES, read_sources, scan_sources
from gpulaunch.show.scan import scan_document, scan_lines

SET = Path(__file__).parents[1] / "scan_set"
LABELS = tomllib.loads((SET / "expected.toml").read_text())


@pytest.mark.parametrize("name", LABELS)
def test_labelled_program(name: str) -> None:
    """Calls, pattern and sensitivity of each program are what its label says; no other is found."""
    found = scan_sources({name: (SET / name).read_text()})
    got = {
        "calls": [[call.line, call.api, call.pattern] for call in found.calls],
        "pattern": found.pattern,
        "sensitive": {None: "unknown"}.get(found.sensitive, found.sensitive),
    }
    assert got == LABELS[name]


def test_union_is_smallest() -> None:
    """The union of patterns has each one's edges up to 64 ranks, and no smaller pattern has."""
    edges = {
        name: [{edge[:2] for edge in pattern.edges(ranks)} for ranks in range(2, 65)]
        for name, pattern in PATTERNS.items()
    }

    def holds(whole: str, parts: tuple[str, ...]) -> bool:
        return all(a <= b for part in parts for a, b in zip(edges[part], edges[whole], strict=True))

    for parts in product(PATTERNS, repeat=2):
        whole = union(parts)
        assert holds(whole, parts), parts
        smaller = [
            name
            for name in PATTERNS
            if holds(name, parts) and len(edges[name][30]) < len(edges[whole][30])
        ]
        assert smaller == [], parts


@pytest.mark.parametrize(
    ("expression", "pattern"),
    [
        ("(rank + 1) % size", "ring"),
        ("rank - 1", "chain"),
        ("rank ^ 1", "chain"),
        ("size - 1", "star"),
        ("(rank + 2) % size", ""),
        ("rank ^ mask", ""),
        ("f(rank + 1)", ""),
        ("MPI_PROC_NULL", "none"),
        ("(" * 1000 + "0", ""),
    ],
)
def test_peer(expression: str, pattern: str) -> None:
    """A peer tells the pattern if it is a neighbour or a fixed rank; nothing else does."""
    assert pattern_of_peer(expression) == pattern


@pytest.mark.parametrize(
    ("name", "text", "confidence"),
    [
        ("a.py", "import math\nprint(math.pi)\n", "certain"),
        ("a.py", "import mystery\nmystery.train()\n", "likely"),
        ("a.py", "print 'old'\n", "guess"),
        ("a.cu", "int main() { cudaDeviceEnablePeerAccess(1, 0); }", "likely"),
        ("a.py", "conn.send(x)\nself.comm.Recv(x)\n", "likely"),
        ("a.cu", "#define SUM ncclAllReduce\nint main() { }", "likely"),
        ("a.cu", "void f() { my_all_reduce<<<1, 1>>>(x); }", "likely"),
        ("a.cu", "void f() { ncclAllReduce(a, b, n, t, o, c, s); }", "certain"),
        ("a.cu", "void f() { ncclSend(a, n, t, rank + 1, c, s); }", "likely"),
        ("a.cu", "void f() { ncclSend(a, n, t, somebody, c, s); }", "guess"),
        (
            "a.cu",
            "void f() { ncclCommSplit(c, 0, 1, &d, 0); ncclAllReduce(a, b, n, t, o, d, s); }",
            "likely",
        ),
    ],
)
def test_confidence(name: str, text: str, confidence: str) -> None:
    """How sure the result is follows the rules in docs/guides/scan.md."""
    assert scan_sources({name: text}).confidence == confidence


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("def f(:\n", "a.py:1: no Python 3: invalid syntax"),
        ("x = '\0'\n", "a.py"),
        ("(" * 5000, "a.py"),
    ],
    ids=["syntax", "null byte", "brackets"],
)
def test_what_is_no_python(text: str, complaint: str) -> None:
    """A file that is no Python 3 is reported, and the rest of the program is still scanned."""
    found = scan_sources({"a.py": text, "b.c": "void f() { MPI_Bcast(x, 1, t, 0, c); }"})
    assert (len(found.calls), found.files, found.confidence) == (1, 1, "likely")
    assert [warning.startswith(complaint) for warning in found.warnings] == [True]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            ["import a, b\n", "import a, c, d\n", "import e, g\n"],
            "what a, b, c, d, e and 1 more do is not known",
        ),
        (
            ['#include "a.h"\n#include "b.h"\n', '#include "b.h"\n'],
            "what a.h and b.h do is not known",
        ),
    ],
)
def test_what_is_not_known(files: list[str], reason: str) -> None:
    """What nothing is known of is told of once for all files, at most five by name."""
    ending = "cu" if "#" in files[0] else "py"
    found = scan_sources({f"file{i}.{ending}": text for i, text in enumerate(files)})
    assert (found.confidence, found.reasons[1:]) == ("likely", (reason,))


def test_what_is_handed_on() -> None:
    """Of a function that is handed on it is not known how often it is called."""
    found = scan_sources({"a.py": "import torch.distributed as d\nhook(d.broadcast)\n"})
    assert ([call.repeats for call in found.calls], found.sensitive) == ([None], None)


@pytest.mark.parametrize(
    ("text", "sensitive"),
    [
        ("import torch.distributed as d\nd.all_reduce(loss)\n", False),
        ("import torch.distributed as d, mystery\nd.all_reduce(loss)\n", None),
        ("import torch.distributed as d, mystery\nfor x in y:\n  d.all_reduce(x)\n", True),
    ],
)
def test_sensitivity_beside_unknown_modules(text: str, sensitive: bool | None) -> None:
    """Beside a module that is not known, "no" is left unsaid, and "yes" stays."""
    found = scan_sources({"a.py": text})
    assert found.sensitive is sensitive
    unsaid = "beside what is not known, whether links matter is left open"
    assert (unsaid in found.reasons[0]) is (sensitive is None)


@pytest.mark.parametrize(
    ("call", "sensitive"),
    [
        ("ncclAllReduce(&grid[0], o, n, ncclFloat, ncclSum, c, s)", True),
        ("MPI_Bcast(&grid, n, MPI_FLOAT, 0, c)", None),
        ("MPI_Bcast(&comm->nccl_id, n, MPI_BYTE, 0, c)", False),
        ("MPI_Bcast(&state.uniqueId, n, MPI_BYTE, 0, c)", False),
        ("MPI_Bcast(p, sizeof(ncclUniqueId), MPI_BYTE, 0, c)", False),
    ],
)
def test_id_of_a_communicator(call: str, sensitive: bool) -> None:
    """Only an id of NCCL that is handed out is start-up, not any name that ends in "id"."""
    found = scan_sources({"a.cu": f"int main() {{ for (;;) {call}; }}"})
    assert found.sensitive is sensitive


@pytest.mark.parametrize(
    ("call", "sensitive"),
    [
        ("ncclAllReduce(a, o, 12500, ncclFloat, ncclSum, c, s)", True),
        ("ncclAllReduce(a, o, 12499, ncclFloat, ncclSum, c, s)", False),
        ("cudaMemcpyPeer(a, 1, b, 0, 99999)", False),
        ("cudaMemcpyPeer(a, 1, b, 0, 4 * 25000)", True),
        ("cudaMemcpyPeer(a, 1, b, 0, sizeof(table))", None),
    ],
)
def test_bound_of_small_calls(call: str, sensitive: bool | None) -> None:
    """Products of numbers are small below 10^5 bytes, 8 an element; copies count bytes."""
    found = scan_sources({"a.cu": f"int main() {{ for (;;) {call}; }}"})
    assert found.sensitive is sensitive


def test_rare_wrapper_makes_no_pattern() -> None:
    """DataParallel for one process beside DistributedDataParallel leaves the ring, not certain."""
    text = (
        "from torch.nn.parallel import DataParallel, DistributedDataParallel\n"
        "model = DistributedDataParallel(net) if distributed else DataParallel(net)\n"
    )
    found = scan_sources({"a.py": text})
    assert (len(found.calls), found.pattern, found.confidence) == (2, "ring", "likely")


@pytest.fixture
def no_tree_sitter(monkeypatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "tree_sitter_cuda", None)
    c_reader._parser.cache_clear()
    yield
    c_reader._parser.cache_clear()


KERNEL = {"ext/k.cu": "void f() { ncclAllReduce(a, b, n, t, o, c, s); }"}
PLAIN = {"ext/plain.cu": "void f() { add<<<1, 1>>>(a); }"}


@pytest.mark.usefixtures("no_tree_sitter")
def test_without_tree_sitter() -> None:
    """Without the extra `scan` C alone is refused with what to install.

    Beside Python, which is read, a file of C that had to be parsed is a warning.
    """
    with pytest.raises(UsageError, match=re.escape(install_hint("scan"))):
        scan_sources(PLAIN | KERNEL)
    found = scan_sources(PLAIN)
    assert (found.calls, found.warnings, found.confidence) == ((), (), "certain")
    text = "import torch.distributed as d\nd.all_reduce(x)\n"
    found = scan_sources({"train.py": text} | PLAIN | KERNEL)
    assert (len(found.calls), found.confidence, found.files) == (1, "likely", 2)
    assert found.warnings == (
        f"ext/k.cu: C, C++ and CUDA need tree-sitter: {install_hint('scan')}",
    )


TEXT = (
    'ncclAllReduce( #else #endif A( /* */ " \' R"x( { } ( ) ; , :: for( do while(0) '
    "if(rank==0) d.all_reduce( x="
)
WORDS = TEXT.split()
LINES = ["\\\n", "\n", "#if 0\n", "#endif\n", "#define A(x) x##x A(x)\n", "  ", "lambda d: "]
LINES += ["import torch.distributed as d\n", "def f(a):\n ", "class C:\n ", "\udcff", "\0"]
PIECES = st.sampled_from([*WORDS, *LINES])


@given(
    st.one_of(
        st.lists(PIECES, max_size=30).map("".join), st.text(max_size=200), st.binary(max_size=200)
    )
)
def test_any_text(text: str | bytes) -> None:
    """Whatever a file holds, the scan comes to an end with a result that its words allow."""
    plain = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
    for name in ("a.py", "a.cu"):
        found = scan_sources({name: plain})
        assert found.pattern in PATTERNS
        assert all(
            1 <= call.line <= plain.count("\n") + plain.count("\r") + 1 for call in found.calls
        )
        json.dumps(scan_document(found)).encode()


def tree(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_files_of_a_folder(tmp_path: Path) -> None:
    """A folder's sources are read in order, but no packages, build or hidden folders, or loops."""
    kept = {"a.py": b"x", "sub/b.CU": b"\xff", "sub/c.hpp": b"", "sub/notes.txt": b""}
    left = (
        "build/a.c",
        ".git/a.c",
        "node_modules/a.c",
        "lib/site-packages/a.py",
    )
    tree(tmp_path, kept | dict.fromkeys(left, b""))
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    files, unread = read_sources(str(tmp_path))
    assert [(os.path.relpath(path, tmp_path), text) for path, text in files.items()] == [
        ("a.py", "x"),
        ("sub/b.CU", "\udcff"),
        ("sub/c.hpp", ""),
    ]
    assert unread == []


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A dangling link, a pipe and a file without end become a line each; the others are read."""
    tree(tmp_path, {"a.py": b"", "large.c": b" " * (MAX_FILE_BYTES + 1)})
    (tmp_path / "gone.py").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.py")
    files, unread = read_sources(str(tmp_path))
    assert [os.path.basename(path) for path in files] == ["a.py"]
    assert [line.removeprefix(f"{tmp_path}/") for line in unread] == [
        "gone.py: no such file or directory",
        "large.c: larger than 4 MiB",
        "pipe.py: no regular file",
    ]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("notes.txt", "notes.txt: no source file: known are .py .cu"),
        ("empty", "empty: no source file below it: known are .py .cu"),
    ],
)
def test_nothing_to_scan(tmp_path: Path, monkeypatch, name: str, complaint: str) -> None:
    """A path without source code is a usage error that names it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UsageError) as refusal:
        read_sources(name)
    assert refusal.value.message.startswith(complaint)


def test_document() -> None:
    """The document has the promised keys, and shows bytes that no terminal should get as text."""
    text = "import torch.distributed as d\nd.all_reduce(loss)\n"
    document = scan_document(scan_sources({"a\x1b\udcff.py": text}, ["b.py: is a directory"]))
    call = {
        "file": "a\\x1b\\xff.py",
        "line": 2,
        "api": "torch.distributed.all_reduce",
        "pattern": "ring",
    }
    assert {key: value for key, value in document.items() if key != "reasons"} == {
        "calls": [call],
        "pattern": "ring",
        "sensitive": None,
        "confidence": "likely",
        "warnings": ["b.py: is a directory"],
        "files": 1,
    }
    assert scan_lines(document)[:4] == [
        "a\\x1b\\xff.py:2  torch.distributed.all_reduce  ring",
        "",
        "pattern:    ring (1 call in 1 file)",
        "sensitive:  unknown",
    ]
