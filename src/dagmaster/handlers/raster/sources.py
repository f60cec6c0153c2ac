"""The source files of raster handlers: how a workflow names one, and how it is found and read."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from dagmaster.errors import Conflict, NotFound, UnfitData
from dagmaster.handlers.context import GiveBack
from dagmaster.handlers.raster.dataset import DatasetDescription, Json
from dagmaster.handlers.raster.documents import cog_of
from dagmaster.handlers.raster.outputs import in_silver
from dagmaster.raster.analysis.statistics import BandStatistics, partial_of, summarize
from dagmaster.raster.source.facts import RasterFacts, RasterType, read_facts
from dagmaster.raster.source.opening import opened
from dagmaster.raster.source.sample import take_sample
from dagmaster.stac.public import leak_in
from dagmaster.stac.renders import renders
from dagmaster.storage.location import Zone, intermediate
from dagmaster.storage.sources import SourceFile, SourceOrigin
from dagmaster.storage.zones import Storage

_MAX_NAME_LENGTH = 100


class SourceParams(BaseModel):
    """A file: `blob_name` in a container of the bronze zone, or another source that the configuration allows."""

    model_config = ConfigDict(frozen=True)

    container_name: str | None = None
    blob_name: str = Field(min_length=1)
    source_crs: str | None = None
    raster_type: str = "auto"
    nodata: float | Literal["nan"] | None = None
    unset_alpha: bool = False  # the band that is marked as alpha holds data
    dtype: str | None = None  # integers are stored with this type
    crs: str | None = None  # the CRS that it is read with, for the provenance
    sha256: str | None = None  # of the file, for the provenance
    etag: str | None = None  # of the blob; if it differs, the content has changed

    @property
    def kind(self) -> RasterType | None:
        return RasterType.parse(self.raster_type)

    @property
    def nodata_value(self) -> float | None:
        return float("nan") if self.nodata == "nan" else self.nodata


def find_source(storage: Storage, params: SourceParams, job_id: UUID, zone: Zone = Zone.BRONZE) -> SourceFile:
    container = params.container_name or storage.containers[zone]
    source = storage.find_source(params.blob_name, container=container, zone=zone)
    if source.url is not None:
        source = _downloaded(storage, source, source.url, job_id)
    _refuse_changed(storage, source, params.etag)
    return source


def _downloaded(storage: Storage, source: SourceFile, url: str, job_id: UUID) -> SourceFile:
    """The copy of a file of a web server. The first task that reads it downloads it into the folder of the job."""
    folder = hashlib.sha256(url.encode()).hexdigest()[:16]
    name = re.sub(r"[^A-Za-z0-9_.-]|^[.-]+", "_", source.name)[-_MAX_NAME_LENGTH:]
    copy = in_silver(storage, intermediate(job_id, f"sources/{folder}/{name}"))
    if not storage.exists(copy):
        with storage.scratch(job_id) as scratch:
            file = _download(url, scratch, storage.source_rules.limit_bytes)
            with suppress(Conflict):  # another task was faster, and its copy is read
                storage.put_file(copy, file, move=True, create_only=True)
    return replace(source, gdal_path=storage.gdal_path(copy), location=copy, url=None)


def _download(url: str, folder: Path, limit_bytes: int) -> Path:
    from dagmaster.storage.download import DownloadRules, download

    try:
        return download(url, folder, DownloadRules(limit_bytes))
    except NotFound as error:
        raise UnfitData(error.message, code=error.code, hint="correct the URL") from error


@contextmanager
def unchanged(storage: Storage, source: SourceFile, etag: str | None) -> Iterator[None]:
    """Read a source in this context. Raises UnfitData if the ETag of its blob differs afterwards: the blob was replaced
    meanwhile, so neither the values that were read nor an error of reading can be trusted."""
    try:
        yield
    except GiveBack:
        raise
    except Exception as error:
        _refuse_changed(storage, source, etag, cause=error)
        raise
    _refuse_changed(storage, source, etag)


def _refuse_changed(storage: Storage, source: SourceFile, etag: str | None, cause: Exception | None = None) -> None:
    """Raise UnfitData if a blob does not exist, or if its ETag is not the given one."""
    if source.location is None:
        return
    try:
        current_etag = storage.head(source.location).etag
    except NotFound:
        raise UnfitData(
            f"the blob '{source.location.path}' does not exist",
            code="source.not-found",
            hint="upload it, or correct its name",
        ) from cause
    if etag is not None and current_etag != etag:
        raise UnfitData(
            f"the blob '{source.location.path}' has changed since it was submitted",
            code="source.changed",
            hint="submit it again",
        ) from cause


def etag_of(storage: Storage, source: SourceFile) -> str | None:
    return storage.head(source.location).etag if source.location is not None else None


def size_of(storage: Storage, source: SourceFile) -> int | None:
    return storage.head(source.location).size_bytes if source.location is not None else None


def facts_of_source(storage: Storage, source: SourceFile, source_crs: str | None) -> RasterFacts:
    size_bytes = size_of(storage, source)
    return read_facts(source.gdal_path, source_crs=source_crs, remote=source.is_remote, size_bytes=size_bytes)


def checksum_of(storage: Storage, source: SourceFile) -> str | None:
    """The SHA-256 of a file that is stored, downloaded or local; None for an object of another store."""
    if source.location is not None:
        return storage.sha256(source.location)
    if source.kind is SourceOrigin.LOCAL:
        with Path(source.gdal_path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return None


def combined_checksum(checksums: Iterable[str | None]) -> str:
    """The SHA-256 over the list of the checksums of several files, one in each line."""
    return hashlib.sha256("".join(f"{checksum or ''}\n" for checksum in checksums).encode()).hexdigest()


def public_name(source: SourceFile) -> str | None:
    """The name of a file without folders; None if it is not fit for publication."""
    return None if leak_in(source.name) else source.name


def renders_of(source: SourceFile, facts: RasterFacts, description: DatasetDescription, kind: RasterType) -> Json:
    """The renders of all tiles, from a sample of the source: with different ranges, borders between tiles would be
    visible."""
    with opened(source.gdal_path, remote=source.is_remote) as dataset:
        sample = take_sample(dataset, facts)
    statistics: list[BandStatistics | None] = []
    for index in range(facts.count):
        values = sample.values(index) if sample.patches and index < len(sample.patches[0].values) else None
        statistics += summarize((partial_of(values),)) if values is not None and values.size else (None,)
    return renders(cog_of(description, "", facts, 0, "", raster_type=kind.value, statistics=statistics))
