"""`gpulaunch batch FILE`: run a file of jobs, one ordinary launch after the other."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from gpulaunch.cli.arguments import Namespace, Parser, add_rows, add_topology, with_parts
from gpulaunch.cli.output import say, warn
from gpulaunch.errors import FailedError, UsageError, printable
from gpulaunch.files.document import make_own
from gpulaunch.files.units import format_duration
from gpulaunch.files.write import make_directory
from gpulaunch.history.line import state_home
from gpulaunch.launch.batch import Batch, Result, ResultsFile
from gpulaunch.launch.job_file import (
    SETTINGS_OF_A_JOB,
    STDIN,
    JobFile,
    Task,
    load_jobs,
    plan_tasks,
    read_tasks,
)
from gpulaunch.launch.options import OPTIONS, Options
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.process.job import end_by
from gpulaunch.process.system import now
from gpulaunch.profiles.catalog import profiles_at_hand
from gpulaunch.records import replace

_MOST_NAMED = 5
_SOME_FAILED = 1
_OF_ALL_JOBS = [OPTIONS[name] for name in (*SETTINGS_OF_A_JOB, "notify", "wait_timeout")]
"""Options of a launch that a batch may have, for those of its jobs that do not say otherwise."""


def main(arguments: Sequence[str]) -> int:
    """Run the jobs of a file until all have ended."""
    options = make_parser().parse_args(with_parts(arguments))
    # Jobs run on even if no process reads the messages about them.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if options.resume and options.file == STDIN and not options.results:
        raise UsageError("--resume: which results? --results FILE names them")
    file = _read_file(options)
    if options.policy is not None:
        Options({"policy": ("--policy", options.policy)}, {}).find(OPTIONS["policy"])
    common = {key: getattr(options, key) for key in ("topology", "policy") if getattr(options, key)}
    path = options.results or _results_of(options.file)
    with profiles_at_hand(file.tables):
        shown_machine(options.topology, warn)  # a mistake in the machine is one in all jobs
        tasks = read_tasks(file, common, warn, at_once=options.at_once)
        predicted = None
        if options.plan:
            tasks, predicted = plan_tasks(tasks)
        if options.logs:
            make_directory(options.logs)
        results = ResultsFile(path, warn, resume=options.resume)
        if predicted and not options.quiet:
            say("info", predicted)

        def tell(kind: str, text: str) -> None:
            if kind == "error" or not options.quiet:
                say(kind, text)

        def tell_end(result: Result, done: int) -> None:
            if sys.stderr is not None and sys.stderr.isatty():
                job = f"job {result.id} ({result.name})"
                tell("info", f"{done} of {len(tasks)}: {job} {_describe_end(result)}")

        grace_s = Options({}, os.environ).grace
        batch = Batch(tasks, results, tell, tell_end, common, options.logs, grace_s)
        batch.run()
    return _finish(tasks, results.path, batch, quiet=options.quiet)


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch batch",
        "Run the jobs of a file, each by an ordinary launch, in order (see docs/guides/batch.md).",
    )
    parser.add_argument(
        "file",
        metavar="FILE|-",
        help="the jobs, in TOML or JSON lines; - reads a command for sh from each line of stdin",
    )
    add_rows(parser, _OF_ALL_JOBS)
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


def _read_file(options: Namespace) -> JobFile:
    """Read the jobs, with the options of the command line that they do not set themselves."""
    file = load_jobs(options.file, to_run=True)
    for name in file.tables:
        if os.sep in name:
            where = f"{options.file}: profile {printable(name)}"
            raise UsageError(f"{where}: a name with {os.sep} in it would be a path")
    given = {row.name: getattr(options, row.name) for row in _OF_ALL_JOBS if row.name in options}
    checked = Options(given, {})
    for name in given:
        checked.find(OPTIONS[name])
    texts = {name: text for name, (_, text) in given.items()}
    entries = [replace(entry, settings={**texts, **entry.settings}) for entry in file.entries]
    return replace(file, entries=tuple(entries))


def _results_of(file: str) -> str:
    """Return where the results of a file of jobs go if nothing is said about that."""
    if file != STDIN:
        return f"{os.path.basename(file)}.results.jsonl"
    directory = f"{state_home()}/batches"
    with suppress(OSError):  # opening the file will say it
        make_own(directory)  # a line may have a secret in it
    return f"{directory}/{now().replace(':', '')}-{os.urandom(2).hex()}.results.jsonl"


def _describe_end(result: Result) -> str:
    if result.started_s is None or result.ended_s is None:
        return f"was not started: {result.exit_status}"
    gpus = ",".join(map(str, result.gpus))
    where = f" on GPU{'s' if len(result.gpus) > 1 else ''} {gpus}" if gpus else ""
    after = format_duration(result.ended_s - result.started_s)
    return f"ended with {result.exit_status} after {after}{where}"


def _finish(tasks: Sequence[Task], path: str, batch: Batch, *, quiet: bool) -> int:
    """Report in a line how a batch has ended, and return the exit status of the batch."""
    ids = sorted(task.id for task in tasks)
    ended = [batch.done[number] for number in ids if number in batch.done]
    failed = [result for result in ended if result.exit_status and not result.interrupted]
    cut_short = sum(result.interrupted for result in ended)
    left = len(tasks) - len(ended)
    parts = [f"{len(ended) - len(failed) - cut_short} of {len(tasks)} jobs ended with 0"]
    if failed:
        named = [f"{one.id} ({one.name}): {one.exit_status}" for one in failed[:_MOST_NAMED]]
        named += ["..."] * (len(failed) > _MOST_NAMED)
        parts.append(f"{len(failed)} did not: {', '.join(named)}")
    if cut_short:
        parts.append(f"{cut_short} {'was' if cut_short == 1 else 'were'} ended early")
    if left:
        parts.append(f"{left} {'has' if left == 1 else 'have'} not run")
    again = "; --resume runs the rest" if left or cut_short else ""
    if not quiet:
        say("info", f"{', '.join(parts)}; results in {path}{again}")
    if batch.problem:
        raise FailedError(
            batch.problem.message, "once that is put right, --resume runs what has no result"
        )
    if batch.signal in (signal.SIGINT, signal.SIGQUIT):
        end_by(batch.signal)
    if batch.signal is not None:
        return 128 + batch.signal
    return _SOME_FAILED if any(result.exit_status for result in ended) else 0
