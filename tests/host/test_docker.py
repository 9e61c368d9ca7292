"""`gpulaunch docker ...` with a real Docker Engine: like docker alone, but with GPUs of its own.

What a container really got is looked at from inside: the engine's CDI specification knows the GPUs
of the machine that gpulaunch chooses from, a described one or one that a stand-in for NVML tells
of. No GPU is needed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import DGX, Launcher, held, holders, until, wait_for_end
from engine import IMAGE, Engine, write_cdi_spec
from test_transparency import Terminal, dialogues
from toml_parser import tomllib

pytest_plugins = ("fake_nvml",)

CASES = tomllib.loads(Path(__file__).with_name("docker.toml").read_text())
DESCRIBED = tuple(f"GPU-dgx1-v100-{index}" for index in range(8))
TOLD_BY_NVML = tuple(f"GPU-v100-{index}" for index in range(8))
SHOW = (
    "sh",
    "-c",
    "env | grep -e FAKE_GPU -e CUDA -e NVIDIA -e GPULAUNCH; ls /dev | grep nvidia; true",
)
OF_CLIENT = "(?:docker: )?Error response from daemon: gpulaunch"
LONG = (IMAGE, "sleep", "1000")
READY = (IMAGE, "sh", "-c", "echo ready; exec sleep 1000")


class Host:
    """A machine with GPUs, a Docker Engine that knows them, and gpulaunch.

    Args:
        launcher: gpulaunch; its environment becomes that of all clients.
        engine: Docker's.
        uuids: of the GPUs, if they get into containers.
        options: what gpulaunch is always given.
    """

    def __init__(
        self,
        launcher: Launcher,
        engine: Engine,
        uuids: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        self.launcher, self.engine, self.uuids, self.options = launcher, engine, uuids, options
        client = shutil.which("docker", path=engine.environment["PATH"])
        configuration = launcher.state.parent / "client"
        configuration.mkdir()
        launcher.environment |= {
            "PATH": f"{Path(client).parent}:{launcher.environment['PATH']}",
            "DOCKER_HOST": engine.host,
            "DOCKER_CONFIG": str(configuration),
        }
        if uuids:
            write_cdi_spec(engine.cdi, uuids)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of all clients; tests may change it."""
        return self.launcher.environment

    def run(self, *arguments: str | bytes, **options) -> subprocess.CompletedProcess[str]:
        """Run gpulaunch to its end."""
        return self.launcher.run(*self.options, *arguments, **options)

    def start(self, *arguments: str, **options) -> subprocess.Popen[str]:
        """Start gpulaunch."""
        return self.launcher.start(*self.options, *arguments, **options)

    def plain(self, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
        """Run docker, without gpulaunch, to its end."""
        options = {"env": self.environment, "errors": "surrogateescape", **options}
        return self.engine.docker(*arguments, **options)

    def do(self, *arguments: str) -> str:
        """Run docker, without gpulaunch, which must succeed; what it says."""
        done = self.plain(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, container: str) -> str:
        """Return what docker says that a container does."""
        return self.engine.state(container)

    def labels(self, container: str) -> dict[str, str]:
        """Return the labels of a container."""
        return self.engine.inspect(container)["Config"]["Labels"]

    def detached(self, *arguments: str) -> str:
        """Start a container by gpulaunch in the background; its id."""
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()

    def leases(self) -> list[dict]:
        """Return this machine's leases, as status tells of them."""
        done = self.launcher.run("status", *self.options, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["leases"]

    def lease(self) -> dict:
        """Return the only lease."""
        leases = self.leases()
        assert len(leases) == 1, leases
        return leases[0]

    def dry(self, *words: str, **options) -> tuple[dict | None, str]:
        """Return what a dry run decides, None if it fails, and what it says."""
        at = 1 if words[0] == "run" else 0  # the name of the command may be left out
        line = (*words[:at], *self.options, "--dry-run", "--json", *words[at:])
        done = self.launcher.run(*line, **options)
        return json.loads(done.stdout) if done.returncode == 0 else None, done.stderr

    def inside(self, *arguments: str) -> list[int]:
        """Return the GPUs that a container of gpulaunch's sees."""
        done = self.run(*arguments, *SHOW)
        assert (done.returncode, done.stderr) == (0, "")
        return self.seen(done.stdout)

    def seen(self, output: str) -> list[int]:
        """Return the GPUs in what SHOW writes; check that their UUIDs agree with their nodes."""
        lines = output.splitlines()
        by_uuid = [
            self.uuids.index(line.partition("=")[2])
            for line in lines
            if line.startswith("FAKE_GPU_")
        ]
        by_node = [int(line.removeprefix("nvidia")) for line in lines if line.startswith("nvidia")]
        assert sorted(by_uuid) == sorted(by_node)
        return sorted(by_node)

    def same(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run docker with and without gpulaunch; both must come out the same."""
        bare, launched = self.plain(*arguments), self.run("docker", *arguments)
        assert (launched.stdout, launched.stderr) == (bare.stdout, bare.stderr)
        assert launched.returncode == bare.returncode
        return bare

    def await_free(self) -> None:
        """Wait until no GPU is leased any more."""
        until(lambda: not self.launcher.records())

    def nothing_has_run(self) -> bool:
        """Return whether there is no container and no lease."""
        return not self.engine.containers() and not self.launcher.records()


def variables(output: str) -> dict[str, str]:
    """Return the variables in what SHOW writes."""
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """Return what gpulaunch says of an error: one line, perhaps who has the GPUs, and a hint.

    What is told to docker's client is printed by that, with a line of its own.
    """
    error, *others = done.stderr.splitlines()
    found = re.fullmatch(f"(?:gpulaunch: error|{OF_CLIENT}): (.*)", error)
    assert found, done.stderr
    ours = [line for line in others if not re.match(r"See 'docker |Error: failed to start", line)]
    hints = [line for line in ours if not line.startswith("gpulaunch: info: ")]
    assert all(hint.startswith("gpulaunch: hint: ") for hint in hints), done.stderr
    assert len(hints) <= 1, done.stderr
    return found[1].removesuffix(".")


@contextmanager
def started(host: Host, *arguments: str, **options) -> Iterator[subprocess.Popen[str]]:
    """Yield a launch; end it and its container with the block."""
    with host.start(*arguments, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                host.engine.remove_all()
                process.kill()


def freed(host: Host) -> Iterator[Host]:
    """Yield a host, whose GPUs must be free once a test's containers are gone."""
    yield host
    if host.launcher.records():
        host.engine.remove_all()
        host.await_free()


@pytest.fixture
def host(launcher: Launcher, docker: Engine) -> Iterator[Host]:
    """Yield a described DGX-1."""
    yield from freed(Host(launcher, docker, DESCRIBED, DGX))


@pytest.fixture
def real_host(launcher: Launcher, docker: Engine, dgx1_v100) -> Iterator[Host]:  # noqa: ARG001
    """Yield a DGX-1 that NVML tells of."""
    yield from freed(Host(launcher, docker, TOLD_BY_NVML, ()))


@pytest.fixture
def terminal(host: Host, tmp_path: Path) -> Terminal:
    """Return a terminal for dialogues with bash on that host."""
    return Terminal(host.launcher, tmp_path)


# ---------------------------------------------------------------------------------- as docker alone


@pytest.mark.parametrize(("status", "line"), CASES["same_as_docker"])
def test_same_as_docker(host: Host, status: int, line: str) -> None:
    """What docker says, to whom, and its exit status are the same with gpulaunch in front."""
    assert host.same(*line.split()).returncode == status
    assert host.launcher.records() == []


def test_what_a_container_says(host: Host) -> None:
    """Arguments, five megabytes on stdin, output and status pass through, whatever they are."""
    data = bytes(range(256)) * 20_000
    script = "printf '%s|' \"$@\"; echo $A; pwd; id -u; echo err >&2; cat; exit 75"
    words = ("a b", "", "*", "'", "line\nline", "--", "-n", "--gpus", "café")
    flags = ("-ie", "A=1 2", "-w/tmp", "--user=7", "--rm")
    done = host.run(
        "docker", "run", *flags, IMAGE, "sh", "-c", script, "sh", *words,
        input=data, capture_output=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    said = b"a b||*|'|line\nline|--|-n|--gpus|caf\xc3\xa9|1 2\n/tmp\n7\n"
    assert (done.returncode, done.stderr) == (75, b"err\n")
    assert done.stdout == said + data


# ------------------------------------------------------------------------------------ at a terminal


@dialogues("docker")
def test_terminal(terminal: Terminal, steps: Sequence[str]) -> None:
    """At a terminal a container looks the same with gpulaunch in front."""
    terminal.same(*steps)


# ------------------------------------------------------------------------------------------ signals


def test_signals(host: Host) -> None:
    """A signal to gpulaunch reaches the container's job once, and its status is returned."""
    names = ("USR1", "HUP", "QUIT", "INT", "TERM")
    traps = "".join(f"trap 'echo got {name}' {name};" for name in names)
    script = f"{traps} trap 'exit 7' USR2; echo ready; while :; do sleep 1000 & wait; done"
    with started(host, "docker", "run", "--rm", IMAGE, "sh", "-c", script) as process:
        assert process.stdout.readline() == "ready\n"
        for name in names:
            process.send_signal(signal.Signals[f"SIG{name}"])
            assert process.stdout.readline() == f"got {name}\n"
        process.send_signal(signal.SIGUSR2)
        assert process.communicate() == ("", "")
    assert process.returncode == 7
    assert host.launcher.records() == []


def test_no_signal_proxy(host: Host) -> None:
    """With --sig-proxy=false TERM ends docker's client alone: container and lease go on."""
    with started(host, "docker", "run", "--sig-proxy=false", *READY) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
        lease = host.lease()
        assert host.state(lease["container"]) == "running"
        host.do("kill", lease["container"])
        host.await_free()


# --------------------------------------------------------------------------------------- which GPUs


PROFILE = (
    'name = "three"\ngpus = 3\n[communication]\npattern = "ring"\nbandwidth_sensitive = '
    'true\nsource = "a test"\n'
)


@pytest.mark.parametrize(("options", "flags", "gpus"), CASES["gpus"])
def test_gpus(host: Host, tmp_path: Path, options: str, flags: str, gpus: list[int]) -> None:
    """The GPUs that options, environment, docker's flags or a profile ask for are chosen."""
    (tmp_path / "three.toml").write_text(PROFILE)
    words = options.split()
    host.environment.update(word.split("=", 1) for word in words if "=" in word)
    words = [word for word in words if "=" not in word]
    chosen, said = host.dry(*words, "docker", "run", *flags.split(), IMAGE, cwd=tmp_path)
    assert ([gpu["index"] for gpu in chosen["gpus"]], said) == (gpus, "")


def test_fewer_than_all(host: Host) -> None:
    """One line tells how many of all GPUs a container gets; where none is free, how to get few."""
    host.environment["GPULAUNCH_ALL_GPUS"] = "2"
    words = ("docker", "run", "--rm", "--gpus=all", IMAGE)
    done = host.run(*words, *SHOW)
    assert (done.returncode, host.seen(done.stdout)) == (0, [0, 3])
    assert done.stderr == "gpulaunch: info: all GPUs are asked for: here 2 of 8\n"
    del host.environment["GPULAUNCH_ALL_GPUS"]
    with held(host.launcher, *host.options, "-n", "1"):
        done = host.run(*words, "true")
    hint = "add --wait to queue, or -n 1 for one GPU; the setting all_gpus says what 'all' means"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (75, f"gpulaunch: hint: {hint}")


@pytest.mark.parametrize(("options", "said"), CASES["warnings"])
def test_warning(host: Host, options: str, said: str) -> None:
    """A line says if a flag of docker's adds GPUs or hides leased ones; with -q none does."""
    words = (*options.split(), IMAGE)
    warning = f"gpulaunch: warning: {said}\n" if said else ""
    assert host.dry(*words)[1] == warning
    assert host.dry("-q", *words)[1] == ""


def test_image_that_wants_all(host: Host) -> None:
    """An image with NVIDIA_VISIBLE_DEVICES=all sees the leased GPUs only, by any runtime."""
    host.engine.reload(default_runtime="nvidia")
    host.engine.import_image("cuda:1", ["ENV NVIDIA_VISIBLE_DEVICES=all"])
    assert host.seen(host.do("run", "--rm", "cuda:1", *SHOW)) == list(range(8))
    assert host.inside("docker", "run", "--rm", "cuda:1") == [0]
    with held(host.launcher, *DGX, "-n", "all"):  # what wants none gets none, and no lease
        assert host.inside("docker", "run", "--rm", "--gpus", "0", "cuda:1") == []
        host.environment["NV_GPU"] = "none"
        assert host.inside("docker", "run", "--rm", "cuda:1") == []
    assert host.launcher.records() == []


def test_hosts_numbers_stay_outside(host: Host, tmp_path: Path) -> None:
    """The host's CUDA_VISIBLE_DEVICES restricts the choice, but does not get into the container."""
    host.environment["CUDA_VISIBLE_DEVICES"] = "6,7"
    (tmp_path / "variables").write_text("CUDA_VISIBLE_DEVICES\n")
    flags = ("-e", "CUDA_VISIBLE_DEVICES", "--env-file", str(tmp_path / "variables"))
    done = host.run("docker", "run", "--rm", *flags, "--gpus", "2", IMAGE, *SHOW)
    assert host.seen(done.stdout) == [6, 7]
    assert "CUDA_VISIBLE_DEVICES" not in variables(done.stdout)


def test_rank_order(host: Host) -> None:
    """Inside, where GPUs are in PCI order, CUDA_VISIBLE_DEVICES tells the order of the chain."""
    options = ("--pattern", "chain", "-n", "4", "--only", "0,1,2,3")
    bare = host.run(*options, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").stdout.strip()
    assert bare != "0,1,2,3"
    done = host.run(*options, "docker", "run", "--rm", IMAGE, *SHOW)
    assert host.seen(done.stdout) == [0, 1, 2, 3]
    assert variables(done.stdout)["CUDA_VISIBLE_DEVICES"] == bare
    assert variables(done.stdout)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


# ---------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(("line", "status", "words"), CASES["refused"])
def test_refused(host: Host, line: str, status: int, words: str) -> None:
    """What contradicts itself or can never be is refused in one line, and nothing has run."""
    first, *rest = line.split()
    if "=" in first:
        host.environment.update([first.split("=", 1)])
    done = host.run(*(rest if "=" in first else (first, *rest)))
    assert (done.returncode, done.stdout) == (status, "")
    assert words in complaint(done)
    assert host.nothing_has_run()


# ---------------------------------------------------------------------------------- how they get in


@pytest.mark.parametrize("way", ["cdi", "runtime", "gpus"])
def test_forced_way(real_host: Host, way: str) -> None:
    """By whichever way GPUs get in, these and no others do, though the image says all."""
    host = real_host
    host.engine.import_image("cuda:1", ["ENV NVIDIA_VISIBLE_DEVICES=all"])
    host.environment["GPULAUNCH_CONTAINER_GPUS"] = way
    for flags, gpus in (
        (("--gpus", '2,"capabilities=compute,utility"'), [0, 3]),
        (("--runtime=nvidia",), list(range(8))),
    ):
        done = host.run("docker", "run", "--rm", *flags, "cuda:1", *SHOW)
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert sorted(int(line[6:]) for line in lines if line.startswith("nvidia")) == gpus
        uuids = {TOLD_BY_NVML[gpu] for gpu in gpus}
        if way == "gpus":
            assert set(host.engine.hook_calls()[-1]["visible"].split(",")) == uuids
        else:
            assert host.seen(done.stdout) == gpus
        if way != "cdi" and flags[0] == "--gpus":
            assert variables(done.stdout)["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert len(host.engine.hook_calls()) == (2 if way == "gpus" else 0)


def cdi_returns(host: Host) -> bool:
    """Return whether the engine starts containers with CDI devices again (moby 49989)."""
    version = host.engine.ask("GET", "/version")[1]["Version"]
    return tuple(map(int, version.split(".")[:2])) >= (28, 2)


def way_of(host: Host, *flags: str) -> str:
    """Return by what a container gets its GPUs."""
    done = host.run("docker", "create", *flags, IMAGE)
    assert done.returncode == 0, done.stderr
    found = host.engine.inspect(done.stdout.strip())["HostConfig"]
    host.do("rm", done.stdout.strip())
    host.await_free()
    drivers = [request["Driver"] for request in found["DeviceRequests"] or ()]
    return {("cdi",): "cdi", (): "runtime"}.get(tuple(drivers), "gpus")


def test_chosen_way(real_host: Host) -> None:
    """CDI is chosen if it knows the GPUs, else nvidia's runtime, else --gpus; else nothing runs."""
    host = real_host
    assert way_of(host) == "cdi"
    assert host.inside("docker", "run", "--rm", IMAGE) == [0]
    write_cdi_spec(host.engine.cdi, DESCRIBED)
    assert way_of(host) == way_of(host, "--runtime=nvidia") == "runtime"
    write_cdi_spec(host.engine.cdi, TOLD_BY_NVML)
    assert way_of(host) == "cdi"
    returning = "cdi" if cdi_returns(host) else "runtime"
    for policy, way in (("no", "cdi"), ("always", returning), ("on-failure:3", returning)):
        assert way_of(host, f"--restart={policy}") == way
    host.environment["GPULAUNCH_CONTAINER_GPUS"] = "cdi"
    _, said = host.dry("docker", "run", "--restart", "on-failure:2", IMAGE)
    warning = "gpulaunch: warning: --restart on-failure: Docker Engine "
    assert said.startswith(warning) == (not cdi_returns(host)), said
    del host.environment["GPULAUNCH_CONTAINER_GPUS"]
    write_cdi_spec(host.engine.cdi, DESCRIBED)
    host.environment["PATH"] += f":{host.engine.path[0]}"
    assert way_of(host, "--runtime=runc") == "gpus"
    host.engine.reload(runtimes={})
    assert way_of(host) == "gpus"
    host.environment["PATH"] = host.environment["PATH"].replace(f":{host.engine.path[0]}", "")
    done = host.run("docker", "run", IMAGE, "true")
    assert (done.returncode, done.stdout) == (125, "")
    assert "has no way to give GPUs to containers" in complaint(done)
    assert host.nothing_has_run()


def test_gpus_of_no_machine(host: Host) -> None:
    """Described GPUs that CDI does not know are leased but do not get in, and gpulaunch says so."""
    write_cdi_spec(host.engine.cdi)
    done = host.run("docker", "run", "--rm", IMAGE, *SHOW)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "dgx1-v100 is only described: its GPUs get into no container" in done.stderr
    assert variables(done.stdout)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert host.seen(done.stdout) == []


# ------------------------------------------------------------------------------------------- labels


def test_labels(host: Host, tmp_path: Path) -> None:
    """A container has its lease in labels and a variable, and status names it."""
    (tmp_path / "labels").write_text("io.gpulaunch.lease=z\n")
    file = ("--label-file", str(tmp_path / "labels"))
    forged = ("--label", "io.gpulaunch.lease=x", "-l=io.gpulaunch.gpus=y", *file)
    flags = ("--label", "own=1", *forged, "--gpus", "2", "--cidfile", str(tmp_path / "cid"))
    container = host.detached("--name", "a job", "docker", "run", "-d", *flags, *LONG)
    assert (tmp_path / "cid").read_text() == container
    lease = host.lease()
    assert host.labels(container) == {
        "own": "1",
        "io.gpulaunch.lease": lease["id"],
        "io.gpulaunch.gpus": ",".join(lease["uuids"]),
    }
    assert lease["uuids"] == [DESCRIBED[gpu] for gpu in lease["gpus"]]
    assert lease["container"] == container
    assert (lease["name"], lease["container_state"]) == ("a job", "running")
    found = host.engine.inspect(container)
    assert f"GPULAUNCH_LEASE={lease['id']}" in found["Config"]["Env"]
    assert found["Name"][1:] in host.launcher.run("status", *DGX).stdout


def test_image_has_a_profile(host: Host) -> None:
    """An image's label names a profile, which --profile, GPULAUNCH_PROFILE overrule."""

    def profile(*options: str) -> tuple[str, int]:
        document, said = host.dry(*options, "docker", "run", "job:1")
        assert document, said
        return document["profile"], len(document["gpus"])

    host.engine.label_image("job:1", {"io.gpulaunch.profile": "vgg16"})
    assert profile() == ("vgg16", 1)
    assert profile("-n", "3") == ("vgg16", 3)
    assert profile("--profile", "alexnet") == ("alexnet", 1)
    host.environment["GPULAUNCH_PROFILE"] = "googlenet"
    assert profile() == ("googlenet", 1)
    del host.environment["GPULAUNCH_PROFILE"]


def test_image_with_a_bad_profile(host: Host, tmp_path: Path) -> None:
    """A missing, wrong or path-like profile in an image is an error that names image and label."""
    (tmp_path / "three.toml").write_text(PROFILE)
    for label, words in (
        ("no-such-profile", "unknown profile 'no-such-profile'"),
        ("three.toml", "'three.toml' is no name of a profile"),
    ):
        host.engine.label_image("job:1", {"io.gpulaunch.profile": label})
        done = host.run("docker", "run", "job:1", "true", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert complaint(done).startswith("image job:1: label io.gpulaunch.profile")
        assert words in complaint(done)
        assert host.nothing_has_run()
        assert host.dry("--profile", "vgg16", "docker", "run", "job:1")[0]


# --------------------------------------------------------------------------------- create and start


@pytest.mark.parametrize("starter", ["gpulaunch", "docker"])
def test_create_and_start(host: Host, starter: str) -> None:
    """A container that was made has its GPUs, whoever starts it, until it has ended."""
    container = host.detached("-n", "2", "docker", "create", IMAGE, *SHOW)
    lease = host.lease()
    assert (lease["container"], lease["container_state"]) == (container, "created")
    assert lease["gpus"] == [0, 3]
    words = ("start", "--attach", container)
    done = host.plain(*words) if starter == "docker" else host.run("docker", *words)
    assert (done.returncode, done.stderr, host.seen(done.stdout)) == (0, "", [0, 3])
    host.await_free()


def test_create_and_remove(host: Host) -> None:
    """What is made and never runs frees its GPUs when docker or free removes it, or it fails."""
    host.environment["GPULAUNCH_TIME_LIMIT"] = "0.1s"  # is for what runs
    container = host.detached("docker", "create", IMAGE, "no-such-command")
    assert host.plain("start", container).returncode == 1
    host.await_free()
    container = host.detached("docker", "create", IMAGE, "true")
    host.do("rm", container)
    host.await_free()
    container = host.detached("docker", "create", IMAGE, "true")
    lease = host.lease()
    assert lease["container_state"] == "created"
    done = host.launcher.run("free", lease["id"])
    assert (done.returncode, done.stderr) == (0, "")
    assert container not in [found["Id"] for found in host.engine.containers()]
    assert host.launcher.records() == []


def test_start_again(host: Host) -> None:
    """A container that has ended starts again on the same GPUs, with a new lease while it runs."""
    host.do("create", "--name", "other", IMAGE, "sh", "-c", "echo words; exit 9")
    done = host.same("start", "-a", "other")  # not ours: it needs no lease
    assert (done.returncode, done.stdout, host.launcher.records()) == (9, "words\n", [])
    done = host.run("--only", "6", "docker", "run", "--name", "again", IMAGE, *SHOW)
    assert (host.seen(done.stdout), host.launcher.records()) == ([6], [])
    done = host.run("docker", "start", "-a", "again")
    assert (done.returncode, done.stderr, host.seen(done.stdout)) == (0, "", [6])
    assert host.launcher.records() == []
    done = host.run("-n", "2", "docker", "start", "again")
    assert (done.returncode, done.stdout) == (2, "")
    assert "container again was made with 1 GPU and gets those" in complaint(done)
    done = host.run("--only", "5", "docker", "run", "--name", "second", IMAGE, *SHOW)
    done = host.run("docker", "start", "again", "second")  # each gets its own back
    assert (done.returncode, done.stdout) == (0, "again\nsecond\n")


def test_start_again_while_others_have_the_gpus(host: Host) -> None:
    """A container whose GPUs are taken by now is not started: 75, or --wait until they are free."""
    host.run("--only", "6", "docker", "run", "--name", "again", IMAGE, *SHOW)
    with held(host.launcher, *DGX, "--only", "6") as job:
        done = host.run("docker", "start", "-a", "again")
        assert (done.returncode, done.stdout) == (75, "")
        assert "GPU" in complaint(done)
        assert host.state("again") == "exited"
        with host.start("--wait", "docker", "start", "-a", "again") as waiting:
            assert "waiting as number 1" in waiting.stderr.readline()
            job.end()
            output, _ = waiting.communicate()
        assert (waiting.returncode, host.seen(output)) == (0, [6])


# ------------------------------------------------------------------------------------------ grammar


def test_grammar(host: Host) -> None:
    """However it is spelled, a container with one GPU is run."""
    path = shutil.which("docker", path=host.environment["PATH"])
    host.environment["DOCKER_HOST"] = "unix:///nowhere"
    at = f"--host={host.engine.host}"
    for line in (
        f"docker {at} run bb:1",
        f"docker -H {host.engine.host} run --rm -- bb:1",
        f"run docker {at} run bb:1",
        f"run -- docker {at} --log-level error run bb:1",
        f"-- {path} {at} container run bb:1",
    ):
        document, said = host.dry(*line.split())
        assert document, said
        assert [gpu["index"] for gpu in document["gpus"]] == [0], line
    assert host.inside("docker", "--host", host.engine.host, "run", "--rm", IMAGE) == [0]


def test_link(host: Host, tmp_path: Path) -> None:
    """A link called nvidia-docker is `gpulaunch nvidia-docker`."""
    link = tmp_path / "nvidia-docker"
    link.symlink_to(host.launcher.script)
    host.engine.import_image("cuda:1", ["ENV NVIDIA_VISIBLE_DEVICES=all"])
    environment = host.environment | {"GPULAUNCH_TOPOLOGY": "dgx1-v100", "NV_GPU": "2 4"}
    words = [link, "run", "--rm", "cuda:1", *SHOW]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, host.seen(done.stdout)) == (0, "", [2, 4])


def test_contexts(host: Host) -> None:
    """Docker's contexts are followed: one on this machine works, one on another is refused."""
    local = host.environment.pop("DOCKER_HOST")
    host.do("context", "create", "here", "--docker", f"host={local}")
    host.do("context", "create", "there", "--docker", "host=tcp://192.0.2.1:2375")

    assert host.dry("docker", "-c", "here", "run", IMAGE)[0]
    for flags in (("-c", "there"), ("--context=there",)):
        done = host.run("docker", *flags, "run", IMAGE)
        assert (done.returncode, done.stdout) == (2, "")
        assert "context there" in complaint(done)
    for name in ("here", "there"):
        host.environment["DOCKER_CONTEXT"] = name
        assert bool(host.dry("docker", "run", IMAGE)[0]) == (name == "here")
    del host.environment["DOCKER_CONTEXT"]
    host.do("context", "use", "there")
    assert not host.dry("docker", "run", IMAGE)[0]
    assert "docker context there" in host.dry("docker", "-c", "", "run", IMAGE)[1]  # none is named
    configuration = Path(host.environment["DOCKER_CONFIG"], "config.json")
    configuration.write_text('{"currentContext": "\\ud800"}')
    assert "docker has no context" in host.dry("docker", "run", IMAGE)[1]
    host.environment["DOCKER_HOST"] = f" {local}"  # counts more than what is in use
    assert host.dry("docker", "run", IMAGE)[0]


# -------------------------------------------------------------------------------------- time limits


def test_time_limit(host: Host) -> None:
    """A container that runs longer than it may is ended, with 124, and its GPUs are free."""
    host.environment["GPULAUNCH_GRACE"] = "0.1s"
    began = time.monotonic()
    done = host.run("--time-limit", "2s", "docker", "run", "--name", "long", *LONG)
    assert time.monotonic() - began > 2
    assert (done.returncode, done.stdout) == (124, "")
    assert complaint(done) == "the job ran longer than its limit of 2 s"
    assert (host.state("long"), host.launcher.records()) == ("exited", [])


def limited_without_companion(host: Host, limit: str) -> str:
    """Start a container with a time limit, and kill its companion; return the container's id."""
    before = set(host.launcher.records())
    words = ("docker", "run", "-d", "--gpus", "2", "--init", *LONG)
    container = host.detached("--time-limit", limit, *words)
    (record,) = set(host.launcher.records()) - before
    (companion,) = holders(host.launcher.state / record)
    os.kill(companion, signal.SIGKILL)
    wait_for_end(companion)
    return container


def test_time_limit_without_companion(host: Host) -> None:
    """A launch ends a container that is over its limit though its companion is gone; no look does.

    Before the limit it is left alone.
    """
    early = limited_without_companion(host, "1d")
    late = limited_without_companion(host, "4s")
    over = time.monotonic() + 4
    leases = {lease["container"]: lease["id"] for lease in host.leases()}
    until(lambda: time.monotonic() > over)
    assert host.launcher.run("doctor", *DGX).returncode in (0, 1)
    assert host.run("-n", "6", "--dry-run", "--", "true").returncode == 75
    assert (host.state(early), host.state(late)) == ("running", "running")
    done = host.run("-n", "6", "--", "true")
    warning = f"ended lease {leases[late]}: its container outlived the time limit of 4 s"
    assert (done.returncode, done.stderr) == (0, f"gpulaunch: warning: {warning}\n")
    assert (host.state(early), host.state(late)) == ("running", "exited")
    host.engine.remove_all()
    assert host.run("-n", "all", "--", "true").returncode == 0  # it looks, since nobody else does


# ------------------------------------------------------------------------------------- what it uses


def test_a_container_is_measured(real_host: Host, dgx1_v100, tmp_path: Path) -> None:
    """A measured `docker run` has its container's GPU in the profile, and keeps its status.

    One that leaves its container running cannot be measured, and is refused.
    """
    dgx1_v100.script(0, "active", "0:70")
    path = tmp_path / "job.toml"
    options = ("profile", "measure", "-n", "1", "-o", str(path), "--", "docker", "run", "--rm")
    done = real_host.run(*options, IMAGE, "sh", "-c", "sleep 0.7; exit 3")
    assert done.returncode == 3, done.stderr
    resources = tomllib.loads(path.read_text())["resources"]
    assert (resources["time_active_percentage"], resources["incomplete"]) == (70, True)
    done = real_host.run("-o", "record_to=run.json", "docker", "run", "-d", *LONG)
    assert (done.returncode, "does not stay until its container ends" in done.stderr) == (2, True)
    assert real_host.nothing_has_run()


def test_detached_by_gpulaunch(host: Host) -> None:
    """`gpulaunch -d docker run` leaves a container running; output and status are kept."""
    script = "ls /dev | grep -c nvidia; exit 3"
    words = ("-qd", "docker", "run", "--rm", IMAGE, "sh", "-c", script)
    done = host.run("-n", "2", "--name", "exp", *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "exp\n", "")
    assert host.launcher.run("wait", "exp").returncode == 3
    assert host.launcher.run("logs", "exp").stdout == "2\n"
    assert host.launcher.records() == []
