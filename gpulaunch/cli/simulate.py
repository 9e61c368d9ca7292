"""`gpulaunch simulate`: replay a file of jobs by the launcher's own decisions."""

import sys
from collections.abc import Callable, Sequence

from gpulaunch.cli.arguments import ArgumentTypeError, Namespace, Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, warn
from gpulaunch.cli.progress import telling
from gpulaunch.cli.replay_report import prepare_report, write_report
from gpulaunch.decide.placement.policies import DEFAULT_POLICY, POLICIES
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.launch.settings import QUEUES, SETTINGS, one_of
from gpulaunch.machine.find import Machine
from gpulaunch.records import replace
from gpulaunch.show.replay_document import replays_document
from gpulaunch.simulate.event_loop import ImpossibleJobError, Rules, simulate
from gpulaunch.simulate.generate import GENERATORS
from gpulaunch.simulate.measures import Replay, measure
from gpulaunch.simulate.read_simulation import read_trace
from gpulaunch.simulate.simulator import SIMULATED_MODELS, generated_trace, simulated_machine
from gpulaunch.simulate.time_model import MODELS
from gpulaunch.typing import Any

_MOST_MACHINES = 100_000
_MOST_JOBS = 200_000


def main(arguments: Sequence[str]) -> int:
    """Replay jobs as the command line says."""
    options = _parser().parse_args(arguments)
    _check_together(options)
    if options.generate:
        print(generated_trace(options.generate, options.seed or 0, options.count), end="")
        return 0
    if options.jobs is None:
        raise UsageError("no jobs given", "--jobs FILE, or --generate to make some")
    replays, page = _run_replays(
        options, simulated_machine(options.topology, options.cluster, warn)
    )
    document = replays_document(replays)
    if options.json:
        print_json(document)
    else:
        from gpulaunch.show.replay_table import replays_table
        from gpulaunch.show.terminal import draw

        draw(replays_table(document), sys.stdout)
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


def _parser() -> Parser:
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
        help="the jobs: TOML, JSON lines or MAPA's columns (docs/simulate.md)",
    )
    parser.add_argument(
        "--policy",
        metavar="P,...",
        type=_option_parser(SETTINGS["policy"], each=True),
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
    trace = read_trace(options.jobs, machine, warn)
    jobs = trace.jobs
    if options.at_once:
        jobs = tuple(replace(job, arrival_s=0.0) for job in jobs)
    if options.report is not None:
        prepare_report(options.report)
    with telling(len(options.policy), len(jobs)) as progress:
        replays = []
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


def _make_rules(options: Namespace, policy: str) -> Rules:
    return Rules(
        policy=policy,
        model=options.bandwidth_model or POLICIES[policy].bandwidth_model,
        machines=options.machines,
        queue=options.queue,
        time_models=tuple(name for name in options.time_model if name != "fixed"),
        yardstick=options.measure_by,
    )
