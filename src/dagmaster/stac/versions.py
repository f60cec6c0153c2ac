"""A collection through the versions of its dataset: the newest one speaks, the older tiled ones stay servable.

    mosaic, tiling_scheme           of the newest version
    mosaic-v0, tiling_scheme-v0     of an older one; the render `v0` says how it is shown

Nothing here needs more than the documents.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dagmaster.stac.values import Json

_OF_ONE_VERSION = re.compile(r"(mosaic|tiling_scheme)(?:-v(\d+))?")
_OLDER = re.compile(r"v\d+")
_ORDINAL = "dagmaster:version_ordinal"


def joined(known: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """What is said of a dataset when another version of it comes, or another revision of one.

    The newest version speaks for all. Of the others stays what is needed to show them.
    """
    newest = new if _ordinal(new) >= _ordinal(known) else known
    found: Json = copy.deepcopy(dict(newest))
    wholes = {**_wholes(known), _ordinal(new): _wholes(new)[_ordinal(new)]}
    assets = {key: asset for key, asset in found.get("assets", {}).items() if not _OF_ONE_VERSION.fullmatch(key)}
    renders = {key: render for key, render in found.get("renders", {}).items() if not _OLDER.fullmatch(key)}
    for ordinal, whole in sorted(wholes.items(), reverse=True):
        ending = "" if ordinal == _ordinal(newest) else f"-v{ordinal}"
        assets |= {f"{kind}{ending}": asset for kind, asset in whole.assets.items()}
        if ending and whole.render and "mosaic" in whole.assets:
            renders[f"v{ordinal}"] = {**whole.render, "assets": [f"mosaic{ending}"]}
    found |= {name: told for name, told in (("assets", assets), ("renders", renders)) if told}
    if _ordinal(known) != _ordinal(new):
        found["summaries"] = _both(known.get("summaries", {}), new.get("summaries", {}))
    first, last = known.get("created"), new.get("updated")
    return found | ({"created": first} if first else {}) | ({"updated": last} if last else {})


@dataclass(slots=True)
class _Whole:
    """What a collection holds of one version as a whole; nothing where that is a single file."""

    assets: dict[str, Json] = field(default_factory=dict)
    render: Json | None = None


def _wholes(said: Mapping[str, Any]) -> dict[int, _Whole]:
    own, renders = _ordinal(said), said.get("renders", {})
    found = {own: _Whole(render=renders.get("default"))}
    for key, asset in said.get("assets", {}).items():
        if parts := _OF_ONE_VERSION.fullmatch(key):
            ordinal = own if parts[2] is None else int(parts[2])
            found.setdefault(ordinal, _Whole(render=renders.get(f"v{ordinal}"))).assets[parts[1]] = asset
    return found


def _ordinal(said: Mapping[str, Any]) -> int:
    return int(said.get(_ORDINAL, 0))


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> Json:
    """Of summaries that are lists all values, of others the latter."""
    found: Json = {**one, **other}
    for key in one.keys() & other.keys():
        if isinstance(one[key], list) and isinstance(other[key], list):
            found[key] = sorted({*one[key], *other[key]})
    return found
