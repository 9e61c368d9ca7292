"""The shipped profiles of what people run, and which of them may share a GPU."""

import os
from itertools import combinations_with_replacement
from pathlib import Path

from values import lease, request

from gpulaunch.decide.decide import decide
from gpulaunch.decide.decision import Grant, Situation
from gpulaunch.decide.request import Request
from gpulaunch.decide.share_options import share_of
from gpulaunch.files.size import format_size
from gpulaunch.launch.options import Options
from gpulaunch.launch.read_sharing import read_sharing
from gpulaunch.machine.catalog import load_described_machine
from gpulaunch.machine.find import Machine
from gpulaunch.machine.topology import TableKey
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.records import replace

ROOT = Path(__file__).parents[2]
EVERYDAY = [path.stem for path in sorted((ROOT / "profiles" / "workloads").glob("*.toml"))]
WITH_FIGURES = [name for name in EVERYDAY if load_profile(name).demand]
DGX1, PATH = load_described_machine("dgx1-v100")
V100 = replace(DGX1, gpus=DGX1.gpus[:1], links=())


def asking(name: str) -> Request:
    """Return the request of one GPU with --share and this profile."""
    machine = Machine(V100, (), TableKey(V100.name, "", PATH))
    sharing = read_sharing(Options({}, {}), load_profile(name), machine, name)
    return request(1, sharing=sharing, profile=name)


def alone_row(name: str) -> str:
    """Return the row of a profile on a GPU that is free."""
    grant = decide(asking(name), Situation(V100))
    assert isinstance(grant, Grant)
    option = grant.share_option
    if option is None:
        return f"| `{name}` | no | {grant.exclusive_reason} |"
    share = f"{option.allotment.sm_percentage} % of the SMs: {option.allotment.reason}"
    return f"| `{name}` | yes | {share} |"


def pair_row(first: str, second: str) -> str:
    """Return the row of a profile that comes to a GPU where another one shares."""
    there = asking(first)
    opened = decide(there, Situation(V100))
    assert isinstance(opened, Grant)
    assert opened.share_option is not None
    resident = lease(
        *("a", 0),
        uuids=(V100.gpus[0].uuid,),
        share=share_of(there, opened.share_option),
        user_id=os.geteuid(),
    )
    decision = decide(asking(second), Situation(V100, (resident,)))
    names = f"| `{first}` | `{second}` |"
    if not isinstance(decision, Grant):
        return f"{names} no | {decision.reason.partition('GPU 0: ')[2]} |"
    option = decision.share_option
    assert option is not None
    sums = option.verdict.sums
    used = f"SM utilization {sums.sm_percentage:g} %, memory bandwidth"
    used += f" {sums.memory_bandwidth_percentage:g} %, {format_size(sums.memory_bytes)}"
    speeds = " and ".join(f"{speed:.2f}" for speed in option.prediction.speeds)
    gets = f"{option.allotment.sm_percentage} % of the SMs for the one that comes"
    return f"{names} yes | {used}; {gets}; predicted speeds {speeds} |"


def test_which_may_share() -> None:
    """The tables of docs/guides/sharing.md are what is decided on a V100 of 16 GB."""
    alone = [alone_row(name) for name in WITH_FIGURES]
    sharing = [
        name for name, row in zip(WITH_FIGURES, alone, strict=True) if row.split(" | ")[1] == "yes"
    ]
    pairs = [pair_row(*pair) for pair in combinations_with_replacement(sharing, 2)]
    want = [
        *("| profile | shares | |", "|---|---|---|", *alone, ""),
        *("| on the GPU | comes | may | of all together |", "|---|---|---|---|", *pairs),
    ]
    _, _, text = (ROOT / "docs" / "guides" / "sharing.md").read_text().partition("<!-- pairs -->\n")
    assert text.partition("\n<!-- /pairs -->")[0].splitlines() == want
