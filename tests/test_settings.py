"""Invalid settings are refused at the start; one error lists all of them by name."""

import pytest

from dagmaster import settings
from dagmaster.errors import InvalidRequest

pytestmark = pytest.mark.requirement("M2")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in settings.variables():
        monkeypatch.delenv(name, raising=False)


def refusal(monkeypatch, **variables: str) -> list[str]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest) as refused:
        settings.load()
    assert refused.value.code == "settings.invalid"
    return refused.value.facts["problems"]


def test_the_defaults_are_valid():
    assert settings.load().task_lease_sec == 60.0


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "0", "-1", "soon", "1e9"])
def test_a_lease_that_is_not_a_positive_number_is_refused(monkeypatch, value):
    assert refusal(monkeypatch, TASK_LEASE_SEC=value) == [
        f"TASK_LEASE_SEC={value}: expected number above 0 up to 86400"
    ]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("MAX_FAN_OUT", "99999999999", "integer above 0 up to 1000000"),
        ("MAX_NODES", "1.5", "integer above 0 up to 10000"),
        ("API_PORT", "70000", "integer from 0 up to 65535"),
        ("HEALTH_PORT", "-1", "integer from 0 up to 65535"),
        ("POSTGRES_PORT", "0", "integer from 1 up to 65535"),
        ("LOG_LEVEL", "verbose", "debug, info, warning, error"),
        ("API_ENABLED", "maybe", "true or false"),
        ("WORKER_QUEUE", " , ", "values, separated by `,`"),
    ],
)
def test_an_invalid_value_is_reported_with_the_allowed_values(monkeypatch, name, value, expected):
    (problem,) = refusal(monkeypatch, **{name: value})

    assert problem.startswith(f"{name}=")
    assert problem.endswith(f": expected {expected}")


def test_contradicting_settings_are_refused(monkeypatch):
    problems = refusal(monkeypatch, HEARTBEAT_INTERVAL_SEC="60", ORPHAN_THRESHOLD_SEC="60", TASK_LEASE_SEC="5")

    assert problems == [
        "HEARTBEAT_INTERVAL_SEC=60 must be shorter than ORPHAN_THRESHOLD_SEC=60,"
        " or healthy orchestrators are considered dead",
        "LEASE_RENEW_SEC=15 must be shorter than TASK_LEASE_SEC=5, or healthy tasks are considered lost",
    ]


def test_the_janitor_must_wait_longer_than_the_orphan_threshold(monkeypatch):
    (problem,) = refusal(monkeypatch, JANITOR_PATIENCE_SEC="60", ORPHAN_THRESHOLD_SEC="60")

    assert problem.startswith("ORPHAN_THRESHOLD_SEC=60 must be shorter than JANITOR_PATIENCE_SEC=60")


@pytest.mark.parametrize("value", ["proxy.example.org", "*", "10.0.0.1,all", "10.0.0.0/40"])
def test_a_trusted_proxy_must_be_an_address_or_a_network(monkeypatch, value):
    (problem,) = refusal(monkeypatch, TRUSTED_PROXIES=value)

    assert problem.startswith("TRUSTED_PROXIES=")


def test_trusted_proxies_are_separated_by_commas(monkeypatch):
    monkeypatch.setenv("TRUSTED_PROXIES", "10.0.0.1, 192.168.0.0/16,::1")

    assert settings.load().trusted_proxies == ("10.0.0.1", "192.168.0.0/16", "::1")


def test_payloads_must_be_kept_longer_than_a_lease(monkeypatch):
    (problem,) = refusal(monkeypatch, PAYLOAD_GRACE_SEC="60", TASK_LEASE_SEC="60")

    assert problem.startswith("TASK_LEASE_SEC=60 must be shorter than PAYLOAD_GRACE_SEC=60")


@pytest.mark.parametrize("value", ["file:///etc", "nowhere", "http://", "https://me:secret@host/hook"])
def test_an_invalid_webhook_url_is_refused_without_repeating_it(monkeypatch, value):
    (problem,) = refusal(monkeypatch, JANITOR_WEBHOOK_URL=value)

    assert problem == "JANITOR_WEBHOOK_URL: must be an http or https URL without user name and password"


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e9", "long"])
def test_a_retention_that_is_not_a_valid_number_is_refused(monkeypatch, value):
    (problem,) = refusal(monkeypatch, RETENTION_DAYS=value)

    assert problem == f"RETENTION_DAYS={value}: expected number from 0 up to 36500"


def test_all_problems_are_reported_together(monkeypatch):
    """This includes contradictions between settings whose values are valid."""
    problems = refusal(
        monkeypatch,
        LOG_LEVEL="loud",
        API_PORT="x",
        TASK_LEASE_SEC="nan",
        LEASE_RENEW_SEC="500",
        ORPHAN_THRESHOLD_SEC="1",
    )

    assert [problem.partition("=")[0] for problem in problems] == [
        "LOG_LEVEL",
        "TASK_LEASE_SEC",
        "API_PORT",
        "HEARTBEAT_INTERVAL_SEC",
    ]


def test_a_secret_is_never_repeated_in_an_error(monkeypatch):
    monkeypatch.setenv("POSTGRES_PASSWORD", "hunter2")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:hunter2@host/db")

    problems = refusal(monkeypatch, LOG_LEVEL="password=hunter2", DEFAULT_QUEUE="x", API_PORT="9" * 200)
    monkeypatch.delenv("LOG_LEVEL")
    monkeypatch.delenv("API_PORT")

    assert "hunter2" not in str(problems)
    assert max(map(len, problems)) < 150
    assert "hunter2" not in repr(settings.load())


def test_a_refused_secret_is_not_repeated_in_the_error():
    with pytest.raises(InvalidRequest) as refused:
        settings.load(postgres_password=["hunter2"])

    assert refused.value.facts["problems"] == ["POSTGRES_PASSWORD: expected text"]


def test_an_empty_value_means_not_set_and_case_is_ignored(monkeypatch):
    monkeypatch.setenv("TASK_LEASE_SEC", "")
    monkeypatch.setenv("LOG_LEVEL", "WARNING")

    loaded = settings.load()

    assert (loaded.task_lease_sec, loaded.log_level) == (60.0, "warning")
    assert "task_lease_sec" not in loaded.model_fields_set


def test_unknown_variables_with_the_prefix_cause_a_warning(monkeypatch):
    for name in ("DAGMASTER_DATTA", "DAGMASTER_TASK_LEASE_SEC", "DAGMASTER_FROBNICATE", "DAGMASTER_DATA"):
        monkeypatch.setenv(name, "x")

    warnings = settings.warnings()

    assert warnings == [
        "DAGMASTER_DATTA is not a setting; did you mean DAGMASTER_DATA?",
        "DAGMASTER_FROBNICATE is not a setting",
        "DAGMASTER_TASK_LEASE_SEC is not a setting; did you mean TASK_LEASE_SEC?",
    ]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("db", "postgresql://dagmaster:p%40%2F@db:5432/dagmaster"),
        ("::1", "postgresql://dagmaster:p%40%2F@[::1]:5432/dagmaster"),
        ("/run/pg", "postgresql://dagmaster:p%40%2F@%2Frun%2Fpg:5432/dagmaster"),
    ],
)
def test_the_database_url_is_built_from_its_parts(monkeypatch, host, address):
    monkeypatch.setenv("POSTGRES_HOST", host)
    monkeypatch.setenv("POSTGRES_PASSWORD", "p@/")

    assert settings.load().dsn() == address


AZURE = {"STORAGE_BACKEND": "azure", "AZURE_STORAGE_ACCOUNT_NAME": "acme"}


@pytest.mark.parametrize(
    "environment",
    [
        {"LEASE_RENEW_SEC": "60", "TASK_LEASE_SEC": "5"},
        {"OIDC_ISSUER": "https://issuer.example"},
        {"OIDC_CLIENT_ID": "pages"},
        {"OIDC_SCOPE": "profile"},
        {"DAG_CALLBACK_URL": "http://platform.example"},
        {"WORKER_QUEUE_CONCURRENCY": "container-tasks=2", "WORKER_QUEUE": "functionapp-tasks"},
        {"TRANSPORT": "servicebus"},
        {"WORKER_EXECUTOR": "dask"},
        {"DASK_SCHEDULER_ADDRESS": "tls://cluster.example:8786"},
        {"DASK_SCHEDULER_ADDRESS": "tcp://cluster.example:8786"},
        {"USE_MANAGED_IDENTITY": "true", "DATABASE_URL": "postgresql://me:secret@host/db"},
        {"DB_ADMIN_USER": "admin"},
        {"STORAGE_BACKEND": "azure"},
        {"SILVER_BACKEND": "azure"},
        {**AZURE, "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"},
        {**AZURE, "AZURE_STORAGE_ENDPOINT": "http://acme.example/{account}"},
        {**AZURE, "BRONZE_AZURE_ACCOUNT": "raw", "BRONZE_CONTAINER": "same", "SILVER_CONTAINER": "same"},
        {"S3_ACCESS_KEY_ID": "id"},
        {"S3_SECRET_ACCESS_KEY": "secret"},
    ],
    ids=" ".join,
)
def test_settings_for_a_diagnosis_can_be_loaded_despite_contradictions(monkeypatch, environment):
    refused = refusal(monkeypatch, **environment)
    repaired, problems = settings.repaired(LOG_LEVEL="debug")

    assert repaired.log_level == "debug"
    assert problems == refused
