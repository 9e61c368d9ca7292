"""A replay -> the bars of its timeline: which job is on which GPU from when to when."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpulaunch.records import Record, replace
from gpulaunch.show.report.series import Run
from gpulaunch.simulate.measures import ReplayedJob

_ROWS = 32  # GPUs of a panel, if these are no more than one machine's
_ROWS_OF_MANY = 16  # the same where many panels stand one below the other
_MOST_ROWS = 80  # GPUs of a machine


class Grid(Record):
    """The rows of a timeline, the same for all runs.

    Attributes:
        machines: how many are shown, from the first one on.
        of_machines: how many there are.
        gpus: indices of those shown of each machine.
        of_gpus: how many each has.
    """

    machines: int
    of_machines: int
    gpus: tuple[int, ...]
    of_gpus: int

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.machines * len(self.gpus)

    def name(self, gpu: int) -> str:
        """What people call a GPU: its index, or card:instance (see mig_index)."""
        return str(gpu) if gpu < max(self.of_gpus, 100) else f"{gpu // 100 - 1}:{gpu % 100}"


def grid_of(runs: Sequence[Run]) -> Grid:
    """As many machines as can be looked at, at least one."""
    machines = max(run.replay.rules.machines for run in runs)
    size = max(run.replay.gpus // run.replay.rules.machines for run in runs)
    used = {gpu for run in runs for one in run.replay.jobs for gpu in one.stay.gpus}
    gpus = (
        tuple(range(size)) if max(used) < size else tuple(sorted(used))
    )  # MIG instances are numbered with gaps
    budget = _ROWS if len(runs) <= 4 else _ROWS_OF_MANY
    return Grid(min(machines, max(1, budget // len(gpus))), machines, gpus[:_MOST_ROWS], size)


class Bar(Record):
    """A job on GPUs that stand one below the other.

    Attributes:
        one: the job.
        row: of the first of these GPUs, from 0.
        rows: how many they are.
        lane: its place within a row that jobs share, from 0.
        lanes: how many share it meanwhile.
        from_s: where it begins, from the run's beginning on.
        to_s: where it ends.
    """

    one: ReplayedJob
    row: int
    rows: int
    lane: int
    lanes: int
    from_s: float
    to_s: float


def bars_of(run: Run, grid: Grid) -> list[Bar]:
    """All bars of a run, by their beginnings.

    Args:
        run: which.
        grid: the rows that there are; what is on other GPUs is left out.
    """
    place = {gpu: i for i, gpu in enumerate(grid.gpus)}
    on_row: dict[int, list[ReplayedJob]] = defaultdict(list)
    for one in run.replay.jobs:
        for gpu in one.stay.gpus if one.stay.machine < grid.machines else ():
            if gpu in place:
                on_row[one.stay.machine * len(grid.gpus) + place[gpu]].append(one)
    lanes = {row: _lanes(jobs) for row, jobs in on_row.items()}
    bars = []
    for one in run.replay.jobs:
        own = [row for row in _rows_of(one, grid, place) if row in lanes]
        for group in _groups(
            own, shared={row for row in own if lanes[row][one.stay.job.id][1] > 1}
        ):
            lane, of = lanes[group[0]][one.stay.job.id]
            span = one.stay.started_s - run.begin_s, one.stay.ended_s - run.begin_s
            bars.append(Bar(one, group[0], len(group), lane, of, *span))
    return sorted(bars, key=lambda bar: (bar.from_s, bar.row, bar.lane))


def _rows_of(one: ReplayedJob, grid: Grid, place: dict[int, int]) -> list[int]:
    if one.stay.machine >= grid.machines:
        return []
    return sorted(
        one.stay.machine * len(grid.gpus) + place[gpu] for gpu in one.stay.gpus if gpu in place
    )


def _groups(rows: Sequence[int], shared: set[int]) -> list[list[int]]:
    """Rows next to each other, within one machine by their making; a shared one stays alone."""
    groups: list[list[int]] = []
    for row in rows:
        if groups and groups[-1][-1] == row - 1 and not {row, row - 1} & shared:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _lanes(jobs: Iterable[ReplayedJob]) -> dict[int, tuple[int, int]]:
    """Of jobs on one GPU, by id: its lane, and how many lanes there are as long as any of those beside it runs."""
    found: dict[int, tuple[int, int]] = {}
    together: list[tuple[int, int]] = []  # ids and lanes of those that overlap, one with the next
    ends: list[float] = []  # of lanes
    for one in sorted(jobs, key=lambda one: (one.stay.started_s, one.stay.place)):
        if all(end <= one.stay.started_s for end in ends):
            found |= {job: (lane, len(ends)) for job, lane in together}
            together, ends = [], []
        lane = next((i for i, end in enumerate(ends) if end <= one.stay.started_s), len(ends))
        ends[lane : lane + 1] = [one.stay.ended_s]
        together.append((one.stay.job.id, lane))
    return found | {job: (lane, len(ends)) for job, lane in together}


def within(bars: Iterable[Bar], end_s: float) -> list[Bar]:
    """Those that begin before a time, cut off there."""
    return [replace(bar, to_s=min(bar.to_s, end_s)) for bar in bars if bar.from_s < end_s]


def window_s(bars_of_runs: Sequence[Sequence[Bar]], longest_s: float, most: int) -> float:
    """How much of a timeline is shown from its beginning on: up to where any run would have too many bars.

    Args:
        bars_of_runs: all bars of each run.
        longest_s: of all runs.
        most: bars of each run.
    """
    too_many = [bars[most].from_s for bars in bars_of_runs if len(bars) > most]
    return min([longest_s, *(end_s for end_s in too_many if end_s > 0)])


def close_window_s(bars_of_runs: Sequence[Sequence[Bar]], bars_across: float) -> float:
    """A window into which so many bars of middling length fit one after the other."""
    lengths = sorted(bar.to_s - bar.from_s for bars in bars_of_runs for bar in bars)
    return lengths[len(lengths) // 2] * bars_across if lengths else float("inf")
