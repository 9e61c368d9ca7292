"""What others read of a job's command."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.leases.publish import HIDDEN, published, redacted

NAMES = st.sampled_from(
    [
        *("password", "passwd", "PGPASSWORD", "client-secret", "secrets", "SECRET_KEY_BASE"),
        *("credentials", "token", "HF_TOKEN", "authToken", "key", "api-key", "api_key_2", "apikey"),
        *("APIKey", "AWSAccessKey", "access-key-id", "WANDB_API_KEY", "wandb.api_key"),
    ]
)
FORMS = st.sampled_from(
    [
        ["--{name}={value}"],
        ["--{name}", "{value}"],
        ["-{name}", "{value}"],
        ["{name}={value}"],
        ["-e", "{name}={value}"],
        ["-e{name}={value}"],
        ["--env={name}={value}"],
        ["+job.{name}={value}"],
        ["-H", "{name}: {value}"],
        ["-c", "lr=1 {name}={value} python train.py"],
        ["-c", "export {name}='{value}'; python train.py"],
        ["-c", "train --lr 1 --{name} {value}"],
        ["-c", "train --lr 1 --{name}  '{value}'"],
        ['{{"user": "me", "{name}": "{value}"}}'],
        ['{{\\"{name}\\": \\"{value}\\"}}'],
        ["https://example.org/get?{name}={value}"],
        ["https://me:{value}@example.org/"],
        ["https://{value}@example.org/"],
        ["-c", "git clone HTTPS://me:{value}@example.org"],
        ["redis://:{value}@cache:6379/0"],
        ["--use-token", "--{name}", "{value}"],
    ]
)
SECRETS = st.text("abcXYZ089!$%&()*+,;<=>[]^_`{|}~.:-", max_size=12).map("S3".__add__)


@given(NAMES, FORMS, SECRETS, st.integers(0, 2))
def test_no_secret_survives(name: str, form: list[str], secret: str, at: int) -> None:
    """A secret is hidden however it is passed, and wherever in the command."""
    plain = ["python", "train.py"]
    written = [part.format(name=name, value=secret) for part in form]
    got = redacted([*plain[:at], *written, *plain[at:]])
    assert [argument for argument in got if secret in argument] == []
    assert any(HIDDEN in argument for argument in got)


@given(st.lists(st.text("abK =:/@-'\\key.,") | NAMES.map("--{}".format), max_size=6))
def test_hidden_once_is_hidden(command: list[str]) -> None:
    """To redact a redacted command changes nothing, and no argument is added or lost."""
    once = redacted(command)
    assert redacted(once) == once
    assert len(once) == len(command)


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --lr=3 -n 2",
        "tool --keyboard de --monkey=7 --key-bindings vi --num-key-value-heads 8 MONKEY=1",
        "llm --max-tokens 512 --tokenizer=bpe --task token-classification --passes 3 --bypass x",
        "git clone ssh://git@host/repo@v2 me@host:path https://host:80/@scope",
        "docker run -v /run/secrets/token:/run/token --name keeper image",
        "sort --field=key --by secret token",
    ],
)
def test_no_secret_no_change(command: str) -> None:
    """A command without a secret is published as it is."""
    assert redacted(command.split()) == tuple(command.split())


def test_where_a_value_ends() -> None:
    """An option's value is one argument; within an argument the rest is hidden."""
    for command, want in (
        (["--token", "a", "b"], ("--token", "***", "b")),
        (["--token", "-a", "-b"], ("--token", "***", "-b")),
        (["--use-token", "--lr", "3"], ("--use-token", "--lr", "3")),
        (["--token=a b", "c"], ("--token=***", "c")),
        (["-c", "TOKEN=a python b", "c"], ("-c", "TOKEN=***", "c")),
        (["ftp://a:b@c/d@e"], ("ftp://***@c/d@e",)),
    ):
        assert redacted(command) == want


@pytest.mark.parametrize(
    ("what", "want"),
    [("command", ("/bin/a", "--key", "***")), ("program", ("a",)), ("nothing", ())],
)
def test_what_is_published(what: str, want: tuple[str, ...]) -> None:
    """The whole command, the program's name, or nothing is published."""
    assert published(["/bin/a", "--key", "k"], what) == want
    assert published([], what) == ()
