"""Validate STAC items and collections.

There are three layers: the core schemas of pystac (no network), the rules of the extensions (`extensions.py`), and here
the rules that a schema cannot express: public URLs, no internal paths in texts, no placeholder times, a bbox that fits
the geometry, numbers that JSON can represent.

    for problem in problems(document):
        print(problem)

The caller checks what a document does not show: that its URLs respond, and that its statistics are those of the pixels.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, TypeAlias

from dagmaster.bbox import BBox
from dagmaster.dataset_ids import RULE, is_dataset_id
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.stac.extensions import EXTENSION_RULES, is_whole
from dagmaster.stac.public import leak_in, why_internal, why_not_linked, why_not_public
from dagmaster.stac.values import Provider, is_multihash
from dagmaster.stac.when import is_sentinel

Json: TypeAlias = Mapping[str, Any]
Violations: TypeAlias = Iterator[tuple[str, str]]  # where, message

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_ITEM_ID = re.compile(r"-v(\d+)(-[a-z0-9]([a-z0-9._-]*[a-z0-9])?)?")
_DEPRECATED_LICENSES = ("proprietary", "various")
_LICENSE = re.compile(r"[\w.+-]+")
_TIMES = (
    "datetime",
    "start_datetime",
    "end_datetime",
    "created",
    "updated",
    "published",
    "unpublished",
    "expires",
    "processing:datetime",
)
_ROLES = {"producer", "licensor", "processor", "host"}
_TYPES = {
    "thumbnail": {"image/png", "image/jpeg", "image/webp"},
    "data": {"image/tiff; application=geotiff; profile=cloud-optimized"},
    "index": {"application/json"},
}


@dataclass(frozen=True, slots=True)
class StacProblem:
    """`where` is the path of the field, such as `assets.data.file:checksum`."""

    where: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.where or 'document'}: {self.message} [{self.code}]"


def problems(document: Json) -> list[StacProblem]:
    """All problems of a document; empty if it is valid. The code of a problem is the name of its rule."""
    problem_list = [StacProblem(where, "schema", message) for where, message in _applied(_schema, document)]
    of_its_type = _ITEM_RULES if document.get("type") == "Feature" else _COLLECTION_RULES
    for rule in (*_RULES, *of_its_type, *EXTENSION_RULES):
        code = rule.__name__.strip("_").replace("_", "-")
        problem_list += [StacProblem(where, code, message) for where, message in _applied(rule, document)]
    return sorted(problem_list, key=lambda problem: (problem.where, problem.code, problem.message))


def _applied(rule: "Rule", document: Json) -> list[tuple[str, str]]:
    """Apply a rule. Rules assume the right types: a rule that raises an error has met a wrong type or a missing
    field."""
    try:
        return list(rule(document))
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        return [("", "a field is missing or has the wrong type")]


def refuse_invalid(document: Json) -> None:
    """Raise InvalidRequest if the document has a problem."""
    if problem_list := problems(document):
        shown = "; ".join(map(str, problem_list[:5])) + ("; …" if len(problem_list) > 5 else "")
        raise InvalidRequest(f"a STAC document is not valid: {shown}", code="stac.invalid", id=str(document.get("id")))


def refuse_unpublishable(
    document: Json, allows_file: Callable[[str], bool], is_served: Callable[[str], bool], collection_url: str
) -> None:
    """Raise UnfitData if a document cannot be published: it breaks the schema of STAC, `allows_file` refuses
    one of its files, or a link leads to an internal address. A document that this software made must also obey
    the rules of its extensions. Schemas of other extensions are not available without a network, and are not checked.

    Links to the collection may be missing, because the server adds them.
    """
    link = {"rel": "collection", "href": collection_url}
    links = document.get("links")
    complete = (
        {**document, "links": [*links, link]} if isinstance(links, list) and "collection" in document else document
    )
    problems = [problem for rule in (_schema, _plain_json) for problem in _applied(rule, complete)]
    hint = "correct the document; https://github.com/radiantearth/stac-spec describes its fields"
    if unpublishable := _applied(functools.partial(_unpublishable, allows_file, is_served), document):
        problems += unpublishable
        hint = "files must be in a served zone, or below a URL of STAC_HREF_PREFIXES; links must be public"
    if not problems and _is_ours(document):
        problems = [problem for rule in EXTENSION_RULES for problem in _applied(rule, document)]
        hint = "it was changed, or written by another release: resume the job from the node that wrote it"
    if problems:
        kind = "item" if document.get("type") == "Feature" else "collection"
        name = str(document.get("id"))[:200]
        shown = "; ".join(f"{where or 'document'}: {message}" for where, message in problems[:5])
        raise UnfitData(
            f"{kind} '{name}' cannot be published: {shown}" + ("; …" if len(problems) > 5 else ""),
            code="stac.invalid",
            hint=hint,
            id=name,
        )


def _is_ours(document: Json) -> bool:
    software = (document.get("properties") or {}).get("processing:software")
    return isinstance(software, Mapping) and "dagmaster" in software


def _unpublishable(allows_file: Callable[[str], bool], is_served: Callable[[str], bool], document: Json) -> Violations:
    for where, value in _walk(document):
        key = where.rpartition(".")[2]
        if key not in ("href", "url") or not isinstance(value, str):
            continue
        if where.startswith(("assets.", "item_assets.")):
            if not allows_file(value):
                yield where, f"{_shown(value)} is outside the served zones"
        elif not is_served(value) and (reason := why_not_public(value) or why_internal(value)):
            yield where, f"{_shown(value)} cannot be a link: {reason}"


def _shown(href: str) -> str:
    """The URL without what may be secret: credentials before the host, and the query."""
    return repr(re.sub(r"//[^/@]*@", "//…@", href.partition("?")[0])[:200])


def is_license(name: Any) -> bool:
    """Whether it has the form of an SPDX identifier, or is `other`. Values that STAC 1.1 deprecated are not."""
    return isinstance(name, str) and bool(_LICENSE.fullmatch(name)) and name not in _DEPRECATED_LICENSES


def require_license(text: str) -> str:
    """The SPDX identifier in its usual spelling, or `other`; raises InvalidRequest if SPDX does not list it."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    if text.lower() == "other":
        return "other"
    try:
        identifier = str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        identifier = ""
    # STAC's schema permits an identifier, not an expression such as `MIT OR Apache-2.0`.
    if not is_license(identifier):
        raise InvalidRequest(
            f"'{text[:60]}' is not an SPDX identifier of a licence",
            code="stac.license",
            hint="use one of https://spdx.org/licenses, such as CC-BY-4.0, or `other`",
        )
    return identifier


def require_providers(providers: Sequence[Provider]) -> None:
    """Raise InvalidRequest unless every provider has a name, known roles and a public URL or none."""
    for provider in providers:
        if not provider.name.strip():
            problem = "its name is empty"
        elif unknown := set(provider.roles) - _ROLES:
            problem = f"the role {min(unknown)[:40]!r} is unknown; roles are {', '.join(sorted(_ROLES))}"
        elif provider.url and (reason := why_not_public(provider.url)):
            problem = f"the URL cannot be published: {reason}"
        else:
            continue
        raise InvalidRequest(f"the provider '{provider.name[:60]}' is not valid: {problem}", code="stac.provider")


# The schemas


def _schema(document: Json) -> Violations:
    for error in _validator("item" if document.get("type") == "Feature" else "collection").iter_errors(document):
        yield ".".join(map(str, error.instance_path)), error.message[:300]


@functools.cache
def _validator(kind: str) -> Any:
    from jsonschema_rs import Draft7Validator, Registry  # 500 times faster than jsonschema
    from pystac.validation.local_validator import get_local_schema_cache

    schemas = get_local_schema_cache()
    schema = next(schema for name, schema in schemas.items() if name.endswith(f"/{kind}.json"))
    return Draft7Validator(schema, registry=Registry(list(schemas.items())), validate_formats=False)


# Anywhere in a document


def _walk(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    yield where, value
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _walk(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _walk(inner, f"{where}.{place}")


def _plain_json(document: Json) -> Violations:
    for where, value in _walk(document):
        if isinstance(value, float) and not math.isfinite(value):
            yield where, "JSON has no NaN or infinity: write it as a string"
        elif not isinstance(value, str | int | float | bool | None | dict | list):
            yield where, f"{type(value).__name__} is not a JSON type"


def _public_addresses(document: Json) -> Violations:
    for where, value in _walk(document):
        key = where.rpartition(".")[2]
        is_address = key in ("href", "url")
        why_not = why_not_linked if key == "href" else why_not_public
        if is_address and isinstance(value, str) and (reason := why_not(value)):
            yield where, reason
        if isinstance(value, str) and not is_address and (leak := leak_in(value)):
            yield where, f"it contains {leak}"


def _times(document: Json) -> Violations:
    for where, value in _walk(document):
        is_time = where.rpartition(".")[2] in _TIMES or ".interval." in where
        if is_time and isinstance(value, str) and _moment(value) is None:
            yield where, "it is not a time in UTC such as 2024-05-01T10:00:00Z"


def _moment(text: Any) -> datetime | None:
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _version_of_stac(document: Json) -> Violations:
    if document.get("stac_version") != "1.1.0":
        yield "stac_version", "it is not 1.1.0"


def _license(document: Json) -> Violations:
    """SPDX identifiers, or `other`; values that STAC 1.1 deprecated are refused."""
    owner, where = (document["properties"], "properties.") if document.get("type") == "Feature" else (document, "")
    name = owner.get("license")
    if name in _DEPRECATED_LICENSES:
        yield f"{where}license", "this value is deprecated: use an SPDX identifier or `other`"
    elif not is_license(name):
        yield f"{where}license", "it is not an SPDX identifier"


def _providers(document: Json) -> Violations:
    owner, where = (document["properties"], "properties.") if document.get("type") == "Feature" else (document, "")
    for place, provider in enumerate(owner.get("providers", [])):
        if not provider.get("name") or not set(provider.get("roles", [])) <= _ROLES:
            yield f"{where}providers.{place}", "it needs a name, and roles among " + ", ".join(sorted(_ROLES))


def _media_types(document: Json) -> Violations:
    for key, asset in document.get("assets", {}).items():
        for role in asset.get("roles", []):
            if role in _TYPES and asset.get("type") not in _TYPES[role]:
                yield f"assets.{key}.type", f"an asset with the role {role} must be {' or '.join(sorted(_TYPES[role]))}"
        if not asset.get("roles"):
            yield f"assets.{key}.roles", "an asset must have a role"


def _our_fields(document: Json) -> Violations:
    owner = document["properties"] if document.get("type") == "Feature" else document
    for name, value in owner.items():
        if name.startswith("platform:") and not isinstance(value, str):
            yield name, "a reference of a platform must be a string"
    ordinal, revision = owner.get("dagmaster:version_ordinal"), owner.get("dagmaster:revision")
    if not is_whole(ordinal):
        yield "dagmaster:version_ordinal", "it must be a whole number, at least 0"
    if not is_whole(revision, 1):
        yield "dagmaster:revision", "it must be a whole number, at least 1"
    sources = owner.get("dagmaster:sources", [])
    if not (isinstance(sources, list) and all(isinstance(source, dict) for source in sources)):
        yield "dagmaster:sources", "it is not a list of objects"
        sources = []
    checksums = {"dagmaster:source_checksum": owner.get("dagmaster:source_checksum")}
    checksums |= {f"dagmaster:sources/{place}/checksum": each.get("checksum") for place, each in enumerate(sources)}
    for name, checksum in checksums.items():
        if checksum is not None and not is_multihash(checksum):
            yield name, "it is not a multihash of a SHA-256 (1220 and 64 hexadecimal digits)"


# Items


def _id(document: Json) -> Violations:
    collection, id_ = str(document.get("collection")), str(document.get("id"))
    parts = _ITEM_ID.fullmatch(id_.removeprefix(collection)) if id_.startswith(collection) else None
    if not parts:
        yield "id", "it must be <collection>-v<ordinal>, for a part with a suffix such as -r<row>c<column>"
    elif int(parts[1]) != document["properties"].get("dagmaster:version_ordinal"):
        yield "id", "its ordinal differs from `dagmaster:version_ordinal`"


def _item_links(document: Json) -> Violations:
    rels = [link.get("rel") for link in document["links"]]
    for rel in ("self", "root", "parent", "collection", "latest-version", "predecessor-version", "successor-version"):
        if rels.count(rel) > 1:
            yield "links", f"there are several links with rel {rel}"
    if "collection" not in rels:
        yield "links", "there is no link to the collection"
    if document["properties"].get("deprecated") and not {"latest-version", "successor-version"} & set(rels):
        yield "links", "a deprecated item must link to its successor"


def _honest_datetime(document: Json) -> Violations:
    properties = document["properties"]
    moment, start, end = (_moment(properties.get(name)) for name in ("datetime", "start_datetime", "end_datetime"))
    if moment and is_sentinel(moment):
        yield "properties.datetime", "it is a placeholder for an unknown time"
    if moment and any(
        _moment(properties.get(name)) == moment for name in ("created", "updated", "published", "processing:datetime")
    ):
        yield "properties.datetime", "it is the time of processing, not of the data"
    for name, edge in (("start_datetime", start), ("end_datetime", end)):
        if edge and is_sentinel(edge, is_moment=False):
            yield f"properties.{name}", "it is a placeholder for an unknown time"
    if start and end and start > end:
        yield "properties.end_datetime", "it is before `start_datetime`"
    if properties.get("datetime") is None and not (start and end):
        yield "properties.datetime", "without it both `start_datetime` and `end_datetime` are needed"


def _order_of_times(document: Json) -> Violations:
    created, updated = (_moment(document["properties"].get(name)) for name in ("created", "updated"))
    if created and updated and updated < created:
        yield "properties.updated", "it is before `created`"


def _geometry(document: Json) -> Violations:
    geometry = document.get("geometry")
    if not isinstance(geometry, Mapping) or geometry.get("type") not in ("Polygon", "MultiPolygon"):
        yield "geometry", "it is not a Polygon or MultiPolygon"
        return
    for polygon in _polygons(geometry):
        for place, ring in enumerate(polygon):
            yield from (("geometry", message) for message in _ring_problems(ring, is_hole=place > 0))


def _ring_problems(ring: Sequence[Sequence[float]], *, is_hole: bool) -> Iterator[str]:
    if len(ring) < 4 or list(ring[0]) != list(ring[-1]):
        yield "a ring is not closed"
        return
    numbers = [number for point in ring for number in point[:2]]
    if any(abs(longitude) > 180 for longitude in numbers[::2]) or any(abs(latitude) > 90 for latitude in numbers[1::2]):
        yield "a point is not on the globe: longitude before latitude, split at the antimeridian"
    if any(round(number, 7) != number for number in numbers):
        yield "a coordinate has more than seven decimals"
    if any(
        abs(one[0] - other[0]) > 180 and abs(one[1]) < 89.9 and abs(other[1]) < 89.9 for one, other in pairwise(ring)
    ):
        yield from _antimeridian_problems(ring)
    if (_signed_area(ring) < 0) != is_hole:
        yield "a ring has the wrong direction: exteriors must be anticlockwise, holes clockwise"


def _antimeridian_problems(ring: Sequence[Sequence[float]]) -> Iterator[str]:
    """An edge may run along half the globe only as the straight side of a very wide box."""
    long_edges = [(one, other) for one, other in pairwise(ring) if abs(one[0] - other[0]) > 180]
    if any(abs(one[1] - other[1]) > 1e-6 for one, other in long_edges):
        yield "an edge crosses the antimeridian: split the geometry there"


def _signed_area(ring: Sequence[Sequence[float]]) -> float:
    return sum(one[0] * other[1] - other[0] * one[1] for one, other in pairwise(ring)) / 2


def _bbox(document: Json) -> Violations:
    """The box is around the geometry and touches it on every side."""
    bbox, geometry = document.get("bbox"), document["geometry"]
    if (
        not isinstance(bbox, Sequence)
        or len(bbox) != 4
        or not isinstance(geometry, Mapping)
        or "coordinates" not in geometry
    ):
        yield "bbox", "it must have four numbers: west, south, east, north"
        return
    box = BBox.of(bbox)
    parts = [_extent(polygon[0]) for polygon in _polygons(geometry)]
    if box.crosses_antimeridian:
        parts = [part.shifted(1) if part.east <= box.east + 1e-6 else part for part in parts]
    if any(abs(one - other) > 1e-6 for one, other in zip(box.unrolled(), BBox.around(parts), strict=True)):
        yield "bbox", "it is not the box around the geometry (west, south, east, north)"


def _extent(ring: Sequence[Sequence[float]]) -> BBox:
    longitudes, latitudes = [point[0] for point in ring], [point[1] for point in ring]
    return BBox(min(longitudes), min(latitudes), max(longitudes), max(latitudes))


def _polygons(geometry: Json) -> list[Any]:
    return [geometry["coordinates"]] if geometry["type"] == "Polygon" else list(geometry["coordinates"])


# Collections


def _collection_id(document: Json) -> Violations:
    if not is_dataset_id(str(document.get("id"))):
        yield "id", f"it must consist of {RULE}"
    if "properties" in document:
        yield "properties", "a collection must not have properties"


def _extents(document: Json) -> Violations:
    boxes = document["extent"].get("spatial", {}).get("bbox", [])
    for place, bbox in enumerate(boxes):
        where = f"extent.spatial.bbox.{place}"
        if len(bbox) != 4:
            yield where, "it must have four numbers: west, south, east, north"
        elif not (-180 <= bbox[0] <= 180 and -180 <= bbox[2] <= 180 and -90 <= bbox[1] <= bbox[3] <= 90):
            yield where, "it is not on the globe"
    intervals = document["extent"].get("temporal", {}).get("interval", [])
    for place, interval in enumerate(intervals):
        start, end = (_moment(edge) for edge in interval)
        if start and end and start > end:
            yield f"extent.temporal.interval.{place}", "it ends before it starts"
        if any(edge and is_sentinel(edge, is_moment=False) for edge in (start, end)):
            yield f"extent.temporal.interval.{place}", "it contains a placeholder for an unknown time"


def _item_assets(document: Json) -> Violations:
    for key, asset in document.get("item_assets", {}).items():
        if "href" in asset:
            yield f"item_assets.{key}", "it describes assets and must not have an href"


Rule: TypeAlias = Callable[[Json], Violations]
_RULES: tuple[Rule, ...] = (
    _plain_json,
    _public_addresses,
    _times,
    _version_of_stac,
    _license,
    _providers,
    _media_types,
    _our_fields,
)
_ITEM_RULES: tuple[Rule, ...] = (_id, _item_links, _honest_datetime, _order_of_times, _geometry, _bbox)
_COLLECTION_RULES: tuple[Rule, ...] = (_collection_id, _extents, _item_assets)
