"""`gpulaunch doctor`: report what works here, and what does not."""

import sys
from collections.abc import Sequence

from gpulaunch.cli.arguments import Parser, add_json, add_topology
from gpulaunch.cli.output import print_json
from gpulaunch.doctor.diagnose import diagnose, diagnose_health
from gpulaunch.errors import printable
from gpulaunch.records import as_dict


def main(arguments: Sequence[str]) -> int:
    """Print the findings; the exit status is 1 if one is a problem."""
    options = make_parser().parse_args(arguments)
    findings = (diagnose_health if options.health else diagnose)(options.topology)
    if options.json:
        print_json({"findings": [as_dict(finding) for finding in findings]})
    else:
        from gpulaunch.show.terminal import Text, draw, make_table

        colours = {"ok": "green", "warning": "yellow", "problem": "red"}
        table = make_table("", "part", "found")
        for finding in findings:
            found = Text(printable(finding.text))
            if finding.hint:
                found.append(f"\n{printable(finding.hint)}", "dim")
            state = Text(finding.state, colours[finding.state])
            table.add_row(state, finding.subject, found)
        draw(table, sys.stdout)
    return int(any(finding.state == "problem" for finding in findings))


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        "gpulaunch doctor",
        "Look at what launches stand on: GPUs, allocation table, container engines.",
    )
    add_topology(parser)
    parser.add_argument(
        "--health",
        action="store_true",
        help="only the health of the GPUs; exits 1 if one of them is barred or left out",
    )
    add_json(parser)
    return parser
