"""Peers, amounts and process grids by the arguments of a call in Python."""
# pure: decides on plain values

import ast
import re
from collections.abc import Callable, Sequence

from gpulaunch.scan.call import Amount, Interface
from gpulaunch.scan.peers import Words, pattern_of_choices, pattern_of_grid

Settings = Callable[[ast.expr], Sequence[ast.expr | None]]
"""Function that returns all expressions that a name or an attribute is set to; None among them
means that it may have other values.
"""

_MOST_SETTINGS = 16  # of one variable

_WORD = re.compile(r"\w+|[^\s\w]")
_GRADIENTS = re.compile(r"(?<!requires_)grad(?!_?scaler)", re.IGNORECASE)
_SCALARS = re.compile(
    r"\b\w*(loss|acc|accuracy|correct|metric|count|total|num_\w+|flag|norm|seed)\b\w*",
    re.IGNORECASE,
)
_SMALL_MAKER = re.compile(r"(as_)?tensor|array|zeros|ones|empty|full|item|float|int|sum|mean")
_DIGITS = re.compile(r"[0-9]{1,5}")
_MOST_GPUS = 10**5
_LONGEST = 2000  # characters of an argument that are read


def peers_pattern(node: ast.Call, interface: Interface, settings: Settings, first: int = 0) -> str:
    """Return the pattern by the arguments that name peers; "" if they do not show it.

    Args:
        node: the call.
        interface: the interface that is called.
        settings: the expressions that variables are set to.
        first: position in the call of the interface's first argument.
    """
    found = [
        node.args[place + first] for place in interface.peers if place + first < len(node.args)
    ]
    found += [keyword.value for keyword in node.keywords if keyword.arg in interface.keywords]
    return pattern_of_choices([_choices(one, settings) for one in found], pair=False)


def grid_pattern(node: ast.Call, settings: Settings) -> str:
    """Return the pattern of the grid that Create_cart sets up, by its number of dimensions."""
    given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "dims")]
    axes = {
        _count_axes(one) for expression in given for one in _possible_values(expression, settings)
    }
    return pattern_of_grid(axes.pop() if len(axes) == 1 else None)


def amount_of(node: ast.Call, settings: Settings) -> Amount:
    """Return how much is moved, as far as the first argument shows."""
    given = node.args[0] if node.args else next((one.value for one in node.keywords), None)
    if given is None:
        return "unknown"
    choices = [given, *(one for one in _possible_values(given, settings) if one is not None)]
    text = " ".join(ast.unparse(one)[:_LONGEST] for one in choices)
    if _GRADIENTS.search(text):
        return "large"
    return "small" if any(map(_is_small, choices)) or _is_named_scalar(given) else "unknown"


def is_alone(name: str, call: ast.Call) -> bool:
    """Return whether a trainer or server is set to use one GPU, or none."""
    if any(one.arg is None for one in call.keywords):  # **options may set anything
        return False
    if name in ("vllm.LLM", "vllm.EngineArgs", "vllm.AsyncEngineArgs"):
        return _number(call, "tensor_parallel_size") in (None, 1)
    if name.endswith((".Trainer", ".Fabric")):
        accelerator = argument(call, "accelerator")
        if isinstance(accelerator, ast.Constant) and accelerator.value == "cpu":
            return True
        one_gpu = 1 in (_number(call, "devices"), _number(call, "gpus"))
        return one_gpu and _number(call, "num_nodes") in (None, 1)
    return False


def argument(call: ast.Call, name: str) -> ast.expr | None:
    """Return a keyword argument; None if it is missing."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def _number(call: ast.Call, name: str) -> int | None:
    """Return a keyword argument that is a number, or the length of a list of GPUs.

    Returns:
        -1 if it is anything else, None if it is missing.
    """
    given = argument(call, name)
    if given is None:
        return None
    if isinstance(given, (ast.List, ast.Tuple)):
        plain = not any(isinstance(one, ast.Starred) for one in given.elts)
        return len(given.elts) if plain else -1
    value = given.value if isinstance(given, ast.Constant) else None
    if isinstance(value, str):
        return int(value) if _DIGITS.fullmatch(value) else -1
    return int(value) if isinstance(value, (int, float)) and value in range(_MOST_GPUS) else -1


def last_name(expression: ast.expr) -> str:
    """Return the last part of a dotted name; "" for any other expression."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _choices(expression: ast.expr, settings: Settings) -> list[Words]:
    return [_split_words(one) for one in _possible_values(expression, settings)]


def _possible_values(expression: ast.expr, settings: Settings) -> Sequence[ast.expr | None]:
    """Return the values of a variable, but for those that it is itself a part of."""
    name, known = last_name(expression), settings(expression)
    if len(known) > _MOST_SETTINGS:
        return [expression]
    found = [
        one for one in known if one is None or name not in [last_name(part) for part in _names(one)]
    ]
    return found or [expression]


def _names(expression: ast.expr) -> list[ast.expr]:
    return [one for one in ast.walk(expression) if isinstance(one, (ast.Name, ast.Attribute))]


def _split_words(expression: ast.expr | None) -> Words:
    return _WORD.findall(ast.unparse(expression)[:_LONGEST]) if expression is not None else ["?"]


def _count_axes(expression: ast.expr | None) -> int | None:
    if isinstance(expression, (ast.List, ast.Tuple)):
        return len(expression.elts)
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        last = expression.args[-1] if expression.args else None
        if expression.func.attr == "Compute_dims" and isinstance(last, ast.Constant):
            return last.value if isinstance(last.value, int) else None
    return None


def _is_small(expression: ast.expr) -> bool:
    """Return whether an expression is a few numbers: `x.item()`, `torch.zeros(1)`, `3.0`."""
    if isinstance(expression, ast.Constant):
        return True
    if not isinstance(expression, ast.Call):
        return False
    function = expression.func
    name = last_name(function)
    if name in ("to", "cuda", "clone", "detach", "float", "double", "unsqueeze") and isinstance(
        function, ast.Attribute
    ):
        return _is_small(function.value)
    if name in ("item", "get_rank"):
        return True
    makes = _SMALL_MAKER.fullmatch(name) and expression.args
    return bool(makes) and all(map(_is_short, expression.args))


def _is_short(argument: ast.expr) -> bool:
    if isinstance(argument, (ast.List, ast.Tuple)):
        return len(argument.elts) <= 64 and all(
            isinstance(one, (ast.Name, ast.Constant, ast.Attribute, ast.Call)) or _is_short(one)
            for one in argument.elts
        )
    if isinstance(argument, ast.Constant):
        return not isinstance(argument.value, int) or argument.value <= 1024
    return isinstance(argument, ast.Call) and _is_small(argument)


def _is_named_scalar(expression: ast.expr) -> bool:
    """Return whether an expression has a name such as loss or accuracy."""
    name = expression
    while isinstance(name, ast.Call) and isinstance(name.func, ast.Attribute):
        name = name.func.value
    return bool(_SCALARS.fullmatch(last_name(name)))
