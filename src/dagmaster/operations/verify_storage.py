"""Compare the references in the database with the objects of the zones. Reads only.

    list objects ──▶ temporary table ─┐
                                      ├──▶ compare ──▶ check each finding again ──▶ report
    read references, in a snapshot ───┘

Jobs may run meanwhile. An object that is written or removed after the objects were listed can seem missing or
unreferenced: each finding is checked again before it is reported, and recent objects are not reported as unreferenced.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import orjson

from dagmaster.addresses import location_of
from dagmaster.database.maintenance.storage import Row, StorageComparison, StorageReference, StoredObject, opened
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.quantities import counted, size_text
from dagmaster.storage.location import Folder, Location, Zone, edition_named, job_named, job_of_outputs
from dagmaster.storage.store import ObjectInfo
from dagmaster.storage.zones import Storage

BATCH = 5_000
AT_ONCE = 8  # requests for single objects
HASHED_AT_ONCE = 2  # each reads a whole object
MAX_FINDINGS = 1_000
MIN_AGE = timedelta(days=1)
_SHA256 = "1220"  # how a multihash of a SHA-256 begins


class StorageProblem(StrEnum):
    MISSING = "missing"
    WRONG_SIZE = "wrong-size"
    WRONG_CHECKSUM = "wrong-checksum"
    UNREADABLE = "unreadable"
    CATALOG = "catalogue"
    UNREFERENCED = "unreferenced"
    UPLOAD = "upload"


@dataclass(frozen=True, slots=True)
class StorageFinding:
    code: StorageProblem
    message: str
    zone: str | None = None
    path: str | None = None  # container/blob
    kind: str | None = None  # what refers to it: document, copy, source or upload
    dataset_id: str | None = None
    version_ordinal: int | None = None
    revision: int | None = None
    document_id: str | None = None
    asset_key: str | None = None
    is_served: bool = False
    size_bytes: int | None = None
    expected_bytes: int | None = None
    modified_at: datetime | None = None


@dataclass(slots=True)
class StorageReport:
    """`counts` has the number of findings of each code; at most `limit` findings of each code are listed. `served` is
    the number of findings that users notice, because the object or item is published."""

    limit: int = MAX_FINDINGS
    objects: int = 0
    object_bytes: int = 0
    references: int = 0
    objects_read: int = 0
    unreferenced_bytes: int = 0
    served: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[StorageFinding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.counts.total()

    @property
    def summary(self) -> str:
        checked = f"{counted(self.objects, 'object')} ({size_text(self.object_bytes)})"
        checked += f" compared with {counted(self.references, 'reference')}"
        if self.objects_read:
            checked += f", {self.objects_read} read"
        problems = ", ".join(f"{count} {code}" for code, count in sorted(self.counts.items()) if count)
        if self.counts[StorageProblem.UNREFERENCED]:
            problems += f" ({size_text(self.unreferenced_bytes)})"
        problems += f"; {self.served} of them served" if self.served else ""
        return f"{checked}: {problems or 'clean'}"

    def public(self) -> dict[str, Any]:
        return {
            "is_clean": self.is_clean,
            "objects": self.objects,
            "object_bytes": self.object_bytes,
            "references": self.references,
            "objects_read": self.objects_read,
            "served": self.served,
            "unreferenced_bytes": self.unreferenced_bytes,
            "counts": {code.value: self.counts[code] for code in StorageProblem},
            "findings": [{name: getattr(each, name) for name in each.__slots__} for each in self.findings],
        }


OnProgress = Callable[[StorageReport], None]


async def verify_storage(
    dsn: str,
    storage: Storage,
    *,
    reads_content: bool = False,
    min_age: timedelta = MIN_AGE,
    limit: int = MAX_FINDINGS,
    on_progress: OnProgress = lambda _report: None,
) -> StorageReport:
    """With `reads_content`, the SHA-256 of each object is compared, too. Unreferenced objects younger than `min_age`
    are not reported: their row may not be written yet."""
    async with opened(dsn) as comparison:
        verification = _StorageVerification(comparison, storage, StorageReport(limit), min_age, on_progress)
        await verification.list_objects()
        async with comparison.snapshot():
            await verification.add_references()
            await verification.compare()
        await verification.compare_uploads()
        if reads_content:
            await verification.compare_content()
        return verification.report


@dataclass(slots=True)
class _StorageVerification:
    comparison: StorageComparison
    storage: Storage
    report: StorageReport
    min_age: timedelta
    on_progress: OnProgress

    # Objects in storage

    async def list_objects(self) -> None:
        for zone in Zone:
            listed = self.storage.list(Folder(zone, self.storage.containers[zone]))
            while batch := await asyncio.to_thread(lambda: list(itertools.islice(listed, BATCH))):  # noqa: B023
                await self._add_objects(batch)

    async def _add_objects(self, batch: Iterable[ObjectInfo]) -> None:
        objects = [_stored_object(info) for info in batch]
        await self.comparison.add_objects(objects)
        self.report.objects += len(objects)
        self.report.object_bytes += sum(each.size_bytes for each in objects)
        self.on_progress(self.report)

    # References in the database

    async def add_references(self) -> None:
        async for rows in self.comparison.stream("storage_documents"):
            await self._add([reference for row in rows if (reference := _reference_of_document(row))])
        for row in await self.comparison.rows("storage_manifests"):
            await self._add(list(await asyncio.to_thread(self._references_of_manifest, row)))
        for name in ("storage_add_sources", "storage_add_uploads"):
            self.report.references += await self.comparison.run(name)
        await self.comparison.run("storage_add_inputs", {"container": self.storage.containers[Zone.BRONZE]})
        await self._look_up_other_containers()

    async def _add(self, references: list[StorageReference]) -> None:
        await self.comparison.add_references(references)
        self.report.references += len(references)
        self.on_progress(self.report)

    def _references_of_manifest(self, row: Row) -> Iterator[StorageReference]:
        """A manifest in the external zone, and the objects that it names. A missing manifest is reported as missing."""
        try:
            manifest = Location.parse(row["path"], Zone.EXTERNAL)
        except InvalidRequest:
            return
        edition = {name: row[name] for name in ("dataset_id", "version_ordinal", "revision")}
        yield StorageReference(
            manifest.zone, manifest.container, manifest.blob, "copy", is_served=True, **edition, asset_key="manifest"
        )
        try:
            entries = _manifest_entries(self.storage.get(manifest))
        except NotFound:
            return
        except (ValueError, KeyError, TypeError):
            self._report_unreadable(manifest, edition)
            return
        for blob, size_bytes, sha256 in entries:
            yield StorageReference(
                manifest.zone, manifest.container, blob, "copy", size_bytes, sha256, **edition, is_served=True
            )

    def _report_unreadable(self, manifest: Location, edition: Row) -> None:
        message = f"{manifest.zone.value}:{manifest.path} is damaged; it lists the public copies of {_edition(edition)}"
        facts: Row = {"zone": manifest.zone.value, "path": manifest.path, "kind": "copy", "is_served": True, **edition}
        self.report.served += 1
        self.report.counts[StorageProblem.UNREADABLE] += 1
        if self.report.counts[StorageProblem.UNREADABLE] <= self.report.limit:
            self.report.findings.append(StorageFinding(StorageProblem.UNREADABLE, message, **facts))

    async def _look_up_other_containers(self) -> None:
        """Look up referenced objects in other containers than those of the zones. Other objects there do not belong to
        the platform."""
        containers = self.storage.containers
        values = {"zones": [zone.value for zone in containers], "containers": list(containers.values())}
        async for rows in self.comparison.stream("storage_elsewhere", values):
            infos = await self._in_threads(self._head, [location for row in rows if (location := _location(row))])
            await self._add_objects([info for info in infos if info])

    def _head(self, location: Location) -> ObjectInfo | None:
        try:
            return self.storage.head(location)
        except NotFound:
            return None

    # The difference

    async def compare(self) -> None:
        await self.comparison.analyze()
        limit = {"limit": self.report.limit}
        for is_missing in (True, False):
            damaged = await self.comparison.rows("storage_damaged", {**limit, "is_missing": is_missing})
            self.report.served += damaged[0]["total_served"] if damaged else 0
            await self._report(damaged, _damage, self._is_still_damaged)
        unreferenced = await self.comparison.rows(
            "storage_unreferenced", {**limit, "age": self.min_age.total_seconds()}
        )
        self.report.unreferenced_bytes = unreferenced[0]["total_bytes"] if unreferenced else 0
        await self._report(unreferenced, _unreferenced, self._still_exists)
        if (await self.comparison.rows("catalog_is_deployed"))[0]["is_deployed"]:
            items = await self.comparison.rows("storage_catalog", limit)
            self.report.served += items[0]["total"] if items else 0
            await self._report(items, _difference, lambda _row: True)

    async def _report(
        self, rows: list[Row], finding: Callable[[Row], StorageFinding], is_confirmed: Callable[[Row], bool]
    ) -> None:
        """Report the findings that are still true. Rows beyond the limit are only counted. All have the same code."""
        confirmed = await self._in_threads(is_confirmed, rows)
        for row, is_true in zip(rows, confirmed, strict=True):
            each = finding(row)
            if is_true:
                self.report.findings.append(each)
                self.report.counts[each.code] += 1
            elif row.get("is_served"):
                self.report.served -= 1
            if not is_true and each.code == StorageProblem.UNREFERENCED:
                self.report.unreferenced_bytes -= row["size_bytes"]
        if rows and rows[0]["total"] > len(rows):
            self.report.counts[finding(rows[-1]).code] += rows[0]["total"] - len(rows)

    def _is_still_damaged(self, row: Row) -> bool:
        location = _location(row)
        info = self._head(location) if location else None
        return info is None or row["expected_bytes"] not in (None, info.size_bytes)

    def _still_exists(self, row: Row) -> bool:
        location = _location(row)
        return location is not None and self._head(location) is not None

    # Unfinished uploads

    async def compare_uploads(self) -> None:
        """Find stored bytes of uploads that are finished or removed, and uploads that have expired."""
        before = datetime.now(UTC) - self.min_age
        parts = {part.upload_id: part for part in await asyncio.to_thread(lambda: list(self.storage.uploads.all()))}
        old = [upload_id for upload_id, part in parts.items() if part.modified_at < before]
        recorded = {row["upload_id"] for row in await self.comparison.rows("uploads_open_among", {"upload_ids": old})}
        for upload_id in old:
            if upload_id not in recorded:
                part = parts[upload_id]
                size = size_text(part.size_bytes)
                message = f"the upload {upload_id} is finished or removed, but {size} of it are still stored"
                self._add_upload(message, size_bytes=part.size_bytes, modified_at=part.modified_at)
        values = {"age": self.min_age.total_seconds()}
        async for rows in self.comparison.stream("storage_open_uploads", values):
            for row in rows:
                self._add_expired_upload(row)

    def _add_expired_upload(self, row: Row) -> None:
        path = f"{row['container']}/{row['blob']}"
        self._add_upload(
            f"the upload {row['upload_id']} of {path} has expired and was not removed",
            zone=Zone.BRONZE.value,
            path=path,
            expected_bytes=row["size_bytes"],
        )

    def _add_upload(self, message: str, **facts: Any) -> None:
        self.report.counts[StorageProblem.UPLOAD] += 1
        if self.report.counts[StorageProblem.UPLOAD] <= self.report.limit:
            self.report.findings.append(StorageFinding(StorageProblem.UPLOAD, message, **facts))

    # Contents

    async def compare_content(self) -> None:
        async for rows in self.comparison.stream("storage_to_read"):
            for batch in _chunks(rows, HASHED_AT_ONCE):
                hashes = await self._in_threads(self._hash, batch, HASHED_AT_ONCE)
                for row, digest in zip(batch, hashes, strict=True):
                    self._compare_hash(row, digest)
                self.report.objects_read += len(batch)
                self.on_progress(self.report)

    def _hash(self, row: Row) -> str | None:
        location = _location(row)
        try:
            return self.storage.sha256(location) if location else None
        except NotFound:
            return None  # removed since it was listed

    def _compare_hash(self, row: Row, digest: str | None) -> None:
        if digest in (None, row["sha256"]):
            return
        code = StorageProblem.WRONG_CHECKSUM
        self.report.counts[code] += 1
        self.report.served += bool(row["is_served"])
        if self.report.counts[code] <= self.report.limit:
            message = f"the SHA-256 of {_path_text(row)} does not match {_reference_text(row)}"
            self.report.findings.append(_finding(code, message, row))

    async def _in_threads(self, call: Callable[[Any], Any], values: Iterable[Any], at_once: int = AT_ONCE) -> list[Any]:
        results: list[Any] = []
        for chunk in _chunks(list(values), at_once):
            results += await asyncio.gather(*(asyncio.to_thread(call, value) for value in chunk))
        return results


def _chunks(values: list[Any], size: int) -> Iterator[list[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _stored_object(info: ObjectInfo) -> StoredObject:
    location = info.location
    kind, edition = edition_named(location.blob) if location.zone is not Zone.BRONZE else (None, None)
    job_id = None
    if location.zone is Zone.SILVER:
        job_id = job_of_outputs(edition.dataset_id) if edition else job_named(location.blob.partition("/")[0])
    return StoredObject(
        location.zone.value,
        location.container,
        location.blob,
        info.size_bytes,
        info.modified_at,
        kind,
        edition.dataset_id if edition else None,
        edition.ordinal if edition else None,
        edition.revision if edition else None,
        job_id,
    )


def _manifest_entries(content: bytes) -> list[tuple[str, int | None, str | None]]:
    """Name, size and SHA-256 of each object. ValueError, KeyError or TypeError if it is not a manifest."""
    return [
        (str(entry["blob"]), None if entry.get("size_bytes") is None else int(entry["size_bytes"]), entry.get("sha256"))
        for entry in _objects(orjson.loads(content))
    ]


def _objects(manifest: Any) -> list[dict[str, Any]]:
    objects = manifest["objects"]
    if not isinstance(objects, list) or not all(isinstance(entry, dict) for entry in objects):
        raise TypeError("the objects of a manifest are a list")
    return objects


def _reference_of_document(row: Row) -> StorageReference | None:
    """None if the href leads to another server."""
    location = location_of(str(row["href"] or ""))
    if location is None:
        return None
    checksum = str(row["checksum"] or "")
    is_sha256 = checksum.startswith(_SHA256) and len(checksum) == 68
    return StorageReference(
        location.zone.value,
        location.container,
        location.blob,
        "document",
        row["size_bytes"],
        checksum.removeprefix(_SHA256) if is_sha256 else None,
        row["dataset_id"],
        row["version_ordinal"],
        row["revision"],
        row["document_id"],
        row["asset_key"],
        row["is_served"],
    )


def _location(row: Mapping[str, Any]) -> Location | None:
    """None if the name is not valid for an object."""
    try:
        return Location(Zone(row["zone"]), row["container"], row["blob"])
    except InvalidRequest:
        return None


def _damage(row: Row) -> StorageFinding:
    code = StorageProblem(row["code"])
    if code is StorageProblem.MISSING:
        message = f"{_path_text(row)} does not exist; {_reference_text(row)} names it"
    else:
        message = (
            f"{_path_text(row)} has {row['size_bytes']} bytes; {_reference_text(row)} says {row['expected_bytes']}"
        )
    return _finding(code, message, row)


def _unreferenced(row: Row) -> StorageFinding:
    age = datetime.now(UTC) - row["modified_at"]
    message = f"{_path_text(row)} ({size_text(row['size_bytes'])}, {counted(age.days, 'day')} old): {row['reason']}"
    return _finding(StorageProblem.UNREFERENCED, message, row)


def _difference(row: Row) -> StorageFinding:
    item = f", item '{row['document_id']}'" if row["document_id"] else ""
    message = f"{_edition(row)}{item}: {row['reason']}"
    return _finding(StorageProblem.CATALOG, message, {**row, "is_served": True})


def _finding(code: StorageProblem, message: str, row: Row) -> StorageFinding:
    fields = StorageFinding.__slots__
    facts = {name: value for name, value in row.items() if name in fields and name not in ("code", "message")}
    path = f"{row['container']}/{row['blob']}" if "blob" in row else None
    return StorageFinding(code, message, path=path, **facts)


def _path_text(row: Row) -> str:
    return f"{row['zone']}:{row['container']}/{row['blob']}"


def _reference_text(row: Row) -> str:
    """What names the object."""
    match row["kind"]:
        case "document":
            document = f"item '{row['document_id']}'" if row["document_id"] else "the collection"
            return f"asset '{row['asset_key']}' of {document} of {_edition(row)}{_served(row)}"
        case "copy":
            return f"the manifest of the public copy of {_edition(row)}{_served(row)}"
        case "source":
            return f"the source of {_edition(row)}"
        case _:
            return "a finished upload"


def _edition(row: Row) -> str:
    if row["version_ordinal"] is None:
        return f"'{row['dataset_id']}'"
    return f"'{row['dataset_id']}' version {row['version_ordinal']}, revision {row['revision']}"


def _served(row: Row) -> str:
    return " (served)" if row["is_served"] else ""
