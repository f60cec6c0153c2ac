"""Callback URLs that are refused, in every notation that a client would accept."""

from ipaddress import IPv4Address
from random import Random

import pytest

from dagmaster.callbacks.url import check_callback_url
from dagmaster.errors import InvalidRequest

pytestmark = pytest.mark.requirement("X2")

ALWAYS_REFUSED = [
    "",
    "javascript:alert(1)",
    "file:///etc/passwd",
    "ftp://example.com/",
    "//example.com/hook",
    "/hook",
    "example.com/hook",
    "http:example.com",
    "http:///hook",
    "http://:80/",
    "http://user@example.com/",
    "http://user:secret@example.com/",
    "http://example.com\\@169.254.169.254/",
    "http://exa mple.com/",
    "http://example.com/\r\nX-Injected: 1",
    "http://example.com/\x00",
    "http://example.com/\x7f",
    "http://example.com:0/",
    "http://example.com:99999/",
    "http://example.com:port/",
    "http://[::1/",
    "http://[not-an-address]/",
    "http://169%2e254.169.254/",
    "http://\uff11\uff16\uff19.254.169.254/",
    "http://169\u3002254\u3002169\u3002254/",
    "http://169.254.169.254./",
    "http://metadata.google.internal/computeMetadata/v1/",
    "HTTP://METADATA.google.internal./",
    "http://[fe80::1]/",
    "http://[fe80::1%25eth0]/",
    "http://[fd00:ec2::254]/",
    "http://100.100.100.200/",
    "https://168.63.129.16/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2002:a9fe:a9fe::1]/",
    "http://[::169.254.169.254]/",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:a9fe:a9fe]/",
]
PRIVATE = [
    "http://localhost/",
    "http://LOCALHOST:8000/",
    "http://a.localhost/",
    "http://127.0.0.1/",
    "http://127.1/",
    "http://0177.0.0.1/",
    "http://2130706433/",
    "http://0.0.0.0/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://10.0.0.1/hook",
    "http://192.168.1.1/",
    "http://172.16.0.1/",
    "http://100.64.0.1/",
    "http://[fd12:3456::1]/",
    "http://224.0.0.1/",
    "https://[::ffff:0:127.0.0.1]/",
]
NEEDS_THE_SETTING = [
    "http://example.com/hook",
    "HTTP://example.com/",
    "http://8.8.8.8:443/",
    "https://example.com:80/",
    "https://example.com:22/",
    "https://example.com:5432/",
]
ALLOWED = [
    "https://example.com",
    "https://example.com/hook?a=b&c=%20#part",
    "HTTPS://Example.COM:8443/hook",
    "https://xn--bcher-kva.example/",
    "https://my_host.example./",
    "https://8.8.8.8/",
    "https://[2606:4700::1111]:443/",
    "https://1e100.net/",
    "https://169.254.example.com/",
]


def is_refused(url: str, *, allow_private: bool) -> bool:
    try:
        check_callback_url(url, allow_private=allow_private)
    except InvalidRequest as error:
        return error.code == "submission.callback-url"
    return False


@pytest.mark.parametrize("url", ALWAYS_REFUSED)
def test_a_url_that_no_setting_allows_is_refused(url):
    assert is_refused(url, allow_private=True)
    assert is_refused(url, allow_private=False)


@pytest.mark.parametrize("url", [*PRIVATE, *NEEDS_THE_SETTING])
def test_another_scheme_port_or_network_needs_the_setting(url):
    assert is_refused(url, allow_private=False)
    assert not is_refused(url, allow_private=True)


@pytest.mark.parametrize("url", ALLOWED)
def test_a_public_url_is_accepted(url):
    assert not is_refused(url, allow_private=False)


def test_every_notation_of_an_address_is_treated_alike():
    """Random addresses, inside and outside of 169.254/16, in the notations of inet_aton and of IPv6."""
    random = Random(14)
    for number in range(500):
        inside = number % 2 == 0
        value = 0xA9FE0000 | random.getrandbits(16) if inside else int(IPv4Address("8.8.0.0")) | random.getrandbits(16)
        a, b, c, d = value.to_bytes(4, "big")
        part = lambda n: random.choice((str(n), oct(n).replace("0o", "0"), hex(n)))  # noqa: E731
        notations = [
            f"{part(a)}.{part(b)}.{part(c)}.{part(d)}",
            f"{part(a)}.{part(b)}.{part(c << 8 | d)}",
            f"{part(a)}.{part(b << 16 | c << 8 | d)}",
            part(value),
            f"[::ffff:{a}.{b}.{c}.{d}]",
            f"[0:0:0:0:0:FFFF:{value >> 16:x}:{value & 0xFFFF:x}]",
        ]
        for host in notations:
            assert is_refused(f"https://{host}/", allow_private=True) is inside, host
