"""Write anew what is generated in docs/: `python docs/generate.py`, from any directory.

A file here is generated whole, or between two marks in what people wrote. To generate another one,
add a function for it to GENERATED; tests/unit/test_generated_docs.py then holds the file to it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpulaunch.cli.completion import all_parsers
from gpulaunch.launch.options import SETTINGS
from gpulaunch.placement.policies import DEFAULT_POLICY, POLICIES
from gpulaunch.profiles.profile import Part, Profile, Section

DOCS = Path(__file__).parent

_IN_SEVERAL = ("source", "measured_on", "incomplete")
"""Keys that mean the same in each section; the page says so once."""


def _profiles(text: str) -> str:
    return _with_part(text, "keys", _key_table())


def _key_table() -> str:
    """Return the keys of a profile with their meanings."""
    return "\n".join(["| key | meaning |", "|---|---|", *_key_rows(Profile), ""])


def _key_rows(section: type[Section]) -> Iterator[str]:
    for name, key in section.keys.items():
        if isinstance(key, Part):
            yield f"| **`[{name}]`** | {key.meaning} |"
            yield from _key_rows(key.section)
        elif name not in _IN_SEVERAL:
            yield f"| `{name}` | {key.meaning} |"


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
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [
        re.sub(r"(?<![\w'-])(--?[a-z][a-z-]*)(?!\w|=)", r"`\1`", part) for part in parts[::2]
    ]
    return "".join(parts)


def _settings(text: str) -> str:
    return _with_part(text, "settings", _settings_table(text))


def _settings_table(text: str) -> str:
    """Return a row for each setting; its default stays as people wrote it."""
    written = {cells[0]: cells for cells in _rows(text)}
    lines = ["| setting | option, or what it does | default |", "|---|---|---|"]
    for name, row in SETTINGS.items():
        flags = ", ".join(f"`{flag}`" for flag in filter(None, (*row.flags, row.no)))
        *_, default = written.get(f"`{name}`", ("",))
        if not default:
            raise ValueError(f"reference/settings.md does not say the default of {name}")
        meaning = flags or _marked(row.text).replace("|", r"\|")
        lines.append(f"| `{name}` | {meaning} | {default} |")
    return "\n".join(lines) + "\n"


def _rows(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the rows of tables with three columns."""
    for line in text.splitlines():
        cells = tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        if len(cells) == 3:
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
