"""Write anew what is generated in docs/: `python docs/generate.py`, from any directory.

A file here is generated whole, or between two marks in what people wrote. To generate another one,
add a function for it to GENERATED; tests/unit/test_generated_docs.py then holds the file to it.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpulaunch.cli.completion import all_parsers
from gpulaunch.decide.placement.policies import DEFAULT_POLICY, POLICIES
from gpulaunch.files.fields import Above, ListOf, OneOrEach, RowOf, TableOf
from gpulaunch.launch.options import SETTINGS
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.keys import Part, Section
from gpulaunch.profiles.layers import variants_of
from gpulaunch.profiles.profile import Profile

DOCS = Path(__file__).parent

_WORDS: Mapping[type, str] = {str: "text", bool: "true or false", dict: "table", list: "list"}
_MOST_WORDS = 3  # that fit into a cell of the table
_LONG = 10**6  # a power of two above this is written as a power


def _profiles(text: str) -> str:
    return _with_part(_with_part(text, "keys", _key_table()), "library", _library())


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


def _library() -> str:
    """Return a table of the shipped profiles, with what may be asked of each after an @."""
    lines = ["| profile | after an `@` | what it is | pattern |", "|---|---|---|---|"]
    shipped = DOCS.parent / "profiles"
    for path in (
        path
        for kind in ("workloads", "benchmarks")
        for path in sorted((shipped / kind).glob("*.toml"))
    ):
        profile = load_profile(str(path))
        asked = ", ".join(f"`{variant}`" for variant in variants_of(profile))
        pattern = profile.communication.pattern or ""
        lines.append(f"| `{profile.name}` | {asked} | {profile.description} | {pattern} |")
    return "\n".join(lines) + "\n"


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

What `gpulaunch help COMMAND` prints. Most options of a launch are also [settings](settings.md);
commands that print data take `--json` ([keys](json.md)). Options of a launch stand before the word
`docker` or `podman`; what follows is that program's ([containers](../guides/containers.md)).
"""


def _commands(_: str) -> str:
    """Return the page of all commands, from their parsers."""
    launch, *others = all_parsers().values()
    known = {_option_row(action) for action in launch._actions}  # noqa: SLF001
    parts = [_COMMANDS_HEAD, _command(launch, set()), *(_command(one, known) for one in others)]
    return "\n".join(parts)


def _command(parser: argparse.ArgumentParser, known: set[str]) -> str:
    """Return a command's section: what it does, its usage, and tables of its options.

    Args:
        parser: the command's.
        known: rows of options that are only named, because another section explains them.
    """
    lines = [f"## {parser.prog}", "", _about(parser.description or ""), ""]
    lines += ["```", *_usage(parser).splitlines(), "```", ""]
    named = []
    for group in parser._action_groups:  # noqa: SLF001 - argparse has no other door to them
        rows = [_option_row(action) for action in group._group_actions]  # noqa: SLF001
        named += [row.split("`")[1].split()[0] for row in rows if row in known - {""}]
        rows = [row for row in rows if row and row not in known]
        if rows:
            title = str(group.title)[:1].upper() + str(group.title)[1:]
            head = "argument" if title == "Positional arguments" else "option"
            own = title not in ("Options", "Positional arguments")
            lines += [f"### {title}", ""] if own else []
            lines += [f"| {head} | what it is |", "|---|---|", *rows, ""]
    if named:
        names = ", ".join(f"`{name.rstrip(',')}`" for name in named)
        lines += [f"As for [a launch](#gpulaunch): {names}.", ""]
    if parser.epilog and "example: " in parser.epilog:
        lines += [f"Example: `{parser.epilog.removeprefix('example: ')}`", ""]
    return "\n".join(lines)


def _about(text: str) -> str:
    """Return a description, with the lines that are indented in it as code."""
    return _marked(re.sub(r"\n  (\S.*)\n", r"\n\n    \1\n\n", text))


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage; argparse's own differs between versions of Python."""
    if parser.usage:
        return re.sub(r"\n\s+", "\n", parser.usage)
    ways = {None: "{}", "?": "[{}]", "*": "[{}...]", "+": "{}..."}
    places = [
        ways[action.nargs].format(_value(action)) if isinstance(action.nargs, str | None) else ""
        for action in parser._get_positional_actions()  # noqa: SLF001
    ]
    return " ".join([parser.prog, "[OPTIONS]", *places])


def _option_row(action: argparse.Action) -> str:
    """Return a row of a table for an option or an argument; "" for --help."""
    if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:  # noqa: SLF001
        return ""
    names = ", ".join(action.option_strings)
    value = "" if action.option_strings and action.nargs == 0 else _value(action)
    if action.option_strings and action.nargs == "?":
        value = f"[{value}]"
    shown = f"{names} {value}".strip().replace("|", r"\|")
    text = _marked((action.help or "") % vars(action)).replace("|", r"\|")
    return f"| `{shown}` | {text} |"


def _value(action: argparse.Action) -> str:
    if action.metavar is None and action.choices:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


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
    """Return a row for each setting; its default stays as people wrote it."""
    written = {cells[0]: cells for cells in _rows(text)}
    lines = ["| setting | option | what it does | default |", "|---|---|---|---|"]
    for name, row in SETTINGS.items():
        flags = ", ".join(f"`{flag}`" for flag in filter(None, (*row.flags, row.no)))
        *_, default = written.get(f"`{name}`", ("",))
        if not default:
            raise ValueError(f"reference/settings.md does not say the default of {name}")
        meaning = _marked(row.text).replace("|", r"\|")
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
