"""`gpulaunch simulate`: replay a file of jobs by the launcher's own decisions."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gpulaunch.batch.job_file import load_jobs
from gpulaunch.cli.arguments import ArgumentTypeError, Namespace, Parser, add_json, add_topology
from gpulaunch.cli.output import print_json, warn
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.files.write import document_text, make_directory, write_bytes
from gpulaunch.launch.options import OPTIONS, QUEUES, one_of
from gpulaunch.launch.surroundings import shown_machine
from gpulaunch.machine.find import Machine
from gpulaunch.placement.policies import DEFAULT_POLICY, POLICIES
from gpulaunch.simulate.event_loop import Rules, simulate
from gpulaunch.simulate.generate import GENERATORS
from gpulaunch.simulate.measures import Replay, measure
from gpulaunch.simulate.read_simulation import read_trace
from gpulaunch.simulate.simulator import SIMULATED_MODELS, generate_trace
from gpulaunch.simulate.time_model import MODELS

_MOST_MACHINES = 100_000
_MOST_JOBS = 200_000


def main(arguments: Sequence[str]) -> int:
    """Replay jobs as the command line says."""
    options = make_parser().parse_args(arguments)
    if options.generate:
        if options.json or options.report is not None:
            raise UsageError("--generate prints a file of jobs: --json and --report go with --jobs")
        trace = generate_trace(options.generate, options.seed or 0, options.count)
        print(document_text(trace), end="")
        return 0
    machine = shown_machine(options.topology, warn)
    if options.report is not None:  # what cannot be is said before a long run
        from gpulaunch.show.report import load_matplotlib, report_files

        load_matplotlib()
        make_directory(options.report)
    replays = _run_replays(options, machine)
    if options.report is not None:
        for name, content in report_files(replays).items():
            write_bytes(os.path.join(options.report, name), content)
    from gpulaunch.cli.screen import draw
    from gpulaunch.show.replay import replays_document, replays_table

    document = replays_document(replays)
    if options.json:
        print_json(document)
        return 0
    draw(replays_table(document), sys.stdout)
    if options.report is not None:
        print(f"\nthe report: {printable(os.path.join(options.report, 'index.html'))}")
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch simulate",
        "Replay jobs on described machines, by the launcher's own decisions and queue.",
    )
    add_topology(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--jobs",
        metavar="FILE",
        help="the jobs: TOML, JSON lines or MAPA's columns (docs/guides/simulate.md)",
    )
    source.add_argument(
        "--generate", choices=sorted(GENERATORS), help="print a file of random jobs instead"
    )
    parser.add_argument(
        "--policy",
        metavar="P,...",
        type=_list_parser(OPTIONS["policy"].parse),
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
        type=_list_parser(one_of(MODELS, "time model")),
        default=["bandwidth"],
        help="what makes jobs slower: fixed (nothing), bandwidth (default), interference, sharing",
    )
    parser.add_argument(
        "--bandwidth-model",
        choices=SIMULATED_MODELS,
        help="what policies go by (default: cut; preserve-paper: mapa)",
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


def _list_parser(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a parser of values separated by commas, which leaves out repeated ones.

    Args:
        parse: parses one value, as a setting's.
    """

    def read(text: str) -> list[Any]:
        try:
            return list(dict.fromkeys(map(parse, text.split(","))))
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


def _run_replays(options: Namespace, machine: Machine) -> list[Replay]:
    jobs = read_trace(load_jobs(options.jobs), machine, warn).jobs
    replays = []
    for policy in options.policy:
        rules = Rules(
            policy=policy,
            model=options.bandwidth_model or POLICIES[policy].bandwidth_model,
            machines=options.machines,
            queue=options.queue,
            time_models=tuple(name for name in options.time_model if name != "fixed"),
        )
        try:
            stays = simulate(machine.topology, jobs, rules)
        except UsageError as problem:
            message = f"{printable(options.jobs)}: {problem.message}"
            raise UsageError(message, problem.hint) from None
        replays.append(measure(machine.topology, stays, rules, options.seed))
    return replays
