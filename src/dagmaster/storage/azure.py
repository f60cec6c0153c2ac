"""Zones in containers of an Azure storage account.

A small object is one request (Put Blob). A large one is a list of blocks that one request commits (Put Block List). If
the object must be new, the put or the commit has the condition `If-None-Match: *`. Blocks have names of their own for
each upload, so two writers never mix their blocks. Azure removes uncommitted blocks after a week.
"""

import base64
import hashlib
import threading
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from uuid import uuid4

from dagmaster.settings import Settings
from dagmaster.storage import gdal_options
from dagmaster.storage.azure_account import AzureAccount, AzureResponse
from dagmaster.storage.location import Location, Zone
from dagmaster.storage.objects import Written, plain_etag, unavailable
from dagmaster.storage.parts import PART_BYTES, part_size, send_parts
from dagmaster.storage.store import StorageTier, taken

if TYPE_CHECKING:
    from obstore.store import AzureStore

MAX_BLOCKS: Final = 50_000
# A signature is used again while it is valid for longer than this, so that GDAL keeps what it has read.
MIN_LEFT: Final = timedelta(minutes=45)
_MAX_SIGNATURES: Final = gdal_options.MAX_PATHS
_TAKEN: Final = frozenset({"BlobAlreadyExists", "ConditionNotMet", "UnauthorizedBlobOverwrite"})
_RETRIES: Final = {"max_retries": 4, "retry_timeout": timedelta(seconds=60)}


class AzureBackend:
    scheme = "az"

    def __init__(self, account: AzureAccount, authorities: Path | None = None, *, is_replaceable: bool = True) -> None:
        """`is_replaceable` if objects of the zone may be replaced: GDAL then does not use its cache."""
        self._account = account
        self._authorities = authorities
        self._is_replaceable = is_replaceable
        self._containers: dict[str, AzureStore] = {}
        self._signatures: OrderedDict[Location, tuple[str, datetime]] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, settings: Settings, zone: Zone) -> "AzureBackend":
        account = AzureAccount.of(settings, zone)
        return cls(account, settings.storage_ca_file, is_replaceable=zone is Zone.BRONZE)

    def container(self, name: str) -> "AzureStore":
        if name not in self._containers:
            self._containers[name] = self._open(name)
        return self._containers[name]

    def write(
        self, location: Location, content: BinaryIO, size_bytes: int, *, create_only: bool, tier: StorageTier
    ) -> Written:
        headers = {"If-None-Match": "*"} if create_only else {}
        if tier is StorageTier.COOL:
            headers["x-ms-access-tier"] = "Cool"
        if size_bytes <= PART_BYTES:
            data = content.read()
            blob = {**headers, "x-ms-blob-type": "BlockBlob", "Content-Type": "application/octet-stream"}
            response = self._account.request("PUT", location, {}, blob, data)
            return _written(location, response, hashlib.sha256(data).hexdigest(), create_only)
        return self._write_blocks(location, content, size_bytes, headers, create_only)

    def _write_blocks(
        self, location: Location, content: BinaryIO, size_bytes: int, headers: dict[str, str], create_only: bool
    ) -> Written:
        upload = uuid4().hex

        def send(number: int, block: bytes) -> str:
            name = base64.b64encode(f"{upload}{number:06}".encode()).decode()
            response = self._account.request("PUT", location, {"comp": "block", "blockid": name}, content=block)
            if response.status != 201:
                raise unavailable(location, response.code or str(response.status))
            return name

        names, digest, sent_bytes = send_parts(content, part_size(size_bytes, MAX_BLOCKS), send)
        if sent_bytes != size_bytes:
            raise unavailable(location, "the file has changed during its upload")
        blocks = "".join(f"<Latest>{name}</Latest>" for name in names)
        document = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'.encode()
        own = {**headers, "x-ms-blob-content-type": "application/octet-stream", "Content-Type": "application/xml"}
        response = self._account.request("PUT", location, {"comp": "blocklist"}, own, document)
        return _written(location, response, digest, create_only)

    def gdal_path(self, location: Location) -> str:
        path = f"/vsiaz/{location.container}/{location.blob}"
        if self._authorities:
            gdal_options.trust(self._authorities)
        service = f"BlobEndpoint={self._account.endpoint};SharedAccessSignature={self._signature(location)}"
        gdal_options.set_options(path, {"AZURE_STORAGE_CONNECTION_STRING": service, **GDAL_RETRIES})
        if self._is_replaceable:
            gdal_options.forget_content(path)
        return path

    def create_container(self, name: str) -> None:
        self._account.create_container(name)

    def remove_leftovers(self, container: str) -> None:
        """Does nothing: Azure removes uncommitted blocks itself."""

    def _signature(self, location: Location) -> str:
        with self._lock:
            signature, expiry = self._signatures.get(location, ("", datetime.min.replace(tzinfo=UTC)))
            if expiry - datetime.now(UTC) < MIN_LEFT:
                signature, expiry = self._account.sas(location, "r")
            self._signatures[location] = signature, expiry
            self._signatures.move_to_end(location)
            while len(self._signatures) > _MAX_SIGNATURES:
                self._signatures.popitem(last=False)
            return signature

    def _open(self, name: str) -> "AzureStore":
        from obstore.store import AzureStore

        account = self._account
        options: Any = {
            "allow_http": account.endpoint.startswith("http:"),
            "connect_timeout": timedelta(seconds=10),
            "timeout": timedelta(seconds=120),
        }
        if account.trusted:
            options["root_certificate"] = account.trusted
        common: Any = {"account_name": account.name, "endpoint": account.endpoint, "retry_config": _RETRIES}
        if account.account_key:
            return AzureStore(name, account_key=account.account_key.value, client_options=options, **common)
        return AzureStore(name, credential_provider=self._token, client_options=options, **common)

    def _token(self) -> Any:
        token, expires_at = self._account.token()
        return {"token": token, "expires_at": expires_at}


GDAL_RETRIES: Final = {"GDAL_HTTP_MAX_RETRY": "4", "GDAL_HTTP_RETRY_DELAY": "0.5"}


def _written(location: Location, response: AzureResponse, digest: str, create_only: bool) -> Written:
    if create_only and (response.status == 412 or response.code in _TAKEN):
        raise taken(location)
    if response.code == "InvalidBlockList":
        # Another writer has committed meanwhile, and that removes the blocks of this one.
        if create_only:
            raise taken(location)
        raise unavailable(location, "another writer has replaced it")
    if response.status != 201:
        raise unavailable(location, response.code or str(response.status))
    return Written(plain_etag(response.headers.get("etag")), digest)
