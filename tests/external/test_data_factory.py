"""The client of Azure Data Factory, against a local server with its documented API."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from dagmaster.errors import HandlerFailed, InvalidRequest, Unavailable
from dagmaster.handlers.export.data_factory import DataFactory
from dagmaster.handlers.export.exporter import PipelineCopy, Stopped, TransferOrder, WorkerCopy, open_exporter
from dagmaster.managed_identity import IdentityEndpoint, ManagedIdentity
from dagmaster.settings import Settings
from tests.external.data_factory import CANARY, FACTORY, IDENTITY_SECRET, SETTINGS, AzureLike, Fault, azure

pytestmark = [pytest.mark.requirement("A5"), pytest.mark.timeout(60)]

ORDER = TransferOrder("job-1", "dem/v0/r1", "silver", "external", "job-1/export/files.txt")


@pytest.fixture
def cloud() -> Iterator[AzureLike]:
    with azure() as state:
        yield state


def settings_of(cloud: AzureLike, **others: Any) -> Settings:
    endpoint = f"{cloud.url}/metadata/identity/oauth2/token"
    return Settings(**{**SETTINGS, "adf_url": cloud.url, "identity_endpoint": endpoint, **others})


class Pauses:
    """Records the requested pauses, and does not wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


def identity_of(cloud: AzureLike, **others: Any) -> ManagedIdentity:
    return ManagedIdentity(IdentityEndpoint.of(settings_of(cloud, **others), f"{cloud.url}/"))


def exporter_of(cloud: AzureLike, pauses: Pauses | None = None, **others: Any) -> PipelineCopy:
    sleep = (pauses or Pauses()).sleep
    factory = DataFactory(cloud.url, FACTORY, "copy-public", identity_of(cloud, **others), sleep)
    return PipelineCopy(factory, sleep, 0.01)


async def transfer(exporter: PipelineCopy, *, cancelled: bool = False, stopping: bool = False) -> str | None:
    return await exporter.transfer(ORDER, lambda: stopping, lambda: cancelled)


async def test_a_run_is_started_with_its_parameters_and_polled_until_its_end(cloud: AzureLike):
    run_id = await transfer(exporter_of(cloud))

    (run,) = cloud.runs
    assert (run_id, run.status) == (run.run_id, "Succeeded")
    assert run.parameters == {
        "export_id": "job-1",
        "edition": "dem/v0/r1",
        "source_container": "silver",
        "target_container": "external",
        "file_list": "job-1/export/files.txt",
    }
    assert cloud.requests == ["token", "query", "createRun", "get", "get", "get"]


@pytest.mark.parametrize("status", ["Failed", "Cancelled"])
async def test_a_run_that_fails_or_is_cancelled_fails_the_export_and_a_retry_starts_another(
    cloud: AzureLike, status: str
):
    cloud.statuses = ["InProgress", status]

    with pytest.raises(HandlerFailed) as failed:
        await transfer(exporter_of(cloud))

    assert failed.value.code == "adf.run-failed"
    assert f"ended as {status}" in failed.value.message
    assert "canary" not in str(failed.value), "the message of Azure is redacted"
    cloud.statuses = ["Succeeded"]
    assert await transfer(exporter_of(cloud)) == cloud.runs[1].run_id


async def test_after_throttling_and_server_errors_the_client_waits_as_long_as_the_server_requires(cloud: AzureLike):
    cloud.faults["createRun"].append(Fault(429, {"Retry-After": "17"}))
    cloud.faults["get"] += [Fault(503), Fault(429, {"Retry-After": "nonsense"}), Fault(500, {"Retry-After": "100000"})]
    pauses = Pauses()

    assert await transfer(exporter_of(cloud, pauses))

    assert len(cloud.runs) == 1
    assert 17.0 in pauses.seconds
    assert max(pauses.seconds) == 120.0


@pytest.mark.parametrize("fault", [Fault(None, is_done=True), Fault(500, is_done=True), Fault(200, is_done=True)])
async def test_a_lost_response_to_create_run_does_not_start_two_runs(cloud: AzureLike, fault: Fault):
    cloud.faults["createRun"].append(fault)

    run_id = await transfer(exporter_of(cloud))

    assert [run.run_id for run in cloud.runs] == [run_id]


@pytest.mark.parametrize("fault", [Fault(None), Fault(502)])
async def test_a_create_run_that_was_not_carried_out_is_repeated(cloud: AzureLike, fault: Fault):
    cloud.faults["createRun"].append(fault)

    assert await transfer(exporter_of(cloud)) == cloud.runs[0].run_id
    assert cloud.requests.count("createRun") == 2


async def test_the_run_of_an_attempt_whose_worker_died_is_found_on_any_page(cloud: AzureLike):
    for number in range(5):
        cloud.create({"export_id": f"other-{number}", "edition": "other/v0/r1"})
    with pytest.raises(Stopped):
        await transfer(exporter_of(cloud), stopping=True)

    run_id = await transfer(exporter_of(cloud))

    assert len(cloud.runs) == 6
    assert cloud.runs[5].run_id == run_id


async def test_a_cancelled_export_cancels_its_run_and_a_withdrawal_cancels_abandoned_runs(cloud: AzureLike):
    cloud.statuses = ["InProgress"] * 100
    with pytest.raises(Stopped):
        await transfer(exporter_of(cloud), cancelled=True)
    assert [run.status for run in cloud.runs] == ["Cancelled"]

    with pytest.raises(Stopped):
        await transfer(exporter_of(cloud), stopping=True)  # its worker stops, and the run continues
    cloud.create({"export_id": "job-9", "edition": "other/v0/r1"})
    assert await exporter_of(cloud).stop("dem/v0/r1") == 1
    assert [run.status for run in cloud.runs] == ["Cancelled", "Cancelled", "Queued"]


async def test_a_token_that_expires_or_is_refused_is_renewed(cloud: AzureLike):
    exporter = exporter_of(cloud)
    await transfer(exporter)
    assert cloud.tokens_given == 1
    cloud.valid_tokens.clear()  # revoked before it expired

    cloud.runs.clear()
    await transfer(exporter)

    assert (cloud.tokens_given, cloud.requests.count("unauthorized")) == (2, 1)


async def test_a_token_is_renewed_before_it_expires():
    now = [1000.0]
    with azure() as cloud:
        cloud.token_seconds = 1_000_000.0
        identity = ManagedIdentity(IdentityEndpoint.of(settings_of(cloud), f"{cloud.url}/"), clock=lambda: now[0])
        import httpx2

        async with httpx2.AsyncClient() as http:
            first = await identity.token(http)
            assert await identity.token(http) == first
            now[0] = 1e12
            assert await identity.token(http) != first


async def test_tokens_are_requested_with_a_header_in_app_service_and_without_one_on_a_machine(cloud: AzureLike):
    assert await transfer(exporter_of(cloud, identity_header=IDENTITY_SECRET))
    endpoint = IdentityEndpoint.of(settings_of(cloud, identity_header=IDENTITY_SECRET, azure_client_id="id-7"), "r")
    assert endpoint.params == {"resource": "r", "client_id": "id-7", "api-version": "2019-08-01"}
    assert IDENTITY_SECRET not in repr(endpoint)
    machine = IdentityEndpoint.of(Settings(), "r")
    assert machine.url == "http://169.254.169.254/metadata/identity/oauth2/token"


@pytest.mark.parametrize(
    ("where", "fault", "code"),
    [
        ("token", Fault(403), "azure.no-token"),
        ("query", Fault(403), "adf.forbidden"),
        ("createRun", Fault(404), "adf.refused"),
    ],
)
async def test_errors_have_a_hint_and_contain_no_token(cloud: AzureLike, where: str, fault: Fault, code: str):
    cloud.faults[where].append(fault)

    with pytest.raises((Unavailable, InvalidRequest)) as refused:
        await transfer(exporter_of(cloud))

    assert refused.value.code == code
    assert refused.value.hint
    assert CANARY not in repr(refused.value.__dict__)
    assert CANARY not in str(refused.value)


async def test_a_server_that_does_not_respond_is_unavailable(cloud: AzureLike):
    pauses = Pauses()
    factory = DataFactory("http://127.0.0.1:1", FACTORY, "copy-public", identity_of(cloud), pauses.sleep)

    with pytest.raises(Unavailable):
        await factory.runs({})

    assert pauses.seconds == [2.0, 4.0, 8.0, 16.0, 32.0]  # between six tries, not after the last one


def test_the_setting_chooses_the_exporter_and_names_what_is_missing():
    assert isinstance(open_exporter(Settings()), WorkerCopy)
    assert isinstance(open_exporter(Settings(**SETTINGS)), PipelineCopy)
    with pytest.raises(InvalidRequest) as refused:
        open_exporter(Settings(exporter="data_factory", adf_subscription_id="sub-1"))
    assert "ADF_RESOURCE_GROUP, ADF_FACTORY_NAME, ADF_PIPELINE_NAME" in refused.value.message
    with pytest.raises(ValueError, match="https"):
        Settings(adf_url="http://management.example.org")
