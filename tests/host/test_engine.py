"""The Docker Engine of other tests is real, shows its GPUs inside, and leaves nothing behind."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import wait_for_end
from engine import GPUS, IMAGE, Engine, EngineError, write_cdi_spec

SHOW = (IMAGE, "sh", "-c", "env | grep FAKE_GPU; ls /dev | grep nvidia; true")


@pytest.fixture
def own(engine: Engine) -> Iterator[Engine]:  # noqa: ARG001 - skips where no engine starts
    """Yield an engine of the test's own, stopped, with no part of NVIDIA's."""
    own = Engine()
    yield own
    if own.directory.exists():
        own.close()


def run(engine: Engine, *arguments: str) -> list[str]:
    """Return what a container writes."""
    done = engine.docker("run", "--rm", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def start_container(engine: Engine, *options: str) -> tuple[str, int]:
    """Return name and pid of a container that runs until it is stopped."""
    done = engine.docker("run", "--detach", *options, IMAGE, "sleep", "1000")
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    return name, int(state(engine, name, "Pid"))


def state(engine: Engine, name: str, key: str) -> str:
    return engine.docker("inspect", "--format", f"{{{{.State.{key}}}}}", name).stdout.strip()


# --------------------------------------------------------------------------------------------- GPUs


@pytest.mark.parametrize("name", ["2", GPUS[2]])
def test_cdi(docker: Engine, name: str) -> None:
    """A GPU asked for by CDI, by index or UUID, is in the container, and no other."""
    assert run(docker, "--device", f"nvidia.com/gpu={name}", *SHOW) == [
        f"FAKE_GPU_2={GPUS[2]}",
        "nvidia2",
    ]


def test_cdi_all(docker: Engine) -> None:
    """All of CDI's GPUs are all."""
    seen = run(docker, "--device", "nvidia.com/gpu=all", *SHOW)
    assert seen == [f"FAKE_GPU_{i}={uuid}" for i, uuid in enumerate(GPUS)] + [
        f"nvidia{i}" for i in range(len(GPUS))
    ]


def test_cdi_keeps_nvidia_runtime_away(docker: Engine) -> None:
    """CDI tells NVIDIA's runtime that it need not do anything."""
    script = "echo $NVIDIA_VISIBLE_DEVICES"
    options = ("--runtime", "nvidia", "--device", "nvidia.com/gpu=1")
    assert run(docker, *options, IMAGE, "sh", "-c", script) == ["void"]


def test_cdi_of_other_gpus(docker: Engine) -> None:
    """A specification that changes is read again."""
    write_cdi_spec(docker.cdi, ["GPU-other"])
    assert run(docker, "--device", "nvidia.com/gpu=GPU-other", *SHOW) == [
        "FAKE_GPU_0=GPU-other",
        "nvidia0",
    ]


def test_gpus(docker: Engine) -> None:
    """--gpus is accepted, and the hook puts the GPUs into the container that Docker names to it."""
    assert run(docker, "--gpus", f'"device={GPUS[1]},3"', *SHOW) == ["nvidia1", "nvidia3"]
    assert [call["visible"] for call in docker.hook_calls()] == [f"{GPUS[1]},3"]


def test_nvidia_runtime(docker: Engine) -> None:
    """The runtime called nvidia does what NVIDIA_VISIBLE_DEVICES says, wherever that is set."""
    seen = [f"FAKE_GPU_0={GPUS[0]}", f"FAKE_GPU_5={GPUS[5]}", "nvidia0", "nvidia5"]
    assert (
        run(docker, "--runtime", "nvidia", "--env", f"NVIDIA_VISIBLE_DEVICES=0,{GPUS[5]}", *SHOW)
        == seen
    )
    docker.import_image("cuda:1", ["ENV NVIDIA_VISIBLE_DEVICES=all", "LABEL some=thing"])
    assert len(run(docker, "--runtime", "nvidia", "cuda:1", *SHOW[1:])) == 2 * len(GPUS)
    assert run(docker, "cuda:1", *SHOW[1:]) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--device", "nvidia.com/gpu=9"), "unresolvable CDI devices nvidia.com/gpu=9"),
        (("--gpus", "device=9"), "device error: 9: unknown device"),
        (
            ("--runtime", "nvidia", "--env", "NVIDIA_VISIBLE_DEVICES=9"),
            "device error: 9: unknown device",
        ),
    ],
    ids=["CDI", "--gpus", "runtime"],
)
def test_unknown_gpu(docker: Engine, options: tuple[str, ...], complaint: str) -> None:
    """A GPU that does not exist is an error of the engine, whichever way it is asked for."""
    done = docker.docker("run", "--rm", *options, IMAGE, "true")
    assert (done.returncode, complaint in done.stderr) == (125, True), done.stderr


# ----------------------------------------------------------------------------------- life and death


def test_plain_engine_leaves_nothing(own: Engine) -> None:
    """Without NVIDIA's parts the engine refuses what needs them; closed, it leaves no trace."""
    own.start()
    for option, complaint in (
        ("--gpus=all", "could not select device driver"),
        ("--runtime=nvidia", "runtime name"),
    ):
        done = own.docker("run", "--rm", option, IMAGE, "true")
        assert (done.returncode, complaint in done.stderr) == (125, True), done.stderr
    _, pid = start_container(own)
    running = own.processes()
    assert pid in running
    assert len(running) == 4, "dockerd, containerd, a shim and the container"
    assert len(own.mounts()) > 0
    own.close()
    assert (own.processes(), own.mounts(), own.directory.exists()) == ([], [], False)
    assert alive(running) == []


def test_crash_with_live_restore(own: Engine) -> None:
    """With live-restore a container outlives a crash of the engine, but not a later close()."""
    own.settings["live-restore"] = True
    own.start()
    name, pid = start_container(own)
    own.kill()
    assert not own.running
    assert own.docker("ps").returncode == 1
    assert len(own.processes()) == 2, "a shim and the container"
    own.start()
    assert (state(own, name, "Status"), int(state(own, name, "Pid"))) == ("running", pid)
    own.kill()
    own.close()
    assert (own.processes(), own.mounts(), own.directory.exists()) == ([], [], False)
    assert alive([pid]) == []


def test_crash_without_live_restore(own: Engine) -> None:
    """Without live-restore a container outlives the engine's crash until its next start."""
    own.start()
    name, pid = start_container(own, "--stop-timeout", "1")
    own.kill()
    assert alive([pid]) == [pid]
    own.start()
    wait_for_end(pid)
    assert (state(own, name, "Status"), state(own, name, "ExitCode")) == ("exited", "137")


def test_restart_changes_settings(own: Engine) -> None:
    """What restart() is told is in force afterwards, and containers stay if it says so."""
    own.start()
    assert own.docker("info", "--format", "{{.LiveRestoreEnabled}}").stdout == "false\n"
    own.restart(live_restore=True)
    assert own.docker("info", "--format", "{{.LiveRestoreEnabled}}").stdout == "true\n"
    name, pid = start_container(own)
    own.restart(labels=["a=b"])
    assert (state(own, name, "Status"), int(state(own, name, "Pid"))) == ("running", pid)


def test_bad_settings(own: Engine) -> None:
    """An engine that does not start says why, and can be closed."""
    own.settings["no-such-setting"] = True
    with pytest.raises(EngineError, match="no-such-setting"):
        own.start()
    own.close()
    assert not own.directory.exists()


def alive(pids: list[int]) -> list[int]:
    """Return the pids that run: neither gone nor zombies."""
    states = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            states[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return [pid for pid, code in states.items() if code != "Z"]


# ------------------------------------------------------------------------------------ between tests


class TestFixture:
    """What one test leaves behind, the next one does not find."""

    def test_leave(self, docker: Engine) -> None:
        """Leave containers, images, another specification, other settings and a dead engine."""
        docker.restart(labels=["left=1"])
        start_container(docker)
        docker.import_image("left:1")
        docker.docker("tag", IMAGE, "left:2")
        write_cdi_spec(docker.cdi, ["GPU-other"])
        run(docker, "--gpus", "all", IMAGE, "true")
        docker.environment["DOCKER_HOST"] = "unix:///nowhere"
        docker.kill()

    def test_find_nothing(self, docker: Engine) -> None:
        """Everything is as it was."""
        assert docker.docker("ps", "--all", "--quiet").stdout == ""
        assert docker.docker("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split() == [
            IMAGE
        ]
        assert docker.docker("info", "--format", "{{.Labels}}").stdout == "[]\n"
        assert docker.hook_calls() == []
        assert run(docker, "--device", f"nvidia.com/gpu={GPUS[7]}", *SHOW) == [
            f"FAKE_GPU_7={GPUS[7]}",
            "nvidia7",
        ]
        assert os.listdir(docker.environment["DOCKER_CONFIG"]) == []
