"""The services that the routes of the map server use."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from morecantile import TileMatrixSet
from prometheus_client.core import Metric

from dagmaster.database.catalog.datasets import CatalogReader
from dagmaster.observe.metrics import gauge
from dagmaster.serving.access import AccessDecisions
from dagmaster.serving.dataset_pool import DatasetPool
from dagmaster.serving.mosaics import MosaicCache
from dagmaster.serving.shared_tasks import SharedTasks
from dagmaster.serving.sources import SourceResolver, TileSource
from dagmaster.serving.stac_search import ItemSearch
from dagmaster.storage.zones import Storage


@dataclass(frozen=True, slots=True)
class MapServices:
    catalog: CatalogReader
    access: AccessDecisions
    resolver: SourceResolver
    storage: Storage
    mosaics: MosaicCache
    datasets: DatasetPool
    grids: Mapping[str, TileMatrixSet]
    item_search: ItemSearch
    search_summaries: SharedTasks[TileSource]  # by the ids of searches and the collections that callers may see

    def metrics(self) -> Iterable[Metric]:
        yield gauge("dagmaster_open_datasets", "Files that are kept open between tiles", len(self.datasets))


def services_of(request: Request) -> MapServices:
    """For tiles and files, which are requested most: FastAPI takes longer to resolve a dependency."""
    services: MapServices = request.app.state.services
    return services


async def _services(request: Request) -> MapServices:
    return services_of(request)


Services = Annotated[MapServices, Depends(_services)]
