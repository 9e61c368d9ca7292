"""`gpulaunch docker compose ...` with a real Docker Engine and a real docker compose.

Each service that asks for GPUs gets a lease of its own, which follows its container.
"""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from conftest import Launcher, until
from engine import IMAGE, Engine, link_plugin
from test_docker import TOLD_BY_NVML, Host, started

pytest_plugins = ("fake_nvml",)

EXAMPLE = Path(__file__).parents[2] / "examples" / "compose.yaml"
SLEEP = ["sleep", "1000"]
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def reserved(**request: object) -> dict[str, object]:
    """Return the part of a service that reserves GPUs."""
    devices = [{"driver": "nvidia", "capabilities": ["gpu"], **request}]
    return {"deploy": {"resources": {"reservations": {"devices": devices}}}}


def service(**more: object) -> dict[str, object]:
    """Return a service that runs until it is stopped, at once."""
    whole = {"image": IMAGE, "command": SLEEP, "network_mode": "none", "stop_grace_period": "0s"}
    return {**whole, **more}


MIXED = {
    "one": service(**reserved(count=1)),
    "two": service(**reserved(count=2)),
    "db": service(),
}


class Project:
    """A project of docker compose in a directory of its own."""

    def __init__(self, host: Host, directory: Path, services: dict[str, object]) -> None:
        self.host, self.directory, self.name = host, directory, directory.name
        directory.mkdir()
        self.write(services)

    def write(self, services: dict[str, object]) -> None:
        """Change the project."""
        (self.directory / "compose.yaml").write_text(json.dumps({"services": services}))

    def run(
        self, *arguments: str, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run docker compose through gpulaunch to its end."""
        return self.host.run(*options, "docker", "compose", *arguments, cwd=self.directory)

    def started(self, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """Start docker compose through gpulaunch, and end it with the block."""
        return started(self.host, "docker", "compose", *arguments, cwd=self.directory)

    def plain(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run docker compose without gpulaunch to its end."""
        return self.host.plain("compose", *arguments, cwd=self.directory)

    def up(self, *arguments: str) -> None:
        """Bring the project up in the background, which must succeed."""
        done = self.run("up", "-d", *arguments)
        assert done.returncode == 0, done.stderr

    def container(self, name: str, number: int = 1) -> str:
        """Return the name of a service's container."""
        return f"{self.name}-{name}-{number}"

    def inspect(self, name: str) -> dict:
        """Return what the engine says of a service's container."""
        return self.host.engine.inspect(self.container(name))

    def states(self) -> dict[str, str]:
        """Return what the containers of the services do."""
        found = self.host.engine.containers()
        named = {one["Labels"].get("com.docker.compose.service"): one["State"] for one in found}
        return {name: state for name, state in named.items() if name}

    def gpus(self, name: str, number: int = 1) -> list[int]:
        """Return the GPUs that a service's container sees."""
        show = "tr '\\0' '\\n' < /proc/1/environ | grep FAKE_GPU; ls /dev | grep nvidia; true"
        return self.host.seen(self.host.do("exec", self.container(name, number), "sh", "-c", show))

    def leased(self) -> dict[str, list[int]]:
        """Return the GPUs of the leases by their names."""
        return {lease["name"]: lease["gpus"] for lease in self.host.leases()}


@pytest.fixture
def host(launcher: Launcher, docker: Engine, dgx1_v100) -> Iterator[Host]:  # noqa: ARG001
    """Yield a DGX-1 that NVML tells of, with docker compose; it ends up free."""
    host = Host(launcher, docker, TOLD_BY_NVML, ())
    host.environment["GPULAUNCH_GRACE"] = "0.1s"
    link_plugin(Path(host.environment["DOCKER_CONFIG"]), "docker-compose")
    if host.plain("compose", "version").returncode:
        pytest.skip("not installed: docker compose")
    yield host
    docker.remove_all()
    host.await_free()


@pytest.fixture
def project(host: Host, tmp_path: Path) -> Project:
    """Return a project with a service for one GPU, one for two, and one without."""
    return Project(host, tmp_path / "mixed", MIXED)


def test_example(host: Host, tmp_path: Path) -> None:
    """The services of examples/compose.yaml get leases of their own, for two GPUs and for one."""
    project = Project(host, tmp_path / "ours", {})
    # Of the images that the example names, the engine has none.
    small = {"image": IMAGE, "entrypoint": SLEEP, "command": [], "network_mode": "none"}
    project.write({name: {**small, "ports": []} for name in ("train", "serve")})
    files = ("-f", str(EXAMPLE), "-f", "compose.yaml", "--project-name", "ours")
    done = project.run(*files, "up", "-d")
    assert done.returncode == 0, done.stderr
    leased = project.leased()
    assert {name: len(gpus) for name, gpus in leased.items()} == {"ours/serve": 1, "ours/train": 2}
    assert project.gpus("train") == sorted(leased["ours/train"])
    assert project.gpus("serve") == sorted(leased["ours/serve"])


def test_down_frees_all(project: Project) -> None:
    """Docker compose down with gpulaunch frees every lease, also of an up in CI."""
    project.host.environment["CI"] = "true"
    project.up()
    assert set(project.leased()) == {"mixed/one", "mixed/two"}
    assert project.run("down").returncode == 0
    project.host.await_free()


def test_services_without_gpus_keep_their_containers(project: Project) -> None:
    """Up with gpulaunch after one without, and the reverse, makes no container without GPUs anew.

    Compose does that if its hash of a service differs; variables of an env_file are in it.
    """
    (project.directory / "db.env").write_text("FROM_FILE=a$$b\n")
    (project.directory / "data").mkdir()
    own = service(
        env_file="db.env",
        environment=["DOLLAR=a$$b", "HOME"],
        labels={"my.label": "a$$b"},
        volumes=["./data:/data"],
        healthcheck={"test": ["CMD", "true"]},
    )
    project.write({**MIXED, "db": own})
    assert project.plain("up", "-d", "db").returncode == 0
    made = project.inspect("db")["Id"]
    project.up()
    assert project.inspect("db")["Id"] == made
    assert project.plain("up", "-d", "db").returncode == 0
    assert project.inspect("db")["Id"] == made


def test_up_again(project: Project) -> None:
    """A second up leaves alone what runs, gives new GPUs to what has ended, and keeps leases.

    A service that is made anew keeps its lease if it asks for as many GPUs as before.
    """
    project.up()
    leased, ids = project.leased(), {name: project.inspect(name)["Id"] for name in MIXED}
    project.up()
    assert project.leased() == leased
    assert {name: project.inspect(name)["Id"] for name in MIXED} == ids
    project.host.do("kill", project.container("one"))
    until(lambda: list(project.leased()) == ["mixed/two"])
    project.up()
    assert project.gpus("one") == project.leased()["mixed/one"]
    assert project.inspect("two")["Id"] == ids["two"]
    leased = project.leased()
    project.write({**MIXED, "two": service(**reserved(count=2), environment=["NEW=1"])})
    project.up()
    assert project.inspect("two")["Id"] != ids["two"]
    until(lambda: project.inspect("two")["State"]["Running"])
    assert project.leased() == leased
    assert project.gpus("two") == sorted(leased["mixed/two"])
    project.write({**MIXED, "one": service(**reserved(count=3))})
    project.up()  # more GPUs need another lease
    until(lambda: len(project.host.leases()) == 2)
    assert len(project.gpus("one")) == 3


def test_run_gets_a_lease_for_as_long_as_it_runs(project: Project) -> None:
    """Docker compose run gets a lease of its own, which has ended when the command returns."""
    done = project.run("run", "--rm", "two", "sh", "-c", "ls /dev | grep -c nvidia")
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert project.leased() == {}


def test_too_few_free_gpus_start_nothing(project: Project) -> None:
    """With too few free GPUs nothing is started and nothing leased, and the status is 75."""
    with project.host.start("-n", "6", "--", "cat", stdin=subprocess.PIPE) as job:
        until(lambda: bool(project.host.leases()))
        done = project.run("up", "-d")
        assert done.returncode == 75
        assert "running" not in project.states().values()
        assert len(project.host.leases()) == 1
        job.stdin.close()


def test_two_projects_that_wait_both_finish(host: Host, tmp_path: Path) -> None:
    """Of two projects that want more than half each, one waits for all and none for a part."""
    services = {
        name: service(**reserved(count=3), command=["sleep", "1"]) for name in ("left", "right")
    }
    projects = [Project(host, tmp_path / name, services) for name in ("first", "second")]
    up = ("--wait", "docker", "compose", "up")
    launches = [host.start(*up, cwd=project.directory) for project in projects]
    for launch in launches:
        _, told = launch.communicate()
        assert launch.returncode == 0, told


def test_in_the_foreground(host: Host, tmp_path: Path) -> None:
    """A service that ends beside an attached up frees its lease; INT stops the others.

    Up again at once waits for the leases that are about to end.
    """
    services = {"one": service(**reserved(count=1)), "rest": service(**reserved(count=7))}
    project = Project(host, tmp_path / "whole", services)
    with project.started("up") as launch:
        until(lambda: project.states() == {"one": "running", "rest": "running"})
        host.do("kill", project.container("one"))
        until(lambda: list(project.leased()) == ["whole/rest"])
        launch.send_signal(signal.SIGINT)
        launch.communicate()
    assert set(project.states().values()) == {"exited"}
    project.up()
    assert sorted(project.gpus("one") + project.gpus("rest")) == list(range(8))


def test_a_killed_launcher_leaves_no_lease_without_container(project: Project) -> None:
    """Killed while docker compose makes containers, gpulaunch leaves leases to what runs."""
    with project.started("up", "-d") as launch:
        until(project.states)  # a moment after the leases: earlier, there is no compose yet
        launch.kill()
        launch.communicate()

    def running() -> set[str]:
        return {name for name, state in project.states().items() if state == "running"} - {"db"}

    until(lambda: {name.partition("/")[2] for name in project.leased()} == running())
    assert project.plain("down").returncode == 0
    project.host.await_free()


def test_an_image_is_built_on_the_way(host: Host, tmp_path: Path) -> None:
    """BuildKit's session, its streams and the sent folder pass the door, and then the lease."""
    recipe = f"FROM {IMAGE}\nCOPY compose.yaml /sent\nRUN echo built > /made\n"
    built = {"build": {"context": ".", "network": "none", "dockerfile_inline": recipe}}
    asks = {
        **service(**reserved(count=2)),
        **built,
        "command": ["sh", "-c", "cat /made; sleep 100"],
    }
    del asks["image"]
    project = Project(host, tmp_path / "builder", {"one": asks})
    project.up("--build")
    assert host.do("exec", project.container("one"), "sh", "-c", "cat /made; ls /sent") == (
        "built\n/sent"
    )
    assert project.gpus("one") == project.leased()["builder/one"]
    project.plain("down", "--rmi", "all", "--timeout", "0")


def test_a_wrong_file_is_composes_to_tell(project: Project) -> None:
    """What is wrong with a project is told by compose alone, once, with its status."""
    project.write({"one": {"image": 3}})
    for words in (["up", "-d"], ["run", "one"]):
        bare, launched = project.plain(*words), project.run(*words)
        assert (launched.returncode, launched.stderr) == (bare.returncode, bare.stderr)


def test_what_a_service_may_say(host: Host, tmp_path: Path) -> None:
    """A service's request means the same as in docker run."""
    asks: dict[str, tuple[dict[str, object], list[int]]] = {
        "ids": (reserved(device_ids=["3", "GPU-v100-5"]), [3, 5]),
        "cdi": (reserved(driver="cdi", device_ids=["nvidia.com/gpu=6"]), [6]),
        "variable": ({"runtime": "nvidia", "environment": [f"{VISIBLE}=2"]}, [2]),
        "none": ({"runtime": "nvidia", "environment": [f"{VISIBLE}=none"]}, []),
    }
    project = Project(host, tmp_path / "asks", {name: service(**asks[name][0]) for name in asks})
    project.up()
    want = {name: gpus for name, (_, gpus) in asks.items()}
    assert {name: project.gpus(name) for name in asks} == want
    assert project.leased() == {f"asks/{name}": gpus for name, gpus in want.items() if gpus}


@pytest.mark.parametrize(
    "request_of",
    [reserved(count="all"), reserved(driver="cdi", device_ids=["nvidia.com/gpu=all"])],
    ids=str,
)
def test_all_may_be_fewer(host: Host, tmp_path: Path, request_of: dict[str, object]) -> None:
    """However a service asks for all GPUs, it sees those alone that options leave of them."""
    project = Project(host, tmp_path / "all", {"one": service(**request_of)})
    done = project.run("up", "-d", options=("--only", "4,5", "-n", "2"))
    assert done.returncode == 0, done.stderr
    assert (project.leased(), project.gpus("one")) == ({"all/one": [4, 5]}, [4, 5])


@pytest.mark.parametrize("way", ["cdi", "runtime", "gpus"])
def test_ways_in(project: Project, way: str) -> None:
    """The setting container_gpus forces how GPUs get into a service's container."""
    project.host.environment["GPULAUNCH_CONTAINER_GPUS"] = way
    done = project.run("create", "two")
    assert done.returncode == 0, done.stderr
    host, config = (project.inspect("two")[key] for key in ("HostConfig", "Config"))
    (lease,) = project.host.leases()
    uuids = [project.host.uuids[gpu] for gpu in lease["gpus"]]
    requests = [(one["Driver"], one["DeviceIDs"]) for one in host["DeviceRequests"] or ()]
    visible = [text for text in config["Env"] if text.startswith(f"{VISIBLE}=")]
    want = {
        "cdi": ([("cdi", [f"nvidia.com/gpu={uuid}" for uuid in uuids])], "void", "runc"),
        "gpus": ([("nvidia", uuids)], "void", "runc"),
        "runtime": ([], ",".join(uuids), "nvidia"),
    }
    requested, value, runtime = want[way]
    assert (requests, host["Runtime"]) == (requested, runtime)
    assert visible == ([] if way == "gpus" else [f"{VISIBLE}={value}"])


@pytest.mark.parametrize(
    ("services", "line", "words"),
    [
        (MIXED, ("--share", "docker", "compose", "up"), "--share"),
        (MIXED, ("docker", "-H", "tcp://192.0.2.1:2375", "compose", "up"), "tcp://192.0.2.1:2375"),
        (MIXED, ("-n", "2", "docker", "compose", "up", "-d"), "-n 2 and docker's device request 1"),
    ],
)
def test_refused(
    host: Host, tmp_path: Path, services: dict[str, object], line: tuple[str, ...], words: str
) -> None:
    """What cannot be leased is refused in one line, and nothing is held."""
    project = Project(host, tmp_path / "refused", services)
    done = host.run(*line, cwd=project.directory)
    assert (done.returncode, done.stdout, words in done.stderr) == (2, "", True), done.stderr
    assert host.launcher.records() == []


def test_replicas_have_gpus_of_their_own(host: Host, tmp_path: Path) -> None:
    """Each container of a service that is scaled has a lease, also one that comes later."""
    project = Project(host, tmp_path / "many", {"one": service(**reserved(count=2))})
    project.up("--scale", "one=2")
    project.up("--scale", "one=3")
    leased = [set(lease["gpus"]) for lease in host.leases()]
    assert ([len(gpus) for gpus in leased], len(set.union(*leased))) == ([2, 2, 2], 6)
    seen = [set(project.gpus("one", number)) for number in (1, 2, 3)]
    assert sorted(map(sorted, seen)) == sorted(map(sorted, leased))


@pytest.mark.parametrize("asks", [{"device_ids": ["3"]}, {"count": "all"}], ids=str)
def test_services_that_share_what_they_name(host: Host, tmp_path: Path, asks: dict) -> None:
    """Services of a project that name the same GPUs, or all, have them together; nobody else does.

    The last of them frees them.
    """
    project = Project(host, tmp_path / "card", dict.fromkeys("abc", service(**reserved(**asks))))
    project.up()
    gpus = project.gpus("a")
    assert project.leased() == dict.fromkeys(("card/a", "card/b", "card/c"), gpus)
    for name in "abc":
        assert host.run("--only", str(gpus[0]), "--", "true").returncode == 75
        host.do("kill", project.container(name))
    host.await_free()


def test_what_was_never_started_holds_nothing(host: Host, tmp_path: Path) -> None:
    """If one container cannot have its GPUs, those that were made before it hold none."""
    services = {"some": service(**reserved(count=5)), "more": service(**reserved(count=4))}
    project = Project(host, tmp_path / "much", services)
    done = project.run("up", "-d")
    assert (done.returncode, "gpulaunch: hint: add --wait" in done.stderr) == (75, True)
    assert host.launcher.records() == []
    assert "running" not in project.states().values()


def test_start_and_restart_of_what_has_a_lease(project: Project) -> None:
    """Docker compose start and restart pass where every service has a lease, as after create."""
    assert project.run("create").returncode == 0
    leased = project.leased()
    for word in ("start", "restart"):
        done = project.run(word)
        assert done.returncode == 0, done.stderr
        assert project.leased() == leased
    assert project.gpus("two") == sorted(leased["mixed/two"])


def test_profiles_and_dependencies(host: Host, tmp_path: Path) -> None:
    """Only services that docker compose would start get leases, and those that they need."""
    services = {
        "web": service(depends_on=["model"]),
        "model": service(**reserved(count=1)),
        "train": service(**reserved(count=2), profiles=["train"]),
        "alone": service(**reserved(count=1)),
    }
    project = Project(host, tmp_path / "parts", services)
    project.up("web")
    assert set(project.leased()) == {"parts/model"}
    project.up()
    assert set(project.leased()) == {"parts/model", "parts/alone"}
    done = project.run("--profile", "train", "up", "-d")
    assert done.returncode == 0, done.stderr
    assert set(project.leased()) == {"parts/model", "parts/alone", "parts/train"}
    assert len(project.states()) == 4


def test_a_time_limit_ends_the_containers(project: Project) -> None:
    """A time limit stops the containers, also after up -d, and frees their GPUs."""
    done = project.run("up", "-d", options=("--time-limit", "6s"))
    assert done.returncode == 0, done.stderr
    project.host.await_free()
    assert project.states() == {"one": "exited", "two": "exited", "db": "running"}


def test_a_project_from_standard_input(project: Project) -> None:
    """Docker compose -f - gets the project that gpulaunch has read from its standard input."""
    text = (project.directory / "compose.yaml").read_text()
    line = ("docker", "compose", "-p", "mixed", "-f", "-", "up", "-d")
    done = project.host.run(*line, cwd=project.directory, input=text)
    assert done.returncode == 0, done.stderr
    assert set(project.leased()) == {"mixed/one", "mixed/two"}


def test_a_project_without_gpus_is_dockers_own(host: Host, tmp_path: Path) -> None:
    """A project without GPUs is docker's alone, with its own files as the labels say."""
    project = Project(host, tmp_path / "plain", {"db": service(), "gone": MIXED["one"]})
    project.up("db")
    label = "com.docker.compose.project.config_files"
    labels = project.inspect("db")["Config"]["Labels"]
    assert labels[label] == str(project.directory / "compose.yaml")
    assert host.leases() == []


def test_an_up_that_fails_leaves_no_lease(host: Host, tmp_path: Path) -> None:
    """Where docker compose fails before it makes a container, the leases end with it."""
    services = {"one": service(**reserved(count=1), image="missing:1")}
    project = Project(host, tmp_path / "fails", services)
    words = ("up", "-d", "--pull", "never")
    bare, launched = project.plain(*words), project.run(*words)
    assert (launched.returncode, launched.stderr) == (bare.returncode, bare.stderr)
    assert host.leases() == []


def test_in_ci_a_killed_launcher_ends_its_containers(project: Project) -> None:
    """Where CI=true, the containers of services with GPUs end with a launcher that is killed."""
    project.host.environment["CI"] = "true"
    with project.started("up") as launch:
        until(lambda: list(project.states().values()) == ["running"] * 3)
        launch.kill()
        launch.communicate()
    project.host.await_free()
    assert "running" not in (project.states()["one"], project.states()["two"])
