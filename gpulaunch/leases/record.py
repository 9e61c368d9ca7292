"""Documents of leases, tickets and past jobs, both ways, and what others may read of a command.

A record class says what there is; rules say what a document, which another version may have
written, can say of each field. A key that is unknown here, or a value in a form that is unknown
here, counts as missing, unless the field is needed.
"""
# pure: decides on plain values

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from gpulaunch.errors import FieldError
from gpulaunch.files.fields import AnyRule, FieldTable, ListOf, RowOf, checked
from gpulaunch.machine.topology import TableKey
from gpulaunch.process import Process
from gpulaunch.records import Record, as_dict, as_list, default_values

R = TypeVar("R", bound=Record)
Readers = Mapping[str, Callable[[Any], Any]]
_NO_READERS: Readers = {}

VERSION = 1
"""Version of this reader. A record's `version` is the oldest reader that understands it: it grows
only with a change that an older reader must not overlook, never with a new key alone."""

UNKNOWN_TIME = "1970-01-01T00:00:00Z"
"""Time in a record that does not tell it in a form that this version understands."""

PROCESS = RowOf((0, 1 << 62), (0, 1 << 62))
"""Rule for a process: its pid and start time."""

TABLE_KEY = RowOf(str, str, str)
"""Rule for the key of a described machine."""

_RECORD_OF = {PROCESS: Process, TABLE_KEY: TableKey}
"""The records whose documents are rows of their fields."""

_BY_TYPE: Mapping[object, AnyRule] = {
    bool: bool,
    bool | None: bool,
    str: str,
    str | None: str,
    tuple[str, ...]: ListOf(str),
    float: (0.0, float(1 << 53)),
    float | None: (0.0, float(1 << 53)),
    Process: PROCESS,
    TableKey | None: TABLE_KEY,
}


def rules_of(
    cls: type[Record], *, without: Collection[str] = (), **others: AnyRule
) -> dict[str, AnyRule]:
    """Return the rule of each field of a record, by its type.

    Args:
        without: fields that no document has.
        others: rules of fields of which the type says too little.
    """
    return {
        name: others.get(name) or _BY_TYPE[type_]
        for name, type_ in cls.__annotations__.items()
        if name not in without
    }


MAX_COMMAND_CHARACTERS = 16384

WRITTEN_BYTES = 8192
"""Size of a record up to which its command is kept whole: every launcher reads every record."""

MAX_UNLOCKED_BYTES = 4096
"""Largest record that counts without a process that holds it, as a container's can."""


class NewerRecordError(FieldError):
    """A record of a later version, which says that this version does not understand it."""

    def __init__(self, version: int) -> None:
        super().__init__(
            ("version",), f"it needs a gpulaunch that reads version {version} of the records"
        )


_DIGITS_AS_ZERO = str.maketrans("123456789", "000000000")


def check_version(document: object) -> None:
    """Check that a record does not need a later reader.

    Raises:
        NewerRecordError: it does.
    """
    if not isinstance(document, Mapping):
        raise FieldError((), f"{document!r} is not a table")
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise NewerRecordError(version)
    given = {} if version is None else {"version": version}
    checked(given, {"version": (1, VERSION)}, required=("version",))


NO_PROCESS = Process(0, 0)
"""A process that has ended, for a record that does not tell it."""


def check_id(text: str) -> None:
    """Check an id, which will be part of file names and be shown on terminals.

    Raises:
        FieldError: the text is no lease's id.
    """
    if not (text.isascii() and text.isalnum()):
        raise FieldError(("id",), f"id: {text!r} is no lease's id")


def known_time(found: str) -> str:
    """Return a time if it is ISO 8601, UTC, whole seconds; else UNKNOWN_TIME."""
    is_time = found.translate(_DIGITS_AS_ZERO) == "0000-00-00T00:00:00Z"
    return found if is_time else UNKNOWN_TIME


def shortened(command: Sequence[str], room: int = MAX_COMMAND_CHARACTERS) -> list[str]:
    """Return the command, cut after so many characters."""
    kept: list[str] = []
    for argument in command:
        if len(argument) > room:
            return [*kept, argument[: max(room, 0)] + "..."]
        kept.append(argument)
        room -= len(argument) + 1
    return kept


def cut_command(document: dict[str, Any], most_bytes: int = WRITTEN_BYTES) -> dict[str, Any]:
    """Return a record's document with its command cut so that it is written in so many bytes."""
    command, room = document.get("command", ()), most_bytes
    document["command"] = shortened(command, room)
    while len(json.dumps(document)) > most_bytes and room > 1:
        room //= 2
        document["command"] = shortened(command, room)
    return document


def encode(
    record: Record, *, without: Collection[str] = (), as_rows: Collection[str] = ()
) -> dict[str, Any]:
    """Return the fields that differ from their defaults; records in them as tables or rows.

    Args:
        as_rows: fields whose records are written as lists.
    """
    defaults = default_values(record.__class__)
    document: dict[str, Any] = {}
    for name, value in as_dict(record).items():
        if name in without or (name in defaults and value == defaults[name]):
            continue
        if isinstance(value, Record):
            document[name] = as_list(value) if name in as_rows else encode(value, without=without)
        elif isinstance(value, tuple):
            document[name] = [as_list(one) if isinstance(one, Record) else one for one in value]
        else:
            document[name] = value
    return document


def decode(
    cls: type[R],
    document: object,
    rules: FieldTable,
    *,
    needed: Collection[str] = (),
    certain: Collection[str] = (),
    readers: Readers = _NO_READERS,
    where: tuple[str, ...] = (),
    **own: object,
) -> R:
    """Return the record that a document of this version or another describes.

    Args:
        certain: fields that must be understood if they are there.
        readers: functions that make a field's value from what the document has.
        own: fields that are not in the document.

    Raises:
        FieldError: a needed field is missing or wrong.
    """
    if not isinstance(document, Mapping):
        raise FieldError(where, f"{document!r} is not a table")
    fields = dict(own)
    for name, rule in rules.items():
        value = document.get(name)
        if value is None and name not in needed:
            continue
        try:
            given = {} if value is None else {name: value}
            found = checked(given, {name: rule}, required=(name,), where=where)[name]
            if name in readers:
                found = readers[name](found)
            elif isinstance(rule, ListOf):
                found = tuple(found)
            elif isinstance(rule, RowOf):
                found = _RECORD_OF[rule](*found)
            fields[name] = found
        except FieldError:
            if name in needed or name in certain:
                raise
    return cls(**fields)


PUBLISHED = ("command", "program", "nothing")
"""What a record may say of the command: the values of the setting `publish`."""

HIDDEN = "***"

_KNOWN_FORMS = r"""(?<![A-Za-z0-9])(?:
    (?:gh[oprsu]_|hf_|npm_)[A-Za-z0-9]{16} | AKIA[A-Z0-9]{16}
    | (?:github_pat_|glpat-|sk-|xox[bp]-|AIza|pypi-)[\w-]{16}
)[\w.-]*"""
"""Tokens of GitHub, Hugging Face, npm, AWS, GitLab, OpenAI, Slack, Google and PyPI.

Source: the prefixes in the rules of gitleaks, config/gitleaks.toml.
"""

_HINTS = (
    *("pass", "secret", "token", "key", "credential", "auth", "cookie", "pwd", "@", "github_pat_"),
    *("gho_", "ghp_", "ghr_", "ghs_", "ghu_", "hf_", "npm_", "akia", "glpat-", "sk-", "xox"),
    *("aiza", "pypi-"),
)
"""Each secret has one of them, and few commands do: compiling the patterns takes 1 ms."""

_WORD = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+"
_ENDINGS = (
    *("password", "passwords", "passwd", "passphrase", "secret", "secrets", "token"),
    *("credential", "credentials", "authorization", "apikey", "accesskey", "privatekey"),
)
_LAST_WORDS = ("key", "pass", "auth", "cookie", "cookies", "pwd")
_KINDS_OF_KEY = ("api", "access", "private")

_NAMED = r"""(?<![\w.-])(?:([\w.-]+)["'\\]*\s*(?:=|:(?!/))|(-[\w.-]+)\s+(?!--))"""
"""What comes before a value within an argument: `NAME=`, `"NAME": ` or `--NAME `."""

_USER = r"(?i:(?<=http://)|(?<=https://)|(?<=://)(?=[^\s/?#@]*:))[^\s/?#]*@"
"""The user in a URL that may tell a password; that of ssh://git@host does not."""


def published(command: Sequence[str], what: str) -> tuple[str, ...]:
    """Return what a record says of a command.

    Args:
        what: one of PUBLISHED.
    """
    if what == "command":
        return redacted(command)
    return (command[0].rpartition("/")[2],) if what == "program" and command else ()


def redacted(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command with `***` in place of what looks like a secret.

    That is the value of an option, a variable or a key with a name such as password, API_KEY or
    authToken, the user of a URL with a password, and a token with a well-known beginning. Within an
    argument all that follows such a name is hidden, because only the program knows where the value
    ends.

    Example:
        >>> redacted(["env", "API_KEY=k1", "train", "--password", "k2", "--keyboard", "de"])
        ('env', 'API_KEY=***', 'train', '--password', '***', '--keyboard', 'de')
    """
    text = "\0".join(command).lower()
    if not any(hint in text for hint in _HINTS):
        return tuple(command)
    shown: list[str] = []
    is_value = False
    for argument in command:
        is_value = is_value and not argument.startswith("--")
        shown.append(HIDDEN if is_value else _redact_text(argument))
        is_option = not is_value and re.fullmatch(r"-[\w.-]+", argument) is not None
        is_value = is_option and _is_secret(argument)
    return tuple(shown)


def _redact_text(text: str) -> str:
    """Hide the users of URLs, tokens, and what follows the first name of a secret."""
    text = re.sub(_KNOWN_FORMS, HIDDEN, re.sub(_USER, f"{HIDDEN}@", text), flags=re.VERBOSE)
    for found in re.finditer(_NAMED, text):
        name = found[1] or found[2]
        is_attached = name[0] == "-" != name[1:2]  # as in -eTOKEN=x
        if _is_secret(name) or (is_attached and _is_secret(name[2:])):
            return text[: found.end()] + HIDDEN
    return text


def _is_secret(name: str) -> bool:
    """Return whether a name is that of a secret, by the words in it.

    Some count as the last one only, and "key" after one of _KINDS_OF_KEY: key_bindings, pass_rate
    and num_key_heads are no secrets. PWD alone is the shell's directory.
    """
    words = [word.lower() for word in re.findall(_WORD, name)]
    return any(word.endswith(_ENDINGS) for word in words) or any(
        (word == "key" and before in _KINDS_OF_KEY)
        or (word in _LAST_WORDS and at == len(words) and words != ["pwd"])
        for at, (before, word) in enumerate(zip(["", *words], words, strict=False), 1)
    )
