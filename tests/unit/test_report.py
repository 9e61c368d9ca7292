"""What a report of `simulate` shows, before it is drawn: bars, loads over time, units, colours."""

import json
from functools import cache
from itertools import combinations, pairwise
from tempfile import NamedTemporaryFile
from xml.etree import ElementTree as ET

import pytest

from gpulaunch.decide.placement.policies import POLICIES
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.records import as_list
from gpulaunch.show.canvas import PAPER
from gpulaunch.show.report.page import report_files
from gpulaunch.show.report.series import means_over_time, time_unit
from gpulaunch.show.report.timeline import Bar, bars_of, drawable_s, rows_of
from gpulaunch.simulate.event_loop import Rules, Stay, simulate
from gpulaunch.simulate.measures import Replay, measure
from gpulaunch.simulate.read_simulation import read_trace
from gpulaunch.simulate.simulator import generated_trace

DARK_PAPER = "#14181d"
SVG = "{http://www.w3.org/2000/svg}"
FOUR = ("baseline", "topo_aware", "greedy", "preserve")

JOB = """
[[job]]
name = {name}
gpus = {gpus}
pattern = "ring"
bandwidth_sensitive = {sensitive}
arrival_s = {arrival_s}
duration_s = {duration_s}
"""


def job(name="vgg16", *, gpus=2, sensitive=True, arrival_s=0.0, duration_s=20.0) -> str:
    """Make a job of a file."""
    said = {"name": json.dumps(name).replace("\x7f", ""), "sensitive": json.dumps(sensitive)}
    return JOB.format(**said, gpus=gpus, arrival_s=arrival_s, duration_s=duration_s)


def replayed(
    text: str, topology="dgx1-v100", policies=FOUR, machines=1, models=("bandwidth",), cuts=None
) -> list[Replay]:
    """Replays of a file's text."""
    machine = shown_machine(topology, print)
    with NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        jobs = read_trace(file.name, machine, print).jobs
    rules = [Rules(policy, "cut", machines, time_models=models) for policy in policies]
    return [
        measure(machine.topology, simulate(machine.topology, jobs, one), one, cuts) for one in rules
    ]


@cache
def paper() -> tuple[Replay, ...]:
    """80 jobs as in mapa-sc21, all there at once, by its four policies."""
    return tuple(replayed(generated_trace("uniform", 1, 80)))


@cache
def cluster() -> tuple[Replay, ...]:
    """60 jobs as in topo-aware-sc17, on three of its machines."""
    text = generated_trace("poisson", 2, 60)
    return tuple(
        replayed(
            text, "power8-minsky", ("baseline", "topo_aware_p"), 3, ("bandwidth", "interference")
        )
    )


BOTH = pytest.mark.parametrize("replays", [paper, cluster])


# Bars and areas


def overlapping(bars: list[Bar]) -> list[tuple[Bar, Bar]]:
    """Pairs that lie over each other."""
    return [
        (one, other)
        for one, other in combinations(bars, 2)
        if one.row < other.row + other.height and other.row < one.row + one.height
        if one.from_s < other.to_s and other.from_s < one.to_s
    ]


@BOTH
def test_bars_never_overlap(replays) -> None:
    """No two bars overlap on a GPU, and together they are all the time that GPUs were held."""
    rows = rows_of(replays())
    for replay in replays():
        bars = bars_of(replay, rows)
        assert overlapping(bars) == []
        held_s = sum(bar.height * (bar.to_s - bar.from_s) for bar in bars)
        assert held_s == pytest.approx(replay.utilization * replay.gpus * replay.makespan_s)


def test_bars_of_one_job() -> None:
    """GPUs that are next to each other have one bar, others another."""
    (replay,) = replayed(job(gpus=3), policies=["preserve"])
    assert replay.jobs[0].stay.gpus == (0, 2, 3)
    bars = bars_of(replay, rows_of([replay]))
    assert [as_list(bar)[1:] for bar in bars] == [[0, 1, 0.0, 20.0], [2, 2, 0.0, 20.0]]


def shared(*spans: tuple[float, float], gpus: tuple[int, ...] = (0,)) -> Replay:
    """Return a replay of jobs that all run on GPU 0, the last one on more."""
    (replay,) = replayed("".join(job(gpus=1) for _ in spans), policies=["preserve"])
    last = len(spans) - 1
    stays = [
        Stay(one.stay.job, 0, gpus if i == last else (0,), from_s, to_s, None, i)
        for i, (one, (from_s, to_s)) in enumerate(zip(replay.jobs, spans, strict=True))
    ]
    return measure(shown_machine("dgx1-v100", print).topology, stays, replay.rules, None)


@pytest.mark.parametrize(
    ("spans", "want"),
    [
        ([(0, 9), (9, 12)], [(0, 1), (0, 1)]),
        ([(0, 9), (3, 12)], [(0, 0.5), (0.5, 0.5)]),
        ([(0, 9), (3, 5), (5, 12), (12, 13)], [(0, 0.5), (0.5, 0.5), (0.5, 0.5), (0, 1)]),
    ],
    ids=["one after the other", "together", "three in two lanes, then one alone"],
)
def test_bars_on_a_shared_gpu(spans, want) -> None:
    """Jobs that share a GPU lie beside each other in its row; a lone job has the whole row."""
    replay = shared(*spans)
    bars = bars_of(replay, rows_of([replay]))
    assert [(bar.row, bar.height) for bar in bars] == want
    assert overlapping(bars) == []


def test_bars_on_a_shared_gpu_and_the_next() -> None:
    """A job has a bar on its part of a GPU that it shares, and another on the GPUs of its own."""
    replay = shared((0, 9), (3, 12), gpus=(0, 1, 2))
    bars = bars_of(replay, rows_of([replay]))
    assert [(bar.row, bar.height) for bar in bars] == [(0, 0.5), (0.5, 0.5), (1, 2)]


def test_long_timeline() -> None:
    """A timeline ends where any panel would have more bars than may be drawn."""
    bars = [bars_of(replay, rows_of(paper())) for replay in paper()]
    assert drawable_s(bars, 1e9, 50) == min(each[50].from_s for each in bars)
    assert drawable_s(bars, 1e9, 100_000) == 1e9


@BOTH
def test_area_is_the_utilization(replays) -> None:
    """The area of the load is the utilization, whether levels are drawn or their means."""
    for replay in replays():
        ends_s, means = means_over_time(replay, lambda level: level.used, replay.makespan_s)
        area = sum(mean * (b - a) for mean, (a, b) in zip(means, pairwise(ends_s), strict=True))
        assert area / replay.gpus / replay.makespan_s == pytest.approx(replay.utilization)
        assert (ends_s[0], ends_s[-1]) == (0, pytest.approx(replay.makespan_s))


def test_means_over_time() -> None:
    """What changes more often than can be seen is drawn as means over parts of equal length."""
    (replay,) = replayed(generated_trace("uniform", 3, 400), policies=["baseline"])
    _, means = means_over_time(replay, lambda level: level.used, replay.makespan_s)
    assert len(replay.levels) > len(means) == 180
    area = sum(means) * replay.makespan_s / 180
    assert area / replay.gpus / replay.makespan_s == pytest.approx(replay.utilization)
    _, half = means_over_time(replay, lambda level: level.used, 2 * replay.makespan_s)
    assert half == pytest.approx(
        [(a + b) / 2 for a, b in zip(means[::2], means[1::2], strict=True)]
    )


@pytest.mark.parametrize(
    ("longest_s", "want"),
    [(0, "s"), (300, "s"), (301, "min"), (3 * 3600, "min"), (11000, "h"), (864000, "days")],
)
def test_units_of_time(longest_s, want) -> None:
    """Times have the unit in which they are read best."""
    assert time_unit(longest_s)[1] == want


# Policies and their colours


# how three kinds of colour blindness mix red, green and blue (linear), whole: Machado et al. 2009,
# severity 1
SEEN = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.052)),
    "no green": ((0.3673, 0.8606, -0.228), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689)),
    "no blue": ((1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039)),
}


def lab(colour: str, eye) -> tuple[float, float, float]:
    """Return a colour as that eye sees it, in CIELAB, where 2.3 is just noticed."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    r, g, b = (min(1, max(0, sum(a * c for a, c in zip(row, linear, strict=True)))) for row in eye)
    xyz = (
        0.4339 * r + 0.3762 * g + 0.1899 * b,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        0.0178 * r + 0.1095 * g + 0.8727 * b,
    )
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("eye", SEEN.values(), ids=SEEN)
def test_colours_can_be_told_apart(eye) -> None:
    """The colours of policies differ clearly for everybody, and stand out from either ground."""
    seen = {name: lab(policy.colour, eye) for name, policy in POLICIES.items()}
    apart = {
        pair: sum((a - b) ** 2 for a, b in zip(seen[pair[0]], seen[pair[1]], strict=True)) ** 0.5
        for pair in combinations(seen, 2)
    }
    assert {pair: value for pair, value in apart.items() if value < 10} == {}
    for ground in (PAPER, DARK_PAPER):
        bright = lab(ground, eye)[0]
        assert min(abs(bright - light) for light, _, _ in seen.values()) > 25


# A small picture


def test_bars_tell_their_job() -> None:
    """A bar's tooltip says which job it is, where it ran, and how long it waited and took."""
    (replay,) = replayed(job(gpus=3), policies=["preserve"])
    svg = ET.fromstring(report_files([replay])["timeline.svg"])
    want = (
        "job 0 vgg16: machine 0, GPU 0,2,3; waited 0 s, ran 20 s; 1.00 times as long as at its best"
    )
    assert [title.text for title in svg.iter(f"{SVG}title")] == [want, want]
