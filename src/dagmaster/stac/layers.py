"""STAC documents with the layer metadata that people have written: texts, attribution, and the default style.

The functions change copies: without metadata a document stays as it is, so that unpublishing metadata restores it.
A raster asset has one layer, its collection.
"""

import copy
from collections.abc import Mapping
from typing import Any

from dagmaster.assets.layers import RASTER
from dagmaster.errors import InvalidRequest
from dagmaster.stac.colormaps import COLORMAPS
from dagmaster.stac.public import leak_in
from dagmaster.stac.values import EXTENSIONS, Json

_TEXTS = ("title", "description", "keywords")
_COLORS = ("colormap", "colormap_name")
_DEFAULT = "default"


def described(collection: Mapping[str, Any], layers: Mapping[str, Mapping[str, Any]]) -> Json:
    """The collection with the metadata of its layers, by their names."""
    document: Json = copy.deepcopy(dict(collection))
    metadata = layers.get(RASTER) or {}
    document |= {name: metadata[name] for name in _TEXTS if metadata.get(name)}
    if attribution := metadata.get("attribution"):
        document["providers"] = [{"name": attribution, "roles": ["producer", "licensor"]}]
    if style := metadata.get("style"):
        document["renders"] = styled(document.get("renders") or {}, style, band_count(document))
        extensions = document.get("stac_extensions") or []
        document["stac_extensions"] = list(dict.fromkeys([*extensions, EXTENSIONS["render"]]))
    return document


def styled(renders: Mapping[str, Any], style: Mapping[str, Any], bands: int | None) -> Json:
    """The renders with another default. A style changes nothing if it names bands that the data does not have, or if
    the number of bands is unknown: a newer version may have fewer."""
    if max(style.get("bidx") or [1]) > (bands or 1):
        return dict(renders)
    default = renders.get(_DEFAULT) or next(iter(renders.values()), None) or {"assets": ["data"]}
    render = {name: value for name, value in default.items() if name not in _replaced_by(style)}
    if style.keys() & set(_COLORS) and "bidx" not in style:  # a colour map draws a single band
        render |= {name: render[name][:1] for name in ("bidx", "rescale") if render.get(name)}
    return {**renders, _DEFAULT: {**render, **style}}


def _replaced_by(style: Mapping[str, Any]) -> frozenset[str]:
    """Fields of a render that contradict the style: `colormap` and `colormap_name` replace each other, and colours by
    value need no range. Ranges belong to the bands that they were computed for."""
    replaced: set[str] = set()
    if style.keys() & set(_COLORS):
        replaced.update(_COLORS)
    if "colormap" in style or ("bidx" in style and "rescale" not in style):
        replaced.add("rescale")
    if "rescale" in style:
        replaced.add("colormap")
    if len(style.get("bidx") or []) > 1:
        replaced.update(_COLORS)
    return frozenset(replaced)


def band_count(collection: Mapping[str, Any]) -> int | None:
    """The number of bands of the data; None if the collection does not contain it."""
    data = (collection.get("item_assets") or {}).get("data") or {}
    mosaic = (collection.get("assets") or {}).get("mosaic") or {}
    bands = data.get("bands") or mosaic.get("bands") or collection.get("bands")
    return len(bands) if isinstance(bands, list) and bands else None


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuse texts that must not be published, and a style that cannot be drawn."""
    texts = [metadata.get("title"), metadata.get("description"), metadata.get("attribution")]
    texts += [*(metadata.get("keywords") or []), (metadata.get("style") or {}).get("title")]
    for text in filter(None, texts):
        if leak := leak_in(text):
            raise InvalidRequest(
                f"a text contains {leak}", code="metadata.not-public", hint="remove it: metadata is published"
            )
    name = (metadata.get("style") or {}).get("colormap_name")
    if name is not None and name not in COLORMAPS:
        raise InvalidRequest(
            f"no colour map is named '{name}'",
            code="style.no-colormap",
            hint="for example terrain, viridis, rdylgn or, reversed, viridis_r",
        )
