"""Options of GDAL for one path: where the store of an object is, and how to sign requests to it.

When GDAL opens a file, it uses the options of the longest path with which the file's path begins. They apply to the
whole process. So files of several accounts can be open at once, in any thread, and no signature is in a path or an
environment variable. rasterio has no function for this.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dagmaster.gdal_library import gdal_library

# A limit, because GDAL compares the path of each file with all of them.
MAX_PATHS: Final = 512
_LOCK: Final = threading.Lock()
_PATHS: Final[OrderedDict[str, Mapping[str, str]]] = OrderedDict()


def set_options(path: str, options: Mapping[str, str]) -> None:
    """Use these options for files whose paths begin with this one, from the next opening on.

    If the options are new, GDAL's cache for the path is dropped: with the old options, access may have been refused.
    """
    with _LOCK:
        if _PATHS.get(path) == options:
            _PATHS.move_to_end(path)
            return
        library = gdal_library()
        library.VSIClearPathSpecificOptions(path.encode())
        for name, value in options.items():
            library.VSISetPathSpecificOption(path.encode(), name.encode(), value.encode())
        library.VSICurlPartialClearCache(path.encode())
        _PATHS[path] = dict(options)
        _PATHS.move_to_end(path)
        while len(_PATHS) > MAX_PATHS:
            oldest, _ = _PATHS.popitem(last=False)
            library.VSIClearPathSpecificOptions(oldest.encode())


def forget_content(path: str) -> None:
    """Drop the file from GDAL's cache: it may have been replaced."""
    with _LOCK:
        gdal_library().VSICurlPartialClearCache(path.encode())


def trust(authorities: Path) -> None:
    """Trust these certificate authorities for all files of the process."""
    gdal_library().CPLSetConfigOption(b"GDAL_CURL_CA_BUNDLE", str(authorities).encode())
