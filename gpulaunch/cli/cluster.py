"""`gpulaunch cluster map|run`: past one machine, which rank on which node, core and GPU."""

import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from shutil import rmtree

from gpulaunch.cli.arguments import BooleanOptionalAction, Namespace, Parser, add_json, add_topology
from gpulaunch.cli.help import word_parser
from gpulaunch.cli.output import Document, prepare_stdout, print_json, warn
from gpulaunch.cli.screen import Grid, Parts, Text, cut, draw, figure
from gpulaunch.errors import (
    UsageError,
    call_failed,
    counted,
    printable,
)
from gpulaunch.files.document import make_own, own_directory
from gpulaunch.files.write import make_directory, write_text
from gpulaunch.lab.cluster.allocation import (
    ask_cluster,
    describe_this_node,
    find_allocation,
    report_lines,
    within_reach,
)
from gpulaunch.lab.cluster.cluster import Cluster
from gpulaunch.lab.cluster.cluster_file import load_cluster, read_traffic
from gpulaunch.lab.cluster.mapping import (
    ENGINE_FILES,
    Judgement,
    LinkLoad,
    MappingProblem,
    RankMapping,
    judge,
)
from gpulaunch.lab.cluster.policies import DEFAULT_MAPPING_POLICY, MAPPING_POLICIES
from gpulaunch.launch.options import one_of
from gpulaunch.launch.surroundings import read_surroundings, shown_settings
from gpulaunch.process.system import execute, own_command
from gpulaunch.records import replace

_EPILOG = (
    "patterns: 2d, 3d, col (2d:3 weighs the first dimension), all-to-all and the like, sizes such "
    "as tp=8,pp=2, a file of a matrix or graph, profile:NAME\n"
    "(docs/guides/cluster.md)"
)
_IN_ORDER = "default"  # the policy that others are held against
_TREES = ("network", "CPU", "GPU")
_KEPT_S = 7 * 86400.0  # of a directory whose ranks have long read their map


def make_parser() -> Parser:
    """Return the parser of the word after it."""
    return word_parser("cluster", "Past one machine.")


# ---------------------------------------------------------------------------------------- map


def cluster_map(arguments: Sequence[str]) -> int:
    """Map a job's ranks, and print or write the mapping."""
    options = cluster_map_parser().parse_args(arguments)
    cluster = load_cluster(options.cluster)
    problem = _pose(options, cluster)
    mapping, document = _solve(options, problem)
    if options.explain:
        before = judge(problem, MAPPING_POLICIES[_IN_ORDER](problem))
        document["explain"] = {
            "default": _judgement_document(before),
            "chosen": _judgement_document(judge(problem, mapping)),
        }
    if options.output is not None:
        make_directory(options.output)
        files = {name: make(cluster, mapping) for name, make in ENGINE_FILES.items()}
        files["map.json"] = json.dumps(document, indent=2, allow_nan=False) + "\n"
        for name, text in files.items():
            write_text(os.path.join(options.output, name), text)
    if options.json:
        print_json(document)
    else:
        _draw_map(document)
    return 0


def cluster_map_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch cluster map",
        "Map a job's ranks to the nodes, cores and GPUs of a described cluster, so that its "
        "traffic loads no link more than it must.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--cluster", metavar="NAME|FILE", required=True, help="the cluster (docs/guides/cluster.md)"
    )
    _add_mapping(parser)
    add_json(parser)
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="write the map for every engine into this directory"
    )
    parser.add_argument(
        "--explain", action="store_true", help="the load of the links, beside ranks in order"
    )
    return parser


def _judgement_document(judgement: Judgement) -> Document:
    """Return how a mapping loads the links.

    Traffic has the unit of the patterns, congestion is traffic divided by GB/s.
    """
    levels: dict[tuple[int, int], list[LinkLoad]] = {}
    for link in judgement.links:
        levels.setdefault((_TREES.index(link.tree), link.depth), []).append(link)
    rows = []
    for (_, depth), links in sorted(levels.items()):
        row = {
            "tree": links[0].tree,
            "depth": depth,
            "links": len(links),
            "first_link": links[0].name,
            "traffic": sum(link.load for link in links),
            "maximum_congestion": max(link.congestion for link in links),
        }
        rows.append(row)
    worst = judgement.worst
    return {
        "maximum_congestion": judgement.maximum,
        "worst_link": worst
        and {
            "tree": worst.tree,
            "name": worst.name,
            "traffic": worst.load,
            "gb_per_s": worst.gb_per_s,
            "congestion": worst.congestion,
        },
        "between_nodes": judgement.between_nodes,
        "levels": rows,
    }


def _draw_map(document: Document) -> None:
    """Draw the table of ranks, and of the links' loads if the document has them."""
    ranks, policy = document["ranks"], document["policy"]
    nodes = len({rank["node"] for rank in ranks})
    where = f"{counted(nodes, 'node')} of {document['cluster']}"
    patterns = f"CPUs: {document['cpu_pattern']}, GPUs: {document['gpu_pattern']}"
    table = Grid("rank", "GPU", "core", "node", right=("rank", "GPU", "core"))
    for rank in ranks:
        table.add_row(str(rank["rank"]), str(rank["gpu"]), str(rank["core"]), cut(rank["node"]))
    title = f"{counted(len(ranks), 'rank')} on {where}, by {policy}"
    parts: list[Text | Grid] = [Text(title, "bold"), Text(patterns, "dim"), Text(), table]
    if "explain" in document:
        default, chosen = document["explain"]["default"], document["explain"]["chosen"]
        loads = Grid("congestion", "traffic", "links", right=("congestion", "traffic"))
        for before, after in zip(default["levels"], chosen["levels"], strict=True):
            more = " and the like" if after["links"] > 1 else ""
            loads.add_row(
                _change(before["maximum_congestion"], after["maximum_congestion"]),
                _change(before["traffic"], after["traffic"]),
                cut(f"{after['links']} {after['tree']}: {after['first_link']}{more}"),
            )
        meaning = "the largest congestion of a link, all traffic"
        between = _change(default["between_nodes"], chosen["between_nodes"])
        unit = "congestion is traffic, in the patterns' unit, divided by GB/s"
        parts += [
            Text(),
            Text(f"ranks in order -> {policy}: {meaning}", "bold"),
            loads,
            Text(),
            Text(f"between nodes: {between}"),
            Text(f"worst link, ranks in order: {_worst(default['worst_link'])}"),
            Text(f"worst link, {policy}: {_worst(chosen['worst_link'])}"),
            Text(unit, "dim"),
        ]
    draw(Parts(*parts), sys.stdout)


def _change(before: float, after: float) -> str:
    one, other = (f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in (before, after))
    return one if one == other else f"{one}->{other}"


def _worst(link: Document | None) -> str:
    if link is None or not link["traffic"]:
        return "none carries anything"
    return (
        f"{link['name']} ({link['tree']}), {figure(link['traffic'])} over "
        f"{figure(link['gb_per_s'])} GB/s = {figure(link['congestion'])}"
    )


# --------------------------------------------------------------------------- of both map and run


def _add_mapping(parser: Parser) -> None:
    parser.add_argument(
        "--ranks", metavar="N", type=int, help="ranks of the job (default: as many as fit)"
    )
    parser.add_argument(
        "--cpu-pattern", metavar="P", default="none", help="what its processes send each other"
    )
    parser.add_argument(
        "--gpu-pattern", metavar="P", default="none", help="what its GPUs send each other"
    )
    parser.add_argument(
        "--policy",
        dest="mapping_policy",
        metavar="P",
        type=one_of(MAPPING_POLICIES, "policy"),
        default=DEFAULT_MAPPING_POLICY,
        help=f"{', '.join(map(_shown, MAPPING_POLICIES))} (default: "
        f"{_shown(DEFAULT_MAPPING_POLICY)})",
    )


def _shown(policy: str) -> str:
    return policy.replace("_", "-")


def _pose(options: Namespace, cluster: Cluster) -> MappingProblem:
    slots = sum(node.slots for node in cluster.nodes)
    ranks = slots if options.ranks is None else options.ranks
    if not 0 < ranks <= slots:
        asked = "ranks" if options.ranks is None else f"{ranks} ranks"
        each = "each with a core and a GPU of its own"
        raise UsageError(f"{asked} requested, {each}: {_resources(cluster)}, and take {slots}")
    cpu = read_traffic("--cpu-pattern", options.cpu_pattern, ranks)
    gpu = read_traffic("--gpu-pattern", options.gpu_pattern, ranks)
    return MappingProblem(cluster, cpu, gpu)


def _resources(cluster: Cluster) -> str:
    gpus = sum(len(node.topology.gpus) for node in cluster.nodes)
    cores = sum(len(cores) for node in cluster.nodes for cores in node.sockets)
    nodes = f"the {len(cluster.nodes)} nodes of {printable(cluster.name)}"
    return f"{nodes} have {gpus} GPUs and {cores} cores"


def _solve(options: Namespace, problem: MappingProblem) -> tuple[RankMapping, Document]:
    """Return the mapping, also as a document, which a launch reads with `-o rank_map=FILE`."""
    mapping = MAPPING_POLICIES[options.mapping_policy](problem)
    ranks = []
    for rank, place in enumerate(mapping):
        node = problem.cluster.nodes[place.node].name
        ranks.append({"rank": rank, "node": node, "core": place.core, "gpu": place.gpu})
    return mapping, {
        "cluster": problem.cluster.name,
        "policy": _shown(options.mapping_policy),
        "ranks": ranks,
        "cpu_pattern": printable(options.cpu_pattern),
        "gpu_pattern": printable(options.gpu_pattern),
        "source": problem.cluster.source,
    }


# ------------------------------------------------------------------------ run, and node for it


def cluster_run(arguments: Sequence[str], command: Sequence[str] | None) -> int:
    """Map the ranks of a command, and turn into the program that starts them."""
    options = cluster_run_parser().parse_args(arguments)
    prepare_stdout()
    if not command:
        raise UsageError("no command given", "gpulaunch cluster run [OPTIONS] -- COMMAND [ARG...]")
    allocation = find_allocation(os.environ, options.launcher, options.hostfile)
    topology = ["--topology", options.topology] if options.topology is not None else []
    cluster = ask_cluster(allocation, topology, options.network, warn)
    if not options.bind_cpu:  # as if there were a core for each GPU
        nodes = [
            replace(node, sockets=(tuple(range(len(node.topology.gpus))),))
            for node in cluster.nodes
        ]
        cluster = replace(cluster, nodes=tuple(nodes))
    if options.ranks is None:
        _warn_of_few_cores(cluster)
    mapping, document = _solve(options, _pose(options, cluster))
    if not options.bind_cpu:
        for row in document["ranks"]:
            row["core"] = None
    directory = _make_directory(options.output)
    map_path = os.path.join(directory, "map.json")
    bind = [] if options.bind_cpu else ["-o", "bind_cpu=false"]
    own = ["-n", "1", "--exclusive", "-o", f"rank_map={map_path}"]  # whatever the settings say
    launch = [*own_command(), *topology, *bind, *own, "--", *command]
    names = allocation.hosts or [node.name for node in cluster.nodes]
    argv, environment = allocation.on_ranks(
        launch, [names[place.node] for place in mapping], directory
    )
    write_text(map_path, json.dumps(document, indent=2) + "\n")
    if not options.dry_run:
        return execute(
            argv, {os.fsencode(name): os.fsencode(text) for name, text in environment.items()}
        )
    without = [f"-u {name}" for name in os.environ if name not in environment]
    settings = []
    for name, text in environment.items():
        if os.environ.get(name) != text:
            settings.append(f"{name}={shlex.quote(text)}")
    print(*(["env", *without] if without else []), *settings, shlex.join(argv))
    return 0


def cluster_run_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch cluster run",
        "Run a command once for each rank, where a map puts the ranks so that their traffic loads "
        "no link more than it must. It turns into srun or mpirun: exit status, signals and output "
        "are theirs.",
        "gpulaunch cluster run [OPTIONS] -- COMMAND [ARG...]",
        epilog=_EPILOG,
    )
    _add_mapping(parser)
    parser.add_argument("--hostfile", metavar="FILE", help="hosts for Open MPI's mpirun")
    parser.add_argument(
        "--launcher",
        metavar="COMMAND",
        help="srun or mpirun, with options for it, such as 'srun --mpi=pmix'",
    )
    parser.add_argument(
        "--network",
        metavar="FILE",
        help="topology.conf of Slurm (default: what Slurm tells)",
    )
    add_topology(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="where to write the map, which all nodes have to read (default: in ~/.cache)",
    )
    parser.add_argument(
        "--bind-cpu",
        action=BooleanOptionalAction,
        help="a core for each rank; without, GPUs alone say how many ranks a node takes",
    )
    parser.set_defaults(bind_cpu=True)  # later, since Python 3.10 writes a default into the help
    parser.add_argument(
        "--dry-run", action="store_true", help="write the map, and print what would be run"
    )
    return parser


def _warn_of_few_cores(cluster: Cluster) -> None:
    """Tell of GPUs that have no rank because there are fewer cores."""
    slots = sum(node.slots for node in cluster.nodes)
    if 0 < slots < sum(len(node.topology.gpus) for node in cluster.nodes):
        warn(
            f"{slots} ranks: {_resources(cluster)}; with --no-bind-cpu a rank needs no core of "
            "its own"
        )


def _make_directory(wanted: str | None) -> str:
    """Return the directory of the map: the wanted one, or a new one in place of old ones."""
    if wanted is not None:
        make_directory(wanted)
        return os.path.abspath(wanted)
    above = os.path.join(own_directory("XDG_CACHE_HOME", ".cache"), "cluster")
    try:
        make_own(above)
        for entry in os.scandir(above):
            with suppress(OSError):
                if time.time() - entry.stat().st_mtime > _KEPT_S:
                    rmtree(entry.path)
        return tempfile.mkdtemp(dir=above)
    except OSError as problem:
        raise call_failed(printable(above), problem) from None


def cluster_node_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch cluster node",
        "Tell 'gpulaunch cluster run' what was granted on this node: it calls this.",
    )
    add_topology(parser)
    return parser


def cluster_node(arguments: Sequence[str]) -> int:
    """Print what this node of an allocation has, for `gpulaunch cluster run`."""
    settings = shown_settings(cluster_node_parser().parse_args(arguments).topology)
    topology = within_reach(read_surroundings(settings, warn, may_hide=True, use=False))
    print("\n".join(report_lines(*describe_this_node(topology))))
    return 0
