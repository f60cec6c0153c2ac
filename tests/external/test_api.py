"""The state of external copies over HTTP: who may see it, and who may repeat an export."""

import pytest

from dagmaster.database.assets.external_copies import PostgresExternalCopies
from dagmaster.orchestrator.external_copies import ExternalCopyChore
from dagmaster.settings import Settings
from tests.api.serving import V1, ok
from tests.api.test_assets import opened_api
from tests.external.kit import end, jobs

pytestmark = pytest.mark.requirement("A5", "C3", "X1")


async def test_the_state_and_the_urls_of_copies_are_shown_and_operators_can_repeat_an_export(
    catalog_database, tmp_path
):
    async with opened_api(catalog_database, tmp_path) as api:
        chore = ExternalCopyChore(Settings(), PostgresExternalCopies(catalog_database), api.kit.library)
        await api.published("public")

        async def external(caller: str = "admin"):
            return (await api.asset("floods-r1", caller))["versions"][0]["revisions"][0]["external"]

        async def export(caller: str):
            path = f"{V1}/assets/floods-r1/versions/0/export"
            return await api.client.post(path, json={"reason": "repaired"}, headers={"X-Caller": caller})

        assert (await external())["state"] == "due"
        await chore.run_once()
        (job,) = await jobs(api.kit)
        assert ((await external())["state"], (await external())["job_id"]) == ("running", str(job["job_id"]))
        assert ((await export("operator")).status_code, (await export("operator")).json()["code"]) == (
            409,
            "export.running",
        )
        await end(api.kit, job["job_id"], "failed")
        seen = await external()
        assert (seen["state"], seen["error"]) == ("failed", "it broke")
        partner = await external("ddh")
        assert (partner["state"], partner["error"], partner["job_id"]) == ("failed", None, None)

        assert {(await export(caller)).status_code for caller in ("reviewer", "viewer", "author", "ddh")} == {403}
        assert (await export("anonymous")).status_code == 401
        response = await ok(export("operator"))
        assert response["versions"][0]["revisions"][0]["external"]["state"] == "due"
        await chore.run_once()
        await end(api.kit, (await jobs(api.kit))[-1]["job_id"])

        done = await external()
        assert (done["state"], done["blob_path"]) == ("exported", "external/x")
        assert done["url"].endswith("/files/external/external/x")
        anyone = await external("viewer")
        assert (anyone["url"], anyone["blob_path"], anyone["job_id"]) == (done["url"], None, None)
        await chore.close()
