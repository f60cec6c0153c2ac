"""A collection with several versions: it describes the newest one, and the older tiled ones can still be served.

    mosaic, tiling_scheme           of the newest version
    mosaic-v0, tiling_scheme-v0     of an older one, which is shown with the render `v0`

The functions read only the documents.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagmaster.stac.values import Json

_VERSION_ASSET = re.compile(r"(mosaic|tiling_scheme)(?:-v(\d+))?")
_OLDER_RENDER = re.compile(r"v\d+")
_ORDINAL = "dagmaster:version_ordinal"


def joined(earlier: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """The collection after another version, or another revision of a version, was added.

    It describes the newest version, and keeps what is needed to show the other versions.
    """
    newest = new if _ordinal(new) >= _ordinal(earlier) else earlier
    document: Json = copy.deepcopy(dict(newest))
    versions = {**_parts_by_version(earlier), _ordinal(new): _parts_by_version(new)[_ordinal(new)]}
    assets = {key: asset for key, asset in document.get("assets", {}).items() if not _VERSION_ASSET.fullmatch(key)}
    renders = {key: render for key, render in document.get("renders", {}).items() if not _OLDER_RENDER.fullmatch(key)}
    for ordinal, parts in sorted(versions.items(), reverse=True):
        ending = "" if ordinal == _ordinal(newest) else f"-v{ordinal}"
        assets |= {f"{kind}{ending}": asset for kind, asset in parts.assets.items()}
        if ending and parts.render and "mosaic" in parts.assets:
            renders[f"v{ordinal}"] = {**parts.render, "assets": [f"mosaic{ending}"]}
    document |= {name: value for name, value in (("assets", assets), ("renders", renders)) if value}
    if _ordinal(earlier) != _ordinal(new):
        document["summaries"] = _merged_summaries(earlier.get("summaries", {}), new.get("summaries", {}))
    first, last = earlier.get("created"), new.get("updated")
    return document | ({"created": first} if first else {}) | ({"updated": last} if last else {})


@dataclass(slots=True)
class _VersionParts:
    """The assets and the render of one version in a collection; empty if the version is a single file."""

    assets: dict[str, Json] = field(default_factory=dict)
    render: Json | None = None


def _parts_by_version(collection: Mapping[str, Any]) -> dict[int, _VersionParts]:
    own, renders = _ordinal(collection), collection.get("renders", {})
    versions = {own: _VersionParts(render=renders.get("default"))}
    for key, asset in collection.get("assets", {}).items():
        if parts := _VERSION_ASSET.fullmatch(key):
            ordinal = own if parts[2] is None else int(parts[2])
            versions.setdefault(ordinal, _VersionParts(render=renders.get(f"v{ordinal}"))).assets[parts[1]] = asset
    return versions


def _ordinal(collection: Mapping[str, Any]) -> int:
    return int(collection.get(_ORDINAL, 0))


def _merged_summaries(one: Mapping[str, Any], other: Mapping[str, Any]) -> Json:
    """Merge summaries: lists get the values of both, other values are those of `other`."""
    merged: Json = {**one, **other}
    for key in one.keys() & other.keys():
        if isinstance(one[key], list) and isinstance(other[key], list):
            merged[key] = sorted({*one[key], *other[key]})
    return merged
