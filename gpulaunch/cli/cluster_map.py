"""`gpulaunch cluster map`: which rank of a job on which node, core and GPU of a cluster."""

import os
import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Namespace, Parser, add_json
from gpulaunch.cli.cluster_problem import (
    MAPPING_EPILOG,
    add_mapping,
    find_policy,
    map_document,
    pose,
)
from gpulaunch.cli.output import print_json, warn
from gpulaunch.cluster.catalog import load_cluster
from gpulaunch.cluster.cluster import Cluster, part_of
from gpulaunch.cluster.hostlist import expand_hostlist
from gpulaunch.cluster.judge import judge
from gpulaunch.cluster.mapping import RankMapping
from gpulaunch.cluster.policies import MAPPING_POLICIES
from gpulaunch.cluster.rank_files import ENGINE_FILES
from gpulaunch.errors import UsageError, printable
from gpulaunch.files.write import make_directory, write_text
from gpulaunch.show import Document
from gpulaunch.show.mapping import mapping_document

_MAP_FILE = "map.json"
_IN_ORDER = "default"  # the policy that others are held against


def main(arguments: Sequence[str]) -> int:
    """Map a job's ranks, and print or write the mapping."""
    options = make_parser().parse_args(arguments)
    _check_together(options)
    cluster = _find_cluster(options)
    problem = pose(options, cluster)
    policy = find_policy(options.policy)
    mapping = MAPPING_POLICIES[policy](problem)
    document = map_document(options, problem, policy, mapping)
    if options.explain:
        before = judge(problem, MAPPING_POLICIES[_IN_ORDER](problem))
        document["explain"] = mapping_document(before, judge(problem, mapping))
    # All texts are made before any file is: a mistake leaves nothing behind.
    texts = _files(cluster, mapping, document) if options.output else {}
    shown = None if options.format in ("table", "json") else ENGINE_FILES[options.format][1]
    text = shown(cluster, mapping) if shown else None
    if options.output:
        make_directory(options.output)
    for name, content in texts.items():
        write_text(os.path.join(options.output, name), content)
    if text is not None:
        print(text, end="")
    elif options.format == "json":
        print_json(document)
    else:
        _print_table(document)
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
    parser.add_argument("--nodes", metavar="LIST", help="only these of its nodes, such as n[1-4,7]")
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


def _find_cluster(options: Namespace) -> Cluster:
    cluster = load_cluster(options.cluster)
    if options.nodes is None:
        return cluster
    try:
        return part_of(cluster, expand_hostlist(options.nodes))
    except ValueError as problem:
        raise UsageError(f"--nodes: {printable(str(problem))}") from None


def _files(cluster: Cluster, mapping: RankMapping, document: Document) -> dict[str, str]:
    """Return the text of each file by its name; without torchrun's if that cannot have the map."""
    import json

    texts = {_MAP_FILE: json.dumps(document, indent=2, allow_nan=False) + "\n"}
    for name, make in ENGINE_FILES.values():
        try:
            texts[name] = make(cluster, mapping)
        except UsageError as problem:
            warn(f"no file {name}: {problem.message}")
    return texts


def _print_table(document: Document) -> None:
    from gpulaunch.show.mapping_table import mapping_table
    from gpulaunch.show.terminal import draw

    draw(mapping_table(document), sys.stdout)
