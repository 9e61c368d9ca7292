"""`gpulaunch profile show NAME`: all that a profile says, as TOML."""

from pathlib import Path
from typing import Any

import pytest
from toml_parser import tomllib

from gpulaunch.cli.profile import profile_text
from gpulaunch.profiles.profile import Profile

DOCUMENT = tomllib.loads(Path(__file__).with_name("full_profile.toml").read_text())


def saying(text: str, value: Any) -> Any:
    """Return a value of a document with this text in place of each text in it."""
    if isinstance(value, str):
        return text
    if isinstance(value, list):
        return [saying(text, one) for one in value]
    if isinstance(value, dict):
        return {key: saying(text, one) for key, one in value.items()}
    return value


PROFILES = {  # a view is safe whatever may be in a file, so these are not checked
    "full": Profile(DOCUMENT),
    "name only": Profile({"name": "unheard-of"}),
    "hostile": Profile(saying('a"b<&>]]>\\c\x1b[31m\n\x00\u202e', DOCUMENT)),
    "long": Profile(saying("A" * 300, DOCUMENT)),
}
EVERY = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


@EVERY
def test_text_is_the_profile_and_safe(profile: Profile) -> None:
    """What is shown is a profile itself, but for its variants, and has no control character."""
    lines = profile_text(profile, "/p/job.toml").split("\n")
    assert lines[0] == "# file: /p/job.toml"
    assert [line for line in lines if not line.isprintable()] == []
    if not any("\\x" in line for line in lines):
        want = {key: value for key, value in profile.document.items() if key != "variants"}
        assert tomllib.loads("\n".join(lines)) == want
