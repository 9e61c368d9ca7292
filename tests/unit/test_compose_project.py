"""Projects of docker compose as plain values: what services ask for, and the line with leases."""

from pathlib import Path
from typing import Any

import pytest
from test_docker_command import read
from values import cases

from gpulaunch.containers.docker.compose import (
    concerned_services,
    containers_of_service,
    run_command,
)
from gpulaunch.containers.docker.gpu_flags import asked_gpus
from gpulaunch.files.toml import tomllib

CASES = tomllib.loads(Path(__file__).with_name("compose_project.toml").read_text())


def project(**services: dict[str, Any]) -> dict[str, Any]:
    """Return a project called p."""
    return {"name": "p", "services": services}


@cases(CASES["requests"], "service", "reserved", "want")
def test_requests(service: dict[str, Any], reserved: dict[str, Any], want: dict[str, Any]) -> None:
    """A service asks for the GPUs that docker run would with the same words."""
    whole = {"image": "i", **service}
    if reserved:
        devices = [{"capabilities": ["gpu"], **reserved}]
        whole["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    asked = asked_gpus(run_command(project(a=whole), "a"), {})
    found = asked and (asked.number, list(asked.devices), asked.of_other_maker)
    known = {"number": None, "devices": [], "other": False} | want
    assert found == (tuple(known.values()) if want else None)


def test_image_of_a_service_that_is_built() -> None:
    """A service without an image has the one that compose builds, and its restart policy counts."""
    service = {"build": {"context": "/x"}, "deploy": {"restart_policy": {"condition": "any"}}}
    command = run_command(project(a=service), "a")
    assert (command.operands, command.restart_policy) == (("p-a",), "always")


@pytest.mark.parametrize(("line", "want"), CASES["concerned_services"])
def test_concerned_services(line: str, want: str) -> None:
    """A command concerns the services that it names or else the enabled ones, and their needs."""
    services = project(web={"depends_on": {"db": {}, "model": {}}}, db={}, model={}, alone={})
    assert concerned_services(services, read(line), ["web"]) == want.split()


@pytest.mark.parametrize(("service", "line", "want"), CASES["containers_of_service"])
def test_containers_of_service(service: dict[str, Any], line: str, want: int) -> None:
    """A service has as many containers as the flag says, or else the project."""
    assert containers_of_service(project(a=service), read(line), "a") == want
