"""Tables of a decision, as `gpulaunch --dry-run --explain` prints them.

Colour adds to the words and never replaces them.
"""

from typing import TYPE_CHECKING

from gpulaunch.cli.screen import Grid, Text, cut, figure, make_table
from gpulaunch.cli.screen import Parts as Group
from gpulaunch.decide.decision import Decision, Grant, ShareOption
from gpulaunch.decide.explain import Explanation
from gpulaunch.decide.request import Request
from gpulaunch.errors import printable
from gpulaunch.files.units import format_size
from gpulaunch.leases.holders import name_job
from gpulaunch.machine.gpu import gpus_named

if TYPE_CHECKING:
    from gpulaunch.machine.gpu import Gpu


def explanation_table(request: Request, decision: Decision, explanation: Explanation) -> Group:
    """Return why the decision was made: excluded GPUs, the best candidates, or alternatives.

    Args:
        request: what was asked.
        decision: the decision about it.
        explanation: what explains it.
    """
    parts: list[Grid | Text] = []
    if explanation.excluded:
        table = make_table("left out", "because")
        for why, gpus in _gpus_by_reason(explanation).items():
            table.add_row(gpus, cut(why))
        parts += [table, Text()]
    parts += _sharing_parts(request, decision, explanation)
    if isinstance(decision, Grant):
        parts += _grant_parts(request, decision, explanation)
    else:
        parts += _alternative_parts(request, explanation)
    return Group(*parts)


def _sharing_parts(
    request: Request, decision: Decision, explanation: Explanation
) -> list[Grid | Text]:
    """Return the share groups with the total use in each, and whether the job may join."""
    if request.sharing is None:
        return []
    columns = ("SM %", "BW %", "memory")
    table = make_table("", "GPUs", *columns, "verdict on all together", right=columns)
    chosen = decision.share_option if isinstance(decision, Grant) else None
    for option, gpus in explanation.sharing:
        sums, mark = option.verdict.sums, ">" if option == chosen else ""
        figures = (figure(sums.sm_percentage), figure(sums.memory_bandwidth_percentage))
        table.add_row(
            mark, gpus, *figures, format_size(sums.memory_bytes), _describe_verdict(option)
        )
    parts: list[Grid | Text] = [
        Text(f"sharing for {request.sharing.client.objective.name}", "bold")
    ]
    parts += [table] if explanation.sharing else []
    if isinstance(decision, Grant) and decision.exclusive_reason:
        parts.append(Text(f"not shared: {printable(decision.exclusive_reason)}", "yellow"))
    if chosen and chosen.verdict.caps:
        parts.append(Text(f"{chosen.verdict.caps[-1]} % of the SMs: {chosen.verdict.why}"))
    if chosen and chosen.residents and (at := chosen.verdict.pace):
        names = [name_job(lease) for lease in chosen.residents] + ["this job"]
        each = ", ".join(
            f"{name} {speed:.2f}" for name, speed in zip(names, at.speeds, strict=True)
        )
        parts.append(Text(f"predicted speeds: {each}; STP {at.stp:.3g}, ANTT {at.antt:.3g}", "dim"))
    return [*parts, Text()]


def _describe_verdict(option: "ShareOption") -> Text:
    """Return whether the job may join a group, and the jobs that are in it."""
    verdict = Text(printable(option.refusal or "may come"), "red" if option.refusal else "green")
    for note in () if option.refusal else option.verdict.notes:
        verdict.append(f"; {note}", "yellow")
    for lease in option.residents:
        percentage = f", {lease.share.sm_percentage} % of the SMs" if lease.share else ""
        verdict.append(f"\nbeside {name_job(lease)} ({lease.id}){percentage}", "dim")
    return verdict


def _gpus_by_reason(explanation: Explanation) -> dict[str, str]:
    """Return the names of excluded GPUs by their common reason."""
    reasons: dict[str, list[Gpu]] = {}
    for left_out in explanation.excluded:
        reasons.setdefault(left_out.why, []).append(left_out.gpu)
    return {why: gpus_named(gpus) for why, gpus in reasons.items()}


_LEGEND = {
    "effective_bandwidth": "estimated bandwidth of the job, GB/s: more is better",
    "preserved_bandwidth": "links between GPUs that stay free, GB/s in all: more is better",
    "lasting_bandwidth": "links left to others, now and later, GB/s in all: more is better",
    "aggregate_bandwidth": "links that the job uses, GB/s in all: more is better",
    "sockets": "CPU sockets that its GPUs are on: fewer is better",
    "fragmentation": "share of those sockets' GPUs that is free: less is better",
    "communication_cost": "distances between its GPUs in all: less is better",
}
"""What each score is; docs/explanation/placement.md defines them."""


def _grant_parts(request: Request, grant: Grant, explanation: Explanation) -> list[Grid | Text]:
    shown = explanation.deciding or ("effective_bandwidth",)
    titles = [name.split("_")[0 if name.endswith("_bandwidth") else -1] for name in shown]
    table = make_table("", *titles, "GPUs", right=titles, leave=titles[:0:-1])
    problem = grant.problem
    for place, candidate in enumerate(explanation.candidates):
        cells = [_score_cell(name, getattr(candidate.scores, name)) for name in shown]
        mark, style = (">", "bold green") if place == 0 else ("", "")
        table.add_row(mark, *cells, cut(problem.format_set(candidate.gpus)), style=style)
    wide = max(map(len, titles))
    legend = [
        f"{title:<{wide}}  {_LEGEND[name]}" for name, title in zip(shown, titles, strict=True)
    ]
    return [
        Text(_count_candidates(grant), "bold"),
        table,
        *(Text(line, "dim") for line in legend),
        Text(),
        Text(explanation.reason),
        *_idle_part(explanation),
        Text(_describe_rules(request, grant), "dim"),
    ]


def _score_cell(name: str, value: float | None) -> str:
    return f"{value:.2f}" if name == "fragmentation" else figure(value)


def _describe_rules(request: Request, grant: Grant) -> str:
    """Return what the choice went by, such as "policy preserve, pattern ring"."""
    pattern = request.pattern.name
    parts = [
        f"policy {request.policy.replace('_', '-')}",
        f"pattern {printable(pattern if request.pattern.ranks else pattern.replace('_', '-'))}",
        "bandwidth-sensitive" if grant.problem.sensitive else "not bandwidth-sensitive",
    ]
    if request.bandwidth_model != "cut":
        parts.append(f"bandwidth model {request.bandwidth_model}")
    if len(grant.placement.gpus) > 1:
        parts.append(f"in rank order {grant.problem.format_ranks(grant.placement.gpus)}")
    assumed = ", ".join(request.assumed).replace("_", " ")
    return ", ".join(parts) + (f"; assumed: {assumed}" if assumed else "")


def _idle_part(explanation: Explanation) -> list[Text]:
    idle = explanation.if_idle
    if idle is None:
        return []
    gpus = ",".join(map(str, idle.gpus))
    return [
        Text(
            f"the idle machine would give {gpus} with {figure(idle.effective_bandwidth)} GB/s:"
            f" {idle.instead} waits for as much",
            "yellow",
        )
    ]


def _alternative_parts(request: Request, explanation: Explanation) -> list[Grid | Text]:
    if not explanation.alternatives:
        return [Text("nothing that asks for less would be granted now", "dim")]
    table = make_table("instead", "effective, GB/s", "GPUs", right=("effective, GB/s",))
    for alternative in explanation.alternatives:
        gpus = ",".join(map(str, alternative.gpus))
        found, least = alternative.effective_bandwidth, request.wishes.least_gb_per_s
        of = f" of {least:g}" if least and found is not None else ""
        table.add_row(printable(alternative.instead), figure(found) + of, cut(gpus))
    return [Text("what would be granted now:", "bold"), table]


def _count_candidates(grant: Grant) -> str:
    count = grant.placement.candidates
    if count == 1:
        return "1 candidate"
    compared = grant.placement.by and not grant.placement.chosen_by_policy
    return f"{count:,} candidates, {'best' if compared else 'what the policy takes'} first"
