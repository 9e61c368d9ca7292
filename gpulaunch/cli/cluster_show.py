"""`gpulaunch cluster show`: the nodes, switches and GPUs of an allocation."""

from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.cluster_allocation import add_allocation, find
from gpulaunch.cli.output import print_json
from gpulaunch.show.cluster import cluster_document, cluster_lines


def main(arguments: Sequence[str]) -> int:
    """Show what this allocation has."""
    options = make_parser().parse_args(arguments)
    cluster = find(options).cluster
    if options.json:
        print_json(cluster_document(cluster))
    else:
        print("\n".join(cluster_lines(cluster)))
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser("gpulaunch cluster show", "The nodes, switches and GPUs of this allocation.")
    add_allocation(parser)
    add_json(parser)
    return parser
