"""Measurement of this machine's links: all-reduces on idle GPUs, under a lease."""

from collections.abc import Callable, Sequence

from gpulaunch.api.allocate import allocate
from gpulaunch.decide.needs import leased_until_s
from gpulaunch.decide.request import admit_visible
from gpulaunch.errors import UsageError, WouldWaitError
from gpulaunch.launch.surroundings import read_shown
from gpulaunch.machine.gpu_names import gpus_text
from gpulaunch.machine.topology import Topology
from gpulaunch.machine.write_description import machine_document
from gpulaunch.measure.all_reduce import Benchmark, find_benchmark, run
from gpulaunch.measure.link_fit import Figure, Sample, kinds, others_of_class, samples, slow_links
from gpulaunch.process.system import now
from gpulaunch.records import Record
from gpulaunch.typing import Any

NAME = "gpulaunch topo --measure"


class Measurement(Record):
    """The measured links of a machine.

    Attributes:
        topology: the machine.
        tool: name of the benchmark.
        figures: the bandwidths, in the order of measuring.
    """

    topology: Topology
    tool: str
    figures: tuple[Figure, ...]


def measure(
    warn: Callable[[str], None], tell: Callable[[str], None], *, every_pair: bool = False
) -> Measurement:
    """Measure the all-reduce bandwidth of one set of each kind of this machine's idle GPUs.

    If a pair carries far less than planned, its whole link class is measured, to find out whether
    only this link is slow.

    Args:
        warn: called with each warning.
        tell: called with each line of progress.
        every_pair: whether to measure all pairs.

    Raises:
        UsageError: settings put a described machine in this one's place, or it has fewer than two
            whole GPUs.
        WouldWaitError: fewer than two GPUs are idle.
        FailedError: there is no benchmark, or it fails.
    """
    shown = read_shown(None, warn)
    machine = shown.machine.topology
    if shown.machine.key:
        raise UsageError(f"{machine.name} is only described: there is nothing to measure")
    scope = [
        gpu
        for gpu in machine.gpus
        if not gpu.mig and (shown.within is None or gpu.uuid in shown.within.uuids)
    ]
    if shown.visible is not None:
        scope = [gpu for gpu in scope if gpu.uuid in admit_visible(machine, shown.visible).uuids]
    if len(scope) < 2:
        raise UsageError(
            f"2 GPUs are needed to measure a link: there {'is' if len(scope) == 1 else 'are'} "
            f"{len(scope)}"
        )
    benchmark = find_benchmark()
    leases = shown.table.peek().of(shown.machine).leases
    taken = set(leased_until_s(machine, leases, shown.within))
    if shown.within is None:
        taken |= {use.uuid for use in shown.machine.outside}
    idle = [gpu for gpu in scope if gpu.uuid not in taken]
    if len(idle) < 2:
        raise WouldWaitError(
            f"2 idle GPUs are needed to measure a link: {len(idle)} of {len(scope)} is idle",
            "see 'gpulaunch status'",
        )
    with allocate(
        len(idle), only=[gpu.uuid for gpu in idle], uuid=True, wait=False, name=NAME
    ) as lease:
        tell(f"measuring {gpus_text(len(idle))} with {benchmark.name}")
        measuring = _Measuring(machine, benchmark, lease.fileno(), tell)
        figures = measuring.all([gpu.index for gpu in idle], every_pair=every_pair)
        return Measurement(machine, benchmark.name, tuple(figures))


class _Measuring:
    """A series of benchmark runs, whose processes inherit the lease."""

    def __init__(
        self, topology: Topology, benchmark: Benchmark, lease: int, tell: Callable[[str], None]
    ) -> None:
        self._topology = topology
        self._benchmark = benchmark
        self._lease = lease
        self._tell = tell
        self._uuids = {gpu.index: gpu.uuid for gpu in topology.gpus}

    def all(self, idle: Sequence[int], *, every_pair: bool) -> list[Figure]:
        """Measure all samples, and the class of each slow pair."""
        todo = samples(self._topology, idle, every_pair=every_pair)
        figures: list[Figure] = []
        for number, sample in enumerate(todo, 1):
            figure = self._measure_sample(sample, f"{number} of {len(todo)}")
            figures.append(figure)
            if len(sample.gpus) == 2 and not every_pair and slow_links(self._topology, [figure]):
                others = others_of_class(self._topology, idle, sample)
                figures += [
                    self._measure_sample(other, f"{number} of {len(todo)}, its class")
                    for other in others
                ]
        return figures

    def _measure_sample(self, sample: Sample, place: str) -> Figure:
        uuids = ",".join(self._uuids[gpu] for gpu in sample.gpus)
        variables = {"CUDA_VISIBLE_DEVICES": uuids}
        figure = Figure(
            sample, tuple(run(self._benchmark, len(sample.gpus), variables, self._lease))
        )
        gpus = ",".join(map(str, sample.gpus))
        self._tell(f"{place}: GPUs {gpus} ({kinds(sample)}): {figure.all_reduce_gb_per_s:.4g} GB/s")
        return figure


def measured_document(result: Measurement) -> dict[str, Any]:
    """Return the machine file of this machine, with its [[measured]] bandwidths."""
    document = machine_document(result.topology)
    document["source"] = f"{result.topology.source}; [[measured]] by {result.tool}"
    document["measurement"] = {"tool": result.tool, "date": now()}
    cards = sorted({gpu.card for gpu in result.topology.gpus})
    document["measured"] = []
    for figure in result.figures:
        entry = {
            "gpus": [cards.index(gpu) for gpu in figure.sample.gpus],
            "ring": list(figure.sample.ring),
            "all_reduce_gb_per_s": figure.all_reduce_gb_per_s,
            "message_bytes": [size for size, _ in figure.sizes],
            "bus_gb_per_s": [bandwidth for _, bandwidth in figure.sizes],
        }
        document["measured"].append(entry)
    return document
