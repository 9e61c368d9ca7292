"""`gpulaunch docker ...` where docker's engine is not the host's own: with TLS, or rootless."""

import hashlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DGX
from engine import IMAGE, Engine, EngineError, RootlessEngine, link_plugin
from test_docker import Host, complaint, freed, host
from test_users import Accounts, User, accounts, alice, root  # noqa: F401  fixtures

__all__ = ["host"]


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Make certificates of an engine at 127.0.0.1 and of a client, as docker's documentation does.

    Returns:
        A folder for DOCKER_CERT_PATH, with the engine's own beside it.
    """
    if not shutil.which("openssl"):
        pytest.skip("not installed: openssl")

    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], cwd=tmp_path, check=True, capture_output=True)

    new = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    openssl(f"{new} -x509 -days 2 -subj /CN=ca -keyout ca-key.pem -out ca.pem")
    for who, usage in (("server", "subjectAltName=IP:127.0.0.1\n"), ("client", "")):
        (tmp_path / f"{who}.ext").write_text(f"{usage}extendedKeyUsage={who}Auth\n")
        openssl(f"{new} -subj /CN={who} -keyout {who}-key.pem -out {who}.csr")
        signed_by = f"-CA ca.pem -CAkey ca-key.pem -CAcreateserial -extfile {who}.ext"
        openssl(f"x509 -req -in {who}.csr {signed_by} -days 2 -out {who}.pem")
    folder = tmp_path / "certificates"
    folder.mkdir()
    for name, source in (("ca", "ca"), ("cert", "client"), ("key", "client-key")):
        shutil.copy(tmp_path / f"{source}.pem", folder / f"{name}.pem")
    return folder


@pytest.fixture
def far(engine: Engine, certificates: Path) -> Iterator[Engine]:  # noqa: ARG001  it can be started
    """Yield an engine that also listens at a port, for clients with a certificate."""
    far = Engine()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        far.also_at = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    files = {"cacert": "ca.pem", "cert": "server.pem", "key": "server-key.pem"}
    own = {f"tls{name}": str(certificates.parent / file) for name, file in files.items()}
    far.settings |= {"debug": True, "tlsverify": True, **own}
    far.start()
    yield far
    far.close()


def test_an_engine_with_tls(host: Host, far: Engine, certificates: Path) -> None:
    """However it is named, what would make a container there is refused, and it hears nothing."""
    here = host.environment.pop("DOCKER_HOST")
    by_flag = {"tlscacert": "ca", "tlscert": "cert", "tlskey": "key"}
    flags = " ".join(f"--{flag}={certificates}/{name}.pem" for flag, name in by_flag.items())
    files = ",".join(f"{name}={certificates}/{name}.pem" for name in by_flag.values())
    host.do("context", "create", "far", "--docker", f"host={far.also_at},{files}")
    verify = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(certificates)}
    ways = [
        (f"-H {far.also_at} --tlsverify {flags}", {}),
        (f"--tlsverify {flags}", {"DOCKER_HOST": far.also_at}),
        ("", {"DOCKER_HOST": far.also_at, **verify}),
        ("-c far", {}),
        ("", {"DOCKER_CONTEXT": "far"}),
    ]
    without = dict(host.environment)
    for options, variables in ways:
        host.environment.update(variables)
        words = ("docker", *options.split())
        assert host.plain(*words[1:], "ps", "--quiet").stderr == ""
        assert host.run(*words, "ps", "--quiet").returncode == 0
        heard = far.log.read_text().count("Calling")
        assert heard > 0
        for line in ("run --gpus 1 bb:1", "create bb:1", "start x", "compose up"):
            done = host.run(*words, *line.split())
            assert (done.returncode, done.stdout) == (2, ""), (options, line)
            assert "may be on another machine" in complaint(done)
        assert far.log.read_text().count("Calling") == heard
        host.environment.clear()
        host.environment.update(without)
    # Where TLS is asked for and no engine named, docker looks for one at a port of this machine.
    by_tls = (("--tlsverify", {}), ("--tls", {}), ("", verify), ("", {"DOCKER_TLS": "0"}))
    for options, variables in by_tls:
        for named in ({}, {"DOCKER_HOST": here}):
            environment = {**without, **variables, **named}
            done = host.run("docker", *options.split(), "run", IMAGE, env=environment)
            assert (done.returncode, "with TLS, which may be" in complaint(done)) == (2, True)
    assert host.nothing_has_run()


@pytest.fixture(scope="module")
def own_engine(engine: Engine, accounts: Accounts) -> Iterator[RootlessEngine]:  # noqa: ARG001,F811
    """Yield alice's own engine."""
    try:
        rootless = RootlessEngine(pwd.getpwnam(accounts.names[0]).pw_uid)
    except EngineError as problem:
        pytest.skip(str(problem))
    rootless.start()
    yield rootless
    rootless.close()


@pytest.fixture
def rootless(alice: User, own_engine: RootlessEngine) -> Iterator[Host]:  # noqa: F811
    """Yield alice's described DGX-1, and docker's context for her engine."""
    host = Host(alice, own_engine, (), DGX)
    configuration = Path(host.environment["DOCKER_CONFIG"])
    host.environment["HOME"] = str(own_engine.directory)
    del host.environment["DOCKER_HOST"]
    host.do("context", "create", "rootless", "--docker", f"host={own_engine.host}")
    host.do("context", "use", "rootless")
    for path in (configuration, *configuration.rglob("*")):
        os.chown(path, alice.uid, alice.uid)
    yield from freed(host)


def test_a_users_own_engine(rootless: Host) -> None:
    """However it is named, its containers get leases; the host's own engine is told from it."""
    show = (IMAGE, "sh", "-c", "echo $GPULAUNCH_GPU_COUNT")
    without = dict(rootless.environment)
    for words, variables in (
        ("", {}),
        ("-c rootless", {"DOCKER_TLS_VERIFY": "1"}),
        ("", {"DOCKER_CONTEXT": "rootless"}),
        (f"-H {rootless.engine.host}", {}),
        ("", {"DOCKER_HOST": rootless.engine.host}),
    ):
        line = ("docker", *words.split(), "run", "--rm", "--gpus", "2", *show)
        done = rootless.run(*line, env=without | variables)
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert rootless.nothing_has_run()
    done = rootless.run("docker", "-c", "default", "run", "--rm", *show)
    assert (done.returncode, done.stdout) == (125, "")
    assert complaint(done).startswith("cannot reach the Docker Engine at /var/run/docker.sock")


def test_a_lease_in_a_users_own_engine(rootless: Host) -> None:
    """It follows the container: when its launcher is killed, and until it is stopped."""
    run = ("docker", "run", "--gpus", "2", "--name", "own")
    with rootless.start(*run, IMAGE, "sh", "-c", "echo ready; exec sleep 1000") as launch:
        assert launch.stdout.readline() == "ready\n"
        launch.kill()
    lease = rootless.lease()
    assert (lease["gpus"], lease["user"]) == ([0, 3], rootless.launcher.name)
    assert lease["container"] == rootless.engine.inspect("own")["Id"]
    assert rootless.run("docker", "run", "--rm", "--gpus", "7", IMAGE, "true").returncode == 75
    assert rootless.run("free", lease["id"]).returncode == 0
    assert (rootless.state("own"), rootless.launcher.records()) == ("exited", [])


def test_what_buildx_builds_passes_the_door(host: Host, tmp_path: Path) -> None:
    """A script in a lease builds by buildx, and its container has GPUs of the lease."""
    link_plugin(Path(host.environment["DOCKER_CONFIG"]), "docker-buildx")
    if host.plain("buildx", "version").returncode:
        pytest.skip("not installed: docker buildx")
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nCOPY sent /sent\nRUN echo built > /made\n")
    (tmp_path / "sent").write_bytes(os.urandom(20 << 20))
    lines = (
        f"docker buildx build --load --network none --tag own:1 {tmp_path}",
        "docker run --rm --gpus all own:1 sh -c 'cat /made; md5sum < /sent; ls /dev | grep nvidia'",
    )
    words = ("-n", "2", "-o", "docker=lease", "--", "sh", "-ec", "; ".join(lines))
    done = host.run(*words)
    sent = hashlib.md5((tmp_path / "sent").read_bytes()).hexdigest()
    assert (done.returncode, done.stdout) == (0, f"built\n{sent}  -\nnvidia0\nnvidia3\n"), (
        done.stderr
    )
