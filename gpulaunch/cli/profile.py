"""`gpulaunch profile`: measure a job, or read its source or logs, for its profile."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from gpulaunch.cli import profile_reading
from gpulaunch.cli.launch import tell_of
from gpulaunch.cli.options import ROWS, Option, launch_options, read_line
from gpulaunch.cli.output import prepare_stdout, say
from gpulaunch.containers.engines import engine_of_program, runs_containers
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.launch.given import Given
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.read_launch import read_grace, read_launch
from gpulaunch.launch.settings import Settings
from gpulaunch.measure.foreground import Slice
from gpulaunch.measure.measured_launch import MeasuredJob, Outcome
from gpulaunch.measure.plain_runs import measure_use
from gpulaunch.measure.update_profile import check_own, keep
from gpulaunch.process.job import exit_like, exit_status
from gpulaunch.profiles.profile import is_askable
from gpulaunch.profiles.profile_file import own_profile_file
from gpulaunch.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulaunch.cli.arguments import Parser
    from gpulaunch.cli.options import Row

SLICE_S = 30.0
MOST_RUNS = 100

_ROWS: "tuple[Row, ...]" = (
    (
        ("-o", "--output"),
        "output",
        "FILE",
        "write or change this profile (default: your own of that --name)",
    ),
    (
        ("--name",),
        "name",
        "TEXT",
        "what the profile and the job are called (default: that of FILE)",
    ),
    (
        ("--runs",),
        "runs",
        "N",
        "run the job so often; says how runs differ, and their 95th percentiles",
    ),
    (
        ("--sensitivity",),
        "sensitivity",
        None,
        "run it on the best and on the worst GPUs: do its links matter?",
    ),
    (
        ("--sweep",),
        "sweep",
        "PERCENT,...",
        "run it with these shares of the SMs under MPS: how many it needs",
    ),
    (
        ("--pair",),
        "pair",
        "OTHER|synthetic",
        "run it beside another profile's job: how much slower it gets",
    ),
    (
        ("--iterations-from",),
        "iterations_from",
        "REGEX",
        "what it prints of its progress: one group, a number",
    ),
    (
        ("--slice",),
        "slice",
        "TIME",
        "with --iterations-from: so much of each run is enough (default 30s)",
    ),
    (("--scan",), "scan", "PATH", "read its source, a file or a folder, for who talks to whom"),
    (
        ("--scan-nccl-log",),
        "scan_nccl_log",
        "FILE",
        "read the log of NCCL_DEBUG=INFO, best with NCCL_DEBUG_SUBSYS=INIT,COLL,GRAPH",
    ),
    (("--import-ncu",), "import_ncu", "FILE", "read counters from Nsight Compute's CSV"),
)
PROFILE_OPTIONS = [Option(*row) for row in _ROWS]
_MODES = ("sensitivity", "sweep", "pair", "scan", "scan_nccl_log", "import_ncu")
_READING = ("scan", "scan_nccl_log", "import_ncu")
_MEASURING = (*_MODES, "runs", "iterations_from", "slice")
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?|pypy\d*|torchrun|accelerate|deepspeed")
_NOT_HERE = {"dry_run", "explain", "json_status_fd", "record", "record_to", "version", "name"}


def main(arguments: Sequence[str], command: Sequence[str] | None) -> int:
    """Measure a job, or read its source, a log or a profiler's file.

    Args:
        arguments: arguments before the --.
        command: argv of the job; None if there is no --.
    """
    launches = (row for row in ROWS if row[1] not in _NOT_HERE)
    line = read_line(arguments, (*_ROWS, *launches))
    given, at = line.given, line.word_at
    if "help" in given:
        prepare_stdout()
        make_parser().print_help()
        return 0
    if at is not None:
        raise UsageError(
            f"unknown word {quoted(arguments[at])}", "write -- before the job's command"
        )
    mode = _find_mode(given)
    if mode in _READING:
        if command is not None:
            raise UsageError(f"{given[mode].option} runs no command, but -- is given")
        idle = [
            value.option
            for name, value in given.items()
            if name not in (mode, "output", "name", "json", "quiet")
        ]
        if idle:
            raise UsageError(f"{given[mode].option} runs nothing, so {idle[0]} has no effect")
        wanted = target(given) if given.keys() & {"output", "name"} else None
        return profile_reading.main(mode, given, wanted)
    if not command:
        raise UsageError(
            "no command given", "gpulaunch profile [OPTIONS] -o FILE -- COMMAND [ARG...]"
        )
    script = _find_script(command)
    if script and not given.keys() & {"output", "name", *_MEASURING}:
        return _propose(given, script, command)
    return _run(mode, given, command)


def _find_script(command: Sequence[str]) -> str | None:
    """Return the Python file that a command runs; None if it is not known to run one."""
    for at, word in enumerate(command):
        if at and not any(_PYTHON.fullmatch(os.path.basename(one)) for one in command[:at]):
            continue
        if word.endswith(".py") and os.path.isfile(word):
            return word
    return None


def _propose(given: Mapping[str, Given], script: str, command: Sequence[str]) -> int:
    """Scan the script that a command would run, and say how to make a profile of it."""
    status = profile_reading.main("scan", {**given, "scan": Given("--scan", script)}, None)
    if "quiet" not in given:
        path = shlex.quote(f"{os.path.basename(script).removesuffix('.py')}.toml")
        keep_it = f"gpulaunch profile --scan {shlex.quote(script)} -o {path}"
        refused = {"json", "topology", *_sharing(given)}
        kept = {name: value for name, value in given.items() if name not in refused}
        options = "".join(f"{shlex.quote(word)} " for word in _launch_options(kept))
        measure_it = f"gpulaunch profile {options}-o {path} -- {shlex.join(command)}"
        say("info", printable(f"nothing was run; to keep this: {keep_it}"))
        say("info", printable(f"to measure the job: {measure_it}"))
    return status


def _find_mode(given: Mapping[str, Given]) -> str:
    """Return the mode that is asked for; "use" if none is."""
    modes = [name for name in _MODES if name in given]
    if len(modes) > 1:
        shown = " and ".join(given[name].option for name in modes)
        raise UsageError(
            f"{shown}: one at a time", "each of them changes its own part of the same -o FILE"
        )
    return modes[0] if modes else "use"


def _run(mode: str, given: Mapping[str, Given], command: Sequence[str]) -> int:
    """Measure a job, and write the result."""
    if "json" in given:
        raise UsageError(
            "--json: stdout belongs to the job", "see 'gpulaunch profiles show FILE --json'"
        )
    wanted = target(given)
    part, warn, tell = _read_slice(given), tell_of(given), _printer_of(given)
    shared = _sharing(given)
    if shared and mode != "pair":
        raise UsageError(
            f"{given[shared[0]].option}: a GPU's counters are those of all jobs on it",
            "--pair OTHER takes it",
        )
    if _is_on(given, "wait") and mode != "use":
        raise UsageError(f"--wait: {given[mode].option} measures on GPUs that are free now")
    check_own(wanted.path)
    job = MeasuredJob(
        tuple(_launch_options(given)), tuple(command), part, read_grace(Settings(given, os.environ))
    )
    outcome = _measure_by_mode(mode, given, job)
    for line in outcome.lines:
        tell(line)
    for line in keep(wanted.path, wanted.name, outcome, job.command):
        warn(line)
    if outcome.sections:
        shown = shlex.quote(wanted.path)
        tell(f"written to {wanted.path}; to see it: gpulaunch profiles show {shown}")
    elif exit_status(outcome.status) == 0:
        warn(f"nothing could be measured, and nothing is written to {wanted.path}")
    return exit_like(outcome.status)


def _sharing(given: Mapping[str, Given]) -> list[str]:
    """Return the names of the options that make a launch share its GPUs."""
    return [name for name in ("share", "guest") if _is_on(given, name)]


def _is_on(given: Mapping[str, Given], name: str) -> bool:
    """Return whether a switch of a launch is set on this command line."""
    return name in given and given[name].text != "false"


def _launch_options(given: Mapping[str, Given]) -> Iterator[str]:
    """Yield the options that `profile` does not define, for the launch; the last duplicate wins."""
    ours = {option.name for option in PROFILE_OPTIONS} - {"name"}
    takes = {
        flag: option.metavar
        for option in (*launch_options(), *PROFILE_OPTIONS)
        for flag in option.flags
    }
    for key, value in given.items():
        if key not in ours:
            if not takes[value.option] and value.text not in ("true", "false"):
                yield f"{value.option}={value.text}"
                continue
            texts = (*value.before, value.text) if takes[value.option] else (None,)
            for text in texts:
                yield value.option
                if text is not None:
                    yield text


def target(given: Mapping[str, Given]) -> profile_reading.Target:
    """Return the profile to be written: -o FILE, else the user's own of --name.

    UsageError: neither option is given.
        UsageError: neither is given.
    """
    if "output" not in given and "name" not in given:
        raise UsageError(
            "nobody says where the profile is to go", "-o FILE, or --name NAME for one of your own"
        )
    path = given["output"].text if "output" in given else own_profile_file(given["name"].text)
    if path == "-":
        raise UsageError("-o -: stdout belongs to the job")
    name = (
        given["name"].text if "name" in given else re.sub(r"\.toml$", "", path.rpartition("/")[2])
    )
    if path and not is_askable(name):
        raise UsageError(f"{quoted(name)} is no name for a profile", "--name gives it another")
    return profile_reading.Target(path, name)


def _measure_by_mode(mode: str, given: Mapping[str, Given], job: MeasuredJob) -> Outcome:
    warn, tell = tell_of(given), _printer_of(given)
    if mode == "use":
        return measure_use(job, _read_runs(given, 1), tell)
    if mode == "sensitivity":
        from gpulaunch.measure.sensitivity import measure_sensitivity

        return measure_sensitivity(
            job, _read_exclusive_launch(given, job), _read_runs(given, 1), warn, tell
        )
    if mode == "sweep":
        from gpulaunch.measure.sweep import measure_sweep

        return measure_sweep(
            job, _read_exclusive_launch(given, job), _read_shares(given), warn, tell
        )
    from gpulaunch.measure.pair import RUNS, find_others, measure_pair

    others = find_others(given["pair"].text)
    shares = _is_on(given, "share")
    return measure_pair(
        job,
        _read_exclusive_launch(given, job),
        others,
        _read_runs(given, RUNS),
        warn,
        tell,
        shares=shares,
    )


def _read_exclusive_launch(given: Mapping[str, Given], job: MeasuredJob) -> Launch:
    """Read the job's launch on GPUs of its own, to know which it would get."""
    given = {**given, "share": Given("--exclusive", "false")}
    name, warn = given["name"].text if "name" in given else None, tell_of(given)
    if not runs_containers(os.path.basename(job.command[0])):
        return read_launch(Settings(given, os.environ), job.command, name=name, warn=warn)
    from gpulaunch.containers.command import read_command
    from gpulaunch.launch.read_container import read_container_launch

    engine = engine_of_program(job.command[0])
    command = read_command(job.command, engine.grammar)
    found = read_container_launch(given, engine, command, name=name, warn=warn)
    if not isinstance(found, Launch):
        raise UsageError(
            f"'{printable(' '.join(job.command[:3]))}' takes no GPUs here, so there is nothing to "
            "measure"
        )
    return found


def _read_shares(given: Mapping[str, Given]) -> list[int]:
    """Return the shares of --sweep, ascending, without duplicates."""
    text = given["sweep"].text
    words = [word.strip().removesuffix("%") for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and 1 <= int(word) <= 100 for word in words):
        raise UsageError(
            f"--sweep: {quoted(text)} is no list of shares such as 10,25,50,100, from 1 to 100 %"
        )
    shares = sorted(set(map(int, words)))
    if len(shares) < 2:
        raise UsageError(f"--sweep: {quoted(text)} is 1 share: at least 2 make a curve")
    return shares


def _printer_of(given: Mapping[str, Given]) -> Callable[[str], None]:
    """Return the function that prints progress and results of measuring."""
    return tell_of(given) if "quiet" in given else partial(say, "info")


def _read_runs(given: Mapping[str, Given], usual: int) -> int:
    if "runs" not in given:
        return usual
    text = given["runs"].text
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= MOST_RUNS:
        raise UsageError(f"--runs: {quoted(text)} is no number from 1 to {MOST_RUNS}")
    return int(text)


def _read_slice(given: Mapping[str, Given]) -> Slice | None:
    if "iterations_from" not in given:
        if "slice" in given:
            raise UsageError(
                "--slice: only a job that tells of its progress can be cut",
                "add --iterations-from REGEX",
            )
        return None
    text = given["iterations_from"].text
    try:
        progress = re.compile(text.encode("utf-8", "surrogateescape"))
    except re.error as problem:
        raise UsageError(
            f"--iterations-from: {quoted(text)} is no regular expression: {problem}"
        ) from None
    if progress.groups != 1:
        raise UsageError(
            f"--iterations-from: {quoted(text)} has {progress.groups} groups: one is needed, the "
            "number"
        )
    return Slice(progress, _read_duration(given["slice"]) if "slice" in given else SLICE_S)


def _read_duration(value: Given) -> float:
    from gpulaunch.files.duration import parse_duration

    try:
        return parse_duration(value.text)
    except ValueError:
        raise UsageError(
            f"{value.option}: {quoted(value.text)} is no length of time such as 90s or 10m"
        ) from None


def make_parser() -> "Parser":
    """Return the parser that prints the help; read_line reads the command line."""
    from gpulaunch.cli.arguments import Parser

    parser = Parser(
        "gpulaunch profile",
        "Measure a job, or read its source, for its profile; options of a launch apply, see "
        "'gpulaunch --help'.",
        "gpulaunch profile [OPTIONS] -o FILE -- COMMAND [ARG...]\n"
        "       gpulaunch profile -- python SCRIPT.py [ARG...]: scan it, run nothing\n"
        "       gpulaunch profile --scan PATH | --scan-nccl-log FILE | --import-ncu FILE [--json] "
        "[-o FILE]",
    )
    for option in PROFILE_OPTIONS:
        if option.metavar is None:
            parser.add_argument(*option.flags, action="store_true", help=option.help)
        else:
            parser.add_argument(*option.flags, metavar=option.metavar, help=option.help)
    return parser
