"""Calls, pattern and sensitivity from source code: a labelled set of programs, and odd files."""

import json
import os
import re
import sys
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toml_parser import tomllib

from gpulaunch.cli.profile_scan import scan_document, scan_lines
from gpulaunch.errors import UsageError
from gpulaunch.files.document import install_hint
from gpulaunch.lab.scan import c_reader
from gpulaunch.lab.scan.sources import MAX_FILE_BYTES, read_sources, scan_sources
from gpulaunch.profiles.pattern import PATTERNS, union

SAID = {True: True, False: False, None: "unknown"}
SET = Path(__file__).parents[1] / "scan_set"
LABELS, RULES = (
    tomllib.loads((SET / name).read_text()) for name in ("expected.toml", "rules.toml")
)


@pytest.mark.parametrize("name", LABELS)
def test_labelled_program(name: str) -> None:
    """Calls, pattern and sensitivity of each program are what its label says; no other is found."""
    found = scan_sources({name: (SET / name).read_text()})
    calls = [[call.line, call.api, call.pattern] for call in found.calls]
    got = {"calls": calls, "pattern": found.pattern, "sensitive": SAID[found.sensitive]}
    assert got == LABELS[name]


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    """How sure the result is, and whether links matter, follows the rules of the guide."""
    want = dict(RULES[rule])
    found = scan_sources({want.pop("file", "a.py"): want.pop("text")})
    assert want.pop("reason", "") in " ".join(found.reasons)
    warning = want.pop("warning", None)
    assert len(found.warnings) == (warning is not None)
    assert "".join(found.warnings).startswith(warning or "")
    got = {
        "calls": len(found.calls),
        "pattern": found.pattern,
        "sensitive": SAID[found.sensitive],
        "confidence": found.confidence,
    }
    assert {key: got[key] for key in want} == want


def test_the_rest_of_a_program_is_read() -> None:
    """A file that is no Python 3 is reported, and the rest of the program is still scanned.

    What nothing is known of is told of once for all files.
    """
    files = {"a.py": "(" * 5000, "b.c": "void f() { MPI_Bcast(x, 1, t, 0, c); }"}
    found = scan_sources(files | dict.fromkeys(("c.py", "d.py"), "import mystery\n"))
    assert (len(found.calls), found.files, found.confidence) == (1, 3, "likely")
    assert [warning.partition(":")[0] for warning in found.warnings] == ["a.py"]
    assert " ".join(found.reasons).count("mystery") == 1


def test_union_is_smallest() -> None:
    """The union of patterns has each one's edges up to 64 ranks, and no smaller pattern has."""
    edges = {
        name: [{edge[:2] for edge in pattern.edges(ranks)} for ranks in range(2, 65)]
        for name, pattern in PATTERNS.items()
    }
    for one, other in product(PATTERNS, repeat=2):
        both = [a | b for a, b in zip(edges[one], edges[other], strict=True)]
        enough = [name for name in PATTERNS if all(map(set.issubset, both, edges[name]))]
        smallest = min(len(edges[name][30]) for name in enough)
        whole = union((one, other))
        assert whole in enough
        assert len(edges[whole][30]) == smallest, (one, other)


def test_without_tree_sitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra `scan` C alone is refused with what to install.

    Beside Python, which is read, a file of C that had to be parsed is a warning.
    """
    monkeypatch.setitem(sys.modules, "tree_sitter_cuda", None)
    monkeypatch.setattr(c_reader, "_parser", c_reader._parser.__wrapped__)  # it is cached
    kernel = {"ext/k.cu": "void f() { ncclAllReduce(a, b, n, t, o, c, s); }"}
    plain = {"ext/plain.cu": "void f() { add<<<1, 1>>>(a); }"}
    with pytest.raises(UsageError, match=re.escape(install_hint("scan"))):
        scan_sources(plain | kernel)
    found = scan_sources(plain)
    assert (found.calls, found.warnings, found.confidence) == ((), (), "certain")
    text = "import torch.distributed as d\nd.all_reduce(x)\n"
    found = scan_sources({"train.py": text} | plain | kernel)
    assert (len(found.calls), found.confidence, found.files) == (1, "likely", 2)
    warning = f"ext/k.cu: C, C++ and CUDA need tree-sitter: {install_hint('scan')}"
    assert found.warnings == (warning,)


TEXT = """ncclAllReduce( #else #endif A( /* */ " ' R"x( { } ( ) ; , :: for( do while(0)
    if(rank==0) d.all_reduce( x="""
LINES = ["\\\n", "\n", "#if 0\n", "#endif\n", "#define A(x) x##x A(x)\n", "  ", "lambda d: "]
LINES += ["import torch.distributed as d\n", "def f(a):\n ", "class C:\n ", "\udcff", "\0"]
PIECES = st.sampled_from([*TEXT.split(), *LINES])


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=200) | st.binary(max_size=200))
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


def test_files_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder's sources are read in order, but no packages, build or hidden folders, or loops.

    A dangling link, a pipe and a file without end become a line each; no source is an error.
    """
    monkeypatch.chdir(tmp_path)
    kept = {"a.py": b"x", "sub/b.CU": b"\xff", "sub/c.hpp": b""}
    left = ("build/a.c", ".git/a.c", "node_modules/a.c", "lib/site-packages/a.py", "txt/notes.txt")
    large = {"large.c": b" " * (MAX_FILE_BYTES + 1)}
    for name, content in (kept | dict.fromkeys(left, b"") | large).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    Path("sub/loop").symlink_to(tmp_path)
    Path("gone.py").symlink_to("nowhere")
    os.mkfifo("pipe.py")
    files, unread = read_sources(".")
    assert [os.path.normpath(path) for path in files] == list(kept)
    assert list(files.values()) == ["x", "\udcff", ""]
    assert [line.removeprefix("./") for line in unread] == [
        "gone.py: no such file or directory",
        "large.c: larger than 4 MiB",
        "pipe.py: no regular file",
    ]
    for name, reason in (("txt/notes.txt", "no source file"), ("txt", "no source file below it")):
        with pytest.raises(UsageError) as refusal:
            read_sources(name)
        assert refusal.value.message.startswith(f"{name}: {reason}: known are .py .cu")


def test_document() -> None:
    """The document shows bytes that no terminal should get as text, and what was not read."""
    text = "import torch.distributed as d\nd.all_reduce(loss)\n"
    document = scan_document(scan_sources({"a\x1b\udcff.py": text}, ["b.py: is a directory"]))
    assert document["calls"][0]["file"] == "a\\x1b\\xff.py"
    assert (document["warnings"], document["confidence"]) == (["b.py: is a directory"], "likely")
    assert scan_lines(document)[0] == "a\\x1b\\xff.py:2  torch.distributed.all_reduce  ring"
