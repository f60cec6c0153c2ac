"""The webhook client connects only to the address that was checked, whatever the receiver does."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.orchestrator import webhook
from dagmaster.orchestrator.webhook import send
from tests.callbacks.receivers import OK, certificates, listening, receiver, status

pytestmark = pytest.mark.requirement("E24", "X2")

PUBLIC = "93.184.215.14"


class Resolver:
    """Returns the next of `answers` for each lookup, and counts the lookups."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.lookups: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.lookups.append((host, port))
        return self.answers[min(len(self.lookups), len(self.answers)) - 1]


@pytest.fixture
def opened(monkeypatch):
    """The addresses to which connections would be opened. No connection is opened: the tests have no network."""
    addresses: list[tuple[str, int]] = []

    async def open_connection(address, port, **_options):
        addresses.append((address, port))
        raise ConnectionRefusedError

    monkeypatch.setattr(webhook.asyncio, "open_connection", open_connection)
    return addresses


async def test_the_receiver_gets_the_request_as_it_was_sent():
    async with receiver() as hook:
        answered = await send(hook.url, b'{"a": 1}', {"webhook-id": "7"}, allow_private=True)

    (request,) = hook.requests
    assert answered == 200
    assert (request.line, request.body) == ("POST /hook?a=1 HTTP/1.1", b'{"a": 1}')
    assert request.headers["host"] == f"127.0.0.1:{hook.port}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["webhook-id"] == "7"


# --- which addresses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "0.0.0.0",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:0:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::10.0.0.1",
        "2002:7f00:1::",
        "fd12::1",
        "fec0::1",
        "ff02::1",
    ],
)
async def test_a_name_with_a_private_address_is_refused(address, opened):
    with pytest.raises(InvalidRequest, match="not public"):
        await send("https://a.example/", b"", {}, allow_private=False, resolve=Resolver([address]))
    with pytest.raises(InvalidRequest, match="not public"):
        await send("https://a.example/", b"", {}, allow_private=False, resolve=Resolver([PUBLIC, address]))

    assert opened == []


@pytest.mark.parametrize("is_allowed", [False, True])
@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
    ],
)
async def test_metadata_services_are_never_called(address, is_allowed, opened):
    resolver = Resolver([PUBLIC, address])

    with pytest.raises(InvalidRequest):
        await send("https://a.example/", b"", {}, allow_private=is_allowed, resolve=resolver)

    assert opened == []


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", "[::1]"])
async def test_other_notations_of_loopback_are_refused(host, opened):
    """The resolver of the system accepts these notations."""
    with pytest.raises(InvalidRequest, match="not public"):
        await send(f"https://{host}/", b"", {}, allow_private=False)

    assert opened == []


async def test_a_name_is_resolved_once_and_the_checked_address_is_used(opened):
    """A name server that gives another address the second time (DNS rebinding) is not queried a second time."""
    resolver = Resolver([PUBLIC], ["127.0.0.1"])

    with pytest.raises(Unavailable, match="connection refused"):
        await send("https://a.example:8443/", b"", {}, allow_private=False, resolve=resolver)

    assert resolver.lookups == [("a.example", 8443)]
    assert opened == [(PUBLIC, 8443)]


async def test_the_next_address_is_tried_if_the_first_does_not_respond(opened):
    resolver = Resolver(["2606:4700::1", PUBLIC])

    with pytest.raises(Unavailable):
        await send("https://a.example/", b"", {}, allow_private=False, resolve=resolver)

    assert opened == [("2606:4700::1", 443), (PUBLIC, 443)]


async def test_the_checked_address_is_not_resolved_again():
    """asyncio must not resolve the address that it gets."""
    async with receiver() as hook:
        loop = asyncio.get_running_loop()
        hosts = []
        loop.getaddrinfo, original = lambda *values, **_options: hosts.append(values), loop.getaddrinfo
        try:
            url = f"http://a.example:{hook.port}/"
            await send(url, b"{}", {}, allow_private=True, resolve=Resolver(["127.0.0.1"]))
        finally:
            loop.getaddrinfo = original

    assert hosts == []
    assert hook.requests[0].headers["host"] == f"a.example:{hook.port}"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.example/",
        "https:///x",
        "https://user@a.example/",
        "https://a.example/\r\nX-Injected: 1",
        "https://a.example/ x",
        "https://ä.example/",
        "https://a.example:99999/",
        "https://[::1/",
    ],
)
async def test_a_url_that_cannot_be_called_is_refused(url, opened):
    with pytest.raises(InvalidRequest) as refusal:
        await send(url, b"", {}, allow_private=True)

    assert refusal.value.code == "webhook.bad-url"
    assert opened == []


async def test_proxies_of_the_environment_are_not_used(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with receiver() as hook:
        assert await send(hook.url, b"{}", {}, allow_private=True) == 200


# --- TLS -------------------------------------------------------------------------------------------------------------


async def test_tls_verifies_the_host_of_the_url_not_the_address(tmp_path):
    issued = certificates(tmp_path, "hooks.example")
    names = []
    issued.server.sni_callback = lambda _socket, name, _context: names.append(name)
    async with receiver() as hook, listening(hook.serve, issued.server) as port:
        to_loopback = {"allow_private": True, "resolve": Resolver(["127.0.0.1"]), "tls": issued.client}

        assert await send(f"https://hooks.example:{port}/", b"{}", {}, **to_loopback) == 200
        with pytest.raises(Unavailable, match="certificate is not accepted"):
            await send(f"https://other.example:{port}/", b"{}", {}, **to_loopback)
        with pytest.raises(Unavailable, match="certificate is not accepted"):
            await send(f"https://127.0.0.1:{port}/", b"{}", {}, allow_private=True)

    assert names[:2] == ["hooks.example", "other.example"]
    assert len(hook.requests) == 1


# --- bad receivers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(code):
    async with receiver() as target, receiver(status(code, f"Location: {target.url}")) as hook:
        assert await send(hook.url, b"{}", {}, allow_private=True) == code

    assert (len(hook.requests), len(target.requests)) == (1, 0)


async def test_informational_responses_are_skipped():
    async with receiver(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + status(202)) as hook:
        assert await send(hook.url, b"{}", {}, allow_private=True) == 202


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 20\xb2 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.7\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    ],
)
async def test_an_invalid_response_is_an_error_that_does_not_quote_it(answer):
    async with receiver(answer) as hook:
        with pytest.raises(Unavailable) as failure:
            await send(hook.url, b"{}", {}, allow_private=True)

    assert failure.value.code == "webhook.unreachable"
    assert "OpenSSH" not in str(failure.value)


async def test_a_huge_response_body_is_not_read():
    sent = 0

    async def pour(reader, writer):
        nonlocal sent
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while sent < 1_000_000_000:
                writer.write(b"x" * 65_536)
                await writer.drain()
                sent += 65_536
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with listening(pour) as port:
        assert await send(f"http://127.0.0.1:{port}/", b"{}", {}, allow_private=True) == 200
        await asyncio.sleep(0.1)

    assert sent < 32_000_000, "not more than the buffers of two sockets hold"


@pytest.fixture
def short_limits(monkeypatch):
    monkeypatch.setattr(webhook, "TOTAL_SECONDS", 0.6)
    monkeypatch.setattr(webhook, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(webhook, "BODY_SECONDS", 0.2)


async def test_a_response_that_comes_too_late_is_an_error(short_limits):
    async with receiver(delay_seconds=5) as hook:
        with pytest.raises(Unavailable, match="no response within"):
            await send(hook.url, b"{}", {}, allow_private=True)


async def test_a_response_that_arrives_byte_by_byte_is_an_error(short_limits):
    async def drip(reader, writer):
        await reader.readuntil(b"{}")
        for byte in OK * 100:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.1)
        writer.close()

    started = time.monotonic()
    async with listening(drip) as port:
        with pytest.raises(Unavailable, match="no response within"):
            await send(f"http://127.0.0.1:{port}/", b"{}", {}, allow_private=True)

    assert time.monotonic() - started < 3


async def test_a_body_that_never_ends_does_not_delay_a_success(short_limits):
    async def hang(reader, writer):
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n...")
        await asyncio.sleep(5)
        writer.close()

    async with listening(hang) as port:
        assert await send(f"http://127.0.0.1:{port}/", b"{}", {}, allow_private=True) == 200


async def test_a_connection_that_takes_too_long_is_an_error(short_limits):
    async def never(_host, _port):
        await asyncio.sleep(5)

    with pytest.raises(Unavailable, match="no connection within"):
        await send("https://a.example/", b"{}", {}, allow_private=False, resolve=never)


async def test_a_name_that_does_not_exist_is_an_error():
    with pytest.raises(Unavailable, match="cannot be resolved"):
        await send("https://does-not-exist.invalid/", b"{}", {}, allow_private=False)
