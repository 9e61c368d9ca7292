"""Containers from Python by the Docker SDK, and the SDK as an oracle for our own small client."""

import subprocess
import sys
import time
from collections.abc import Iterator

import docker
import pytest
from engine import IMAGE
from test_docker import SHOW, Host

import gpulaunch
from gpulaunch.containers.container import LEASE_LABEL
from gpulaunch.containers.docker.client import DockerClient, parse_info

pytest_plugins = ("fake_nvml", "test_docker")

ON_DGX = {"topology": "dgx1-v100"}


@pytest.fixture
def client(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[docker.DockerClient]:
    """Yield a client of the SDK; the program's environment is that of the launcher."""
    for name in ("DOCKER_HOST", "GPULAUNCH_STATE_DIR", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, host.environment[name])
    client = docker.from_env()
    yield client
    client.close()


def test_a_container_with_gpus_of_its_own(host: Host, client: docker.DockerClient) -> None:
    """Its output is that of the SDK's run(), with GPUs and our variable, and then they are free."""
    output = gpulaunch.run_container(
        client, IMAGE, list(SHOW), gpus=2, settings=ON_DGX, environment={"MINE": "1"}, remove=True
    )
    assert host.seen(output.decode()) == [0, 3]
    assert host.launcher.records() == []


def test_the_lease_follows_the_container(
    host: Host, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detached container keeps its GPUs after the call, also in CI, and frees them by its end."""
    monkeypatch.setenv("CI", "true")
    container = gpulaunch.run_container(
        client,
        IMAGE,
        ["sleep", "60"],
        gpus=2,
        settings={**ON_DGX, "name": "serving"},
        detach=True,
        environment=["MINE=1"],
        labels=["mine"],
    )
    lease = host.lease()
    assert (lease["gpus"], lease["container"]) == ([0, 3], container.id)
    assert (lease["name"], lease["command"]) == ("serving", ["docker", "run", IMAGE])
    assert container.labels.items() >= {LEASE_LABEL: lease["id"], "mine": ""}.items()
    assert "MINE=1" in container.attrs["Config"]["Env"]
    assert host.run("-n", "7", "--", "true").returncode == 75
    container.remove(force=True)
    assert host.run("-n", "8", "--", "true").returncode == 0


def test_the_program_ends_and_the_container_does_not(host: Host) -> None:
    """A detached container keeps its lease after the program that started it was killed."""
    program = f"""
import docker, gpulaunch, os, signal
gpulaunch.run_container(docker.from_env(), {IMAGE!r}, ["sleep", "60"], gpus=3, detach=True,
                        settings={ON_DGX!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], env=host.environment, check=False)
    assert done.returncode == -9
    assert len(host.lease()["gpus"]) == 3
    host.engine.remove_all()
    assert host.leases() == []
    assert host.run("-n", "8", "--", "true").returncode == 0


@pytest.mark.parametrize(
    ("image", "command", "error"),
    [
        (IMAGE, ["sh", "-c", "exit 7"], docker.errors.ContainerError),
        ("Not An Image", ["true"], docker.errors.APIError),
    ],
)
def test_what_fails_leaves_no_lease(
    host: Host, client: docker.DockerClient, image: str, command: list[str], error: type
) -> None:
    """An exception of the SDK passes through, and the GPUs are free."""
    with pytest.raises(error):
        gpulaunch.run_container(client, image, command, gpus=8, settings=ON_DGX)
    assert host.launcher.records() == []
    assert host.run("-n", "8", "--", "true").returncode == 0


def test_a_client_whose_containers_get_gpus(host: Host, client: docker.DockerClient) -> None:
    """Each container that asks for GPUs, or each if their number is said, has a lease of its own.

    All else is as with any client, from builds to the streams of what runs.
    """
    both = docker.types.DeviceRequest(count=2, capabilities=[["gpu"]])
    with gpulaunch.docker(**ON_DGX) as own:
        plain = own.containers.run(IMAGE, list(SHOW), remove=True).decode()
        assert host.seen(plain) == []
        asks = own.containers.run(IMAGE, "sleep 60", device_requests=[both], detach=True)
        with gpulaunch.docker(gpus=3, client=client, **ON_DGX) as other:
            assert (
                len(host.seen(other.containers.run(IMAGE, list(SHOW), remove=True).decode())) == 3
            )
        status, output = asks.exec_run(["sh", "-c", "ls /dev | grep -c nvidia"])
        assert (status, output, len(host.lease()["gpus"])) == (0, b"2\n", 2)
        with pytest.raises(docker.errors.APIError, match="9 GPUs requested: dgx1-v100 has 8"):
            own.containers.run(IMAGE, device_requests=[{**both, "Count": 9}])
    client.containers.get(asks.id).remove(force=True)
    assert host.run("-n", "8", "--", "true").returncode == 0


def test_mistakes(host: Host, client: docker.DockerClient) -> None:
    """Two ways to give GPUs, unknown settings and busy GPUs are refused before anything runs."""
    request = docker.types.DeviceRequest(count=-1, capabilities=[["gpu"]])
    with pytest.raises(gpulaunch.UsageError, match="device_requests: run_container"):
        gpulaunch.run_container(client, IMAGE, gpus=1, device_requests=[request])
    with pytest.raises(TypeError, match="colour"):
        gpulaunch.run_container(client, IMAGE, settings={"colour": "green"})
    with (
        gpulaunch.allocate(8, **ON_DGX),
        pytest.raises(gpulaunch.WouldWaitError, match="0 of 8 are free"),
    ):
        gpulaunch.run_container(client, IMAGE, gpus=1, settings=ON_DGX)
    assert host.nothing_has_run()


def test_an_engine_elsewhere(host: Host, client: docker.DockerClient, monkeypatch) -> None:
    """An engine that is at none of this machine's sockets is refused: so may its GPUs be."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    with pytest.raises(gpulaunch.UsageError, match="none of this machine's sockets"):
        gpulaunch.run_container(client, IMAGE, gpus=1, settings=ON_DGX)
    assert host.nothing_has_run()


def test_each_way(real_host: Host) -> None:
    """By whichever way GPUs get into containers, the SDK's get them by it."""
    program = f"""
import docker, gpulaunch, os
for way in ("cdi", "runtime", "gpus"):
    os.environ["GPULAUNCH_CONTAINER_GPUS"] = way
    seen = gpulaunch.run_container(docker.from_env(), {IMAGE!r}, {list(SHOW)!r}, gpus=2).decode()
    print(way, *sorted(line for line in seen.split() if line.startswith("nvidia")))
"""
    options = {"env": real_host.environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", program], check=False, **options)
    assert done.returncode == 0, done.stderr
    want = [f"{way} nvidia0 nvidia3" for way in ("cdi", "runtime", "gpus")]
    assert done.stdout.splitlines() == want


# --------------------------------------------------------------------------------------- the oracle


def test_our_client_reads_what_the_sdk_reads(host: Host, client: docker.DockerClient) -> None:
    """Description, image, container and processes are the same by both clients."""
    own = DockerClient(host.environment["DOCKER_HOST"].removeprefix("unix://"))
    assert own.info() == parse_info(client.info())
    host.engine.import_image("said:1", ["ENV A=1", "USER 7", "LABEL x=y"])
    image, config = own.image("said:1"), client.images.get("said:1").attrs["Config"]
    assert (image.user, dict(image.labels)) == (config["User"], config["Labels"])
    assert [f"{name}={value}" for name, value in image.variables.items()] == config["Env"]
    host.detached("docker", "run", "-d", "--name", "box", "--restart", "always", IMAGE, "top")
    found, known = own.container("box"), client.containers.get("box")
    assert (found.id, f"/{found.name}", found.state) == (known.id, known.attrs["Name"], "running")
    assert (found.lease_id, found.image_id) == (known.labels[LEASE_LABEL], known.attrs["Image"])
    assert found.restarts
    assert own.container_of(found.lease_id) == found
    titles, rows = known.top()["Titles"], known.top()["Processes"]
    assert own.pids(found) == {int(row[titles.index("PID")]) for row in rows}


def test_our_client_hears_what_the_sdk_hears(host: Host, client: docker.DockerClient) -> None:
    """The last event of a lease's container that counts is the same by both clients."""
    began_s = int(time.time())
    host.detached("docker", "run", "-d", "--name", "box", IMAGE, "sleep", "60")
    container_id = client.containers.get("box").id
    host.do("exec", "box", "true")  # as healthchecks are, of which a watcher hears nothing
    own = DockerClient(host.environment["DOCKER_HOST"].removeprefix("unix://"))
    for words, want in ((("restart", "-t", "0"), "start"), (("kill",), "kill"), (("rm",), "kill")):
        host.do("container", *words, "box")
        heard, until_s = own.last_action(container_id, began_s), int(time.time()) + 1
        of = {"container": container_id}
        told = client.events(since=began_s, until=until_s, filters=of, decode=True)
        decisive = [one["Action"] for one in told if one["Action"] in ("kill", "start", "stop")]
        assert heard == decisive[-1] == want
