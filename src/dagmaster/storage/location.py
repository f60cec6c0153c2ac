"""Locations of objects: a zone, a container in it, and a blob. Also the names of the objects that the platform writes.

The rules are the strictest of all backends, so that a valid name is valid in a folder, in Azure and in S3.
"""

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import Self
from uuid import UUID

from dagmaster.dataset_ids import JOB_PREFIX, RevisionKey, is_dataset_id, job_dataset_id, require_dataset_id
from dagmaster.errors import InvalidRequest
from dagmaster.quantities import quoted

MAX_BLOB_BYTES = 1024
MAX_PART_BYTES = 255
MAX_EDITION = 999_999_999  # of versions and of revisions
STAC_COLLECTION = "collection.json"  # the name of an edition's collection document
_JOB_ID_VERSION = 7

_CONTAINER = re.compile(r"[a-z0-9](?:[a-z0-9]|-(?=[a-z0-9])){1,61}[a-z0-9]")
# Control and format characters, surrogates, separators of lines and paragraphs.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class Zone(StrEnum):
    BRONZE = "bronze"  # raw
    SILVER = "silver"  # processed
    EXTERNAL = "external"  # public


@dataclass(frozen=True, slots=True)
class Location:
    """`Location.parse("bronze/2024/dem.tif", Zone.BRONZE)`. The constructor enforces the rules for names."""

    zone: Zone
    container: str
    blob: str

    def __post_init__(self) -> None:
        _check_container(self.container)
        _check_blob(self.blob)

    @classmethod
    def parse(cls, path: str, zone: Zone | str) -> Self:
        """Read `container/blob`."""
        container, _, blob = path.partition("/")
        return cls(Zone(zone), container, blob)

    @property
    def path(self) -> str:
        return f"{self.container}/{self.blob}"

    @property
    def name(self) -> str:
        """The last part of the blob's name."""
        return self.blob.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.zone}:{self.path}"


@dataclass(frozen=True, slots=True)
class Folder:
    """All blobs of a container whose names begin with `path/`; without a path, all of them."""

    zone: Zone
    container: str
    path: str = ""

    def __post_init__(self) -> None:
        _check_container(self.container)
        if self.path:
            _check_blob(self.path)

    def __truediv__(self, name: str) -> Location:
        return Location(self.zone, self.container, f"{self.path}/{name}" if self.path else name)

    def __str__(self) -> str:
        return f"{self.zone}:{self.container}/{self.path}"


KINDS = ("cogs", "mosaics", "tiling_schemes", "stac", "recipes")
# The kinds of objects in the external zone, in the order in which they are removed: the catalogue first.
EXTERNAL_KINDS = ("stac", "manifests", "mosaics", "tiling_schemes", "cogs")


@dataclass(frozen=True, slots=True)
class Edition(RevisionKey):
    """A revision of a dataset, with the names of its objects. Its COGs, mosaic and tiling scheme are written once
    and never change; another attempt of its job may replace the STAC documents and the recipe.

    >>> Edition("dem-2024", ordinal=0, revision=1).cog("r00c01.tif")
    'cogs/dem-2024/v0/r1/r00c01.tif'
    """

    def __post_init__(self) -> None:
        require_dataset_id(self.dataset_id)
        if not 0 <= self.ordinal <= MAX_EDITION or not 1 <= self.revision <= MAX_EDITION:
            raise InvalidRequest(
                f"versions are numbered from 0, revisions from 1, up to {MAX_EDITION:,}", code="storage.bad-edition"
            )

    def cog(self, name: str) -> str:
        return self._named("cogs", name)

    def mosaic(self, name: str = "mosaic.json") -> str:
        return self._named("mosaics", name)

    def tiling_scheme(self, name: str = "tiling_scheme.geojson") -> str:
        return self._named("tiling_schemes", name)

    def stac(self, name: str) -> str:
        return self._named("stac", name)

    def recipe(self) -> str:
        """The options that the edition is made with."""
        return self._named("recipes", "recipe.json")

    def manifest(self) -> str:
        """The list of the objects in the external zone, with their checksums."""
        return self._named("manifests", "manifest.json")

    def external_folders(self) -> tuple[str, ...]:
        """The folders of all copies of the edition in the external zone."""
        return tuple(self._folder(kind) for kind in EXTERNAL_KINDS)

    def folders(self) -> tuple[str, ...]:
        """The folders of all objects of the edition."""
        return tuple(self._folder(kind) for kind in KINDS)

    def _named(self, kind: str, name: str) -> str:
        return f"{self._folder(kind)}/{name}"

    def _folder(self, kind: str) -> str:
        return f"{kind}/{self.dataset_id}/v{self.ordinal}/r{self.revision}"


def is_mosaic(location: Location) -> bool:
    """Whether the name is that of an edition's mosaic."""
    return location.blob.startswith("mosaics/") and location.blob.endswith(".json")


_OF_EDITION = re.compile(r"(\w+)/([^/]+)/v(0|[1-9]\d{0,8})/r([1-9]\d{0,8})/.+", re.ASCII)


def edition_named(blob: str) -> tuple[str, Edition] | tuple[None, None]:
    """The kind and the edition in the name of an object; None for both if the name is not that of an edition's object.

    >>> edition_named("cogs/dem-2024/v0/r1/r00c01.tif")
    ('cogs', Edition(dataset_id='dem-2024', ordinal=0, revision=1))
    """
    matched = _OF_EDITION.fullmatch(blob)
    if not matched or matched[1] not in {*KINDS, *EXTERNAL_KINDS} or not is_dataset_id(matched[2]):
        return None, None
    return matched[1], Edition(matched[2], int(matched[3]), int(matched[4]))


def intermediate(job_id: UUID, name: str) -> str:
    """The name of a blob that is deleted with its job."""
    return f"{job_id}/{name}"


def job_named(name: str) -> UUID | None:
    """The job whose folder has this name; None unless the name is a job id exactly as the platform writes it."""
    try:
        job_id = UUID(name)
    except ValueError:
        return None
    return job_id if job_id.version == _JOB_ID_VERSION and str(job_id) == name else None


def outputs_of_job(job_id: UUID) -> tuple[str, ...]:
    """The folders of the objects that a job made, if they belong to no asset."""
    return tuple(f"{kind}/{job_dataset_id(job_id)}" for kind in KINDS)


def job_of_outputs(name: str) -> UUID | None:
    """The job whose own dataset has this name."""
    return job_named(name.removeprefix(JOB_PREFIX)) if name.startswith(JOB_PREFIX) else None


def _check_container(container: str) -> None:
    if not _CONTAINER.fullmatch(container):
        raise _bad(
            "container", container, "needs 3 to 63 lower-case letters and digits, with single hyphens between them"
        )


def _check_blob(blob: str) -> None:
    if problem := _problem_of(blob):
        raise _bad("blob", blob, problem)


def _problem_of(blob: str) -> str | None:
    if not blob:
        return "is missing: write container/blob"
    if any(unicodedata.category(character) in _INVISIBLE for character in blob):
        return "has a control character or an invisible one"
    if "\\" in blob:
        return "has a backslash"
    if not unicodedata.is_normalized("NFC", blob):
        return "is not in the Unicode normal form NFC"
    if len(blob.encode()) > MAX_BLOB_BYTES:
        return f"has more than {MAX_BLOB_BYTES} bytes"
    return next((problem for part in blob.split("/") if (problem := _problem_of_part(part))), None)


def _problem_of_part(part: str) -> str | None:
    if part in {"", ".", ".."}:
        return "begins or ends with a slash, or has an empty part, . or .. between slashes"
    if part != part.strip() or part.endswith("."):
        return "has a part that begins or ends with a space, or ends with a dot"
    return f"has a part of more than {MAX_PART_BYTES} bytes" if len(part.encode()) > MAX_PART_BYTES else None


def _bad(kind: str, name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"the name of the {kind} {quoted(name)} {problem}", code=f"storage.bad-{kind}")
