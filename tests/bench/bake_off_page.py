"""The page docs/results/bake-off.md and its picture, from the results of tests/bench/bake_off.py.

Whatever the page says about results is computed from them here.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from bake_off_compare import (
    CLEAR,
    FEWEST,
    FIGURES,
    LEAST_PERCENT,
    Cell,
    Loss,
    Results,
    Traces,
    gain_of,
    gains,
    losses_of,
)
from mixes import MIXES, Mix

from gpulaunch.simulate.time_model import ENOUGH_GB_PER_S

MOST_ROWS = 12
"""Rows of the table of losing cells."""


def write_page(results: Results, own: str, folder: Path) -> None:
    """Write bake-off.md and bake-off.svg into a folder."""
    losses = losses_of(results, own)
    policies = list(dict.fromkeys(policy for by in results.values() for policy in by))
    (folder / "bake-off.md").write_text(_page(results, own, losses, policies))
    _draw(results, losses, own, folder / "bake-off.svg")


def _page(results: Results, own: str, losses: list[Loss], policies: list[str]) -> str:
    machines = list(dict.fromkeys(cell.machine for cell in results))
    return "\n".join(
        [
            HEAD.format(own=_name(own)),
            _verdict(results, own, losses),
            "",
            f"![where {_name(own)} loses](bake-off.svg)",
            "",
            *_losing_table(own, losses),
            "## By policy",
            "",
            (
                f"In how many cells {_name(own)} is clearly better or worse than another policy, by\n"
                "figure; in how many cells no other policy beats a policy, and by how much one does\n"
                "in slowdown at worst."
            ),
            "",
            *_table_of_policies(results, own, policies),
            "",
            "## By machine and by mix",
            "",
            (
                f"Column **{_name(own)}**: by how many percent sensitive jobs are slower than on the\n"
                "machine's best GPUs. Other columns: by how many percent more (+) or less (-) time\n"
                "sensitive jobs take to run, and all jobs to complete. Means over the other\n"
                "conditions, judged by the cut model."
            ),
            "",
            *_table_of_means(results, own, policies, "machine", machines),
            "",
            *_table_of_means(results, own, policies, "mix", MIXES),
            "",
            "## Mixes",
            "",
            "Sizes without a source are assumed, and so are run times without a median, which are\nexponential.",
            "",
            *_table_of_mixes({cell.mix for cell in results}),
            "",
            _method(results),
            OUTLOOK,
        ]
    )


def _method(results: Results) -> str:
    def values(name: str) -> str:
        return ", ".join(map(str, sorted({getattr(cell, name) for cell in results})))

    machines = dict.fromkeys(cell.machine for cell in results)
    return METHOD.format(
        machines=_wrapped(f"- Machines: {', '.join(machines)}."),
        loads=values("load"),
        queues=values("queue"),
        judges=values("judge"),
        enough=ENOUGH_GB_PER_S,
        clear=CLEAR,
        least=LEAST_PERCENT,
        fewest=FEWEST,
    )


def _wrapped(text: str) -> str:
    """Return an item of a list in lines of the documents' length."""
    return textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False)


def _verdict(results: Results, own: str, losses: list[Loss]) -> str:
    """Return what the results support, and no more."""
    losing = {loss.cell for loss in losses}
    traces = sum(len(found) for by in results.values() for found in by.values())
    comparisons = sum(len(gains(by, own)) for by in results.values())
    of_own = [len(by.get(own, ())) for by in results.values()]
    counts = (
        f"These are {traces:,} replays and {comparisons:,} comparisons. A cell has {min(of_own)} to "
        f"{max(of_own)} traces of\nthe default, and {sum(one < 24 for one in of_own):,} of the cells "
        "have fewer than 24."
    )
    if not losses:
        return (
            f"No other policy is better than `{_name(own)}` in any of {len(results):,} cells by any\n"
            f"figure. {counts}"
        )
    kept = len(results) - len(losing)
    sentences = [
        (
            f"In {kept:,} of {len(results):,} cells no other policy is better than `{_name(own)}` by "
            f"any figure. In {len(losing):,} another one is:"
        ),
        "",
    ]
    by_machine: dict[str, list[Loss]] = {}
    for loss in losses:
        by_machine.setdefault(loss.cell.machine, []).append(loss)
    for machine, of_machine in by_machine.items():
        cells = {loss.cell for loss in of_machine}
        total = sum(cell.machine == machine for cell in results)
        mixes = Counter(cell.mix for cell in cells)
        rivals = Counter(loss.policy for loss in of_machine)
        found = (
            f"- {machine}: {len(cells)} of {total} cells, by at most "
            f"{-of_machine[0].gain.percent:.1f} % ({FIGURES[of_machine[0].figure]}); mixes "
            + ", ".join(f"{mix} ({count})" for mix, count in mixes.most_common())
            + "; better is mostly "
            + _name(rivals.most_common(1)[0][0])
        )
        sentences.append(_wrapped(found))
    clean = [name for name in dict.fromkeys(c.machine for c in results) if name not in by_machine]
    if clean:
        sentences.append(f"- nowhere on {', '.join(clean)}.")
    sentences += ["", f"Of these {len(losing)}:\n{_counted(losing)}.", "", counts]
    return "\n".join(sentences)


def _counted(cells: Iterable[Cell]) -> str:
    """Return how many cells there are with each model, queue and load."""
    return "; ".join(
        ", ".join(
            f"{count} {before}{value}"
            for value, count in Counter(getattr(cell, name) for cell in cells).most_common()
        )
        for name, before in (("judge", "judged by "), ("queue", "in "), ("load", "at load "))
    )


def _losing_table(own: str, losses: list[Loss]) -> list[str]:
    if not losses:
        return []
    shown = losses[:MOST_ROWS]
    more = f" The worst {len(shown)} of {len(losses)}:" if len(losses) > len(shown) else ""
    return [
        f"## Where {_name(own)} loses",
        "",
        (
            "The best other policy, and by how much it is better: in percent, and in standard errors of"
            f"\nthe paired difference.{more}"
        ),
        "",
        "| machine | mix | load | queue | judged by | figure | better is | % | errors | traces |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {' | '.join(map(str, loss.cell))} | {FIGURES[loss.figure]} | {_name(loss.policy)} "
            f"| {-loss.gain.percent:.1f} | {-loss.gain.errors:.1f} | {loss.gain.traces} |"
            for loss in shown
        ),
        "",
    ]


def _table_of_policies(results: Results, own: str, policies: Iterable[str]) -> list[str]:
    heads = [f"{figure}: better / worse" for figure in FIGURES]
    lines = [
        f"| policy | {' | '.join(heads)} | not beaten in | worst slowdown % |",
        "|" + "---|" * 6,
    ]
    for policy in policies:
        cells = {cell: by for cell, by in results.items() if policy in by}
        losses = losses_of(cells, policy)
        beaten = {loss.cell for loss in losses}
        worst = next((-loss.gain.percent for loss in losses if not loss.figure), 0.0)
        columns = []
        for figure in range(len(FIGURES)):
            found = [gain_of(by[own], by[policy], figure) for by in cells.values() if own in by]
            better = sum(gain.counts and gain.percent > 0 for gain in found)
            worse = sum(gain.counts and gain.percent < 0 for gain in found)
            columns.append("" if policy == own else f"{better} / {worse}")
        lines.append(
            f"| {_shown(policy, own)} | {' | '.join(columns)} "
            f"| {len(cells) - len(beaten)} of {len(cells)} | {worst:.1f} |"
        )
    return lines


def _table_of_means(
    results: Results, own: str, policies: list[str], by: str, names: Iterable[str]
) -> list[str]:
    lines = [
        f"| {by} | {' | '.join(_shown(policy, own) for policy in policies)} |",
        "|---|" + "---|" * len(policies),
    ]
    for name in names:
        cells = [
            found
            for cell, found in results.items()
            if getattr(cell, by) == name and cell.judge == "cut" and own in found
        ]
        if cells:
            columns = [_mean_column(cells, own, policy) for policy in policies]
            lines.append(f"| {name} | {' | '.join(columns)} |")
    return lines


def _mean_column(cells: list[dict[str, Traces]], own: str, policy: str) -> str:
    if policy == own:
        traces = [one[0] for found in cells for one in found[own].values() if one[0] is not None]
        return f"{100 * (fmean(traces) - 1):.1f}" if traces else ""
    shared = [found for found in cells if policy in found]
    if not shared:
        return ""
    more = (
        fmean(gain_of(found[own], found[policy], at).percent for found in shared) for at in (0, 1)
    )
    return ", ".join(f"{percent:+.1f}" for percent in more)


def _table_of_mixes(names: Iterable[str]) -> list[str]:
    lines = [
        "| mix | GPUs of a job: share | sensitive | pattern | run time | source |",
        "|" + "---|" * 6,
    ]
    for name, mix in MIXES.items():
        if name in names:
            lines.append(
                f"| {name} | {_sizes(mix)} | {mix.sensitive:.0%} | {mix.pattern} | {_run_time(mix)} "
                f"| {mix.source} |"
            )
    return lines


def _sizes(mix: Mix) -> str:
    total = sum(mix.sizes.values())
    return ", ".join(f"{size}: {weight / total:.1%}" for size, weight in mix.sizes.items())


def _run_time(mix: Mix) -> str:
    if mix.median_s is None:
        return f"mean {mix.mean_s:.0f} s"
    return f"lognormal, mean {mix.mean_s:,.0f} s, median {mix.median_s:,.0f} s"


def _name(policy: str) -> str:
    return policy.replace("_", "-")


def _shown(policy: str, own: str) -> str:
    return f"**{_name(policy)}**" if policy == own else _name(policy)


def _draw(results: Results, losses: list[Loss], own: str, path: Path) -> None:
    """Draw for each machine and mix in how large a part of its cells the policy loses."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "bake-off", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    machines = list(dict.fromkeys(cell.machine for cell in results))
    mixes = [mix for mix in MIXES if any(cell.mix == mix for cell in results)]
    all_cells = Counter((cell.machine, cell.mix) for cell in results)
    lost = Counter((cell.machine, cell.mix) for cell in {loss.cell for loss in losses})
    worst: dict[tuple[str, str], Loss] = {}
    for loss in losses:
        worst.setdefault((loss.cell.machine, loss.cell.mix), loss)
    figure, axis = plt.subplots(figsize=(10, 0.6 + 0.32 * len(mixes)))
    for x, machine in enumerate(machines):
        for y, mix in enumerate(mixes):
            at = machine, mix
            if not all_cells[at]:
                continue
            share = lost[at] / all_cells[at]
            red = mpl.colors.to_hex((1 - 0.15 * share, 0.85 - 0.4 * share, 0.85 - 0.5 * share))
            colour = red if share else "#eef0f3"
            axis.add_patch(plt.Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour))
            text = f"{lost[at]}: {-worst[at].gain.percent:.1f} %" if lost[at] else "0"
            axis.text(x, y, text, ha="center", va="center", fontsize=8, color="#222222")
    axis.set_xlim(-0.5, len(machines) - 0.5)
    axis.set_ylim(len(mixes) - 0.5, -0.5)
    axis.set_xticks(range(len(machines)), machines, fontsize=8, rotation=15)
    axis.set_yticks(range(len(mixes)), mixes)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    most = max(all_cells.values(), default=0)
    axis.set_title(
        f"Of {most} cells, those in which another policy is better than {_name(own)}: worst loss",
        loc="left",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None})


HEAD = """\
# The default policy, by a bake-off

Does another [policy](../explanation/placement.md#policies) serve jobs better than `{own}`, the default when this was
measured? ([Why `preserve` is the default now](../decisions/preserve.md).) Every policy replayed the same simulated jobs in many *cells*: combinations of machine, mix of jobs, load, queue and
bandwidth model. They were compared by three *figures*: slowdown, completion and 25 % bandwidth
([definitions](#how-it-was-measured)).
"""

METHOD = """\
## How it was measured

    python tests/bench/bake_off.py --minutes 40 --jobs 2

A cell has 24 traces of 100 jobs; 80 where another policy seemed to be better than the default, fewer where a policy is
slow on the machine or time ran out. The conditions:

{machines}
  Machines with an NVSwitch are left out: all their sets of GPUs are alike, and so are all policies.
- Mixes: those above.
- Loads: {loads}. The load is the GPU time that the jobs of a trace ask for, divided by what the machine has
  until the last one arrives. Where run times are lognormal, one long job may be most of it.
- Queues: {queues}. In backfill each job has a time limit of three times its run time (assumed), by which
  others may pass it.
- Bandwidth models: {judges}. Run times follow the bandwidth by this model (`--time-model bandwidth`).

The figures are

- *slowdown*: the run time of sensitive jobs of several GPUs, as a multiple of that on the machine's best GPUs
- *completion*: the time from arrival to end, mean of all jobs
- *25 % bandwidth*: the 25th percentile of the effective bandwidth of those sensitive jobs; above {enough:.0f} GB/s, where the
  time model sees no gain, it counts as {enough:.0f}.

Policies are compared by the ratio of a figure, trace by trace. A difference counts if it is at least {clear:.0f} standard
errors, {least} % and {fewest} traces. Of two equal policies, one comparison in 300 would count by chance (24 traces).

`topo-aware-p` is left out: without
jobs that ask for a least utility, it is `topo-aware`.
"""

OUTLOOK = """\
## Limits

- These are simulations: bandwidths are [a model's](../explanation/bandwidth.md), one constant says how much slower
  sensitive jobs get ([simulation](../guides/simulate.md)), and jobs that share a link do not slow each other down.
- The model `mapa`, Equation 2 of mapa-sc21, was fitted to rings of 2 to 5 GPUs on one machine. For 6 GPUs and more it
  falls below 0 GB/s in places. Traces with such a figure are left out. Read large losses by `mapa` on 16 GPUs and on
  the cluster with that in mind.

## How preserve differs from its paper

`preserve` is Preserve of mapa-sc21 (Algorithm 1, here `preserve-paper`) with three departures.

- It counts what is left over twice: among the GPUs that are free now (Eq. 3 of the paper), and among all GPUs of the
  machine but the chosen ones (*lasting bandwidth*), as it will be once the running jobs have left. With Eq. 3 alone an
  insensitive pair goes across two sockets if that leaves another pair whole now, and breaks up both for as long as it
  runs.
- It chooses between ties: sensitive jobs by effective, lasting, then aggregate bandwidth; insensitive ones by lasting,
  then aggregate; both then by the fuller socket and the lowest indices.
- Its effective bandwidth is the cut model's, not Eq. 2's.
"""
