"""Replays -> the numbers that pictures are drawn from."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from gpulaunch.records import Record
from gpulaunch.show.report.colours import Colour, colours_of
from gpulaunch.simulate.measures import Level, Quartiles, Replay, ReplayedJob, quartiles

_PANELS = 5  # numbers of GPUs that have a panel of their own
_PARTS = 180  # of a line over time


class Run(Record):
    """A replay as it is shown.

    Attributes:
        label: its policy, with what else tells it from the others if need be.
        colour: in all pictures.
        replay: what came of it.
        begin_s: when its first job comes, from the beginning of the trace.
    """

    label: str
    colour: Colour
    replay: Replay
    begin_s: float


def runs_of(replays: Sequence[Replay]) -> list[Run]:
    """Replays with names and colours of their own, in the order given."""
    policies = [replay.rules.policy.replace("_", "-") for replay in replays]
    labels = list(policies)
    for tell in (
        lambda r: r.topology,
        lambda r: r.rules.model,
        lambda r: f"{r.rules.machines} machines",
    ):
        twice = {label for label, count in Counter(labels).items() if count > 1}
        values = [tell(replay) for replay in replays]
        labels = [
            f"{label}, {value}" if label in twice and len(set(values)) > 1 else label
            for label, value in zip(labels, values, strict=True)
        ]
    seen: Counter[str] = Counter()
    for i, label in enumerate(labels):
        seen[label] += 1
        labels[i] = label if seen[label] == 1 else f"{label} ({seen[label]})"
    begins_s = [min(one.stay.job.arrival_s for one in replay.jobs) for replay in replays]
    return [
        Run(*each) for each in zip(labels, colours_of(policies), replays, begins_s, strict=True)
    ]


Measure = Callable[[ReplayedJob], float | None]
Which = Callable[[ReplayedJob], bool]


def bandwidth(one: ReplayedJob) -> float | None:
    """Effective bandwidth, GB/s."""
    return one.effective_bandwidth or 0.0


def slowdown(one: ReplayedJob) -> float | None:
    """Run time by that alone on the best GPUs."""
    return one.slowdown


def wait_s(one: ReplayedJob) -> float | None:
    """From arrival to start."""
    return one.wait_s


def quality(one: ReplayedJob) -> float | None:
    """Aggregate bandwidth as a share of the best."""
    return one.quality


def sensitive(one: ReplayedJob) -> bool:
    """Whether its speed depends on its links."""
    return one.sensitive


def insensitive(one: ReplayedJob) -> bool:
    """Whether it does not."""
    return not one.sensitive


def connected(one: ReplayedJob) -> bool:
    """Whether its GPUs have anything to tell each other."""
    return one.quality is not None


def of_gpus(count: int, which: Which) -> Which:
    """Those of them with so many GPUs."""
    return lambda one: len(one.stay.gpus) == count and which(one)


class Box(Record):
    """What a box plot shows of some jobs of one run.

    Attributes:
        run: which.
        jobs: how many.
        quartiles: of their values; None if there are none.
        mean: of them.
    """

    run: Run
    jobs: int
    quartiles: Quartiles | None
    mean: float


def boxes(runs: Iterable[Run], measure: Measure, which: Which) -> list[Box]:
    """A box for each run.

    Args:
        runs: in their order.
        measure: what of a job is shown; a job for which it is None does not count.
        which: jobs.
    """
    found = []
    for run in runs:
        values = values_of(run, measure, which)
        found.append(Box(run, len(values), quartiles(values), mean_of(values)))
    return found


def jobs_text(count: int) -> str:
    """A number of jobs in words that fit it."""
    return f"{count:,} job{'' if count == 1 else 's'}"


def mean_of(values: Sequence[float]) -> float:
    """0 of none."""
    return sum(values) / len(values) if values else 0.0


def values_of(run: Run, measure: Measure, which: Which = lambda _: True) -> list[float]:
    """Of those jobs of a run that have one."""
    return [value for one in run.replay.jobs if which(one) and (value := measure(one)) is not None]


def gpu_numbers(runs: Iterable[Run], which: Which) -> list[int]:
    """Numbers of GPUs that jobs have: the most frequent ones, in ascending order."""
    counts = Counter(len(one.stay.gpus) for run in runs for one in run.replay.jobs if which(one))
    return sorted(number for number, _ in counts.most_common(_PANELS))


def worst_first(run: Run, measure: Measure) -> list[float]:
    """A value of each job, the largest first."""
    return sorted(values_of(run, measure), reverse=True)


Points = list[tuple[float, float]]


def thinned(values: Sequence[float], most: int) -> Points:
    """A sorted list as (place, value): about `most` of them, first and last included, and no equals between equals."""
    step = max(1, len(values) // most)
    kept = [*range(0, len(values), step)]
    kept += [len(values) - 1] if kept and kept[-1] != len(values) - 1 else []
    points = [(float(i), values[i]) for i in kept]
    inner = zip(points, points[1:], points[2:], strict=False)
    return [*points[:1], *(b for a, b, c in inner if not a[1] == b[1] == c[1]), *points[1:][-1:]]


def distribution(run: Run, measure: Measure, which: Which) -> Points:
    """Each value with the share of jobs, 0 to 1, that have at most that; no points of no jobs."""
    values = sorted(values_of(run, measure, which))
    count = len(values)
    return [
        (value, (i + 1) / count)
        for i, value in enumerate(values)
        if i + 1 == count or values[i + 1] != value
    ]


def stairs(points: Points) -> Points:
    """A distribution as a line that begins on the ground, and goes up where a value is reached."""
    below = [0.0, *(share for _, share in points)]
    return [
        step
        for (value, share), low in zip(points, below, strict=False)
        for step in ((value, low), (value, share))
    ]


class Span(Record):
    """A mean over a part of a run.

    Attributes:
        from_s: its beginning, from the run's beginning on.
        to_s: its end.
        value: the mean.
    """

    from_s: float
    to_s: float
    value: float


def outline(spans: Iterable[Span]) -> Points:
    """Spans as a line: level over each, upright between two."""
    return [(at_s, span.value) for span in spans for at_s in (span.from_s, span.to_s)]


Figure = Callable[[Level], float]


def used(level: Level) -> float:
    """GPUs that are held."""
    return level.used


def used_or_broken(level: Level) -> float:
    """These, and the free ones on sockets where others are held."""
    return level.used + level.broken


def waiting(level: Level) -> float:
    """Jobs."""
    return level.waiting


def over_time(run: Run, what: Figure, longest_s: float) -> list[Span]:
    """A figure of a run's Levels: as it was where it changes seldom, else means over equal parts of its time.

    Args:
        run: which.
        what: figure.
        longest_s: the longest of all runs, which is cut into _PARTS parts.
    """
    begin_s, length_s = run.begin_s, run.replay.makespan_s
    if not length_s:
        return []
    exact = [
        Span(level.time_s - begin_s, after.time_s - begin_s, float(what(level)))
        for level, after in pairwise(_distinct(run.replay.levels, what))
    ]
    if len(exact) <= _PARTS:
        return exact
    parts = max(1, round(_PARTS * length_s / longest_s))
    edges = [length_s * i / parts for i in range(parts + 1)]
    areas = [0.0] * parts
    part = 0
    for span in exact:
        while part < parts and edges[part] < span.to_s:
            areas[part] += span.value * max(
                0.0, min(span.to_s, edges[part + 1]) - max(span.from_s, edges[part])
            )
            if edges[part + 1] > span.to_s:
                break
            part += 1
    return [
        Span(low, high, area / (high - low))
        for (low, high), area in zip(pairwise(edges), areas, strict=True)
    ]


def _distinct(levels: Sequence[Level], what: Figure) -> list[Level]:
    """Without those at which a figure stays what it is."""
    last = len(levels) - 1
    return [
        level
        for i, level in enumerate(levels)
        if i in (0, last) or what(level) != what(levels[i - 1])
    ]
