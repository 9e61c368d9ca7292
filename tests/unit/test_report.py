"""`simulate --report` and its progress: what is drawn is what came of the replay, and the page needs nothing else."""

import json
import os
import re
from collections import defaultdict
from functools import cache
from html import unescape
from itertools import accumulate, combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pexpect
import pytest
from conftest import Launcher

from gpulaunch.decide.placement.policies import POLICIES
from gpulaunch.files.duration import format_duration
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.records import as_list, replace
from gpulaunch.show.canvas import INK, PAPER, WIDTH
from gpulaunch.show.replay_document import replays_document
from gpulaunch.show.replay_rows import all_jobs, sensitive_jobs
from gpulaunch.show.replay_rows import replayed as replayed_text
from gpulaunch.show.report.page import INDEX, report_files
from gpulaunch.show.report.plots import policy_plots
from gpulaunch.show.report.series import SLOWDOWNS, Plot, means_over_time, time_unit
from gpulaunch.show.report.timeline import Bar, bars_of, drawable_s, rows_of, timeline_plots
from gpulaunch.simulate.engine import Rules, Stay, simulate
from gpulaunch.simulate.measures import Replay, measure, quartiles
from gpulaunch.simulate.read_simulation import read_trace
from gpulaunch.simulate.simulator import generated_trace

DARK_PAPER = "#14181d"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert(1)</script> "\'&amp; $\\frac$ ]]> #1f2933 id="x" \x1b[31m\x07'
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
    """A job of a file."""
    said = {"name": json.dumps(name).replace("\x7f", ""), "sensitive": json.dumps(sensitive)}
    return JOB.format(**said, gpus=gpus, arrival_s=arrival_s, duration_s=duration_s)


def replayed(
    text: str, topology="dgx1-v100", policies=FOUR, machines=1, models=("bandwidth",), cuts=None
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


def plots(replays) -> dict[str, Plot]:
    """All plots of a report by name."""
    return {plot.name: plot for plot in (*policy_plots(replays), *timeline_plots(replays))}


def boxes(axes) -> list[dict[str, float]]:
    """What the box plots on axes show, from the top down."""
    found = []
    for i, box in enumerate(axes.patches):
        _, _, least, most, median, mean, _ = axes.lines[7 * i : 7 * i + 7]
        low, *_, high = sorted(x for x, _ in box.get_path().vertices)
        ends = (least.get_xdata()[0], low, median.get_xdata()[0], high, most.get_xdata()[0])
        numbers = (*ends, mean.get_xdata()[0])
        names = ("min", "p25", "p50", "p75", "max", "mean")
        found.append(dict(zip(names, (round(float(n), 6) for n in numbers), strict=True)))
    return found


@BOTH
def test_boxes_are_the_quartiles(replays) -> None:
    """Box plots show the quartiles and means that --json tells, from the first policy down."""
    document = replays_document(replays())["runs"]
    drawn = plots(replays())
    bandwidth, wait = drawn["bandwidth"].figure.axes[0], drawn["wait"].figure.axes[0]
    names = [run["policy"] for run in document]
    assert [label.get_text() for label in bandwidth.get_yticklabels()] == names
    assert bandwidth.get_ylim() == (len(document) - 0.5, -0.5)
    want = [run["sensitive"]["effective_bandwidth_gb_per_s"] for run in document]
    assert boxes(bandwidth) == want
    size_s, unit = time_unit(max(run["wait_s"]["max"] for run in document))
    assert wait.get_xlabel() == f"wait, {unit}"
    want = [pytest.approx({k: v / size_s for k, v in run["wait_s"].items()}) for run in document]
    assert boxes(wait) == want


@BOTH
def test_boxes_by_number_of_gpus(replays) -> None:
    """Panels by number of GPUs have the sensitive jobs with as many, if these are five or more."""
    everyone, *panels = plots(replays())["bandwidth"].figure.axes
    by_size = defaultdict(list)
    for one in replays()[0].jobs:
        if one.sensitive:
            by_size[len(one.stay.gpus)].append(one.effective_bandwidth)
    count = sum(map(len, by_size.values()))
    assert everyone.get_title("left") == f"bandwidth-sensitive: {count} jobs"
    shown = {size: values for size, values in sorted(by_size.items()) if len(values) >= 5}
    titles = [f"{size} GPUs: {len(values)} jobs" for size, values in shown.items()]
    assert [axes.get_title("left") for axes in panels] == titles
    for axes, values in zip(panels, shown.values(), strict=True):
        first = list(boxes(axes)[0].values())
        assert first[:5] == pytest.approx(as_list(quartiles(values)))


def test_slowdowns_by_class() -> None:
    """A bar has the share of jobs in each class of slowdown, and beside it their mean and worst."""
    (axes,) = plots(paper())["slowdown"].figure.axes
    assert axes.get_title("left").startswith("bandwidth-sensitive: ")
    bounds = [0.0, *(most for most, _, _ in SLOWDOWNS)]
    for row, replay in enumerate(paper()):
        slowdowns = [one.slowdown for one in replay.jobs if one.sensitive]
        want = [
            sum(low < slowdown <= high for slowdown in slowdowns) * 100 / len(slowdowns)
            for low, high in pairwise(bounds)
        ]
        bars = [container[row] for container in axes.containers]
        assert [bar.get_width() for bar in bars] == pytest.approx(want)
        assert [bar.get_x() for bar in bars] == pytest.approx([0, *accumulate(want[:-1])])
        mean = sum(slowdowns) / len(slowdowns)
        beside = [text.get_text() for text in axes.texts if text.get_position() == (102, row)]
        assert beside == [f"mean {mean:.2f}, worst {max(slowdowns):.2f}"]


def test_jobs_that_neighbours_slow_down() -> None:
    """Jobs that bandwidth does not matter to have bars of their own if some were slowed down."""
    titles = [axes.get_title("left") for axes in plots(cluster())["slowdown"].figure.axes]
    assert [title.partition(":")[0] for title in titles] == [
        "bandwidth-sensitive",
        "not bandwidth-sensitive",
    ]


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
    """Jobs that share a GPU lie beside each other in its row, and one that has it alone has the whole row."""
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


def test_bars_end_where_the_timeline_does() -> None:
    """Bars are drawn from start to end of their jobs, and cut off where the timeline ends."""
    figure = plots(paper())["timeline-beginning"].figure
    unit_s = 1 if figure.axes[0].get_xlabel().endswith(", s") else 60
    for axes, replay in zip(figure.axes, paper(), strict=True):
        end = axes.get_xlim()[1]
        want = [
            (bar.from_s / unit_s, bar.row, min(bar.to_s / unit_s, end))
            for bar in bars_of(replay, rows_of(paper()))
            if bar.from_s / unit_s < end
        ]
        drawn = [
            (patch.get_x(), patch.get_y(), patch.get_x() + patch.get_width())
            for patch in axes.patches
            if patch.get_gid()
        ]
        assert drawn == [pytest.approx(each) for each in want]
        assert max(to for _, _, to in drawn) == pytest.approx(end)


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
def test_ink_and_paper_are_the_pages(name) -> None:
    """Pictures in the page have its ink and paper, which it sets for light and dark ground."""
    page = report(name)[INDEX].decode()
    style, _, rest = page.partition("</style>")
    assert re.findall("--ink: (#[0-9a-f]+); --paper: (#[0-9a-f]+);", style) == [
        (INK, PAPER),
        ("#e6eaef", DARK_PAPER),
    ]
    tags = " ".join(re.findall(r"<[^<>]*>", rest))
    assert set(re.findall(r"var\(--([\w-]+)", tags)) == {"ink", "paper"}
    assert re.findall(f"{INK}|{PAPER}|\\b(?:black|white)\\b", tags) == []


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
            width = len(text.text) * float(size.removesuffix("px")) * 0.56
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


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("paper", ["bandwidth", "load", "slowdown", "timeline-beginning", "timeline", "wait"]),
        ("one job", ["bandwidth", "load", "timeline"]),
        ("one GPU each", ["load", "timeline"]),
    ],
)
def test_what_would_be_empty_is_left_out(name, want) -> None:
    """Without sensitive jobs, slow ones or waits there is no empty picture of them."""
    files = report(name)
    assert sorted(name for name in files if name.endswith(".svg")) == [f"{x}.svg" for x in want]
    none = "<b>bandwidth-sensitive jobs: effective bandwidth, GB/s</b>: none"
    assert (none in files[INDEX].decode()) == ("bandwidth" not in want)


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
    jobs = [replace(one, stay=replace(one.stay, machine=one.id % 5)) for one in many.jobs]
    busy = replace(many, jobs=tuple(jobs))
    page = report_files([busy])[INDEX]
    assert len(page) < 2_000_000
    hidden = re.search(
        r"Shown: machines 0 to 4 of 1,000, the first (.*?) of (.*?)\.", page.decode()
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
        "figure.facecolor: red\nfont.size: 30\nsvg.fonttype: path\naxes.grid: True\n"
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
