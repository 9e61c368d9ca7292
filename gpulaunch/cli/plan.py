"""`gpulaunch plan`: predict which jobs of a queue to run together."""

import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.output import print_json
from gpulaunch.sharing.plan import make_plan
from gpulaunch.sharing.plan_file import load_queue


def main(arguments: Sequence[str]) -> int:
    """Print the plan of one queue file."""
    options = make_parser().parse_args(arguments)
    gpu_model, site, jobs = load_queue(options.file)
    plan = make_plan(jobs, site)
    from gpulaunch.show.plan import plan_document, plan_table
    from gpulaunch.show.terminal import draw

    document = plan_document(plan, site, gpu_model)
    if options.json:
        print_json(document)
    else:
        draw(plan_table(document), sys.stdout)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch plan",
        "Which jobs of a queue to run together on a GPU, through CUDA MPS: a prediction.",
    )
    parser.add_argument("file", metavar="FILE", help="the queue, in TOML (see docs/guides/plan.md)")
    add_json(parser)
    return parser
