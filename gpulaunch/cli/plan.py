"""`gpulaunch plan`: predict which jobs of a queue to run together."""

import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json
from gpulaunch.cli.output import print_json
from gpulaunch.leases.share import OBJECTIVES
from gpulaunch.sharing.plan import make_plan
from gpulaunch.sharing.plan_file import load_queue
from gpulaunch.show.plan import plan_document


def main(arguments: Sequence[str]) -> int:
    """Print the plan of one queue file."""
    options = make_parser().parse_args(arguments)
    asked = {name: getattr(options, name) for name in ("objective", "gpu", "gpu_memory")}
    instead = {name: value for name, value in asked.items() if value is not None}
    queue = load_queue(options.file, instead)
    plan = make_plan(queue.jobs, queue.site)
    document = plan_document(plan, queue.site, queue.gpu_model, idle_estimated=queue.idle_estimated)
    if options.json:
        print_json(document)
    else:
        from gpulaunch.show.plan_table import plan_table
        from gpulaunch.show.terminal import draw

        draw(plan_table(document), sys.stdout)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch plan",
        "Which jobs of a queue to run together on a GPU, through CUDA MPS: a prediction.",
    )
    parser.add_argument("file", metavar="FILE", help="the queue, in TOML (see docs/guides/plan.md)")
    parser.add_argument(
        "--objective", choices=OBJECTIVES, help="what to share for, instead of what FILE says"
    )
    parser.add_argument("--gpu", metavar="NAME", help="a GPU model, likewise")
    parser.add_argument("--gpu-memory", metavar="SIZE", help="its memory, such as 80GiB, likewise")
    add_json(parser)
    return parser
