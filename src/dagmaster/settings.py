"""Every setting of dagmaster, read from environment variables once, when a process starts.

Only the entry points load settings. All other functions receive the values that they need as arguments.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin
from urllib.parse import quote, unquote, urlsplit

from annotated_types import Ge, Gt, Le
from pydantic import Field, PositiveInt, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from dagmaster.errors import InvalidRequest
from dagmaster.listen import is_loopback
from dagmaster.observe.redaction import protect, redact
from dagmaster.quantities import shortened

DEFAULT_QUEUES = ("dag-worker-tasks", "functionapp-tasks", "container-tasks")
PREFIX = "DAGMASTER_"
_MAX_SHOWN_LENGTH = 60
SCOPES = ("viewer", "reviewer", "author", "operator", "worker", "gateway", "monitor", "admin")
SERVERS = ("api", "gateway", "serving")
_ROLE = re.compile(rf"[^=,]+=(?:{'|'.join(SCOPES)}|b2b:[a-z0-9][a-z0-9_-]*)")
_PERCENTAGE = re.compile(r"(?:\*|[A-Za-z0-9][A-Za-z0-9_.-]{0,63})=(?:100(?:\.0{1,2})?|[0-9]{1,2}(?:\.[0-9]{1,2})?)")
_CONCURRENCY = re.compile(r"[^=,]+=[1-9][0-9]{0,4}")
# The password in a URL, or in a connection string of keywords and values.
_PASSWORD = re.compile(r"://[^:/?#]*:([^@/?#]+)@|password *= *(?:'([^']+)'|([^ ']+))")
_ACCOUNT = re.compile("[a-z0-9]{3,24}")
_SHARED_ACCESS = re.compile("SharedAccess(?:Key|Signature)=([^;]+)")
_NAMESPACE = re.compile("[A-Za-z][A-Za-z0-9-]{4,48}[A-Za-z0-9]")
_HOST = re.compile("[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?")
_ROOT_HOME = Path("/var/lib/dagmaster")

# At most a day: with a longer interval or timeout, a failure would hardly ever be noticed.
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Port = Annotated[int, Field(ge=1, le=65535)]
PortOrAny = Annotated[int, Field(ge=0, le=65535)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Name, ...], NoDecode, Field(min_length=1)]
StorageBackend = Literal["folder", "azure", "s3"]
ZONES = ("bronze", "silver", "external")
AZURITE_ACCOUNT = "devstoreaccount1"

_MUST_BE_SHORTER = (
    ("heartbeat_interval_sec", "orphan_threshold_sec", "healthy orchestrators are considered dead"),
    ("lease_renew_sec", "task_lease_sec", "healthy tasks are considered lost"),
    ("orphan_threshold_sec", "janitor_patience_sec", "the janitor acts before the owner of a job can act"),
    (
        "task_lease_sec",
        "payload_grace_sec",
        "an output that a worker has stored is deleted before the worker reports it",
    ),
)
# Other settings that can contradict each other; `repaired` replaces them by their defaults.
_CONFLICTING = (
    *("oidc_issuer", "oidc_client_id", "oidc_scope", "dag_callback_url", "transport"),
    *("worker_executor", "dask_scheduler_address", "worker_queue_concurrency"),
    *("use_managed_identity", "db_admin_user", "db_admin_managed_identity_client_id"),
    *("storage_backend", "bronze_backend", "silver_backend", "external_backend"),
    *("azure_storage_account_key", "s3_access_key_id", "s3_secret_access_key"),
)


class _EnvironmentVariables(EnvSettingsSource):
    """The environment variables. No value is JSON: the validators of `Settings` split lists."""

    def prepare_field_value(self, field_name: str, field: FieldInfo, value: Any, value_is_complex: bool) -> Any:
        return value


class Settings(BaseSettings):
    """A setting has the name of its environment variable in lower case, unless an alias is declared. Secrets are left
    out of `repr`."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, case_sensitive=False, env_ignore_empty=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments take precedence over environment variables; files are not read."""
        return init_settings, _EnvironmentVariables(settings_cls)

    run_mode: Literal["up", "orchestrator", "worker", "serving", "gateway"] = Field(
        "up",
        description="Role of a container that is started without a subcommand; if it is not set, `dagmaster` prints "
        "its help",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Messages below this level are not logged"
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Plain text for people, or one JSON object per line"
    )
    otel_exporter_otlp_endpoint: str | None = Field(
        None,
        max_length=512,
        description="http(s)://… of an OpenTelemetry collector (OTLP over HTTP, usually port 4318), which receives "
        "traces; if it is not set, nothing is traced. Needs the extra `otel`",
    )
    otel_exporter_otlp_headers: str | None = Field(
        None,
        repr=False,
        description="Headers for the collector, such as `authorization=Bearer …`, separated by commas; never logged",
    )
    otel_traces_sampler_arg: float = Field(
        1.0, ge=0, le=1, description="Share of traces that are recorded, unless the client has already decided"
    )
    traces_fan_out_limit: int = Field(
        100,
        ge=0,
        le=100_000,
        description="Maximum number of children of a fan_out that are traced, and of spans `advance job` of one job",
    )

    database_url: str | None = Field(
        None,
        repr=False,
        description="postgresql://…; if neither this nor POSTGRES_HOST is set, an embedded PostgreSQL is used",
    )
    postgres_host: str | None = Field(None, description="Database server; used if DATABASE_URL is not set")
    postgres_port: Port = Field(5432, description="Port of POSTGRES_HOST")
    postgres_db: str = Field("dagmaster", description="Name of the database on POSTGRES_HOST")
    postgres_user: str = Field("dagmaster", description="User name on POSTGRES_HOST")
    postgres_password: str | None = Field(None, repr=False, description="Password on POSTGRES_HOST; never logged")
    database_pooler_url: str | None = Field(
        None,
        repr=False,
        description="postgresql://… of a pooler, such as pgbouncer, in front of the same database: the short reads of "
        "the API go through it. DATABASE_URL must be the server itself",
    )
    use_managed_identity: bool = Field(
        False,
        description="Log in to PostgreSQL with a token of the managed identity instead of a password; requires TLS",
    )
    managed_identity_client_id: str | None = Field(
        None,
        max_length=100,
        description="Client id of the managed identity that logs in to PostgreSQL; by default AZURE_CLIENT_ID",
    )
    db_admin_managed_identity_client_id: str | None = Field(
        None,
        max_length=100,
        description="Client id of the managed identity with which `dagmaster db` deploys and migrates the schema; by "
        "default that of MANAGED_IDENTITY_CLIENT_ID",
    )
    db_admin_user: str | None = Field(
        None,
        max_length=63,
        description="PostgreSQL user of DB_ADMIN_MANAGED_IDENTITY_CLIENT_ID; requires USE_MANAGED_IDENTITY",
    )
    data_folder: Path | None = Field(
        None, description="Folder of the embedded PostgreSQL and of the platform's files", alias="DAGMASTER_DATA"
    )

    server_url: str | None = Field(
        None,
        description="URL of the API that commands use; by default the platform that runs on this machine",
        alias="DAGMASTER_URL",
    )
    api_key: str | None = Field(
        None,
        repr=False,
        description="API key or OIDC token that commands and clients send; never logged",
        alias="DAGMASTER_KEY",
    )
    credentials_file: Path | None = Field(
        None,
        description="File in which `dagmaster login` stores keys; by default dagmaster/credentials.json in "
        "$XDG_CONFIG_HOME, or in ~/.config if that is not set",
        alias="DAGMASTER_CREDENTIALS",
    )

    orchestrator_poll_interval: Seconds = Field(1.0, description="Seconds between polls if no notification arrives")
    heartbeat_interval_sec: Seconds = Field(15.0, description="Seconds between the heartbeats of an orchestrator")
    orphan_threshold_sec: Seconds = Field(
        60.0, description="An orchestrator without a heartbeat for this long counts as dead: others may claim its jobs"
    )
    orphan_scan_interval_sec: Seconds = Field(
        15.0, description="Seconds between searches for jobs whose orchestrator is dead"
    )
    orchestrator_batch: PositiveInt = Field(
        100, le=10_000, description="Maximum number of jobs that one transaction advances"
    )
    orchestrator_max_jobs: PositiveInt = Field(
        2000, le=1_000_000, description="Maximum number of jobs that one orchestrator owns"
    )

    janitor_interval_sec: Seconds = Field(60.0, description="Seconds between two runs of an orchestrator's janitor")
    janitor_patience_sec: Seconds = Field(
        300.0,
        description="A job whose live orchestrator does not advance it for this long, although work is due, "
        "is given to another orchestrator",
    )
    janitor_queued_sec: Seconds = Field(
        600.0, description="A task or message that has waited this long, and that no live process takes, is reported"
    )
    janitor_webhook_url: str | None = Field(
        None, repr=False, max_length=512, description="http(s)://…; receives the janitor's actions as JSON"
    )
    allow_private_webhooks: bool = Field(
        False,
        description="Allow webhooks and callback_url at private and loopback addresses, and callback_url with http "
        "and with any port; metadata services and other link-local addresses are never called",
    )
    callback_attempts: PositiveInt = Field(
        10,
        le=100,
        description="Maximum number of attempts to deliver one callback; the delays between them grow from 5 seconds "
        "to 6 hours",
    )
    callback_result_url: str | None = Field(
        None,
        max_length=512,
        description="Base URL of result_url in callbacks, http(s)://…; by default result_url is a path",
    )
    payload_grace_sec: float = Field(
        86_400,
        gt=0,
        le=2_592_000,
        description="A large output that was stored but not reported by its worker within this time is deleted",
    )
    retention_days: float = Field(
        0,
        ge=0,
        le=36_500,
        allow_inf_nan=False,
        description="Jobs that ended more than this many days ago are deleted; 0 keeps all jobs",
    )
    tidy_enabled: bool = Field(
        True,
        description="Orchestrators remove objects that jobs leave in storage; "
        "use false if another platform uses the same storage",
    )
    intermediate_grace_sec: float = Field(
        3600, ge=0, le=2_592_000, description="Intermediate objects of a completed job are removed after this long"
    )
    intermediate_failed_days: float = Field(
        30,
        ge=0,
        le=36_500,
        description="Intermediate objects of a job that failed, was cancelled or succeeded in part are kept for this "
        "many days, because a resume may need them; 0 keeps them as long as the job",
    )
    retention_batch: PositiveInt = Field(
        100, le=10_000, description="Maximum number of jobs that one transaction deletes"
    )

    job_queue_name: Name = Field("dag-jobs", description="Queue for submissions by producers that do not use the API")
    transport: Literal["postgres", "servicebus"] = Field(
        "postgres",
        description="How workers learn of new tasks: by notifications of PostgreSQL, or by messages of Azure Service "
        "Bus. Orchestrators and workers need the same value",
    )
    service_bus_fqdn: str | None = Field(
        None,
        max_length=253,
        description="Host name of the Service Bus namespace, such as example.servicebus.windows.net; used with the "
        "managed identity",
    )
    service_bus_namespace: str | None = Field(
        None,
        max_length=50,
        description="Name of the Service Bus namespace in the public cloud, instead of SERVICE_BUS_FQDN",
    )
    service_bus_connection_string: str | None = Field(
        None,
        repr=False,
        max_length=2000,
        description="Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…, instead of the managed identity; never "
        "logged",
    )
    service_bus_submitter: str | None = Field(
        None,
        max_length=64,
        description="Recorded as `submitted_by` of all submissions from the Service Bus queue JOB_QUEUE_NAME; by "
        "default the submitter that the message names",
    )
    worker_queue: Names = Field(DEFAULT_QUEUES, description="Queues from which a worker takes tasks")
    default_queue: Name = Field(
        "dag-worker-tasks", description="Queue of tasks whose workflow and handler name no queue"
    )
    known_queues: Names = Field(DEFAULT_QUEUES, description="Queues that a workflow may use")
    dag_callback_url: str | None = Field(
        None,
        max_length=512,
        description="https://… of the API of a platform. `dagmaster worker` then reaches the platform over HTTP, with "
        "DAGMASTER_KEY, and needs no database; http://… is allowed for loopback addresses",
    )
    dag_callback_insecure: bool = Field(
        False,
        description="Allow DAG_CALLBACK_URL with http at non-loopback addresses: anyone who can read the network "
        "traffic can read the key and all data of tasks",
    )
    worker_type: str = Field("general", description="A label that is shown with the worker; it has no other effect")
    worker_slots: PositiveInt = Field(
        100, le=10_000, description="Maximum number of async handlers that one worker runs at the same time"
    )
    worker_processes: PositiveInt = Field(
        2,
        le=1_000,
        description="Maximum number of plain handlers that one worker runs at once, each in a child process",
    )
    worker_queue_concurrency: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Maximum number of tasks of a queue that one worker runs at once, such as "
        "`container-tasks=2,functionapp-tasks=8`. WORKER_SLOTS and WORKER_PROCESSES also apply, to all queues together",
    )
    worker_memory_mb: PositiveInt = Field(
        4096, le=16_000_000, description="Memory limit of the child process of a plain handler, in MB"
    )
    worker_executor: Literal["processes", "dask"] = Field(
        "processes",
        description="Where plain handlers run: in child processes of the worker, or in child processes on the machines "
        "of a Dask cluster",
    )
    dask_scheduler_address: str | None = Field(
        None, max_length=512, description="tls://… or tcp://… of the scheduler of a Dask cluster, with its port"
    )
    dask_slots: int = Field(
        0,
        ge=0,
        le=10_000,
        description="Maximum number of plain handlers that one worker runs on the Dask cluster at once; 0: as many as "
        "the cluster has threads",
    )
    dask_tls_ca: Path | None = Field(None, description="File with the certificates that the Dask cluster trusts (PEM)")
    dask_tls_cert: Path | None = Field(
        None, description="File with the certificate of this worker as a client of the Dask cluster (PEM)"
    )
    dask_tls_key: Path | None = Field(None, description="File with the private key of DASK_TLS_CERT (PEM)")
    dask_insecure: bool = Field(
        False,
        description="Allow DASK_SCHEDULER_ADDRESS with tcp:// at non-loopback addresses: everyone who reaches the "
        "cluster can run programs on it and read all data of tasks",
    )
    worker_poll_interval: Seconds = Field(
        2.0,
        description="Seconds between polls if no notification arrives; the actual interval is random, between half "
        "of this value and the whole value. With TRANSPORT=servicebus the default is 10. A worker over HTTP uses at "
        "least 120",
    )
    task_lease_sec: Seconds = Field(60.0, description="A running task whose lease is not renewed for this long is lost")
    lease_renew_sec: Seconds = Field(
        15.0, description="Seconds between the heartbeats of a worker, which also renew its leases"
    )
    shutdown_grace_sec: Seconds = Field(
        30.0, description="Seconds that handlers may still run after their worker was asked to stop"
    )
    unknown_handler_timeout_sec: float = Field(
        600.0,
        ge=0,
        le=2_592_000,
        description="How long a node waits for a live process that knows its handler and queue; then it fails. A "
        "message for an unknown workflow waits as long, then becomes a dead letter",
    )
    max_losses: PositiveInt = Field(
        5, le=1_000, description="Maximum number of retries of a node after lost workers and unavailable services"
    )

    workflow_folders: Annotated[tuple[Path, ...], NoDecode] = Field(
        (), description="Folders with additional workflow files"
    )
    max_yaml_bytes: PositiveInt = Field(262_144, le=16_777_216, description="Maximum size of a workflow file")
    max_nodes: PositiveInt = Field(500, le=10_000, description="Maximum number of nodes of a workflow")
    max_fan_out: PositiveInt = Field(100_000, le=1_000_000, description="Maximum number of children of a fan_out")
    max_inputs_bytes: PositiveInt = Field(
        262_144, le=16_777_216, description="Maximum size of the inputs of a submission"
    )
    max_params_bytes: PositiveInt = Field(
        16_777_216,
        le=16_777_216,
        description="Maximum size of the params of a task; params above 256 KB are stored as a payload",
    )
    template_timeout_sec: float = Field(
        2.0,
        gt=0,
        le=60,
        description="Seconds of CPU time that the templates of one field of a node, such as its params, may use "
        "together; if they need more, the node fails",
    )

    auth_enabled: bool = Field(
        False,
        description="Callers need an API key or an OIDC token. If false, every caller of the API is an administrator, "
        "and servers listen on loopback only, unless API_INSECURE, GATEWAY_INSECURE or SERVING_INSECURE is true",
    )
    oidc_issuer: str | None = Field(
        None,
        max_length=512,
        description="https://… of the issuer of OIDC tokens, exactly as in their claim `iss`; requires OIDC_AUDIENCE",
    )
    oidc_audience: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Audiences, separated by commas, one of which a token must name in its claim `aud`"
    )
    oidc_jwks_url: str | None = Field(
        None,
        max_length=512,
        description="https://… of the issuer's public keys (JWKS); by default that of its discovery document",
    )
    oidc_roles_claim: Name = Field(
        "roles", description="Claim of a token with its roles; a dot separates nested names, as in `realm_access.roles`"
    )
    oidc_roles: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Roles and the scopes that they give, such as `map-readers=viewer,hub=b2b:ddh`. By default a role "
        "gives the scope of the same name, with or without the prefix `dagmaster.`",
    )
    oidc_name_claim: Name = Field(
        "sub",
        description="Claim of a token that is recorded as the actor; a claim other than `sub` must be unique, and "
        "users must not be able to change it",
    )

    oidc_client_id: str | None = Field(
        None,
        max_length=256,
        description="Id of this platform at OIDC_ISSUER; with it, people can sign in to the web UI at the issuer. "
        "Register the redirect URI https://…/api/v1/session/oidc/callback",
    )
    oidc_client_secret: str | None = Field(
        None, repr=False, description="Secret of OIDC_CLIENT_ID, if the issuer requires one; never logged"
    )
    oidc_scope: Name = Field(
        "openid profile", description="OIDC scopes that the web UI requests, separated by spaces; must include `openid`"
    )
    session_hours: float = Field(
        12.0,
        gt=0,
        le=720,
        description="The session of a browser ends after this many hours, or earlier if the key or the token with "
        "which it began becomes invalid",
    )

    api_enabled: bool = Field(True, description="The process of an orchestrator also serves the API")
    api_host: str = Field(
        "127.0.0.1", description="Address on which the API listens; non-loopback addresses need AUTH_ENABLED"
    )
    api_port: PortOrAny = Field(8000, description="Port of the API; 0 takes any free port")
    api_insecure: bool = Field(
        False,
        description="Allow the API on non-loopback addresses without authentication: anyone who reaches it is an "
        "administrator",
    )
    health_enabled: bool = Field(
        True, description="A worker, or an orchestrator without the API, serves health probes over HTTP"
    )
    health_host: str = Field(
        "127.0.0.1",
        description="Address on which health probes are served; must be loopback unless HEALTH_INSECURE is true",
    )
    health_port: PortOrAny = Field(
        8002,
        description="Port for health probes; if it is 0 or already in use, any free port is taken",
    )
    health_insecure: bool = Field(
        False,
        description="Allow health probes on non-loopback addresses; anyone who reaches the port sees which tasks run",
    )
    serving_enabled: bool = Field(True, description="`dagmaster up` also starts the map server: STAC API, tiles, files")
    gateway_enabled: bool = Field(True, description="`dagmaster up` also runs the gateway")
    gateway_host: str = Field(
        "127.0.0.1", description="Address on which the gateway listens; non-loopback addresses need AUTH_ENABLED"
    )
    gateway_port: PortOrAny = Field(8001, description="Port of the gateway; 0 takes any free port")
    gateway_insecure: bool = Field(
        False,
        description="Allow the gateway on non-loopback addresses without authentication: anyone who reaches it is an "
        "administrator",
    )
    external_database_url: str | None = Field(
        None,
        repr=False,
        description="postgresql://… of a second database, into which `metadata.publish_external` writes the layers of "
        "public data",
    )
    gateway_database_url: str | None = Field(
        None,
        repr=False,
        description="Connection string of the gateway's own database role, which `dagmaster db gateway-role` prints",
    )
    gateway_key: str | None = Field(
        None,
        repr=False,
        description="API key with the scope gateway, with which the gateway reports when keys were used",
    )
    gateway_timeout_sec: Seconds = Field(
        30.0, description="The gateway waits this long for the response of an orchestrator"
    )
    gateway_rate_per_second: float = Field(
        20.0, gt=0, le=100_000, description="Requests per second that one caller may send to the gateway on average"
    )
    gateway_burst: PositiveInt = Field(
        100, le=1_000_000, description="Requests that one caller may send to the gateway at once"
    )
    orchestrator_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="URLs of orchestrators' APIs, separated by commas, to which the gateway forwards requests"
    )
    worker_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="URLs of workers' health endpoints, separated by commas, which operators reach via the gateway"
    )
    legacy_url: str | None = Field(
        None,
        max_length=512,
        description="http(s)://… of the old system, which this platform replaces; some requests of the old API are "
        "forwarded to it. If it is not set, nothing is forwarded",
    )
    legacy_key: str | None = Field(
        None, repr=False, description="Function key of the old system, sent to it as x-functions-key; never logged"
    )
    legacy_shares: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Percentages of submissions to the old API that are forwarded to the old system, by job type, such "
        "as `process_large_raster=25,raster_validate=0,*=100`; `*` is every other job type. A job type without a "
        "percentage is not forwarded",
    )
    legacy_read_only: bool = Field(
        False, description="Forward to the old system only requests that read jobs which this platform does not know"
    )
    legacy_timeout_sec: Seconds = Field(30.0, description="Seconds to wait for a response of the old system")
    serving_host: str = Field(
        "127.0.0.1",
        description="Address on which the map server listens; non-loopback addresses need AUTH_ENABLED",
    )
    serving_port: PortOrAny = Field(8003, description="Port of the map server; 0 takes any free port")
    serving_urls: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="URLs of map servers, separated by commas, to which the API forwards requests for maps, so that "
        "web UI, API and maps have one address; `dagmaster up` sets it",
    )
    serving_grids: str = Field(
        "WebMercatorQuad,WorldCRS84Quad,WGS1984Quad,WorldMercatorWGS84Quad,EuropeanETRS89_LAEAQuad,UTM31WGS84Quad,"
        "UPSArcticWGS84Quad,UPSAntarcticWGS84Quad,NZTM2000Quad,CanadianNAD83_LCC",
        description="Tile grids, by their names in morecantile, separated by commas; WebMercatorQuad is always "
        "included",
    )
    serving_insecure: bool = Field(
        False,
        description="Allow the map server on non-loopback addresses without authentication: anyone who reaches it may "
        "see what viewers see",
    )
    public_url: str | None = Field(
        None,
        max_length=512,
        description="http(s)://… at which clients reach the maps; every link to them begins with this URL",
    )
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="IP addresses or networks, separated by commas, of proxies in front of the API or the map server: "
        "for their requests, X-Forwarded-For and X-Forwarded-Proto name the client and its scheme",
    )
    stac_href_prefixes: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="URLs, separated by commas, below which files of published STAC documents may be, in addition "
        "to the served zones, such as https://data.example.org/naip/",
    )
    allow_rebuild: bool = Field(
        False,
        description="Development only: allow `dagmaster db rebuild` and the API to drop the whole schema and deploy it "
        "again",
    )

    storage_folder: Path | None = Field(
        None,
        description="Folder of stored objects, with a folder for each zone; by default `storage` in the data folder",
    )
    bronze_folder: Path | None = Field(None, description="Folder of raw data, if it is not in STORAGE_FOLDER")
    silver_folder: Path | None = Field(
        None, description="Folder of processed data and intermediate files, if it is not in STORAGE_FOLDER"
    )
    external_folder: Path | None = Field(None, description="Folder of public data, if it is not in STORAGE_FOLDER")
    storage_backend: StorageBackend = Field(
        "folder",
        description="Where the zones are stored: in folders, containers of an Azure storage account, or S3 buckets",
    )
    bronze_backend: StorageBackend | None = Field(None, description="Backend of raw data, if it is not STORAGE_BACKEND")
    silver_backend: StorageBackend | None = Field(
        None, description="Backend of processed data and intermediate files, if it is not STORAGE_BACKEND"
    )
    external_backend: StorageBackend | None = Field(
        None, description="Backend of public data, if it is not STORAGE_BACKEND"
    )
    scratch_folder: Path | None = Field(
        None,
        description="Folder for large files before they are uploaded to an object store; by default `scratch` in the "
        "data folder",
    )
    azure_storage_account_name: str | None = Field(
        None, max_length=24, description="Azure storage account of the zones that are in Azure"
    )
    bronze_azure_account: str | None = Field(
        None, max_length=24, description="Azure storage account of raw data, if it is not AZURE_STORAGE_ACCOUNT_NAME"
    )
    silver_azure_account: str | None = Field(
        None,
        max_length=24,
        description="Azure storage account of processed data, if it is not AZURE_STORAGE_ACCOUNT_NAME",
    )
    external_azure_account: str | None = Field(
        None, max_length=24, description="Azure storage account of public data, if it is not AZURE_STORAGE_ACCOUNT_NAME"
    )
    azure_storage_endpoint: str = Field(
        "https://{account}.blob.core.windows.net",
        max_length=512,
        description="URL of the blob service, with {account} for the name of the account; another one for sovereign "
        "clouds, or for Azurite: http://127.0.0.1:10000/{account}",
    )
    azure_storage_account_key: str | None = Field(
        None,
        repr=False,
        max_length=512,
        description="Key of Azurite's account devstoreaccount1, for tests; other accounts are reached with the managed "
        "identity; never logged",
    )
    s3_endpoint: str | None = Field(
        None, max_length=512, description="http(s)://… of an S3-compatible store; by default AWS"
    )
    s3_region: str | None = Field(
        None, max_length=64, description="Region of the buckets; by default that of the AWS configuration"
    )
    s3_access_key_id: str | None = Field(
        None,
        max_length=256,
        description="Access key for S3; by default the credentials that AWS tools find: environment, profile, role",
    )
    s3_secret_access_key: str | None = Field(
        None, repr=False, max_length=512, description="The secret of S3_ACCESS_KEY_ID; never logged"
    )
    s3_path_style: bool | None = Field(
        None, description="Name the bucket in the path of a URL, not in its host; by default true if S3_ENDPOINT is set"
    )
    storage_ca_file: Path | None = Field(
        None, description="PEM file with the certificate authorities of object stores, if they are private ones"
    )
    bronze_container: Name = Field("bronze", description="Default container of raw data")
    silver_container: Name = Field("silver", description="Default container of processed data")
    external_container: Name = Field("external", description="Default container of public data")
    external_url: str | None = Field(
        None,
        max_length=512,
        description="Public URL of the external zone, http(s)://…; its objects are at EXTERNAL_URL/CONTAINER/BLOB. "
        "By default the map server serves them",
    )
    exporter: Literal["copy", "data_factory"] = Field(
        "copy",
        description="What copies public versions to the external zone: workers, or a pipeline of Azure Data Factory",
    )
    adf_subscription_id: str | None = Field(
        None, max_length=100, description="Azure subscription of the data factory; for EXPORTER=data_factory"
    )
    adf_resource_group: str | None = Field(
        None, max_length=100, description="Resource group of the data factory; for EXPORTER=data_factory"
    )
    adf_factory_name: str | None = Field(
        None, max_length=100, description="Name of the data factory; for EXPORTER=data_factory"
    )
    adf_pipeline_name: str | None = Field(
        None, max_length=140, description="Name of the pipeline that copies objects; for EXPORTER=data_factory"
    )
    adf_poll_sec: Seconds = Field(15.0, description="Seconds between polls of a pipeline run")
    adf_url: str = Field(
        "https://management.azure.com",
        max_length=512,
        description="URL of Azure Resource Manager; another one for sovereign clouds",
    )
    azure_client_id: str | None = Field(
        None,
        max_length=100,
        description="Client id of a user-assigned managed identity; by default the system-assigned one",
    )
    identity_endpoint: str | None = Field(
        None,
        max_length=512,
        description="URL from which tokens of the managed identity are obtained; set by Azure App Service and "
        "Container Apps; by default the metadata service of the virtual machine",
    )
    identity_header: str | None = Field(
        None, repr=False, description="Secret that IDENTITY_ENDPOINT requires; set by Azure; never logged"
    )
    approval_by_second_person: bool = Field(
        False, description="The submitter of a version may not approve it: another reviewer must"
    )
    review_webhook_url: str | None = Field(
        None,
        repr=False,
        max_length=512,
        description="http(s)://…; receives the versions that wait for a review as JSON",
    )
    purge_days: float = Field(
        90,
        ge=0,
        le=36_500,
        allow_inf_nan=False,
        description="Data of revisions that were rejected, superseded or deleted more than this many days ago is "
        "removed; 0 keeps it",
    )
    audit_retention_days: float = Field(
        0,
        ge=0,
        le=36_500,
        allow_inf_nan=False,
        description="Entries of the audit log, which is also the history of assets, are deleted after this many days; "
        "the newest entry of each asset stays; 0 keeps all",
    )
    allow_local_sources: bool = Field(False, description="Allow jobs to read files on the worker's machine by path")
    allow_https_sources: bool = Field(
        False,
        description="Allow jobs to download their source from public web servers by https URL; "
        "`dagmaster process` also downloads such URLs if this is not set, but not if it is set to false",
    )
    allow_vsi_sources: bool = Field(False, description="Allow jobs to read GDAL /vsi paths of object stores")
    allow_object_sources: bool = Field(
        False,
        description="Allow jobs to name a source as s3://BUCKET/KEY or az://CONTAINER/BLOB, and so to read every "
        "object that the platform can read; `dagmaster process` also copies such objects if this is not set, but not "
        "if it is set to false",
    )
    allow_private_sources: bool = Field(
        False,
        description="Allow `dagmaster process` to download from private and loopback addresses; addresses of metadata "
        "services are never allowed",
    )
    max_download_mb: PositiveInt = Field(
        50_000, description="Maximum size of a file that a job or `dagmaster process` downloads, in MB"
    )
    max_upload_mb: PositiveInt = Field(
        100_000, le=10_000_000, description="Maximum size of a file that is uploaded to the bronze zone, in MB"
    )
    upload_chunk_mb: PositiveInt = Field(
        64, le=100_000, description="Maximum size of one request of an upload, in MB; larger files are sent in parts"
    )
    max_open_uploads: PositiveInt = Field(
        100, le=100_000, description="Maximum number of unfinished uploads of one caller"
    )
    upload_expiry_hours: float = Field(
        24,
        gt=0,
        le=8_760,
        allow_inf_nan=False,
        description="An unfinished upload is removed if it receives no bytes for this many hours",
    )
    catalog_enabled: bool = Field(
        True, description="Deploy the STAC catalogue (pgSTAC, requires PostGIS) in addition to the engine's tables"
    )

    crash_point: str | None = Field(None, description="Tests only: the named point at which the process kills itself")

    @field_validator(
        "run_mode",
        "log_level",
        "log_format",
        "storage_backend",
        "bronze_backend",
        "silver_backend",
        "external_backend",
        mode="before",
    )
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("janitor_webhook_url", "review_webhook_url")
    @classmethod
    def _web_url(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "http://none")
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise ValueError("must be an http or https URL without user name and password")
        return value

    @field_validator("orchestrator_urls", "worker_urls", "serving_urls", mode="before")
    @classmethod
    def _urls(cls, value: object) -> object:
        urls = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        return tuple(cls._base_url(url) for url in urls) if isinstance(urls, list) else urls

    @field_validator(
        "azure_storage_account_name", "bronze_azure_account", "silver_azure_account", "external_azure_account"
    )
    @classmethod
    def _account(cls, value: str | None) -> str | None:
        if value is not None and not _ACCOUNT.fullmatch(value):
            raise ValueError("must be the name of a storage account: 3 to 24 lower-case letters and digits")
        return value

    @field_validator("dask_scheduler_address")
    @classmethod
    def _scheduler_address(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            is_bare = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
            if parts.scheme not in {"tcp", "tls"} or not parts.hostname or not parts.port or not is_bare:
                raise ValueError("must be tls://HOST:PORT or tcp://HOST:PORT")
        return value

    @field_validator("service_bus_fqdn", "service_bus_namespace")
    @classmethod
    def _service_bus_name(cls, value: str | None, info: ValidationInfo) -> str | None:
        pattern = _NAMESPACE if info.field_name == "service_bus_namespace" else _HOST
        if value is not None and not pattern.fullmatch(value):
            raise ValueError("must be the name of a Service Bus namespace")
        return value

    @field_validator("azure_storage_endpoint")
    @classmethod
    def _endpoint_of_account(cls, value: str) -> str:
        if "{account}" not in value or "{" in value.replace("{account}", ""):
            raise ValueError("must be a URL with {account}, and without other braces")
        cls._base_url(value.replace("{account}", "account"))
        return value.rstrip("/")

    @field_validator(
        "public_url",
        "callback_result_url",
        "legacy_url",
        "external_url",
        "adf_url",
        "dag_callback_url",
        "s3_endpoint",
        "otel_exporter_otlp_endpoint",
    )
    @classmethod
    def _base_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(cls._web_url(value) or "")
        if parts.query or parts.fragment:
            raise ValueError("must be a URL without query and fragment")
        return value.rstrip("/")

    @field_validator("oidc_issuer", "oidc_jwks_url", "adf_url")
    @classmethod
    def _secure_url(cls, value: str | None) -> str | None:
        if value is not None and not _is_secure(cls._web_url(value) or ""):
            raise ValueError("must be an https URL")
        return value

    @field_validator("oidc_roles")
    @classmethod
    def _scopes_of_roles(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _checked_pairs(value, _ROLE, "ROLE=SCOPE")

    @field_validator("legacy_shares")
    @classmethod
    def _percentages(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _checked_pairs(value, _PERCENTAGE, "JOB_TYPE=PERCENT", unique="a job type")

    @field_validator("worker_queue_concurrency")
    @classmethod
    def _queue_limits(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _checked_pairs(value, _CONCURRENCY, "QUEUE=COUNT", unique="a queue")

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            ip_network(network, strict=False)
        return value

    @field_validator(
        "worker_queue",
        "known_queues",
        "stac_href_prefixes",
        "trusted_proxies",
        "oidc_audience",
        "oidc_roles",
        "legacy_shares",
        "worker_queue_concurrency",
        mode="before",
    )
    @classmethod
    def _parts(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("stac_href_prefixes")
    @classmethod
    def _url_prefixes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for prefix in value:
            parts = urlsplit(prefix)
            if not parts.scheme or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
                raise ValueError("must be URLs with a scheme and a host, and without user name, query and fragment")
        return value

    @field_validator("workflow_folders", mode="before")
    @classmethod
    def _folders(cls, value: object) -> object:
        return tuple(Path(part) for part in value.split(":") if part) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        conflicts = [
            f"{short.upper()}={getattr(self, short):g} must be shorter than {long.upper()}={getattr(self, long):g}, "
            f"or {consequence}"
            for short, long, consequence in _MUST_BE_SHORTER
            if getattr(self, short) >= getattr(self, long)
        ]
        if self.oidc_issuer and not self.oidc_audience:
            conflicts.append("OIDC_ISSUER requires OIDC_AUDIENCE, or tokens for other services would be accepted")
        if self.oidc_client_id and not self.oidc_issuer:
            conflicts.append("OIDC_CLIENT_ID requires OIDC_ISSUER, at which people sign in")
        if self.dag_callback_url and not (self.dag_callback_insecure or _is_secure(self.dag_callback_url)):
            conflicts.append("DAG_CALLBACK_URL must begin with https://, unless DAG_CALLBACK_INSECURE=true")
        if "openid" not in self.oidc_scope.split():
            conflicts.append("OIDC_SCOPE must include openid, or the issuer sends no ID token")
        if foreign := self.queue_concurrency.keys() - set(self.worker_queue):
            conflicts.append(
                f"WORKER_QUEUE_CONCURRENCY names {', '.join(sorted(foreign))}, which WORKER_QUEUE does not name"
            )
        addresses = (self.service_bus_fqdn, self.service_bus_namespace, self.service_bus_connection_string)
        if self.transport == "servicebus" and sum(address is not None for address in addresses) != 1:
            conflicts.append(
                "TRANSPORT=servicebus requires exactly one of SERVICE_BUS_FQDN, SERVICE_BUS_NAMESPACE and "
                "SERVICE_BUS_CONNECTION_STRING"
            )
        conflicts += self._storage_conflicts()
        conflicts += self._cluster_conflicts()
        conflicts += self._identity_conflicts()
        if conflicts:
            raise ValueError("\n".join(conflicts))
        return self

    def _cluster_conflicts(self) -> Iterator[str]:
        address, files = self.dask_scheduler_address, (self.dask_tls_ca, self.dask_tls_cert, self.dask_tls_key)
        if self.worker_executor == "dask" and address is None:
            yield "WORKER_EXECUTOR=dask requires DASK_SCHEDULER_ADDRESS"
        if address is not None and address.startswith("tls://") and not all(files):
            yield "DASK_SCHEDULER_ADDRESS with tls:// requires DASK_TLS_CA, DASK_TLS_CERT and DASK_TLS_KEY"
        is_readable = address is not None and address.startswith("tcp://") and not is_loopback(_host(address))
        if is_readable and not self.dask_insecure:
            yield "DASK_SCHEDULER_ADDRESS must begin with tls://, unless DASK_INSECURE=true"

    def _identity_conflicts(self) -> Iterator[str]:
        if self.use_managed_identity and _PASSWORD.search(self.dsn() or ""):
            yield "USE_MANAGED_IDENTITY=true uses tokens: remove the password from DATABASE_URL or POSTGRES_PASSWORD"
        if bool(self.db_admin_user) != bool(self.db_admin_managed_identity_client_id):
            yield "DB_ADMIN_MANAGED_IDENTITY_CLIENT_ID requires DB_ADMIN_USER, and the other way round"
        if self.db_admin_user and not self.use_managed_identity:
            yield "DB_ADMIN_USER requires USE_MANAGED_IDENTITY=true"

    def _storage_conflicts(self) -> Iterator[str]:
        in_azure = [zone for zone in ZONES if self.backend_of(zone) == "azure"]
        if without_account := [zone for zone in in_azure if self.azure_account_of(zone) is None]:
            yield f"AZURE_STORAGE_ACCOUNT_NAME is required, because the zone {without_account[0]} is in Azure"
        accounts = {account for zone in in_azure if (account := self.azure_account_of(zone))}
        if self.azure_storage_account_key and (accounts | {self.azure_storage_account_name}) - {AZURITE_ACCOUNT, None}:
            yield f"AZURE_STORAGE_ACCOUNT_KEY is for {AZURITE_ACCOUNT} only: use a managed identity for other accounts"
        if self.azure_storage_endpoint.startswith("http:") and accounts - {AZURITE_ACCOUNT}:
            yield "AZURE_STORAGE_ENDPOINT must be an https URL, or others could read signatures"
        places = {(self.azure_account_of(zone), getattr(self, f"{zone}_container")) for zone in in_azure}
        if len({container for _, container in places}) < len(places):
            yield (
                "zones in different storage accounts need containers with different names: GDAL identifies a container "
                "by its name"
            )
        if bool(self.s3_access_key_id) != bool(self.s3_secret_access_key):
            yield "S3_ACCESS_KEY_ID requires S3_SECRET_ACCESS_KEY, and the other way round"

    @property
    def queue_concurrency(self) -> dict[str, int]:
        """The maximum number of tasks that one worker runs at the same time, for each queue that has such a limit."""
        pairs = (pair.rpartition("=") for pair in self.worker_queue_concurrency)
        return {queue: int(count) for queue, _, count in pairs}

    def backend_of(self, zone: str) -> StorageBackend:
        backend: StorageBackend | None = getattr(self, f"{zone}_backend")
        return backend or self.storage_backend

    def azure_account_of(self, zone: str) -> str | None:
        account: str | None = getattr(self, f"{zone}_azure_account")
        return account or self.azure_storage_account_name

    @property
    def may_expose_api(self) -> bool:
        """Whether the API may listen on non-loopback addresses."""
        return self.auth_enabled or self.api_insecure

    @property
    def may_expose_gateway(self) -> bool:
        """Whether the gateway may listen on non-loopback addresses."""
        return self.auth_enabled or self.gateway_insecure

    @property
    def may_expose_maps(self) -> bool:
        """Whether the map server may listen on non-loopback addresses."""
        return self.auth_enabled or self.serving_insecure

    def insecure_endpoints(self, names: Sequence[str] = SERVERS) -> list[str]:
        """The servers that may listen on non-loopback addresses without authentication."""
        return [] if self.auth_enabled else [name for name in names if getattr(self, f"{name}_insecure")]

    def authentication_notice(self, names: Sequence[str] = SERVERS) -> str | None:
        """The notice that servers print when they start; None if authentication is enabled."""
        if self.auth_enabled:
            return None
        if insecure := self.insecure_endpoints(names):
            insecure_settings = " and ".join(f"{name.upper()}_INSECURE=true" for name in insecure)
            return f"authentication is disabled and {insecure_settings}: others can reach the platform, and need no key"
        return (
            "authentication is disabled: only this machine can reach the platform, and every caller is an administrator"
        )

    def home(self) -> Path:
        """The data folder: the configured one, or the default of this user."""
        if self.data_folder:
            return self.data_folder.absolute()
        return self.default_home()

    @staticmethod
    def default_home() -> Path:
        """The data folder of this user if none is configured."""
        return _ROOT_HOME if os.geteuid() == 0 else Path.home() / ".local/share/dagmaster"

    def credentials(self) -> Path:
        """The file with the keys that `dagmaster login` has stored."""
        if self.credentials_file:
            return self.credentials_file.absolute()
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return folder / "dagmaster/credentials.json"

    def dsn(self) -> str | None:
        """The URL of the configured database server, or None for the embedded one."""
        if self.database_url:
            return self.database_url
        if self.postgres_host is None:
            return None
        secret = f":{quote(self.postgres_password, safe='')}" if self.postgres_password else ""
        user, database = quote(self.postgres_user, safe=""), quote(self.postgres_db, safe="")
        return f"postgresql://{user}{secret}@{_in_a_url(self.postgres_host)}:{self.postgres_port}/{database}"


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _is_secure(url: str) -> bool:
    """Whether others on the network cannot read requests to a URL: it has https, or a host of this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def load(**overrides: Any) -> Settings:
    """Read the environment. The error names each variable with an invalid value, and what it accepts. Afterwards, the
    secrets among the values are redacted in all texts of the process."""
    try:
        loaded = Settings(**overrides)
        protect(secrets_of(loaded))
        return loaded
    except ValidationError as error:
        problems = problems_of(error, overrides)
    raise InvalidRequest(
        "; ".join(problems), code="settings.invalid", hint="correct these environment variables", problems=problems
    )


def secrets_of(settings: Settings) -> list[str]:
    """The secret part of each setting that is left out of `repr`: the password of a database, the query of a webhook,
    and the part of a key after its id."""
    values = {name: getattr(settings, name) for name, field in Settings.model_fields.items() if not field.repr}
    secrets = [_secret_in(name, value) for name, value in values.items() if isinstance(value, str)]
    return [form for secret in secrets if secret for form in (secret, unquote(secret))]


def _secret_in(name: str, value: str) -> str | None:
    if name.endswith("database_url") or name == "database_pooler_url":
        match = _PASSWORD.search(value)
        return next(filter(None, match.groups()), None) if match else None
    if name == "service_bus_connection_string":
        match = _SHARED_ACCESS.search(value)
        return match[1] if match else None
    if name.endswith("_url"):
        return value.partition("?")[2]
    return value.rpartition("_")[2] if value.startswith("dgm_") else value


def problems_of(error: ValidationError, overrides: Mapping[str, Any]) -> list[str]:
    """One line for each problem. Values that contradict each other are reported only if each of them is valid alone."""
    invalid = {str(name): mistake for mistake in error.errors() for name in mistake["loc"][:1]}
    if not invalid:
        return _conflicts(error)
    fields = {name: field for name, field in variables().items() if {name, name.lower()} & invalid.keys()}
    problems = [_problem(name, field, invalid.get(name) or invalid[name.lower()]) for name, field in fields.items()]
    defaults = {name: variables()[name.upper()].default for name in invalid}
    try:
        Settings(**{**overrides, **defaults})
    except ValidationError as other:
        problems += [line for line in _conflicts(other) if not any(variable in line for variable in fields)]
    return problems


def _problem(variable: str, field: FieldInfo, mistake: Mapping[str, Any]) -> str:
    """An invalid value, with the message of its validator, or else the values that the setting accepts."""
    has_message = mistake["type"] == "value_error"
    expected = str(mistake["ctx"]["error"]) if has_message else f"expected {kind_of(field)}"
    return f"{variable}{_shown(field, mistake['input'])}: {expected}"


def repaired(**overrides: Any) -> tuple[Settings, list[str]]:
    """Settings with defaults in place of invalid values, and the problems of these values: for a diagnosis, never for a
    running process. Afterwards, secrets are redacted as with `load`."""
    try:
        loaded = Settings(**overrides)
        protect(secrets_of(loaded))
        return loaded, []
    except ValidationError as error:
        bad = [str(mistake["loc"][0]) for mistake in error.errors() if mistake["loc"]]
        problems = problems_of(error, overrides)
    bad = bad or [*_CONFLICTING, *(name for pair in _MUST_BE_SHORTER for name in pair[:2])]
    settings, _ = repaired(**{**overrides, **{name: variables()[name.upper()].default for name in bad}})
    return settings, problems


def variables() -> dict[str, FieldInfo]:
    """Every setting by the name of its environment variable."""
    return {field.alias or name.upper(): field for name, field in Settings.model_fields.items()}


def kind_of(field: FieldInfo) -> str:
    """The values that a setting accepts, in words."""
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not NoneType]
    if get_origin(field.annotation) is Literal:
        return ", ".join(str(kind) for kind in kinds)
    if get_origin(kinds[0]) is Literal:
        return ", ".join(map(str, get_args(kinds[0])))
    if get_origin(field.annotation) is tuple:
        return "paths, separated by `:`" if kinds[0] is Path else "values, separated by `,`"
    words = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path"}
    return words[kinds[0]] + "".join(sorted(_bound(note) for note in field.metadata))


def warnings() -> list[str]:
    """A warning for each environment variable that has the prefix of settings and is not a setting."""
    valid = variables()
    unknown = sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in valid)
    return [f"{name} is not a setting{_did_you_mean(name.upper(), valid)}" for name in unknown]


def _checked_pairs(
    pairs: tuple[str, ...], pattern: re.Pattern[str], form: str, *, unique: str | None = None
) -> tuple[str, ...]:
    """The pairs KEY=VALUE if they match the pattern. `unique` is what a key names if it may be given only once."""
    if not all(map(pattern.fullmatch, pairs)):
        raise ValueError(f"must be pairs {form}, separated by commas")
    if unique and len({pair.partition("=")[0] for pair in pairs}) < len(pairs):
        raise ValueError(f"{unique} is given twice")
    return pairs


def _conflicts(error: ValidationError) -> list[str]:
    return [
        line for mistake in error.errors() if not mistake["loc"] for line in str(mistake["ctx"]["error"]).split("\n")
    ]


def _shown(field: FieldInfo, value: Any) -> str:
    """An invalid value for an error message; empty if the setting is a secret."""
    if not field.repr:
        return ""
    text = redact(",".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return f"={shortened(text, _MAX_SHOWN_LENGTH)}"


def _bound(note: Any) -> str:
    match note:
        case Gt(gt):
            return f" above {gt}"
        case Ge(ge):
            return f" from {ge}"
        case Le(le):
            return f" up to {le}"
    return ""


def _did_you_mean(name: str, names: Mapping[str, Any]) -> str:
    """The nearest setting. The prefix is ignored, because many users add it to settings that have none."""
    by_bare_name = {other.removeprefix(PREFIX): other for other in names}
    close = difflib.get_close_matches(name.removeprefix(PREFIX)[:100], by_bare_name, n=1)
    return f"; did you mean {by_bare_name[close[0]]}?" if close else ""


def _in_a_url(host: str) -> str:
    """The host as a part of a URL: an IPv6 address in brackets, the folder of a socket percent-encoded."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else quote(host, safe="[]:,")
