"""The door to PyYAML: documents with the line of each mistake. Only this file imports it."""

from gpulaunch.errors import FieldError, UsageError
from gpulaunch.files.extras import install_hint
from gpulaunch.typing import Any


class Lined(dict[str, Any]):
    """A mapping of a YAML document.

    Attributes:
        line: line where it begins.
    """

    line = 0


def parse_yaml(text: str) -> Any:  # noqa: ANN401
    """Parse YAML: tables become Lined, and nothing but plain values is made.

    Raises:
        FieldError: the text is no YAML; its path is the line.
        UsageError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise UsageError("YAML needs PyYAML", install_hint("cluster")) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """A loader that keeps the lines of tables."""

    def make_table(loader: Any, node: Any) -> Any:  # noqa: ANN401
        table = Lined()
        table.line = node.start_mark.line + 1
        yield table
        table.update(loader.construct_mapping(node))

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, make_table)
    try:
        return yaml.load(text, Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        said = getattr(problem, "problem", None) or "cannot be read"
        raise FieldError((mark.line + 1,) if mark else (), f"no YAML: {said}") from None
    except (RecursionError, ValueError, TypeError) as problem:
        raise FieldError((), f"no YAML: {problem}") from None
