"""The place of a measurement: the GPUs that are free now, and those that the job would get."""

from collections.abc import Callable, Iterable

from gpulaunch.decide.decide import used_outside
from gpulaunch.decide.decision import Grant, Situation, Wait
from gpulaunch.decide.needs import leased_until_s
from gpulaunch.decide.placement.place import Candidate, ranking
from gpulaunch.decide.placement.policies import DEFAULT_POLICY
from gpulaunch.decide.request import Unfit
from gpulaunch.errors import FailedError, UsageError, WouldWaitError
from gpulaunch.launch.assess import granted_gpus, preview
from gpulaunch.launch.launch import Launch
from gpulaunch.launch.read_sharing import what_can_be_shared
from gpulaunch.machine.gpu import Gpu
from gpulaunch.machine.gpu_names import gpu_names
from gpulaunch.measure.recording import refuse_described
from gpulaunch.records import Record


class Site(Record):
    """The GPUs that a launch would get now.

    Attributes:
        grant: the decision.
        situation: the situation in which it was made.
        gpus: the GPUs of the grant, in rank order.
    """

    grant: Grant
    situation: Situation
    gpus: tuple[Gpu, ...]

    @property
    def free(self) -> list[Gpu]:
        """All GPUs that are neither leased nor in use outside gpulaunch."""
        topology = self.situation.topology
        leased = leased_until_s(topology, self.situation.leases, self.situation.within)
        taken = leased.keys() | used_outside(self.situation, leased)
        return [gpu for gpu in topology.gpus if gpu.uuid not in taken]


def find_site(launch: Launch, warn: Callable[[str], None]) -> Site:
    """Decide about a launch without taking a lease.

    Raises:
        WouldWaitError: the GPUs that it needs are busy.
        UsageError: the launch can never be granted, or its machine is only described.
    """
    refuse_described(launch)
    decision, situation = preview(launch, warn)
    if isinstance(decision, Wait):
        raise WouldWaitError(decision.reason, "measure when they are free; see 'gpulaunch status'")
    if not isinstance(decision, Grant):
        raise UsageError(decision.reason)
    return Site(decision, situation, tuple(granted_gpus(launch, decision)))


def extremes(site: Site) -> tuple[Candidate, Candidate]:
    """Return the sets of free GPUs with the most and the least effective bandwidth for the job."""
    candidates = ranking(site.grant.problem, DEFAULT_POLICY)
    best = worst = next(candidates)
    for candidate in candidates:
        worst = candidate
    return best, worst


def check_sharable(launch: Launch, gpus: Iterable[Gpu], option: str) -> None:
    """Check, before long work, that jobs can share GPUs.

    Args:
        launch: a launch on this machine.
        gpus: the GPUs to be shared.
        option: the option that needs it, for the message.

    Raises:
        FailedError: one of the GPUs cannot be shared.
    """
    offer = what_can_be_shared(launch.machine)
    if isinstance(offer, Unfit):
        raise FailedError(f"{option}: no GPU can be shared: {offer.reason}")
    for gpu in gpus:
        if gpu.uuid in offer.unfit:
            raise FailedError(f"{option}: GPU {gpu.name} cannot be shared: {offer.unfit[gpu.uuid]}")


def names(gpus: Candidate | Iterable[Gpu]) -> str:
    """Return names of GPUs as --only takes them."""
    return ",".join(map(str, gpus.gpus)) if isinstance(gpus, Candidate) else gpu_names(gpus)
