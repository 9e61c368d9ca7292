"""`gpulaunch batch FILE`: run a file of jobs, one ordinary launch after the other."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpulaunch.batch import run as batch
from gpulaunch.batch.job_file import SETTINGS_OF_A_JOB, STDIN, JobFile, load_jobs
from gpulaunch.batch.results_file import Result
from gpulaunch.batch.run import BatchOutcome, Counts, Ways
from gpulaunch.batch.tasks import Task, read_tasks
from gpulaunch.cli.arguments import Namespace, Parser, add_topology
from gpulaunch.cli.help import policy_words
from gpulaunch.cli.options import launch_options
from gpulaunch.cli.output import say, warn
from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.files.data_files import make_own
from gpulaunch.files.duration import format_duration
from gpulaunch.files.write import make_directory
from gpulaunch.history.line import state_home
from gpulaunch.launch.given import Given
from gpulaunch.launch.read_launch import read_grace
from gpulaunch.launch.settings import Settings
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.process.job import end_by
from gpulaunch.process.system import now
from gpulaunch.profiles.catalog import profiles_at_hand
from gpulaunch.records import replace
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.show.terminal import ProgressLine

_MOST_NAMED = 5
_SOME_FAILED = 1
_OF_ALL_JOBS = [
    option
    for option in launch_options()
    if option.name in (*SETTINGS_OF_A_JOB, "notify", "wait_timeout")
]
"""Options of a launch that a batch may have, for those of its jobs that do not say otherwise."""

_LONE = {
    flag: f"{flag}={option.sets}"
    for option in _OF_ALL_JOBS
    if option.attaches
    for flag in option.flags
}
"""Flags whose value is only ever attached, with the value that they have without."""


def main(arguments: Sequence[str]) -> int:
    """Run the jobs of a file until all have ended."""
    options = make_parser().parse_args([_LONE.get(word, word) for word in arguments])
    # Jobs run on even if no process reads the messages about them.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if options.resume and options.file == STDIN and not options.results:
        raise UsageError("--resume: which results? --results FILE names them")
    file = _with_options(load_jobs(options.file, to_run=True), options)
    for name in file.tables:
        if os.sep in name:
            raise UsageError(
                f"{options.file}: profile {printable(name)}: a name with {os.sep} in it would be a "
                "path"
            )
    if options.policy is not None:
        Settings({"policy": Given("--policy", options.policy)}, {}).get("policy")
    common = {key: getattr(options, key) for key in ("topology", "policy") if getattr(options, key)}
    path = options.results or _results_of(options.file)
    with profiles_at_hand(file.tables):
        shown_machine(options.topology, warn)  # a mistake in the machine is one in all jobs
        checked = read_tasks(file, common, warn, at_once=options.at_once)
        tasks, predicted = [one.task for one in checked], None
        if options.plan:
            from gpulaunch.batch.planned import plan_tasks  # late: few batches are planned

            tasks, predicted = plan_tasks(checked)
        if options.logs:
            make_directory(options.logs)
        results = batch.begin(path, options.file, warn, resume=options.resume)
        display = _Display(quiet=options.quiet, shared=options.logs is None)
        if predicted:
            display.say("info", predicted)
        ways = Ways(_words, common, options.logs, read_grace(Settings({}, os.environ)))
        try:
            outcome = batch.run(tasks, results, ways, display)
        finally:
            display.clear()
    return _finish(tasks, results.path, outcome, quiet=options.quiet)


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch batch",
        "Run the jobs of a file, each by an ordinary launch, in order (see docs/guides/batch.md).",
    )
    parser.add_argument(
        "file",
        metavar="FILE|-",
        help="the jobs: lines with a command for sh each, TOML, or JSON lines; - reads stdin",
    )
    words = policy_words()
    for option in _OF_ALL_JOBS:
        text = option.help.format(**words)
        if option.metavar is None and not option.attaches:
            parser.add_argument(
                *option.flags,
                dest=option.name,
                action="store_const",
                const=option.sets,
                help=text,
            )
        else:
            parser.add_argument(*option.flags, dest=option.name, metavar=option.metavar, help=text)
    add_topology(parser)
    parser.add_argument("--policy", metavar="NAME", help="how to choose GPUs, for all jobs")
    parser.add_argument(
        "--plan",
        action="store_true",
        help="run jobs that share together as is predicted to be best (see docs/guides/plan.md)",
    )
    parser.add_argument("--at-once", action="store_true", help="wait for no arrival_s")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with a batch: run only what has no result yet",
    )
    parser.add_argument(
        "--results",
        metavar="FILE",
        help="where results go, a line of JSON each (default: NAME.results.jsonl here)",
    )
    parser.add_argument(
        "--logs",
        metavar="DIR",
        help="what jobs print goes to DIR/ID.log (default: where this prints)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="nothing but errors on stderr")
    return parser


def _with_options(file: JobFile, options: Namespace) -> JobFile:
    """Return the jobs with the options of the command line that they do not set themselves."""
    given: dict[str, str] = {}
    for option in _OF_ALL_JOBS:
        text = getattr(options, option.name)
        if text is not None and option.name not in given:
            Settings({option.name: Given(option.flags[-1], text)}, {}).get(option.name)
            given[option.name] = text
    return replace(
        file,
        entries=tuple(
            replace(entry, settings={**given, **entry.settings}) for entry in file.entries
        ),
    )


def _results_of(file: str) -> str:
    """Return where the results of a file of jobs go if nothing is said about that."""
    if file != STDIN:
        return f"{os.path.basename(file)}.results.jsonl"
    directory = f"{state_home()}/batches"
    with suppress(OSError):  # opening the file will say it
        make_own(directory)  # a line may have a secret in it
    return f"{directory}/{now().replace(':', '')}-{os.urandom(2).hex()}.results.jsonl"


def _words(settings: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return settings as launch options, and those without an option as environment variables."""
    words: list[str] = []
    variables: dict[str, str] = {}
    for name, text in settings.items():
        options = [option for option in launch_options() if option.name == name]
        valued = next((option for option in options if option.metavar is not None), None)
        switch = next(
            (option for option in options if option.metavar is None and option.sets == text), None
        )
        if valued:
            words.append(f"{valued.flags[-1]}={text}")
        elif switch:
            words.append(switch.flags[-1])
        else:
            variables[f"GPULAUNCH_{name.upper()}"] = text
    return words, variables


class _Display:
    """The reporter of a batch's progress on stderr.

    At a terminal it prints a line for each job that has ended, or one line that is redrawn if jobs
    print elsewhere; into a pipe it prints nothing.

    Args:
        quiet: whether to print errors only.
        shared: whether jobs print to the same terminal.
    """

    def __init__(self, *, quiet: bool, shared: bool) -> None:
        self._quiet = quiet
        self._tells = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._line: ProgressLine | None = None
        if self._tells and not shared:
            from gpulaunch.show import terminal  # late: few need it

            line = terminal.ProgressLine(sys.stderr)
            self._line = line if line.possible else None

    def say(self, kind: str, text: str) -> None:
        """Print one message."""
        self.clear()
        if kind == "error" or not self._quiet:
            say(kind, text)

    def ended(self, result: Result, counts: Counts) -> None:
        """Report that a job has ended."""
        if self._tells and (result.exit_status or self._line is None):
            job = f"job {result.id} ({result.name})"
            self.say("info", f"{counts.done} of {counts.jobs}: {job} {_describe_end(result)}")

    def changed(self, counts: Counts) -> None:
        """Draw the progress of the batch."""
        if self._line is None:
            return
        parts = [f"{counts.done} of {counts.jobs} done", f"{counts.running} running"]
        if counts.failed:
            parts.append(f"{counts.failed} failed")
        if counts.queued:
            name, why = counts.queued
            parts.append(f"{name} waits: {why}" if why else f"{name} waits")
        with suppress(OSError):
            self._line.draw(counts.done / counts.jobs, ", ".join(parts))

    def clear(self) -> None:
        """Clear the line that is drawn."""
        if self._line:
            with suppress(OSError):
                self._line.clear()


def _describe_end(result: Result) -> str:
    if result.started_s is None or result.ended_s is None:
        return f"was not started: {result.exit_status}"
    gpus = ",".join(map(str, result.gpus))
    where = f" on GPU{'s' if len(result.gpus) > 1 else ''} {gpus}" if gpus else ""
    after = format_duration(result.ended_s - result.started_s)
    return f"ended with {result.exit_status} after {after}{where}"


def _finish(tasks: Sequence[Task], path: str, outcome: BatchOutcome, *, quiet: bool) -> int:
    """Report the outcome in a line, and return the exit status of the batch."""
    ids = sorted(task.id for task in tasks)
    ended = [outcome.results[number] for number in ids if number in outcome.results]
    if not quiet:
        say("info", _summarise(len(tasks), ended, path))
    if outcome.problem:
        raise FailedError(
            outcome.problem.message, "once that is put right, --resume runs what has no result"
        )
    if outcome.signal in (signal.SIGINT, signal.SIGQUIT):
        end_by(outcome.signal)
    if outcome.signal is not None:
        return 128 + outcome.signal
    return _SOME_FAILED if any(result.exit_status for result in ended) else 0


def _summarise(jobs: int, ended: Sequence[Result], path: str) -> str:
    failed = [result for result in ended if result.exit_status and not result.interrupted]
    cut_short = sum(result.interrupted for result in ended)
    left = jobs - len(ended)
    parts = [f"{len(ended) - len(failed) - cut_short} of {jobs} jobs ended with 0"]
    if failed:
        named = ", ".join(
            f"{result.id} ({result.name}): {result.exit_status}" for result in failed[:_MOST_NAMED]
        )
        parts.append(
            f"{len(failed)} did not: {named}{', ...' if len(failed) > _MOST_NAMED else ''}"
        )
    if cut_short:
        parts.append(f"{cut_short} {'was' if cut_short == 1 else 'were'} ended early")
    if left:
        parts.append(f"{left} {'has' if left == 1 else 'have'} not run")
    again = "; --resume runs the rest" if left or cut_short else ""
    return f"{', '.join(parts)}; results in {path}{again}"
