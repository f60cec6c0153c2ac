"""Every setting of dagmaster, read from environment variables once, at the door of a process.

Below the door functions receive what they need; nothing else reads the environment.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin
from urllib.parse import quote, urlsplit

from annotated_types import Ge, Gt, Le
from pydantic import Field, PositiveInt, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from dagmaster.errors import InvalidRequest
from dagmaster.observe.redaction import redact

DEFAULT_QUEUES = ("dag-worker-tasks", "functionapp-tasks", "container-tasks")
PREFIX = "DAGMASTER_"
_LONGEST_SHOWN = 60
_ROOT_HOME = Path("/var/lib/dagmaster")

# A day: whoever waits longer for a sign of life waits for ever.
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Port = Annotated[int, Field(ge=1, le=65535)]
PortOrAny = Annotated[int, Field(ge=0, le=65535)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Name, ...], NoDecode, Field(min_length=1)]

_SHORTER = (
    ("heartbeat_interval_sec", "orphan_threshold_sec", "healthy instances look dead"),
    ("lease_renew_sec", "task_lease_sec", "healthy tasks look lost"),
    ("orphan_threshold_sec", "janitor_patience_sec", "the janitor acts before the owner of a job can"),
    ("task_lease_sec", "payload_grace_sec", "what a worker has stored is gone before it can report it"),
)


class Settings(BaseSettings):
    """Names are the environment variables' names in lower case. What is secret has no place in `repr`."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, case_sensitive=False, env_ignore_empty=True)

    run_mode: Literal["up", "orchestrator", "worker", "serving", "gateway"] = Field(
        "up", description="Role of a container that is started without a subcommand"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least important level that is logged"
    )
    log_format: Literal["text", "json"] = Field("text", description="For people, or one JSON object a line")

    database_url: str | None = Field(
        None, repr=False, description="postgresql://…; without it and POSTGRES_HOST a private cluster is used"
    )
    postgres_host: str | None = Field(None, description="Used where DATABASE_URL is not set")
    postgres_port: Port = Field(5432, description="With POSTGRES_HOST")
    postgres_db: str = Field("dagmaster", description="With POSTGRES_HOST")
    postgres_user: str = Field("dagmaster", description="With POSTGRES_HOST")
    postgres_password: str | None = Field(None, repr=False, description="With POSTGRES_HOST; never logged")
    data_folder: Path | None = Field(
        None, description="Where the private cluster and the platform's files live", alias="DAGMASTER_DATA"
    )

    server_url: str | None = Field(
        None,
        description="API of the platform that commands talk to, where it is not the one running here",
        alias="DAGMASTER_URL",
    )

    orchestrator_poll_interval: Seconds = Field(1.0, description="Seconds between looks when nothing rings")
    heartbeat_interval_sec: Seconds = Field(15.0, description="How often an orchestrator shows that it lives")
    orphan_threshold_sec: Seconds = Field(
        60.0, description="An orchestrator that is silent for this long is dead: its jobs may be claimed"
    )
    orphan_scan_interval_sec: Seconds = Field(
        15.0, description="How often an orchestrator looks for jobs whose owner is silent"
    )
    orchestrator_batch: PositiveInt = Field(100, le=10_000, description="Jobs advanced in one transaction")
    orchestrator_max_jobs: PositiveInt = Field(2000, le=1_000_000, description="Jobs one orchestrator owns at a time")

    janitor_interval_sec: Seconds = Field(60.0, description="How often an orchestrator's janitor looks around")
    janitor_patience_sec: Seconds = Field(
        300.0, description="A job whose owner lives and does not act on what is due for this long goes to another owner"
    )
    janitor_queued_sec: Seconds = Field(
        600.0, description="A task or message that waits this long, and that nobody alive would take, is told of"
    )
    janitor_webhook_url: str | None = Field(
        None, repr=False, max_length=512, description="http(s)://…; told of what the janitor finds"
    )
    allow_private_webhooks: bool = Field(
        False, description="Let webhooks go to private, loopback and link-local addresses"
    )
    payload_grace_sec: float = Field(
        86_400,
        gt=0,
        le=2_592_000,
        description="A large output that was stored, and that no worker has reported for this long, is deleted",
    )
    retention_days: float = Field(
        0, ge=0, le=36_500, allow_inf_nan=False, description="Jobs that ended longer ago are deleted; 0 keeps all"
    )
    tidy_enabled: bool = Field(
        True,
        description="Whether orchestrators remove what jobs leave in storage; "
        "false where another platform stores there too",
    )
    intermediate_grace_sec: float = Field(
        3600, ge=0, le=2_592_000, description="Intermediate objects of a job that completed are removed after this long"
    )
    intermediate_failed_days: float = Field(
        30,
        ge=0,
        le=36_500,
        description="The same for jobs that failed, were cancelled or succeeded in part, whose resume may need them; "
        "0 keeps them as long as the job",
    )
    retention_batch: PositiveInt = Field(100, le=10_000, description="Jobs deleted in one transaction at most")

    job_queue_name: Name = Field("dag-jobs", description="Queue of submissions by producers that have only a queue")
    worker_queue: Names = Field(DEFAULT_QUEUES, description="Queues a worker serves, comma-separated")
    default_queue: Name = Field(
        "dag-worker-tasks", description="Queue of tasks for which neither workflow nor handler names one"
    )
    known_queues: Names = Field(DEFAULT_QUEUES, description="Queues a workflow may name")
    worker_type: str = Field("general", description="A label for people, shown with the worker")
    worker_slots: PositiveInt = Field(100, le=10_000, description="Async handlers one worker runs at once")
    worker_processes: PositiveInt = Field(
        2, le=1_000, description="Plain handlers one worker runs at once, each in a process of its own"
    )
    worker_memory_mb: PositiveInt = Field(
        4096, le=16_000_000, description="Memory limit of one plain handler's process"
    )
    worker_poll_interval: Seconds = Field(
        2.0, description="Seconds between looks when nothing rings; the actual wait is half of it to all of it"
    )
    task_lease_sec: Seconds = Field(60.0, description="A running task whose lease is not renewed for this long is lost")
    lease_renew_sec: Seconds = Field(15.0, description="How often a worker renews its leases and shows that it lives")
    shutdown_grace_sec: Seconds = Field(30.0, description="How long handlers may go on after a worker was told to stop")
    max_losses: PositiveInt = Field(
        5, le=1_000, description="Times a node may be lost to its environment before it fails"
    )

    workflow_folders: Annotated[tuple[Path, ...], NoDecode] = Field(
        (), description="Folders with further workflow files"
    )
    max_yaml_bytes: PositiveInt = Field(262_144, le=16_777_216, description="Largest workflow file")
    max_nodes: PositiveInt = Field(500, le=10_000, description="Most nodes of one workflow")
    max_fan_out: PositiveInt = Field(100_000, le=1_000_000, description="Most children of one fan_out")
    max_inputs_bytes: PositiveInt = Field(262_144, le=16_777_216, description="Largest inputs of one submission")
    max_params_bytes: PositiveInt = Field(
        16_777_216, le=16_777_216, description="Largest params of one task; what no message holds is kept by reference"
    )

    api_enabled: bool = Field(True, description="Whether an orchestrator's process also serves the API")
    api_host: str = Field("127.0.0.1", description="Where the API listens; only loopback, unless API_INSECURE")
    api_port: PortOrAny = Field(8000, description="0 takes any free port")
    api_insecure: bool = Field(
        False, description="Let the API listen beyond loopback although it asks nobody who they are"
    )
    health_enabled: bool = Field(
        True, description="Whether a worker, or an orchestrator without API, answers probes of its health"
    )
    health_host: str = Field(
        "127.0.0.1", description="Where probes are answered; only loopback, unless HEALTH_INSECURE"
    )
    health_port: PortOrAny = Field(8002, description="0 takes any free port, and so does a process that finds it taken")
    health_insecure: bool = Field(
        False, description="Let probes come from beyond loopback: anyone who reaches the port sees what runs"
    )
    serving_enabled: bool = Field(True, description="Whether `up` also serves maps: STAC API, tiles, files")
    serving_host: str = Field("127.0.0.1", description="Where maps are served; only loopback, unless SERVING_INSECURE")
    serving_port: PortOrAny = Field(8003, description="0 takes any free port")
    serving_insecure: bool = Field(
        False, description="Let maps be served beyond loopback although nobody is asked who they are"
    )
    public_url: str | None = Field(
        None,
        max_length=512,
        description="http(s)://… under which others reach what is served; it begins every link in the catalogue",
    )
    allow_rebuild: bool = Field(
        False, description="Development only: let the bootstrap API drop everything and deploy anew"
    )

    storage_folder: Path | None = Field(
        None, description="Where objects are kept, a folder for each zone; by default `storage` in the data folder"
    )
    bronze_folder: Path | None = Field(None, description="Where raw data is kept, if not in STORAGE_FOLDER")
    silver_folder: Path | None = Field(
        None, description="Where processed data and files on their way are kept, if not in STORAGE_FOLDER"
    )
    external_folder: Path | None = Field(None, description="Where public data is kept, if not in STORAGE_FOLDER")
    bronze_container: Name = Field("bronze", description="Container of raw data, where none is named")
    silver_container: Name = Field("silver", description="Container of processed data, where none is named")
    external_container: Name = Field("external", description="Container of public data, where none is named")
    allow_local_sources: bool = Field(False, description="Let jobs read files of the worker's machine by their paths")
    allow_https_sources: bool = Field(False, description="Let jobs read from public web servers by https addresses")
    allow_vsi_sources: bool = Field(False, description="Let jobs read what GDAL reaches by /vsi paths")
    catalog_enabled: bool = Field(
        True, description="Whether the STAC catalogue (pgSTAC, needs PostGIS) is deployed beside the engine's tables"
    )

    crash_point: str | None = Field(None, description="Tests only: a named point at which the process dies")

    @field_validator("run_mode", "log_level", "log_format", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("worker_queue", "known_queues", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("janitor_webhook_url")
    @classmethod
    def _web_address(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "http://none")
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise ValueError("not the address of a web server")
        return value

    @field_validator("public_url")
    @classmethod
    def _begins_links(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(cls._web_address(value) or "")
        if parts.query or parts.fragment:
            raise ValueError("not the beginning of addresses")
        return value.rstrip("/")

    @field_validator("workflow_folders", mode="before")
    @classmethod
    def _folders(cls, value: object) -> object:
        return tuple(Path(part) for part in value.split(":") if part) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        wrong = [
            f"{short.upper()}={getattr(self, short):g} must be shorter than "
            f"{long.upper()}={getattr(self, long):g}, or {why}"
            for short, long, why in _SHORTER
            if getattr(self, short) >= getattr(self, long)
        ]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    def home(self) -> Path:
        """The data folder: the configured one, or the usual one of this user."""
        if self.data_folder:
            return self.data_folder.absolute()
        return _ROOT_HOME if os.geteuid() == 0 else Path.home() / ".local/share/dagmaster"

    def dsn(self) -> str | None:
        """The configured server, or None where the private cluster is meant."""
        if self.database_url:
            return self.database_url
        if self.postgres_host is None:
            return None
        secret = f":{quote(self.postgres_password, safe='')}" if self.postgres_password else ""
        user, database = quote(self.postgres_user, safe=""), quote(self.postgres_db, safe="")
        return f"postgresql://{user}{secret}@{_in_a_url(self.postgres_host)}:{self.postgres_port}/{database}"


def load(**overrides: Any) -> Settings:
    """Read the environment. Every bad value is told by its variable's name, with what is allowed."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        problems = problems_of(error, overrides)
    raise InvalidRequest(
        "; ".join(problems), code="settings.invalid", hint="correct these environment variables", problems=problems
    )


def problems_of(error: ValidationError, overrides: Mapping[str, Any]) -> list[str]:
    """What is wrong, one line each. What does not fit together is only seen where each value is good by itself."""
    bad = {str(place): mistake["input"] for mistake in error.errors() for place in mistake["loc"][:1]}
    if not bad:
        return _between(error)
    fields = {variable: field for variable, field in variables().items() if {variable, variable.lower()} & bad.keys()}
    found = [
        f"{variable}{_shown(field, bad.get(variable, bad.get(variable.lower())))}: expected {kind_of(field)}"
        for variable, field in fields.items()
    ]
    repaired = {name: variables()[name.upper()].default for name in bad}
    try:
        Settings(**{**overrides, **repaired})
    except ValidationError as others:
        found += [line for line in _between(others) if not any(variable in line for variable in fields)]
    return found


def repaired(**overrides: Any) -> Settings:
    """With defaults in place of what is refused: to look around with, never to run with."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        bad = [str(mistake["loc"][0]) for mistake in error.errors() if mistake["loc"]]
    bad = bad or [name for pair in _SHORTER for name in pair[:2]]
    return repaired(**{**overrides, **{name: variables()[name.upper()].default for name in bad}})


def variables() -> dict[str, FieldInfo]:
    """Every setting by the name of its environment variable."""
    return {field.alias or name.upper(): field for name, field in Settings.model_fields.items()}


def kind_of(field: FieldInfo) -> str:
    """What values a setting takes, in words."""
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not NoneType]
    if get_origin(field.annotation) is Literal:
        return ", ".join(str(kind) for kind in kinds)
    if get_origin(field.annotation) is tuple:
        return "paths, joined by `:`" if kinds[0] is Path else "names, joined by `,`"
    words = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path"}
    return words[kinds[0]] + "".join(sorted(_bound(note) for note in field.metadata))


def warnings() -> list[str]:
    """Variables that look like settings and are none."""
    known = variables()
    strangers = sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in known)
    return [f"{name} is not a setting{_did_you_mean(name.upper(), known)}" for name in strangers]


def _between(error: ValidationError) -> list[str]:
    return [
        line for mistake in error.errors() if not mistake["loc"] for line in str(mistake["ctx"]["error"]).split("\n")
    ]


def _shown(field: FieldInfo, value: Any) -> str:
    """A value that was refused, unless it is secret."""
    if not field.repr:
        return ""
    text = redact(",".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return f"={text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + '…'}"


def _bound(note: Any) -> str:
    match note:
        case Gt(gt):
            return f" above {gt}"
        case Ge(ge):
            return f" from {ge}"
        case Le(le):
            return f" up to {le}"
    return ""


def _did_you_mean(name: str, known: Mapping[str, Any]) -> str:
    """Many put the prefix where there is none."""
    by_bare_name = {other.removeprefix(PREFIX): other for other in known}
    close = difflib.get_close_matches(name.removeprefix(PREFIX)[:100], by_bare_name, n=1)
    return f"; did you mean {by_bare_name[close[0]]}?" if close else ""


def _in_a_url(host: str) -> str:
    """An IPv6 address in brackets, a folder of sockets in percent form."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else quote(host, safe="[]:,")
