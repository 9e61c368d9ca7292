"""What --dry-run, --explain and --when print: a decision, its reasons, and when a launch starts."""

import sys
from collections.abc import Callable
from contextlib import suppress

from gpulaunch.cli.output import Document, format_start, print_json, rounded
from gpulaunch.cli.screen import Grid, Parts, Text, cut, draw, figure
from gpulaunch.decide.decision import Decision, Grant, Refuse, Request, ShareOption, State, Wait
from gpulaunch.decide.explain import Alternative, Explanation, explain
from gpulaunch.errors import UsageError, printable
from gpulaunch.files.units import format_size
from gpulaunch.history.predict import predicted_start
from gpulaunch.launch.launch import Launch, preview, relevant, ticket_of, visible_gpus
from gpulaunch.launch.options import Options
from gpulaunch.launch.surroundings import open_table
from gpulaunch.leases.environment import job_environment
from gpulaunch.leases.holders import name_job
from gpulaunch.machine.gpu import Gpu, gpus_named
from gpulaunch.placement.problem import Scores
from gpulaunch.process.system import user_name

_EXPLAINED = 5  # candidates

_LEGEND = {
    "aggregate_bandwidth": "links that the job uses, GB/s in all: more is better",
    "effective_bandwidth": "estimated bandwidth of the job, GB/s: more is better",
    "preserved_bandwidth": "links between GPUs that stay free, GB/s in all: more is better",
    "lasting_bandwidth": "links left to others, now and later, GB/s in all: more is better",
    "sockets": "CPU sockets that its GPUs are on: fewer is better",
    "fragmentation": "share of those sockets' GPUs that is free: less is better",
    "communication_cost": "distances between its GPUs in all: less is better",
}
"""What each score is; docs/explanation/placement.md defines them."""


def print_decision(launch: Launch, decision: Decision, state: State, options: Options) -> str:
    """Print what would be decided in a state; return the decision: grant, wait or refuse."""
    document = _decision_document(launch, decision, state)
    explanation = _explain(launch, decision, state) if options.explain else None
    if options.json:
        if explanation:
            document |= _explanation_document(explanation)
        print_json(document)
    else:
        print("\n".join(_decision_lines(document, explained=options.explain)))
        if explanation:
            draw(explanation_table(launch.request, decision, explanation), sys.stdout)
    return str(document["decision"])


def _explain(launch: Launch, decision: Decision, state: State) -> Explanation:
    return explain(launch.request, state, decision, _EXPLAINED, user_name)


def explain_on_stderr(launch: Launch, decision: Decision, state: State) -> None:
    """Say why a launch got its GPUs, or none, to its user."""
    table = explanation_table(launch.request, decision, _explain(launch, decision, state))
    # rich exits on a broken pipe, and a lost stderr must not stop a job.
    with suppress(OSError, SystemExit):
        draw(table, sys.stderr)


def print_start(launch: Launch, options: Options, tell: Callable[[str], None]) -> int:
    """Print when a launch would probably start, and take nothing.

    Raises:
        UsageError: it can never start.
    """
    if options.after is not None:
        raise UsageError("--when and --after: how long the others still run is not predicted")
    decision, _ = preview(launch, tell)
    if isinstance(decision, Refuse):
        raise UsageError(decision.reason)
    granted = isinstance(decision, Grant)
    start = None
    if not granted:
        seen = relevant(launch, open_table(private=launch.private, warn=tell).peek())
        start = predicted_start(launch.machine, seen, ticket_of(launch))
    if options.json:
        from gpulaunch.cli.status import start_document  # late: for --when alone

        print_json(
            {
                "decision": "grant" if granted else "wait",
                "reason": decision.reason,
                "predicted_start": start_document(start),
            }
        )
    elif granted:
        print("now")
    elif start:
        print(f"probably {format_start(start.from_s, start.to_s)}: {decision.reason}")
    else:
        print(f"nobody can tell: {decision.reason}")
    return 0


def _decision_document(launch: Launch, decision: Decision, state: State) -> Document:
    request = launch.request
    grant = decision if isinstance(decision, Grant) else None
    share, environment = None, {}
    if grant:
        # As the lease will have it, but for the directory of its MPS daemon.
        share = state.within.share if state.within else None
        share = grant.share_option.share if grant.share_option else share
    if grant and not launch.container:  # which has variables of its own
        environment = job_environment(
            visible_gpus(launch, grant),
            driver=launch.machine.topology.driver,
            by_uuid=launch.by_uuid,
            count=len(grant.gpus),
            lease_id=None,
            share=share,
            program="".join(launch.command[:1]),
        )
    return {
        "decision": "grant" if grant else "wait" if isinstance(decision, Wait) else "refuse",
        "reason": decision.reason,
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "numa_node": gpu.numa_node,
                "node": 0,
            }
            for gpu in (grant.gpus if grant else ())
        ],
        "policy": request.policy.replace("_", "-"),
        "bandwidth_model": request.bandwidth_model,
        "pattern": request.pattern.name.replace("_", "-"),
        "scores": _scores_document(grant.placement.scores if grant else None),
        "utility": grant.placement.utility if grant else None,
        "shared": share is not None,
        "sm_percentage": share.sm_percentage if share else None,
        "sharing": _sharing_document(request, grant),
        "env": environment,
        "argv": [printable(argument) for argument in launch.command],
        "profile": request.profile,
        "assumed": list(request.assumed),
    }


def _explanation_document(explanation: Explanation) -> Document:
    return {
        "why": explanation.reason,
        "candidates": [
            {"gpus": list(candidate.gpus), "scores": _scores_document(candidate.scores)}
            for candidate in explanation.candidates
        ],
        "excluded": [
            {"index": left_out.gpu.index, "name": left_out.gpu.name, "why": printable(left_out.why)}
            for left_out in explanation.excluded
        ],
        "alternatives": [
            _alternative_document(alternative) for alternative in explanation.alternatives
        ],
        "if_idle": _alternative_document(explanation.if_idle) if explanation.if_idle else None,
        "share_groups": [
            {"gpus": gpus, **_share_option_document(option)} for option, gpus in explanation.sharing
        ],
    }


def _alternative_document(alternative: Alternative) -> Document:
    return {
        "instead": printable(alternative.instead),
        "gpus": list(alternative.gpus),
        "effective_bandwidth_gb_per_s": alternative.effective_bandwidth,
    }


def _decision_lines(document: Document, *, explained: bool = False) -> list[str]:
    """Return the lines that --dry-run prints for people, less what --explain says below them."""
    lines = [f"{document['decision']}: {document['reason']}"]
    if document["decision"] == "grant":
        names = ",".join(gpu["name"] for gpu in document["gpus"])
        models = ", ".join(dict.fromkeys(printable(gpu["model"]) for gpu in document["gpus"]))
        lines.append(f"gpus: {names} ({models})")
        lines += [] if explained else _score_lines(document)
        lines += _sharing_lines(document)
        if document["utility"] is not None:
            lines.append(f"utility: {document['utility']:.2f}")
        lines += [f"env: {name}={value}" for name, value in document["env"].items()]
    return lines


def _score_lines(document: Document) -> list[str]:
    lines = [f"policy: {document['policy']}, bandwidth model {document['bandwidth_model']}"]
    for name, value in document["scores"].items():
        if value is not None:
            unit = " GB/s" if name.endswith("_gb_per_s") else ""
            shown = name.removesuffix("_gb_per_s").replace("_", " ")
            lines.append(f"{shown}: {value:.4g}{unit}")
    if document["assumed"]:
        lines.append(f"assumed: {', '.join(document['assumed']).replace('_', ' ')}")
    return lines


def _scores_document(scores: Scores | None) -> dict[str, float | None]:
    document = {}
    for name in _LEGEND:
        if name != "sockets":  # which other programs were never told
            unit = "_gb_per_s" if name.endswith("_bandwidth") else ""
            document[name + unit] = rounded(getattr(scores, name)) if scores else None
    return document


def _sharing_document(request: Request, grant: Grant | None) -> Document | None:
    """Return with which jobs the GPUs are shared, and why; None if sharing was not asked for."""
    if request.exclusive_reason:
        return {"residents": [], "own_because": request.exclusive_reason}
    if request.sharing is None or grant is None:
        return None
    option = grant.share_option
    document = _share_option_document(option) if option else {"residents": []}
    return {**document, "own_because": grant.exclusive_reason}


def _share_option_document(option: ShareOption) -> Document:
    verdict = option.verdict
    sums, at = verdict.sums, verdict.pace
    return {
        "uuids": list(option.group),
        "residents": [
            {
                "lease": lease.id,
                "name": lease.name,
                "profile": lease.profile,
                "sm_percentage": lease.share.sm_percentage if lease.share else None,
            }
            for lease in option.residents
        ],
        "problem": option.refusal,
        "decided_by": verdict.decided_by,
        "notes": list(verdict.notes),
        "sm_utilization_percentage": sums.sm_percentage,
        "memory_bandwidth_utilization_percentage": sums.memory_bandwidth_percentage,
        "memory_bytes": sums.memory_bytes,
        "power_w": sums.power_w,
        "sm_percentage": verdict.caps[-1] if verdict.caps else None,
        "why": verdict.why,
        "predicted_speeds": list(at.speeds) if at else [],
        "predicted_stp": at.stp if at else None,
        "predicted_antt": at.antt if at else None,
    }


def _sharing_lines(document: Document) -> list[str]:
    sharing = document["sharing"]
    if sharing is None:
        return []
    if not document["shared"]:
        return [f"not shared: {printable(sharing['own_because'])}"]
    beside = [
        printable(f"{one['name'] or one['profile'] or 'a job'} ({one['lease']})")
        for one in sharing["residents"]
    ]
    others = ", ".join(beside) or "nobody yet"
    part = f"{document['sm_percentage']} % of the SMs"
    return [f"shared: {part}, with {others}: {sharing['why']}"]


def explanation_table(request: Request, decision: Decision, explanation: Explanation) -> Parts:
    """Return why the decision was made: excluded GPUs, the best candidates, or alternatives."""
    parts: list[Grid | Text] = []
    if explanation.excluded:
        left_out: dict[str, list[Gpu]] = {}
        for one in explanation.excluded:
            left_out.setdefault(one.why, []).append(one.gpu)
        table = Grid("left out", "because")
        for why, gpus in left_out.items():
            table.add_row(gpus_named(gpus), cut(why))
        parts += [table, Text()]
    parts += _sharing_parts(request, decision, explanation)
    if isinstance(decision, Grant):
        parts += _grant_parts(request, decision, explanation)
    else:
        parts += _alternative_parts(request, explanation)
    return Parts(*parts)


def _sharing_parts(
    request: Request, decision: Decision, explanation: Explanation
) -> list[Grid | Text]:
    """Return the share groups with the total use in each, and whether the job may join."""
    if request.sharing is None:
        return []
    columns = ("SM %", "BW %", "memory")
    table = Grid("", "GPUs", *columns, "verdict on all together", right=columns)
    chosen = decision.share_option if isinstance(decision, Grant) else None
    for option, gpus in explanation.sharing:
        sums, mark = option.verdict.sums, ">" if option == chosen else ""
        figures = [figure(sums.sm_percentage), figure(sums.memory_bandwidth_percentage)]
        figures.append(format_size(sums.memory_bytes))
        table.add_row(mark, gpus, *figures, _describe_verdict(option))
    title = f"sharing for {request.sharing.client.objective.name}"
    parts: list[Grid | Text] = [Text(title, "bold")]
    if explanation.sharing:
        parts.append(table)
    if chosen and chosen.residents and (at := chosen.verdict.pace):
        names = [name_job(lease) for lease in chosen.residents] + ["this job"]
        each = ", ".join(
            f"{name} {speed:.2f}" for name, speed in zip(names, at.speeds, strict=True)
        )
        parts.append(Text(f"predicted speeds: {each}; STP {at.stp:.3g}, ANTT {at.antt:.3g}", "dim"))
    return [*parts, Text()]


def _describe_verdict(option: ShareOption) -> Text:
    verdict = Text(printable(option.refusal or "may come"), "red" if option.refusal else "green")
    for note in () if option.refusal else option.verdict.notes:
        verdict.append(f"; {note}", "yellow")
    for lease in option.residents:
        percentage = f", {lease.share.sm_percentage} % of the SMs" if lease.share else ""
        verdict.append(f"\nbeside {name_job(lease)} ({lease.id}){percentage}", "dim")
    return verdict


def _grant_parts(request: Request, grant: Grant, explanation: Explanation) -> list[Grid | Text]:
    shown = explanation.deciding or ("effective_bandwidth",)
    titles = [name.split("_")[0 if name.endswith("_bandwidth") else -1] for name in shown]
    table = Grid("", *titles, "GPUs", right=titles, leave=titles[:0:-1])
    problem = grant.problem
    for place, candidate in enumerate(explanation.candidates):
        cells = [figure(getattr(candidate.scores, name)) for name in shown]
        mark, style = (">", "bold green") if place == 0 else ("", "")
        table.add_row(mark, *cells, cut(problem.format_set(candidate.gpus)), style=style)
    count = grant.placement.candidates
    title = f"{count:,} candidate{'' if count == 1 else 's'}"
    if count > 1 and grant.placement.by and not grant.placement.chosen_by_policy:
        title += ", best first"
    parts: list[Grid | Text] = [Text(title, "bold"), table]
    wide = max(map(len, titles))
    for name, title in zip(shown, titles, strict=True):
        legend = f"{title:<{wide}}  {_LEGEND[name]}"
        parts.append(Text(legend, "dim"))
    parts += [Text(), Text(explanation.reason)]
    if idle := explanation.if_idle:
        gpus, bandwidth = ",".join(map(str, idle.gpus)), figure(idle.effective_bandwidth)
        better = f"the idle machine would give {gpus} with {bandwidth} GB/s"
        parts.append(Text(f"{better}: {idle.instead} waits for as much", "yellow"))
    return [*parts, Text(_describe_rules(request, grant), "dim")]


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


def _alternative_parts(request: Request, explanation: Explanation) -> list[Grid | Text]:
    if not explanation.alternatives:
        return [Text("nothing that asks for less would be granted now", "dim")]
    table = Grid("instead", "effective, GB/s", "GPUs", right=("effective, GB/s",))
    for alternative in explanation.alternatives:
        gpus = ",".join(map(str, alternative.gpus))
        found, least = alternative.effective_bandwidth, request.least_gb_per_s
        of = f" of {least:g}" if least and found is not None else ""
        table.add_row(printable(alternative.instead), figure(found) + of, cut(gpus))
    return [Text("what would be granted now:", "bold"), table]
