"""Every setting of dagmaster, read from environment variables once, at the door of a process.

Below the door functions receive what they need; nothing else reads the environment.
"""

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import quote

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from dagmaster.errors import InvalidRequest

DEFAULT_QUEUES = ("dag-worker-tasks", "functionapp-tasks", "container-tasks")


class Settings(BaseSettings):
    """Names are the environment variables' names in lower case."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, case_sensitive=False)

    run_mode: Literal["up", "orchestrator", "worker", "gateway"] = Field(
        "up", description="Role of a container that is started without a subcommand"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least important level that is logged"
    )
    log_format: Literal["text", "json"] = Field("text", description="For people, or one JSON object a line")

    database_url: str | None = Field(
        None, description="postgresql://…; without it and POSTGRES_HOST a private cluster is used"
    )
    postgres_host: str | None = Field(None, description="Used where DATABASE_URL is not set")
    postgres_port: PositiveInt = Field(5432, description="With POSTGRES_HOST")
    postgres_db: str = Field("dagmaster", description="With POSTGRES_HOST")
    postgres_user: str = Field("dagmaster", description="With POSTGRES_HOST")
    postgres_password: str | None = Field(None, repr=False, description="With POSTGRES_HOST; never logged")
    data_folder: Path | None = Field(
        None, description="Where the private cluster and the platform's files live", alias="DAGMASTER_DATA"
    )

    orchestrator_poll_interval: PositiveFloat = Field(1.0, description="Seconds between looks when nothing rings")
    heartbeat_interval_sec: PositiveFloat = Field(15.0, description="How often an orchestrator shows that it lives")
    orphan_threshold_sec: PositiveFloat = Field(
        60.0, description="An orchestrator that is silent for this long is dead: its jobs may be claimed"
    )
    orphan_scan_interval_sec: PositiveFloat = Field(
        15.0, description="How often an orchestrator looks for jobs whose owner is silent"
    )
    orchestrator_batch: PositiveInt = Field(100, description="Jobs advanced in one transaction")
    orchestrator_max_jobs: PositiveInt = Field(2000, description="Jobs one orchestrator owns at a time")

    job_queue_name: str = Field("dag-jobs", description="Queue of submissions by producers that have only a queue")
    worker_queue: Annotated[tuple[str, ...], NoDecode] = Field(
        DEFAULT_QUEUES, description="Queues a worker serves, comma-separated"
    )
    default_queue: str = Field(
        "dag-worker-tasks", description="Queue of tasks for which neither workflow nor handler names one"
    )
    known_queues: Annotated[tuple[str, ...], NoDecode] = Field(DEFAULT_QUEUES, description="Queues a workflow may name")
    worker_type: str = Field("general", description="A label for people, shown with the worker")
    worker_slots: PositiveInt = Field(100, description="Async handlers one worker runs at once")
    worker_processes: PositiveInt = Field(
        2, description="Plain handlers one worker runs at once, each in a process of its own"
    )
    worker_memory_mb: PositiveInt = Field(4096, description="Memory limit of one plain handler's process")
    worker_poll_interval: PositiveFloat = Field(
        2.0, description="Seconds between looks when nothing rings; the actual wait is half of it to all of it"
    )
    task_lease_sec: PositiveFloat = Field(
        60.0, description="A running task whose lease is not renewed for this long is lost"
    )
    lease_renew_sec: PositiveFloat = Field(
        15.0, description="How often a worker renews its leases and shows that it lives"
    )
    shutdown_grace_sec: PositiveFloat = Field(
        30.0, description="How long handlers may go on after a worker was told to stop"
    )
    max_losses: PositiveInt = Field(5, description="Times a node may be lost to its environment before it fails")

    workflow_folders: Annotated[tuple[Path, ...], NoDecode] = Field(
        (), description="Folders with further workflow files"
    )
    max_yaml_bytes: PositiveInt = Field(262_144, description="Largest workflow file")
    max_nodes: PositiveInt = Field(500, description="Most nodes of one workflow")
    max_fan_out: PositiveInt = Field(100_000, description="Most children of one fan_out")
    max_params_bytes: PositiveInt = Field(
        262_144, description="Largest params of one task, and largest inputs of one submission"
    )

    api_enabled: bool = Field(True, description="Whether an orchestrator's process also serves the API")
    api_host: str = Field("127.0.0.1", description="Where the API listens; only loopback, unless API_INSECURE")
    api_port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="0 takes any free port")
    api_insecure: bool = Field(
        False, description="Let the API listen beyond loopback although it asks nobody who they are"
    )
    allow_rebuild: bool = Field(
        False, description="Development only: let the bootstrap API drop everything and deploy anew"
    )

    crash_point: str | None = Field(None, description="Tests only: a named point at which the process dies")

    @field_validator("worker_queue", "known_queues", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("workflow_folders", mode="before")
    @classmethod
    def _folders(cls, value: object) -> object:
        return tuple(Path(part) for part in value.split(":") if part) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.heartbeat_interval_sec >= self.orphan_threshold_sec:
            raise ValueError(
                "HEARTBEAT_INTERVAL_SEC must be shorter than ORPHAN_THRESHOLD_SEC, or healthy instances look dead"
            )
        if self.lease_renew_sec >= self.task_lease_sec:
            raise ValueError("LEASE_RENEW_SEC must be shorter than TASK_LEASE_SEC, or healthy tasks look lost")
        return self

    def dsn(self) -> str | None:
        """The configured server, or None where the private cluster is meant."""
        if self.database_url:
            return self.database_url
        if self.postgres_host is None:
            return None
        secret = f":{quote(self.postgres_password, safe='')}" if self.postgres_password else ""
        user = quote(self.postgres_user, safe="")
        return (
            f"postgresql://{user}{secret}@{self.postgres_host}:{self.postgres_port}/{quote(self.postgres_db, safe='')}"
        )


def load(**overrides: object) -> Settings:
    """Read the environment; a bad value is told by its variable's name."""
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        lines = [
            f"{'.'.join(str(p) for p in e['loc']).upper() or 'settings'}: {e['msg']}"
            for e in error.errors(include_input=False, include_url=False)
        ]
        raise InvalidRequest(
            "; ".join(lines), code="settings.invalid", hint="correct these environment variables"
        ) from None
