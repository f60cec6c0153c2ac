"""Downloads from a real TLS server, and the servers that are refused."""

import contextlib
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dagmaster.errors import InvalidRequest, NotAllowed, NotFound, Unavailable
from dagmaster.storage.download import DownloadRules, download, file_name

CONTENT = bytes(range(256)) * 4096
MODIFIED = "Tue, 14 Nov 2023 22:13:20 GMT"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append((self.headers["Host"], self.path))
        path = self.path.partition("?")[0]
        if path in self.server.redirects:
            self.send_response(302)
            self.send_header("Location", self.server.redirects[path])
            self.end_headers()
        elif path.startswith("/status/"):
            self.send_error(int(path.rpartition("/")[2]))
        else:
            self.send_response(200)
            self.send_header("Last-Modified", MODIFIED)
            if "endless" not in path:
                self.send_header("Content-Length", str(len(CONTENT) * (2 if "short" in path else 1)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(CONTENT)

    def log_message(self, *_arguments):
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=files.test"]
    command += ["-addext", "subjectAltName=DNS:files.test", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return key, cert


@pytest.fixture
def server(certificate, monkeypatch):
    key, cert = certificate
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.requests, server.redirects = [], {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    server.url = f"https://files.test:{server.server_port}"
    yield server
    server.shutdown()
    server.server_close()


def _rules(limit_bytes=10**9, **more):
    return DownloadRules(limit_bytes, **{"allow_private": True, "lookup": lambda _host: ["127.0.0.1"], **more})


def test_a_file_is_saved_with_its_name_and_time(server, tmp_path):
    progress = []

    file = download(f"{server.url}/a/My%20scene.tif?key=x", tmp_path, _rules(), lambda *done: progress.append(done))

    assert file == tmp_path / "My scene.tif"
    assert file.read_bytes() == CONTENT
    assert file.stat().st_mtime == 1_700_000_000
    assert progress[-1] == (len(CONTENT), len(CONTENT))
    assert server.requests == [(f"files.test:{server.server_port}", "/a/My%20scene.tif?key=x")]


def test_a_long_name_is_shortened_to_the_limit_of_the_file_system(server, tmp_path):
    file = download(f"{server.url}/{'%E6%B5%B7' * 300}.tif", tmp_path, _rules())

    assert file.read_bytes() == CONTENT
    assert file.name.endswith("海.tif")
    assert len(file.name.encode()) <= 200


def test_a_certificate_of_another_host_is_refused(server, tmp_path):
    with pytest.raises(Unavailable, match="cannot be downloaded"):
        download(server.url.replace("files.test", "other.test") + "/a.tif", tmp_path, _rules())

    assert server.requests == []


PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "::1",
    "fe80::1%eth0",
    "fd00::1",
    "::ffff:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "2002:7f00:1::",
]
METADATA = [
    "169.254.169.254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
    "fe80::1%eth0",
]


@pytest.fixture
def connected(monkeypatch):
    """The addresses to which the code tries to connect. All connections fail: the tests have no network."""
    addresses = []

    def create_connection(address, *_arguments, **_options):
        addresses.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", create_connection)
    return addresses


@pytest.mark.parametrize("address", PRIVATE)
def test_no_connection_is_opened_to_a_host_that_is_not_public(server, tmp_path, address):
    with pytest.raises(NotAllowed, match=r"files\.test of the source is not a public server"):
        download(f"{server.url}/a.tif", tmp_path, _rules(allow_private=False, lookup=lambda _host: [address]))

    assert server.requests == []


def test_a_host_with_one_private_address_is_refused(tmp_path):
    rules = _rules(allow_private=False, lookup=lambda _host: ["93.184.216.34", "10.0.0.1"])
    with pytest.raises(NotAllowed):
        download("https://files.test/a.tif", tmp_path, rules)


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("address", METADATA)
def test_metadata_services_are_never_called(connected, tmp_path, address):
    rules = _rules(lookup=lambda _host: ["93.184.216.34", address])
    with pytest.raises(NotAllowed):
        download("https://files.test/a.tif", tmp_path, rules)

    assert connected == []


@pytest.mark.requirement("X2")
@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "localhost",
        "[::1]",
        "[::ffff:7f00:1]",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "2852039166",
        "ⓛocalhost",
        "１２７.0.0.1",
        "127。0。0。1",
    ],
)
def test_other_notations_of_private_addresses_are_refused(connected, tmp_path, host):
    """These are notations that the resolver of the system accepts."""
    with pytest.raises((NotAllowed, Unavailable, InvalidRequest)) as refused:
        download(f"https://{host}/a.tif", tmp_path, DownloadRules(10**9))

    assert refused.value.code in ("source.private", "source.unknown-host", "source.bad-address")
    assert connected == []


@pytest.mark.requirement("X2")
@pytest.mark.parametrize(
    "url",
    ["https://files.test@127.0.0.1/", "https://a:b@files.test/", "https://files.test\\@127.0.0.1/", "https:///a.tif"],
)
def test_an_ambiguous_url_is_refused(connected, tmp_path, url):
    with pytest.raises(InvalidRequest):
        download(url, tmp_path, _rules(allow_private=False, lookup=lambda _host: ["93.184.216.34"]))

    assert connected == []


@pytest.mark.requirement("X2")
def test_a_name_is_resolved_once_and_the_checked_address_is_used(connected, tmp_path):
    """A name server that returns another address the second time (DNS rebinding) is asked only once."""
    responses = iter([["93.184.216.34"], ["127.0.0.1"]])

    with pytest.raises(Unavailable):
        download(
            "https://files.test/a.tif", tmp_path, _rules(allow_private=False, lookup=lambda _host: next(responses))
        )

    assert connected == [("93.184.216.34", 443)]
    assert next(responses) == ["127.0.0.1"]


@pytest.mark.requirement("X2")
def test_proxies_of_the_environment_are_not_used(connected, tmp_path, monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    with pytest.raises(Unavailable):
        download("https://files.test/a.tif", tmp_path, _rules(lookup=lambda _host: ["93.184.216.34"]))

    assert connected == [("93.184.216.34", 443)]


@pytest.mark.requirement("X2")
def test_a_name_that_changes_its_address_between_redirects_is_checked_each_time(server, tmp_path, monkeypatch):
    """The first address is treated as public, as if this test ran on the internet."""
    server.redirects = {"/a.tif": "/b.tif"}
    monkeypatch.setattr("dagmaster.storage.sources.is_public", lambda address: address == "127.0.0.1")
    responses = iter([["127.0.0.1"], ["10.0.0.1"]])

    with pytest.raises(NotAllowed, match=r"files\.test of the source is not a public server"):
        download(f"{server.url}/a.tif", tmp_path, _rules(allow_private=False, lookup=lambda _host: next(responses)))

    assert [path for _, path in server.requests] == ["/a.tif"]


def test_the_target_of_a_redirect_is_checked_again(server, tmp_path):
    server.redirects = {
        "/moved.tif": "/real.tif",
        "/evil.tif": "https://metadata.internal/x",
        "/plain.tif": "http://files.test/x",
    }
    looked_up = []

    def lookup(host):
        looked_up.append(host)
        return ["127.0.0.1"] if host == "files.test" else ["169.254.169.254"]

    file = download(f"{server.url}/moved.tif", tmp_path, _rules(lookup=lookup))
    with pytest.raises(InvalidRequest, match="not an https URL"):
        download(f"{server.url}/plain.tif", tmp_path, _rules(lookup=lookup))

    assert file.name == "real.tif"
    assert looked_up == ["files.test"] * 3
    with pytest.raises(NotAllowed, match=r"metadata\.internal"):
        download("https://metadata.internal/x", tmp_path, _rules(allow_private=False, lookup=lookup))


def test_a_redirect_to_a_private_host_is_not_followed(server, tmp_path, monkeypatch):
    """The first host is treated as public, as if this test ran on the internet."""
    server.redirects = {"/evil.tif": "https://metadata.internal/x"}
    monkeypatch.setattr("dagmaster.storage.sources.is_public", lambda address: address == "127.0.0.1")
    lookup = {"files.test": ["127.0.0.1"], "metadata.internal": ["169.254.169.254"]}.__getitem__

    with pytest.raises(NotAllowed, match=r"metadata\.internal of the source is not a public server"):
        download(f"{server.url}/evil.tif", tmp_path, _rules(allow_private=False, lookup=lookup))


def test_a_redirect_loop_is_refused(server, tmp_path):
    server.redirects = {"/a.tif": "/a.tif"}

    with pytest.raises(Unavailable, match="redirects more than 5 times"):
        download(f"{server.url}/a.tif", tmp_path, _rules())


@pytest.mark.parametrize("path", ["large.tif", "endless.tif"])
def test_a_file_above_the_limit_is_refused(server, tmp_path, path):
    with pytest.raises(InvalidRequest, match="larger than 1 MB") as refused:
        download(f"{server.url}/{path}", tmp_path, _rules(1_000_000))

    assert "MAX_DOWNLOAD_MB" in refused.value.hint


@pytest.mark.parametrize(
    ("path", "kind"),
    [("status/404", NotFound), ("status/403", NotAllowed), ("status/500", Unavailable), ("short.tif", Unavailable)],
)
def test_the_error_of_a_failed_download_names_the_url_without_its_query(server, tmp_path, path, kind):
    with pytest.raises(kind) as failed:
        download(f"{server.url}/{path}?sig=secret", tmp_path, _rules())

    assert failed.value.message.startswith(f"{server.url}/{path}")
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://host.test/a/b.tif?x=/c.tif", "b.tif"),
        ("https://host.test/", "host.test"),
        ("https://host.test/%2e%2e", ".."),
        ("https://host.test/..%2f..%2fetc%2fpasswd", "passwd"),
    ],
)
def test_the_name_of_a_file_is_the_last_part_of_its_path(url, name):
    assert file_name(url) == name
