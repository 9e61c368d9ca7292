"""The page docs/results/bake-off.md, from the results of tests/bench/bake_off.py.

Whatever the page says about results is computed from them here.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from bake_off_compare import (
    CLEAR,
    FEWEST,
    FIGURES,
    LEAST_PERCENT,
    Loss,
    Results,
    Traces,
    gain_of,
    gains,
    losses_of,
)

from gpulaunch.simulate.time_model import ENOUGH_GB_PER_S


def write_page(results: Results, own: str, folder: Path) -> None:
    """Write bake-off.md into a folder."""
    losses = losses_of(results, own)
    policies = list(dict.fromkeys(policy for by in results.values() for policy in by))
    (folder / "bake-off.md").write_text(_page(results, own, losses, policies))


def _page(results: Results, own: str, losses: list[Loss], policies: list[str]) -> str:
    machines = list(dict.fromkeys(cell.machine for cell in results))
    return "\n".join(
        [
            HEAD.format(own=_name(own)),
            _verdict(results, own, losses),
            "",
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
            "## By machine",
            "",
            (
                f"Column **{_name(own)}**: by how many percent sensitive jobs are slower than on the\n"
                "machine's best GPUs. Other columns: by how many percent more (+) or less (-) time\n"
                "sensitive jobs take to run. Means over the other conditions, judged by the cut model."
            ),
            "",
            *_table_of_means(results, own, policies, machines),
            "",
            _method(results),
        ]
    )


def _method(results: Results) -> str:
    def values(name: str) -> str:
        return ", ".join(map(str, sorted({getattr(cell, name) for cell in results})))

    return METHOD.format(
        loads=values("load"),
        queues=values("queue"),
        judges=values("judge"),
        enough=ENOUGH_GB_PER_S,
        clear=CLEAR,
        least=LEAST_PERCENT,
        fewest=FEWEST,
    )


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
        rivals = Counter(loss.policy for loss in of_machine)
        found = (
            f"- {machine}: {len(cells)} of {total} cells, by at most "
            f"{-of_machine[0].gain.percent:.1f} % ({FIGURES[of_machine[0].figure]}); better is mostly "
            f"{_name(rivals.most_common(1)[0][0])}"
        )
        sentences.append(found)
    clean = [name for name in dict.fromkeys(c.machine for c in results) if name not in by_machine]
    if clean:
        sentences.append(f"- nowhere on {', '.join(clean)}.")
    sentences += ["", counts]
    return "\n".join(sentences)


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
    results: Results, own: str, policies: list[str], machines: Iterable[str]
) -> list[str]:
    lines = [
        f"| machine | {' | '.join(_shown(policy, own) for policy in policies)} |",
        "|---|" + "---|" * len(policies),
    ]
    for machine in machines:
        cells = [
            found
            for cell, found in results.items()
            if cell.machine == machine and cell.judge == "cut" and own in found
        ]
        if cells:
            columns = [_mean_column(cells, own, policy) for policy in policies]
            lines.append(f"| {machine} | {' | '.join(columns)} |")
    return lines


def _mean_column(cells: list[dict[str, Traces]], own: str, policy: str) -> str:
    if policy == own:
        traces = [one[0] for found in cells for one in found[own].values() if one[0] is not None]
        return f"{100 * (fmean(traces) - 1):.1f}" if traces else ""
    shared = [found for found in cells if policy in found]
    if not shared:
        return ""
    more = fmean(gain_of(found[own], found[policy], 0).percent for found in shared)
    return f"{more:+.1f}"


def _name(policy: str) -> str:
    return policy.replace("_", "-")


def _shown(policy: str, own: str) -> str:
    return f"**{_name(policy)}**" if policy == own else _name(policy)


HEAD = """\
# The default policy, by a bake-off

Does another [policy](../explanation/placement.md#policies) serve jobs better than `{own}`? Every policy replayed the
same simulated jobs in many *cells*: combinations of machine, mix of jobs, load, queue and bandwidth model.
"""

METHOD = """\
## How it was measured

    python tests/bench/bake_off.py --minutes 40 --jobs 2

A cell has 24 traces of 100 jobs; 80 where another policy seemed to be better, fewer where a policy is slow. Machines
with an NVSwitch are left out: all their sets of GPUs are alike. The mixes, with their sources, are in `tests/mixes.py`.
Loads: {loads}. Queues: {queues}. Bandwidth models: {judges}.

- *slowdown*: the run time of sensitive jobs of several GPUs, as a multiple of that on the machine's best GPUs
- *completion*: the time from arrival to end, mean of all jobs
- *25 % bandwidth*: the 25th percentile of the effective bandwidth of those sensitive jobs, at most {enough:.0f} GB/s

Policies are compared by the ratio of a figure, trace by trace. A difference counts if it is at least {clear:.0f} standard
errors, {least} % and {fewest} traces.

These are simulations: bandwidths are [a model's](../explanation/bandwidth.md), and one constant says how much slower
sensitive jobs get. The model `mapa` was fitted to rings of 2 to 5 GPUs; for 6 and more it falls below 0 GB/s in places.
"""
