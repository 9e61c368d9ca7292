"""`gpulaunch profile measure -o FILE -- COMMAND`: run a job, and write what it uses."""

import os
import re
import shlex
from collections.abc import Sequence
from functools import partial

from gpulaunch.cli.arguments import LaunchParser, Namespace, Parser, value_by, whole_number
from gpulaunch.cli.launch import Reporter, tell_of
from gpulaunch.cli.output import say
from gpulaunch.containers.docker.line import read_line
from gpulaunch.containers.engines import module_of, runs_containers
from gpulaunch.containers.podman import read_command
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.files.units import parse_duration
from gpulaunch.lab.measure.launches import MeasuredJob
from gpulaunch.lab.measure.update_profile import Outcome, check_own, keep
from gpulaunch.launch.docker_run import first_launch
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.options import OPTIONS, Given, Options
from gpulaunch.launch.podman_run import read_podman_launch
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.process.job import exit_like, exit_status
from gpulaunch.profiles.profile import is_askable
from gpulaunch.profiles.profile_file import own_profile_file

_USAGE = "gpulaunch profile measure [OPTIONS] -o FILE -- COMMAND [ARG...]"
_SLICE_S = 30.0
_MOST_RUNS = 100
_RUNS_OF_PAIR = 5
"""Number of runs alone and beside each other job, as in topo-aware-sc17 5.1."""

_NOT_HERE = {"dry_run", "explain", "when", "json_status_fd", "record", "record_to", "version"}
"""Options of a launch that make no sense here."""


def add_target(parser: Parser) -> None:
    """Add the options that say which profile is written."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write or change this profile (default: your own of that --name)",
    )
    parser.add_argument(
        "--name", metavar="TEXT", help="what the profile and the job are called (default: FILE's)"
    )


def read_target(options: Namespace) -> tuple[str, str]:
    """Return the path and the name of the profile to be written: -o FILE, else of --name.

    Raises:
        UsageError: neither is given, or one is not allowed.
    """
    path, name = options.output, options.name
    if path is None and name is None:
        raise UsageError(
            "nobody says where the profile is to go", "-o FILE, or --name NAME for one of your own"
        )
    if path is None:
        path = own_profile_file(name)
    if path == "-":
        raise UsageError("-o -: stdout belongs to the job")
    if name is None:
        name = re.sub(r"\.toml$", "", os.path.basename(path))
    if path and not is_askable(name):
        raise UsageError(f"{quoted(name)} is no name for a profile", "--name gives it another")
    return path, name


def make_parser() -> Parser:
    """Return the parser of this command's own options."""
    parser = Parser(
        "gpulaunch profile measure",
        "Run a job, and write what it uses; options of a launch apply, see 'gpulaunch --help'.",
        _USAGE,
    )
    add_target(parser)
    parser.add_argument(
        "--runs",
        metavar="N",
        type=whole_number(_MOST_RUNS),
        help="run the job so often; says how runs differ",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--sensitivity",
        action="store_true",
        help="run it on the best and on the worst GPUs: do its links matter?",
    )
    mode.add_argument(
        "--pair",
        metavar="OTHER|synthetic",
        help="run it beside another profile's job: how much slower it gets",
    )
    parser.add_argument(
        "--iterations-from",
        metavar="REGEX",
        type=value_by(_parse_progress),
        help="what it prints of its progress: one group, a number; so it can be cut, and gets a "
        "curve over its share of the SMs, too",
    )
    parser.add_argument(
        "--slice",
        metavar="TIME",
        type=value_by(parse_duration),
        help="with --iterations-from: so much of each run is enough (default 30s)",
    )
    return parser


def _parse_progress(text: str) -> re.Pattern[bytes]:
    try:
        progress = re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as problem:
        raise UsageError(f"{quoted(text)} is no regular expression: {problem}") from None
    if progress.groups != 1:
        raise UsageError(f"{quoted(text)} has {progress.groups} groups: one is needed, the number")
    return progress


def main(arguments: Sequence[str], command: Sequence[str] | None) -> int:
    """Measure a job, which is the command after the --, and write the result."""
    options, words = make_parser().parse_known_args(arguments)
    given = _read_launch_options(words)
    if not command:
        raise UsageError("no command given", _USAGE)
    path, name = read_target(options)
    _check_launch_options(options, given)
    check_own(path)
    if options.name is not None:
        given["name"] = ("--name", options.name)
        words += ["--name", options.name]
    of_launch = Options(given, os.environ)
    warn = tell_of(of_launch)
    tell = warn if "quiet" in given else partial(say, "info")
    job = MeasuredJob(
        tuple(words),
        tuple(command),
        progress=options.iterations_from,
        slice_s=_SLICE_S if options.slice is None else options.slice,
        grace_s=of_launch.grace,
        runs=options.runs or (1 if options.pair is None else _RUNS_OF_PAIR),
        warn=warn,
        tell=tell,
    )
    outcome = _measure(options, given, job)
    for line in outcome.lines:
        tell(line)
    for line in keep(path, name, outcome.sections, job.command):
        warn(line)
    if outcome.sections:
        tell(f"written to {path}; to see it: gpulaunch profile show {shlex.quote(path)}")
    elif exit_status(outcome.status) == 0:
        warn(f"nothing could be measured, and nothing is written to {path}")
    return exit_like(outcome.status)


def _measure(options: Namespace, given: Given, job: MeasuredJob) -> Outcome:
    from gpulaunch.lab.measure import comparisons  # late: a wheel is built without NVML's package

    if options.pair is not None:
        others = comparisons.find_others(options.pair)
        one, is_shared = _read_exclusive_launch(given, job), _is_on(given, "share")
        return comparisons.measure_pair(job, one, others, shares=is_shared)
    if options.sensitivity:
        return comparisons.measure_sensitivity(job, _read_exclusive_launch(given, job))
    return comparisons.measure_use(job, partial(_read_exclusive_launch, given, job))


def _check_launch_options(options: Namespace, given: Given) -> None:
    """Refuse options of a launch that would spoil the measurement."""
    shared = [given[key][0] for key in ("share", "guest") if _is_on(given, key)]
    if shared and options.pair is None:
        raise UsageError(
            f"{shared[0]}: a GPU's counters are those of all jobs on it", "--pair OTHER takes it"
        )
    is_compared = options.sensitivity or options.pair is not None
    if is_compared and _is_on(given, "wait"):
        raise UsageError("--wait: runs are compared on GPUs that are free now")
    if options.slice is not None and options.iterations_from is None:
        raise UsageError(
            "--slice: only a job that tells of its progress can be cut",
            "add --iterations-from REGEX",
        )


def _read_launch_options(words: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Read the options of a launch among the arguments, which are those that are not ours."""
    given, at = LaunchParser(OPTIONS.values(), "gpulaunch profile measure").read(words)
    if at is not None:
        raise UsageError(f"unknown word {quoted(words[at])}", "write -- before the job's command")
    for name in _NOT_HERE & given.keys():
        raise UsageError(
            f"unknown option {given[name][0]}", "see 'gpulaunch profile measure --help'"
        )
    if "json" in given:
        raise UsageError(
            "--json: stdout belongs to the job", "see 'gpulaunch profile show FILE --json'"
        )
    return dict(given)


def _is_on(given: Given, name: str) -> bool:
    return name in given and given[name][1] != "false"


def _read_exclusive_launch(given: Given, job: MeasuredJob) -> Launch:
    """Read the job's launch on GPUs of its own, to know which it would get."""
    options = Options({**given, "share": ("--exclusive", "false")}, os.environ)
    name, warn = options.name, tell_of(options)
    if not runs_containers(os.path.basename(job.command[0])):
        return read_launch(options, job.command, name=name, warn=warn)
    if module_of(job.command[0]).endswith("docker"):
        return first_launch(options, read_line(job.command), Reporter(options, is_first=False))
    found = read_podman_launch(options, read_command(job.command), warn)
    if not isinstance(found, Launch):
        what = f"'{printable(' '.join(job.command[:3]))}' takes no GPUs here"
        raise UsageError(f"{what}, so there is nothing to measure")
    return found
