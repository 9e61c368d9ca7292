"""What --dry-run and --explain print: the decision about a launch, and its reasons."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from gpulaunch.cli.output import print_json
from gpulaunch.decide.decision import Decision, Grant, Situation
from gpulaunch.decide.explain import Explanation, explain
from gpulaunch.launch.assess import granted_gpus, visible_gpus
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.options import Options
from gpulaunch.leases.environment import job_environment
from gpulaunch.leases.share import Share
from gpulaunch.machine.gpu import Gpu
from gpulaunch.process.system import user_name
from gpulaunch.show.decision import decision_document, decision_lines, explanation_document

_EXPLAINED = 5  # candidates


def print_decision(
    launch: Launch, decision: Decision, situation: Situation, options: Options
) -> str:
    """Print what would be decided on stdout; return the decision: grant, wait or refuse.

    Args:
        launch: the launch.
        decision: what would be decided.
        situation: what it was decided in.
        options: its options, which say what to print, and whether as JSON.
    """
    gpus = granted_gpus(launch, decision) if isinstance(decision, Grant) else []
    share = _preview_share(launch, decision, situation)
    seen = visible_gpus(launch, decision) if isinstance(decision, Grant) else []
    environment, argv = _preview_job(launch, gpus, seen, share)
    document = decision_document(launch.request, decision, gpus, environment, argv, share)
    if options.json:
        if options.explain:
            document |= explanation_document(_make_explanation(launch, decision, situation))
        print_json(document)
    else:
        print("\n".join(decision_lines(document, explained=options.explain)))
        if options.explain:
            _print_explanation(launch, decision, situation, options, sys.stdout)
    return str(document["decision"])


def _preview_share(launch: Launch, decision: Decision, situation: Situation) -> Share | None:
    """Return the share in the lease, without the directory of its MPS daemon; None without one."""
    if not isinstance(decision, Grant):
        return None
    if decision.share_option is None:
        return situation.within.share if situation.within else None
    from gpulaunch.decide.share_options import share_of  # late: few launches share

    return share_of(launch.request, decision.share_option)


def _preview_job(
    launch: Launch, gpus: list[Gpu], seen: Sequence[Gpu], share: Share | None
) -> tuple[dict[str, str], Sequence[str]]:
    """Return the job's variables and argv; a container's variables are in its command line."""
    if launch.container:
        from gpulaunch.containers.container_launch import started_command

        return {}, started_command(launch.container, gpus, None, share) if gpus else launch.command
    if not gpus or launch.compose:
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


def _make_explanation(launch: Launch, decision: Decision, situation: Situation) -> Explanation:
    return explain(launch.request, situation, decision, _EXPLAINED, user_name)


def explain_on_stderr(
    launch: Launch, decision: Decision, situation: Situation, options: Options
) -> None:
    """Say why a launch got its GPUs, or none, to its user."""
    # rich exits on a broken pipe, and a lost stderr must not stop a job.
    with suppress(OSError, SystemExit):
        _print_explanation(launch, decision, situation, options, sys.stderr)


def _print_explanation(
    launch: Launch,
    decision: Decision,
    situation: Situation,
    options: Options,
    stream: TextIO,
) -> None:
    from gpulaunch.show.decision_table import explanation_table  # late: the tables need rich
    from gpulaunch.show.terminal import draw

    explanation = _make_explanation(launch, decision, situation)
    every_score = options.verbose
    draw(explanation_table(launch.request, decision, explanation, every_score=every_score), stream)
