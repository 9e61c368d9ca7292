"""The page of a report, which needs no other file, and its pictures as files."""

import re
from collections.abc import Sequence
from html import escape

from gpulaunch.show.canvas import INK, PAPER, WIDTH, png_of, svg_of
from gpulaunch.show.replay_document import replays_document
from gpulaunch.show.replay_rows import KEY, Rows, all_jobs, replayed, sensitive_jobs
from gpulaunch.show.report.plots import policy_plots
from gpulaunch.show.report.series import Plot, policy_colour
from gpulaunch.show.report.timeline import timeline_plots
from gpulaunch.simulate.measures import Replay

INDEX = "index.html"

_SENSITIVE = "bandwidth-sensitive jobs: effective bandwidth, GB/s"
_STYLE = f"""
:root {{ color-scheme: light dark; --ink: {INK}; --paper: {PAPER}; }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ --ink: #e6eaef; --paper: #14181d; }} }}
body {{ margin: 0; background: var(--paper); color: var(--ink); }}
body {{ font: 15px/1.5 system-ui, sans-serif; }}
main {{ max-width: {WIDTH}px; margin: 0 auto; padding: 24px 24px 64px; }}
h1 {{ font-size: 24px; line-height: 1.25; margin: 8px 0 4px; }}
h2 {{ font-size: 19px; margin: 0 0 2px; }}
.how, thead th, a {{ color: inherit; opacity: 0.7; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 4px 0 20px; font-size: 14px; }}
caption {{ text-align: left; font-weight: bold; padding-bottom: 2px; }}
td {{ font-variant-numeric: tabular-nums; }}
th, td {{ padding: 4px 16px 4px 0; text-align: right; white-space: nowrap; }}
thead th {{ font-weight: normal; border-bottom: 1px solid #8888; }}
tr > :first-child {{ text-align: left; font-weight: normal; }}
i {{ display: inline-block; width: 11px; height: 11px; margin-right: 8px; }}
figure {{ margin: 44px 0 0; }}
figcaption {{ max-width: 46em; margin-bottom: 14px; }}
figcaption p {{ margin: 0; }}
a {{ font-size: 13px; font-weight: normal; margin-left: 10px; }}
svg {{ display: block; width: 100%; min-width: 720px; height: auto; }}
"""


def report_files(replays: Sequence[Replay]) -> dict[str, bytes]:
    """Return the files of a report by name: the page, which needs no other file, and its pictures.

    The same replays make the same bytes.

    Args:
        replays: The replays of the same jobs, in the order in which they are shown.

    Raises:
        FailedError: matplotlib is not installed, or does not start.

    Cost: 2 s for two policies and few jobs, 5 s for two timelines of 3,000 bars.
    """
    files: dict[str, bytes] = {}
    figures = []
    for plot in (*policy_plots(replays), *timeline_plots(replays)):
        svg = svg_of(plot.figure, plot.name)
        files |= {f"{plot.name}.svg": svg.encode(), f"{plot.name}.png": png_of(plot.figure)}
        figures.append(_figure(plot, svg))
    return files | {INDEX: _page(replays, figures).encode()}


def _page(replays: Sequence[Replay], figures: Sequence[str]) -> str:
    document = replays_document(replays)
    title, how = replayed(document)
    seed = replays[0].seed
    lines = [
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        "<main>",
        f"<h1>{escape(title)}</h1>",
        f"<p class=how>{escape(how if seed is None else f'{how}; seed {seed}')}</p>",
        _table("all jobs", all_jobs(document), replays),
        _table(_SENSITIVE, sensitive_jobs(document), replays),
        f"<p class=how>{escape(KEY)}</p>",
        *figures,
        "</main>",
        "</html>\n",
    ]
    return "\n".join(lines)


def _table(caption: str, rows: Rows, replays: Sequence[Replay]) -> str:
    """Return a table with a row for each replay, or a line if there is nothing to tell."""
    if not rows.rows:
        return f"<p><b>{caption}</b>: none</p>"
    lines = ['<div class="wide"><table>', f"<caption>{caption}</caption>"]
    head = "".join(f"<th>{escape(column)}</th>" for column in rows.columns)
    lines.append(f"<thead><tr>{head}</tr></thead>\n<tbody>")
    for replay, (policy, *cells) in zip(replays, rows.rows, strict=True):
        mark = f'<i style="background: {policy_colour(replay)}"></i>'
        data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{mark}{escape(policy)}</th>{data}</tr>')
    lines.append("</tbody></table></div>")
    return "\n".join(lines)


def _figure(plot: Plot, svg: str) -> str:
    links = "".join(f'<a href="{plot.name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "png"))
    return (
        f"<figure>\n<figcaption>\n<h2>{escape(plot.heading)} {links}</h2>\n"
        f"<p>{escape(plot.caption)}</p>\n</figcaption>\n"
        f'<div class="wide">\n{_inline(svg)}</div>\n</figure>'
    )


def _inline(svg: str) -> str:
    """Return an SVG document as a part of the page, whose style sheet sets ink and paper."""

    def replace_colours(tag: re.Match[str]) -> str:
        return tag[0].replace(INK, "var(--ink)").replace(PAPER, "var(--paper)")

    return re.sub(r"<[^<>]*>", replace_colours, svg[svg.index("<svg") :])
