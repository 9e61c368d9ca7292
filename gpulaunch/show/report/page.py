"""Replays -> a page that needs nothing else, and its pictures as files."""

from collections.abc import Iterator, Sequence
from html import escape

from gpulaunch.errors import printable
from gpulaunch.show.replay_document import replays_document
from gpulaunch.show.replay_rows import KEY, Rows, all_jobs, replayed, sensitive_jobs
from gpulaunch.show.report import captions
from gpulaunch.show.report.boxes import bandwidth_picture, slowdown_picture
from gpulaunch.show.report.canvas import WIDTH, Picture, styled
from gpulaunch.show.report.colours import ALL
from gpulaunch.show.report.lines import curves_picture, quality_picture
from gpulaunch.show.report.load import load_picture
from gpulaunch.show.report.series import (
    Run,
    connected,
    quality,
    runs_of,
    sensitive,
    slowdown,
    values_of,
)
from gpulaunch.show.report.timeline import timeline_pictures
from gpulaunch.simulate.measures import Replay

INDEX = "index.html"

_STYLE = f"""
body {{ margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }}
main {{ max-width: {WIDTH}px; margin: 0 auto; padding: 24px 24px 64px; }}
h1 {{ font-size: 24px; line-height: 1.25; margin: 8px 0 4px; }}
h2 {{ font-size: 19px; margin: 0 0 2px; }}
.how {{ color: var(--pale); margin: 0 0 20px; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 4px 0 20px; font-size: 14px; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; font-weight: bold; padding-bottom: 2px; }}
th, td {{ padding: 4px 16px 4px 0; text-align: right; white-space: nowrap; }}
thead th {{ color: var(--pale); font-weight: normal; border-bottom: 1px solid var(--grid); }}
tr > :first-child {{ text-align: left; font-weight: normal; }}
i {{ display: inline-block; width: 11px; height: 11px; margin-right: 8px; }}
figure {{ margin: 44px 0 0; }}
figcaption {{ max-width: 46em; margin-bottom: 14px; }}
figcaption p {{ margin: 0; }}
a {{ color: var(--pale); font-size: 13px; font-weight: normal; margin-left: 10px; }}
svg {{ display: block; width: 100%; min-width: 720px; height: auto; font-family: inherit; }}
"""


def report_files(replays: Sequence[Replay]) -> dict[str, bytes]:
    """All files of a report by name: index.html, which has all in it, and each picture as SVG and PNG.

    The same replays make the same bytes.

    Args:
        replays: at least one, each of at least one job, in the order in which they are to be shown.

    Cost: half a second, and 2 s for a timeline of 3,000 bars.
    """
    runs = runs_of(replays)
    with styled():
        sections = list(_sections(runs))
    files: dict[str, bytes] = {}
    for _, _, picture in sections:
        files |= {f"{picture.name}.svg": picture.svg.encode(), f"{picture.name}.png": picture.png}
    return files | {INDEX: _page(runs, sections).encode()}


_Section = tuple[str, str, Picture]
"""Heading, caption, picture."""


def _sections(runs: Sequence[Run]) -> Iterator[_Section]:
    """What there is to be seen; a picture that would be empty is left out."""
    if values_of(runs[0], slowdown, sensitive):
        yield "What jobs got", captions.of_bandwidth(runs), bandwidth_picture(runs)
    yield "How long they took", captions.of_slowdown(runs), slowdown_picture(runs)
    yield "Jobs from worst to best", captions.of_curves(runs), curves_picture(runs)
    if values_of(runs[0], quality, connected):
        yield "Allocation quality", captions.of_quality(runs), quality_picture(runs)
    yield "Load over time", captions.of_load(runs), load_picture(runs)
    for picture, window in timeline_pictures(runs):
        heading = "Timeline of GPUs" if picture.name == "timeline" else "Its beginning"
        yield heading, captions.of_timeline(window), picture


def _page(runs: Sequence[Run], sections: Sequence[_Section]) -> str:
    document = replays_document([run.replay for run in runs])
    title, how = replayed(document)
    seed = runs[0].replay.seed
    told = how if seed is None else f"{how}; seed {seed}"
    content = [
        "<main>",
        f"<h1>{escape(title)}</h1>\n<p class=how>{escape(told)}</p>",
        _table("all jobs", all_jobs(document), runs),
        _table(
            "bandwidth-sensitive jobs: effective bandwidth, GB/s", sensitive_jobs(document), runs
        ),
        f"<p class=how>{escape(KEY)}</p>",
        *(_figure(*section) for section in sections),
        "</main>",
    ]
    head = [
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{_variables()}{_STYLE.lstrip()}</style>",
    ]
    return "\n".join([*head, *content, "</html>\n"])


def _variables() -> str:
    """Our colours, on screens that are dark the others."""
    light = " ".join(f"--{colour.name}: {colour.light};" for colour in ALL)
    dark = " ".join(f"--{colour.name}: {colour.dark};" for colour in ALL)
    return (
        f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} "
        f"}} }}\n"
    )


def _table(caption: str, rows: Rows, runs: Sequence[Run]) -> str:
    """A table; the rows are those of the runs."""
    if not rows.rows:
        return f"<p><b>{caption}</b>: none</p>"
    head = "".join(f"<th>{escape(column)}</th>" for column in rows.columns)
    body = "\n".join(
        '<tr><th scope="row"><i style="background: '
        f'var(--{run.colour.name})"></i>{escape(printable(run.label))}</th>'
        f"{''.join(f'<td>{escape(cell)}</td>' for cell in cells[1:])}</tr>"
        for run, cells in zip(runs, rows.rows, strict=True)
    )
    return (
        f'<div class="wide"><table>\n<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _figure(heading: str, caption: str, picture: Picture) -> str:
    links = "".join(
        f'<a href="{picture.name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "png")
    )
    return (
        f"<figure>\n<figcaption>\n<h2>{escape(heading)} "
        f"{links}</h2>\n<p>{escape(caption)}</p>\n</figcaption>\n"
        f'<div class="wide">\n{picture.inline}</div>\n</figure>'
    )
