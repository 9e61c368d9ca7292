"""One figure or table of a paper beside what we get."""

from typing import NamedTuple


def label(policy: str) -> str:
    """A policy as the command line calls it."""
    return policy.replace("_", "-")


class Row(NamedTuple):
    """One number.

    Attributes:
        what: it is.
        theirs: None where the paper, or its code, says none.
        ours: None where there is none.
        note: what to know about this one.
    """

    what: str
    theirs: float | None
    ours: float | None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours by theirs."""
        return self.ours / self.theirs if self.theirs and self.ours is not None else None


class Comparison(NamedTuple):
    """Numbers of one kind.

    Attributes:
        title: what they are, with their unit.
        theirs: who says the numbers beside ours: "paper", or "published code".
        rows: the numbers.
    """

    title: str
    theirs: str
    rows: tuple[Row, ...]


class Reproduction(NamedTuple):
    """A figure or table.

    Attributes:
        name: on the command line.
        title: what it shows, and where it stands.
        parts: the numbers.
        differs: what differs from the original, and why.
    """

    name: str
    title: str
    parts: tuple[Comparison, ...]
    differs: tuple[str, ...]
