"""The launch that a user means by a name, a lease or a key."""

import pytest

from gpulaunch.errors import UsageError
from gpulaunch.history.past_launch import PastLaunch, find_past, parse_past_launch


def past(key: str, name: str | None, lease: str = "", **more: object) -> PastLaunch:
    document = {"version": 1, "key": key, "submitted_s": 1.0, "id": lease, **more}
    return parse_past_launch(document | ({"name": name} if name else {}), 0)


LAUNCHES = [
    past("aaaa00000001", "exp7", "feed00000001"),
    past("aaaa00000002", "exp8", "feed00000002"),
    past("bbbb00000003", "exp7", "beef00000003"),
    past("bbbb00000004", None, "f00d00000004"),
    past("cccc00000005", "feed00000001"),
    past("cccc00000006", None),
]


FOUND = {
    "exp7": "bbbb00000003",  # the newest of the name
    "f00d": "bbbb00000004",
    "feed00000001": "cccc00000005",  # a name goes before the id of a lease
    "feed00000002": "aaaa00000002",
    "cccc00000006": "cccc00000006",  # it has no lease yet
}


def test_what_is_found() -> None:
    """A name means its newest launch; else a lease or a key begins so, with 4 characters."""
    assert {text: find_past(text, LAUNCHES).key for text in FOUND} == FOUND


@pytest.mark.parametrize("text", ["exp", "f00", "", "f00d00000004x"])
def test_what_is_not_found(text: str) -> None:
    """The beginning of a name is no name, and three characters are no beginning of an id."""
    with pytest.raises(UsageError, match="no job of yours is called"):
        find_past(text, LAUNCHES)


def test_what_may_be_several() -> None:
    """A beginning that fits several is refused with all of them; by its key, if it has no lease."""
    with pytest.raises(UsageError) as found:
        find_past("feed", LAUNCHES)
    assert found.value.message == "'feed' may be any of feed00000001, feed00000002"
    with pytest.raises(UsageError) as found:
        find_past("cccc", LAUNCHES)
    assert found.value.message == "'cccc' may be any of cccc00000005, cccc00000006"
