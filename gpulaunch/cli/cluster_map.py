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
from gpulaunch.cluster.rank_files import ENGINE_FILES
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
from gpulaunch.profiles.pattern_file import GRAPH_ENDINGS
from gpulaunch.show import Document

MAPPING_EPILOG = (
    "patterns: 2d, 3d, col (2d:3 weighs the first dimension), all-to-all and the like, sizes such "
    "as tp=8,pp=2, a file of a matrix or graph, profile:NAME\n"
    "(docs/guides/cluster.md)"
)
_IN_ORDER = "default"  # the policy that others are held against


def main(arguments: Sequence[str]) -> int:
    """Map a job's ranks, and print or write the mapping."""
    options = make_parser().parse_args(arguments)
    if options.output == "":
        raise UsageError("--output has an empty value")
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
        files = {name: make(cluster, mapping) for name, make in ENGINE_FILES.items()}
        files["map.json"] = json.dumps(document, indent=2, allow_nan=False) + "\n"
        for name, text in files.items():
            write_text(os.path.join(options.output, name), text)
    if options.json:
        print_json(document)
    else:
        from gpulaunch.cli.screen import draw
        from gpulaunch.show.mapping import mapping_table

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
    add_json(parser)
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="write the map for every engine into this directory"
    )
    parser.add_argument(
        "--explain", action="store_true", help="the load of the links, beside ranks in order"
    )
    return parser


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
    return MappingProblem(cluster, cpu, gpu)


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
    ranks = []
    for rank, place in enumerate(mapping):
        node = problem.cluster.nodes[place.node].name
        ranks.append({"rank": rank, "node": node, "core": place.core, "gpu": place.gpu})
    return {
        "cluster": problem.cluster.name,
        "policy": _shown(policy),
        "ranks": ranks,
        "cpu_pattern": printable(options.cpu_pattern),
        "gpu_pattern": printable(options.gpu_pattern),
        "source": problem.cluster.source,
    }


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
    graph = profile.graph
    if graph:
        if graph.ranks != ranks:
            raise UsageError(
                f"profile {profile.name} has {graph.ranks} ranks, and {ranks} are mapped"
            )
        return summed(ranks, graph.given)
    pattern = profile.communication.pattern
    found = shape_traffic(pattern, ranks) if pattern else None
    if found is None:
        raise UsageError(f"profile {quoted(name)} has no pattern")
    return found
