"""Values on the command line that override a profile: `--set KEY=VALUE`."""
# pure: decides on plain values

import json
from collections.abc import Sequence

from gpulaunch.errors import FieldError, UsageError, printable, quoted
from gpulaunch.files.fields import checked, unknown
from gpulaunch.files.size import parse_size
from gpulaunch.files.toml_parser import tomllib
from gpulaunch.profiles.document.inherit import merged
from gpulaunch.profiles.document.section import Key, Part
from gpulaunch.profiles.profile import Profile, Variant, parse_profile
from gpulaunch.typing import Any

_ANY_NAME = "job"  # stands for a name with a variant, which no file may have

_SHORT = {"memory": "resources.memory_mib"}
"""Other short names for keys than their last part."""


def overridden(profile: Profile, options: Sequence[tuple[str, str]]) -> Profile:
    """Return a profile with other values; if a key is set twice, the last value counts.

    Args:
        profile: any profile, even an empty one.
        options: for each option, how it was written, and KEY=VALUE. KEY is `section.key`, or the
            key alone where only one section has it, and may have TOML's quotes; `memory` is the
            memory of one GPU, such as 12GiB.

    Raises:
        UsageError: a key is unknown or could be several, or its value has the wrong type or range.

    Example:
        >>> options = [("--set", "memory=1GiB"), ("--set", "pattern=ring")]
        >>> changed = overridden(Profile({"name": "job"}), options)
        >>> changed.resources.memory_mib, changed.resources.source, changed.communication.pattern
        (1024, '--set memory=1GiB', 'ring')
    """
    own: dict[str, Any] = {}
    for option, text in options:
        said = f"{option} {text}"
        try:
            _put(own, said, *_read(text))
        except (FieldError, UsageError) as problem:
            raise UsageError(f"{printable(said)}: {problem.message}") from None
    under = {"name": "", **profile.document}
    for name in own.keys() & under.keys():
        key = Profile.keys[name]
        if isinstance(key, Part) and key.section.is_one_measurement:
            own[name] = {**under[name], **own[name]}
    try:
        found = merged(under, own, f"profile {profile.name}")
        return parse_profile({**found, "name": _ANY_NAME}).but(name=under["name"])
    except FieldError as problem:
        written = " ".join(f"{option} {text}" for option, text in options)
        raise UsageError(f"{printable(written)}: {problem.message}") from None


def _put(own: dict[str, Any], said: str, path: Sequence[str], value: object) -> None:
    """Put a value where it belongs, with the option as its section's source."""
    if len(path) == 1:
        own[path[0]] = value
        return
    section = own.setdefault(path[0], {})
    if "source" in _part(path[0]).section.keys and path[1] != "source":
        section["source"] = " ".join(filter(None, (section.get("source"), said)))
    if len(path) > 2:  # a name in a table
        section = section.setdefault(path[1], {})
    section[path[-1]] = value


def _read(text: str) -> tuple[tuple[str, ...], object]:
    """Return the full key, part by part, and its checked value."""
    path, said = _split(text)
    key = _key(path)
    value = _value(key, path, said)
    table = {path[2]: value} if len(path) > 2 else value
    checked({key.name: table}, {key.name: key.rule})
    return path, value


def _split(text: str) -> tuple[tuple[str, ...], str]:
    """Split KEY=VALUE into the key's parts and the value; a name in a table may contain `=`."""
    name, equals, said = text.partition("=")
    if not equals or not name:
        raise UsageError("it is not KEY=VALUE")
    if '"' in name or "'" in name:
        return _split_quoted(text)
    if name in _SHORT and said.isdecimal():  # no unit is in that name, so a number is bytes
        said += "B"
    path = _path(_SHORT.get(name, name))
    if len(path) > 2:  # such tables contain only numbers
        name, _, said = text.rpartition("=")
        path = _path(name)
    return path, said


def _split_quoted(text: str) -> tuple[tuple[str, ...], str]:
    """Split KEY=VALUE where the key has TOML's quotes."""
    for at, character in enumerate(text):
        if character == "=" and (parts := _toml_key(text[:at])):
            return _path(".".join(parts)), text[at + 1 :]
    raise UsageError("it is not KEY=VALUE, with KEY as in TOML where it has quotes")


def _toml_key(text: str) -> list[str]:
    """Return the parts of a key such as `a.b."c=d"`; an empty list if it is no key."""
    try:
        rest: Any = tomllib.loads(f"{text} = 0")
    except ValueError:
        return []
    parts = []
    while isinstance(rest, dict) and len(rest) == 1:
        ((part, rest),) = rest.items()
        parts.append(part)
    return parts


def _path(name: str) -> tuple[str, ...]:
    """Return the section and the key, or a top-level key alone, or section, table and free name."""
    first, dot, rest = name.partition(".")
    if isinstance(Variant.keys.get(first), Part):
        if not dot:
            raise UsageError(f"{quoted(first)} is a section: write {first}.KEY=VALUE")
        key, _, other = rest.partition(".")
        if key not in _part(first).section.keys:
            raise UsageError(unknown(key, _part(first).section.keys))
        return (first, key, other) if other else (first, key)
    if name in Variant.keys:
        return (name,)
    found = [
        section
        for section, key in Variant.keys.items()
        if isinstance(key, Part) and name in key.section.keys
    ]
    if len(found) == 1:
        return (found[0], name)
    if found:
        raise UsageError(
            f"{quoted(name)} could be {' or '.join(f'{section}.{name}' for section in found)}"
        )
    raise UsageError(_unknown_key(name))


def _unknown_key(name: str) -> str:
    keys = {
        key for part in Variant.keys.values() if isinstance(part, Part) for key in part.section.keys
    }
    _, found, nearest = unknown(name, [*keys, *_SHORT, *Variant.keys]).rpartition(": nearest is ")
    return f"unknown key {quoted(name)}" + (f": nearest is {nearest}" if found else "")


def _part(name: str) -> Part[Any]:
    part = Profile.keys[name]
    assert isinstance(part, Part)  # noqa: S101  callers ask for sections only
    return part


def _key(path: Sequence[str]) -> Key[Any]:
    return Variant.keys[path[0]] if len(path) == 1 else _part(path[0]).section.keys[path[1]]


def _value(key: Key[Any], path: Sequence[str], said: str) -> object:
    """Convert the text from the command line to the type that the key's rule wants."""
    if key.rule is str:
        return said
    if isinstance(key.rule, tuple) and isinstance(key.rule[0], str):
        return said if said in key.rule else said.replace("-", "_")
    if path[-1] == "memory_mib" and not said.isdecimal():
        return -(-parse_size(said).of_gpu_bytes >> 20)
    try:
        return json.loads(said)
    except ValueError:
        return said  # the rule's check reports what it should have been
