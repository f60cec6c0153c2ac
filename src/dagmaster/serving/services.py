"""What the routes of the map server need."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from dagmaster.database.catalog.datasets import Served
from dagmaster.serving.handles import Handles
from dagmaster.serving.mosaics import Mosaics
from dagmaster.serving.sources import Remembered
from dagmaster.storage.zones import Storage


@dataclass(frozen=True, slots=True)
class MapServices:
    served: Served
    sources: Remembered
    storage: Storage
    mosaics: Mosaics
    handles: Handles


async def _services(request: Request) -> MapServices:
    services: MapServices = request.app.state.services
    return services


Services = Annotated[MapServices, Depends(_services)]
