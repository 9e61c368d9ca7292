"""Colours of pictures and page: each has a part to play, and one value on light and one on dark ground.

Those of policies can be told apart with any of the usual colour blindnesses: they differ in
lightness, too.
"""

from gpulaunch.decide.placement.policies import POLICIES as KNOWN
from gpulaunch.records import Record


class Colour(Record):
    """A colour.

    Attributes:
        name: as the page's style sheet calls it.
        light: on light ground, and in files; no two colours have the same.
        dark: on dark ground.
    """

    name: str
    light: str
    dark: str


PAPER = Colour("paper", "#ffffff", "#14181d")
INK = Colour("ink", "#1f2933", "#e6eaef")
PALE = Colour("pale", "#5b6672", "#a0aab5")
GRID = Colour("grid", "#dfe3e8", "#323a44")
IDLE = Colour("idle", "#f1f3f6", "#1e242b")
ON_BAR = Colour("on-bar", "#1d2731", "#11161c")

POLICIES = {
    name.replace("_", "-"): Colour(name.replace("_", "-"), policy.colour, policy.colour)
    for name, policy in KNOWN.items()
}
"""The same in every report, so that who has seen one can read the next."""

SLOWED = (
    (1.05, Colour("slowed-0", "#c3cfdc", "#93a3b5")),
    (1.5, Colour("slowed-1", "#fbdc94", "#f2d588")),
    (2.0, Colour("slowed-2", "#f5a35c", "#ee9c56")),
    (float("inf"), Colour("slowed-3", "#e2685f", "#e87068")),
)
"""Up to which slowdown a bar of a timeline has which colour."""

ALL = (PAPER, INK, PALE, GRID, IDLE, ON_BAR, *POLICIES.values(), *(colour for _, colour in SLOWED))


def colours_of(policies: list[str]) -> list[Colour]:
    """One for each run: its policy's own, or one of those that nobody has if it is not the first with it."""
    spare = [colour for policy, colour in POLICIES.items() if policy not in policies]
    found: list[Colour] = []
    for policy in policies:
        own = POLICIES.get(policy)
        found.append(own if own and own not in found else spare.pop(0) if spare else own or PALE)
    return found
