"""The STAC API: stac-fastapi-pgstac on the platform's database, for reading only.

It is a separate app whose paths begin with `/stac`: if it were mounted there, its links would lack the prefix. This
module assembles it:

    stac_client         what a caller may see, and how it is adapted
    stac_search         limits of searches, and their execution
    stac_connections    the pool
    stac_errors         problem responses
"""

from functools import partial
from typing import Any

from fastapi import FastAPI
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from stac_fastapi.api.routes import add_route_dependencies
from stac_fastapi.extensions import (
    CollectionSearchFilterExtension,
    ItemCollectionFilterExtension,
    SearchFilterExtension,
)
from stac_fastapi.extensions.query import QueryConformanceClasses
from stac_fastapi.extensions.sort import (
    ItemCollectionSortExtension,
    SearchSortExtension,
    SortConformanceClasses,
)
from stac_fastapi.pgstac.app import instantiate_api
from stac_fastapi.pgstac.config import Settings as StacSettings
from stac_fastapi.pgstac.models.extensions import Extensions
from starlette.responses import Response

from dagmaster import __version__
from dagmaster.database.catalog.datasets import CatalogReader
from dagmaster.dataset_urls import STAC
from dagmaster.serving import stac_errors
from dagmaster.serving.access import AccessDecisions
from dagmaster.serving.pages import page
from dagmaster.serving.permissions import FOR_ANYONE, FOR_MONITORS, open_plain_routes
from dagmaster.serving.queries import FilteringQueryExtension
from dagmaster.serving.revisions import RevisionReader
from dagmaster.serving.stac_client import CatalogClient, QueryablesClient

PREFIX = STAC
TITLE = "dagmaster"
ABOUT = "Datasets of this platform: validated, cloud-optimised, and served as maps"
# Clients look for the classes of version 1.0; stac-fastapi claims those of 1.1 alone, which have the same content.
_SORT_1_0 = "https://api.stacspec.org/v1.0.0/{}#sort"


class _StacSettings(StacSettings):  # type: ignore[misc]
    """Settings from arguments only: not from the environment and not from `.env` files."""

    @classmethod
    def settings_customise_sources(
        cls, _: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def create_stac(access: AccessDecisions, catalog: CatalogReader) -> FastAPI:
    """The app. It can serve requests within `stac_connections.connected`."""
    settings = _StacSettings(
        prefix_path=PREFIX,
        openapi_url=f"{PREFIX}/api",
        docs_url="",  # the page would load scripts from other servers
        stac_fastapi_title=TITLE,
        stac_fastapi_description=ABOUT,
        stac_fastapi_landing_id=TITLE,
        stac_fastapi_version=__version__,
        enable_transactions_extensions=False,
        cors_origins=(),  # the outer app sets CORS for all routes
    )
    client = partial(CatalogClient, landing_page_id=TITLE, title=TITLE, description=ABOUT)
    api = instantiate_api(client, _extensions(settings), settings=settings)
    app: FastAPI = api.app
    app.state.search_model = api.search_post_request_model
    app.state.access = access
    app.state.revision_documents = RevisionReader(access, catalog)
    # The landing page links to a route of this name.
    app.add_api_route(f"{PREFIX}/api.html", _get_help, name="swagger_ui_html", include_in_schema=False)
    open_plain_routes(app.routes)
    add_route_dependencies(app.routes, [{"path": "*", "method": "*"}], [FOR_ANYONE])
    add_route_dependencies(app.routes, [{"path": f"{PREFIX}/_mgmt/health", "method": "GET"}], [FOR_MONITORS])
    stac_errors.register(app)
    return app


def _extensions(settings: _StacSettings) -> Extensions:
    return Extensions(
        settings=settings,
        search_map={
            "query": FilteringQueryExtension(),
            "filter": SearchFilterExtension(client=QueryablesClient()),
            "sort": SearchSortExtension(
                conformance_classes=[SortConformanceClasses.ITEM_SEARCH_SORT, _SORT_1_0.format("item-search")]
            ),
        },
        item_collection_map={
            "query": FilteringQueryExtension(conformance_classes=[QueryConformanceClasses.ITEMS]),
            "filter": ItemCollectionFilterExtension(client=QueryablesClient()),
            "sort": ItemCollectionSortExtension(
                conformance_classes=[SortConformanceClasses.FEATURES_SORT, _SORT_1_0.format("ogcapi-features")]
            ),
        },
        collection_search_map={
            "query": FilteringQueryExtension(conformance_classes=[QueryConformanceClasses.COLLECTIONS]),
            "filter": CollectionSearchFilterExtension(client=QueryablesClient()),
        },
    )


async def _get_help() -> Response:
    return page("stac.html")
