"""Object stores that tests start: Azurite (Azure), and moto (S3). Each has its own objects, a log of its requests, and
ends with the tests.

Azurite uses https and accepts its well-known key and tokens of any issuer. `IdentityService` plays the metadata
service that gives a virtual machine tokens of its managed identity.
"""

import base64
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import trustme

from dagmaster.settings import AZURITE_ACCOUNT, Settings
from dagmaster.storage import Location, Storage
from dagmaster.storage.azure import AzureBackend

ROOT = Path(__file__).parents[2]
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
INSTALL_SECONDS = 600.0
START_SECONDS = 60.0
CONTAINERS = ("bronze", "silver", "external", "other-container")


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    range: str | None
    status: int = 0


def length_of(read: Request) -> int:
    """The number of bytes in the range of a request."""
    assert read.range, read
    first, _, last = read.range.removeprefix("bytes=").partition("-")
    return int(last) - int(first) + 1


def tier_of(storage: Storage, location: Location) -> str | None:
    """The access tier in Azure, or the storage class in S3."""
    backend = storage._stores[location.zone]._backend
    if isinstance(backend, AzureBackend):
        account = backend._account
        url = f"{account.endpoint}/{location.path}?{account.sas(location, 'r')[0]}"
        return account._http().head(url).headers.get("x-ms-access-tier")
    return backend._client.head_object(Bucket=location.container, Key=location.blob).get("StorageClass")


@dataclass
class Server:
    settings: dict[str, str]  # environment variables that put the zones into this server
    log: Path
    process: subprocess.Popen = field(repr=False)

    def requests(self) -> list[Request]:
        raise NotImplementedError

    def settings_for(self, folder: Path, **others) -> Settings:
        values = {name.lower(): value for name, value in self.settings.items()}
        return Settings(**{"DAGMASTER_DATA": str(folder), **values, **others})


class Azurite(Server):
    def requests(self) -> list[Request]:
        """Reads of objects, from the debug log: one line has the URL, and the headers of the request."""
        text = self.log.read_text(errors="replace")
        requests = re.findall(r"RequestMethod=(\w+) RequestURL=(\S+?) RequestHeaders:(\{.*?\}) ClientIP", text)
        return [Request(method, url.partition("?")[0], _range_in(headers)) for method, url, headers in requests]


class S3(Server):
    def requests(self) -> list[Request]:
        entries = map(json.loads, self.log.read_text().splitlines())
        return [Request(each["method"], each["path"], each["range"], each["status"]) for each in entries]


def _range_in(headers: str) -> str | None:
    values = {name.lower(): value for name, value in json.loads(headers).items()}
    return values.get("range") or values.get("x-ms-range")


@contextmanager
def running_azurite(folder: Path) -> Iterator[Azurite]:
    setup = subprocess.run(
        [ROOT / "scripts/azurite", "setup"], stdout=subprocess.PIPE, check=True, text=True, timeout=INSTALL_SECONDS
    )
    node, main = setup.stdout.split()
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    port, log = free_port(), folder / "azurite.log"
    options = ["--inMemoryPersistence", "--blobPort", str(port), "--oauth", "basic", "--silent", "--debug", str(log)]
    options += ["--cert", str(folder / "cert.pem"), "--key", str(folder / "key.pem"), "--disableTelemetry"]
    settings = {
        "STORAGE_BACKEND": "azure",
        "AZURE_STORAGE_ACCOUNT_NAME": AZURITE_ACCOUNT,
        "AZURE_STORAGE_ENDPOINT": f"https://127.0.0.1:{port}/{{account}}",
        "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
        "STORAGE_CA_FILE": str(folder / "ca.pem"),
    }
    with started([node, main, *options], port, folder / "azurite.out") as process:
        yield Azurite(settings, log, process)


@contextmanager
def running_s3(folder: Path) -> Iterator[S3]:
    port, log = free_port(), folder / "s3.log"
    log.touch()
    settings = {
        "STORAGE_BACKEND": "s3",
        "S3_ENDPOINT": f"http://127.0.0.1:{port}",
        "S3_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
        "S3_SECRET_ACCESS_KEY": "s3-canary-secret-of-the-tests",
    }
    command = [sys.executable, "-m", "tests.object_stores.s3_server", str(port), str(log)]
    with started(command, port, folder / "s3.out") as process:
        yield S3(settings, log, process)


@contextmanager
def started(command: list[str], port: int, output: Path) -> Iterator[subprocess.Popen]:
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT, env={**os.environ})
    try:
        _await_port(port, process, output)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_port(port: int, process: subprocess.Popen, output: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, output.read_text()[-2000:]
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"the server did not start: {output.read_text()[-2000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class IdentityService:
    """Issues tokens like Azure's metadata service. Azurite checks their claims, but not their signature."""

    def __init__(self) -> None:
        service = self
        self.requests: list[str] = []
        self.lifetime_seconds = 3600.0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                service.requests.append(self.path)
                now = int(time.time())
                response = {"access_token": service.token(now), "expires_on": str(int(now + service.lifetime_seconds))}
                body = json.dumps(response).encode()
                self.send_response(200 if self.headers.get("Metadata") == "true" else 400)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metadata/identity/oauth2/token"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def token(self, now: int) -> str:
        claims = {
            "aud": "https://storage.azure.com",
            "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
            "iat": now - 60,
            "nbf": now - 60,
            "exp": int(now + self.lifetime_seconds),
            "oid": str(uuid4()),
            "tid": str(uuid4()),
            "sub": "tests",
            "ver": "1.0",
        }
        return f"{_base64({'alg': 'RS256', 'typ': 'JWT', 'kid': 'x'})}.{_base64(claims)}.c2ln"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def _base64(value: dict) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
