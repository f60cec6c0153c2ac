"""Where files are: zones, locations, and stores that put, get, list and delete objects behind one interface.

from dagmaster.storage import Zone, open_storage

storage = open_storage(settings.load())
there = storage.location("2024/dem.tif", zone=Zone.BRONZE)
storage.put_file(there, Path("dem.tif"))
storage.gdal_path(there)
"""

from dagmaster.storage.location import Edition, Folder, Location, Zone, dataset_name, intermediate
from dagmaster.storage.sources import NOTHING_ELSE, Source, SourceRules, find_source
from dagmaster.storage.store import Found, Store, Stored
from dagmaster.storage.zones import Storage, open_storage

__all__ = [
    "NOTHING_ELSE",
    "Edition",
    "Folder",
    "Found",
    "Location",
    "Source",
    "SourceRules",
    "Storage",
    "Store",
    "Stored",
    "Zone",
    "dataset_name",
    "find_source",
    "intermediate",
    "open_storage",
]
