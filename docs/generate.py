"""Write anew what is generated in docs/: `python docs/generate.py`, from any directory.

A file here is generated whole, or between two marks in what people wrote. To generate another one,
add a function for it to GENERATED; tests/unit/test_generated_docs.py then holds the file to it.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.document.inherit import variants_of
from gpulaunch.profiles.document.schema import key_table, profile_schema
from gpulaunch.show.policy_table import policy_table

DOCS = Path(__file__).parent


def _profile_schema(_: str) -> str:
    return json.dumps(profile_schema(), indent=2) + "\n"


def _profiles(text: str) -> str:
    return _with_part(_with_part(text, "keys", key_table()), "library", _library())


def _library() -> str:
    """Return a table of the shipped profiles, with what may be asked of each after an @."""
    lines = ["| profile | after an `@` | what it is | pattern |", "|---|---|---|---|"]
    for path in sorted((DOCS.parent / "profiles" / "workloads").glob("*.toml")):
        profile = load_profile(str(path))
        asked = ", ".join(f"`{variant}`" for variant in variants_of(profile))
        pattern = profile.communication.pattern or ""
        lines.append(f"| `{profile.name}` | {asked} | {profile.description} | {pattern} |")
    return "\n".join(lines) + "\n"


def _placement(text: str) -> str:
    return _with_part(text, "policies", policy_table())


GENERATED: Mapping[str, Callable[[str], str]] = {
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
