"""No log line, error or response contains a secret; other text is not changed."""

import base64
import io
import json
import logging
import string
import sys
import time
import timeit
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.errors import Unavailable
from dagmaster.observe import log
from dagmaster.observe.redaction import redact, redact_value
from dagmaster.settings import load

pytestmark = pytest.mark.requirement("X3")

CANARY = "Xq7canaryWz3"
# Characters of secrets in texts without a delimiter that ends them.
PLAIN = string.ascii_letters + string.digits + "!#$%()*+,-./:=@[]^_{|}~"
IN_A_URL = string.ascii_letters + string.digits + "!#$%()*+,-./:=@^_{|}~&;"
OF_A_TOKEN = string.ascii_letters + string.digits + "-._~+/="


def secrets(alphabet: str) -> st.SearchStrategy[str]:
    part = st.text(alphabet, max_size=12)
    return st.builds(lambda before, after: before + CANARY + after, part, part)


SPACES = st.sampled_from([" ", "\n", "\t", ", ", "; "])
WORDS = st.lists(
    st.text(max_size=15)
    | st.sampled_from(
        [
            "://",
            "@",
            "job 0198b2c4",
            "token",
            "key=",
            "{",
            '"user": "bob"',
            "postgresql://me@host/db",
            "\\",
            "'",
            '"',
            "http://user:other@h/x?sig=abc&se=2",
            "password=other",
            "-----",
            "Bearer",
            "%3D",
            "(b'",
            "--",
        ]
    ),
    max_size=4,
)
NAMES = st.sampled_from(
    [
        "password",
        "PGPASSWORD",
        "passwd",
        "api_key",
        "apiKey",
        "x-api-key",
        "token",
        "claim_token",
        "accessToken",
        "secret",
        "client_secret",
        "AWS_SECRET_ACCESS_KEY",
        "AccountKey",
        "SharedAccessKey",
        "private_key",
        "X-Amz-Signature",
        "X-Amz-Credential",
        "smtp_pass",
        "Pwd",
        "passphrase",
        "credentials",
        "SECRET_KEY",
        "new_password2",
        "sig",
        "signature",
        "Ocp-Apim-Subscription-Key",
    ]
)


@given(
    before=WORDS,
    name=NAMES,
    sign=st.sampled_from(["=", ": ", " = ", "=>", ":="]),
    secret=secrets(PLAIN),
    space=SPACES,
    after=WORDS,
)
def test_the_value_of_a_secret_name_is_hidden(*, before, name, sign, secret, space, after):
    sign = "=" if name == "signature" else sign

    redacted = redact(f"{space.join(before)} {name}{sign}{secret}{space}{space.join(after)}")

    assert CANARY not in redacted


@given(
    before=WORDS,
    name=NAMES,
    left=st.text(max_size=12),
    right=st.text(max_size=12),
    depth=st.integers(0, 3),
    spaced=st.booleans(),
    after=WORDS,
)
def test_a_quoted_value_is_hidden_completely(*, before, name, left, right, depth, spaced, after):
    """This includes JSON as text in other JSON, where quotes are escaped."""
    text = json.dumps({name: left + CANARY + right, "user": "bob"}, separators=(", ", ": ") if spaced else (",", ":"))
    for _ in range(depth):
        text = json.dumps(text)

    redacted = redact(f"{' '.join(before)} {text} {' '.join(after)}")

    assert CANARY not in redacted


@given(NAMES, st.text(max_size=12), st.text("\\\"'", max_size=6), st.integers(0, 3))
def test_only_the_value_is_hidden_in_json(name, left, right, depth):
    """This includes values that end in backslashes and quotes."""
    text, expected = (json.dumps({name: value, "user": "bob"}) for value in (left + CANARY + right, "***"))
    for _ in range(depth):
        text, expected = json.dumps(text), json.dumps(expected)

    assert redact(text) == expected


@given(NAMES, st.text(max_size=12), st.text(max_size=12))
def test_a_value_in_a_python_object_is_hidden(name, left, right):
    secret = left + CANARY + right

    for value in ({name: secret}, {name: secret.encode("utf-8", "replace")}, [(name, secret)], {name: [1, secret]}):
        assert CANARY not in redact(f"got {value!r} from {['user', 'bob']}")


@given(
    st.lists(st.text(max_size=15), max_size=3),
    st.sampled_from(["postgresql", "redis", "amqps", "mongodb+srv", "mssql+pyodbc"]),
    st.sampled_from(["", "me", "me%40home", "a.b-c"]),
    secrets(IN_A_URL).filter(lambda secret: "://" not in f":{secret}"),
    st.sampled_from(["host", "host:5432/db", "[::1]:5432/db?sslmode=require", "a,b/db?user=x@y"]),
)
def test_a_password_in_a_url_is_hidden(before, scheme, user, secret, host):
    redacted = redact(f"{' '.join(before)} {scheme}://{user}:{secret}@{host} done")

    assert CANARY not in redacted
    assert redacted.endswith(" done")


@given(WORDS, st.sampled_from(["Bearer", "Token", "Basic", "Digest", "bearer"]), secrets(OF_A_TOKEN), st.booleans())
def test_headers_are_hidden(before, scheme, token, quoted):
    quote = "'" if quoted else ""
    lines = [f"Authorization: {scheme} {token}", f"proxy-authorization: {token}", f"Cookie: a=b; session={token}; c=d"]
    lines += [f"Set-Cookie: session={token}; Path=/", f"Authorization=AWS4 Credential=x, Signature={token}"]

    for line in lines:
        assert CANARY not in redact(f"{' '.join(before)} {quote}{line}{quote}\nnext: line")


@given(secrets(string.ascii_letters + string.digits + "%+/="), st.integers(0, 2))
def test_signed_urls_are_hidden(secret, times):
    """This includes URLs in the parameter of another URL."""
    from urllib.parse import quote

    url = f"https://x.blob.core.windows.net/c/b.tif?sv=2024&sig={secret}&se=2030"
    for _ in range(times):
        url = f"https://proxy/?to={quote(url, safe='')}"

    assert CANARY not in redact(f"GET {url} failed with 403")


@given(secrets(PLAIN))
def test_arguments_of_commands_are_hidden(secret):
    assert CANARY not in redact(f"psql --db-password {secret} --quiet")
    assert CANARY not in redact(f"Command {['psql', '--password', secret, '-q']!r} failed")


@given(st.binary(min_size=8, max_size=30))
def test_tokens_with_a_known_format_are_hidden(body):
    jwt = f"eyJhbGciOiJIUzI1NiJ9.{base64.urlsafe_b64encode(body + CANARY.encode()).decode().rstrip('=')}.c2ln"

    assert jwt[20:] not in redact(f"the server sent {jwt} back")
    assert jwt[20:] not in redact(f"with Bearer {jwt}")


def test_private_keys_are_hidden():
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nxyz==\n-----END RSA PRIVATE KEY-----\nafter"

    redacted = redact(f"read {key}")

    assert "MIIE" not in redacted
    assert redacted.endswith("-----END RSA PRIVATE KEY-----\nafter")


@pytest.mark.parametrize(
    "text",
    [
        "job 0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01 completed in 3.2 s",
        "the token is not valid",
        "tokens=5 max_tokens: 100",
        "idempotency_key=order-5, partition_key=2024",
        'password authentication failed for user "bob"',
        "no password: ",
        "password_file=/run/secrets/db",
        "Bearer authentication is not offered",
        "https://host:8080/users/@me?page=2",
        "postgresql://me@host:5432/db?sslmode=require",
        "ssh://git@github.com/x/y.git",
        "design: sigma=0.5 config=prod",
        "fields: ['password', 'user']",
        "unexpected token '}' at 5:3",
        "mail bob@example.com, see http://example.com",
        "2026-01-01T00:00:00.000000Z [info] keyboard: monkey",
        "compass=north bypass: yes",
        "auth: none, author: bob",
    ],
)
def test_ordinary_text_is_not_changed(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("postgresql://me:p@ss@host:5432/db?x=a@b", "postgresql://me:***@host:5432/db?x=a@b"),
        ("redis://:pw@h/0 and redis://:pw@i/0", "redis://:***@h/0 and redis://:***@i/0"),
        ("https://ghp_abc@github.com/x", "https://***@github.com/x"),
        ("f(token=abc, job=5)", "f(token=***, job=5)"),
        ("host=h password='a b' user=bob", "host=h password='***' user=bob"),
        ('{"password": "a\\"b", "user": "bob"}', '{"password": "***", "user": "bob"}'),
        ("AccountName=x;AccountKey=abc==;EndpointSuffix=y", "AccountName=x;AccountKey=***;EndpointSuffix=y"),
        ("?sv=1&sig=abc%3D&se=2", "?sv=1&sig=***&se=2"),
        ("'Authorization: Bearer abc' -X GET", "'Authorization: ***' -X GET"),
        ("secrets: ['a', 'b c'] and more", "secrets: *** and more"),
        ("password=(a)b and password=[],b more", "password=*** and password=*** more"),
        ("password='it''s' user=bob", "password='***' user=bob"),
        (r'{"log": "{\"password\": \"cut off", "user": "bob"}', r'{"log": "{\"password\": \"***", "user": "bob"}'),
    ],
)
def test_only_the_secret_is_hidden(text, redacted):
    assert redact(text) == redacted
    assert redact(redacted) == redacted


def test_facts_with_secret_names_are_hidden_at_any_depth():
    facts = {
        "password": "a",
        "claim_token": UUID(int=1),
        "api_key": 5,
        "idempotency_key": "order-5",
        "has_password": True,
        "token": None,
        "count": 3,
        "path": Path("/tmp/x"),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "nested": [{"headers": {"Authorization": "Bearer a"}, "url": "redis://:a@h"}, ("token=a", b"password=a")],
        "error": ValueError("secret=a"),
    }

    assert redact_value(facts) == {
        "password": "***",
        "claim_token": "***",
        "api_key": "***",
        "idempotency_key": "order-5",
        "has_password": True,
        "token": None,
        "count": 3,
        "path": "/tmp/x",
        "at": "2026-01-01 00:00:00+00:00",
        "nested": [{"headers": {"Authorization": "***"}, "url": "redis://:***@h"}, ["token=***", "b'password=***'"]],
        "error": "ValueError('secret=***')",
    }


def test_recursive_facts_are_truncated():
    endless: dict[str, object] = {"name": "x"}
    endless["self"] = endless

    assert "…" in str(redact_value(endless))


@pytest.fixture(params=["text", "json"])
def written(request, monkeypatch):
    """A function that returns the text that was logged so far."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    log.configure("debug", request.param)
    return stream.getvalue


def test_a_log_line_contains_no_secret(written):
    try:
        raise RuntimeError(f"can't reach postgresql://me:{CANARY}@host/db")
    except RuntimeError as error:
        log.get("test").error("failed", exc_info=error, token=CANARY, facts={"a": [{"password": CANARY}]}, error=error)

    assert CANARY not in written()
    assert "RuntimeError" in written()
    assert "can't reach postgresql://me:***@host/db" in written()


def test_log_lines_of_libraries_contain_no_secret(written):
    logging.getLogger("psycopg.pool").warning("no connection to %s", f"postgresql://me:{CANARY}@host/db")
    logging.getLogger("httpx2").info("GET https://host/?sig=%s", CANARY)

    assert CANARY not in written()
    assert "no connection to postgresql://me:***@host/db" in written()
    assert "GET" not in written()


@pytest.mark.parametrize("outage", [Unavailable("no answer", code="database.unavailable"), TimeoutError()])
def test_an_outage_is_a_warning_without_a_traceback(written, outage):
    log.failure(log.get("test"), "trying again", outage, chore="purge")

    assert "warning" in written()
    assert (str(outage) or "TimeoutError") in written()
    assert "purge" in written()
    assert "Traceback" not in written()


def test_any_other_failure_is_an_error_with_its_traceback(written):
    try:
        raise KeyError
    except KeyError as error:
        log.failure(log.get("test"), "trying again", error)

    assert "error" in written()
    assert "test_any_other_failure" in written()


MB = 1_000_000
BACKSLASH = "\\"


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "password",
        "password=",
        'password="',
        "password='\\",
        'password="\\"',
        "token: [",
        "token:(",
        "://a:",
        "://a:b@",
        "http://@",
        "?a=",
        "-",
        "--password ",
        "--token",
        "eyJ",
        "eyJaaaaaaaa.",
        "bearer ",
        "bearer a1",
        "sig%25",
        "api key ",
        "'authorization: ",
        "cookie: ",
        "-----BEGIN PRIVATE KEY-----",
        "token;",
        "password=; ",
        "password=\\",
        "token)",
        "('token', ",
        "É",
        "passwordÉ=",
    ],
)
def test_redaction_takes_linear_time_for_malicious_text(unit):
    """With quadratic time, one of these texts would take a minute."""
    length = MB // 4
    half = unit * (length // 2 // len(unit))

    for text in (f"{half}password={half}", f"{unit}{' ' * length}x", f"{unit}{BACKSLASH * length}x"):
        assert (
            cpu_seconds(text) < 0.5 or cpu_seconds(text) < 0.5
        )  # again, because another process may have slowed down the first time


def cpu_seconds(text: str) -> float:
    started = time.process_time()
    redact(text)
    return time.process_time() - started


def test_redaction_is_fast_for_text_without_secrets():
    """A log line has about ten short texts."""
    line = [
        "task finished",
        "0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01",
        "2026-01-01T00:00:00.000000Z",
        "info",
        "worker",
    ] * 2

    seconds = min(timeit.repeat(lambda: [redact(text) for text in line], number=1000, repeat=5)) / 1000

    assert seconds < 0.000_1


def test_secrets_of_the_settings_are_hidden_in_any_text():
    given = {
        "oidc_client_secret": "Wz3-canary-of-a-client",
        "database_url": "postgresql://me:canary%21of%21a%21database@db/x?sslmode=require",
        "janitor_webhook_url": "https://hooks.example/x?t=canary-of-a-webhook",
        "gateway_key": "dgm_abc123_canaryofakeyofthegateway",
        "api_key": "short-key",
        "external_database_url": "host=db password='canary of another database' sslmode=require",
    }

    load(**given)

    for text in (
        "the issuer does not know Wz3-canary-of-a-client",
        "login as me with canary!of!a!database failed; canary%21of%21a%21database",
        "POST t=canary-of-a-webhook",
        "unknown: canaryofakeyofthegateway",
        "{'why': 'canary of another database'}",
    ):
        assert "canary" not in redact(text), text
    # Words that are not secret are not changed, even if they are part of a secret setting.
    readable = "short-key sslmode=require hooks.example dgm_abc123 db"
    assert redact(readable) == readable
