"""Calls in C, C++ and CUDA that make GPUs communicate, found in the syntax tree."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain, islice

from gpulaunch.errors import UsageError
from gpulaunch.profiles.pattern_union import union
from gpulaunch.records import Record, replace
from gpulaunch.scan.c_arguments import is_small, product_of, sets_up
from gpulaunch.scan.c_macros import (
    Macro,
    Unit,
    arguments,
    expanded,
    included_macros,
    is_wanted,
    read_unit,
    wanted_macros,
)
from gpulaunch.scan.c_parser import below, parse, text_of
from gpulaunch.scan.call import Amount, Doubt, FileFindings, Interface, SourceFile, Use
from gpulaunch.scan.interfaces import c_interface, listed
from gpulaunch.scan.peers import (
    count_words,
    grid_of_names,
    is_root_test,
    pattern_of_choices,
    pattern_of_grid,
    pattern_of_peers,
)
from gpulaunch.scan.repeats import repeating
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.scan.c_parser import Node

_GRADIENTS = re.compile(r"(?<!requires_)grad|diff(?!er)", re.IGNORECASE)
_WORD = re.compile(r"\w+|[^\s\w]")
_LOOPS = {"for_statement", "while_statement", "do_statement", "for_range_loop"}
_SKIPPED = (
    "comment",
    "string_literal",
    "raw_string_literal",
    "preproc_def",
    "preproc_function_def",
)
_CLASSES = {"class_specifier", "struct_specifier", "union_specifier"}
_EXPECTING = {"EXPECT_CALL", "ON_CALL"}  # GoogleMock: the second argument is an expected call
_GRID = "MPI_Cart_create"
_MOST_SETTINGS = 16  # of one variable
_MOST_EXPANSIONS = 1000  # in one file
_DEEPEST = 6  # macros in macros


class CallSite(Record):
    """The surroundings of a node.

    Attributes:
        function: name of the function around it; "" if there is none.
        loops: number of loops around it in that function.
        rooted: whether only rank 0 comes here.
        line: line of the use, for what a macro stands for; 0 for the node's own.
        depth: number of macros around it.
    """

    function: str = ""
    loops: int = 0
    rooted: bool = False
    line: int = 0
    depth: int = 0


class Called(Record):
    """A call of a function that matters.

    Attributes:
        name: name of the function.
        given: texts of its arguments.
        at: position of its name in the file.
        line: its line.
        place: its surroundings, those of the NCCL group around it if there is one.
    """

    name: str
    given: tuple[str, ...]
    at: int
    line: int
    place: CallSite


def read_c_files(sources: Sequence[SourceFile], *, alone: bool) -> dict[str, FileFindings]:
    """Return the findings in files of C, C++ and CUDA, by path.

    A file without a word that matters is not parsed. Where tree-sitter is not installed, one that
    has such a word becomes a warning.

    Args:
        sources: the files.
        alone: whether the program has files of no other language, so that without tree-sitter
            nothing can be said of it.

    Raises:
        UsageError: the files are alone, one has to be parsed, and tree-sitter is not installed.
    """
    units = {file.path: read_unit(file.text) for file in sources}
    headers: dict[str, list[Unit]] = {}
    for path, unit in units.items():
        headers.setdefault(path.rpartition("/")[2], []).append(unit)
    found: dict[str, FileFindings] = {}
    for path, unit in units.items():
        try:
            found[path] = _read(unit, headers)
        except UsageError as problem:
            if alone:
                raise
            found[path] = FileFindings(warnings=(f"{path}: {problem}",))
    return found


def _read(unit: Unit, headers: Mapping[str, Sequence[Unit]]) -> FileFindings:
    quiet = listed("quiet_headers")
    unknown = tuple(
        name
        for name in dict.fromkeys(unit.includes)
        if (name.rpartition(".")[0] or name) not in quiet and name.split("/")[-1] not in headers
    )
    macros = included_macros(unit, headers)
    wanted = wanted_macros(macros)
    if not any(word in wanted or is_wanted(word) for word in unit.words):
        return FileFindings(headers=unknown)
    file = _File(macros, wanted)
    file.read(parse(unit.text), CallSite())
    uses = file.uses()
    grids = [file.grid(call) for call in file.called if call.name == _GRID]
    grid = union(grids) if grids else grid_of_names(unit.text) if uses else ""
    return FileFindings(uses, grid, count_words(unit.text), *file.doubts(), headers=unknown)


class _File:
    """A file while it is read."""

    def __init__(self, macros: Mapping[str, Sequence[Macro]], wanted: set[str]) -> None:
        self.called: list[Called] = []
        self._macros = macros
        self._wanted = wanted
        self._expansions = 0
        self._aliases: dict[str, str] = {}
        # by name, then by function; "" is a value that does not show
        self._settings: dict[str, dict[str, list[str]]] = {}
        self._functions: list[str] = []
        self._entered: list[tuple[str, str, CallSite]] = []  # caller, callee
        self._hidden: list[tuple[str, int, int]] = []  # name that the file declares, and where
        self._group: CallSite | None = None

    def read(self, root: "Node", place: CallSite) -> None:
        """Read a node and all below it, in order."""
        left = [(root, place)]
        while left:
            node, place = left.pop()
            if node.type in _SKIPPED:
                continue
            inner = self._enter(node, place)
            left += reversed(inner)

    def uses(self) -> tuple[Use, ...]:
        """Return the calls in order, one per name and line."""
        calls = [(caller, callee, place.loops > 0) for caller, callee, place in self._entered]
        repeats = repeating(self._functions, calls, ["main"])
        repeats[""] = False
        others = {callee for _, callee, place in self._entered if not place.rooted}
        of_root = {callee for _, callee, _ in self._entered} - others
        found: dict[tuple[int, str], Use] = {}
        for call in self.called:
            interface = c_interface(call.name)
            if not interface or self._is_own(call):
                continue
            rooted = call.place.rooted or call.place.function in of_root
            pattern = self.grid(call) if call.name == _GRID else interface.pattern
            pattern = pattern or self._find_peers(call, interface, rooted=rooted)
            if pattern == "none":
                continue
            if sets_up(call.name, call.given):
                interface = replace(interface, traffic="setup")
            often = call.place.loops > 0 or repeats.get(call.place.function)
            amount = self._find_amount(call, interface)
            use = Use(call.line, call.name, interface, pattern, often, amount)
            found.setdefault((use.line, use.name), use)
        return tuple(sorted(found.values(), key=lambda use: (use.line, use.name)))

    def grid(self, call: Called) -> str:
        """Return the pattern of the process grid that a call sets up."""
        axes = self._constant(call.given[1], call) if len(call.given) > 1 else None
        return pattern_of_grid(axes)

    def doubts(self) -> tuple[tuple[Doubt, ...], tuple[Doubt, ...]]:
        """Return the doubts about the pattern, and the reasons why calls may have been missed."""
        called = dict.fromkeys(call.name for call in self.called if not self._is_own(call))
        some, unseen = "a call may join only some ranks", "what it starts or loads is not scanned"
        return (
            tuple(("likely", f"{one}: {some}") for one in called if one in listed("subgroups")),
            tuple(("likely", f"{one}: {unseen}") for one in called if one in listed("c_starters")),
        )

    def _enter(self, node: "Node", place: CallSite) -> "list[tuple[Node, CallSite]]":
        """Take note of a node; return what is to be read in it, with the surroundings."""
        inside = [(child, place) for child in node.children]
        if node.type == "function_definition":
            name = self._declare(node, node.child_by_field_name("declarator"), defined=True)
            self._functions.append(name)
            self._group = None
            return [
                (child, CallSite(name, line=place.line, depth=place.depth))
                for child in node.children
            ]
        if node.type in ("declaration", "field_declaration"):
            self._declare(node, node.child_by_field_name("declarator"), defined=False)
        elif node.type in ("init_declarator", "assignment_expression"):
            self._set(node, place)
        elif node.type in _LOOPS:
            return self._loop(node, place)
        elif node.type in ("if_statement", "preproc_if", "preproc_elif"):
            return self._branch(node, place)
        elif node.type == "call_expression":
            return self._call(node, place)
        elif node.type == "identifier" and text_of(node) in self._wanted:
            self._expand(node, text_of(node), (), place)
        return inside

    def _loop(self, node: "Node", place: CallSite) -> "list[tuple[Node, CallSite]]":
        test = text_of(node.child_by_field_name("condition")).strip("()")
        once = node.type == "do_statement" and test in ("0", "false")
        for one in (node.child_by_field_name("initializer"), node.child_by_field_name("update")):
            for part in below(one) if one else ():
                name = text_of(
                    part.child_by_field_name("declarator") or part.child_by_field_name("left")
                )
                if name:
                    self._note_setting(name, place, "")
        inner = replace(place, loops=place.loops + (not once))
        body = node.child_by_field_name("body")
        return [(child, inner if child == body else place) for child in node.children]

    def _branch(self, node: "Node", place: CallSite) -> "list[tuple[Node, CallSite]]":
        condition = node.child_by_field_name("condition")
        test = text_of(condition)
        rooted = node.type == "if_statement" and is_root_test(test)
        never, always = test.strip("() ") in ("0", "false"), test.strip("() ") in ("1", "true")
        alternative = node.child_by_field_name("alternative")
        inner = replace(place, rooted=place.rooted or rooted)
        return [
            (child, place if child == alternative else inner)
            for child in node.children
            if (not always if child == alternative else not never)
        ]

    def _call(self, node: "Node", place: CallSite) -> "list[tuple[Node, CallSite]]":
        name, at = _function_name(node)
        given = tuple(arguments(node))
        inside = [(child, place) for child in node.children if child.type == "argument_list"]
        line = place.line or at.end_point[0] + 1
        launched = any(child.type == "kernel_call_syntax" for child in node.children)
        if name in _EXPECTING:
            return []
        if name in ("ncclGroupStart", "ncclGroupEnd"):
            self._group = place if name == "ncclGroupStart" else None
        elif name in self._wanted:
            self._expand(node, name, given, place)
            return []
        elif name in self._macros and all(one.drops_all() for one in self._macros[name]):
            return []
        elif is_wanted(name) and (launched or not getattr(c_interface(name), "kernel", False)):
            # A loop within a group of NCCL calls goes over GPUs, not over time.
            around = (
                self._group if self._group and self._group.function == place.function else place
            )
            self.called.append(
                Called(name, given, at.start_byte if not place.line else -1, line, around)
            )
        elif name in self._aliases:
            self.called.append(Called(self._aliases[name], given, at.start_byte, line, place))
        elif name:
            self._entered.append((place.function, name, place))
        else:
            inside = [(child, place) for child in node.children]
        return inside

    def _expand(self, node: "Node", name: str, given: Sequence[str], place: CallSite) -> None:
        """Read what a macro stands for, as if it were written where it is used."""
        line = place.line or node.start_point[0] + 1
        inner = replace(place, line=line, depth=place.depth + 1)
        for macro in self._macros[name]:
            self._expansions += 1
            if place.depth >= _DEEPEST or self._expansions > _MOST_EXPANSIONS:
                return
            root = parse(f"void _() {{ {expanded(macro, given)}; }}")
            body = next((one for one in below(root) if one.type == "compound_statement"), None)
            if body:
                self.read(body, inner)

    def _set(self, node: "Node", place: CallSite) -> None:
        """Note what a variable is set to, or that it is another name of a function."""
        target = node.child_by_field_name("declarator") or node.child_by_field_name("left")
        name, value = text_of(target).lstrip("*& "), node.child_by_field_name("value")
        text = text_of(value or node.child_by_field_name("right"))
        if is_wanted(text.lstrip("& ")):
            self._aliases[name] = text.lstrip("& ")
        self._note_setting(name, place, text[:200])

    def _note_setting(self, name: str, place: CallSite, text: str) -> None:
        self._settings.setdefault(name, {}).setdefault(place.function, []).append(text)

    def _declare(self, node: "Node", declarator: "Node | None", *, defined: bool) -> str:
        """Note a name that the file declares itself; return it.

        A declaration of a function without a body hides nothing, unless in a class.
        """
        function = None
        while declarator and declarator.type not in ("identifier", "field_identifier"):
            function = declarator if declarator.type == "function_declarator" else function
            parts = declarator.child_by_field_name("declarator")
            declarator = (
                parts
                or declarator.child_by_field_name("name")
                or next(
                    (one for one in declarator.named_children if "declarator" in one.type), None
                )
            )
        name = text_of(declarator)
        around = node.parent
        while around and around.type not in ("compound_statement", *_CLASSES, "translation_unit"):
            around = around.parent
        in_class = bool(around and around.type in _CLASSES)
        if around and is_wanted(name) and (defined or in_class or not function):
            self._hidden.append((name, around.start_byte, around.end_byte))
        return name

    def _is_own(self, call: Called) -> bool:
        return any(
            name == call.name and start <= call.at < end for name, start, end in self._hidden
        )

    def _find_peers(self, call: Called, interface: Interface, *, rooted: bool) -> str:
        count = len(call.given)
        places = [place for place in interface.peers if -count <= place < count]
        expressions = [_WORD.findall(call.given[place]) for place in places]
        found = pattern_of_peers(expressions, pair=interface.pair)
        if not found and expressions:
            settled = [self._values(one, call) or [one] for one in expressions]
            if interface.pair:  # if one end is computed from the other, the other stays a name
                both = zip(expressions, settled, settled[::-1], strict=True)
                settled = [
                    [one] if set(one) & {word for words in other for word in words} else choices
                    for one, choices, other in both
                ]
            found = pattern_of_choices(settled, pair=interface.pair)
        return found or ("star" if rooted and places and not interface.pair else "")

    def _values(self, expression: Sequence[str], call: Called) -> list[list[str]]:
        """Return all values of a variable or a parameter; [] if some are unknown."""
        if len(expression) != 1:
            return []
        settings = self._settings.get(expression[0], {})
        texts = settings.get(call.place.function)
        if not texts:  # a parameter: what variables of its name are set to
            texts = list(islice(chain.from_iterable(settings.values()), _MOST_SETTINGS + 1))
        if "" in texts or len(texts) > _MOST_SETTINGS:
            return []
        return [_WORD.findall(text) for text in dict.fromkeys(texts)]

    def _constant(self, text: str, call: Called) -> int | None:
        """Return the value of a product of numbers, or of a name with one such value; else None."""
        if not text.isidentifier():
            return product_of(text)
        texts = [one.body for one in self._macros.get(text, ())] + [
            one
            for function in {"", call.place.function}
            for one in self._settings.get(text, {}).get(function, [])
        ]
        return product_of(texts[0]) if len(texts) == 1 else None

    def _find_amount(self, call: Called, interface: Interface) -> Amount:
        count = interface.elements
        if 0 <= count < len(call.given):
            number = self._constant(call.given[count], call)
            if number is not None:
                return "small" if is_small(number, of_bytes=interface.pair) else "large"
        return "large" if call.given and _GRADIENTS.search(call.given[0]) else "unknown"


def _function_name(call: "Node") -> "tuple[str, Node]":
    """Return the name of the called function, and its node; "" for members and expressions."""
    node = call.child_by_field_name("function") or call
    if node.type == "template_function":
        node = node.child_by_field_name("name") or node
    if node.type == "qualified_identifier" and not node.child_by_field_name("scope"):
        node = node.child_by_field_name("name") or node
    return (text_of(node) if node.type == "identifier" else ""), node
