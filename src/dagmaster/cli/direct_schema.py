"""`dagmaster db` on a database that is reached directly, without a platform."""

from psycopg.conninfo import conninfo_to_dict

from dagmaster.client.models.base import Json
from dagmaster.errors import NotAllowed
from dagmaster.operations import schema
from dagmaster.settings import Settings


class DirectSchema:
    """The same operations as in the API, on a database that is reached directly."""

    def __init__(self, dsn: str, settings: Settings) -> None:
        self._dsn = dsn
        self._settings = settings

    def schema_status(self) -> Json:
        return schema.schema_status(self._dsn).model_dump(mode="json")

    def tables(self) -> Json:
        return schema.table_sizes(self._dsn).model_dump(mode="json")

    def deploy(self) -> Json:
        has_catalog = self._settings.catalog_enabled
        status = schema.deploy_schema(self._dsn, has_catalog=has_catalog)
        self._grant()
        return status.model_dump(mode="json")

    def migrate(self) -> Json:
        result = schema.migrate_schema(self._dsn)
        self._grant()
        return result.model_dump(mode="json")

    def rebuild(self, confirm: str) -> Json:
        if not self._settings.allow_rebuild:
            raise NotAllowed(
                "rebuilding is disabled",
                code="bootstrap.rebuild-off",
                hint="set ALLOW_REBUILD=true on a development machine",
            )
        if confirm != conninfo_to_dict(self._dsn).get("dbname"):
            raise NotAllowed(
                "--confirm is not the name of this database",
                code="bootstrap.not-confirmed",
                hint="the name is the last part of DATABASE_URL",
            )
        status = schema.rebuild_schema(self._dsn)
        self._grant()
        return status.model_dump(mode="json")

    def _grant(self) -> None:
        """Grant the processes of the platform their rights, if they do not run as the owner of the schema."""
        dsn = self._settings.dsn()
        if self._settings.db_admin_user and dsn:
            schema.grant_to_platform(self._dsn, str(conninfo_to_dict(dsn)["user"]))
