"""Open untrusted raster files.

GDAL follows almost anything: an XML file that names another file or a URL, a side-car file that replaces the
georeference, a name that is a command (`DERIVED_SUBDATASET:…`). In this module a name is the path of one file, the
format is one of a few that keep all data in that file, no other file is read or written, and errors name the file
without its folder.
"""

import contextlib
import os
import re
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError, CPLE_OutOfMemoryError
from rasterio.errors import NotGeoreferencedWarning, RasterioError

from dagmaster.errors import InvalidRequest, NotFound, Unavailable, UnfitData
from dagmaster.gdal_library import OpenedFile
from dagmaster.raster.source.header_limits import ReadRange, require_small_texts

# The first bytes of supported formats. GDAL's COG driver only writes: a COG is opened as GTiff.
_SUPPORTED: dict[bytes, str] = {
    b"II*\0": "GTiff",
    b"MM\0*": "GTiff",
    b"II+\0": "GTiff",
    b"MM\0+": "GTiff",
    b"\0\0\0\x0cjP": "JP2OpenJPEG",
    b"\xff\x4f\xff\x51": "JP2OpenJPEG",
    b"EHFA_HEADER": "HFA",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
}

_MAX_NAME_LENGTH = 100
_REMOTE = ("/vsiaz/", "/vsiadls/", "/vsis3/", "/vsigs/")
# GDAL's messages for an object that a store does not return: access is refused or has expired, or the network failed.
_UNREACHABLE = re.compile(r"does not exist in the file system|HTTP|CURL|curl|[Aa]uth|[Tt]imeout|timed out")
_SETTINGS = {
    "GDAL_PAM_ENABLED": "NO",
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_GEOREF_SOURCES": "INTERNAL",
    "GDAL_NUM_THREADS": "1",
}

# What rasterio raises for a damaged file; the last two come from invalid numbers and texts in it.
READ_ERRORS = (RasterioError, CPLE_BaseError, ValueError, OverflowError)

# The first bytes of other formats, and what the submitter can do.
_SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a ZIP archive", "unpack it and submit the raster inside"),
    (b"\x1f\x8b", "a gzip archive", "unpack it and submit the raster inside"),
    (b"7z\xbc\xaf", "a 7-Zip archive", "unpack it and submit the raster inside"),
    (b"CDF", "a netCDF file", "export one variable: `gdal_translate NETCDF:file.nc:variable out.tif`"),
    (b"\x89HDF", "an HDF5 or netCDF-4 file", "export one variable: `gdal_translate NETCDF:file.nc:variable out.tif`"),
    (b"GRIB", "a GRIB file", "export the bands you need: `gdal_translate -b 1 in.grib out.tif`"),
    (b"GIF8", "a GIF picture", "submit the georeferenced original as a GeoTIFF"),
    (b"BM", "a BMP picture", "submit the georeferenced original as a GeoTIFF"),
    (b"%PDF", "a PDF document", "submit the georeferenced original as a GeoTIFF"),
    (b"SQLite format 3", "an SQLite database", "export the raster: `gdal_translate in.gpkg out.tif`"),
)


@contextlib.contextmanager
def opened(path: str | Path, *, remote: bool = False) -> Iterator[Any]:
    """The open dataset (rasterio's). Raises UnfitData if the file is damaged or its format is not supported.

    `remote` also accepts GDAL's paths of object stores (`/vsiaz/…`, `/vsis3/…`), for callers that built the path.
    """
    with restricted_gdal(), open_file(path, remote=remote) as dataset:
        yield dataset


@contextlib.contextmanager
def restricted_gdal() -> Iterator[None]:
    """GDAL reads only the files that it is given: no side-car files, no folder listings."""
    with rasterio.Env(**_SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield


def open_file(path: str | Path, *, remote: bool = False) -> Any:
    """The dataset, for callers that keep many open within `restricted_gdal` and close them themselves."""
    name = _checked_path(path, remote=remote)
    dataset = _open(name)
    try:
        _refuse_external_data(dataset, name)
    except UnfitData:
        dataset.close()
        raise
    return dataset


def read_bands(dataset: Any, window: Any, bands: list[int] | None = None) -> NDArray[Any]:
    """Pixels of these bands, or of all, in a common type; rasterio reads only bands of one type in one call."""
    bands = bands or list(dataset.indexes)
    if len({dataset.dtypes[band - 1] for band in bands}) == 1:
        values: NDArray[Any] = dataset.read(bands, window=window)
        return values
    common = np.result_type(*(dataset.dtypes[band - 1] for band in bands))
    return np.stack([dataset.read(band, window=window).astype(common) for band in bands])


def short_name(path: str | Path) -> str:
    """The file's name alone, safe to show: on one line, of limited length, without folder, host or signature."""
    name = str(path).split("?", 1)[0].rstrip("/").rpartition("/")[2]
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    return shown if len(shown) <= _MAX_NAME_LENGTH else f"{shown[:_MAX_NAME_LENGTH]}…"


def size_of(path: str | Path) -> int:
    """Bytes of a file, 0 if it cannot be accessed."""
    try:
        if not _is_gdal_path(os.fspath(path)):
            return os.stat(path).st_size  # noqa: PTH116
        with OpenedFile(os.fspath(path)) as file:
            return file.size_bytes
    except OSError:
        return 0


def reason(error: BaseException) -> str:
    """GDAL's message on one line, with every path and URL shortened to a file name."""
    cause = error.__cause__ or error.__context__
    text = str(cause) if isinstance(cause, CPLE_BaseError) else str(error)
    text = re.sub(r"[\w+-]*:?/[^\s'\",;]+", lambda match: short_name(match[0]), " ".join(text.split()))
    return text[:300] or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, according to the class or the message of the error or of one of its causes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, CPLE_OutOfMemoryError) or "cannot allocate" in str(cause).lower():
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _checked_path(path: str | Path, *, remote: bool) -> str:
    text = os.fspath(path)
    if not text or "\0" in text:
        raise InvalidRequest("the path is empty or contains a NUL character", code="raster.path")
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # how Python represents bytes that are not UTF-8
        raise UnfitData(
            f"the name of '{short_name(text)}' is not UTF-8", code="raster.unreadable-file", hint="rename the file"
        )
    if text.startswith("/vsimem/") or (remote and text.startswith(_REMOTE)):
        return text
    if text.startswith("/vsi") or "://" in text:
        raise InvalidRequest(
            f"'{short_name(text)}' is not the path of a local file",
            code="raster.path",
            hint="download it, or configure its store",
        )
    # Absolute, so that GDAL does not interpret a prefix (`GTIFF_DIR:`, `DERIVED_SUBDATASET:`, …) as a command.
    absolute = os.path.abspath(text)  # noqa: PTH100  (resolve() would follow links)
    _require_regular_file(absolute)
    return absolute


def _require_regular_file(path: str) -> None:
    name = short_name(path)
    try:
        status = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"there is no file '{name}'", code="raster.not-found") from None
    except OSError as error:
        raise UnfitData(f"'{name}' cannot be read: {error.strerror}", code="raster.unreadable-file") from None
    # Reading a pipe or a device could block forever.
    if not stat.S_ISREG(status.st_mode):
        raise UnfitData(f"'{name}' is not a regular file", code="raster.not-a-file", hint="submit one raster file")
    _refuse_empty(status.st_size, name)


def _open(path: str) -> Any:
    """Open a file with the driver that its first bytes identify, after a check of its header."""
    name = short_name(path)
    with _reading(path, name) as read:
        head = read(64, 0)
        require_small_texts(read, name)
    problem: BaseException | None = None
    for driver in (driver for start, driver in _SUPPORTED.items() if head.startswith(start)):
        try:
            return rasterio.open(path, driver=driver)
        except READ_ERRORS as error:
            problem = problem or error
    if problem is None:
        raise _unsupported(name, head)
    if path.startswith(_REMOTE) and _UNREACHABLE.search(reason(problem)):
        raise Unavailable(f"'{name}' cannot be read: {reason(problem)}", code="raster.unreachable")
    raise UnfitData(
        f"'{name}' is damaged: {reason(problem)}",
        code="raster.corrupt",
        hint="upload it again, or export it again from its source",
    ) from None


@contextlib.contextmanager
def _reading(path: str, name: str) -> Iterator[ReadRange]:
    """Read ranges of a file before GDAL interprets it; of an object, by requests for these ranges only."""
    try:
        if _is_gdal_path(path):
            with OpenedFile(path) as file:
                _refuse_empty(file.size_bytes, name)
                yield file.read
        else:
            with open(path, "rb") as local:  # noqa: PTH123
                size_bytes = os.fstat(local.fileno()).st_size
                yield lambda length, start: os.pread(local.fileno(), length, start) if start < size_bytes else b""
    except OSError as error:
        if path.startswith(_REMOTE):
            message = reason(error)
            if message.startswith("Missing AZURE"):  # GDAL then tries to list a folder of this name
                message = "it does not exist, or access to it is refused"
            raise Unavailable(f"'{name}' cannot be read: {message}", code="raster.unreachable") from None
        raise UnfitData(f"'{name}' cannot be read: {reason(error)}", code="raster.unreadable-file") from None


def _is_gdal_path(path: str) -> bool:
    """Whether this is a path that only GDAL can read."""
    return path.startswith("/vsi")


def _refuse_empty(size_bytes: int, name: str) -> None:
    if size_bytes == 0:
        raise UnfitData(f"'{name}' is empty", code="raster.empty", hint="upload it again")


def _unsupported(name: str, head: bytes) -> UnfitData:
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return _refused(
            name, "an XML or HTML document (a VRT, a service description or a web page)", "submit the raster itself"
        )
    for start, kind, advice in _SIGNATURES:
        if head.startswith(start):
            return _refused(name, kind, advice)
    if head and head.isascii() and head.decode().replace("\n", "").replace("\r", "").replace("\t", "").isprintable():
        return _refused(name, "a text file", "submit the raster that it describes")
    return _refused(name, "not in a supported format", "convert it: `gdal_translate in out.tif`")


def _refused(name: str, kind: str, advice: str) -> UnfitData:
    formats = "GeoTIFF, JPEG 2000 and ERDAS Imagine"
    return UnfitData(
        f"'{name}' is {kind}", code="raster.unsupported-format", hint=f"{advice}; supported formats are {formats}"
    )


def _refuse_external_data(dataset: Any, path: str) -> None:
    """Refuse an Imagine file that keeps its pixels in another file."""
    others = [file for file in dataset.files if os.path.abspath(file) != os.path.abspath(path)]  # noqa: PTH100
    if others:
        raise UnfitData(
            f"'{short_name(path)}' keeps its data in another file ({short_name(others[0])})",
            code="raster.indirect",
            hint="submit one self-contained file: `gdal_translate in.img out.tif`",
        )
