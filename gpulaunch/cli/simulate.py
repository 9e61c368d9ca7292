"""`gpulaunch simulate`: replay a file of jobs by the launcher's own decisions."""

import sys
from collections.abc import Callable, Iterable, Sequence

from gpulaunch.cli.arguments import (
    Namespace,
    Parser,
    add_json,
    add_topology,
    value_by,
    whole_number,
)
from gpulaunch.cli.output import Document, print_json, rounded, warn
from gpulaunch.cli.screen import Grid, Parts, Text, draw, figure
from gpulaunch.errors import UsageError, counted, printable
from gpulaunch.files.units import format_duration
from gpulaunch.files.write import document_text
from gpulaunch.lab.simulate.generate import GENERATORS
from gpulaunch.lab.simulate.measures import Replay, ReplayedJob, quartiles
from gpulaunch.lab.simulate.simulator import SIMULATED_MODELS, Simulator, generate_trace
from gpulaunch.lab.simulate.time_model import MODELS
from gpulaunch.launch.options import OPTIONS, QUEUES, one_of
from gpulaunch.placement.policies import DEFAULT_POLICY

_MOST_MACHINES = 100_000
_MOST_JOBS = 200_000

_QUARTILES = ("min", "p25", "p50", "p75", "max", "mean")
_KEY = (  # meaning of the columns
    "in use: GPU time that was held; slower: mean run time over that alone on the best GPUs; "
    "SLO: jobs that ran with less than they need; no ring: none over NVLinks alone"
)


def main(arguments: Sequence[str]) -> int:
    """Replay jobs as the command line says."""
    options = make_parser().parse_args(arguments)
    if options.generate:
        if options.json:
            raise UsageError("--generate prints a file of jobs: --json goes with --jobs")
        trace = generate_trace(options.generate, options.seed or 0, options.count)
        print(document_text(trace), end="")
        return 0
    runs = _run_documents(options)
    if options.json:
        print_json({"runs": runs})
    else:
        _draw_tables(runs)
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
        help="the jobs, in TOML or JSON lines (docs/guides/simulate.md)",
    )
    source.add_argument(
        "--generate", choices=sorted(GENERATORS), help="print a file of random jobs instead"
    )
    parser.add_argument(
        "--policy",
        metavar="P,...",
        type=_each(OPTIONS["policy"].parse),
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
        type=whole_number(_MOST_MACHINES),
        default=1,
        help="so many alike",
    )
    parser.add_argument(
        "--time-model",
        metavar="M,...",
        type=_each(one_of(MODELS, "time model")),
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
        type=whole_number(_MOST_JOBS),
        default=300,
        help="how many of them",
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, help="of these; told in the results otherwise"
    )
    add_json(parser)
    return parser


def _each(parse: Callable[[str], str]) -> Callable[[str], list[str]]:
    """Return what reads values separated by commas, and leaves out repeated ones."""

    def read(text: str) -> list[str]:
        return list(dict.fromkeys(map(parse, text.split(","))))

    return value_by(read)


def _run_documents(options: Namespace) -> list[Document]:
    simulator = Simulator(options.topology, warn=warn)
    trace = simulator.read_trace(options.jobs)
    documents = []
    for policy in options.policy:
        try:
            replay = simulator.replay(
                trace,
                policy,
                machines=options.machines,
                queue=options.queue,
                time_models=[name for name in options.time_model if name != "fixed"],
                bandwidth_model=options.bandwidth_model,
            )
        except UsageError as problem:
            message = f"{printable(options.jobs)}: {problem.message}"
            raise UsageError(message, problem.hint) from None
        documents.append(_run_document(replay, options.seed))
    return documents


def _run_document(replay: Replay, seed: int | None) -> Document:
    rules, sensitive = replay.rules, [one for one in replay.jobs if one.sensitive]
    return {
        "policy": _shown(rules.policy),
        "topology": replay.topology,
        "machines": rules.machines,
        "seed": seed,
        "queue": rules.queue,
        "bandwidth_model": rules.model,
        "time_models": list(rules.time_models) or ["fixed"],
        "makespan_s": rounded(replay.makespan_s),
        "throughput_jobs_per_hour": rounded(replay.throughput_jobs_per_hour),
        "utilization": rounded(replay.utilization),
        "slo_violations": replay.violations,
        "wait_s": _quartiles(one.wait_s for one in replay.jobs),
        "turnaround_s": _quartiles(one.turnaround_s for one in replay.jobs),
        "slowdown": _quartiles(one.slowdown for one in replay.jobs),
        "sensitive": {
            "jobs": len(sensitive),
            "effective_bandwidth_gb_per_s": _quartiles(map(_bandwidth, sensitive)),
            "slowdown": _quartiles(one.slowdown for one in sensitive),
            "without_nvlink_ring": sum(not one.nvlink_ring for one in sensitive),
        },
        "jobs": [_job_document(one) for one in replay.jobs],
    }


def _shown(policy: str) -> str:
    return policy.replace("_", "-")


def _bandwidth(one: ReplayedJob) -> float:
    return one.effective_bandwidth or 0.0


def _quartiles(values: Iterable[float]) -> Document | None:
    found = quartiles(values)
    return found and {name: rounded(value) for name, value in found.items()}


def _job_document(one: ReplayedJob) -> Document:
    return {
        "id": one.id,
        "name": one.name,
        "machine": one.machine,
        "gpus": list(one.gpus),
        "sensitive": one.sensitive,
        "submitted_s": rounded(one.arrival_s),
        "started_s": rounded(one.started_s),
        "ended_s": rounded(one.ended_s),
        "effective_bandwidth_gb_per_s": rounded(one.effective_bandwidth),
        "aggregate_bandwidth_gb_per_s": rounded(one.aggregate_bandwidth),
        "allocation_quality": rounded(one.quality),
        "slowdown": rounded(one.slowdown),
        "utility": rounded(one.utility),
        "violates_slo": one.violates,
    }


def _draw_tables(runs: Sequence[Document]) -> None:
    first = runs[0]
    machines = printable(first["topology"])
    if first["machines"] > 1:
        machines = f"{first['machines']} x {machines}"
    jobs, few = counted(len(first["jobs"]), "job"), first["sensitive"]["jobs"]
    title = f"{jobs} ({few} bandwidth-sensitive) on {machines}, {first['queue']}"
    how = f"run times: {' and '.join(first['time_models'])}; bandwidths by the cut model"
    columns = ("makespan", "jobs/h", "in use", "wait", "longest", "slower", "SLO")
    everyone = Grid("policy", *columns, right=columns)
    of_few = (*_QUARTILES, "no ring", "slower")
    sensitive = Grid("policy", *of_few, right=of_few)
    for run in runs:
        everyone.add_row(
            run["policy"],
            format_duration(round(run["makespan_s"])),
            figure(run["throughput_jobs_per_hour"]),
            f"{run['utilization']:.1%}",
            format_duration(round(run["wait_s"]["mean"])),
            format_duration(round(run["wait_s"]["max"])),
            f"{run['slowdown']['mean'] - 1:.1%}",
            str(run["slo_violations"]),
        )
        found = run["sensitive"]
        if few:
            bandwidth = found["effective_bandwidth_gb_per_s"]
            sensitive.add_row(
                run["policy"],
                *(f"{bandwidth[name]:.1f}" for name in _QUARTILES),
                f"{found['without_nvlink_ring'] / few:.1%}",
                f"{found['slowdown']['mean'] - 1:.1%}",
            )
    parts = (
        Text(title, "bold"),
        Text(how, "dim"),
        Text(),
        everyone,
        Text(),
        Text("bandwidth-sensitive jobs: effective bandwidth, GB/s", "bold"),
        sensitive if few else Text("none", "dim"),
        Text(),
        Text(_KEY, "dim"),
    )
    draw(Parts(*parts), sys.stdout)
