"""The format of profiles for readers: as a JSON Schema, and as a Markdown table."""
# pure: decides on plain values

from collections.abc import Callable, Iterator, Mapping

from gpulaunch.files.fields import Above, ListOf, OneOrEach, RowOf, TableOf
from gpulaunch.profiles.document.section import Key, Part, Section
from gpulaunch.profiles.profile import Profile, Variant
from gpulaunch.records import Record
from gpulaunch.typing import Any

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_TYPES: Mapping[type, str] = {str: "string", bool: "boolean", dict: "object", list: "array"}
_WORDS: Mapping[type, str] = {str: "text", bool: "true or false", dict: "table", list: "list"}
_MOST_WORDS = 3  # that fit into a cell of the table
_LONG = 10**6  # a power of two above this is written as a power
_EXCLUSIVE = {
    "not": {
        "properties": {"single_node": {"const": True}, "one_per_node": {"const": True}},
        "required": ["single_node", "one_per_node"],
    }
}


def profile_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a profile's parsed TOML.

    It accepts every valid profile. What no schema can say is left to `gpulaunch profiles check`:
    that both lists of a curve have equal lengths and its shares ascend, that a graph is connected,
    that a base exists.
    """
    schema = _section_schema(Profile)
    variant = _section_schema(Variant)
    names = {"pattern": r"^[^@,/]*[^@,/\s][^@,/]*$"}
    variants = {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": {"$ref": "#/$defs/variant"},
    }
    schema["properties"]["variants"] |= variants
    schema["properties"]["name"] |= {"pattern": r"^[^@/]*[^@/\s][^@/]*$"}
    return {
        "$schema": DIALECT,
        "title": "gpulaunch profile",
        **schema,
        "$defs": {"variant": variant},
    }


def _section_schema(section: type[Section]) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _key_schema(key) for name, key in section.keys.items()},
        "additionalProperties": False,
    }
    if section.required:
        schema["required"] = list(section.required)
        for name in section.required:
            if section.keys[name].rule is str:
                schema["properties"][name] |= {"pattern": r"\S"}
    if section.together:
        schema["dependentRequired"] = {
            name: [other for other in section.together if other != name]
            for name in section.together
        }
    return schema | (_EXCLUSIVE if "one_per_node" in section.keys else {})


def _key_schema(key: Key[Any]) -> dict[str, Any]:
    found = _section_schema(key.section) if isinstance(key, Part) else _rule_schema(key.rule)
    return {"description": key.meaning, **found}


def _rule_schema(rule: Any) -> dict[str, Any]:  # noqa: ANN401  see AnyRule
    """Return the schema of a rule of gpulaunch.files.fields."""
    return _FORMS[type(rule)].schema(rule)


def key_table() -> str:
    """Return the table of docs/reference/profiles.md: every key, its range and its meaning."""
    return "\n".join(["| key | value | meaning |", "|---|---|---|", *_rows(Profile), ""])


def _rows(section: type[Section]) -> Iterator[str]:
    for name, key in section.keys.items():
        if isinstance(key, Part):
            yield f"| **`[{name}]`** | | {key.meaning}{_needed(key.section)} |"
            yield from _rows(key.section)
        else:
            yield f"| `{name}` | {_range(key.rule)} | {key.meaning} |"


def _needed(section: type[Section]) -> str:
    return (
        f"; {', '.join(f'`{name}`' for name in section.required)} required"
        if section.required
        else ""
    )


def _range(rule: Any) -> str:  # noqa: ANN401  see AnyRule
    """Describe in a few words what a rule admits."""
    return _FORMS[type(rule)].words(rule)


class _Form(Record):
    """The description of one kind of rule: as a schema, and in words."""

    schema: Callable[[Any], dict[str, Any]]
    words: Callable[[Any], str]


def _list_schema(rule: ListOf) -> dict[str, Any]:
    return {
        "type": "array",
        "items": _rule_schema(rule.rule),
        "minItems": rule.least,
        "maxItems": rule.most,
    }


def _row_schema(rule: RowOf) -> dict[str, Any]:
    values = [_rule_schema(one) for one in rule.rules]
    return {
        "type": "array",
        "prefixItems": values,
        "minItems": len(values),
        "maxItems": len(values),
    }


def _names_schema(rule: TableOf) -> dict[str, Any]:
    return {"propertyNames": {"enum": list(rule.names)}} if rule.names else {}


def _one_or_each_schema(rule: OneOrEach) -> dict[str, Any]:
    one = _rule_schema(rule.rule)
    return {"anyOf": [one, {"type": "array", "items": one}]}


def _words_or_range_schema(rule: tuple[Any, Any]) -> dict[str, Any]:
    if isinstance(rule[0], str):
        return {"enum": list(rule)}
    return {
        "type": "integer" if _is_whole(rule) else "number",
        "minimum": rule[0],
        "maximum": rule[1],
    }


def _words_or_range(rule: tuple[Any, Any]) -> str:
    if isinstance(rule[0], str):
        return "a word" if len(rule) > _MOST_WORDS else " or ".join(f"`{word}`" for word in rule)
    low, high = rule
    most = f"2^{high.bit_length() - 1}" if isinstance(high, int) and high > _LONG else f"{high:g}"
    return f"{'whole, ' * _is_whole(rule)}{low:g} to {most}"


def _is_whole(rule: tuple[Any, Any]) -> bool:
    return all(isinstance(bound, int) for bound in rule)


_FORMS: Mapping[type, _Form] = {
    type: _Form(lambda rule: {"type": _TYPES[rule]}, lambda rule: _WORDS[rule]),
    tuple: _Form(_words_or_range_schema, _words_or_range),
    OneOrEach: _Form(_one_or_each_schema, lambda rule: _range(rule.rule)),
    Above: _Form(
        lambda rule: {"type": "number", "exclusiveMinimum": rule.least, "maximum": rule.most},
        lambda rule: f"above {rule.least:g}, to {rule.most:g}",
    ),
    ListOf: _Form(_list_schema, lambda rule: f"list: {_range(rule.rule)}"),
    RowOf: _Form(_row_schema, lambda rule: "; ".join(map(_range, rule.rules))),
    TableOf: _Form(
        lambda rule: {
            "type": "object",
            **_names_schema(rule),
            "additionalProperties": _rule_schema(rule.rule),
        },
        lambda rule: f"table: {_range(rule.rule)}",
    ),
}
