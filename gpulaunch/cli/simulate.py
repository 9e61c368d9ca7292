"""`gpulaunch simulate`: replay a file of jobs by the launcher's own decisions.

Its report is a page of tables and pictures; this is the only door to matplotlib. Lengths are in
pixels of the page at 100 %.
"""

import logging
import os
import sys
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from html import escape
from io import BytesIO
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from gpulaunch.cli.arguments import (
    Namespace,
    Parser,
    add_json,
    add_topology,
    value_by,
    whole_number,
)
from gpulaunch.cli.output import Document, print_json, rounded, warn
from gpulaunch.cli.screen import Grid, Parts, Text, draw, figure
from gpulaunch.errors import FailedError, UsageError, counted, printable
from gpulaunch.files.document import install_hint
from gpulaunch.files.units import format_duration
from gpulaunch.files.write import document_text, make_directory, write_bytes
from gpulaunch.lab.simulate.event_loop import Rules, simulate
from gpulaunch.lab.simulate.generate import GENERATORS
from gpulaunch.lab.simulate.measures import Replay, ReplayedJob, measure, quartiles
from gpulaunch.lab.simulate.read_simulation import read_trace
from gpulaunch.lab.simulate.simulator import SIMULATED_MODELS, generate_trace
from gpulaunch.lab.simulate.time_model import MODELS
from gpulaunch.launch.job_file import load_jobs
from gpulaunch.launch.options import OPTIONS, QUEUES, one_of
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.machine.find import Machine
from gpulaunch.placement.policies import DEFAULT_POLICY, POLICIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INDEX = "index.html"

Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Headings of columns, of which the first has text, and a row of cells for each policy."""

_MOST_MACHINES = 100_000
_MOST_JOBS = 200_000

_QUARTILES = ("min", "p25", "p50", "p75", "max", "mean")
_SENSITIVE = "bandwidth-sensitive jobs: effective bandwidth, GB/s"  # title of the second table
_KEY = (  # meaning of the columns
    "in use: GPU time that was held; slower: mean run time over that alone on the best GPUs; "
    "SLO: jobs that ran with less than they need; no ring: none over NVLinks alone"
)

_WIDTH = 1040
_INK, _PAPER = "#1f2933", "#ffffff"
_PER_INCH = 72  # so that a point of matplotlib's is a pixel
_SLOWDOWNS = {  # the largest of a class of slowdowns: its colour and its meaning
    1.05: ("#c3cfdc", "at full speed, or within 5 %"),
    1.5: ("#fbdc94", "up to 1.5 times as long"),
    2.0: ("#f5a35c", "up to twice as long"),
    float("inf"): ("#e2685f", "longer"),
}
_UNITS_S = {300: (1, "s"), 3 * 3600: (60, "min"), 3 * 86400: (3600, "h")}  # up to so many seconds
_MOST_ROWS = 80  # GPUs of a timeline
_MOST_BARS = 1500  # of each policy's timeline
_LETTER = 6.2  # width of a letter on a bar
_STYLE = f"""
body {{ margin: 0; background: {_PAPER}; color: {_INK}; font: 15px/1.5 system-ui, sans-serif; }}
main {{ max-width: {_WIDTH}px; margin: 0 auto; padding: 24px 24px 64px; }}
table {{ border-collapse: collapse; margin: 4px 0 20px; font-size: 14px; }}
caption {{ text-align: left; font-weight: bold; padding-bottom: 2px; }}
th, td {{ padding: 4px 16px 4px 0; text-align: right; white-space: nowrap; }}
thead th {{ font-weight: normal; border-bottom: 1px solid #8888; }}
tr > :first-child {{ text-align: left; font-weight: normal; }}
img {{ display: block; width: 100%; margin-top: 44px; }}
"""


def main(arguments: Sequence[str]) -> int:
    """Replay jobs as the command line says."""
    options = make_parser().parse_args(arguments)
    if options.generate:
        if options.json or options.report is not None:
            raise UsageError("--generate prints a file of jobs: --json and --report go with --jobs")
        trace = generate_trace(options.generate, options.seed or 0, options.count)
        print(document_text(trace), end="")
        return 0
    machine = shown_machine(options.topology, warn)
    if options.report is not None:  # what cannot be is said before a long run
        load_matplotlib()
        make_directory(options.report)
    replays = _run_replays(options, machine)
    if options.report is not None:
        for name, content in report_files(replays).items():
            write_bytes(os.path.join(options.report, name), content)
    document = replays_document(replays)
    if options.json:
        print_json(document)
        return 0
    _draw_tables(document)
    if options.report is not None:
        print(f"\nthe report: {printable(os.path.join(options.report, INDEX))}")
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch simulate",
        "Replay jobs on described machines, by the launcher's own decisions and queue.",
    )
    add_topology(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--jobs",
        metavar="FILE",
        help="the jobs: TOML, JSON lines or MAPA's columns (docs/guides/simulate.md)",
    )
    source.add_argument(
        "--generate", choices=sorted(GENERATORS), help="print a file of random jobs instead"
    )
    parser.add_argument(
        "--policy",
        metavar="P,...",
        type=_each(OPTIONS["policy"].parse),
        default=[DEFAULT_POLICY],
        help=f"one run for each (default: {DEFAULT_POLICY})",
    )
    parser.add_argument(
        "--queue",
        choices=QUEUES,
        default=QUEUES[0],
        help="whether jobs pass others that they do not delay (default: backfill)",
    )
    parser.add_argument(
        "--machines",
        metavar="N",
        type=whole_number(_MOST_MACHINES),
        default=1,
        help="so many alike",
    )
    parser.add_argument(
        "--time-model",
        metavar="M,...",
        type=_each(one_of(MODELS, "time model")),
        default=["bandwidth"],
        help="what makes jobs slower: fixed (nothing), bandwidth (default), interference, sharing",
    )
    parser.add_argument(
        "--bandwidth-model",
        choices=SIMULATED_MODELS,
        help="what policies go by (default: cut; preserve-paper: mapa)",
    )
    parser.add_argument(
        "--count",
        metavar="N",
        type=whole_number(_MOST_JOBS),
        default=300,
        help="how many of them",
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, help="of these; told in the results otherwise"
    )
    parser.add_argument(
        "--report", metavar="DIR", help="also write a page with pictures, index.html, into DIR"
    )
    add_json(parser)
    return parser


def _each(parse: Callable[[str], str]) -> Callable[[str], list[str]]:
    """Return what reads values separated by commas, and leaves out repeated ones."""

    def read(text: str) -> list[str]:
        return list(dict.fromkeys(map(parse, text.split(","))))

    return value_by(read)


def _run_replays(options: Namespace, machine: Machine) -> list[Replay]:
    jobs = read_trace(load_jobs(options.jobs), machine, warn).jobs
    replays = []
    for policy in options.policy:
        rules = Rules(
            policy=policy,
            model=options.bandwidth_model or POLICIES[policy].bandwidth_model,
            machines=options.machines,
            queue=options.queue,
            time_models=tuple(name for name in options.time_model if name != "fixed"),
        )
        try:
            stays = simulate(machine.topology, jobs, rules)
        except UsageError as problem:
            message = f"{printable(options.jobs)}: {problem.message}"
            raise UsageError(message, problem.hint) from None
        replays.append(measure(machine.topology, stays, rules, options.seed))
    return replays


def replays_document(replays: Iterable[Replay]) -> Document:
    """Return the document that `gpulaunch simulate --json` prints."""
    return {"runs": [_run_document(replay) for replay in replays]}


def _run_document(replay: Replay) -> Document:
    rules, sensitive = replay.rules, [one for one in replay.jobs if one.sensitive]
    return {
        "policy": _shown(rules.policy),
        "topology": replay.topology,
        "machines": rules.machines,
        "seed": replay.seed,
        "queue": rules.queue,
        "bandwidth_model": rules.model,
        "time_models": list(rules.time_models) or ["fixed"],
        "makespan_s": rounded(replay.makespan_s),
        "throughput_jobs_per_hour": rounded(replay.throughput_jobs_per_hour),
        "utilization": rounded(replay.utilization),
        "slo_violations": replay.violations,
        "wait_s": _quartiles(one.wait_s for one in replay.jobs),
        "turnaround_s": _quartiles(one.turnaround_s for one in replay.jobs),
        "slowdown": _quartiles(one.slowdown for one in replay.jobs),
        "sensitive": {
            "jobs": len(sensitive),
            "effective_bandwidth_gb_per_s": _quartiles(map(_bandwidth, sensitive)),
            "slowdown": _quartiles(one.slowdown for one in sensitive),
            "without_nvlink_ring": sum(not one.nvlink_ring for one in sensitive),
        },
        "jobs": [_job_document(one) for one in replay.jobs],
    }


def _shown(policy: str) -> str:
    return policy.replace("_", "-")


def _bandwidth(one: ReplayedJob) -> float:
    return one.effective_bandwidth or 0.0


def _quartiles(values: Iterable[float]) -> Document | None:
    found = quartiles(values)
    return found and {name: rounded(value) for name, value in found.items()}


def _job_document(one: ReplayedJob) -> Document:
    return {
        "id": one.id,
        "name": one.name,
        "machine": one.machine,
        "gpus": list(one.gpus),
        "sensitive": one.sensitive,
        "submitted_s": rounded(one.arrival_s),
        "started_s": rounded(one.started_s),
        "ended_s": rounded(one.ended_s),
        "effective_bandwidth_gb_per_s": rounded(one.effective_bandwidth),
        "aggregate_bandwidth_gb_per_s": rounded(one.aggregate_bandwidth),
        "allocation_quality": rounded(one.quality),
        "slowdown": rounded(one.slowdown),
        "utility": rounded(one.utility),
        "violates_slo": one.violates,
    }


def replays_rows(document: Document) -> tuple[str, str, Rows, Rows]:
    """Return what was replayed and how, then the rows about all jobs and about sensitive ones."""
    first = document["runs"][0]
    machines = printable(first["topology"])
    if first["machines"] > 1:
        machines = f"{first['machines']} x {machines}"
    jobs, few_jobs = counted(len(first["jobs"]), "job"), first["sensitive"]["jobs"]
    columns = ("makespan", "jobs/h", "in use", "wait", "longest", "slower", "SLO")
    everyone: Rows = ("policy", *columns), []
    few: Rows = ("policy", *_QUARTILES, "no ring", "slower"), []
    for run in document["runs"]:
        row = (
            run["policy"],
            format_duration(round(run["makespan_s"])),
            figure(run["throughput_jobs_per_hour"]),
            f"{run['utilization']:.1%}",
            format_duration(round(run["wait_s"]["mean"])),
            format_duration(round(run["wait_s"]["max"])),
            f"{run['slowdown']['mean'] - 1:.1%}",
            str(run["slo_violations"]),
        )
        everyone[1].append(row)
        sensitive = run["sensitive"]
        if sensitive["jobs"]:
            bandwidth = sensitive["effective_bandwidth_gb_per_s"]
            figures = [f"{bandwidth[name]:.1f}" for name in _QUARTILES]
            ringless = f"{sensitive['without_nvlink_ring'] / sensitive['jobs']:.1%}"
            slower = f"{sensitive['slowdown']['mean'] - 1:.1%}"
            few[1].append((run["policy"], *figures, ringless, slower))
    title = f"{jobs} ({few_jobs} bandwidth-sensitive) on {machines}, {first['queue']}"
    how = f"run times: {' and '.join(first['time_models'])}; bandwidths by the cut model"
    return title, how, everyone, few


def _draw_tables(document: Document) -> None:
    """Draw the tables: all jobs of each run, then the sensitive ones."""
    title, how, *tables = replays_rows(document)
    drawn: list[Grid | Text] = []
    for columns, rows in tables:
        table = Grid(*columns, right=columns[1:])
        for row in rows:
            table.add_row(*row)
        drawn.append(table if rows else Text("none", "dim"))
    everyone, sensitive = drawn
    parts = [Text(title, "bold"), Text(how, "dim"), Text(), everyone]
    parts += [Text(), Text(_SENSITIVE, "bold"), sensitive, Text(), Text(_KEY, "dim")]
    draw(Parts(*parts), sys.stdout)


def load_matplotlib() -> None:
    """Import matplotlib, which need not be installed, and set the style of all figures.

    Raises:
        FailedError: matplotlib is not installed, or does not start.
    """
    # Matplotlib warns that it makes the directory that is removed below.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    before = os.environ.get("MPLCONFIGDIR")
    try:
        import matplotlib as mpl
        import matplotlib.figure
    except ImportError as problem:
        hint = install_hint("report")
        raise FailedError(f"a report needs matplotlib: {problem}", hint) from None
    except ValueError as problem:  # MPLBACKEND names no backend
        raise FailedError(f"matplotlib: {problem}") from None
    # Without a cache that it may write to, matplotlib makes a directory, and removes it at exit.
    # Our commands end by os._exit, which skips that.
    made = os.environ.get("MPLCONFIGDIR")
    if made and made != before:
        rmtree(made, ignore_errors=True)
    mpl.rcdefaults()  # whatever style the user has set
    mpl.rcParams.update(
        {
            "axes.axisbelow": True,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlelocation": "left",
            "font.size": 11,
            "svg.fonttype": "none",  # text stays text: sharp, to be searched and copied
            "text.parse_math": False,  # a name may have dollars
        }
    )


def report_files(replays: Sequence[Replay]) -> dict[str, bytes]:
    """Return the files of a report by name: its pictures, and the page, which needs none of them.

    The same replays, which are of the same jobs, make the same bytes.

    Raises:
        FailedError: matplotlib is not installed, or does not start.
    """
    load_matplotlib()
    figures = {}
    sensitive = [[one for one in replay.jobs if one.sensitive] for replay in replays]
    if sensitive[0]:
        bandwidths = [[*map(_bandwidth, some)] for some in sensitive]
        what = "effective bandwidth of bandwidth-sensitive jobs, GB/s"
        figures["bandwidth"] = _draw_boxes(replays, bandwidths, what)
    longest_s = max(one.wait_s for replay in replays for one in replay.jobs)
    if longest_s:
        size_s, unit = _time_unit(longest_s)
        waits = [[one.wait_s / size_s for one in replay.jobs] for replay in replays]
        figures["wait"] = _draw_boxes(replays, waits, f"time from arrival to start, {unit}")
    figures["timeline"] = _draw_timelines(replays)
    pictures = {f"{name}.svg": _svg_of(figure, name) for name, figure in figures.items()}
    return pictures | {INDEX: _page(replays, pictures.values()).encode()}


def _page(replays: Sequence[Replay], pictures: Iterable[bytes]) -> str:
    title, how, everyone, sensitive = replays_rows(replays_document(replays))
    seed = "" if replays[0].seed is None else f"; seed {replays[0].seed}"
    lines = [
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n<main>",
        f"<h1>{escape(title)}</h1>\n<p>{escape(how)}{seed}</p>",
        _html_table("all jobs", everyone),
        _html_table(_SENSITIVE, sensitive),
        f"<p>{escape(_KEY)}</p>",
    ]
    for picture in pictures:
        data = b64encode(picture).decode()
        lines.append(f'<img alt="" src="data:image/svg+xml;base64,{data}">')
    return "\n".join([*lines, "</main>\n</html>\n"])


def _html_table(caption: str, rows: Rows) -> str:
    """Return a table with a row for each replay, or a line if there is nothing to tell."""
    columns, cells = rows
    if not cells:
        return f"<p><b>{caption}</b>: none</p>"
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = [f"<table>\n<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>"]
    for row in cells:
        data = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        lines.append(f"<tr>{data}</tr>")
    return "\n".join([*lines, "</table>"])


def _time_unit(longest_s: float) -> tuple[float, str]:
    """Return the unit for times up to the longest: its length in seconds, and its name."""
    for most_s, unit in _UNITS_S.items():
        if longest_s <= most_s:
            return unit
    return 86400, "days"


def _new_figure(height: float) -> "Figure":
    from matplotlib.figure import Figure

    size = _WIDTH / _PER_INCH, height / _PER_INCH
    return Figure(figsize=size, dpi=_PER_INCH, layout="constrained")


def _svg_of(figure: "Figure", name: str) -> bytes:
    """Return a figure as an SVG document, in which ids depend on the name alone."""
    import matplotlib as mpl

    vector = BytesIO()
    unsaid = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font does not have is drawn as a box
        figure.savefig(vector, format="svg", metadata=unsaid)
    return vector.getvalue()


def _draw_boxes(
    replays: Sequence[Replay], values: Sequence[Sequence[float]], what: str
) -> "Figure":
    """Draw a box for each policy: quartiles, least and most, and the mean as a triangle."""
    figure = _new_figure(80 + 32 * len(replays))
    axes = figure.subplots()
    names = [_shown(replay.rules.policy) for replay in replays]
    axes.boxplot(
        values,
        orientation="horizontal",
        tick_labels=names,
        whis=(0, 100),
        widths=0.6,
        showmeans=True,
    )
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.grid(axis="x", alpha=0.4)
    axes.set_title(f"{what}: quartiles, range and mean")
    return figure


def _draw_timelines(replays: Sequence[Replay]) -> "Figure":
    """Draw a panel for each policy, with a row for each GPU of machine 0 and the jobs on it."""
    from matplotlib.patches import Patch

    end_s = max(replay.makespan_s for replay in replays)
    panels: list[dict[int, list[ReplayedJob]]] = []  # the jobs on each GPU, by their start
    for replay in replays:
        panel: dict[int, list[ReplayedJob]] = {}
        for one in replay.jobs:
            for gpu in one.gpus if one.machine == 0 else ():
                panel.setdefault(gpu, []).append(one)
        panels.append(panel)
        starts_s = sorted(one.started_s for jobs in panel.values() for one in jobs)
        if len(starts_s) > _MOST_BARS:
            end_s = min(end_s, starts_s[_MOST_BARS] - replay.first_s)
    rows = sorted({gpu for panel in panels for gpu in panel})[:_MOST_ROWS]
    size_s, unit = _time_unit(end_s)
    figure = _new_figure(80 + len(replays) * (16 * len(rows) + 52))
    patches = [Patch(color=colour, label=text) for colour, text in _SLOWDOWNS.values()]
    figure.legend(handles=patches, loc="outside upper left", ncols=len(patches), frameon=False)
    grid = figure.subplots(len(replays), 1, squeeze=False, sharex=True)[:, 0]
    for axes, replay, panel in zip(grid, replays, panels, strict=True):
        machines = replay.rules.machines
        place = f", machine 0 of {machines:,}" if machines > 1 else ""
        axes.set_title(f"{_shown(replay.rules.policy)}: jobs on GPUs{place}")
        axes.set_yticks(range(len(rows)), [f"GPU {gpu}" for gpu in rows], fontsize=9)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        for row, gpu in enumerate(rows):
            _draw_row(axes, row, panel.get(gpu, []), replay.first_s, end_s)
    grid[-1].set_xlim(0, end_s / size_s)
    grid[-1].set_xlabel(f"time since the first arrival, {unit}")
    return figure


def _draw_row(
    axes: "Axes", row: int, jobs: Sequence[ReplayedJob], first_s: float, end_s: float
) -> None:
    """Draw the jobs on a GPU, those that share it beside each other; with names where they fit."""
    size_s, _ = _time_unit(end_s)
    lanes = lanes_of(jobs)
    height = 1 / (max(lanes, default=0) + 1)
    for one, lane in zip(jobs, lanes, strict=True):
        begin_s, length_s = one.started_s - first_s, one.ended_s - one.started_s
        if begin_s >= end_s:
            break
        y = row - 0.5 + (lane + 0.5) * height
        colour = next(named[0] for most, named in _SLOWDOWNS.items() if one.slowdown <= most)
        style: Any = {"color": colour, "edgecolor": _PAPER, "linewidth": 0.5}
        axes.barh(y, length_s / size_s, height * 0.94, begin_s / size_s, **style)
        shown_s = min(length_s, end_s - begin_s)
        letters = (_WIDTH - 80) * shown_s / end_s / _LETTER - 1
        for text in (f"{one.id} {printable(one.name)}", str(one.id)):
            if len(text) <= letters and height == 1:
                middle = (begin_s + shown_s / 2) / size_s
                axes.text(middle, y, text, ha="center", va="center", fontsize=9)
                break


def lanes_of(jobs: Sequence[ReplayedJob]) -> list[int]:
    """Return a lane for each job on a GPU, in the order of starts, so that none overlap in one."""
    ends_s: list[float] = []  # end of the last job in each lane
    lanes = []
    for one in jobs:
        free = [lane for lane, end_s in enumerate(ends_s) if end_s <= one.started_s]
        lanes.append(free[0] if free else len(ends_s))
        ends_s[lanes[-1] : lanes[-1] + 1] = [one.ended_s]
    return lanes
