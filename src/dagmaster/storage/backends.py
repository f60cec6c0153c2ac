"""Open the backend of an object store. Its packages are those of an extra, and are loaded only here."""

from typing import TYPE_CHECKING, Literal

from dagmaster.errors import InvalidRequest
from dagmaster.settings import Settings
from dagmaster.storage.location import Zone

if TYPE_CHECKING:
    from dagmaster.storage.objects import ObjectBackend


def open_backend(settings: Settings, backend: Literal["azure", "s3"], zone: Zone) -> "ObjectBackend":
    try:
        match backend:
            case "azure":
                from dagmaster.storage.azure import AzureBackend

                return AzureBackend.of(settings, zone)
            case "s3":
                from dagmaster.storage.s3 import S3Backend

                return S3Backend.of(settings, zone)
    except ModuleNotFoundError as error:
        where = "Azure" if backend == "azure" else "S3"
        raise InvalidRequest(
            f"objects in {where} need the package {error.name}, which is not installed",
            code="extra.missing",
            hint=f"pip install 'dagmaster[{backend}]'",
            module=error.name,
            extra=backend,
        ) from None
