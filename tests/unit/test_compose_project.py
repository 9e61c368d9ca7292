"""Projects of docker compose as plain values: what services ask for, and the line with leases."""

from typing import Any

import command_lines
import pytest
from test_docker_command import read
from values import cases

from gpulaunch.containers.docker.compose import (
    concerned_services,
    containers_of_service,
    generated_line,
    run_command,
)
from gpulaunch.containers.docker.gpu_flags import asked_gpus


def reserved(**request: object) -> dict[str, Any]:
    """Return the part of a service that reserves GPUs."""
    devices = [{"capabilities": ["gpu"], **request}]
    return {"deploy": {"resources": {"reservations": {"devices": devices}}}}


def project(**services: dict[str, Any]) -> dict[str, Any]:
    """Return a project called p."""
    return {"name": "p", "services": services}


REQUESTS = {
    "a count": (reserved(count=2), ("2", ())),
    "all": (reserved(count=-1), ("all", ())),
    "no count": (reserved(), ("all", ())),
    "ids": (reserved(device_ids=["0", "GPU-3"]), (None, ("0", "GPU-3"))),
    "gpus": ({"gpus": [{"count": 3}]}, ("3", ())),
    "gpus: all": ({"gpus": "all"}, ("all", ())),
    "CDI": ({"devices": ["nvidia.com/gpu=1", "/dev/fuse"]}, (None, ("1",))),
    "CDI as newer versions write it": (
        {"devices": [{"source": "nvidia.com/gpu=all", "target": "nvidia.com/gpu=all"}]},
        ("all", ()),
    ),
    "CDI as a reservation": (
        reserved(driver="cdi", device_ids=["nvidia.com/gpu=2"]),
        (None, ("2",)),
    ),
    "a variable": ({"environment": {"NVIDIA_VISIBLE_DEVICES": "1,2"}}, (None, ("1", "2"))),
    "a variable without value": ({"environment": {"NVIDIA_VISIBLE_DEVICES": None}}, None),
    "another device": (reserved(capabilities=["tpu"], count=1), None),
    "another maker's": (reserved(driver="amd", count=1), (None, ())),
}


@cases(REQUESTS, "service", "want")
def test_requests(service: dict[str, Any], want: tuple[str | None, tuple[str, ...]] | None) -> None:
    """A service asks for the GPUs that docker run would with the same words."""
    asked = asked_gpus(run_command(project(a={"image": "i", **service}), "a"), {})
    assert (asked and (asked.number, asked.devices)) == want


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("compose up", "web db model"),
        ("compose up db", "db"),
        ("compose up -d web", "web db model"),
        ("compose up --no-deps web", "web"),
        ("compose run alone web", "alone"),
        ("compose up nobody", ""),
    ],
)
def test_concerned_services(line: str, want: str) -> None:
    """A command concerns the services that it names or else the enabled ones, and their needs."""
    services = project(web={"depends_on": {"db": {}, "model": {}}}, db={}, model={}, alone={})
    assert concerned_services(services, read(line), ["web"]) == want.split()


@pytest.mark.parametrize(
    ("service", "line", "want"),
    [
        ({}, "compose up", 1),
        ({"deploy": {"replicas": 0}}, "compose up", 0),
        ({"scale": 0}, "compose up", 0),
        ({"scale": 2}, "compose up", 2),
        ({"scale": 2}, "compose up --scale a=4 --scale b=9", 4),
        ({"scale": 2}, "compose run a", 1),
    ],
)
def test_containers_of_service(service: dict[str, Any], line: str, want: int) -> None:
    """A service has as many containers as the flag says, or else the project."""
    assert containers_of_service(project(a=service), read(line), "a") == want


def test_public_lines() -> None:
    """Public lines of docker compose are read as ones that start containers, and stay complete."""
    for line in command_lines.for_clients("docker compose"):
        command = read(line.words[1:])
        assert command.composes
        got = generated_line(command, project(), "D", "F")
        begin = got.index("F") + 1
        assert got[begin:] == tuple(line.words[line.words.index(command.subcommand[1]) :])
