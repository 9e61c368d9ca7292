"""`simulate --report` and its progress: what is drawn is what came of the replay, and the page needs nothing else."""

import json
import os
import re
from functools import cache
from html import unescape
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pexpect
import pytest
from conftest import Launcher

from gpulaunch.decide.placement.policies import POLICIES as KNOWN
from gpulaunch.files.duration import format_duration
from gpulaunch.launch.read_launch import shown_machine
from gpulaunch.records import replace
from gpulaunch.show.replay_document import replays_document
from gpulaunch.show.replay_rows import all_jobs, sensitive_jobs
from gpulaunch.show.replay_rows import replayed as replayed_text
from gpulaunch.show.report.bars import Bar, bars_of, grid_of, window_s, within
from gpulaunch.show.report.canvas import WIDTH
from gpulaunch.show.report.captions import compared
from gpulaunch.show.report.colours import ALL, POLICIES
from gpulaunch.show.report.page import INDEX, report_files
from gpulaunch.show.report.scales import number, time_unit
from gpulaunch.show.report.series import (
    Run,
    bandwidth,
    boxes,
    connected,
    distribution,
    gpu_numbers,
    insensitive,
    of_gpus,
    outline,
    over_time,
    quality,
    runs_of,
    sensitive,
    slowdown,
    stairs,
    thinned,
    used,
    used_or_broken,
    wait_s,
    worst_first,
)
from gpulaunch.simulate.engine import Rules, Stay, simulate
from gpulaunch.simulate.measures import Replay, measure, quartiles
from gpulaunch.simulate.read_simulation import read_trace
from gpulaunch.simulate.simulator import generated_trace

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert(1)</script> "\'&amp; $\\frac$ ]]> #1f2933 id="x" \x1b[31m\x07'
PAPER = ("baseline", "topo_aware", "greedy", "preserve")

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
    """A job of a file."""
    said = {"name": json.dumps(name).replace("\x7f", ""), "sensitive": json.dumps(sensitive)}
    return JOB.format(**said, gpus=gpus, arrival_s=arrival_s, duration_s=duration_s)


def replayed(
    text: str, topology="dgx1-v100", policies=PAPER, machines=1, models=("bandwidth",), cuts=None
) -> list[Replay]:
    """Replays of a file's text."""
    machine = shown_machine(topology, print)
    path = Path(os.environ["GPULAUNCH_STATE_DIR"]).parent / "jobs.toml"
    path.write_text(text)
    jobs = read_trace(str(path), machine, print).jobs
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
        replayed(text, "power8-minsky", ("fcfs", "topo_aware_p"), 3, ("bandwidth", "interference"))
    )


@cache
def report(name: str) -> dict[str, bytes]:
    """A report, and of what."""
    of = {
        "paper": paper,
        "cluster": cluster,
        "one job": lambda: replayed(job(), policies=["preserve"]),
        "one GPU each": lambda: replayed(job(gpus=1) + job(gpus=1, sensitive=False)),
        "hostile": lambda: replayed(
            job(HOSTILE, duration_s=500.0) + job("a" * 300, sensitive=False)
        ),
    }
    return report_files(of[name]())


EVERY = pytest.mark.parametrize("name", ["paper", "cluster", "one job", "one GPU each", "hostile"])
BOTH = pytest.mark.parametrize("replays", [paper, cluster])


# What is drawn


@BOTH
def test_boxes_are_the_quartiles(replays) -> None:
    """Box plots show the quartiles and means that --json tells."""
    document = replays_document(replays())["runs"]
    names = ("min", "p25", "p50", "p75", "max")
    want = [
        tuple(run["sensitive"]["effective_bandwidth_gb_per_s"][name] for name in names)
        for run in document
    ]
    found = boxes(runs_of(replays()), bandwidth, sensitive)
    assert [tuple(round(value, 6) for value in box.quartiles) for box in found] == want
    assert [round(box.mean, 6) for box in found] == [
        run["sensitive"]["effective_bandwidth_gb_per_s"]["mean"] for run in document
    ]


def test_boxes_by_number_of_gpus() -> None:
    """Panels by number of GPUs have each sensitive job once, and those that are not sensitive have their own."""
    run = runs_of(paper())[0]
    numbers = gpu_numbers([run], sensitive)
    panels = [boxes([run], slowdown, of_gpus(n, sensitive))[0] for n in numbers]
    jobs = [one for one in run.replay.jobs if one.sensitive]
    assert numbers == [2, 3, 4, 5]
    assert sum(panel.jobs for panel in panels) == len(jobs)
    assert panels[1].quartiles == quartiles(one.slowdown for one in jobs if len(one.stay.gpus) == 3)
    assert boxes([run], slowdown, insensitive)[0].jobs == len(run.replay.jobs) - len(jobs)


def test_boxes_are_drawn_where_they_belong() -> None:
    """In the picture the box of the middle half reaches from the lower quartile to the upper one of the axis."""
    svg = ET.fromstring(report("paper")["bandwidth.svg"])
    ticks = {
        element.text: float(element.get("x"))
        for element in list(svg.iter(f"{SVG}text"))[:7]
        if element.text.isdecimal()
    }
    per_unit = (ticks["60"] - ticks["20"]) / 40
    frames = [
        path.get("d") for path in svg.iter(f"{SVG}path") if "opacity: 0.45" in path.get("style", "")
    ][:4]
    found = [
        sorted({float(point.split()[0]) for point in re.findall(r"[\d.]+ [\d.]+", frame)})
        for frame in frames
    ]
    got = [
        (
            round((low - ticks["20"]) / per_unit + 20, 1),
            round((high - ticks["20"]) / per_unit + 20, 1),
        )
        for low, high in found
    ]
    want = [
        (box.quartiles.low, box.quartiles.high)
        for box in boxes(runs_of(paper()), bandwidth, sensitive)
    ]
    assert got == [(round(low, 1), round(high, 1)) for low, high in want]


def overlapping(bars: list[Bar]) -> list[tuple[Bar, Bar]]:
    """Pairs that lie over each other."""
    return [
        (one, other)
        for one, other in combinations(bars, 2)
        if one.row < other.row + other.rows and other.row < one.row + one.rows
        if (one.lane, one.lanes) == (other.lane, other.lanes) or one.lanes != other.lanes
        if one.from_s < other.to_s and other.from_s < one.to_s
    ]


@BOTH
def test_bars_never_overlap(replays) -> None:
    """No two bars of a timeline overlap on a GPU, and together they are all the time that GPUs were held."""
    runs = runs_of(replays())
    grid = grid_of(runs)
    for run in runs:
        bars = bars_of(run, grid)
        assert overlapping(bars) == []
        held_s = sum(bar.rows * (bar.to_s - bar.from_s) for bar in bars)
        assert held_s == pytest.approx(
            run.replay.utilization * run.replay.gpus * run.replay.makespan_s
        )


def test_bars_of_one_job() -> None:
    """GPUs that are next to each other have one bar, others another."""
    (run,) = runs_of(replayed(job(gpus=3), policies=["preserve"]))
    assert run.replay.jobs[0].stay.gpus == (0, 2, 3)
    assert [(bar.row, bar.rows, bar.from_s, bar.to_s) for bar in bars_of(run, grid_of([run]))] == [
        (0, 1, 0.0, 20.0),
        (2, 2, 0.0, 20.0),
    ]


def shared(*spans: tuple[float, float]) -> Run:
    """Jobs on GPU 0, whoever else is there."""
    (replay,) = replayed("".join(job(gpus=1) for _ in spans), policies=["preserve"])
    stays = [
        Stay(one.stay.job, 0, (0,), from_s, to_s, None, i)
        for i, (one, (from_s, to_s)) in enumerate(zip(replay.jobs, spans, strict=True))
    ]
    return runs_of(
        [measure(shown_machine("dgx1-v100", print).topology, stays, replay.rules, None)]
    )[0]


@pytest.mark.parametrize(
    ("spans", "want"),
    [
        ([(0, 9), (9, 12)], [(0, 1), (0, 1)]),
        ([(0, 9), (3, 12)], [(0, 2), (1, 2)]),
        ([(0, 9), (3, 5), (5, 12), (12, 13)], [(0, 2), (1, 2), (1, 2), (0, 1)]),
    ],
    ids=["one after the other", "together", "three in two lanes, then one alone"],
)
def test_bars_on_a_shared_gpu(spans, want) -> None:
    """Jobs that share a GPU lie beside each other in its row, and one that has it alone has the whole row."""
    run = shared(*spans)
    bars = bars_of(run, grid_of([run]))
    assert [(bar.lane, bar.lanes) for bar in bars] == want
    assert overlapping(bars) == []


def test_window_of_a_long_timeline() -> None:
    """A timeline ends where any run would have more bars than may be drawn, and its bars are cut off there."""
    runs = runs_of(paper())
    bars = [bars_of(run, grid_of(runs)) for run in runs]
    end_s = window_s(bars, 1e9, 50)
    assert end_s == min(each[50].from_s for each in bars)
    assert max(len(within(each, end_s)) for each in bars) <= 50
    assert max(bar.to_s for each in bars for bar in within(each, end_s)) == end_s
    assert window_s(bars, 1e9, 100_000) == 1e9


@BOTH
def test_curves_fall(replays) -> None:
    """Curves have every job, from worst to best."""
    for run in runs_of(replays()):
        for measured in (slowdown, wait_s):
            curve = worst_first(run, measured)
            assert curve == sorted((measured(one) for one in run.replay.jobs), reverse=True)
            assert thinned(curve, 10_000)[0] == (0, curve[0])


@pytest.mark.parametrize(
    ("values", "most", "want"),
    [
        ([], 5, []),
        ([7], 5, [(0, 7)]),
        ([9, 8, 7], 5, [(0, 9), (1, 8), (2, 7)]),
        ([9, 7, 7, 7, 7, 5], 9, [(0, 9), (1, 7), (4, 7), (5, 5)]),
        ([9, 8, 7, 6, 5, 4, 3, 2], 2, [(0, 9), (4, 5), (7, 2)]),
    ],
    ids=["none", "one", "few", "equals", "many"],
)
def test_thinned(values, most, want) -> None:
    """A curve is drawn by few points, the first and the last among them."""
    assert thinned(values, most) == want


@BOTH
def test_area_is_the_utilization(replays) -> None:
    """The area under a line over time is the figure in the table, whether all changes are drawn or means."""
    for run in runs_of(replays()):
        for what, want in (
            (used, run.replay.utilization),
            (used_or_broken, run.replay.utilization + run.replay.fragmentation),
        ):
            for longest_s in (run.replay.makespan_s, 7 * run.replay.makespan_s):
                spans = over_time(run, what, longest_s)
                area = sum(span.value * (span.to_s - span.from_s) for span in spans)
                assert area / run.replay.gpus / run.replay.makespan_s == pytest.approx(want)
                assert (spans[0].from_s, spans[-1].to_s) == (
                    0,
                    pytest.approx(run.replay.makespan_s),
                )
                assert all(one.to_s == other.from_s for one, other in pairwise(spans))


def test_means_over_time() -> None:
    """What changes more often than can be drawn is drawn as means over parts that are equally long."""
    (run,) = runs_of(replayed(generated_trace("uniform", 3, 400), policies=["baseline"]))
    spans = over_time(run, used, run.replay.makespan_s)
    area = sum(span.value * (span.to_s - span.from_s) for span in spans)
    assert len(run.replay.levels) > len(spans) == 180
    assert area / run.replay.gpus / run.replay.makespan_s == pytest.approx(run.replay.utilization)
    assert outline(spans[:1]) == [(0.0, spans[0].value), (spans[0].to_s, spans[0].value)]


def test_distribution() -> None:
    """A distribution climbs from value to value up to all jobs; its share at a value is that of jobs up to there."""
    run = runs_of(paper())[0]
    points = distribution(run, quality, of_gpus(3, connected))
    values = [one.quality for one in run.replay.jobs if len(one.stay.gpus) == 3]
    assert points == [
        (value, sum(other <= value for other in values) / len(values))
        for value in sorted(set(values))
    ]
    assert stairs([(0.5, 0.25), (1.0, 1.0)]) == [(0.5, 0.0), (0.5, 0.25), (1.0, 0.25), (1.0, 1.0)]


@pytest.mark.parametrize(
    ("longest_s", "want"),
    [(0, "s"), (300, "s"), (301, "min"), (3 * 3600, "min"), (11000, "h"), (864000, "days")],
)
def test_units_of_time(longest_s, want) -> None:
    """Times have the unit in which they are read best."""
    assert time_unit(longest_s).name == want


@pytest.mark.parametrize(
    ("value", "want"),
    [(0, "0"), (0.125, "0.125"), (57.94, "57.9"), (100, "100"), (12345.6, "12,346")],
)
def test_numbers(value, want) -> None:
    """Numbers on axes have three digits, and thousands a comma."""
    assert number(value) == want


# Policies and their colours


def test_every_policy_has_its_colour() -> None:
    """Each policy has a colour of its own, and no two parts of a page have the same."""
    assert set(POLICIES) == {name.replace("_", "-") for name in KNOWN}
    assert len({colour.light for colour in ALL}) == len({colour.name for colour in ALL}) == len(ALL)


# how three kinds of colour blindness mix red, green and blue (linear), whole: Machado et al. 2009, severity 1
SEEN = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.052)),
    "no green": ((0.3673, 0.8606, -0.228), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689)),
    "no blue": ((1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039)),
}


def lab(colour: str, eye) -> tuple[float, float, float]:
    """A colour as that eye sees it, in CIELAB, where 2.3 is just noticed."""
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
@pytest.mark.parametrize("ground", ["light", "dark"])
def test_colours_can_be_told_apart(eye, ground) -> None:
    """The colours of policies differ clearly for everybody, and stand out from the ground."""
    paper_colour = next(colour for colour in ALL if colour.name == "paper")
    seen = {name: lab(getattr(colour, ground), eye) for name, colour in POLICIES.items()}
    apart = {
        pair: sum((a - b) ** 2 for a, b in zip(seen[pair[0]], seen[pair[1]], strict=True)) ** 0.5
        for pair in combinations(seen, 2)
    }
    assert {pair: value for pair, value in apart.items() if value < 10} == {}
    bright = lab(getattr(paper_colour, ground), eye)[0]
    assert min(abs(bright - light) for light, _, _ in seen.values()) > 25


def test_labels() -> None:
    """Runs are called by their policies, and by what else differs where two have the same."""
    one = paper()[0]
    other = replace(one, rules=replace(one.rules, model="mapa"))
    assert [run.label for run in runs_of(paper())] == [
        "baseline",
        "topo-aware",
        "greedy",
        "preserve",
    ]
    assert [run.label for run in runs_of([one, other])] == ["baseline, cut", "baseline, mapa"]
    same = runs_of([one, one, paper()[1]])
    assert [run.label for run in same] == ["baseline", "baseline (2)", "topo-aware"]
    assert len({run.colour for run in same}) == 3


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([3.0], "3"),
        ([3.0, 3.0], "3 with each policy"),
        ([3.0, 1.0], "from 1 (topo-aware) to 3 (baseline)"),
        ([3.0, 1.0, 1.1, 2.0], "from 1 (topo-aware, greedy) to 3 (baseline)"),
    ],
)
def test_captions_compare(values, want) -> None:
    """A caption names the least and the largest, and all whose they are."""
    runs = runs_of(paper())[: len(values)]
    figures = {run.label: value for run, value in zip(runs, values, strict=True)}
    assert compared(runs, lambda run: figures[run.label], "{:.0f}".format) == want


# The page


@EVERY
def test_page_needs_nothing_else(name) -> None:
    """The page has its pictures inside, no script, and no address but those of its own pictures and of namespaces."""
    files = report(name)
    page = files[INDEX].decode()
    assert page.count("<svg ") == sum(file.endswith(".svg") for file in files)
    assert set(re.findall(r'\b(\S+)="https?://', page)) <= {"xmlns", "xmlns:xlink"}
    assert page.count("http") == len(re.findall(r'xmlns(?::xlink)?="http', page))
    assert (
        re.findall(r"<(?:script|link|img|iframe|object|image)\b|@import|url\((?!#)|\ssrc=", page)
        == []
    )
    links = set(re.findall(r'(?<!xlink:)href="([^"]*)"', page))
    assert links == set(files) - {INDEX}
    ids = re.findall(r'\sid="([^"]*)"', "".join(re.findall(r"<[^<>]*>", page)))
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|xlink:href="#)([^")]*)', page)) <= set(ids)


@EVERY
def test_every_colour_has_a_dark_one(name) -> None:
    """In the page every colour of a picture is one that the style sheet sets, on light ground and on dark."""
    page = report(name)[INDEX].decode()
    style, _, rest = page.partition("</style>")
    set_ones = re.findall(r"--([\w-]+): #[0-9a-f]{6};", style)
    assert sorted(set_ones) == sorted([colour.name for colour in ALL] * 2)
    tags = " ".join(re.findall(r"<[^<>]*>", rest))
    assert set(re.findall(r"var\(--([\w-]+)", tags)) <= set(set_ones)
    assert re.findall(r"(?<!, )#[0-9a-f]{6}\b|\b(?:black|white)\b", tags) == []


@EVERY
def test_pictures_are_documents(name) -> None:
    """Each picture is an SVG document by itself, drawn in light colours, and a PNG of twice the size."""
    files = report(name)
    for file in [file for file in files if file.endswith(".svg")]:
        svg = ET.fromstring(files[file])
        assert float(svg.get("width").removesuffix("pt")) == WIDTH
        assert b"var(" not in files[file]
        png = files[file.replace(".svg", ".png")]
        assert (png[:8], int.from_bytes(png[16:20])) == (b"\x89PNG\r\n\x1a\n", 2 * WIDTH)


@EVERY
def test_nothing_is_written_beyond_the_edge(name) -> None:
    """All text of a picture lies within it, as far as one can tell without the font."""
    for file, content in report(name).items():
        for text in ET.fromstring(content).iter(f"{SVG}text") if file.endswith(".svg") else ():
            size, anchor = (
                re.search(rf"{key}: ([\w.]+)", text.get("style"))[1]
                for key in ("font-size", "text-anchor")
            )
            width = len(text.text) * float(size.removesuffix("px")) * 0.63
            left = float(text.get("x")) - {"start": 0, "middle": width / 2, "end": width}[anchor]
            assert left > -8, (file, text.text)
            assert left + width < WIDTH + 14, (file, text.text)


def test_hostile_names() -> None:
    """A job's name is text, whatever it is: escaped in page and pictures, control characters visible, no formula."""
    files = report("hostile")
    page = files[INDEX].decode()
    assert "<script" not in page
    assert all(character.isprintable() or character == "\n" for character in page)
    shown = "".join(ET.fromstring(files["timeline.svg"]).itertext())
    want = HOSTILE.replace("\x1b", "\\x1b").replace("\x07", "\\x07")
    assert f"0 {want}" in shown
    assert f"0 {want}" in unescape(page)


@pytest.mark.parametrize(("name", "replays"), [("paper", paper), ("cluster", cluster)])
def test_page_has_the_terminals_figures(name, replays) -> None:
    """The page begins with what was replayed and the tables of the terminal."""
    page = report(name)[INDEX].decode()
    document = replays_document(replays())
    cells = [unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", page)]
    tables = (all_jobs(document), sensitive_jobs(document))
    assert cells == [cell for table in tables for row in table.rows for cell in row[1:]]
    assert re.search("<h1>(.*?)</h1>", page)[1] == replayed_text(document)[0]
    assert page.index("<h1>") < page.index("<table>") < page.index("<svg ")


def test_what_there_is_not_is_left_out() -> None:
    """Without sensitive jobs, links or waits there is no empty picture of them."""
    assert sorted(name for name in report("one GPU each") if name.endswith(".svg")) == [
        "load.svg",
        "slowdown.svg",
        "timeline.svg",
        "worst-to-best.svg",
    ]
    assert (
        "<b>bandwidth-sensitive jobs: effective bandwidth, GB/s</b>: none"
        in report("one GPU each")[INDEX].decode()
    )
    assert "jobs that wait" not in report("one job")["load.svg"].decode()
    assert "jobs that wait" in report("paper")["load.svg"].decode()


def test_bars_tell_their_job() -> None:
    """Where the pointer rests on a bar it is said which job that is, where it ran, and how long it waited and took."""
    (replay,) = replayed(job(gpus=3), policies=["preserve"])
    svg = ET.fromstring(report_files([replay])["timeline.svg"])
    want = (
        "job 0 vgg16: machine 0, GPU 0,2,3; waited 0 s, ran 20 s; 1.00 times as long as at its best"
    )
    assert [title.text for title in svg.iter(f"{SVG}title")] == [want, want]


def test_many_jobs_on_many_machines() -> None:
    """Of 10,000 jobs on 1,000 machines the page stays under 2 MB, and says what is left out."""
    (replay,) = replayed(job(gpus=1) + job(gpus=2), "power8-minsky", ["fcfs"], 1000)
    two = [one.stay.job for one in replay.jobs]
    stays = [
        Stay(
            replace(two[i % 2], id=i, arrival_s=0.0),
            i // 3 % 1000,
            ((0,), (1, 2))[i % 2],
            30.0 * i,
            30.0 * i + 200,
            None,
            i,
        )
        for i in range(10_000)
    ]
    many = measure(shown_machine("power8-minsky", print).topology, stays, replay.rules, None)
    busy = replace(
        many,
        jobs=tuple(
            replace(one, stay=replace(one.stay, machine=one.stay.job.id % 5)) for one in many.jobs
        ),
    )
    page = report_files([busy])[INDEX]
    assert len(page) < 2_000_000
    hidden = re.search(
        r"Shown: machines 0 to 7 of 1,000, the first (.*?) of (.*?)\.", page.decode()
    )
    assert hidden[2] == format_duration(round(many.makespan_s))


# The command


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    """A command line that replays 10 jobs."""
    path = tmp_path / "jobs.toml"
    path.write_text(generated_trace("uniform", 1, 10))
    return [
        "simulate",
        "--topology",
        "dgx1-v100",
        "--jobs",
        str(path),
        "--policy",
        "baseline,preserve",
    ]


def test_report(launcher: Launcher, trace, tmp_path: Path) -> None:
    """--report DIR makes DIR, writes the page and its pictures, and names the page below the tables.

    The same replays make the same bytes: on another day, in another process, whatever matplotlib's user likes.
    """
    style = tmp_path / "style"
    style.mkdir()
    (style / "matplotlibrc").write_text(
        "figure.facecolor: red\nfont.size: 30\nsvg.fonttype: path\n"
    )
    others = {
        "PYTHONHASHSEED": "7",
        "MPLCONFIGDIR": str(style),
        "SOURCE_DATE_EPOCH": "1",
        "TZ": "Asia/Tokyo",
    }
    place, again = tmp_path / "new" / "report", tmp_path / "again"
    plain, done = launcher.run(*trace), launcher.run(*trace, "--report", str(place))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{plain.stdout}\nthe report: {place}/index.html\n"
    names = sorted(os.listdir(place))
    pictures = [name.removesuffix(".svg") for name in names if name.endswith(".svg")]
    assert names == sorted(
        [INDEX, *(f"{name}.{kind}" for name in pictures for kind in ("png", "svg"))]
    )
    assert {(place / name).stat().st_mode & 0o777 for name in names} == {0o644}
    done = launcher.run(*trace, "--json", "--report", str(again), env=launcher.environment | others)
    assert (done.returncode, done.stderr, json.loads(done.stdout)["runs"][0]["policy"]) == (
        0,
        "",
        "baseline",
    )
    assert sorted(os.listdir(again)) == names
    assert [
        name for name in names if (place / name).read_bytes() != (again / name).read_bytes()
    ] == []


def test_without_matplotlib(launcher: Launcher, trace, tmp_path: Path) -> None:
    """Without matplotlib --report says what to install, before the run; without --report nothing needs it."""
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "matplotlib.py").write_text(
        'raise ModuleNotFoundError("No module named \'matplotlib\'", name="matplotlib")\n'
    )
    environment = launcher.environment | {"PYTHONPATH": str(tmp_path / "block")}
    done = launcher.run(*trace, "--report", str(tmp_path / "report"), env=environment)
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == (
        "gpulaunch: error: a report needs matplotlib: No module named 'matplotlib'\n"
        "gpulaunch: hint: pip install 'gpulaunch[report]'\n"
    )
    assert not (tmp_path / "report").exists()
    assert launcher.run(*trace, env=environment).returncode == 0


def test_without_a_home(launcher: Launcher, trace, tmp_path: Path) -> None:
    """Where matplotlib may keep nothing the report is made all the same, without a word, and nothing is left behind."""
    (tmp_path / "temporary").mkdir()
    nowhere = {
        "HOME": "/proc/none",
        "MPLCONFIGDIR": "/proc/none",
        "TMPDIR": str(tmp_path / "temporary"),
    }
    done = launcher.run(
        *trace, "--report", str(tmp_path / "report"), env=launcher.environment | nowhere
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report" / INDEX).exists()
    assert os.listdir(tmp_path / "temporary") == []


def test_backend_that_is_none(launcher: Launcher, trace, tmp_path: Path) -> None:
    """MPLBACKEND that matplotlib does not take is one line, not a traceback."""
    done = launcher.run(
        *trace, "--report", str(tmp_path / "x"), env=launcher.environment | {"MPLBACKEND": "none"}
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (125, "", 1)
    assert done.stderr.startswith("gpulaunch: error: matplotlib: Key backend: 'none'")


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("{tmp}/file", "not a directory"),
        ("{tmp}/file/report", "not a directory"),
        ("/proc/report", "no such file or directory"),
    ],
    ids=["a file", "within a file", "where nobody may"],
)
def test_place_that_cannot_be_written(
    launcher: Launcher, trace, tmp_path: Path, place, why
) -> None:
    """Where nothing can be written, that is said before the run."""
    (tmp_path / "file").write_text("mine")
    place = place.format(tmp=tmp_path)
    done = launcher.run(*trace, "--report", place)
    assert (done.returncode, done.stdout, done.stderr) == (
        125,
        "",
        f"gpulaunch: error: {place}: {why}\n",
    )
    assert (tmp_path / "file").read_text() == "mine"


# Progress


@pytest.fixture
def long_run(tmp_path: Path) -> list[str]:
    """A command line that replays for a few seconds."""
    path = tmp_path / "many.toml"
    path.write_text(generated_trace("poisson", 1, 3000))
    options = [
        "--machines",
        "9",
        "--time-model",
        "bandwidth,interference",
        "--policy",
        "topo-aware,topo-aware-p",
    ]
    return ["simulate", "--topology", "power8-minsky", "--jobs", str(path), *options]


def at_terminal(launcher: Launcher, *arguments: str, **variables: str) -> str:
    """What is seen of a command at a terminal, control characters included."""
    environment = launcher.environment | {"TERM": "xterm", "NO_COLOR": "1", **variables}
    size = (24, 120)
    terminal = pexpect.spawn(
        launcher.script,
        list(arguments),
        env=environment,
        encoding="utf-8",
        timeout=60,
        dimensions=size,
    )
    terminal.expect(pexpect.EOF)
    return terminal.before


def test_progress_at_a_terminal(launcher: Launcher, long_run) -> None:
    """A long run at a terminal tells policy, jobs and time left on one line, which is gone before the tables come."""
    seen = re.sub(r"\x1b\[\d*m", "", at_terminal(launcher, *long_run))
    lines, _, rest = seen.rpartition("\r\x1b[2K")
    told = [
        re.fullmatch(r".*(topo-aware(?:-p)?): ([\d,]+) of 3,000 jobs(?:, about .+ left)?", line)
        for line in lines.split("\r\x1b[2K")
    ]
    assert all(told)
    assert {line[1] for line in told} <= {"topo-aware", "topo-aware-p"}
    ended = [int(line[2].replace(",", "")) for line in told if line[1] == "topo-aware-p"]
    assert ended == sorted(ended)
    assert rest.startswith("3000 jobs")
    assert (
        "\x1b[?25l" not in seen
    )  # the cursor is never hidden: whoever ends this by Ctrl-C sees it


def test_no_progress(launcher: Launcher, long_run, trace) -> None:
    """A pipe, a terminal that cannot draw over a line, and a run that is over at once hear nothing of progress."""
    one = [*long_run, "--policy", "topo-aware"]
    piped = launcher.start(*one)
    assert " of 3,000 jobs" not in at_terminal(launcher, *one, TERM="dumb")
    assert " of 10 jobs" not in at_terminal(launcher, *trace)
    output, told = piped.communicate(timeout=60)
    assert (piped.returncode, told, output.count("topo-aware")) == (0, "", 2)
