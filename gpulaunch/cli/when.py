"""`gpulaunch --when`: when a launch would probably start."""

import os
from collections.abc import Sequence

from gpulaunch.cli.launch import tell_of
from gpulaunch.cli.output import print_json
from gpulaunch.decide.decision import Grant, Refuse
from gpulaunch.errors import UsageError
from gpulaunch.launch.assess import assess_now
from gpulaunch.launch.open_table import open_table_of
from gpulaunch.launch.options import Given, Options
from gpulaunch.launch.predict import predicted_start
from gpulaunch.launch.read_launch import read_launch
from gpulaunch.show.status import start_document


def main(given: Given, command: Sequence[str]) -> int:
    """Print when a launch would probably start; nothing is taken.

    Args:
        given: its options.
        command: argv of the job; it may be empty.

    Raises:
        UsageError: it can never start.
    """
    if "after" in given:
        raise UsageError("--when and --after: how long the others still run is not predicted")
    options = Options(given, os.environ)
    tell = tell_of(options)
    launch = read_launch(options, command, name=options.name, warn=tell)
    assessment = assess_now(launch, open_table_of(launch, tell), None)
    decision = assessment.decision
    if isinstance(decision, Refuse):
        raise UsageError(decision.reason)
    granted = isinstance(decision, Grant)
    start = None if granted else predicted_start(launch, assessment.snapshot)
    if options.json:
        print_json(
            {
                "decision": "grant" if granted else "wait",
                "reason": decision.reason,
                "predicted_start": start_document(start),
            }
        )
    elif granted:
        print("now")
    elif start:
        print(f"probably {start.text}: {decision.reason}")
    else:
        print(f"nobody can tell: {decision.reason}")
    return 0
