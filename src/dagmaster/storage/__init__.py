"""Storage of files: zones, locations, and stores that put, get, list and delete objects.

from dagmaster.storage import Zone, open_storage

storage = open_storage(settings.load())
location = storage.location("2024/dem.tif", zone=Zone.BRONZE)
storage.put_file(location, Path("dem.tif"))
storage.gdal_path(location)
"""

from dagmaster.storage.location import Edition, Folder, Location, Zone, intermediate
from dagmaster.storage.sources import BLOBS_ONLY, SourceFile, SourceRules, find_source
from dagmaster.storage.store import ObjectInfo, Store, Stored
from dagmaster.storage.zones import Storage, open_storage

__all__ = [
    "BLOBS_ONLY",
    "Edition",
    "Folder",
    "Location",
    "ObjectInfo",
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
