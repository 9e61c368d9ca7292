"""What the stand-ins share: where they are told what to do, and where they write down what happens.

Everything lies beside this file's folder: told.json, which a test changes, and events.jsonl. No
variable has to survive in anybody's environment.
"""

import json
import os
import re
import time

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PIPE = "CUDA_MPS_PIPE_DIRECTORY"


def told() -> dict:
    """Return what the test wants now; see FakeMps.tell."""
    with open(os.path.join(FOLDER, "told.json")) as file:
        return json.load(file)


def note(event: str, **what: object) -> None:
    """Write down what happens, with its time, in one write."""
    line = (
        json.dumps({"event": event, "time": time.monotonic(), "pipe": os.environ.get(PIPE), **what})
        + "\n"
    )
    descriptor = os.open(os.path.join(FOLDER, "events.jsonl"), os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def cuda_variables() -> dict[str, str]:
    """Return the part of the environment that CUDA looks at."""
    return {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}


def number(text: str) -> float | None:
    """Return the number that a text begins with, as scanf reads it; None if there is none."""
    found = re.match(r"\s*[+-]?(\d+\.?\d*|\.\d+)", text)
    return float(found.group()) if found else None
