"""The page of `simulate --report`: it draws what came of the replay and needs nothing else."""

import re
from collections import defaultdict
from functools import cache
from html import unescape
from itertools import accumulate, pairwise
from xml.etree import ElementTree as ET

import pytest
from test_report import BOTH, DARK_PAPER, SVG, cluster, job, paper, replayed

from gpulaunch.files.duration import format_duration
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.records import as_list, replace
from gpulaunch.show.canvas import INK, PAPER, WIDTH
from gpulaunch.show.replay_document import replays_document
from gpulaunch.show.replay_rows import all_jobs, sensitive_jobs
from gpulaunch.show.replay_rows import replayed as replayed_text
from gpulaunch.show.report.page import INDEX, report_files
from gpulaunch.show.report.plots import policy_plots
from gpulaunch.show.report.series import SLOWDOWNS, Plot, time_unit
from gpulaunch.show.report.timeline import bars_of, rows_of, timeline_plots
from gpulaunch.simulate.event_loop import Stay
from gpulaunch.simulate.measures import measure, quartiles

HOSTILE = '<script>alert(1)</script> "\'&amp; $\\frac$ ]]> #1f2933 id="x" \x1b[31m\x07'


@cache
def report(name: str) -> dict[str, bytes]:
    """Return the files of a report by the name of its subject."""
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


# What is drawn


def plots(replays) -> dict[str, Plot]:
    """Return all plots of a report by name."""
    return {plot.name: plot for plot in (*policy_plots(replays), *timeline_plots(replays))}


def boxes(axes) -> list[dict[str, float]]:
    """Return what the box plots on axes show, from the top down."""
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


# The page


@EVERY
def test_page_needs_nothing_else(name) -> None:
    """The page has its pictures inside, no script, and no address but theirs and namespaces'."""
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
    """Each picture is an SVG document of its own, in light colours, and a PNG of twice its size."""
    files = report(name)
    for file in [file for file in files if file.endswith(".svg")]:
        svg = ET.fromstring(files[file])
        assert float(svg.get("width").removesuffix("pt")) == WIDTH
        assert b"var(" not in files[file]
        png = files[file.replace(".svg", ".png")]
        assert (png[:8], int.from_bytes(png[16:20], "big")) == (b"\x89PNG\r\n\x1a\n", 2 * WIDTH)


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
    """A job's name is text, whatever it is: escaped, control characters visible, no formula."""
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


def test_many_jobs_on_many_machines() -> None:
    """Of 10,000 jobs on 1,000 machines the page stays under 2 MB, and says what is left out."""
    (replay,) = replayed(job(gpus=1) + job(gpus=2), "power8-minsky", ["baseline"], 1000)
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
