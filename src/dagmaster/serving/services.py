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
class Parts:
    served: Served
    sources: Remembered
    storage: Storage
    mosaics: Mosaics
    handles: Handles


async def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


Here = Annotated[Parts, Depends(_parts)]
