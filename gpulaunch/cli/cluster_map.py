"""`gpulaunch cluster map`: which rank of a job on which node, core and GPU of a cluster."""

import json
import os
import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Namespace, Parser, add_json
from gpulaunch.cli.output import print_json
from gpulaunch.cluster.cluster import Cluster
from gpulaunch.cluster.cluster_file import load_cluster
from gpulaunch.cluster.mapping import MappingProblem, RankMapping, judge
from gpulaunch.cluster.policies import DEFAULT_MAPPING_POLICY, MAPPING_POLICIES
from gpulaunch.cluster.rank_files import ENGINE_FILES, rank_map
from gpulaunch.cluster.traffic import (
    SHAPES,
    RankTraffic,
    is_sizes,
    parallel_traffic,
    shape_traffic,
    summed,
)
from gpulaunch.cluster.traffic_file import read_traffic_file
from gpulaunch.errors import UsageError, did_you_mean, printable, quoted
from gpulaunch.files.write import make_directory, write_text
from gpulaunch.profiles.pattern import PATTERNS, Edge
from gpulaunch.profiles.pattern_file import GRAPH_ENDINGS
from gpulaunch.show import Document

MAPPING_EPILOG = (
    "patterns: 2d, 3d, col (2d:3 weighs the first dimension), all-to-all and the like, sizes such "
    "as tp=8,pp=2, a file of a matrix or graph, profile:NAME, scan:PATH, nccl:LOG\n"
    "(docs/guides/cluster.md)"
)
_IN_ORDER = "default"  # the policy that others are held against


def main(arguments: Sequence[str]) -> int:
    """Map a job's ranks, and print or write the mapping."""
    options = make_parser().parse_args(arguments)
    _check_together(options)
    cluster = load_cluster(options.cluster)
    problem = pose(options, cluster)
    policy = find_policy(options.mapping_policy)
    mapping = MAPPING_POLICIES[policy](problem)
    document = map_document(options, problem, policy, mapping)
    if options.explain:
        from gpulaunch.show.mapping import mapping_document  # late: its tables import rich

        before = judge(problem, MAPPING_POLICIES[_IN_ORDER](problem))
        document["explain"] = mapping_document(before, judge(problem, mapping))
    if options.output:
        make_directory(options.output)
        files = {name: make(cluster, mapping) for name, make in ENGINE_FILES.values()}
        files["map.json"] = json.dumps(document, indent=2, allow_nan=False) + "\n"
        for name, text in files.items():
            write_text(os.path.join(options.output, name), text)
    if options.format in ENGINE_FILES:
        print(ENGINE_FILES[options.format][1](cluster, mapping), end="")
    elif options.format == "json":
        print_json(document)
    else:
        from gpulaunch.show.mapping import mapping_table
        from gpulaunch.show.terminal import draw

        draw(mapping_table(document), sys.stdout)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch cluster map",
        "Map a job's ranks to the nodes, cores and GPUs of a described cluster, so that its "
        "traffic loads no link more than it must.",
        epilog=MAPPING_EPILOG,
    )
    parser.add_argument(
        "--cluster", metavar="NAME|FILE", required=True, help="the cluster (docs/guides/cluster.md)"
    )
    add_mapping(parser)
    parser.add_argument(
        "--format",
        metavar="FORM",
        choices=("table", "json", *ENGINE_FILES),
        help=f"what to print: table (default), json, {', '.join(ENGINE_FILES)}",
    )
    add_json(parser)
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="write the map for every engine into this directory"
    )
    parser.add_argument(
        "--explain", action="store_true", help="the load of the links, beside ranks in order"
    )
    return parser


def _check_together(options: Namespace) -> None:
    if options.json and options.format not in (None, "json"):
        raise UsageError(f"--json and --format {options.format} are given: one of them is enough")
    options.format = "json" if options.json else options.format or "table"
    if options.explain and options.format not in ("table", "json"):
        raise UsageError(f"--explain has no effect with --format {options.format}")
    if options.output == "":
        raise UsageError("--output has an empty value")


# ------------------------------------------------------------------- for `cluster run` as well


def add_mapping(parser: Parser) -> None:
    """Add the options of a mapping."""
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
        default=DEFAULT_MAPPING_POLICY,
        help=f"{', '.join(map(_shown, MAPPING_POLICIES))} (default: "
        f"{_shown(DEFAULT_MAPPING_POLICY)})",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of its random choices")


def _shown(policy: str) -> str:
    return policy.replace("_", "-")


def find_policy(name: str) -> str:
    """Return the policy of a name, which may be written with - or _.

    Raises:
        UsageError: there is none.
    """
    policy = name.replace("-", "_")
    if policy not in MAPPING_POLICIES:
        known = list(map(_shown, MAPPING_POLICIES))
        raise UsageError(
            f"unknown policy {quoted(name)}{did_you_mean(name, known)}",
            f"known are {', '.join(known)}",
        )
    return policy


def pose(options: Namespace, cluster: Cluster) -> MappingProblem:
    """Return the problem of the options on a cluster.

    Raises:
        UsageError: more ranks than fit, or a pattern that is wrong.
    """
    slots = sum(node.slots for node in cluster.nodes)
    ranks = slots if options.ranks is None else options.ranks
    if options.ranks is not None and ranks < 1:
        raise UsageError(f"--ranks: {ranks} requested, and 1 is the least")
    if ranks > slots or not ranks:
        asked = f"{ranks} ranks requested, each" if ranks else "ranks requested, each"
        raise UsageError(
            f"{asked} with a core and a GPU of its own: {resources(cluster)}, and take {slots}"
        )
    cpu = read_traffic("--cpu-pattern", options.cpu_pattern, ranks)
    gpu = read_traffic("--gpu-pattern", options.gpu_pattern, ranks)
    return MappingProblem(cluster, cpu, gpu, options.seed)


def resources(cluster: Cluster) -> str:
    """Return the words for the GPUs and cores that the nodes of a cluster have."""
    gpus = sum(len(node.topology.gpus) for node in cluster.nodes)
    cores = sum(len(cores) for node in cluster.nodes for cores in node.sockets)
    return (
        f"the {len(cluster.nodes)} nodes of {printable(cluster.name)} have {gpus} GPUs and "
        f"{cores} cores"
    )


def map_document(
    options: Namespace, problem: MappingProblem, policy: str, mapping: RankMapping
) -> Document:
    """Return the map as a document, which a launch reads with `-o rank_map=FILE`."""
    patterns = {"cpu_pattern": options.cpu_pattern, "gpu_pattern": options.gpu_pattern}
    document = rank_map(problem.cluster, _shown(policy), mapping) | {
        key: printable(text) for key, text in patterns.items()
    }
    return document | {"seed": problem.seed, "source": problem.cluster.source}


def read_traffic(option: str, text: str, ranks: int) -> RankTraffic:
    """Read a pattern of the command line.

    Args:
        option: the option, for messages.
        text: its value.
        ranks: number of ranks.

    Raises:
        UsageError: there is no such pattern, or it is not one of this many ranks.
    """
    try:
        return _read(text, ranks)
    except UsageError as problem:
        raise UsageError(f"{option}: {problem.message}", problem.hint) from None


def _read(text: str, ranks: int) -> RankTraffic:
    kind, _, rest = text.partition(":")
    if kind == "scan" and rest:
        return _of_pattern(_scanned(rest), ranks)
    if kind == "nccl" and rest:
        return _of_nccl_log(rest, ranks)
    if kind == "profile" or text.endswith(".toml"):
        return _of_profile(rest or text, ranks)
    if is_sizes(text):
        return parallel_traffic(text, ranks)
    shape = shape_traffic(text, ranks)
    if shape is not None:
        return shape
    if os.sep in text or text.lower().endswith(GRAPH_ENDINGS):
        return read_traffic_file(text, ranks)
    names = [name.replace("_", "-") for name in SHAPES]
    file = f"./{text}" if os.path.isfile(text) else "a file"
    raise UsageError(
        f"unknown pattern {quoted(text)}{did_you_mean(text, names)}",
        f"known are {', '.join(names)}, or give {file}",
    )


def _of_profile(name: str, ranks: int) -> RankTraffic:
    from gpulaunch.profiles.catalog import load_profile

    profile = load_profile(name)
    if profile.graph:
        return _of_edges(f"profile {profile.name}", profile.graph.ranks, profile.graph.given, ranks)
    if profile.communication.pattern is None:
        raise UsageError(f"profile {quoted(name)} has no pattern")
    return _of_pattern(profile.communication.pattern, ranks)


def _scanned(path: str) -> str:
    from gpulaunch.scan.sources import read_sources, scan_sources

    files, unread = read_sources(path)
    found = scan_sources(files, unread, sys.stdlib_module_names)
    if found.pattern == "none" and found.confidence != "certain":
        raise UsageError(
            f"{printable(path)}: no call was found by which ranks communicate: that is a guess",
            "name a pattern, such as ring",
        )
    return found.pattern


def _of_nccl_log(path: str, ranks: int) -> RankTraffic:
    from gpulaunch.files.document import log_lines
    from gpulaunch.measure.logs.nccl_log import communication, read_nccl_log

    name = printable(path)
    found = communication(read_nccl_log(log_lines(path)), name)
    if found.edges:
        return _of_edges(name, found.ranks, found.edges, ranks)
    return _of_pattern(found.pattern, ranks)


def _of_pattern(name: str, ranks: int) -> RankTraffic:
    found = shape_traffic(name, ranks) if name in PATTERNS else None
    if found is None:
        raise UsageError(f"pattern {quoted(name)} is no shape of any number of ranks")
    return found


def _of_edges(name: str, found: int, edges: tuple[Edge, ...], ranks: int) -> RankTraffic:
    if found != ranks:
        raise UsageError(f"{name} has {found} ranks, and {ranks} are mapped")
    return summed(ranks, edges)
