"""The database schema: what is deployed, and what a migration changes."""

from typing import Annotated

from pydantic import ConfigDict, Field

from dagmaster.client.models.base import ApiModel, RequestModel


class SchemaStatus(ApiModel):
    """What is deployed. A fingerprint identifies a whole schema: equal fingerprints mean equal schemas."""

    deployed: bool
    is_current: bool
    software: str = Field(description="Fingerprint of this software's schema")
    stored: str | None = Field(None, description="Fingerprint of the last deployment")
    pending: list[str] = Field(description="What `migrate` would change, and what has to be changed by hand")
    server_version: str
    extensions: dict[str, str]
    catalog: str | None = Field(None, description="The deployed version of pgSTAC; null if there is no STAC catalogue")


class TableSizes(ApiModel):
    """The number of rows of each table: counted if that is fast, otherwise estimated."""

    tables: dict[str, int]


class MigrationResult(ApiModel):
    """What a migration changed, and what is still missing. With `done_by_another`, another process migrated the schema
    while this migration waited for it."""

    changes: list[str]
    pending: list[str]
    is_current: bool
    done_by_another: bool = False
    warnings: list[str] = Field([], description="Collections of the catalogue that are not served, and why")


class RebuildRequest(RequestModel):
    """The confirmation of a rebuild."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"confirm": "dagmaster"}]})

    confirm: Annotated[str, Field(max_length=63, description="The name of the database, as a confirmation")]
