"""Rules of uploads: which object a file becomes, and the headers of the tus protocol (https://tus.io, version 1.0.0).

Every object is named `{platform_id}/{name}`: a platform reads only objects whose names begin with its id.
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import PurePosixPath

from dagmaster.errors import InvalidRequest

SUFFIX_CHARACTERS = 8
_MAX_DIGITS = 19  # of a number with 63 bits


def prefix_of(platform_id: str) -> str:
    return f"{platform_id}/"


def with_suffix(name: str, suffix: str) -> str:
    """`2024/dem.tif` with a suffix: `2024/dem-1a2b3c4d.tif`."""
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}-{suffix[:SUFFIX_CHARACTERS]}{path.suffix}"))


def parse_size(text: str, header: str) -> int:
    """The number in `Upload-Offset` or `Upload-Length`."""
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise InvalidRequest(f"{header} is not a number of bytes", code="upload.bad-header", header=header)
    return int(text)


def parse_metadata(text: str) -> dict[str, str]:
    """The keys and values of `Upload-Metadata`: pairs with commas between them, values in Base64."""
    values: dict[str, str] = {}
    for pair in text.split(","):
        key, _, encoded = pair.strip().partition(" ")
        try:
            value = base64.b64decode(encoded.strip(), validate=True).decode()
        except (binascii.Error, ValueError):
            raise _bad_metadata("a value is not UTF-8 in Base64") from None
        if not key or key in values:
            raise _bad_metadata("a key is missing or repeated")
        values[key] = value
    return values


def write_metadata(values: Mapping[str, str]) -> str:
    return ",".join(f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in values.items())


def _bad_metadata(problem: str) -> InvalidRequest:
    return InvalidRequest(
        f"Upload-Metadata cannot be read: {problem}",
        code="upload.bad-header",
        hint="send `filename BASE64`, and optionally `platform_id`, `sha256` and `if_exists`, separated by commas",
        header="Upload-Metadata",
    )
