"""Writes bake-off.md and bake-off.svg from the results of tests/bench/bake_off.py.

Run: python tests/bench/bake_off.py --json results.jsonl && python tests/bench/bake_off_page.py
results.jsonl
"""

import json
import sys
from pathlib import Path
from statistics import fmean, stdev

DEFAULT = "preserve"
FIGURES = ("mean", "25th percentile", "slowdown")
SIGN = (1, 1, -1)
ALIKE = ("dgx2", "dgx-a100", "dgx-h100", "nvl72")
"""Behind an NVSwitch every set is as good as any other."""


Figures = dict[tuple[float, ...], list[float]]
Found = dict[str, dict[str, Figures]]
"""Machine, policy, trace -> figures."""


def main() -> None:
    """Read, compare, write."""
    found: Found = {}
    for path in sys.argv[1:]:
        for line in Path(path).read_text().splitlines():
            machine, policy, rows = json.loads(line)
            found.setdefault(machine, {})[policy] = {tuple(row[:3]): row[3:] for row in rows}
    folder = Path(__file__).parents[2] / "docs"
    (folder / "bake-off.md").write_text(page(found))
    draw(found, folder / "bake-off.svg")


def compared(own: Figures, other: Figures, figure: int) -> tuple[float, float]:
    """Return by how much the default is better: its mean over shared traces, in standard errors."""
    gains = [
        SIGN[figure] * (own[trace][figure] - other[trace][figure])
        for trace in own.keys() & other.keys()
    ]
    error = stdev(gains) / len(gains) ** 0.5
    return fmean(gains), fmean(gains) / error if error else 0.0


def page(found: Found) -> str:
    """Return the text of the document."""
    worst = min(
        (compared(by[DEFAULT], rows, figure)[1], machine, policy, FIGURES[figure])
        for machine, by in found.items()
        for policy, rows in by.items()
        for figure in range(3)
    )
    clear = [
        machine for machine, by in found.items() if compared(by[DEFAULT], by["greedy"], 0)[1] > 5
    ]
    nowhere = "No other policy is better on any machine by any of the three figures."
    if worst[0] < 0:
        where = f"{worst[2].replace('_', '-')} on {worst[1]}, {worst[3]}"
        nowhere = (
            f"Nowhere is another policy better by more than {-worst[0]:.1f} standard errors "
            f"({where})."
        )
    result = (
        f"**Result.** {nowhere} The default is better than greedy in mean bandwidth by more than 5 "
        "standard errors on "
        f"{len(clear)} of {len(found)} machines: {', '.join(clear)}."
    )
    lines = [
        INTRODUCTION,
        result,
        "",
        "![by policy and machine](bake-off.svg)",
        "",
        "In brackets: by how many standard errors of the paired difference the default is better.",
        "",
    ]
    for machine, by in found.items():
        traces = len(by[DEFAULT])
        lines += [
            f"### {machine}",
            "",
            f"| {traces} traces | mean GB/s | 25th percentile GB/s | slowdown % |",
            "|---|---|---|---|",
        ]
        for policy, rows in by.items():
            cells = []
            for figure in range(3):
                mean = fmean(row[figure] for row in rows.values())
                errors = compared(by[DEFAULT], rows, figure)[1]
                cells.append(f"{mean:.2f}" + ("" if policy == DEFAULT else f" ({errors:+.1f})"))
            name = f"**{DEFAULT}**" if policy == DEFAULT else policy.replace("_", "-")
            name += "" if len(rows) == traces else f" ({len(rows)} traces)"
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines) + OUTLOOK


def draw(found: Found, path: Path) -> None:
    """Draw a panel for each machine where links differ: slowdown of sensitive jobs by policy."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "bake-off", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    machines = [machine for machine in found if machine not in ALIKE]
    figure, axes = plt.subplots(
        (len(machines) + 2) // 3, 3, figsize=(10, 2.5 * ((len(machines) + 2) // 3))
    )
    for axis, machine in zip(axes.flat, machines, strict=False):
        by = dict(
            sorted(
                found[machine].items(), key=lambda pair: -fmean(row[2] for row in pair[1].values())
            )
        )
        means = [fmean(row[2] for row in rows.values()) for rows in by.values()]
        errors = [
            2 * stdev([row[2] for row in rows.values()]) / len(rows) ** 0.5 for rows in by.values()
        ]
        colours = ["#2b50d8" if policy == DEFAULT else "#b9c0c9" for policy in by]
        axis.barh(
            [policy.replace("_", "-") for policy in by],
            means,
            xerr=errors,
            color=colours,
            error_kw={"lw": 0.8},
        )
        axis.set_title(machine, loc="left", fontsize=10, fontweight="bold")
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
        axis.set_xlabel("slowdown of sensitive jobs, %", fontsize=8)
    for axis in list(axes.flat)[len(machines) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None})


INTRODUCTION = """\
# The default policy, chosen by a bake-off

MAPA's Preserve gives sensitive jobs the best effective bandwidth and lets insensitive ones preserve as much as they
can for those to come (mapa-sc21 Algorithm 1). As printed it leaves ties to the order of enumeration, and measures
what is preserved as the sum of the links among GPUs that are free right now. `preserve-paper` does that. The default,
`preserve`, is the same idea with

- **what is preserved counted twice: among the GPUs that are free now (Eq. 3), and among all GPUs of the machine but
  the chosen ones**, as it will be once those that run have left: *lasting bandwidth*. With Eq. 3 alone an insensitive
  pair goes across two sockets if that leaves another pair whole right now; then both sockets are broken up for as
  long as it runs. Both terms weigh the same: weights of 0.6 to 0.9 and 1.5 for the second were tried and were no
  better (0.6-0.9 worse on Summit);
- **ties chosen**: sensitive jobs by effective, lasting, then aggregate bandwidth, insensitive ones by lasting, then
  aggregate, so that they stay compact; then the socket that is fuller; then the lowest indices;
- **effective bandwidth by the cut model**, not Eq. 2 (`preserve-paper` goes by Eq. 2).

**What was compared.** Every policy on fourteen described machines. Poisson arrivals, jobs of 1-5 GPUs, uniform (as many
as the machine has at most), exponential run times, a ring; loads of 0.5, 0.8 and 0.95 of the machine; 30, 50 and 70 %
of the jobs sensitive; 30 seeds of each: 270 traces of 150 jobs (100 on the two machines of 16 GPUs whose links
differ). All policies replay the same traces, first in, first out, with run times that follow the bandwidth obtained
(`--time-model bandwidth`). Figures are of the sensitive jobs of two GPUs and more: mean and 25th percentile of
effective bandwidth by the cut model, and mean slowdown; each a mean over traces. best-effort takes minutes for each
100 traces on 16 GPUs, so it has replayed fewer there, and it takes no more than 16 free GPUs, so it is not among
those of the NVL72 and the cluster of five Minskys. On the NVL72, where all sets are alike, there are 18 traces of 60
jobs.

    python tests/bench/bake_off.py --json results.jsonl && python tests/bench/bake_off_page.py results.jsonl

"""

OUTLOOK = """\
## What it does not say

These are simulations: bandwidths are the cut model's ([bandwidth](bandwidth.md)), one constant says how much slower
sensitive jobs get ([simulation](simulate.md)), and jobs that share a link do not slow each other down. On machines
with an NVSwitch all sets are alike, and so are all policies. Looking further ahead (the best partition of what is
left into sets, as `best-effort` does) was not better than lasting bandwidth on any machine, and costs up to a hundred
times the time on 16 GPUs.
"""


if __name__ == "__main__":
    main()
