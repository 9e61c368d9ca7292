"""Less that a launch asks for when others were faster, or when nothing can be shared."""

from collections.abc import Callable

from gpulaunch.decide.placement.policies import CHEAPEST_POLICY, POLICIES
from gpulaunch.launch.launch import Launch
from gpulaunch.records import replace

MOST_LOST_RACES = 3
"""After this many lost races a launch takes any free GPUs that will do."""

MOST_LOST_RACES_TO_SHARERS = 50
"""After this many lost races a launch that would share takes GPUs of its own. Another launch that
comes first takes nothing from it, so a lost race says little."""


def share_no_longer(launch: Launch, reason: str, warn: Callable[[str], None]) -> Launch:
    """Return the launch as one that wants GPUs of its own, and say why."""
    warn(f"not shared: {reason}")
    return replace(launch, request=replace(launch.request, sharing=None))


def ask_less(launch: Launch, lost_races: int, warn: Callable[[str], None]) -> Launch:
    """Return what the launch asks for after this many lost races."""
    request = launch.request
    if request.sharing and lost_races == MOST_LOST_RACES_TO_SHARERS:
        return share_no_longer(launch, f"others were faster {lost_races} times", warn)
    if lost_races != MOST_LOST_RACES:
        return launch
    if request.is_choosy and not POLICIES[request.policy].waits_for_utility:
        request = replace(request, policy=CHEAPEST_POLICY)
    return replace(launch, request=request, hurried=True)
