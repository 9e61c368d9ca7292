"""The options by which `gpulaunch cluster` maps ranks, and the problem that they pose."""

from gpulaunch.cli.arguments import Namespace, Parser
from gpulaunch.cli.cluster_traffic import PATTERN_HELP, read_traffic
from gpulaunch.cluster.cluster import Cluster
from gpulaunch.cluster.mapping import MappingProblem, RankMapping
from gpulaunch.cluster.policies import DEFAULT_MAPPING_POLICY, MAPPING_POLICIES
from gpulaunch.cluster.rank_files import rank_map
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.files.nearest import did_you_mean
from gpulaunch.show import Document

MAPPING_EPILOG = f"patterns: {PATTERN_HELP}\n(docs/guides/cluster.md)"


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
    """Return the map as a document, which a launch reads by the setting rank_map."""
    patterns = {"cpu_pattern": options.cpu_pattern, "gpu_pattern": options.gpu_pattern}
    document = rank_map(problem.cluster, _shown(policy), mapping) | {
        key: printable(text) for key, text in patterns.items()
    }
    return document | {"seed": problem.seed, "source": problem.cluster.source}
