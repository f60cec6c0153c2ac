"""The services that the routes of the map server use."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from dagmaster.database.catalog.datasets import CatalogReader
from dagmaster.serving.dataset_pool import DatasetPool
from dagmaster.serving.mosaics import MosaicCache
from dagmaster.serving.sources import CachedResolver
from dagmaster.storage.zones import Storage


@dataclass(frozen=True, slots=True)
class MapServices:
    catalog: CatalogReader
    resolver: CachedResolver
    storage: Storage
    mosaics: MosaicCache
    datasets: DatasetPool


async def _services(request: Request) -> MapServices:
    services: MapServices = request.app.state.services
    return services


Services = Annotated[MapServices, Depends(_services)]
