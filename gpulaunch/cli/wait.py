"""`gpulaunch wait NAME...`: sleep until launches have ended, and end as they did."""

from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_job
from gpulaunch.cli.output import report, warn
from gpulaunch.errors import GpulaunchError, printable
from gpulaunch.launch.past import find_launch, unknown_end, wait_for_end


def main(arguments: Sequence[str]) -> int:
    """Wait for launches; return the first exit status that is not 0."""
    options = make_parser().parse_args(arguments)
    launches = [(name, find_launch(name)) for name in options.name]
    first = 0
    for name, launch in launches:
        try:
            ended = wait_for_end(launch, warn)
            if ended.exit_status is None:
                raise unknown_end(ended, printable(name))
            status = ended.exit_status
        except GpulaunchError as problem:  # the others are waited for all the same
            report(problem)
            status = problem.exit_status
        first = first or status
    return first


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch wait",
        "Wait until jobs of yours have ended. The exit status is the job's; of several jobs "
        "the first that is not 0, in the order in which they are named; 125 if nobody knows it.",
    )
    add_job(parser, nargs="+")
    return parser
