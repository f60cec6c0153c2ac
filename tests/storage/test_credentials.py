"""Credentials that expire: tokens of a managed identity (Azure), and of a role (S3), from local test servers."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dagmaster.errors import Unavailable
from dagmaster.storage import Zone, open_storage

pytestmark = [pytest.mark.requirement("S2"), pytest.mark.requirement("S3")]


def test_a_token_is_renewed_before_it_expires_and_after_it_was_refused(azurite, identity_service, place, tmp_path):
    settings = azurite.settings_for(tmp_path, azure_storage_account_key=None, identity_endpoint=identity_service.url)
    storage = open_storage(settings)
    storage.create_containers()
    backend = storage._stores[Zone.SILVER]._backend
    identity, moment = backend._account._identity, [datetime.now(UTC).timestamp()]
    identity._clock = lambda: moment[0]
    first = identity._token
    requests = len(identity_service.requests)

    storage.put(place("a"), b"a")
    kept = identity._token
    moment[0] += 3600 - 299  # a token is renewed five minutes before it expires
    storage.put(place("b"), b"b")
    renewed = identity._token
    identity.forget()
    storage.put(place("c"), b"c")

    assert kept == first != renewed != identity._token
    assert len(identity_service.requests) == requests + 2
    assert [storage.get(place(name)) for name in "abc"] == [b"a", b"b", b"c"]


def test_storage_is_unavailable_if_the_identity_service_is_unreachable(azurite, identity_service, place, tmp_path):
    settings = azurite.settings_for(tmp_path, azure_storage_account_key=None, identity_endpoint=identity_service.url)
    identity_service.close()

    with pytest.raises(Unavailable) as refused:
        open_storage(settings).put(place("a"), b"a")

    assert refused.value.code == "azure.no-token"


class ContainerRole:
    """A server that issues credentials like the agent of a container. They expire after `lifetime`."""

    def __init__(self) -> None:
        role = self
        self.issued: list[str] = []
        self.lifetime = timedelta(hours=1)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                role.issued.append(f"AKIDROLE{len(role.issued):012}")
                expiry = datetime.now(UTC) + role.lifetime
                response = {
                    "AccessKeyId": role.issued[-1],
                    "SecretAccessKey": f"secret-{len(role.issued)}",
                    "Token": f"session-{len(role.issued)}",
                    "Expiration": expiry.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
                body = json.dumps(response).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/role"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def role(monkeypatch, tmp_path) -> Iterator[ContainerRole]:
    role = ContainerRole()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", role.url)
    yield role
    role.server.shutdown()
    role.server.server_close()


def test_credentials_of_a_role_are_renewed_for_the_store_and_for_gdal(s3_server, role, place, tmp_path):
    storage = open_storage(s3_server.settings_for(tmp_path, s3_access_key_id=None, s3_secret_access_key=None))
    storage.create_containers()
    backend = storage._stores[Zone.SILVER]._backend

    storage.put(place("a"), b"a")
    issued = len(role.issued)
    long_lived = [backend._gdal_settings()["AWS_SESSION_TOKEN"] for _ in range(3)]
    again = len(role.issued)
    # Credentials that expire within a minute are not used: botocore requests new ones.
    backend._session.get_credentials()._expiry_time = datetime.now(UTC) + timedelta(minutes=1)
    renewed = backend._gdal_settings()
    storage.put(place("b"), b"b")

    assert (issued, again) == (again, issued)
    assert len(set(long_lived)) == 1
    assert renewed["AWS_SESSION_TOKEN"] == f"session-{len(role.issued)}" != long_lived[0]
    assert renewed["AWS_ACCESS_KEY_ID"] == role.issued[-1]
    assert len(role.issued) == again + 1
    assert storage.get(place("b")) == b"b"
