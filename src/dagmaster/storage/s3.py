"""Zones in buckets of S3, or of a store that is compatible with S3.

A small object is one put, through obstore. A large one is uploaded in parts, through botocore, and committed by one
request. If the object must be new, the put or the commit has the condition `If-None-Match: *`. Credentials are a key
pair of the settings, or those that botocore finds in the usual places: environment, profile, web identity, role of the
container or the machine. botocore also renews them.
"""

import base64
import contextlib
import hashlib
import io
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from dagmaster.errors import NotAllowed
from dagmaster.settings import Settings
from dagmaster.storage import gdal_options
from dagmaster.storage.location import Location, Zone
from dagmaster.storage.objects import Written, no_container, plain_etag, refused, translated, unavailable
from dagmaster.storage.parts import PART_BYTES, part_size, send_parts
from dagmaster.storage.store import StorageTier, taken

if TYPE_CHECKING:
    from obstore.store import S3Store

MAX_PARTS: Final = 10_000
_LEFTOVER: Final = timedelta(days=1)
_DEFAULT_REGION: Final = "us-east-1"
_EXPIRES_SOON: Final = timedelta(minutes=5)
_TAKEN: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict"})
_REFUSED: Final = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "401", "403"}
)
_CLASSES: Final = {StorageTier.HOT: "STANDARD", StorageTier.COOL: "STANDARD_IA"}
_RETRIES: Final = {"max_retries": 4, "retry_timeout": timedelta(seconds=60)}


@dataclass(frozen=True, slots=True)
class KeyPair:
    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


class S3Backend:
    scheme = "s3"

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        key_pair: KeyPair | None = None,
        is_path_style: bool = False,
        authorities: Path | None = None,
        is_replaceable: bool = True,
    ) -> None:
        """`is_replaceable` if objects of the zone may be replaced: GDAL then does not use its cache."""
        self._endpoint = endpoint
        self._given_region = region
        self._given_key_pair = key_pair
        self._is_path_style = is_path_style
        self._authorities = authorities
        self._is_replaceable = is_replaceable
        self._containers: dict[str, S3Store] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, settings: Settings, zone: Zone = Zone.BRONZE) -> "S3Backend":
        key_id, secret = settings.s3_access_key_id, settings.s3_secret_access_key
        path_style = settings.s3_path_style
        return cls(
            endpoint=settings.s3_endpoint,
            region=settings.s3_region,
            key_pair=KeyPair(key_id, secret) if key_id and secret else None,
            is_path_style=settings.s3_endpoint is not None if path_style is None else path_style,
            authorities=settings.storage_ca_file,
            is_replaceable=zone is Zone.BRONZE,
        )

    def container(self, name: str) -> "S3Store":
        if name not in self._containers:
            self._containers[name] = self._open(name)
        return self._containers[name]

    def write(
        self, location: Location, content: BinaryIO, size_bytes: int, *, create_only: bool, tier: StorageTier
    ) -> Written:
        if size_bytes > PART_BYTES:
            return self._write_parts(location, content, size_bytes, create_only, tier)
        data = content.read()
        attributes = {"Storage-Class": _CLASSES[tier]} if tier is not StorageTier.HOT else None
        with translated(location), _naming_container(location):
            put = self.container(location.container).put(
                location.blob,
                io.BytesIO(data),
                attributes=attributes,
                mode="create" if create_only else "overwrite",
                use_multipart=False,
            )
        return Written(plain_etag(put["e_tag"]), hashlib.sha256(data).hexdigest())

    def _write_parts(
        self, location: Location, content: BinaryIO, size_bytes: int, create_only: bool, tier: StorageTier
    ) -> Written:
        client, target = self._client, {"Bucket": location.container, "Key": location.blob}
        with _translated(location):
            created = client.create_multipart_upload(
                **target, StorageClass=_CLASSES[tier], ContentType="application/octet-stream"
            )
        upload = {**target, "UploadId": created["UploadId"]}

        def send(number: int, part: bytes) -> dict[str, Any]:
            digest = base64.b64encode(hashlib.md5(part).digest()).decode()  # noqa: S324  (a checksum)
            sent = client.upload_part(**upload, PartNumber=number, Body=part, ContentMD5=digest)
            return {"PartNumber": number, "ETag": sent["ETag"]}

        condition = {"IfNoneMatch": "*"} if create_only else {}
        try:
            with _translated(location):
                parts, digest, sent_bytes = send_parts(content, part_size(size_bytes, MAX_PARTS), send)
                if sent_bytes != size_bytes:
                    raise unavailable(location, "the file has changed during its upload")
                done = client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **condition)
        except BaseException:
            with contextlib.suppress(Exception):  # remaining parts are removed after a day
                client.abort_multipart_upload(**upload)
            raise
        return Written(plain_etag(done["ETag"]), digest)

    def gdal_path(self, location: Location) -> str:
        bucket, path = f"/vsis3/{location.container}/", f"/vsis3/{location.container}/{location.blob}"
        if self._authorities:
            gdal_options.trust(self._authorities)
        gdal_options.set_options(bucket, self._gdal_settings())
        if self._is_replaceable:
            gdal_options.forget_content(path)
        return path

    def _gdal_settings(self) -> dict[str, str]:
        keys = self._key_pair()
        settings = {
            "AWS_ACCESS_KEY_ID": keys.access_key_id,
            "AWS_SECRET_ACCESS_KEY": keys.secret_access_key,
            "AWS_SESSION_TOKEN": keys.session_token or "",
            "AWS_REGION": self._region,
            "AWS_VIRTUAL_HOSTING": "FALSE" if self._is_path_style else "TRUE",
            "GDAL_HTTP_MAX_RETRY": "4",
            "GDAL_HTTP_RETRY_DELAY": "0.5",
        }
        if self._endpoint:
            parts = urlsplit(self._endpoint)
            settings |= {
                "AWS_S3_ENDPOINT": parts.netloc + parts.path,
                "AWS_HTTPS": "YES" if parts.scheme == "https" else "NO",
            }
        return settings

    def create_container(self, name: str) -> None:
        region = self._region
        options = {} if region == _DEFAULT_REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        with _translated(f"the bucket {name}"):
            try:
                self._client.head_bucket(Bucket=name)
            except Exception as error:
                if _code_of(error) not in {"404", "NoSuchBucket"}:
                    raise
                with contextlib.suppress(self._client.exceptions.BucketAlreadyOwnedByYou):
                    self._client.create_bucket(Bucket=name, **options)

    def remove_leftovers(self, container: str) -> None:
        """Abort uploads that were begun more than a day ago: their parts cost as much as objects."""
        with _translated(f"the bucket {container}"):
            for page in self._client.get_paginator("list_multipart_uploads").paginate(Bucket=container):
                for upload in page.get("Uploads", ()):
                    if is_leftover(upload["Initiated"], datetime.now(UTC)):
                        self._client.abort_multipart_upload(
                            Bucket=container, Key=upload["Key"], UploadId=upload["UploadId"]
                        )

    def _open(self, name: str) -> "S3Store":
        from obstore.store import S3Store

        self._key_pair()  # if there are no credentials, obstore would only say that access is refused
        options: Any = {
            "allow_http": bool(self._endpoint and self._endpoint.startswith("http:")),
            "connect_timeout": timedelta(seconds=10),
            "timeout": timedelta(seconds=120),
        }
        if self._authorities:
            options["root_certificate"] = self._authorities.read_text()
        settings: dict[str, Any] = {
            "region": self._region,
            "checksum_algorithm": "sha256",
            "virtual_hosted_style_request": not self._is_path_style,
        }
        if self._endpoint:
            settings["endpoint"] = self._endpoint
        return S3Store(
            name,
            credential_provider=self._credential,
            client_options=options,
            retry_config=_RETRIES,  # type: ignore[arg-type]
            **settings,
        )

    def _credential(self) -> Any:
        """For obstore, which requests it again shortly before it expires. botocore does not report that time."""
        keys = self._key_pair()
        expires_at = None if self._given_key_pair else datetime.now(UTC) + _EXPIRES_SOON
        return {
            "access_key_id": keys.access_key_id,
            "secret_access_key": keys.secret_access_key,
            "token": keys.session_token,
            "expires_at": expires_at,
        }

    def _key_pair(self) -> KeyPair:
        if self._given_key_pair:
            return self._given_key_pair
        with self._lock:
            credentials = self._session.get_credentials()
        if credentials is None:
            raise NotAllowed(
                "there are no credentials for S3",
                code="storage.no-credentials",
                hint="set S3_ACCESS_KEY_ID and S3_SECRET_ACCESS_KEY, or give this machine a role or a profile",
            )
        frozen = credentials.get_frozen_credentials()
        return KeyPair(frozen.access_key, frozen.secret_key, frozen.token)

    @property
    def _region(self) -> str:
        if self._given_region:
            return self._given_region
        return (
            _DEFAULT_REGION if self._given_key_pair else self._session.get_config_variable("region") or _DEFAULT_REGION
        )

    @cached_property
    def _session(self) -> Any:
        from botocore.session import Session

        session = Session()
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
        return session

    @cached_property
    def _client(self) -> Any:
        from botocore.config import Config

        keys = self._given_key_pair
        key_options = (
            {"aws_access_key_id": keys.access_key_id, "aws_secret_access_key": keys.secret_access_key} if keys else {}
        )
        return self._session.create_client(
            "s3",
            endpoint_url=self._endpoint,
            region_name=self._region,
            verify=str(self._authorities) if self._authorities else None,
            config=Config(
                connect_timeout=10,
                read_timeout=120,
                retries={"mode": "standard", "max_attempts": 5},
                s3={"addressing_style": "path" if self._is_path_style else "virtual"},
                # Parts have an MD5. Other checksums are sent in a form that not every compatible store knows.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
            **key_options,
        )


@cache
def _loader(_data_path: str | None) -> Any:
    """One loader for all sessions: each would parse the descriptions of services again, which are megabytes of JSON."""
    from botocore.session import Session

    return Session().get_component("data_loader")


def is_leftover(initiated: datetime, now: datetime) -> bool:
    """Whether an upload was begun so long ago that its writer has ended."""
    return now - initiated > _LEFTOVER


@contextlib.contextmanager
def _naming_container(location: Location) -> Iterator[None]:
    """Name the bucket in the error: if it does not exist, a put raises FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise no_container(location.container) from None


@contextlib.contextmanager
def _translated(place: Location | str) -> Iterator[None]:
    """Translate errors of botocore. Its own messages may contain URLs."""
    try:
        yield
    except ClientError as error:
        code = _code_of(error)
        if code in _TAKEN and isinstance(place, Location):
            raise taken(place) from None
        if code == "NoSuchBucket":
            raise no_container(
                place.container if isinstance(place, Location) else place.removeprefix("the bucket ")
            ) from None
        raise (refused(place) if code in _REFUSED else unavailable(place, code)) from None
    except BotoCoreError as error:
        raise unavailable(place, type(error).__name__) from None


def _code_of(error: Exception) -> str:
    response = getattr(error, "response", {})
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
