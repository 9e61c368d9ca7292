"""A topology as rows of JSON values, for another process of the same version."""
# pure: decides on plain values

from gpulaunch.machine.cpuset import format_cpuset, parse_cpuset
from gpulaunch.machine.gpu import Gpu, Mig
from gpulaunch.machine.link import Link
from gpulaunch.machine.topology import Topology
from gpulaunch.records import as_dict, as_list, field_names
from gpulaunch.typing import Any


def to_rows(topology: Topology) -> list[Any]:
    """Return the rows; without digest and measurements, which a machine itself has not."""
    gpus = [_gpu_to_row(gpu) for gpu in topology.gpus]
    links = [as_list(link) for link in topology.links]
    return [topology.name, gpus, links, topology.source, topology.driver]


def topology_of_rows(rows: list[Any]) -> Topology:
    """Return the topology of to_rows.

    Raises:
        TypeError, ValueError: they are no rows of this version.
    """
    name, gpus, links, source, driver = rows
    return Topology(
        name,
        tuple(_gpu_from_row(row) for row in gpus),
        tuple(Link(*row) for row in links),
        source,
        driver=driver,
    )


def _gpu_to_row(gpu: Gpu) -> list[Any]:
    mig = as_list(gpu.mig) if gpu.mig else None
    return list((as_dict(gpu) | {"cpuset": format_cpuset(gpu.cpuset), "mig": mig}).values())


def _gpu_from_row(row: list[Any]) -> Gpu:
    fields = dict(zip(field_names(Gpu), row, strict=True))
    mig = Mig(*fields["mig"]) if fields["mig"] else None
    return Gpu(**fields | {"cpuset": parse_cpuset(fields["cpuset"]), "mig": mig})
