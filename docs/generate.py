"""Write anew what is generated in docs/: `python docs/generate.py`, from any directory.

A file here is generated whole, or between two marks in what people wrote. To generate another one,
add a function for it to GENERATED; tests/unit/test_generated_docs.py then holds the file to it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpulaunch.cli import help as cli_help
from gpulaunch.cli.grammar import all_parsers
from gpulaunch.cli.options import launch_options
from gpulaunch.decide.placement.policies import DEFAULT_POLICY, POLICIES
from gpulaunch.files.fields import Above, ListOf, OneOrEach, RowOf, TableOf
from gpulaunch.launch.settings import SETTINGS
from gpulaunch.profiles.document.schema import profile_schema
from gpulaunch.profiles.document.section import Part, Section
from gpulaunch.profiles.profile import Profile

DOCS = Path(__file__).parent

_WORDS: Mapping[type, str] = {str: "text", bool: "true or false", dict: "table", list: "list"}
_MOST_WORDS = 3  # that fit into a cell of the table
_LONG = 10**6  # a power of two above this is written as a power


def _profile_schema(_: str) -> str:
    return json.dumps(profile_schema(), indent=2) + "\n"


def _profiles(text: str) -> str:
    return _with_part(text, "keys", _key_table())


def _key_table() -> str:
    """Return every key of a profile, its range and its meaning."""
    return "\n".join(["| key | value | meaning |", "|---|---|---|", *_key_rows(Profile), ""])


def _key_rows(section: type[Section]) -> Iterator[str]:
    for name, key in section.keys.items():
        if isinstance(key, Part):
            yield f"| **`[{name}]`** | | {key.meaning}{_needed(key.section)} |"
            yield from _key_rows(key.section)
        else:
            yield f"| `{name}` | {_range(key.rule)} | {key.meaning} |"


def _needed(section: type[Section]) -> str:
    return (
        f"; {', '.join(f'`{name}`' for name in section.required)} required"
        if section.required
        else ""
    )


def _range(rule: Any) -> str:  # noqa: ANN401  see AnyRule
    """Describe in a few words what a rule of gpulaunch.files.fields admits."""
    match rule:
        case type():
            return _WORDS[rule]
        case OneOrEach():
            return _range(rule.rule)
        case Above():
            return f"above {rule.least:g}, to {rule.most:g}"
        case ListOf() | TableOf():
            return f"{'list' if isinstance(rule, ListOf) else 'table'}: {_range(rule.rule)}"
        case RowOf():
            return "; ".join(map(_range, rule.rules))
    return _words_or_range(rule)


def _words_or_range(rule: tuple[Any, Any]) -> str:
    if isinstance(rule[0], str):
        return "a word" if len(rule) > _MOST_WORDS else " or ".join(f"`{word}`" for word in rule)
    low, high = rule
    is_whole = isinstance(low, int) and isinstance(high, int)
    most = f"2^{high.bit_length() - 1}" if isinstance(high, int) and high > _LONG else f"{high:g}"
    return f"{'whole, ' * is_whole}{low:g} to {most}"


def policy_table() -> str:
    """Return the policies, what each compares and its source."""
    default_first = sorted(POLICIES, key=lambda name: name != DEFAULT_POLICY)
    lines = ["| policy | compares, or makes | source |", "|---|---|---|"]
    for name in default_first:
        shown = f"`{name.replace('_', '-')}`"
        if name == DEFAULT_POLICY:
            shown += ", the default"
        lines.append(f"| {shown} | {POLICIES[name].help} | {POLICIES[name].source} |")
    return "\n".join([*lines, ""])


def _placement(text: str) -> str:
    return _with_part(text, "policies", policy_table())


_COMMANDS_HEAD = """\
# Commands

`gpulaunch help COMMAND` explains a command with its options, `gpulaunch help launch` all options
of a launch, and `gpulaunch help settings` all [settings](settings.md). Commands that print data
take `--json` ([keys](json.md)).

| command | what it does |
|---|---|
"""


def _commands(_: str) -> str:
    """Return the page of all commands: the first sentence of what each parser says of its own."""
    lines = []
    for words, parser in all_parsers().items():
        shown = f"gpulaunch {words}" if words else "gpulaunch [OPTIONS] -- COMMAND"
        sentence = re.split(r"[.:;] | \(|[.:]$|[.:]\n", parser.description or "", maxsplit=1)[0]
        lines.append(f"| `{shown}` | {_marked(sentence)} |\n")
    return _COMMANDS_HEAD + "".join(lines)


def _marked(text: str) -> str:
    """Return plain text as Markdown: what is typed as code, other documents as links."""
    text = re.sub(r"'(gpulaunch [^']+)'", r"`\1`", text)
    text = re.sub(r"docs/((\w+)/(\w+)\.md)", r"[\3](../\1)", text)
    parts = re.split(r"(`[^`]*`|\n    .*\n)", text)
    parts[::2] = [
        re.sub(r"(?<![\w'-])(--?[a-z][a-z-]*)(?!\w|=)", r"`\1`", part) for part in parts[::2]
    ]
    return "".join(parts)


def _settings(text: str) -> str:
    return _with_part(text, "settings", _settings_table(text))


def _settings_table(text: str) -> str:
    """Return a row for each setting; what has no source in the code stays as people wrote it."""
    written = {cells[0]: cells for cells in _rows(text)}
    lines = ["| setting | option | what it does | default |", "|---|---|---|---|"]
    for name in SETTINGS:
        options = [option for option in launch_options() if option.name == name]
        flags = ", ".join(f"`{flag}`" for option in options for flag in option.flags)
        _, _, meaning, default = written.get(f"`{name}`", ("", "", "", ""))
        if options:
            text = options[0].help.format(**cli_help.policy_words()) % ()
            meaning = _marked(text).replace("|", r"\|")
        if not meaning or not default:
            raise ValueError(f"reference/settings.md does not say what {name} is, or its default")
        lines.append(f"| `{name}` | {flags} | {meaning} | {default} |")
    return "\n".join(lines) + "\n"


def _rows(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the rows of tables with four columns."""
    for line in text.splitlines():
        cells = tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        if len(cells) == 4:
            yield cells


GENERATED: Mapping[str, Callable[[str], str]] = {
    "reference/commands.md": _commands,
    "reference/settings.md": _settings,
    "reference/profile.schema.json": _profile_schema,
    "reference/profiles.md": _profiles,
    "explanation/placement.md": _placement,
}
"""Name of a file in docs/ -> function that makes its text of the text it has."""


def _with_part(text: str, name: str, part: str) -> str:
    """Return a text with another part between its marks, `<!-- NAME -->` and `<!-- /NAME -->`."""
    before, begin, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not end:
        raise ValueError(f"no part between <!-- {name} --> and <!-- /{name} -->")
    return before + begin + part + end + after


def main(docs: Path = DOCS) -> None:
    """Write the files whose text has changed, and name them."""
    for name, generate in GENERATED.items():
        path = docs / name
        text = path.read_text() if path.exists() else ""
        new = generate(text)
        if new != text:
            path.write_text(new)
            print(f"written: {path}")


if __name__ == "__main__":
    main()
