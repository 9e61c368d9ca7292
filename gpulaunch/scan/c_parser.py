"""Parser of C, C++ and CUDA: tree-sitter with the grammar for CUDA, which contains the others."""

from functools import cache

from gpulaunch.errors import UsageError
from gpulaunch.files.extras import install_hint
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node as Node  # noqa: PLC0414 - read by the files beside this one
    from tree_sitter import Parser


@cache
def _parser() -> "Parser":
    try:
        import tree_sitter_cuda
        from tree_sitter import Language, Parser
    except ImportError:
        raise UsageError(f"C, C++ and CUDA need tree-sitter: {install_hint('scan')}") from None
    return Parser(Language(tree_sitter_cuda.language()))


def parse(text: str) -> "Node":
    """Return the syntax tree of any text; what is no C has nodes of the type ERROR.

    Raises:
        UsageError: tree-sitter is not installed.
    """
    return _parser().parse(text.encode("utf-8", "replace")).root_node


def text_of(node: "Node | None") -> str:
    """Return the text of a node; "" for none."""
    return (node.text or b"").decode("utf-8", "replace") if node else ""


def below(node: "Node") -> "Iterator[Node]":
    """Yield a node and all nodes below it, in their order."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        left += reversed(node.children)
