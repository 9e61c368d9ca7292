"""The format of profiles as a JSON Schema."""
# pure: decides on plain values

from collections.abc import Callable, Mapping

from gpulaunch.files.fields import Above, ListOf, OneOrEach, RowOf, TableOf
from gpulaunch.profiles.document.section import Key, Part, Section
from gpulaunch.profiles.profile import Profile, Variant
from gpulaunch.typing import Any

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_TYPES: Mapping[type, str] = {str: "string", bool: "boolean", dict: "object", list: "array"}
_EXCLUSIVE = {
    "not": {
        "properties": {"single_node": {"const": True}, "one_per_node": {"const": True}},
        "required": ["single_node", "one_per_node"],
    }
}


def profile_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a profile's parsed TOML.

    It accepts every valid profile. What no schema can say is left to `gpulaunch profile show FILE`:
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
    return _FORMS[type(rule)](rule)


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


def _is_whole(rule: tuple[Any, Any]) -> bool:
    return all(isinstance(bound, int) for bound in rule)


_FORMS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    type: lambda rule: {"type": _TYPES[rule]},
    tuple: _words_or_range_schema,
    OneOrEach: _one_or_each_schema,
    Above: lambda rule: {
        "type": "number",
        "exclusiveMinimum": rule.least,
        "maximum": rule.most,
    },
    ListOf: _list_schema,
    RowOf: _row_schema,
    TableOf: lambda rule: {
        "type": "object",
        **_names_schema(rule),
        "additionalProperties": _rule_schema(rule.rule),
    },
}
