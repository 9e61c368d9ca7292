"""Running containers: which GPUs docker gave them, which of them count, and how often one asks."""

from collections.abc import Iterator
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

import pytest
from made_up_engine import BOX, Boxes
from toml_parser import tomllib
from values import cases, machine

from gpulaunch.containers import in_use
from gpulaunch.containers.container import Container
from gpulaunch.containers.create import given_gpus
from gpulaunch.containers.docker.client import parse_container
from gpulaunch.containers.engine import ForbiddenError, LateError, NoAnswerError
from gpulaunch.containers.engines import clients_at_hand, podman_has_containers
from gpulaunch.containers.in_use import RunningContainer, running_containers
from gpulaunch.errors import FailedError
from gpulaunch.records import replace

DGX1 = machine("dgx1-v100")
UUIDS = [gpu.uuid for gpu in DGX1.gpus]
WEB = replace(
    BOX,
    id="e" * 64,
    name="web",
    lease_id=None,
    uuids=(),
    given=("1", UUIDS[4]),
    watched=frozenset({7}),
)
MONITOR = replace(WEB, id="f" * 64, name="monitor", given=("all",))
CASES = tomllib.loads(Path(__file__).with_name("running_containers.toml").read_text())
ANY_REQUEST = {"Driver": "", "Count": 0, "DeviceIDs": None, "Capabilities": [["gpu"]]}
"""A device request of docker's, as its API shows it."""


@cases(CASES["given"], "requests", "others", "want")
def test_gpus_given(requests: list[dict[str, object]], others: dict[str, Any], want: str) -> None:
    """Docker's flags name GPUs one by one, count them from 0, or show all."""
    made_with = [ANY_REQUEST | request for request in requests]
    document = {
        "Id": "c",
        "Name": "/c",
        "Image": "i",
        "State": {"Status": "running", "Pid": 7},
        "HostConfig": {"DeviceRequests": made_with, "Runtime": others.get("Runtime", "runc")},
        "Config": {"Env": others.get("Env")},
    }
    got = parse_container(document)
    assert (",".join(got.given), got.watched) == (want, {7})


def test_a_count_without_sense() -> None:
    """Another user's engine may say any number; no more are counted than a machine can have."""
    host = {"DeviceRequests": [ANY_REQUEST | {"Count": 1 << 60}]}
    assert len(given_gpus(host, ())) == 1024


@cases(CASES["containers_that_hold"], "status", "policy", "state", "want")
def test_when_a_container_holds_its_gpus(
    status: str, policy: str, state: dict[str, Any], want: bool
) -> None:
    """A container holds its GPUs while it runs, is made to be started, or may restart by itself."""
    document = {
        "Id": "c" * 64,
        "Name": "/job",
        "Image": "sha256:i",
        "State": {"Status": status, "ExitCode": 0, "Error": "", **state},
        "HostConfig": {"RestartPolicy": {"Name": policy, "MaximumRetryCount": 0}},
        "Config": {"Labels": {"io.gpulaunch.lease": "L", "io.gpulaunch.gpus": "GPU-0,GPU-2"}},
    }
    assert parse_container(document).holds == want


def test_what_no_engine_says() -> None:
    """An id that is none is refused, and a number that can be no pid counts as none."""
    document = {"Id": "c", "Name": "/c", "Image": "i", "HostConfig": {}, "Config": {}}
    for wrong in ("", 5, "\u00e9", "a\nb"):
        with pytest.raises(ValueError, match="is no identifier"):
            parse_container(document | {"Id": wrong, "State": {"Status": "running"}})
    for wrong in (-1, "7", 1 << 40, None):
        state = {"Status": "running", "Pid": wrong}
        assert parse_container(document | {"State": state}).watched == set()


class Asked(Boxes):
    """An engine that counts the questions."""

    def __init__(self, *boxes: Container, problem: FailedError | None = None) -> None:
        super().__init__(list(boxes))
        self.problem, self.questions = problem, []

    def names(self) -> dict[str, str]:
        self.questions.append("names")
        if self.problem:
            raise self.problem
        return super().names()

    def container(self, name: str) -> Container | None:
        self.questions.append(name[:1])
        return super().container(name)


@pytest.fixture(autouse=True)
def _new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each test meet engines for the first time, and write its cache where nobody else does."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    yield
    in_use._not_before_s.clear()


def found(*clients: Boxes, numbered: bool = True) -> tuple[RunningContainer, ...]:
    """Return the containers of engines, which answer."""
    containers, problems = running_containers(clients, DGX1, numbered=numbered)
    assert problems == []
    return containers


@pytest.mark.parametrize("text", ["", "[]", f'{{"{WEB.id}": 5}}', f'{{"{WEB.id}": [1, 2]}}'])
def test_unknown_cache(tmp_path: Path, text: str) -> None:
    """A cache that is damaged, or of another version, costs one inspection."""
    (tmp_path / "runtime" / "gpulaunch.containers.json").write_text(text)
    assert [one.name for one in found(Asked(WEB))] == ["web"]


def test_engine_that_is_late() -> None:
    """An engine that has not answered in time is not asked again soon, and the others are."""
    late = Asked(problem=LateError("late"))
    late.address = "box:2"
    for want in (["late"], []):
        containers, problems = running_containers([late, Asked(WEB)], DGX1, numbered=True)
        assert ([one.name for one in containers], problems) == (["web"], want)
    assert late.questions == ["names"]


def test_engine_without_an_answer() -> None:
    """No word of an engine that does not run, or is not this user's; others tell what failed."""
    problems = (NoAnswerError("gone"), ForbiddenError("not you"), FailedError("it failed"))
    for problem, want in zip(problems, ([], [], ["it failed"]), strict=True):
        got = running_containers([Asked(problem=problem)], DGX1, numbered=True)
        assert got == ((), want)


def test_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine is asked at the socket that its variable names, once, and if it is there."""
    for name in ("DOCKER_SOCKET", "ROOTLESS_DOCKER_SOCKET"):
        monkeypatch.setattr(f"gpulaunch.containers.{name}", str(tmp_path / "s"))
    for address in ("tcp://there:1", f"unix://{tmp_path}/./s"):
        monkeypatch.setenv("DOCKER_HOST", address)
        assert clients_at_hand() == []
    with socket(AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        got = [(client.program, client.address) for client in clients_at_hand()]
        assert got == [("docker", f"{tmp_path}/s")]
        monkeypatch.setattr("gpulaunch.containers.DOCKER_SOCKET", "/no/such.sock")
        monkeypatch.setattr("gpulaunch.containers.ROOTLESS_DOCKER_SOCKET", "/no/such.sock")
        monkeypatch.setenv("DOCKER_HOST", f" unix://{tmp_path}/s ")  # docker takes it, too
        assert [client.address for client in clients_at_hand()] == [f"{tmp_path}/s"]


SYSTEM = "system.conf"


@cases(CASES["store_of_podman"], "user_id", "settings", "root")
def test_store_of_podman(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user_id: int,
    settings: dict[str, str],
    root: str,
) -> None:
    """Podman is asked if there are containers in the store that the user's settings name."""
    monkeypatch.setattr("os.geteuid", lambda: user_id)
    monkeypatch.setattr("gpulaunch.containers.engines._SYSTEM_FILES", (tmp_path / SYSTEM,))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if "own.conf" in settings:
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "own.conf"))
    for name, text in settings.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.format(tmp_path))
    listed = tmp_path / root / "overlay-containers" / "containers.json"
    assert podman_has_containers() is False
    listed.parent.mkdir(parents=True)
    (tmp_path / root / "vfs-containers").mkdir()
    for text, found in (("[]", False), ('[{"id": "a"}]', True)):
        listed.write_text(text)
        assert podman_has_containers() is found
    listed.rename(listed.with_name("volatile-containers.json"))  # of run --rm, since Podman 4.4
    assert podman_has_containers() is True
