"""The terms of a launch that shares GPUs, and the GPUs of a machine that can be shared."""

import os
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, cast

from gpulaunch.decide.decision import Sharing, Unfit
from gpulaunch.errors import FailedError, UsageError, printable, quoted
from gpulaunch.files.units import format_size
from gpulaunch.launch.options import Options, Source
from gpulaunch.leases.environment import MPS_CONTROL
from gpulaunch.leases.lease import Client, Objective
from gpulaunch.machine.catalog import load_gpu_models
from gpulaunch.machine.driver import DRIVERS
from gpulaunch.machine.find import Machine, load_driver
from gpulaunch.machine.gpu import Gpu, GpuModel, find_gpu_model
from gpulaunch.profiles.catalog import load_profile
from gpulaunch.profiles.demand import Demand
from gpulaunch.profiles.profile import Profile
from gpulaunch.records import Record, replace
from gpulaunch.sharing import mps_daemon as mps
from gpulaunch.sharing.caps import Search, joined
from gpulaunch.sharing.speed import Capacity, capacity_by, is_memory_bound, with_headroom

LEAST_DRIVER = 550
"""First major version of the driver that reports whether an MPS server works; 535 does not."""

_DRIVER_OF_CUDA_13_1 = 590
_VOLTA = (7, 0)
_MIB = 1 << 20
_CLIENTS, _CLIENTS_FROM_CUDA_13_1 = 48, 60


def read_sharing(
    options: Options, profile: Profile, machine: Machine, name: str
) -> Sharing | Unfit:
    """Return the terms on which a job shares GPUs, or why it needs GPUs of its own.

    Args:
        name: name of the job if its profile has none.

    Raises:
        UsageError: a named profile does not exist, or lacks figures.
    """
    # A part that the user asks for by --share=1/2, in percent.
    share = options.share
    part = None if isinstance(share, bool) else share
    asked_memory = options.memory
    demand = _read_demand(options, profile, name, part)
    if isinstance(demand, Unfit):
        return demand
    offer = what_can_be_shared(machine)
    if isinstance(offer, Unfit):
        return offer
    sizes = [capacity.memory_bytes for capacity in offer.capacities.values()]
    limit = _read_memory_limit(options, profile, part, sizes)
    if isinstance(limit, Unfit):
        return limit
    demand = replace(demand, memory_bytes=limit)
    # Parts of a GPU fill it, however many they are. Of a job that is known by its part alone,
    # nobody can say what it loses.
    is_unknown = bool(part) and profile.demand is None
    is_guess = is_unknown and options.utilization is None
    name_of_objective = options.objective or ("energy" if is_unknown else "throughput")
    objective = Objective(cast("Any", name_of_objective))  # one of OBJECTIVES
    if is_guess:
        objective = replace(objective, throughput_tolerance_percentage=100.0)
    # How slow a job is beside others does not count while that is measured.
    slowdowns = {} if options.record_to else profile.gpu_slowdowns
    return Sharing(
        client=Client(demand, objective, slowdowns, profile.measured_on_one_gpu),
        sm_percentage=options.sm_percentage or part or profile.sharing.sm_percentage,
        user_id=os.geteuid(),
        capacities=offer.capacities,
        unfit=offer.unfit,
        guest=options.guest,
        holds_the_rest=bool(profile.resources.incomplete) and part is None and asked_memory is None,
        search=_read_search(profile, offer, machine),
        tries="record" in options.given and bool(options.record),
        is_guess=is_guess,
    )


def _read_search(profile: Profile, offer: "ShareableGpus", machine: Machine) -> Search | None:
    """Return what was tried beside the jobs of the last launch; None if nothing that all told."""
    known = profile.search
    gpus = {gpu.uuid for gpu in machine.topology.gpus if gpu.model == known.measured_on}
    shareable = gpus & offer.capacities.keys()
    if not known.beside or not shareable:
        return None
    profiles = [profile]
    for name in known.beside:
        try:
            profiles.append(load_profile(name))
        except UsageError:  # it has been removed, or is wrong now
            return None
    profiles.sort(key=attrgetter("name"))
    names = [one.name for one in profiles]
    told = {}
    for one in profiles:
        others = names.copy()
        others.remove(one.name)
        is_same = (one.search.beside, one.search.measured_on) == (others, known.measured_on)
        told[one.name] = one.searched if is_same else {}
    demands = [one.demand for one in profiles if one.demand]
    tried = joined(names, told)
    trials = {caps: speeds for caps, speeds in tried.items() if speeds}
    if not trials or len(demands) < len(names):
        return None
    bound = tuple(map(is_memory_bound, demands))
    return Search(tuple(names), tuple(demands), bound, trials, frozenset(tried), frozenset(gpus))


def _read_memory_limit(
    options: Options,
    profile: Profile,
    part: int | None,
    sizes: Sequence[int],
) -> int | Unfit:
    """Return what a job may allocate on each GPU: what is asked for, its part, or its peak's.

    Args:
        sizes: memory of each GPU that can be shared, in bytes.
    """
    options = options.with_profile(memory=profile.memory_bytes)
    asked, peak_bytes = options.memory, profile.memory_bytes or 0
    if asked is not None and options.source("memory") != Source.PROFILE:
        # 16G are all that the smallest GPU has that is sold so, be that less than 16 GiB.
        sold_so = [size for size in sizes if size >= asked.of_gpu_bytes]
        return min([int(asked), *sold_so])
    if part is None or not sizes:
        return with_headroom(peak_bytes, sizes)
    limit = min(sizes) * part // 100 // _MIB * _MIB
    if limit < peak_bytes:
        return Unfit(
            f"{part} % of a GPU's {format_size(min(sizes))} is {format_size(limit)}: profile "
            f"{quoted(profile.name)} takes {format_size(peak_bytes)}"
        )
    return limit


class ShareableGpus(Record):
    """The GPUs of a machine that can be shared.

    Attributes:
        capacities: their capacities, by UUID.
        unfit: why the other GPUs cannot be shared, by UUID.
    """

    capacities: dict[str, Capacity]
    unfit: dict[str, str]


def what_can_be_shared(machine: Machine) -> ShareableGpus | Unfit:
    """Return the GPUs that can be shared, or why none can."""
    name = machine.topology.driver
    if not DRIVERS[name].mps:
        return Unfit(f"GPUs of the driver {name} have no CUDA MPS")
    driver = None if machine.key else _driver_of_mps(name)
    if isinstance(driver, Unfit):
        return driver
    models = load_gpu_models()
    offer = ShareableGpus({}, {})
    for gpu in machine.topology.gpus:
        found = capacity_of(gpu, find_gpu_model(models, gpu.model), driver)
        if isinstance(found, Unfit):
            offer.unfit[gpu.uuid] = found.reason
        else:
            offer.capacities[gpu.uuid] = found
    return offer


def _read_demand(options: Options, profile: Profile, name: str, part: int | None) -> Demand | Unfit:
    """Return the job's use of a GPU, or what is missing; options come before the profile.

    A job that asks for a part of a GPU is taken to use that part, where nobody says what it uses.
    """
    own = profile.resources
    memory_bytes = options.with_profile(memory=profile.memory_bytes).memory
    sm, bandwidth = options.utilization or (
        own.sm_utilization_percentage,
        own.memory_bandwidth_utilization_percentage,
    )
    said = {
        "sm_utilization_percentage": sm,
        "memory_bandwidth_utilization_percentage": bandwidth,
        "memory_mib": memory_bytes and -(-memory_bytes // _MIB),
    }
    resources = {
        key: part if value is None else value
        for key, value in said.items()
        if value is not None or part
    }
    known = profile.but(name=profile.name or name, resources=resources)
    demand = known.demand
    if demand:
        return demand
    missing = ", ".join(known.missing_demand)
    whose = f"profile {quoted(profile.name)} does not say" if profile.name else "nobody says"
    return Unfit(
        f"{whose} what it uses of a GPU ({missing}): --share=1/2 asks for a part, 'gpulaunch "
        "profile measure' measures it"
    )


def _driver_of_mps(name: str) -> int | Unfit:
    """Return the major version of this machine's driver, or why it cannot share GPUs."""
    if mps.program() is None:
        return Unfit(f"{MPS_CONTROL} is not on PATH")
    try:
        version = load_driver(name).version()
    except FailedError as problem:
        return Unfit(problem.message)
    major = (version or "").partition(".")[0]
    if not major.isdecimal():
        return Unfit("the driver does not tell its version")
    if int(major) < LEAST_DRIVER:
        shown = printable(version or "")
        return Unfit(
            f"driver {shown} does not tell whether its MPS works: {LEAST_DRIVER} is the first to"
        )
    return int(major)


def capacity_of(gpu: Gpu, model: GpuModel | None, driver: int | None) -> Capacity | Unfit:
    """Return the capacity of a GPU for jobs that share it, or why it cannot be shared.

    Args:
        model: figures of its model; None if unknown.
        driver: major version of the driver; None on a described machine.

    Source: NVIDIA, Multi-Process Service (client limits; MIG: memory is not bounded there as on
        whole GPUs). Before Volta a fault of one client ends all others, and neither SMs nor memory
        can be bounded.
    """
    if gpu.mig:
        return Unfit(
            "it is a MIG instance, where MPS does not bound memory as it does on whole GPUs"
        )
    capability = gpu.compute_capability or (model.compute_capability if model else None)
    version = tuple(int(part) for part in (capability or "").split(".") if part.isdecimal())
    if len(version) != 2:
        return Unfit("its compute capability is unknown")
    if version < _VOLTA:
        return Unfit(f"compute capability {capability}: MPS bounds SMs and memory from 7.0 on")
    if not gpu.memory_bytes:
        return Unfit("how much memory it has is unknown")
    most = _CLIENTS
    if driver is not None and driver >= _DRIVER_OF_CUDA_13_1:
        most = _CLIENTS_FROM_CUDA_13_1
    return capacity_by(model, gpu.memory_bytes, most)
