"""Functions of GDAL that rasterio does not offer, called in the library that rasterio has loaded.

`OpenedFile` reads ranges of a file in any of GDAL's file systems, such as an object in a store. What it reads is in
GDAL's cache, so that a dataset that is opened afterwards does not read it again.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from dagmaster.errors import InvalidRequest

_SEEK_END: Final = 2


class OpenedFile:
    """A file that is open for reading, as a context manager. Raises OSError with GDAL's reason.

    The reason may contain a URL with a signature, which must be removed before it is shown.
    """

    def __init__(self, path: str) -> None:
        self._library = gdal_library()
        with _QuietErrors(self._library):
            self._library.VSIErrorReset()
            self._handle = self._library.VSIFOpenExL(path.encode(), b"rb", 1)
            if not self._handle:
                raise OSError(_last_error(self._library) or "the file does not exist, or access is refused")
            self._library.VSIFSeekL(self._handle, 0, _SEEK_END)
            self.size_bytes = int(self._library.VSIFTellL(self._handle))

    def read(self, length: int, start: int) -> bytes:
        """The bytes from `start` on; fewer than `length` only at the file's end. Raises OSError if a request fails."""
        expected = max(0, min(length, self.size_bytes - start))
        if not expected:
            return b""
        buffer = ctypes.create_string_buffer(expected)
        with _QuietErrors(self._library):
            self._library.VSIFSeekL(self._handle, start, 0)
            count = self._library.VSIFReadL(buffer, 1, expected, self._handle)
        if count != expected:
            raise OSError(f"only {count:,} of {expected:,} bytes could be read")
        return buffer.raw

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            self._library.VSIFCloseL(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def versions() -> dict[str, str]:
    """The versions of GDAL, PROJ and rasterio, after they were loaded."""
    rasterio = _rasterio()
    return {"GDAL": rasterio.__gdal_version__, "PROJ": rasterio.__proj_version__, "rasterio": rasterio.__version__}


@cache
def gdal_library() -> Any:
    """GDAL's library. Calls of its functions release the global interpreter lock."""
    _rasterio()  # loads the library
    mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    library = ctypes.CDLL(next(path for path in sorted(mapped) if Path(path).name.startswith("libgdal")))
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _rasterio() -> Any:
    try:
        import rasterio
    except ImportError as error:
        raise InvalidRequest(
            f"the package rasterio is required, and cannot be loaded: {error}",
            code="extra.missing",
            hint="pip install 'dagmaster[worker]'",
            module="rasterio",
        ) from None
    return rasterio


_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "VSISetPathSpecificOption": (None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p),
    "VSIClearPathSpecificOptions": (None, ctypes.c_char_p),
    "VSICurlPartialClearCache": (None, ctypes.c_char_p),
    "CPLSetConfigOption": (None, ctypes.c_char_p, ctypes.c_char_p),
    "CPLPushErrorHandler": (None, ctypes.c_void_p),
    "CPLPopErrorHandler": (None,),
    "VSIErrorReset": (None,),
    "VSIGetLastErrorMsg": (ctypes.c_char_p,),
    "VSIFOpenExL": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int),
    "VSIFSeekL": (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int),
    "VSIFTellL": (ctypes.c_uint64, ctypes.c_void_p),
    "VSIFReadL": (ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p),
    "VSIFCloseL": (ctypes.c_int, ctypes.c_void_p),
}


class _QuietErrors:
    """Silences the errors of these calls, which GDAL would write to standard error with their URLs."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __enter__(self) -> None:
        self._library.CPLPushErrorHandler(ctypes.cast(self._library.CPLQuietErrorHandler, ctypes.c_void_p))

    def __exit__(self, *_: object) -> None:
        self._library.CPLPopErrorHandler()


def _last_error(library: Any) -> str:
    message: bytes | None = library.VSIGetLastErrorMsg()
    return (message or b"").decode(errors="replace")
