"""How long jobs run: a distribution for each, from earlier runs of the same and of other jobs."""
# pure: decides on plain values

from collections.abc import Iterable, Sequence
from functools import cache
from math import erfc, exp, log, sqrt
from random import Random
from statistics import NormalDist

from gpulaunch.records import Record, replace

_SHORTEST_S = 1.0  # what was shorter counts as so long: logarithms tell such times apart too well


class Component(Record):
    """One lognormal distribution of a mixture.

    Attributes:
        weight: its weight beside the others, above 0.
        mean: mean of the logarithm of the seconds.
        deviation: standard deviation of that.
        relation: what the jobs that it comes from have in common.
        doubt: standard deviation of the error of the mean, which is common to all jobs of the
            relation.
    """

    weight: float
    mean: float
    deviation: float
    relation: tuple[object, ...] = ()
    doubt: float = 0.0

    def weight_beyond(self, seconds: float) -> float:
        """Return the weight of the jobs of this part that run longer than so many seconds."""
        if seconds <= 0:
            return self.weight
        return self.weight * erfc((log(seconds) - self.mean) / self.deviation / sqrt(2)) / 2


_DOUBT = 0.5  # of the logarithm: how far jobs here may differ from those of such clusters; assumed


def published(median_s: float, mean_s: float) -> Component:
    """Return the lognormal distribution with this median and mean, in seconds."""
    deviation = sqrt(2 * log(mean_s / median_s))
    return Component(1.0, log(median_s), deviation, ("published",), _DOUBT)


PRIOR = (
    published(874.0, 18006.055),
    published(206.0, 6651.681),
    published(480.667, 4787.109),
)
"""Run times of jobs of which nothing is known: those of three clusters in equal parts.

They are so different that the time which one still runs grows with the time which it has run.
Source: median and mean of Philly, Helios and PAI in cluster_summary.csv of AcmeTrace (NSDI'24);
that they are lognormal is assumed.
"""


class Identity(Record):
    """What tells that two launches are of the same job, or of similar ones.

    Attributes:
        user_id: the user.
        command: argv as it is published; empty if nothing is.
        name: name that the user gave the job, or None.
        profile: name of its profile, or None.
        gpus: number of its GPUs.
    """

    user_id: int
    command: tuple[str, ...]
    name: str | None
    profile: str | None
    gpus: int

    def relations(self) -> "tuple[tuple[object, ...], ...]":
        """Return what it has in common with other launches: first the closest relation."""
        kinds: list[tuple[object, ...]] = []
        if self.command:
            kinds.append(("command", self.user_id, self.command, self.gpus))
            kinds.append(("argv", self.user_id, self.command))
        if self.name:
            kinds.append(("name", self.user_id, self.name))
        if self.profile:
            kinds.append(("profile", self.profile))
        return *kinds, ("user", self.user_id), ("all",)


class PastRun(Record):
    """A job that has ended.

    Attributes:
        identity: what it was.
        duration_s: seconds that it ran.
        limit_s: its time limit in seconds, or None.
    """

    identity: Identity
    duration_s: float
    limit_s: float | None = None


_NEEDED = {"command": 0.5, "argv": 2.0, "name": 1.0, "profile": 2.0, "user": 8.0, "all": 8.0}
"""Number of runs of each relation that weigh as much as all that is more remote."""

_SPREAD = {"command": 0.3, "argv": 0.7, "name": 0.5, "profile": 0.5, "user": 1.0, "all": 1.0}
"""Standard deviation of the logarithm that is assumed of runs of each relation."""

_LATEST = 20  # runs of each relation that count
_FADE = 0.9  # weight of a run beside that of the next one

_BY_LIMIT = 0.8
"""Weight of a time limit beside what else is known of a job whose like has not run."""

_SHARES_OF_LIMIT = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
"""Shares of their time limits that jobs use: evenly from 0 to all.

Source: about what Mu'alem and Feitelson (IEEE TPDS 12(6), 2001) found of users' estimates.
"""


class Experience:
    """Known run times of jobs, from which those of others are estimated.

    Args:
        past: jobs that have ended, in their order.
    """

    def __init__(self, past: Iterable[PastRun]) -> None:
        self._logs: dict[tuple[object, ...], list[float]] = {}
        for run in past:
            value = log(max(run.duration_s, _SHORTEST_S))
            for key in run.identity.relations():
                self._logs.setdefault(key, []).append(value)
                if run.limit_s and key[0] in ("user", "all"):
                    shares = self._logs.setdefault(("limit", *key), [])
                    shares.append(min(0.0, value - log(run.limit_s)))
        self._known: dict[object, tuple[Component, ...]] = {}

    def of(
        self, identity: Identity, limit_s: float | None = None, profile_s: float | None = None
    ) -> tuple[Component, ...]:
        """Return the distribution of the run time of a job, as a mixture.

        Args:
            identity: what the job is.
            limit_s: its time limit in seconds, or None.
            profile_s: seconds that its profile says, or None.
        """
        asked = identity, limit_s, profile_s
        if asked not in self._known:
            self._known[asked] = self._mixture(identity, limit_s, profile_s)
        return self._known[asked]

    def _mixture(
        self, identity: Identity, limit_s: float | None, profile_s: float | None
    ) -> tuple[Component, ...]:
        left = 1.0
        parts: list[Component] = []
        for key in identity.relations():
            kind = str(key[0])
            if kind == "user" and limit_s:
                parts += self._by_limit(identity.user_id, limit_s, left * _BY_LIMIT)
                left -= left * _BY_LIMIT
            logs = self._logs.get(key, [])[-_LATEST:]
            if kind == "profile" and profile_s:
                logs = [log(max(profile_s, _SHORTEST_S)), *logs]
            if logs:
                share = left * len(logs) / (len(logs) + _NEEDED[kind])
                parts += _kernels(logs, share, _SPREAD[kind], key)
                left -= share
        share = left / len(PRIOR)
        return *parts, *(replace(one, weight=share) for one in PRIOR)

    def _by_limit(self, user_id: int, limit_s: float, share: float) -> list[Component]:
        """Return what a time limit says of a job, by what others have used of theirs."""
        parts: list[Component] = []
        for key in (("user", user_id), ("all",)):
            shares = self._logs.get(("limit", *key), [])[-_LATEST:]
            part = share * len(shares) / (len(shares) + _NEEDED["user"])
            if shares:
                parts += _kernels(shares, part, _SPREAD["user"], ("limit", *key))
            share -= part
        rest = share / len(_SHARES_OF_LIMIT)
        parts += [Component(rest, log(used), 0.2, ("limit",), 0.3) for used in _SHARES_OF_LIMIT]
        return [replace(one, mean=one.mean + log(limit_s)) for one in parts]


def _kernels(
    logs: Sequence[float], share: float, spread: float, relation: tuple[object, ...]
) -> list[Component]:
    """Return a distribution around each of some logarithms, in their order; later ones weigh more.

    Its deviation is what the values show, beside one value's worth of what is assumed.
    """
    count = len(logs)
    mean = sum(logs) / count
    variance = (spread**2 + sum((value - mean) ** 2 for value in logs)) / count
    deviation, width = sqrt(variance), count**-0.2
    near = sqrt(1 - width**2)  # the values move together, so that the spread stays the same
    weights = [_FADE ** (count - 1 - at) for at in range(count)]
    scale = share / sum(weights)
    return [
        Component(
            weight * scale,
            mean + near * (value - mean),
            deviation * width,
            relation,
            deviation / sqrt(count),
        )
        for weight, value in zip(weights, logs, strict=True)
    ]


def draw_remaining(
    parts: Sequence[Component], ran_s: float, limit_s: float | None, count: int, seed: str
) -> list[float]:
    """Draw the seconds that a job still runs, evenly over its distribution, in random order.

    Args:
        parts: distribution of its whole run time.
        ran_s: seconds that it has run.
        limit_s: its time limit in seconds, or None.
        count: number of draws.
        seed: of the random order.
    """
    draw = Random(seed)  # noqa: S311
    beyond = [part.weight_beyond(ran_s) for part in parts]
    total = sum(beyond)
    if total <= 0:  # longer than anything that is known: as long again
        found = [ran_s * (at + 0.5) / (count - at - 0.5) for at in range(count)]
        draw.shuffle(found)
    else:
        found = _draw_beyond(parts, beyond, ran_s, count, draw)
    most = float("inf") if limit_s is None else limit_s - ran_s
    return [max(0.0, min(seconds, most)) for seconds in found]


def _draw_beyond(
    parts: Sequence[Component], beyond: Sequence[float], ran_s: float, count: int, draw: Random
) -> list[float]:
    """Draw remaining seconds, given the weights of the parts' jobs that run longer than `ran_s`.

    The error of what is known is the same for all jobs in one draw.
    """
    total, edge, which = sum(beyond), beyond[0], 0
    found: list[tuple[float, Component]] = []
    for at in range(count):
        target = total * (at + draw.random()) / count
        while target > edge and which < len(parts) - 1:
            which += 1
            edge += beyond[which]
        part = parts[which]
        # The share of this part's jobs that run longer than the one drawn.
        longer = min(max((edge - target) / part.weight, 1e-12), 1 - 1e-12)
        seconds = exp(part.mean - part.deviation * _NORMAL.inv_cdf(longer)) - ran_s
        found.append((seconds, part))
    draw.shuffle(found)
    errors = {part.relation: _errors(part.relation, count) for part in parts}
    return [
        seconds * exp(part.doubt * errors[part.relation][at])
        for at, (seconds, part) in enumerate(found)
    ]


@cache
def _errors(relation: tuple[object, ...], count: int) -> tuple[float, ...]:
    """Return draws of a normal distribution, always the same ones for a relation."""
    draw = Random(repr(relation))  # noqa: S311
    return tuple(draw.gauss(0.0, 1.0) for _ in range(count))


_NORMAL = NormalDist()
