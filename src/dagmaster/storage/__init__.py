"""Where files are: zones, locations, and stores that put, get, list and delete objects behind one interface.

from dagmaster.storage import Zone, open_storage

storage = open_storage(settings.load())
there = storage.location("2024/dem.tif", zone=Zone.BRONZE)
storage.put_file(there, Path("dem.tif"))
storage.gdal_path(there)
"""

from dagmaster.storage.location import Edition, Folder, Location, Zone, intermediate
from dagmaster.storage.sources import BLOBS_ONLY, SourceFile, SourceRules, find_source
from dagmaster.storage.store import Found, Store, Stored
from dagmaster.storage.zones import Storage, open_storage

__all__ = [
    "BLOBS_ONLY",
    "Edition",
    "Folder",
    "Found",
    "Location",
    "SourceFile",
    "SourceRules",
    "Storage",
    "Store",
    "Stored",
    "Zone",
    "find_source",
    "intermediate",
    "open_storage",
]
