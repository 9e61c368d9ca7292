"""Projects of docker compose as plain values: what services ask for, and the line with leases."""

import shlex
from typing import Any

import command_lines
import pytest
from test_docker_command import gpus, read
from values import cases

from gpulaunch.containers.container_launch import ContainerLaunch
from gpulaunch.containers.docker.compose import (
    ServiceLaunch,
    concerned_services,
    config_line,
    containers_of_service,
    generated_line,
    parse_project,
    run_command,
    with_lease,
)
from gpulaunch.containers.docker.engine import Docker
from gpulaunch.containers.docker.gpu_flags import asked_gpus
from gpulaunch.containers.engine import Asked
from gpulaunch.errors import FailedError


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
}


@cases(REQUESTS, "service", "want")
def test_requests(service: dict[str, Any], want: tuple[str | None, tuple[str, ...]] | None) -> None:
    """A service asks for the GPUs that docker run would with the same words."""
    asked = asked_gpus(run_command(project(a={"image": "i", **service}), "a"), {})
    assert (asked and (asked.number, asked.devices)) == want


def test_other_makers_gpus_are_none_of_ours() -> None:
    """A reservation by another driver asks for GPUs of another maker."""
    asked = asked_gpus(run_command(project(a=reserved(driver="amd", count=1)), "a"), {})
    assert asked == Asked("--gpus 1,driver=amd,capabilities=gpu", of_other_maker=True)


def test_image_of_a_service_that_is_built() -> None:
    """A service without an image has the one that compose builds, and its restart policy counts."""
    service = {"build": {"context": "/x"}, "deploy": {"restart_policy": {"condition": "any"}}}
    command = run_command(project(a=service), "a")
    assert (command.operands, command.restart_policy) == (("p-a",), "always")


def leased(service: dict[str, Any], way: str) -> dict[str, Any]:
    """Return a service with GPUs 0 and 2 of lease L, without what every way adds."""
    before = project(a=service, b={"image": "other"})
    command = run_command(before, "a")
    asked = asked_gpus(command, {}) or Asked("none")
    container = ContainerLaunch(Docker(), None, command, asked, way, "E", None)  # type: ignore[arg-type]
    after = with_lease(before, ServiceLaunch("a", container, 2, None), gpus(0, 2), "L")
    assert after["services"]["b"] is before["services"]["b"]
    found = dict(after["services"]["a"])
    assert found.pop("labels") == {
        "io.gpulaunch.gpus": "GPU-0,GPU-2",
        "io.gpulaunch.lease": "L",
    }
    assert found["environment"].pop("GPULAUNCH_LEASE") == "L"
    assert found["environment"].pop("GPULAUNCH_GPU_COUNT") == "2"
    return found


OTHER = {"capabilities": ["tpu"], "count": 1}
GPU = {"capabilities": ["gpu"]}
BY_CDI = {"driver": "cdi", "device_ids": ["nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-2"], **GPU}
BY_FLAG = {"driver": "nvidia", "device_ids": ["GPU-0", "GPU-2"], **GPU}
WAYS = {
    "cdi": ([BY_CDI], {"NVIDIA_VISIBLE_DEVICES": "void"}, {}),
    "gpus": ([BY_FLAG], {}, {}),
    "runtime": ([], {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2"}, {"runtime": "nvidia"}),
    "none": ([], {"NVIDIA_VISIBLE_DEVICES": "void"}, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_service_with_its_lease(way: str) -> None:
    """The lease's GPUs replace the request, and all else of the service stays."""

    def service(devices: list[object], variables: dict[str, str]) -> dict[str, Any]:
        return {
            "image": "i",
            "command": ["echo", "$$HOME"],
            "environment": {"A": "$$b", "C": None, **variables},
            "devices": ["/dev/fuse"],
            "deploy": {
                "replicas": 1,
                "resources": {
                    "limits": {"memory": "1"},
                    "reservations": {"memory": "2", "devices": devices},
                },
            },
        }

    devices, visible, runtime = WAYS[way]
    got = leased(service([{"capabilities": ["gpu"], "count": 2}, OTHER], {}), way)
    assert got == service([OTHER, *devices], visible) | runtime


@pytest.mark.parametrize(
    "request_of",
    [
        {"gpus": "all"},
        {"devices": ["nvidia.com/gpu=all"]},
        {"devices": [{"source": "nvidia.com/gpu=all", "target": "x"}]},
        {"environment": {"NVIDIA_VISIBLE_DEVICES": "all"}},
    ],
)
def test_no_other_request_stays(request_of: dict[str, Any]) -> None:
    """However a service asks for GPUs, nothing of that stays beside its lease."""
    found = leased({"image": "i", **request_of}, "none")
    assert found.get("gpus") is None
    assert found["devices"] == []
    assert found["environment"] == {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize(
    ("line", "want"),
    [
        (
            "-D compose -f a.yml --file=b.yml --profile x -p q --env-file e up a",
            "-D compose --profile x --env-file e -p p --project-directory D -f F up a",
        ),
        (
            "compose --project-directory /x run -w /y a up -f z",
            "compose -p p --project-directory D -f F run -w /y a up -f z",
        ),
    ],
)
def test_generated_line(line: str, want: str) -> None:
    """The generated project takes the place of the user's files, and all other words stay."""
    got = generated_line(read(line), project(), "D", "F")
    assert got == ("docker", *shlex.split(want))


def test_config_line() -> None:
    """The project is read with the user's flags, and with the services of all profiles."""
    got = config_line(read("--context c compose -f a.yml up -d"))
    want = "docker --context c compose -f a.yml --profile * config --format json"
    assert got == shlex.split(want)


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


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "p", "services": {"a": 1}}'])
def test_no_project(text: str) -> None:
    """What is no project is an error of the client that printed it."""
    with pytest.raises(FailedError) as failed:
        parse_project(text)
    assert "which is no project" in failed.value.message


def test_public_lines() -> None:
    """Public lines of docker compose are read as ones that start containers, and stay complete."""
    for line in command_lines.for_clients("docker compose"):
        command = read(line.words[1:])
        assert command.composes
        got = generated_line(command, project(), "D", "F")
        begin = got.index("F") + 1
        assert got[begin:] == tuple(line.words[line.words.index(command.subcommand[1]) :])
