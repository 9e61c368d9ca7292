"""Why these GPUs: the sentence, the columns that decided, and their legend on a narrow terminal."""

import io
from collections.abc import Iterable

from rich.console import Console
from values import cases, machine, request

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Decision, Situation
from gpulaunch.decide.explain import Explanation, explain
from gpulaunch.decide.request import Request
from gpulaunch.machine.driver import OutsideUse
from gpulaunch.show.decision_table import explanation_table


def explained(asked: Request, name: str, free: Iterable[int]) -> tuple[Decision, Explanation]:
    """Decide on a described machine, of which only some GPUs are free, and explain that."""
    topology, free = machine(name), set(free)
    busy = [OutsideUse(gpu.uuid, "bob") for gpu in topology.gpus if gpu.index not in free]
    situation = Situation(topology, outside=busy)
    decision = decide(asked, situation)
    return decision, explain(asked, situation, decision, 5, str)


EIGHT = range(8)


WON = {
    "equal in all: the lower indices": (
        *("dgx1-v100", EIGHT, 3, True),
        ("effective_bandwidth",),
        (
            "0,2-3: the most effective bandwidth (60 GB/s); 1-3 is equal in all, 0,2-3 has the "
            "lower indices"
        ),
    ),
    "the first score": (
        *("summit", (0, 1, 2, 3), 2, True),
        ("effective_bandwidth",),
        "0-1: the most effective bandwidth (40 GB/s); next is 0,3 with 12",
    ),
    "the second": (
        *("dgx1-v100", (3, 5, 6, 7), 2, True),
        ("effective_bandwidth", "lasting_bandwidth"),
        (
            "5-6: the most effective bandwidth (40 GB/s); 6-7 has as much, but less lasting "
            "bandwidth (434 instead of 447 GB/s)"
        ),
    ),
    "sockets": (
        *("dgx-a100", (0, 2, 3), 2, True),
        ("effective_bandwidth", "sockets"),
        (
            "2-3: the most effective bandwidth (240 GB/s); 0,2 has as much, but on 2 sockets "
            "instead of 1"
        ),
    ),
    "what others have begun": (
        *("dgx1-v100", (3, 5, 7), 1, False),
        ("lasting_bandwidth", "fragmentation"),
        (
            "3: the most lasting bandwidth (583 GB/s); 5 has as much, but on emptier sockets (25 % "
            "free instead of 0 %)"
        ),
    ),
}


@cases(WON, "name", "free", "gpus", "sensitive", "columns", "want")
def test_what_set_the_winner_apart(
    name: str,
    free: Iterable[int],
    gpus: int,
    columns: tuple[str, ...],
    want: str,
    *,
    sensitive: bool,
) -> None:
    """A sentence compares winner and runner-up; columns are the scores that ordered the listed."""
    asked = request(gpus, policy="preserve", bandwidth_sensitive=sensitive)
    _, found = explained(asked, name, free)
    assert (found.reason, found.deciding) == (want, columns)


def test_columns_have_a_legend() -> None:
    """A line says of each column what is better, on a narrow terminal, too."""
    asked = request(2, policy="preserve")
    decision, found = explained(asked, "dgx1-v100", (3, 5, 6, 7))
    stream = io.StringIO()
    table = explanation_table(asked, decision, found)
    Console(file=stream, width=40, highlight=False, markup=False).print(table)
    lines = stream.getvalue().splitlines()
    header = next(line for line in lines if line.endswith("GPUs"))
    assert header.split() == ["effective", "lasting", "GPUs"]
    assert [column for column in header.split()[:-1] if f"{column} " not in " ".join(lines)] == []
    assert max(map(len, lines)) <= 40
