"""Calls in C, C++ and CUDA that make GPUs communicate, found in the syntax tree by tree-sitter.

Only what a file says at the call counts: values of variables and macros are not followed.
"""

import re
from functools import cache
from typing import TYPE_CHECKING

from gpulaunch.errors import UsageError
from gpulaunch.files.document import install_hint
from gpulaunch.lab.scan.interfaces import (
    Findings,
    Use,
    amount_of_count,
    c_interface,
    listed,
    pattern_of_peers,
)
from gpulaunch.records import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node, Parser

_WORD = re.compile(r"[A-Za-z_]\w*")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"][^>"\n]+)', re.MULTILINE)
_LOOPS = {"for_statement", "while_statement", "do_statement", "for_range_loop"}
_SKIPPED = {"comment", "string_literal", "raw_string_literal"}
_MACROS = {"preproc_def", "preproc_function_def"}
_DECLARED = {"function_definition", "init_declarator", "field_declaration", *_MACROS}
_EXPECTING = {"EXPECT_CALL", "ON_CALL"}  # GoogleMock: the second argument is an expected call
_HOST = re.compile(r"host_?name|host_?hash", re.IGNORECASE)
_ID = re.compile(
    r"nccl_?(?:unique_?|comm_?)?id\b|&\s*(?:[\w.>-]*[._>])?(?:nccl_?)?(?:unique_?|comm_?)?id\b",
    re.IGNORECASE,
)
_COLLECTIVE = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|shmem", re.IGNORECASE)
_HANDS_OUT = re.compile(r"bcast|broadcast|send|recv", re.IGNORECASE)


def read_c(path: str, text: str, scanned: set[str], found: Findings) -> None:
    """Add the calls in one file that make GPUs communicate.

    Args:
        scanned: names of the files that are scanned, without folders.

    Raises:
        UsageError: the file has to be parsed, and tree-sitter is not installed.
    """
    for include in _INCLUDE.findall(text):
        if not _is_known(include, scanned):
            found.unknown[include[1:]] = None
    words = set(_WORD.findall(text))
    file = _CFile(path, found)
    if any(map(_is_wanted, words)):
        file.read(_parser().parse(text.encode("utf-8", "replace")).root_node)
    for word in sorted(words - file.own - file.called):
        if c_interface(word) or _COLLECTIVE.search(word):
            found.named[word] = None


def _is_known(include: str, scanned: set[str]) -> bool:
    """Return whether a header is scanned or known; <vector> and the like are the language's."""
    name = include[1:]
    own = name.rpartition("/")[2] in scanned
    return (
        own
        or name.removesuffix(".h") in listed("quiet_headers")
        or (include[0] == "<" and not {".", "/"} & {*name})
    )


def _is_wanted(name: str) -> bool:
    return c_interface(name) is not None or name in listed("starters") | listed("subgroups")


@cache
def _parser() -> "Parser":
    # The grammar for CUDA contains those of C and C++.
    try:
        import tree_sitter_cuda
        from tree_sitter import Language, Parser
    except ImportError:
        raise UsageError(f"C, C++ and CUDA need tree-sitter: {install_hint('scan')}") from None
    return Parser(Language(tree_sitter_cuda.language()))


def _text(node: "Node | None") -> str:
    return (node.text or b"").decode("utf-8", "replace") if node else ""


class _CFile:
    def __init__(self, path: str, found: Findings) -> None:
        self._path = path
        self._found = found
        self.called: set[str] = set()
        self.own: set[str] = set()  # names that the file gives a meaning of its own
        self._group_loops: int | None = None  # loops around an open group of NCCL calls

    def read(self, root: "Node") -> None:
        """Read the whole file, in order."""
        for node in _below(root):
            if node.type in _DECLARED:
                self.own.add(_declared_name(node))
        left = [(root, "", 0)]
        while left:
            node, function, loops = left.pop()
            children = [child for child in node.children if child.type not in _SKIPPED]
            if node.type == "function_definition":
                function, loops, self._group_loops = _declared_name(node), 0, None
            elif node.type in ("if_statement", "preproc_if", "preproc_elif"):
                children = _live(node, children)
            elif node.type == "call_expression" and self._call(node, function, loops):
                continue
            once = node.type not in _LOOPS or _condition(node) in ("0", "false")
            body = node.child_by_field_name("body")
            inner = [(one, function, loops + (one == body and not once)) for one in children]
            left += reversed(inner)

    def _call(self, node: "Node", function: str, loops: int) -> bool:
        """Note a call that matters; return whether its arguments are not."""
        name, at = _function_name(node)
        if name in ("ncclGroupStart", "ncclGroupEnd"):
            self._group_loops = loops if name == "ncclGroupStart" else None
        self._found.mind(name)
        self.called.add(name)
        interface = c_interface(name)
        if not interface or name in self.own:
            return name in _EXPECTING
        listed_in = node.child_by_field_name("arguments") or node
        given = [_text(one) for one in listed_in.named_children if one.type != "comment"]
        pattern = interface.pattern
        if not pattern:
            peers = [given[place] for place in interface.peers if place < len(given)]
            pattern = pattern_of_peers(peers, pair=interface.pair)
        ids = _HANDS_OUT.search(name) and any(map(_ID.search, given))
        if ids or any(map(_HOST.search, given)):
            interface = replace(interface, traffic="setup")
        count = given[interface.elements] if 0 <= interface.elements < len(given) else ""
        amount = amount_of_count(given[0] if given else "", count, of_bytes=interface.pair)
        use = Use(self._path, at.end_point[0] + 1, name, pattern, interface, None, amount)
        # A loop within a group of NCCL calls goes over GPUs, not over time.
        around = loops if self._group_loops is None else self._group_loops
        self._found.add(use, function, looped=around > 0)
        return False


def _below(node: "Node") -> "Iterator[Node]":
    left = [node]
    while left:
        node = left.pop()
        yield node
        left += node.children


def _condition(node: "Node") -> str:
    return _text(node.child_by_field_name("condition")).strip("() ")


def _declared_name(node: "Node") -> str:
    """Return the name that a definition or declaration gives a meaning."""
    inner = node.child_by_field_name("declarator") or node.child_by_field_name("name")
    while inner and inner.type not in ("identifier", "field_identifier"):
        named = inner.child_by_field_name("declarator") or inner.child_by_field_name("name")
        inner = named or next((x for x in inner.named_children if "declarator" in x.type), None)
    return _text(inner)


def _live(node: "Node", children: "list[Node]") -> "list[Node]":
    """Return the children of a branch that a constant condition does not rule out."""
    test = _condition(node)
    alternative = node.child_by_field_name("alternative")
    if test in ("0", "false"):
        return [alternative] if alternative else []
    return [one for one in children if one != alternative or test not in ("1", "true")]


def _function_name(call: "Node") -> "tuple[str, Node]":
    """Return the name of the called function, and its node; "" for members and expressions."""
    node = call.child_by_field_name("function") or call
    if node.type == "template_function":
        node = node.child_by_field_name("name") or node
    if node.type == "qualified_identifier" and not node.child_by_field_name("scope"):
        node = node.child_by_field_name("name") or node
    return (_text(node) if node.type == "identifier" else ""), node
