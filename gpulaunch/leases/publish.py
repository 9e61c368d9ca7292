"""What others may read of a job's command: its record is a file that is open to all."""
# pure: decides on plain values

import re
from collections.abc import Sequence

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
        command: argv.
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
