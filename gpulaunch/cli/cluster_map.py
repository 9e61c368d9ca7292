"""`gpulaunch cluster map`: which rank of a job on which node, core and GPU of a cluster."""

import os
import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Namespace, Parser, add_json
from gpulaunch.cli.cluster_traffic import PATTERN_HELP, read_traffic
from gpulaunch.cli.output import print_json, warn
from gpulaunch.cluster.catalog import load_cluster
from gpulaunch.cluster.cluster import Cluster, part_of
from gpulaunch.cluster.hostlist import expand_hostlist
from gpulaunch.cluster.judge import judge
from gpulaunch.cluster.mapping import Mapping, MappingProblem
from gpulaunch.cluster.policies import DEFAULT_MAPPING_POLICY, MAPPING_POLICIES
from gpulaunch.cluster.rank_files import ENGINE_FILES, rank_map
from gpulaunch.errors import UsageError, printable, quoted
from gpulaunch.files.write import make_directory, write_text
from gpulaunch.show import Document
from gpulaunch.show.mapping import mapping_document

_MAP_FILE = "map.json"
_IN_ORDER = "default"  # the policy that others are held against


def main(arguments: Sequence[str]) -> int:
    """Map a job's ranks, and print or write the mapping."""
    options = _parser().parse_args(arguments)
    _check_together(options)
    cluster = _find_cluster(options)
    problem = _pose(options, cluster)
    policy = _find_policy(options.policy)
    mapping = MAPPING_POLICIES[policy](problem)
    document = _document(options, problem, policy, mapping)
    # All texts are made before any file is: a mistake leaves nothing behind.
    texts = _files(cluster, mapping, document) if options.output else {}
    picture = _picture(problem, mapping) if options.svg else None
    shown = None if options.format in ("table", "json") else ENGINE_FILES[options.format][1]
    text = shown(cluster, mapping) if shown else None
    if options.output:
        make_directory(options.output)
    for name, content in texts.items():
        write_text(os.path.join(options.output, name), content)
    if picture is not None:
        write_text(options.svg, picture)
    if text is not None:
        print(text, end="")
    elif options.format == "json":
        print_json(document)
    else:
        _print_table(document)
    return 0


def _parser() -> Parser:
    parser = Parser(
        "gpulaunch cluster map",
        "Map a job's ranks to the nodes, cores and GPUs of a described cluster, so that its "
        "traffic loads no link more than it must.",
        epilog=f"patterns: {PATTERN_HELP}\n(docs/cluster.md)",
    )
    parser.add_argument(
        "--cluster", metavar="NAME|FILE", required=True, help="the cluster (docs/cluster.md)"
    )
    parser.add_argument("--nodes", metavar="LIST", help="only these of its nodes, such as n[1-4,7]")
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
    parser.add_argument(
        "--format",
        choices=("table", "json", *ENGINE_FILES),
        help="what to print (default: table)",
    )
    add_json(parser)
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="write the map for every engine into this directory"
    )
    parser.add_argument(
        "--explain", action="store_true", help="the load of the links, beside ranks in order"
    )
    parser.add_argument("--svg", metavar="FILE", help="draw the links with their loads")
    return parser


def _shown(policy: str) -> str:
    return policy.replace("_", "-")


def _check_together(options: Namespace) -> None:
    if options.json and options.format not in (None, "json"):
        raise UsageError(f"--json and --format {options.format} are given: one of them is enough")
    options.format = "json" if options.json else options.format or "table"
    if options.explain and options.format not in ("table", "json"):
        raise UsageError(f"--explain has no effect with --format {options.format}")
    for name in ("output", "svg"):
        if getattr(options, name) == "":
            raise UsageError(f"--{name} has an empty value")


def _find_cluster(options: Namespace) -> Cluster:
    cluster = load_cluster(options.cluster)
    if options.nodes is None:
        return cluster
    try:
        return part_of(cluster, expand_hostlist(options.nodes))
    except ValueError as problem:
        raise UsageError(f"--nodes: {printable(str(problem))}") from None


def _find_policy(name: str) -> str:
    policy = name.replace("-", "_")
    if policy not in MAPPING_POLICIES:
        known = ", ".join(map(_shown, MAPPING_POLICIES))
        raise UsageError(f"unknown policy {quoted(name)}", f"known are {known}")
    return policy


def _pose(options: Namespace, cluster: Cluster) -> MappingProblem:
    slots = sum(node.slots for node in cluster.nodes)
    ranks = slots if options.ranks is None else options.ranks
    if ranks < 1:
        raise UsageError(f"--ranks: {ranks} requested, and 1 is the least")
    if ranks > slots:
        gpus = sum(len(node.topology.gpus) for node in cluster.nodes)
        cores = sum(len(cores) for node in cluster.nodes for cores in node.sockets)
        raise UsageError(
            f"{ranks} ranks requested, each with a core and a GPU of its own: the "
            f"{len(cluster.nodes)} nodes of {cluster.name} have {gpus} GPUs and {cores} cores, and "
            f"take {slots}"
        )
    cpu = read_traffic("--cpu-pattern", options.cpu_pattern, ranks)
    gpu = read_traffic("--gpu-pattern", options.gpu_pattern, ranks)
    return MappingProblem(cluster, cpu, gpu, options.seed)


def _document(
    options: Namespace, problem: MappingProblem, policy: str, mapping: Mapping
) -> Document:
    patterns = {"cpu_pattern": options.cpu_pattern, "gpu_pattern": options.gpu_pattern}
    document = rank_map(problem.cluster, _shown(policy), mapping) | {
        key: printable(text) for key, text in patterns.items()
    }
    document |= {"seed": problem.seed, "source": problem.cluster.source}
    if options.explain:
        before = judge(problem, MAPPING_POLICIES[_IN_ORDER](problem))
        document["explain"] = mapping_document(before, judge(problem, mapping))
    return document


def _files(cluster: Cluster, mapping: Mapping, document: Document) -> dict[str, str]:
    """Return the text of each file by its name; without torchrun's if that cannot have the map."""
    import json

    texts = {_MAP_FILE: json.dumps(document, indent=2, allow_nan=False) + "\n"}
    for name, make in ENGINE_FILES.values():
        try:
            texts[name] = make(cluster, mapping)
        except UsageError as problem:
            warn(f"no file {name}: {problem.message}")
    return texts


def _picture(problem: MappingProblem, mapping: Mapping) -> str:
    from gpulaunch.show.mapping_svg import mapping_svg

    return mapping_svg(problem.cluster, mapping, judge(problem, mapping))


def _print_table(document: Document) -> None:
    from gpulaunch.show.mapping_table import mapping_table
    from gpulaunch.show.terminal import draw

    draw(mapping_table(document), sys.stdout)
