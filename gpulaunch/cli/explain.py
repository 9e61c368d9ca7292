"""What --dry-run, --explain and --when print: a decision, its reasons, and when a launch starts."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TextIO

from gpulaunch.cli.output import print_json
from gpulaunch.decide.decision import Decision, Grant, Refuse, ShareOption, State, Wait
from gpulaunch.decide.explain import Alternative, Explanation, explain
from gpulaunch.decide.request import Request
from gpulaunch.errors import UsageError, printable
from gpulaunch.launch.assess import assess_now, visible_gpus
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.open_table import open_table_of
from gpulaunch.launch.options import Options
from gpulaunch.launch.predict import predicted_start
from gpulaunch.leases.environment import job_environment
from gpulaunch.leases.lease import Share
from gpulaunch.machine.gpu import Gpu
from gpulaunch.placement.problem import Scores
from gpulaunch.process.system import user_name
from gpulaunch.show import Document

_EXPLAINED = 5  # candidates


def print_decision(launch: Launch, decision: Decision, state: State, options: Options) -> str:
    """Print what would be decided on stdout; return the decision: grant, wait or refuse.

    Args:
        launch: the launch.
        decision: what would be decided.
        state: what it was decided in.
        options: its options, which say what to print, and whether as JSON.
    """
    gpus = decision.gpus if isinstance(decision, Grant) else []
    share = _preview_share(launch, decision, state)
    seen = visible_gpus(launch, decision) if isinstance(decision, Grant) else []
    environment, argv = _preview_job(launch, gpus, seen, share)
    document = _decision_document(launch.request, decision, gpus, environment, argv, share)
    if options.json:
        if options.explain:
            document |= _explanation_document(_make_explanation(launch, decision, state))
        print_json(document)
    else:
        print("\n".join(_decision_lines(document, explained=options.explain)))
        if options.explain:
            _print_explanation(launch, decision, state, sys.stdout)
    return str(document["decision"])


def _preview_share(launch: Launch, decision: Decision, state: State) -> Share | None:
    """Return the share in the lease, without the directory of its MPS daemon; None without one."""
    if not isinstance(decision, Grant):
        return None
    if decision.share_option is None:
        return state.within.share if state.within else None
    from gpulaunch.decide.share_options import share_of  # late: few launches share

    return share_of(launch.request, decision.share_option)


def _preview_job(
    launch: Launch, gpus: list[Gpu], seen: Sequence[Gpu], share: Share | None
) -> tuple[dict[str, str], Sequence[str]]:
    """Return the job's variables and argv; a container has variables of its own."""
    if not gpus or launch.container:
        return {}, launch.command
    environment = job_environment(
        seen,
        driver=launch.machine.topology.driver,
        by_uuid=launch.by_uuid,
        count=len(gpus),
        lease_id=None,
        share=share,
        program="".join(launch.command[:1]),
    )
    return environment, launch.command


def _make_explanation(launch: Launch, decision: Decision, state: State) -> Explanation:
    return explain(launch.request, state, decision, _EXPLAINED, user_name)


def explain_on_stderr(launch: Launch, decision: Decision, state: State) -> None:
    """Say why a launch got its GPUs, or none, to its user."""
    # rich exits on a broken pipe, and a lost stderr must not stop a job.
    with suppress(OSError, SystemExit):
        _print_explanation(launch, decision, state, sys.stderr)


def _print_explanation(launch: Launch, decision: Decision, state: State, stream: TextIO) -> None:
    from gpulaunch.cli.screen import draw
    from gpulaunch.show.decision_table import explanation_table  # late: the tables need rich

    explanation = _make_explanation(launch, decision, state)
    draw(explanation_table(launch.request, decision, explanation), stream)


def print_start(launch: Launch, options: Options, tell: Callable[[str], None]) -> int:
    """Print when a launch would probably start, and take nothing.

    Args:
        launch: the launch.
        options: its options.
        tell: called with each warning.

    Raises:
        UsageError: it can never start.
    """
    if options.after is not None:
        raise UsageError("--when and --after: how long the others still run is not predicted")
    assessment = assess_now(launch, open_table_of(launch, tell), None)
    decision = assessment.decision
    if isinstance(decision, Refuse):
        raise UsageError(decision.reason)
    granted = isinstance(decision, Grant)
    start = None if granted else predicted_start(launch, assessment.snapshot)
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
        print(f"probably {start.text}: {decision.reason}")
    else:
        print(f"nobody can tell: {decision.reason}")
    return 0


def _decision_document(
    request: Request,
    decision: Decision,
    gpus: Sequence[Gpu],
    environment: Mapping[str, str],
    command: Sequence[str],
    share: Share | None = None,
) -> Document:
    """Return the document that --dry-run --json prints.

    Args:
        request: the request of the launch.
        decision: the decision about it.
        gpus: granted GPUs, in rank order; empty unless granted.
        environment: variables that the job would get.
        command: argv of the job.
        share: the share in its lease, if it shares.
    """
    grant = decision if isinstance(decision, Grant) else None
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
                "node": gpu.node,
            }
            for gpu in gpus
        ],
        "policy": request.policy.replace("_", "-"),
        "bandwidth_model": request.bandwidth_model,
        "pattern": request.pattern.name.replace("_", "-"),
        "scores": _scores_document(grant.placement.scores if grant else None),
        "utility": grant.placement.utility if grant else None,
        "shared": share is not None,
        "sm_percentage": share.sm_percentage if share else None,
        "sharing": _sharing_document(request, grant),
        "env": dict(environment),
        "argv": [printable(argument) for argument in command],
        "profile": request.profile,
        "assumed": list(request.assumed),
    }


def _explanation_document(explanation: Explanation) -> Document:
    """Return the part of the document that --explain adds."""
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
    """Return the lines that --dry-run prints for people.

    Args:
        document: the document of a decision.
        explained: whether a table of its candidates follows, which says the scores and the policy.
    """
    lines = [f"{document['decision']}: {document['reason']}"]
    if document["decision"] == "grant":
        lines.append(f"gpus: {_format_by_model(document['gpus'])}")
        lines += [] if explained else _score_lines(document)
        lines += _sharing_lines(document)
        if document["utility"] is not None:
            lines.append(f"utility: {document['utility']:.2f}")
        lines += [f"env: {name}={value}" for name, value in document["env"].items()]
    if document["assumed"] and not (explained and document["decision"] == "grant"):
        lines.append(f"assumed: {', '.join(document['assumed']).replace('_', ' ')}")
    return lines


def _score_lines(document: Document) -> list[str]:
    lines = [f"policy: {document['policy']}, bandwidth model {document['bandwidth_model']}"]
    for name, value in document["scores"].items():
        if value is not None:
            unit = " GB/s" if name.endswith("_gb_per_s") else ""
            shown = name.removesuffix("_gb_per_s").replace("_", " ")
            lines.append(f"{shown}: {value:.4g}{unit}")
    return lines


def _format_by_model(gpus: Sequence[Document]) -> str:
    """Return names by model in rank order, such as "0,2,3 (Tesla V100-SXM2-16GB)".

    GPUs of one model that are not adjacent in rank order are listed apart.
    """
    runs = [
        (model, [gpu["name"] for gpu in run])
        for model, run in groupby(gpus, key=lambda gpu: gpu["model"])
    ]
    return ", ".join(f"{','.join(names)} ({printable(model)})" for model, names in runs)


def _scores_document(scores: Scores | None) -> dict[str, float | None]:
    def known(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    return {
        "aggregate_bandwidth_gb_per_s": known(scores.aggregate_bandwidth) if scores else None,
        "effective_bandwidth_gb_per_s": known(scores.effective_bandwidth) if scores else None,
        "preserved_bandwidth_gb_per_s": known(scores.preserved_bandwidth) if scores else None,
        "lasting_bandwidth_gb_per_s": known(scores.lasting_bandwidth) if scores else None,
        "fragmentation": known(scores.fragmentation) if scores else None,
        "communication_cost": scores.communication_cost if scores else None,
    }


def _sharing_document(request: Request, grant: Grant | None) -> Document | None:
    """Return with which jobs the GPUs are shared, and why; None if sharing was not asked for."""
    if request.exclusive_reason:
        return {"residents": [], "own_because": request.exclusive_reason}
    if request.sharing is None or grant is None:
        return None
    document: Document = (
        {"residents": []}
        if grant.share_option is None
        else _share_option_document(grant.share_option)
    )
    return {**document, "own_because": grant.exclusive_reason}


def _share_option_document(option: ShareOption) -> Document:
    """Return the predicted state of some GPUs if a job comes to share them."""
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
    """Return lines for people about the jobs with which a decision shares the GPUs."""
    sharing = document["sharing"]
    if sharing is None:
        return []
    if not document["shared"]:
        return [f"not shared: {printable(sharing['own_because'])}"]
    beside = [
        printable(f"{one['name'] or one['profile'] or 'a job'} ({one['lease']})")
        for one in sharing["residents"]
    ]
    return [
        (
            f"shared: {document['sm_percentage']} % of the SMs, with "
            f"{', '.join(beside) or 'nobody yet'}: {sharing['why']}"
        )
    ]
