"""Update the external database with what is published: at once by a command, and again later if that failed."""

from dataclasses import dataclass
from typing import Any

from dagmaster.addresses import rebased
from dagmaster.database.external.catalog import ExternalCatalog, ExternalContent
from dagmaster.database.external.due import DueLayer, PostgresExternalLayers, PublishedContent
from dagmaster.errors import DagmasterError, InvalidRequest
from dagmaster.settings import Settings

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExternalLayers:
    """`public_url` is the base of the URLs in what is published externally."""

    store: PostgresExternalLayers
    catalog: ExternalCatalog
    public_url: str

    async def carry_out(self, due: DueLayer) -> None:
        """Write or remove one layer. A failure is recorded and raised; the layer stays due."""
        try:
            stored = await self.store.content(due)
            content = None if stored is None else _absolute(stored, self.public_url)
            await self.catalog.put(due.dataset_id, due.layer, due.generation, content)
        except DagmasterError as error:
            await self.store.failed(due, error.message)
            raise
        await self.store.done(due)

    async def carry_out_all(self, limit: int, asset_id: str | None = None) -> int:
        """Write or remove all layers that are due, of all assets or of one, each independently. Returns their number;
        raises the last error."""
        due = await self.store.due(limit, asset_id)
        failure: DagmasterError | None = None
        for layer in due:
            try:
                await self.carry_out(layer)
            except DagmasterError as error:
                failure = error
        if failure is not None:
            raise failure
        return len(due)

    async def close(self) -> None:
        await self.store.close()


def external_layers(settings: Settings, dsn: str) -> ExternalLayers | None:
    """None if there is no external database."""
    if not settings.external_database_url:
        return None
    return ExternalLayers(
        PostgresExternalLayers(dsn, "external-layers"),
        ExternalCatalog(settings.external_database_url),
        settings.public_url or "",
    )


def require_external(settings: Settings) -> None:
    if not settings.external_database_url:
        raise InvalidRequest(
            "no external database is configured", code="external.not-configured", hint="set EXTERNAL_DATABASE_URL"
        )
    if not settings.public_url:
        raise InvalidRequest(
            "documents in the external database need the public URL of the map server",
            code="external.no-public-url",
            hint="set PUBLIC_URL",
        )


def _absolute(content: PublishedContent, base: str) -> ExternalContent:
    return ExternalContent(
        content.layer, _rebased(content.collection, base), [_rebased(item, base) for item in content.items]
    )


def _rebased(document: Json, base: str) -> Json:
    """The document with absolute URLs."""
    links = [{**link, "href": rebased(link["href"], base)} for link in document.get("links") or []]
    assets = {
        key: {**asset, "href": rebased(asset["href"], base)} for key, asset in (document.get("assets") or {}).items()
    }
    return {**document, "links": links, "assets": assets}
