"""`gpulaunch docker ...` with a real Docker Engine: like docker alone, but with GPUs of its own.

What a container really got is looked at from inside: the engine's CDI specification knows the GPUs
of the machine that gpulaunch chooses from, a described one or one that a stand-in for NVML tells
of. No GPU is needed.
"""

import json
import os
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

from gpulaunch.files.toml import tomllib

pytest_plugins = ("fake_nvml",)

DESCRIBED = tuple(f"GPU-dgx1-v100-{index}" for index in range(8))
TOLD_BY_NVML = tuple(f"GPU-v100-{index}" for index in range(8))
SHOW = (
    "sh",
    "-c",
    "env | grep -e FAKE_GPU -e CUDA -e NVIDIA -e GPULAUNCH; ls /dev | grep nvidia; true",
)
LONG = (IMAGE, "sleep", "1000")
READY = (IMAGE, "sh", "-c", "echo ready; exec sleep 1000")
PATIENCE_S = 60


class Host:
    """A machine with GPUs, a Docker Engine that knows them, and gpulaunch.

    Args:
        launcher: gpulaunch; its environment becomes that of all clients.
        engine: Docker's.
        uuids: of the GPUs.
        options: what gpulaunch is always given.
    """

    def __init__(
        self, launcher: Launcher, engine: Engine, uuids: Sequence[str], options: Sequence[str]
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

    def plain(self, *arguments: str | bytes, **options) -> subprocess.CompletedProcess[str]:
        """Run docker, without gpulaunch, to its end."""
        defaults = {"env": self.environment, "capture_output": True, "timeout": 60}
        options = {**defaults, **options}
        if options["capture_output"]:
            options |= {"text": True, "errors": "surrogateescape"}
        return subprocess.run(["docker", *arguments], check=False, **options)

    def do(self, *arguments: str) -> str:
        """Run docker, without gpulaunch, which must succeed; what it says."""
        done = self.plain(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, container: str) -> str:
        """Return what docker says that a container does."""
        return self.do("inspect", "--format", "{{.State.Status}}", container)

    def labels(self, container: str) -> dict[str, str]:
        """Return the labels of a container, or of an image."""
        return json.loads(self.do("inspect", "--format", "{{json .Config.Labels}}", container))

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

    def same(self, *arguments: str | bytes, **options) -> subprocess.CompletedProcess[str]:
        """Run docker with and without gpulaunch; both must come out the same."""
        bare, launched = (
            self.plain(*arguments, **options),
            self.run("docker", *arguments, **options),
        )
        assert (launched.stdout, launched.stderr) == (bare.stdout, bare.stderr)
        assert launched.returncode == bare.returncode
        return bare

    def await_free(self) -> None:
        """Wait until no GPU is leased any more."""
        until(lambda: not self.launcher.records())

    def nothing_has_run(self) -> bool:
        """Return whether there is no container and no lease."""
        return self.do("ps", "--all", "--quiet") == "" and not self.launcher.records()


def words_of(value: object) -> str:
    """Return what a case is called."""
    return " ".join(value) if isinstance(value, tuple) else str(value)


def variables(output: str) -> dict[str, str]:
    """Return the variables in what SHOW writes."""
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """Return what gpulaunch says of an error: one line, perhaps who has the GPUs, and a hint."""
    error, *others = done.stderr.splitlines()
    assert error.startswith("gpulaunch: error: "), done.stderr
    hints = [line for line in others if not line.startswith("gpulaunch: info: ")]
    assert all(hint.startswith("gpulaunch: hint: ") for hint in hints), done.stderr
    assert len(hints) <= 1, done.stderr
    return error.removeprefix("gpulaunch: error: ")


@contextmanager
def running(host: Host, *arguments: str, **options) -> Iterator[subprocess.Popen[str]]:
    """Yield a launch whose container is ready; if it still runs afterwards, kill it."""
    with host.start(*arguments, **options) as process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        try:
            yield process
        finally:
            if process.poll() is None:
                host.engine.remove_all()


@pytest.fixture
def host(launcher: Launcher, docker: Engine) -> Iterator[Host]:
    """Yield a described DGX-1; its GPUs must be free once a test's containers are gone."""
    host = Host(launcher, docker, DESCRIBED, DGX)
    yield host
    if launcher.records():
        docker.remove_all()
        host.await_free()


@pytest.fixture
def real_host(launcher: Launcher, docker: Engine, dgx1_v100) -> Iterator[Host]:  # noqa: ARG001
    """Yield a DGX-1 that NVML tells of; its GPUs must be free once a test's containers are gone."""
    host = Host(launcher, docker, TOLD_BY_NVML, ())
    yield host
    if launcher.records():
        docker.remove_all()
        host.await_free()


@pytest.fixture
def terminal(host: Host, tmp_path: Path) -> Terminal:
    """Return a terminal for dialogues with bash on that host."""
    return Terminal(host.launcher, tmp_path)


# ---------------------------------------------------------------------------------- as docker alone


def _table(*rows: tuple) -> pytest.MarkDecorator:
    """Parametrise with docker's exit status and command line, each named by a sentence."""
    return pytest.mark.parametrize(
        ("status", "arguments"), [pytest.param(row[1], row[2:], id=row[0]) for row in rows]
    )


@_table(
    ("success", 0, "run", "--rm", IMAGE, "true"),
    ("a status of the job's own", 37, "run", "--rm", IMAGE, "sh", "-c", "exit 37"),
    ("a status that gpulaunch has a meaning for", 75, "run", "--rm", IMAGE, "sh", "-c", "exit 75"),
    ("an unknown command", 127, "run", "--rm", IMAGE, "no-such-command"),
    ("a file that is no program", 126, "run", "--rm", IMAGE, "/etc/passwd"),
    ("an unknown image", 125, "run", "--rm", "--pull", "never", "no-such-image:1"),
    ("no name of an image", 125, "run", "--rm", "Not An Image"),
    ("stdout and stderr", 3, "run", "--rm", IMAGE, "sh", "-c", "echo out; echo err >&2; exit 3"),
    ("much output", 0, "run", "--rm", IMAGE, "seq", "300000"),
    ("arguments", 0, "run", "--rm", IMAGE,
     "printf", "%s|", "a b", "", "*", "'", "line\nline", "--", "-n", "--gpus"),
    ("bytes that are no text", 0, "run", "--rm", IMAGE, "printf", "%s", b"caf\xc3\xa9 \xe9"),
    ("a cluster of flags", 0, "run", "-ie", "A=1 2", "--rm", IMAGE, "sh", "-c", "echo $A"),
    ("flags with joined values", 0,
     "run", "--rm", "-w/tmp", "-eA=1", "--user=7", IMAGE, "sh", "-c", "pwd; id -u"),
    ("another entry point", 0, "run", "--rm", "--entrypoint", "echo", IMAGE, "run", IMAGE),
    ("no image", 1, "run"),
    ("a flag without its value", 125, "run", "--name"),
    ("a switch that is neither on nor off", 125, "run", "--rm=perhaps", IMAGE, "true"),
    ("a bad name", 125, "run", "--rm", "--name", "no good", IMAGE, "true"),
    ("attached and detached", 1, "run", "-d", "-a", "stdout", IMAGE, "true"),
    ("two ends", 125, "run", "--rm", "--restart", "always", IMAGE, "true"),
    ("help on run", 0, "run", "--help"),
    ("help on run of an image", 0, "run", "--help", IMAGE),
    ("help", 0, "--help"),
    ("nothing", 0),
    ("version", 0, "version"),
    ("ps", 0, "ps", "--all"),
    ("ps by another client", 0, "--config", "/nowhere", "--log-level=error", "ps"),
    ("an unknown command of docker's", 1, "frobnicate"),
    ("a container that there is not", 1, "start", "no-such-container"),
    ("one of two containers that there are not", 1, "restart", "no-such-container", "nor-this"),
    ("exec in none", 1, "exec", "no-such-container", "run", "true"),
)  # fmt: skip
def test_same_as_docker(host: Host, status: int, arguments: tuple[str | bytes, ...]) -> None:
    """What docker says, to whom, and its exit status are the same with gpulaunch in front."""
    assert host.same(*arguments).returncode == status
    assert host.launcher.records() == []


def test_name_in_use(host: Host) -> None:
    """A name that is taken is docker's error, and costs no GPU."""
    host.do("create", "--name", "taken", *LONG)
    done = host.same("run", "--name", "taken", IMAGE, "true")
    assert (done.returncode, "already in use" in done.stderr) == (125, True)


def test_container_id_file(host: Host, tmp_path: Path) -> None:
    """--cidfile gets the container's id, and one that is there already is docker's error."""
    file = tmp_path / "cid"
    container = host.detached("docker", "run", "-d", "--cidfile", str(file), *LONG)
    assert file.read_text() == container
    assert host.same("run", "--cidfile", str(file), IMAGE, "true").returncode == 125


@pytest.mark.parametrize("flags", [("-i",), ()], ids=["with -i", "without -i"])
def test_stdin(host: Host, flags: tuple[str, ...]) -> None:
    """Five megabytes on stdin reach a container that asks for them, and come back unchanged."""
    data = bytes(range(256)) * 20_000
    pipes = {
        "input": data,
        "capture_output": False,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    done = host.same("run", "--rm", *flags, IMAGE, "cat", **pipes)
    assert (done.stdout == data, done.stderr) == (bool(flags), b"")


def test_no_terminal_for_t(host: Host) -> None:
    """-t without a terminal is docker's error."""
    assert host.same("run", "--rm", "-it", IMAGE, "true", stdin=subprocess.PIPE).returncode == 1


@pytest.mark.parametrize("arguments", [("run", "--rm", IMAGE, "true"), ("ps",)], ids=["run", "ps"])
def test_no_docker(host: Host, arguments: tuple[str, ...]) -> None:
    """Where docker is not installed, the status is a shell's for that, and the GPUs are free."""
    host.environment["PATH"] = "/nowhere"
    done = host.run("docker", *arguments)
    assert (done.returncode, complaint(done)) == (127, "docker: no such file or directory")
    assert host.launcher.records() == []


def test_environment(host: Host) -> None:
    """Docker's client gets gpulaunch's environment, less what would number GPUs wrongly."""
    client = host.launcher.state.parent / "bin" / "docker"
    client.parent.mkdir()
    client.write_text("#!/bin/sh\nenv | grep -v -e ^PWD= -e ^_= -e ^SHLVL= | sort\n")
    client.chmod(0o755)
    bare = subprocess.run(
        [client], env=host.environment, capture_output=True, text=True, check=True
    )
    launched = host.run("--", str(client), "run", IMAGE)
    ours = ("GPULAUNCH_LEASE=", "GPULAUNCH_GPU_COUNT=")
    lines = [line for line in launched.stdout.splitlines() if not line.startswith(ours)]
    assert lines == bare.stdout.splitlines()


# ------------------------------------------------------------------------------------ at a terminal


@dialogues("docker")
def test_terminal(terminal: Terminal, steps: Sequence[str]) -> None:
    """At a terminal a container looks the same with gpulaunch in front."""
    terminal.same(*steps)


def test_detach_keys(host: Host, terminal: Terminal) -> None:
    """Ctrl-P Ctrl-Q ends docker's client with 0; the lease stays until the container ends."""
    with terminal.bash() as bash:
        bash.expect_exact("ok> ")
        bash.sendline(
            'gpulaunch --topology dgx1-v100 docker run -it bb:1 sh -c \'echo re""ady; exec sleep '
            "1000'"
        )
        bash.expect_exact("ready")
        bash.send("\x10\x11")
        bash.expect_exact("ok> ")
        bash.sendline("echo status $?")
        bash.expect(r"status (\d+)\r\n")
        assert bash.match[1] == "0"
    lease = host.lease()
    assert host.state(lease["container"]) == "running"
    host.do("kill", lease["container"])
    host.await_free()


# ------------------------------------------------------------------------------------------ signals


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1", "QUIT"])
def test_signal(host: Host, name: str) -> None:
    """A signal to gpulaunch reaches the container's job once, and its status is returned."""
    script = f"trap 'echo got {name}; exit 7' {name}; echo ready; sleep 1000 & wait"
    with running(host, "docker", "run", "--rm", IMAGE, "sh", "-c", script) as process:
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert process.communicate(timeout=PATIENCE_S) == (f"got {name}\n", "")
    assert process.returncode == 7
    assert host.launcher.records() == []


def test_no_signal_proxy(host: Host) -> None:
    """With --sig-proxy=false TERM ends docker's client alone: container and lease go on."""
    with running(host, "docker", "run", "--sig-proxy=false", *READY) as process:
        process.terminate()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        lease = host.lease()
        assert host.state(lease["container"]) == "running"
        host.do("kill", lease["container"])
        host.await_free()


def test_killed_by_docker(host: Host) -> None:
    """Docker kill from elsewhere ends an attached launch with 137."""
    with running(host, "docker", "run", *READY) as process:
        host.do("kill", host.lease()["container"])
        assert process.wait(PATIENCE_S) == 137
    host.await_free()


# --------------------------------------------------------------------------------------- which GPUs


PROFILE = (
    'name = "three"\ngpus = 3\n[communication]\npattern = "ring"\nbandwidth_sensitive = '
    'true\nsource = "a test"\n'
)


@pytest.mark.parametrize(
    ("options", "flags", "gpus"),
    [
        ((), (), [0]),
        ((), ("--gpus", '2,"capabilities=compute,utility"'), [0, 3]),
        ((), ("--gpus", f'"device={DESCRIBED[6]},1"'), [1, 6]),
        ((), ("--gpus", "device=nvidia.com/gpu=4"), [4]),
        ((), ("--device=nvidia.com/gpu=3", "--device", f"nvidia.com/gpu={DESCRIBED[7]}"), [3, 7]),
        ((), ("--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=1,2"), [1, 2]),
        (("-n", "2"), ("--gpus", '"device=1,2"'), [1, 2]),
        (("--only", "6,7"), ("--gpus", "1"), [6]),
        (("--profile", "three.toml"), (), [0, 2, 3]),
        (("--profile", "three.toml"), ("--gpus", "2"), [0, 3]),
    ],
    ids=words_of,
)
def test_gpus(
    host: Host, tmp_path: Path, options: tuple[str, ...], flags: tuple[str, ...], gpus: list[int]
) -> None:
    """The GPUs that options of gpulaunch or docker or a profile ask for are in the container."""
    (tmp_path / "three.toml").write_text(PROFILE)
    done = host.run(*options, "docker", "run", "--rm", *flags, IMAGE, *SHOW, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert host.seen(done.stdout) == gpus
    assert host.launcher.records() == []


@pytest.mark.parametrize(
    ("environment", "flags", "gpus"),
    [
        ({"NV_GPU": "5 6"}, (), [5, 6]),
        ({"NVIDIA_VISIBLE_DEVICES": "3"}, (), [0]),
        ({"GPULAUNCH_GPUS": "2"}, ("--gpus", "1"), [0]),
        ({"GPULAUNCH_ALL_GPUS": "2"}, ("--gpus", "3"), [0, 2, 3]),
        ({"GPULAUNCH_ALL_GPUS": "2"}, (), [0]),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, (), [2]),
    ],
    ids=words_of,
)
def test_gpus_of_environment(
    host: Host, environment: dict[str, str], flags: tuple[str, ...], gpus: list[int]
) -> None:
    """GPUs of the environment count, as nvidia-docker's NV_GPU did, unless docker's flags do."""
    host.environment.update(environment)
    assert host.inside("docker", "run", "--rm", *flags, IMAGE) == gpus


@pytest.mark.parametrize(
    ("options", "flags", "words"),
    [
        (("-n", "1"), ("--gpus", '"device=0,2"'), "disagree"),
        (("--only", "1"), ("--gpus", "device=1"), "both name GPUs"),
        (("-n", "1"), ("--gpus", "0"), "-n 1 asks for GPUs, but --gpus 0 for none"),
        ((), ("--gpus", "device=9"), "9"),
        ((), ("--device", "nvidia.com/gpu=GPU-unknown"), "GPU-unknown"),
        (("--json",), (), "--json needs --dry-run"),
        (("--help",), (), "--help and --version stand alone"),
    ],
    ids=words_of,
)
def test_impossible(
    host: Host, options: tuple[str, ...], flags: tuple[str, ...], words: str
) -> None:
    """What contradicts itself or can never be is a usage error, and nothing has run."""
    done = host.run(*options, "docker", "run", *flags, IMAGE, "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in complaint(done)
    assert host.nothing_has_run()


@pytest.mark.parametrize(
    ("environment", "flag", "gpus"),
    [
        ({"GPULAUNCH_GPUS": "2"}, "--gpus=all", [0, 3]),
        ({"GPULAUNCH_ALL_GPUS": "2"}, "--gpus=all", [0, 3]),
        ({"GPULAUNCH_ALL_GPUS": "2", "GPULAUNCH_GPUS": "3"}, "--gpus=-1", [0, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, "--gpus=all", [2, 3]),
    ],
    ids=words_of,
)
def test_fewer_than_all(
    host: Host, environment: dict[str, str], flag: str, gpus: list[int]
) -> None:
    """The environment says how many `all` are; one line tells how many there could be."""
    host.environment.update(environment)
    done = host.run("docker", "run", "--rm", flag, IMAGE, *SHOW)
    assert (done.returncode, host.seen(done.stdout)) == (0, gpus)
    text = flag.replace("=", " ", 1)
    assert done.stderr == f"gpulaunch: info: {text}: here {len(gpus)} of 8 GPUs\n"


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        ("docker", ("--gpus", "all")),
        ("docker", ("--device", "nvidia.com/gpu=all")),
        ("docker", ("--runtime", "nvidia")),
        ("docker", ("--runtime", "nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=all")),
        ("nvidia-docker", ()),
    ],
    ids=words_of,
)
def test_one_meaning_of_all(host: Host, program: str, flags: tuple[str, ...]) -> None:
    """However all GPUs are asked for: all, unless an option or setting says how many."""
    host.engine.import_image("cuda:1", ["ENV NVIDIA_VISIBLE_DEVICES=all"])
    command = (program, "run", "--rm", *flags, "cuda:1")
    assert host.inside(*command) == list(range(8))
    for options, count in ((("-n", "2"), 2), (("--only", "1-3"), 3)):
        done = host.run(*options, *command, *SHOW)
        assert done.returncode == 0
        assert len(host.seen(done.stdout)) == count
        assert done.stderr.endswith(f": here {count} of 8 GPUs\n")
    host.environment["GPULAUNCH_ALL_GPUS"] = "1"
    done = host.run(*command, *SHOW)
    assert (done.returncode, host.seen(done.stdout)) == (0, [0])
    assert done.stderr.endswith(": here 1 of 8 GPUs\n")


VISIBLE = "CUDA_VISIBLE_DEVICES"
WITHOUT = "'gpulaunch -n 1 docker run' without it leases as many"


@pytest.mark.parametrize(
    ("options", "flags", "said"),
    [
        (
            (),
            ("--gpus", "all", "-e", f"{VISIBLE}=2"),
            f"-e {VISIBLE}=2 uses 1 of the 8 GPUs that this launch leases: {WITHOUT}",
        ),
        (
            ("-n", "1"),
            ("--gpus", "all", f"--env={VISIBLE}=2"),
            f"-e {VISIBLE}=2: the container has 1 GPU, counted from 0: leave it out",
        ),
        (
            (),
            ("--gpus", '"device=1,3"', "-e", f"{VISIBLE}=1,3"),
            f"-e {VISIBLE}=1,3: the container has 2 GPUs, counted from 0: leave it out",
        ),
        ((), ("--gpus", "2", "-e", f"{VISIBLE}=1,0"), None),
        ((), ("--gpus", "2", "-e", VISIBLE), None),
        ((), ("--gpus", "2", "-e", f"{VISIBLE}=-1"), None),
    ],
)
def test_numbers_that_hide_gpus(
    host: Host, options: tuple[str, ...], flags: tuple[str, ...], said: str | None
) -> None:
    """A line says if CUDA_VISIBLE_DEVICES hides leased GPUs from the container's programs."""
    done = host.run(*options, "docker", "run", "--rm", *flags, IMAGE, "true")
    warned = [line for line in done.stderr.splitlines() if "warning" in line]
    assert (done.returncode, warned) == (0, [f"gpulaunch: warning: {said}"] if said else [])


def test_not_all_are_free(host: Host) -> None:
    """Where `all` are not free, the hint names what would be fewer."""
    with held(host.launcher, *host.options, "-n", "1"):
        done = host.run("docker", "run", "--rm", "--gpus", "all", IMAGE, "true")
        assert done.returncode == 75
        assert done.stderr.splitlines()[-1] == (
            "gpulaunch: hint: add --wait to queue, or -n 1 for one GPU; "
            "the setting all_gpus says what 'all' means"
        )


@pytest.mark.parametrize(
    "flags",
    [
        ("--gpus", "0"),
        ("--gpus", "count=0"),
        ("-e", "NVIDIA_VISIBLE_DEVICES=none"),
        ("-eNVIDIA_VISIBLE_DEVICES=",),
    ],
    ids=words_of,
)
def test_no_gpu_wanted(host: Host, flags: tuple[str, ...]) -> None:
    """A container that wants no GPU takes no lease and sees none."""
    with held(host.launcher, *DGX, "-n", "all"):
        assert host.inside("docker", "run", "--rm", *flags, IMAGE) == []
    assert host.launcher.records() == []


def test_image_that_wants_all(host: Host) -> None:
    """An image with NVIDIA_VISIBLE_DEVICES=all sees the leased GPUs only, by any runtime."""
    host.engine.restart(default_runtime="nvidia")
    host.engine.import_image("cuda:1", ["ENV NVIDIA_VISIBLE_DEVICES=all"])
    assert host.seen(host.do("run", "--rm", "cuda:1", *SHOW)) == [0, 1, 2, 3, 4, 5, 6, 7], (
        "without gpulaunch"
    )
    assert host.inside("docker", "run", "--rm", "--gpus", "0", "cuda:1") == []
    assert host.inside("docker", "run", "--rm", "cuda:1") == [0]
    assert host.inside("docker", "run", "--rm", "--gpus", "device=3", "cuda:1") == [3]
    host.environment["NV_GPU"] = "none"
    assert host.inside("docker", "run", "--rm", "cuda:1") == []


@pytest.mark.parametrize("flag", ["-e", "--env-file", None], ids=str)
def test_hosts_numbers_stay_outside(host: Host, tmp_path: Path, flag: str | None) -> None:
    """The host's CUDA_VISIBLE_DEVICES restricts the choice, but does not get into the container."""
    host.environment["CUDA_VISIBLE_DEVICES"] = "6,7"
    (tmp_path / "variables").write_text("CUDA_VISIBLE_DEVICES\n")
    flags = {
        "-e": ("-e", "CUDA_VISIBLE_DEVICES"),
        "--env-file": ("--env-file", str(tmp_path / "variables")),
    }
    done = host.run("docker", "run", "--rm", *flags.get(flag, ()), "--gpus", "2", IMAGE, *SHOW)
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


def test_wait(host: Host) -> None:
    """With --wait a container gets its GPUs as soon as the one before it has ended."""
    first = host.detached("docker", "run", "-d", "--gpus", "all", *LONG)
    with host.start("--wait", "docker", "run", "--rm", IMAGE, *SHOW) as second:
        assert "waiting as number 1 in the queue" in second.stderr.readline()
        began = time.monotonic()
        host.do("rm", "--force", first)
        output, _ = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, host.seen(output)) == (0, [0])
    assert time.monotonic() - began < 4, "it waits for the end, and does not only look now and then"


def test_create_has_no_time_limit(host: Host) -> None:
    """A limit for a container that is only made is refused, and one in the settings is ignored."""
    done = host.run("--time-limit", "1s", "docker", "create", IMAGE, "true")
    assert (done.returncode, done.stderr.count("\n"), host.nothing_has_run()) == (2, 1, True)
    host.environment["GPULAUNCH_TIME_LIMIT"] = "0.1s"
    container = host.detached("docker", "create", IMAGE, "true")
    events = host.plain(
        "events", "--until", f"{time.time() + 1:.3f}", "--format", "{{.Action}}"
    ).stdout
    assert (events.split()[-1], host.state(container)) == ("create", "created")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--privileged",), "--privileged shows the container every GPU of this host"),
        (("--device", "/dev/null:/dev/nvidia3"), None),
        (("--device", "/dev/nvidia3"), None),
        (
            ("--device", "/dev/nvidia3", "--gpus", "device=1"),
            "--device /dev/nvidia3 adds a GPU that this launch does not lease",
        ),
    ],
    ids=words_of,
)
def test_warning(host: Host, flags: tuple[str, ...], words: str | None) -> None:
    """A docker flag that may add GPUs is passed on with a warning, or with -q without one."""
    done = host.run("docker", "run", "--rm", *flags, IMAGE, "true")
    assert (f"gpulaunch: warning: {words}" in done.stderr) == (words is not None)
    assert "gpulaunch" not in host.run("-q", "docker", "run", "--rm", *flags, IMAGE, "true").stderr


def test_inside_a_lease(host: Host) -> None:
    """A container launched inside a lease takes its GPUs from that lease."""
    script = (
        f'gpulaunch docker run --rm --gpus 1 {IMAGE} sh -c "env | grep FAKE; ls /dev | grep nvidia"'
    )
    done = host.run("--only", "4,5", "-n", "2", "--", "sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert host.seen(done.stdout) == [4]


# ------------------------------------------------------------------------------------ what would be


def test_dry_run_by_hand(host: Host) -> None:
    """What --dry-run shows can be run as it is, and has the GPUs."""
    document = json.loads(
        host.run("--dry-run", "--json", "docker", "run", "--rm", "--gpus", "3", IMAGE, *SHOW).stdout
    )
    done = subprocess.run(
        document["argv"], env=host.environment, capture_output=True, text=True, check=True
    )
    assert host.seen(done.stdout) == sorted(gpu["index"] for gpu in document["gpus"])


def test_dry_run_of_nothing(host: Host) -> None:
    """There is nothing to decide about a docker command that needs no GPU."""
    done = host.run("--dry-run", "docker", "ps")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing to decide" in complaint(done)


# ---------------------------------------------------------------------------------- how they get in


@pytest.mark.parametrize("way", ["cdi", "runtime", "gpus"])
def test_forced_way(real_host: Host, way: str) -> None:
    """By whichever way GPUs get in, these and no others do, though the image says all."""
    host = real_host
    host.engine.import_image("cuda:1", ["ENV NVIDIA_VISIBLE_DEVICES=all"])
    host.environment["GPULAUNCH_CONTAINER_GPUS"] = way
    for flags, gpus in (
        (("--gpus", "2"), [0, 3]),
        (("--gpus", "device=5"), [5]),
        (("--runtime=nvidia",), list(range(8))),
    ):
        done = host.run("docker", "run", "--rm", *flags, "cuda:1", *SHOW)
        assert (done.returncode, done.stderr) == (0, "")
        nodes = sorted(
            int(line[6:]) for line in done.stdout.splitlines() if line.startswith("nvidia")
        )
        assert nodes == gpus
        uuids = {TOLD_BY_NVML[gpu] for gpu in gpus}
        if way == "gpus":
            assert set(host.engine.hook_calls()[-1]["visible"].split(",")) == uuids
        else:
            assert host.seen(done.stdout) == gpus
    assert len(host.engine.hook_calls()) == (3 if way == "gpus" else 0)


def test_it_comes_back_with_its_engine(real_host: Host) -> None:
    """A container with a restart policy runs again after its engine was restarted."""
    host = real_host
    container = host.detached(
        "docker", "run", "-d", "--restart", "always", "--gpus", "2", IMAGE, "sleep", "60"
    )
    host.engine.restart()
    assert host.state(container) == "running"
    assert host.lease()["container"] == container
    host.environment["GPULAUNCH_CONTAINER_GPUS"] = "cdi"
    done = host.run("docker", "run", "-d", "--restart", "on-failure:2", IMAGE, "true")
    warning = "gpulaunch: warning: --restart on-failure:2: Docker Engine "
    assert done.stderr.startswith(warning) == (not cdi_returns(host)), done.stderr


@pytest.mark.parametrize("way", ["runtime", "gpus"])
def test_capabilities(real_host: Host, way: str) -> None:
    """The driver's capabilities that --gpus asks for are in force by both ways that have them."""
    real_host.environment["GPULAUNCH_CONTAINER_GPUS"] = way
    done = real_host.run(
        "docker", "run", "--rm", "--gpus", '2,"capabilities=compute,utility"', IMAGE, *SHOW
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert variables(done.stdout)["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"


def cdi_returns(host: Host) -> bool:
    """Return whether the engine starts containers with CDI devices again (moby 49989)."""
    numbers = host.do("version", "--format", "{{.Server.Version}}").split(".")
    return tuple(map(int, numbers[:2])) >= (28, 2)


def way_of(host: Host, *flags: str) -> str:
    """Return by what docker would get the GPUs in: the first word that gpulaunch adds."""
    done = host.run("--dry-run", "--json", "docker", "run", *flags, IMAGE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["argv"][2 + len(flags)]


def test_chosen_way(real_host: Host) -> None:
    """CDI is chosen if it knows the GPUs, else nvidia's runtime, else --gpus; else nothing runs."""
    host = real_host
    assert way_of(host) == "--device"
    assert host.inside("docker", "run", "--rm", IMAGE) == [0]
    write_cdi_spec(host.engine.cdi, DESCRIBED)
    assert way_of(host) == "--runtime"
    assert way_of(host, "--runtime=nvidia") == "-e"
    write_cdi_spec(host.engine.cdi, TOLD_BY_NVML)
    assert way_of(host) == "--device"
    returning = "--device" if cdi_returns(host) else "--runtime"
    for policy, way in (("no", "--device"), ("always", returning), ("on-failure:3", returning)):
        assert way_of(host, f"--restart={policy}") == way
    write_cdi_spec(host.engine.cdi, DESCRIBED)
    host.environment["PATH"] += f":{host.engine.path[0]}"
    assert way_of(host, "--runtime=runc") == "--gpus"
    host.engine.restart(runtimes=None)
    assert way_of(host) == "--gpus"
    host.environment["PATH"] = host.environment["PATH"].replace(f":{host.engine.path[0]}", "")
    done = host.run("docker", "run", IMAGE, "true")
    assert (done.returncode, done.stdout) == (125, "")
    assert "has no way to give GPUs to containers" in complaint(done)
    assert host.nothing_has_run()


@pytest.mark.parametrize(
    ("way", "flags", "words"),
    [
        ("magic", (), "unknown way into a container 'magic'"),
        ("runtime", ("--runtime=runc",), "disagree"),
    ],
)
def test_impossible_way(real_host: Host, way: str, flags: tuple[str, ...], words: str) -> None:
    """A way that there is not, or that docker's flags close, is a usage error."""
    real_host.environment["GPULAUNCH_CONTAINER_GPUS"] = way
    done = real_host.run("docker", "run", *flags, IMAGE, "true")
    assert (done.returncode, words in complaint(done)) == (2, True)
    assert real_host.nothing_has_run()


def test_gpus_of_no_machine(host: Host) -> None:
    """Described GPUs that CDI does not know are leased but do not get in, and gpulaunch says so."""
    write_cdi_spec(host.engine.cdi)
    done = host.run("docker", "run", "--rm", IMAGE, *SHOW)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "dgx1-v100 is only described: its GPUs get into no container" in done.stderr
    assert variables(done.stdout)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert host.seen(done.stdout) == []


# ------------------------------------------------------------------------------------------- labels


def test_labels(host: Host) -> None:
    """A container's labels and variable match its lease in status, which names the container."""
    container = host.detached(
        "--name", "a job", "docker", "run", "-d", "--label", "own=1", "--gpus", "2", *LONG
    )
    lease = host.lease()
    labels = {
        "own": "1",
        "io.gpulaunch.lease": lease["id"],
        "io.gpulaunch.gpus": ",".join(lease["uuids"]),
    }
    assert host.labels(container) == labels
    assert lease["uuids"] == [DESCRIBED[gpu] for gpu in lease["gpus"]]
    assert (lease["container"], lease["name"], lease["container_state"]) == (
        container,
        "a job",
        "running",
    )
    assert host.do(
        "exec", container, "sh", "-c", "tr '\\0' '\\n' </proc/1/environ | grep LEASE"
    ) == (f"GPULAUNCH_LEASE={lease['id']}")
    shown = host.launcher.run("status", *DGX)
    assert host.do("inspect", "--format", "{{.Name}}", container)[1:] in shown.stdout


def test_labels_cannot_be_forged(host: Host, tmp_path: Path) -> None:
    """Labels that a user writes do not stand in the way of gpulaunch's."""
    (tmp_path / "labels").write_text("io.gpulaunch.lease=z\n")
    file = ("--label-file", str(tmp_path / "labels"))
    forged = ("--label", "io.gpulaunch.lease=x", "-l=io.gpulaunch.gpus=y", *file)
    container = host.detached("docker", "run", "-d", *forged, *LONG)
    assert host.labels(container)["io.gpulaunch.lease"] == host.lease()["id"]
    assert host.labels(container)["io.gpulaunch.gpus"] == DESCRIBED[0]


def build(host: Host, name: str, label: str) -> None:
    """Make an image with a profile in its label."""
    command = ["docker", "build", "--label", f"io.gpulaunch.profile={label}", "--tag", name, "-"]
    environment = host.environment | {"DOCKER_BUILDKIT": "0"}
    text = f"FROM {IMAGE}\n"
    subprocess.run(command, input=text, env=environment, text=True, check=True, capture_output=True)


def test_image_names_a_profile(host: Host) -> None:
    """An image's label names a profile, which --profile, GPULAUNCH_PROFILE and -n overrule."""
    build(host, "job:1", "vgg16")
    run = ("docker", "run", "-d", "job:1", "sleep", "1000")

    def profile(*options: str) -> tuple[str, int]:
        container = host.detached(*options, *run)
        lease = host.lease()
        host.do("rm", "--force", container)
        host.await_free()
        return lease["profile"], len(lease["gpus"])

    assert profile() == ("vgg16", 1)
    assert profile("-n", "3") == ("vgg16", 3)
    assert profile("--profile", "alexnet") == ("alexnet", 1)
    host.environment["GPULAUNCH_PROFILE"] = "googlenet"
    assert profile() == ("googlenet", 1)


def test_image_has_a_profile(host: Host) -> None:
    """An image's label may be a whole profile."""
    build(host, "job:1", PROFILE)
    assert host.inside("docker", "run", "--rm", "job:1") == [0, 2, 3]
    assert host.inside("docker", "run", "--rm", "--gpus", "1", "job:1") == [0]
    assert host.inside("docker", "run", "--rm", "--gpus", "0", "job:1") == []


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("no-such-profile", "unknown profile 'no-such-profile'"),
        ("/etc/passwd", "'/etc/passwd' is no name of a profile"),
        ("three.toml", "'three.toml' is no name of a profile"),
        ("gpus = ", "job:1"),
        ("gpus = 3\ncolour = 1", "colour"),
        ("name = 'x'\ngpus = -1", ":2:"),
    ],
)
def test_image_with_a_bad_profile(host: Host, tmp_path: Path, label: str, words: str) -> None:
    """A missing, wrong or path-like profile in an image is an error that names image and label."""
    (tmp_path / "three.toml").write_text(PROFILE)
    build(host, "job:1", label)
    done = host.run("docker", "run", "job:1", "true", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint(done).startswith("image job:1: label io.gpulaunch.profile")
    assert words in complaint(done)
    assert host.nothing_has_run()
    assert host.run("--profile", "vgg16", "docker", "run", "--rm", "job:1", "true").returncode == 0


# -------------------------------------------------------------------------------- in the background


def test_detached(host: Host) -> None:
    """-d in $(...) returns at once with the id and 0; the lease stays until the container ends."""
    script = f"x=$(gpulaunch --topology dgx1-v100 docker run -d {' '.join(LONG)}); echo $? $x"
    done = subprocess.run(
        ["bash", "-c", script],
        env=host.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    status, container = done.stdout.split()
    assert (status, done.stderr) == ("0", "")
    assert host.state(container) == "running"
    assert host.lease()["container"] == container


@pytest.mark.parametrize(
    "command",
    [("stop", "--time", "0"), ("rm", "--force"), ("kill",)],
    ids=words_of,
)
@pytest.mark.parametrize("flags", [(), ("--rm",)], ids=["kept", "removed"])
def test_ended_by_docker(host: Host, command: tuple[str, ...], flags: tuple[str, ...]) -> None:
    """However docker ends a container, its lease ends with it."""
    container = host.detached("docker", "run", "-d", *flags, *LONG)
    assert host.lease()["container"] == container
    host.do(*command, container)
    host.await_free()


@pytest.mark.parametrize("flags", [(), ("--rm",)], ids=["kept", "removed"])
def test_ends_by_itself(host: Host, flags: tuple[str, ...]) -> None:
    """A container that ends frees its GPUs at once."""
    container = host.detached(
        "docker", "run", "-d", *flags, IMAGE, "sh", "-c", "mkfifo /fifo; read x </fifo"
    )
    assert host.lease()["container"] == container
    host.do(
        "exec", "-d", container, "sh", "-c", "until test -p /fifo; do :; done; echo >/fifo"
    )  # it ends with it
    host.await_free()


@pytest.mark.parametrize("command", ["true", "no-such-command"])
def test_ends_before_docker_returns(host: Host, command: str) -> None:
    """A container that has ended, or could not start, when docker returns leaves no lease."""
    done = host.run("docker", "run", "-d", IMAGE, command)
    assert done.returncode == (0 if command == "true" else 127)
    host.await_free()


def test_docker_restart(host: Host) -> None:
    """Docker restart keeps a container's lease, with gpulaunch or without; docker stop ends it."""
    container = host.detached("docker", "run", "-d", *LONG)
    lease = host.lease()
    host.do("restart", "--time", "0", container)
    done = host.run("docker", "restart", "-t0", container)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{container}\n", "")
    host.do("exec", container, "sleep", "0.5")
    assert host.lease() == lease
    host.do("stop", "--time", "0", container)
    host.await_free()


def test_pause(host: Host) -> None:
    """A container that is paused keeps its GPUs."""
    container = host.detached("docker", "run", "-d", *LONG)
    host.do("pause", container)
    lease = host.lease()
    assert (lease["container"], lease["container_state"]) == (container, "paused")
    assert host.run("-n", "8", "docker", "run", IMAGE, "true").returncode == 75
    host.do("unpause", container)
    assert host.lease()["container_state"] == "running"


@pytest.mark.parametrize("state", ["running", "paused"])
def test_free(host: Host, state: str) -> None:
    """`gpulaunch free` ends a lease's container, which is told to first."""
    script = "trap 'echo told; exit 0' TERM; echo ready; sleep 1000 & wait"
    container = host.detached("docker", "run", "-d", IMAGE, "sh", "-c", script)
    until(lambda: "ready" in host.do("logs", container))
    if state == "paused":
        host.do("pause", container)
    done = host.launcher.run("free", host.lease()["id"])
    assert (done.returncode, done.stderr) == (0, "")
    assert host.launcher.records() == []
    assert host.state(container) == "exited"
    assert host.do("logs", container).split() == ["ready", "told"]


def test_free_with_client(host: Host) -> None:
    """`gpulaunch free` ends a container that somebody still looks at, who sees how it ended."""
    host.environment["GPULAUNCH_GRACE"] = "0.1s"
    with running(host, "docker", "run", *READY) as process:
        done = host.launcher.run("free", host.lease()["id"])
        assert (done.returncode, done.stderr) == (0, "")
        assert process.wait(PATIENCE_S) == 137
        assert process.stderr.read() == ""
    assert host.launcher.records() == []


# --------------------------------------------------------------------------------- create and start


@pytest.mark.parametrize("starter", ["gpulaunch", "docker"])
def test_create_and_start(host: Host, starter: str) -> None:
    """A container that was made has its GPUs, whoever starts it, until it has ended."""
    container = host.detached("-n", "2", "docker", "create", IMAGE, *SHOW)
    lease = host.lease()
    assert (lease["container"], lease["container_state"], lease["gpus"]) == (
        container,
        "created",
        [0, 3],
    )
    started = host.run if starter == "gpulaunch" else lambda _, *arguments: host.plain(*arguments)
    done = started("docker", "start", "--attach", container)
    assert (done.returncode, done.stderr, host.seen(done.stdout)) == (0, "", [0, 3])
    host.await_free()


def test_create_and_remove(host: Host) -> None:
    """A container that was made and is removed frees its GPUs."""
    container = host.detached("docker", "create", IMAGE, "true")
    host.do("rm", container)
    host.await_free()


def test_create_and_free(host: Host) -> None:
    """`gpulaunch free` removes a container that was never started, since it keeps the GPUs."""
    container = host.detached("docker", "create", IMAGE, "true")
    done = host.launcher.run("free", host.lease()["id"])
    assert (done.returncode, done.stderr) == (0, "")
    assert host.plain("inspect", container).returncode == 1
    assert host.launcher.records() == []


def test_create_and_fail(host: Host) -> None:
    """A container that cannot start frees its GPUs."""
    container = host.detached("docker", "create", IMAGE, "no-such-command")
    assert host.plain("start", container).returncode == 1
    host.await_free()


def test_start_again(host: Host) -> None:
    """A container that has ended starts again on the same GPUs, with a new lease while it runs."""
    done = host.run("--only", "6", "docker", "run", "--name", "again", IMAGE, *SHOW)
    assert host.seen(done.stdout) == [6]
    assert host.launcher.records() == []
    done = host.run("docker", "start", "-a", "again")
    assert (done.returncode, done.stderr, host.seen(done.stdout)) == (0, "", [6])
    assert host.launcher.records() == []
    host.do("rm", "again")
    host.run("--only", "6", "docker", "run", "--name", "again", "-d", *LONG)
    lease_id = host.lease()["id"]
    host.do("kill", "again")
    host.await_free()
    done = host.run("docker", "start", "again")
    assert (done.returncode, done.stdout, done.stderr) == (0, "again\n", "")
    lease = host.lease()
    assert (lease["gpus"], lease["container_name"], lease["container_state"]) == (
        [6],
        "again",
        "running",
    )
    assert lease["id"] != lease_id


def test_restart_again(host: Host) -> None:
    """Docker restart with gpulaunch gives a container that has ended its GPUs back, too."""
    short_at_first = (
        IMAGE,
        "sh",
        "-c",
        "test -e /again || { touch /again; exit; }; exec sleep 1000",
    )
    host.run("--only", "6", "docker", "run", "--name", "again", *short_at_first)
    assert host.launcher.records() == []
    done = host.run("docker", "restart", "again")
    assert (done.returncode, done.stdout, done.stderr) == (0, "again\n", "")
    assert host.lease()["gpus"] == [6]
    host.do("kill", "again")
    host.await_free()


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
            output, _ = waiting.communicate(timeout=PATIENCE_S)
        assert (waiting.returncode, host.seen(output)) == (0, [6])


def test_start_with_other_gpus(host: Host) -> None:
    """A container that is there has its GPUs: no option can change them."""
    host.run("docker", "run", "--name", "again", IMAGE, "true")
    done = host.run("-n", "2", "docker", "start", "again")
    assert (done.returncode, done.stdout) == (2, "")
    assert "container again was made with 1 GPU and gets those" in complaint(done)


def test_start_of_another_container(host: Host) -> None:
    """A container that gpulaunch did not make is started as it is, without a lease."""
    host.do("create", "--name", "other", IMAGE, "sh", "-c", "echo words; exit 9")
    done = host.same("start", "-a", "other")
    assert (done.returncode, done.stdout) == (9, "words\n")
    assert host.launcher.records() == []


def test_start_of_two(host: Host) -> None:
    """Two containers that need their GPUs back are started one at a time."""
    for name in ("one", "two"):
        host.run("docker", "run", "--name", name, IMAGE, "true")
    done = host.run("docker", "start", "one", "two")
    assert (done.returncode, complaint(done)) == (
        2,
        "2 containers need their GPUs back: one, two: start them one at a time",
    )


# ------------------------------------------------------------------------------------------ grammar


@pytest.mark.parametrize(
    "words",
    [
        ("docker", "run", "--rm", IMAGE),
        ("docker", "run", "--rm", "--", IMAGE),
        ("--", "docker", "run", "--rm", IMAGE),
        ("run", "docker", "run", "--rm", IMAGE),
        ("run", "--", "docker", "run", "--rm", IMAGE),
        ("--", "PATH/docker", "run", "--rm", IMAGE),
        ("docker", "container", "run", "--rm", IMAGE),
        ("docker", "--log-level", "error", "run", "--rm", IMAGE),
        ("docker", "-H", "HOST", "run", "--rm", IMAGE),
        ("docker", "--host=HOST", "container", "run", "--rm", "--", IMAGE),
    ],
    ids=words_of,
)
def test_grammar(host: Host, words: tuple[str, ...]) -> None:
    """However it is spelled, a container with one GPU is run."""
    path = shutil.which("docker", path=host.environment["PATH"])
    spelled = [
        word.replace("PATH/docker", path).replace("HOST", host.engine.host) for word in words
    ]
    if any("HOST" in word for word in words):
        host.environment["DOCKER_HOST"] = "unix:///nowhere"
    assert host.inside("-n", "1", *spelled) == [0]


def test_link(host: Host, tmp_path: Path) -> None:
    """A link called nvidia-docker is `gpulaunch nvidia-docker`."""
    link = tmp_path / "nvidia-docker"
    link.symlink_to(host.launcher.script)
    host.engine.import_image("cuda:1", ["ENV NVIDIA_VISIBLE_DEVICES=all"])
    environment = host.environment | {"GPULAUNCH_TOPOLOGY": "dgx1-v100"}
    for variables_of_it, gpus in (({}, list(range(8))), ({"NV_GPU": "2 4"}, [2, 4])):
        done = subprocess.run(
            [link, "run", "--rm", "cuda:1", *SHOW],
            env=environment | variables_of_it,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert host.seen(done.stdout) == gpus


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nerdctl", "run", IMAGE), "nerdctl"),
        (("--", "nerdctl", "run", IMAGE), "nerdctl"),
        (("docker", "compose", "watch"), "docker compose watch"),
        (("docker", "-H", "tcp://192.0.2.1:2375", "run", IMAGE), "-H tcp://192.0.2.1:2375"),
        (("docker", "--host=ssh://user@192.0.2.1", "run", IMAGE), "ssh://user@192.0.2.1"),
        (("docker", "-H", "tcp://192.0.2.1:2375", "start", "x"), "tcp://192.0.2.1:2375"),
    ],
    ids=words_of,
)
def test_refused(host: Host, arguments: tuple[str, ...], words: str) -> None:
    """What gpulaunch cannot lease GPUs to is refused in one line, and nothing runs."""
    done = host.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in complaint(done)
    assert host.nothing_has_run()


@pytest.mark.parametrize("chosen_by", ["-c", "--context=", "DOCKER_CONTEXT", "docker context use"])
def test_contexts(host: Host, chosen_by: str) -> None:
    """Docker's contexts are followed: one on this machine works, one on another is refused."""
    local = host.environment.pop("DOCKER_HOST")
    host.do("context", "create", "here", "--docker", f"host={local}")
    host.do("context", "create", "there", "--docker", "host=tcp://192.0.2.1:2375")

    def run(context: str) -> subprocess.CompletedProcess[str]:
        flags: tuple[str, ...] = ()
        if chosen_by == "DOCKER_CONTEXT":
            host.environment[chosen_by] = context
        elif chosen_by == "docker context use":
            host.do("context", "use", context)
        else:
            flags = (chosen_by, context) if chosen_by == "-c" else (chosen_by + context,)
        return host.run("docker", *flags, "run", "--rm", IMAGE, *SHOW)

    done = run("here")
    assert (done.returncode, done.stderr, host.seen(done.stdout)) == (0, "", [0])
    done = run("there")
    assert (done.returncode, done.stdout) == (2, "")
    assert "context there" in complaint(done)
    assert host.launcher.records() == []
    host.environment.pop("DOCKER_CONTEXT", None)
    host.environment["DOCKER_HOST"] = local
    if chosen_by == "docker context use":
        assert host.run("docker", "run", "--rm", IMAGE, "true").returncode == 0, (
            "DOCKER_HOST counts more"
        )


def test_unknown_context(host: Host) -> None:
    """A context that docker does not know is one clear line."""
    done = host.run("docker", "-c", "no-such-context", "run", IMAGE, "true")
    assert (done.returncode, done.stdout) == (125, "")
    assert "no-such-context" in complaint(done)


@pytest.mark.parametrize("command", ["run", "create", "start"])
def test_unreachable_engine(host: Host, command: str) -> None:
    """An engine that does not run is one clear line, and no lease."""
    host.environment["DOCKER_HOST"] = "unix:///nowhere/docker.sock"
    done = host.run("docker", command, IMAGE)
    assert (done.returncode, done.stdout) == (125, "")
    assert (
        complaint(done)
        == "cannot reach the Docker Engine at /nowhere/docker.sock: no such file or directory"
    )
    assert host.launcher.records() == []


# -------------------------------------------------------------------------------------- time limits


@pytest.mark.parametrize("flags", [("--init",), ()], ids=["ends on TERM", "needs KILL"])
def test_time_limit(host: Host, flags: tuple[str, ...]) -> None:
    """A container that runs longer than it may is ended, with 124, and its GPUs are free."""
    host.environment["GPULAUNCH_GRACE"] = "10s" if flags else "0.4s"
    began = time.monotonic()
    done = host.run(
        "--time-limit", "1s", "docker", "run", "--name", "long", *flags, IMAGE, "sleep", "100"
    )
    assert 1 < time.monotonic() - began < 8
    assert (done.returncode, done.stdout) == (124, "")
    assert complaint(done) == "the job ran longer than its limit of 1 s"
    assert host.state("long") == "exited"
    assert host.launcher.records() == []


def test_time_limit_in_the_background(host: Host) -> None:
    """A container in the background ends at its limit, too, though no terminal is told."""
    began = time.monotonic()
    container = host.detached(
        "--time-limit", "4s", "docker", "run", "-d", "--init", IMAGE, "sleep", "100"
    )
    assert host.lease()["container"] == container
    host.await_free()
    assert time.monotonic() - began > 4
    assert host.state(container) == "exited"


def limited_without_companion(host: Host, limit: str) -> tuple[str, str]:
    """Start a container with a time limit, and kill its companion; ids of lease and container."""
    container = host.detached(
        "--time-limit", limit, "docker", "run", "-d", "--gpus", "2", "--init", *LONG
    )
    (companion,) = holders(host.launcher.state / host.launcher.records()[0])
    os.kill(companion, signal.SIGKILL)
    wait_for_end(companion)
    return host.lease()["id"], container


def test_time_limit_without_companion(host: Host) -> None:
    """A launch ends a container that is over its limit though its companion is gone; no look does.

    Before the limit it is left alone.
    """
    lease, container = limited_without_companion(host, "5s")
    over = time.monotonic() + 5
    done = host.run("-n", "1", "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    until(lambda: time.monotonic() > over)
    assert [one["id"] for one in host.leases()] == [lease]
    assert host.launcher.run("doctor", *DGX).returncode in (0, 1)
    assert host.run("-n", "all", "--dry-run", "--", "true").returncode == 75
    assert host.state(container) == "running"
    done = host.run("-n", "all", "--", "true")
    warning = f"ended lease {lease}: its container outlived the time limit of 5 s"
    assert (done.returncode, done.stderr) == (0, f"gpulaunch: warning: {warning}\n")
    assert host.state(container) == "exited"
    assert host.launcher.records() == []


def test_the_queue_sees_a_time_limit_without_companion(host: Host) -> None:
    """A launch that waits ends such a container when its time is over, and gets its GPUs."""
    _, container = limited_without_companion(host, "2s")
    done = host.run("--wait", "--wait-timeout", "30s", "-n", "all", "--", "true")
    assert done.returncode == 0, done.stderr
    assert host.state(container) == "exited"


# ------------------------------------------------------------------------------------- what it uses


def test_a_container_is_measured(real_host: Host, dgx1_v100, tmp_path: Path) -> None:
    """A measured `docker run` has its container's GPU in the profile, and keeps its status."""
    dgx1_v100.script(0, "active", "0:70")
    path = tmp_path / "job.toml"
    options = ("profile", "measure", "-n", "1", "-o", str(path), "--", "docker", "run", "--rm")
    done = real_host.run(*options, IMAGE, "sh", "-c", "sleep 0.7; exit 3")
    assert done.returncode == 3, done.stderr
    resources = tomllib.loads(path.read_text())["resources"]
    assert (resources["time_active_percentage"], resources["incomplete"]) == (70, True)


def test_a_container_that_goes_on_alone_is_not(real_host: Host, tmp_path: Path) -> None:
    """A container that docker leaves running cannot be measured, and is not started."""
    path = tmp_path / "run.json"
    done = real_host.run("-o", f"record_to={path}", "docker", "run", "-d", *LONG)
    assert (done.returncode, "does not stay until its container ends" in done.stderr) == (2, True)
    assert not path.exists()


def test_detached_by_gpulaunch(host: Host) -> None:
    """`gpulaunch -d docker run` leaves a container running; output and status are kept."""
    named = ("-n", "2", "--name", "exp")
    done = host.run(
        *named,
        "-qd",
        "docker",
        "run",
        "--rm",
        IMAGE,
        "sh",
        "-c",
        "ls /dev | grep -c nvidia; exit 3",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "exp\n", "")
    assert host.launcher.run("wait", "exp").returncode == 3
    assert host.launcher.run("logs", "exp").stdout == "2\n"
    assert host.launcher.records() == []


def test_a_detached_container_is_freed(host: Host) -> None:
    """`free NAME` ends the container and the launch, as of one in the foreground."""
    host.environment["GPULAUNCH_GRACE"] = "0.5s"
    assert (
        host.run("--name", "exp", "-qd", "docker", "run", "--name", "one", *READY).returncode == 0
    )
    until(lambda: host.launcher.run("logs", "exp").stdout == "ready\n")
    assert host.launcher.run("free", "exp").returncode == 0
    assert host.launcher.run("wait", "exp").returncode == 137  # sleep is pid 1: no TERM
    assert host.state("one") == "exited"
    assert host.launcher.records() == []
