"""`gpulaunch simulate`: replay a file of jobs by the launcher's own decisions."""

import sys
from collections.abc import Callable, Sequence

from gpulaunch.batch.job_file import read_jobs
from gpulaunch.cli.arguments import ArgumentTypeError, Namespace, Parser, add_json, add_topology
from gpulaunch.cli.history import add_since, launches_here, past_launches
from gpulaunch.cli.output import print_json, warn
from gpulaunch.cli.progress import telling
from gpulaunch.cli.replay_report import prepare_report, write_report
from gpulaunch.decide.placement.policies import DEFAULT_POLICY, POLICIES
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.history.line import has_common
from gpulaunch.launch.options import OPTIONS, QUEUES, one_of
from gpulaunch.machine.find import Machine
from gpulaunch.records import Record, replace
from gpulaunch.show.replay_document import replays_document
from gpulaunch.simulate.event_loop import ImpossibleJobError, Rules, simulate
from gpulaunch.simulate.generate import GENERATORS
from gpulaunch.simulate.machines import Remembered
from gpulaunch.simulate.measures import Replay, measure
from gpulaunch.simulate.past_trace import replayable, rows_of, rules_of_the_past, stays_of
from gpulaunch.simulate.read_simulation import Trace, read_trace, trace_of
from gpulaunch.simulate.simulated_job import SimulatedJob
from gpulaunch.simulate.simulator import SIMULATED_MODELS, generated_trace, simulated_machine
from gpulaunch.simulate.time_model import MODELS, TimeModel
from gpulaunch.typing import Any

_MOST_MACHINES = 100_000
_MOST_JOBS = 200_000


def main(arguments: Sequence[str]) -> int:
    """Replay jobs as the command line says."""
    options = make_parser().parse_args(arguments)
    _check_together(options)
    if options.generate:
        print(generated_trace(options.generate, options.seed or 0, options.count), end="")
        return 0
    if options.jobs is None and not options.history:
        raise UsageError(
            "no jobs given", "--jobs FILE, --history for those that ran, or --generate to make some"
        )
    replays, page = _run_replays(
        options, simulated_machine(options.topology, options.cluster, warn)
    )
    document = replays_document(replays)
    if options.history:
        from gpulaunch.show.gain import gain_document, gain_sentence  # late: for this only

        document["gain"] = gain_document(document)
    if options.json:
        print_json(document)
    else:
        from gpulaunch.show.replay_table import replays_table
        from gpulaunch.show.terminal import draw

        draw(replays_table(document), sys.stdout)
        if options.history:
            print(f"\n{gain_sentence(document['gain'])}")
        if page:
            print(f"\nthe report: {printable(page)}")
    return 0


def _check_together(options: Namespace) -> None:
    """Refuse options that would have no effect beside others."""
    for other in ("jobs", "report", "json"):
        if options.generate and getattr(options, other):
            raise UsageError(f"--{other} has no effect with --generate")
    if "fixed" in options.time_model and len(options.time_model) > 1:
        raise UsageError("--time-model: fixed is none of the others")
    if options.history:
        for other in ("jobs", "generate", "cluster", "at_once"):
            if getattr(options, other):
                raise UsageError(f"--{other.replace('_', '-')} has no effect with --history")
        if options.machines > 1:
            raise UsageError("--machines: the history is that of one machine")
    elif options.since is not None:
        raise UsageError("--since has no effect without --history")


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch simulate",
        "Replay jobs on described machines, by the launcher's own decisions and queue.",
    )
    add_topology(parser)
    parser.add_argument(
        "--cluster", metavar="NAME|FILE", help="a described cluster instead, all nodes of it"
    )
    parser.add_argument(
        "--jobs",
        metavar="FILE",
        help="the jobs: TOML, JSON lines or MAPA's columns (docs/guides/simulate.md)",
    )
    parser.add_argument(
        "--history",
        action="store_true",
        help="the launches in this machine's history instead, beside what was; of those on a "
        "described machine with --topology, if there are any (docs/guides/history.md)",
    )
    add_since(parser)
    parser.add_argument(
        "--policy",
        metavar="P,...",
        type=_option_parser(OPTIONS["policy"].parse, each=True),
        default=[DEFAULT_POLICY],
        help=f"one run for each (default: {DEFAULT_POLICY})",
    )
    parser.add_argument(
        "--queue",
        choices=QUEUES,
        default=QUEUES[0],
        help="whether jobs pass others that they do not delay (default: backfill)",
    )
    parser.add_argument(
        "--machines",
        metavar="N",
        type=_number_parser(_MOST_MACHINES),
        default=1,
        help="so many alike",
    )
    parser.add_argument(
        "--time-model",
        metavar="M,...",
        type=_option_parser(one_of(MODELS, "time model"), each=True),
        default=["bandwidth"],
        help="what makes jobs slower: fixed (nothing), bandwidth (default), interference, sharing",
    )
    parser.add_argument(
        "--bandwidth-model",
        choices=SIMULATED_MODELS,
        help=_bandwidth_model_help(),
    )
    parser.add_argument(
        "--measure-by",
        choices=SIMULATED_MODELS,
        default="cut",
        help="what results are told in (default: cut)",
    )
    parser.add_argument(
        "--at-once",
        action="store_true",
        help="all jobs come at the beginning, in the order of the file",
    )
    parser.add_argument(
        "--generate", choices=sorted(GENERATORS), help="print a file of random jobs instead"
    )
    parser.add_argument(
        "--count",
        metavar="N",
        type=_number_parser(_MOST_JOBS),
        default=300,
        help="how many of them",
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, help="of these; told in the results otherwise"
    )
    parser.add_argument(
        "--report", metavar="DIR", help="also write a page with pictures, index.html, into DIR"
    )
    add_json(parser)
    return parser


def _bandwidth_model_help() -> str:
    others = [
        f"{name.replace('_', '-')}: {policy.bandwidth_model}"
        for name, policy in POLICIES.items()
        if policy.bandwidth_model != POLICIES[DEFAULT_POLICY].bandwidth_model
    ]
    defaults = [f"default: {POLICIES[DEFAULT_POLICY].bandwidth_model}", *others]
    return f"what policies go by ({'; '.join(defaults)})"


def _option_parser(parse: Callable[[str], Any], *, each: bool = False) -> Callable[[str], Any]:
    """Return a parser of an option's text that reads it like a setting.

    Args:
        parse: parses one value.
        each: whether the text is a list of values, which is freed of duplicates.
    """

    def read(text: str) -> Any:  # noqa: ANN401
        try:
            return list(dict.fromkeys(map(parse, text.split(",")))) if each else parse(text)
        except UsageError as problem:
            raise ArgumentTypeError(
                ": ".join(filter(None, (problem.message, problem.hint)))
            ) from None

    return read


def _number_parser(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= most):
            raise ArgumentTypeError(f"{quoted(text)} is no whole number from 1 to {most}")
        return int(text)

    return parse


def _run_replays(options: Namespace, machine: Machine) -> tuple[list[Replay], str | None]:
    """Return all runs, and the path of their report if one is wanted."""
    past = _read_past(options, machine) if options.history else None
    trace = past.trace if past else read_trace(options.jobs, machine, warn)
    jobs = past.jobs if past else trace.jobs
    if options.at_once:
        jobs = [replace(job, arrival_s=0.0) for job in jobs]
    if options.report is not None:
        prepare_report(options.report)
    with telling(len(options.policy), len(jobs)) as progress:
        replays = [past.replay] if past and past.replay else []
        for policy in options.policy:
            rules = _make_rules(options, policy)
            try:
                stays = simulate(
                    machine.topology, jobs, rules, progress.watch(policy.replace("_", "-"))
                )
            except ImpossibleJobError as problem:
                raise trace.wheres[problem.job_id].error(None, problem.message) from None
            replays.append(measure(machine.topology, stays, rules, options.seed))
        if options.report is None:
            return replays, None
        progress.note("drawing the report")
        return replays, write_report(options.report, replays)


class _Past(Record):
    """The history of a machine.

    Attributes:
        trace: the jobs that ran, with the run times that they had.
        jobs: the same with the run times to replay.
        replay: how they ran; None if that was on another machine.
    """

    trace: Trace
    jobs: Sequence[SimulatedJob]
    replay: Replay | None


def _read_past(options: Namespace, machine: Machine) -> _Past:
    """Return the jobs of the history, and measures of what was.

    Raises:
        UsageError: there are none.
    """
    everyone = has_common()
    found = past_launches(options.topology, options.since, everyone=everyone)
    same = bool(found) or machine.key is None
    if not found and machine.key is not None:
        found = launches_here(options.since, everyone=everyone)
    launches = replayable(found, machine.topology)
    if not launches:
        raise UsageError(
            f"the history has no launch that can be replayed on {machine.topology.name}",
            "see 'gpulaunch history'",
        )
    if len(launches) < len(found):
        warn(
            f"{len(found) - len(launches)} of {len(found)} launches are left out: those without "
            "an end, that shared their GPUs, or that are too large"
        )
    trace = trace_of(read_jobs({"job": rows_of(launches)}), machine, warn)
    rules = rules_of_the_past(_make_rules(options, options.policy[0]))
    times = TimeModel(rules.time_models, Remembered(machine.topology).yardstick(rules.yardstick))
    stays = stays_of(launches, trace.jobs, machine.topology, times) if same else None
    if stays is None:
        return _Past(trace, trace.jobs, None)
    jobs = [stay.job for stay in sorted(stays, key=lambda stay: stay.job.id)]
    return _Past(trace, jobs, measure(machine.topology, stays, rules, None))


def _make_rules(options: Namespace, policy: str) -> Rules:
    return Rules(
        policy=policy,
        model=options.bandwidth_model or POLICIES[policy].bandwidth_model,
        machines=options.machines,
        queue=options.queue,
        time_models=tuple(name for name in options.time_model if name != "fixed"),
        yardstick=options.measure_by,
    )
