"""`gpulaunch [OPTIONS] -- COMMAND [ARG...]`: launch a job."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

from gpulaunch.cli.output import print_json, say
from gpulaunch.cli.output import warn as warn_on_stderr
from gpulaunch.containers.engines import ENGINES
from gpulaunch.decide.decide import Decision, Grant, Situation, Wait
from gpulaunch.errors import GpulaunchError, UsageError, WouldWaitError
from gpulaunch.launch.acquire import Acquired, Callbacks
from gpulaunch.launch.assess import granted_gpus, preview
from gpulaunch.launch.given import Given
from gpulaunch.launch.keepers import Keeper
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.launch.run import Ended, run
from gpulaunch.launch.settings import Settings
from gpulaunch.leases.environment import job_environment
from gpulaunch.leases.table import Snapshot
from gpulaunch.machine.gpu import Gpu
from gpulaunch.process.job import exit_like, exit_status
from gpulaunch.process.system import user_name
from gpulaunch.typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:  # few launches need these
    from gpulaunch.cli.json_status import JsonStatus
    from gpulaunch.cli.record import Recorder
    from gpulaunch.decide.explain import Explanation
    from gpulaunch.leases.share import Share

_EXIT_STATUS = {"grant": 0, "wait": WouldWaitError.exit_status, "refuse": UsageError.exit_status}
_EXPLAINED = 5


def main(given: Mapping[str, Given], command: Sequence[str]) -> int:
    """Run a command on GPUs, or print the decision.

    Args:
        given: options by name.
        command: argv of the job.
    """
    if os.path.basename(command[0]) == "sudo":
        _warn_of_sudo(command, tell_of(given))
    name = given["name"].text if "name" in given else None
    return carry_out(
        given, read_launch(Settings(given, os.environ), command, name=name, warn=tell_of(given))
    )


def _warn_of_sudo(command: Sequence[str], warn: Callable[[str], None]) -> None:
    """Warn of sudo between this launch and an engine, which would not learn of the GPUs."""
    for word, following in pairwise(command[1:]):
        program = os.path.basename(word)
        if program in ENGINES and following in ("run", "create", "container"):
            warn(
                f"sudo {program}: its containers do not get this lease's GPUs: "
                f"write 'sudo gpulaunch {program} ...'"
            )
            return


def tell_of(given: Mapping[str, Given]) -> Callable[[str], None]:
    """Return the function that prints warnings."""
    return _ignore if "quiet" in given else warn_on_stderr


def carry_out(given: Mapping[str, Given], launch: Launch) -> int:
    """Carry out a launch that has been read: run the command, or print the decision.

    Args:
        given: options by name.
        launch: the launch.
    """
    if "json" in given and "dry_run" not in given:
        raise UsageError(
            "--json needs --dry-run, since stdout belongs to the job",
            "see 'gpulaunch status --json'",
        )
    tell, explained = tell_of(given), "explain" in given
    if "record_to" in given and "dry_run" in given:
        raise UsageError("--record-to and --dry-run: nothing runs, so nothing is measured")
    if "dry_run" in given:
        decision, situation = preview(launch, tell)
        return _print_decision(
            launch, decision, situation, explained=explained, as_json="json" in given
        )

    listener = _Reporter(given, launch)
    try:
        outcome = run(launch, Callbacks(tell, listener.waiting), listener.granted, listener.over)
    except GpulaunchError as problem:
        listener.ended(problem.exit_status)
        raise
    if isinstance(outcome, Ended):
        listener.ended(exit_status(outcome.status))
        return exit_like(outcome.status)
    _explain_refusal(launch, given)
    return _raise_refusal(outcome, given)


class _Reporter:
    """The reporter of a launch's course on stderr, and to the program that started it.

    Args:
        given: options by name.
        launch: the launch.
    """

    def __init__(self, given: Mapping[str, Given], launch: Launch) -> None:
        self._given, self._launch = given, launch
        self._status: JsonStatus | None = None
        if "json_status_fd" in given:
            from gpulaunch.cli import json_status  # late: few launches need it

            self._status = json_status.JsonStatus(given["json_status_fd"].text)
        self._recorder: Recorder | None = None
        if launch.recorded_in or "record_to" in given:
            from gpulaunch.cli import record  # late: few launches are recorded

            self._recorder = record.recorder_of(given, launch, tell_of(given))

    def waiting(self, reason: str, seen: Snapshot) -> None:
        """Report that the launch joins the queue."""
        if self._status:
            self._status.waiting(reason)
        elif "quiet" not in self._given:
            _say_who_has_what(self._launch, reason, seen)
        _explain_refusal(self._launch, self._given)

    def granted(self, acquired: Acquired[Keeper]) -> None:
        """Report that the launch has its GPUs."""
        if "explain" in self._given:
            _explain_on_stderr(self._launch, acquired.grant, acquired.situation)
        if "verbose" in self._given:
            _say_granted(self._launch, acquired)
        if self._status:
            self._status.started(acquired)
        if self._recorder:
            self._recorder.begin(acquired)

    def over(self, status: int) -> None:
        """Record the end of the job, whose GPUs are still leased."""
        if self._recorder:
            self._recorder.end(status)

    def ended(self, exit_status: int) -> None:
        """Report that the launch has ended, and that its GPUs are free."""
        if self._recorder:
            self._recorder.write()
        if self._status:
            self._status.ended(exit_status)


def _say_granted(launch: Launch, acquired: Acquired[Keeper]) -> None:
    gpus = acquired.grant.problem.format_ranks(acquired.grant.placement.gpus)
    share = ""
    if acquired.lease.share:
        from gpulaunch.files.size import format_size  # late: few launches share

        memory = format_size(acquired.lease.share.client.demand.memory_bytes)
        share = (
            f"; to be shared: {acquired.lease.share.sm_percentage} % of the SMs, {memory} on each"
        )
    say(
        "info",
        f"lease {acquired.lease.id}: GPUs {gpus} of {launch.machine.topology.name}: "
        f"{acquired.grant.reason}{share}",
    )


def _say_who_has_what(launch: Launch, reason: str, seen: Snapshot) -> None:
    from datetime import UTC, datetime

    from gpulaunch.show.status import waiting_lines

    say("info", f"waiting as number {len(seen.tickets) + 1} in the queue: {reason}")
    for line in waiting_lines(
        launch.machine.topology, seen.leases, seen.tickets, user_name, datetime.now(UTC)
    ):
        say("info", line)


def _raise_refusal(outcome: Decision, given: Mapping[str, Given]) -> int:
    if isinstance(outcome, Wait):
        where = f" --topology {given['topology'].text}" if "topology" in given else ""
        raise WouldWaitError(
            outcome.reason, f"add --wait to queue, or see 'gpulaunch status{where}'"
        )
    raise UsageError(outcome.reason)


def _ignore(text: str) -> None:
    """Drop a warning."""


def _print_decision(
    launch: Launch, decision: Decision, situation: Situation, *, explained: bool, as_json: bool
) -> int:
    from gpulaunch.show.decision import decision_document, decision_lines, explanation_document

    gpus = granted_gpus(launch, decision) if isinstance(decision, Grant) else []
    share = _preview_share(launch, decision, situation)
    environment, argv = _preview_job(launch, gpus, share)
    document = decision_document(launch.request, decision, gpus, environment, argv, share)
    if as_json:
        if explained:
            document |= explanation_document(_make_explanation(launch, decision, situation))
        print_json(document)
    else:
        print("\n".join(decision_lines(document)))
        if explained:
            _print_explanation(launch, decision, situation, sys.stdout)
    return _EXIT_STATUS[document["decision"]]


def _preview_share(launch: Launch, decision: Decision, situation: Situation) -> "Share | None":
    """Return the share in the lease, without the directory of its MPS daemon; None without one."""
    if not isinstance(decision, Grant):
        return None
    if decision.share_option is None:
        return situation.within.share if situation.within else None
    from gpulaunch.decide.share_options import share_of  # late: few launches share

    return share_of(launch.request, decision.share_option)


def _preview_job(
    launch: Launch, gpus: list[Gpu], share: "Share | None"
) -> tuple[dict[str, str], Sequence[str]]:
    """Return the job's variables and argv; a container's variables are in its command line."""
    if launch.container:
        from gpulaunch.containers.container_launch import started_command

        return {}, started_command(launch.container, gpus, None, share) if gpus else launch.command
    if not gpus:
        return {}, launch.command
    environment = job_environment(
        gpus,
        driver=launch.machine.topology.driver,
        by_uuid=launch.by_uuid,
        lease_id=None,
        share=share,
    )
    return environment, launch.command


def _make_explanation(launch: Launch, decision: Decision, situation: Situation) -> "Explanation":
    from gpulaunch.decide.explain import explain

    return explain(launch.request, situation, decision, _EXPLAINED, user_name)


def _explain_refusal(launch: Launch, given: Mapping[str, Given]) -> None:
    if "explain" in given:
        _explain_on_stderr(launch, *preview(launch, _ignore))


def _explain_on_stderr(launch: Launch, decision: Decision, situation: Situation) -> None:
    with suppress(
        OSError, SystemExit
    ):  # rich exits on a broken pipe, and a lost stderr must not stop a job
        _print_explanation(launch, decision, situation, sys.stderr)


def _print_explanation(
    launch: Launch, decision: Decision, situation: Situation, stream: TextIO
) -> None:
    from gpulaunch.show.decision_table import explanation_table
    from gpulaunch.show.terminal import draw

    draw(
        explanation_table(launch.request, decision, _make_explanation(launch, decision, situation)),
        stream,
    )
