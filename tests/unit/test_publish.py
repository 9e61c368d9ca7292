"""What others read of a job's command."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.leases.record import HIDDEN, published, redacted

NAMES = st.sampled_from(
    [
        *("password", "passwd", "PGPASSWORD", "client-secret", "secrets", "SECRET_KEY_BASE"),
        *("credentials", "token", "HF_TOKEN", "authToken", "key", "api-key", "api_key_2", "apikey"),
        *("APIKey", "AWSAccessKey", "access-key-id", "WANDB_API_KEY", "wandb.api_key"),
        *("pass", "DB_PASS", "ftp-pass", "auth", "HTTP_AUTH", "cookie", "session_cookies"),
        *("MYSQL_PWD", "db-pwd", "dbPwd"),
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
        "make PWD=/data OLDPWD=/tmp --pwd /work --pass-through 3 --pass_rate=0.5 compass=n",
        "git --author me --authors=you --auth-mode basic --cookie-jar none --cookiecutter=x",
        "python task-1234567890123456789.py --hf_home=/data npm_config_cache=/tmp sk-learn pypi-x",
        "docker run -v /run/secrets/token:/run/token --name keeper image",
        "sort --field=key --by secret token",
    ],
)
def test_no_secret_no_change(command: str) -> None:
    """A command without a secret is published as it is."""
    assert redacted(command.split()) == tuple(command.split())


TOKENS = (
    *("ghp_{36}", "gho_{36}", "ghs_{36}", "github_pat_{22}_{59}", "glpat-{20}", "hf_{34}"),
    *("sk-{48}", "sk-ant-api03-{93}", "sk-proj-{20}_{20}-{20}", "xoxb-{12}-{12}-{24}"),
    *("xoxp-{12}-{12}", "AKIA{16}", "AIza{35}", "npm_{36}", "pypi-{85}"),
)


@pytest.mark.parametrize("token", TOKENS)
def test_no_token_survives(token: str) -> None:
    """A token with a well-known beginning is hidden wherever it is in an argument."""
    filler = "A1" if token.startswith("AKIA") else "a1Z"
    secret = re.sub(r"\{(\d+)\}", lambda found: (filler * 50)[: int(found[1])], token)
    for form in ("{}", "-u me:{}", "https://host/?x={}", '[["{}"]]', "--x={}/y"):
        got = redacted(["curl", form.format(secret), "end"])
        assert (secret in " ".join(got), HIDDEN in got[1]) == (False, True)
        assert (got[0], got[2]) == ("curl", "end")


def test_where_a_value_ends() -> None:
    """An option's value is one argument; within an argument the rest is hidden.

    The whole command, the program's name, or nothing is published.
    """
    for command, want in (
        (["--token", "a", "b"], ("--token", "***", "b")),
        (["--token", "-a", "-b"], ("--token", "***", "-b")),
        (["--use-token", "--lr", "3"], ("--use-token", "--lr", "3")),
        (["--token=a b", "c"], ("--token=***", "c")),
        (["-c", "TOKEN=a python b", "c"], ("-c", "TOKEN=***", "c")),
        (["ftp://a:b@c/d@e"], ("ftp://***@c/d@e",)),
    ):
        assert redacted(command) == want
    command = ["/bin/a", "--key", "k"]
    got = [published(command, what) for what in ("command", "program", "nothing")]
    assert got == [("/bin/a", "--key", "***"), ("a",), ()]
    assert published([], "command") == published([], "program") == ()
