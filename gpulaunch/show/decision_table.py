"""Tables of a decision, as `gpulaunch --dry-run --explain` prints them.

Colour adds to the words and never replaces them.
"""

from collections.abc import Sequence

from gpulaunch.decide.decision import Decision, Grant
from gpulaunch.decide.explain import Explanation
from gpulaunch.decide.placement.scores import Scores
from gpulaunch.decide.request import Request
from gpulaunch.errors import printable
from gpulaunch.files.size import format_size
from gpulaunch.leases.who_has_what import name_job
from gpulaunch.machine.gpu_names import gpus_named
from gpulaunch.show.terminal import Grid, Group, Text, cut, figure, make_table
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.decide.share_options import ShareOption
    from gpulaunch.machine.gpu import Gpu
    from gpulaunch.sharing.partition import Partition


def explanation_table(
    request: Request, decision: Decision, explanation: Explanation, *, legend: bool = False
) -> Group:
    """Return why the decision was made: excluded GPUs, the best candidates, or alternatives.

    Args:
        request: what was asked.
        decision: the decision about it.
        explanation: what explains it.
        legend: whether to say what the columns of candidates mean.
    """
    parts: list[Grid | Text] = []
    if explanation.excluded:
        table = make_table("left out", "because")
        for why, gpus in _gpus_by_reason(explanation).items():
            table.add_row(gpus, cut(why))
        parts += [table, Text()]
    parts += _sharing_parts(request, decision, explanation)
    if isinstance(decision, Grant):
        parts += _grant_parts(request, decision, explanation, legend=legend)
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
    if chosen and chosen.allotment:
        parts.append(
            Text(f"{chosen.allotment.sm_percentage} % of the SMs: {chosen.allotment.reason}")
        )
        optimum = chosen.allotment.optimum
        if optimum.reason != chosen.allotment.reason and len(optimum.sm_percentages) > 1:
            parts.append(
                Text(
                    f"best for all together would be {_format_shares(optimum)}: {optimum.reason}",
                    "dim",
                )
            )
    if chosen and chosen.residents and chosen.prediction:
        stp, antt = chosen.prediction.stp, chosen.prediction.antt
        parts.append(Text(f"predicted: STP {stp:.3g}, ANTT {antt:.3g}", "dim"))
    return [*parts, Text()]


def _format_shares(optimum: "Partition") -> str:
    """Format shares of the SMs, such as "30 % / 70 %", or "50 % each"."""
    percentages = optimum.sm_percentages
    return (
        f"{percentages[0]} % each"
        if len(set(percentages)) == 1
        else " / ".join(f"{p} %" for p in percentages)
    )


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


def _grant_parts(
    request: Request, grant: Grant, explanation: Explanation, *, legend: bool
) -> list[Grid | Text]:
    expects = grant.placement.scores.expected_bandwidth is not None
    spared = "expected" if expects else "preserved"
    columns = ("effective", spared, "lasting", "aggregate", "fragmentation", "cost")
    table = make_table("", *columns, "GPUs", right=columns)
    problem = grant.problem
    for place, candidate in enumerate(explanation.candidates):
        style = "bold green" if place == 0 else ""
        gpus = cut(problem.format_set(candidate.gpus))
        table.add_row(">" if place == 0 else "", *_score_cells(candidate.scores), gpus, style=style)
    assumed = (
        f"; assumed: {', '.join(request.assumed).replace('_', ' ')}" if request.assumed else ""
    )
    sensitive = "bandwidth-sensitive" if problem.sensitive else "not bandwidth-sensitive"
    pattern = (
        request.pattern.name if request.pattern.ranks else request.pattern.name.replace("_", "-")
    )
    sizes = f", job sizes {printable(request.job_sizes.name)}" if expects else ""
    return [
        Text(f"{_count_candidates(grant)}, bandwidths in GB/s", "bold"),
        table,
        *(_legend(columns) if legend else ()),
        Text(explanation.reason),
        *(Text(f"unsure: {doubt}", "yellow") for doubt in explanation.doubts),
        *_idle_part(explanation),
        Text(
            f"policy {request.policy.replace('_', '-')}{sizes}, bandwidth model "
            f"{request.bandwidth_model}, pattern"
            f" {printable(pattern)}, {sensitive}{assumed}; in rank order: "
            f"{problem.format_ranks(grant.placement.gpus)}",
            "dim",
        ),
    ]


_LEGEND = {
    "effective": "what the job gets",
    "preserved": "what the links between the free GPUs carry that it leaves",
    "expected": "what jobs to come can expect of the GPUs that it leaves",
    "lasting": "the links that it leaves, now and once all others have ended",
    "aggregate": "the sum over the links that it uses",
    "fragmentation": "free share of the sockets that it touches: less is better",
    "cost": "sum of the distances between its GPUs: less is better",
}
"""What the columns of scores say, which docs/explanation/placement.md defines."""


def _legend(columns: Sequence[str]) -> list[Text]:
    """Return a line for each column of scores."""
    width = max(map(len, columns))
    return [*(Text(f"{name:<{width}}  {_LEGEND[name]}", "dim") for name in columns), Text()]


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
    return f"{count} candidates, {'best' if compared else 'what the policy takes'} first"


def _score_cells(scores: Scores) -> list[str]:
    bandwidths = (
        scores.effective_bandwidth,
        scores.preserved_bandwidth
        if scores.expected_bandwidth is None
        else scores.expected_bandwidth,
        scores.lasting_bandwidth,
        scores.aggregate_bandwidth,
    )
    return [*map(figure, bandwidths), f"{scores.fragmentation:.2f}", str(scores.communication_cost)]
