"""Assets over HTTP: submissions, lists, reviews, visibility, and the refusal of stale changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from httpx2 import AsyncClient, Response
from starlette.datastructures import Headers

from dagmaster.access.caller import ANONYMOUS, Caller, Scope
from dagmaster.assets.identity import asset_id_of
from dagmaster.web.authentication import Identity
from tests.api.serving import V1, app_of, client_of, ok, pages_of
from tests.operations.kit import Kit, opened

FLOODS = {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"}
TABLES = (
    "platforms",
    "geospatial_assets",
    "asset_versions",
    "asset_revisions",
    "asset_submissions",
    "asset_events",
    "stac_documents",
    "dag_jobs",
    "dag_job_events",
)
CALLERS = {
    "admin": Caller("root", frozenset({Scope.ADMIN})),
    "operator": Caller("ops", frozenset({Scope.OPERATOR})),
    "reviewer": Caller("rita", frozenset({Scope.REVIEWER})),
    "viewer": Caller("vera", frozenset({Scope.VIEWER})),
    "author": Caller("arthur", frozenset({Scope.AUTHOR})),
    "ddh": Caller("the hub", frozenset({Scope.B2B}), "ddh"),
    "geonode": Caller("another hub", frozenset({Scope.B2B}), "geonode"),
    "anonymous": ANONYMOUS,
}


class NamedCallers:
    """The header X-Caller names the caller."""

    async def identify(self, _scope: Any, headers: Headers) -> Identity:
        return Identity(CALLERS[headers.get("x-caller", "admin")])


@dataclass
class Api:
    """The API and the platform behind it. No workers run: the test ends the jobs."""

    client: AsyncClient
    kit: Kit

    async def submit(self, *, caller: str = "admin", content: bytes = b"pixels", **changes: Any) -> Response:
        request = {
            "platform_id": "ddh",
            "platform_refs": FLOODS,
            "source": {"blob": "ddh/floods.tif"},
            **changes,
        }
        self.kit.put("ddh/floods.tif", content)
        return await self.client.post(f"{V1}/submit", json=request, headers={"X-Caller": caller})

    async def processed(self, **changes: Any) -> dict[str, Any]:
        """Submit, and complete the job."""
        submitted = await ok(self.submit(**changes), 202)
        await self.kit.write_documents(submitted["dataset_id"], submitted["version_ordinal"], submitted["revision"])
        await self.kit.end_job(submitted["job_id"])
        return submitted

    async def published(self, clearance: str = "ouo", **changes: Any) -> dict[str, Any]:
        submitted = await self.processed(**changes)
        known = await self.asset(submitted["asset_id"])
        level = {"clearance_level": clearance} if known["clearance_state"] == "uncleared" else {}
        await ok(self.act(submitted["asset_id"], f"versions/{submitted['version_ordinal']}/approve", **level))
        return submitted

    async def act(self, asset_id: str, action: str, *, etag: str | None = None, **request: Any) -> Response:
        headers = {"If-Match": etag} if etag else {}
        return await self.client.post(f"{V1}/assets/{asset_id}/{action}", json=request, headers=headers)

    async def asset(self, asset_id: str, caller: str = "admin") -> dict[str, Any]:
        return await ok(self.client.get(f"{V1}/assets/{asset_id}", headers={"X-Caller": caller}))

    async def status(self, request_id: str) -> tuple[str, str | None]:
        answer = await ok(self.client.get(f"{V1}/status/{request_id}"))
        return answer["status"], answer["reason"]

    async def counts(self) -> dict[str, int]:
        query = "SELECT " + ", ".join(f"(SELECT count(*) FROM dagapp.{name}) AS {name}" for name in TABLES)
        return (await self.kit.rows(query))[0]


@asynccontextmanager
async def opened_api(dsn: str, folder: Path) -> AsyncIterator[Api]:
    app = app_of(dsn, STORAGE_FOLDER=str(folder))
    for middleware in app.user_middleware:
        if "authentication" in middleware.kwargs:
            middleware.kwargs["authentication"] = NamedCallers()
    async with opened(dsn, folder) as kit, client_of(app) as client:
        yield Api(client, kit)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "storage"


class TestSubmission:
    @pytest.mark.requirement("A2")
    async def test_a_submission_creates_an_asset_a_version_and_a_job(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            answer = await api.submit(caller="operator", request_id="order-1", parameters={"title": "Floods"})
            submitted = answer.json()
            asset = await api.asset("floods-r1")
            job = await ok(api.client.get(f"{V1}/jobs/{submitted['job_id']}"))

        identity = {"dataset_id": "floods", "resource_id": "r1"}
        assert answer.status_code == 202
        assert answer.headers["location"] == f"{V1}/status/order-1"
        assert submitted["outcome"] == "new_asset"
        assert submitted["asset_id"] == asset["asset_id"] == asset_id_of("ddh", identity)
        assert (asset["platform_refs"], asset["created_by"]) == (identity, "ops")
        assert [(v["version_ordinal"], v["version_label"], v["revision"]) for v in asset["versions"]] == [
            (0, "2024", 1)
        ]
        assert asset["versions"][0]["current_job_id"] == submitted["job_id"]
        assert (job["job"]["correlation_id"], job["job"]["submitted_by"]) == ("order-1", "ops")
        assert job["job"]["inputs"]["dataset_id"] == "floods-r1"

    @pytest.mark.requirement("A4")
    async def test_resubmissions_have_the_documented_outcomes(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            new = await api.submit()
            during = await api.submit()
            await _end(api, new)
            same = await api.submit()
            forced = await api.submit(force=True)
            other_data = await api.submit(content=b"other pixels")
            other_options = await api.submit(content=b"other pixels", parameters={"output_tier": "archive"})
            unresolved = await api.submit(platform_refs={**FLOODS, "version_id": "2025"})
            await _end(api, other_options)
            await ok(api.act("floods-r1", "versions/0/approve", clearance_level="ouo"))
            version = await api.submit(platform_refs={**FLOODS, "version_id": "2025"})
            await _end(api, version, "failed")
            after_failure = await api.submit(platform_refs={**FLOODS, "version_id": "2025"})

        responses = (new, during, same, forced, other_data, other_options, version, after_failure)
        assert [(answer.status_code, answer.json()["outcome"], answer.json()["revision"]) for answer in responses] == [
            (202, "new_asset", 1),
            (200, "already_processing", 1),
            (200, "already_completed", 1),
            (202, "new_revision", 2),
            (202, "new_revision", 3),
            (202, "new_revision", 4),
            (202, "new_version", 1),
            (202, "new_revision", 2),
        ]
        assert other_data.json()["superseded_job_id"] == forced.json()["job_id"]
        assert version.json()["version_ordinal"] == 1
        assert version.json()["same_content_as"] is None
        assert (unresolved.status_code, unresolved.json()["code"]) == (409, "version.unresolved")
        assert "version 0" in unresolved.json()["detail"]

    @pytest.mark.requirement("A4")
    async def test_identical_content_as_a_new_version_is_allowed_and_reported(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            await api.published()
            again = await ok(api.submit(platform_refs={**FLOODS, "version_id": "2025"}), 202)

        assert (again["outcome"], again["same_content_as"]) == ("new_version", 0)

    @pytest.mark.requirement("O1")
    async def test_a_repeated_request_id_gets_the_same_response_and_creates_nothing(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            first = await api.submit(request_id="order-1")
            before = await api.counts()
            again = await api.submit(request_id="order-1")
            other = await api.submit(request_id="order-1", parameters={"title": "Other"})
            after = await api.counts()

        assert again.json() == first.json()
        assert (other.status_code, after) == (409, before)

    @pytest.mark.requirement("O1")
    @pytest.mark.parametrize(
        ("changes", "status", "code"),
        [
            ({"platform_id": "unknown"}, 404, "platform.not-found"),
            ({"platform_refs": {"dataset_id": "floods", "colour": "red"}}, 400, "refs.invalid"),
            ({"source": {"blob": "none.tif"}}, 400, "source.not-found"),
            ({"source": {}}, 400, "source.invalid"),
            ({"parameters": {"dataset_id": "mine"}}, 400, "inputs.reserved"),
            ({"parameters": {"tile_sise": 512}}, 400, "inputs.invalid"),
            ({"workflow_id": "hello_world"}, 400, "workflow.not-for-assets"),
            ({"platform": "ddh"}, 422, "request.invalid"),
        ],
    )
    async def test_an_invalid_submission_is_refused_with_a_code(self, catalog_database, folder, changes, status, code):
        async with opened_api(catalog_database, folder) as api:
            before = await api.counts()
            answer = await api.submit(**changes)
            after = await api.counts()

        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert after == before

    @pytest.mark.requirement("O1")
    async def test_a_dry_run_reports_what_would_happen_and_creates_nothing(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            before = await api.counts()
            new = await ok(api.submit(dry_run=True, request_id="order-1"))
            unchanged = await api.counts()
            await api.processed()
            between = await api.counts()
            same = await ok(api.submit(dry_run=True))
            revised = await ok(api.submit(dry_run=True, content=b"more pixels"))
            refused = await ok(api.submit(dry_run=True, platform_refs={**FLOODS, "version_id": "2025"}))
            after = await api.counts()

        assert unchanged == before
        assert after == between
        assert (new["is_dry_run"], new["outcome"], new["dataset_id"]) == (True, "new_asset", "floods-r1")
        assert (new["version_ordinal"], new["revision"], new["job_id"], new["workflow_id"]) == (
            0,
            1,
            None,
            "raster_ingest",
        )
        assert (same["outcome"], revised["outcome"], revised["revision"]) == ("already_completed", "new_revision", 2)
        assert refused["refusal"]["code"] == "version.unresolved"

    @pytest.mark.requirement("O1")
    async def test_the_status_of_a_submission_follows_its_revision(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            submitted = await ok(api.submit(request_id="order-1"), 202)
            seen = [await api.status("order-1")]
            await _end(api, submitted)
            seen.append(await api.status("order-1"))
            await ok(api.act("floods-r1", "versions/0/reject", reason="shifted"))
            seen.append(await api.status("order-1"))
            await api.published("public", request_id="order-2", force=True)
            seen.append(await api.status("order-2"))
            await ok(api.act("floods-r1", "unpublish"))
            seen.append(await api.status("order-2"))
            missing = await api.client.get(f"{V1}/status/order-9")

        assert seen == [
            ("received", None),
            ("awaiting_review", None),
            ("rejected", "shifted"),
            ("published", None),
            ("unpublished", None),
        ]
        assert (missing.status_code, missing.json()["code"]) == (404, "submission.not-found")


async def _end(api: Api, answer: Any, status: str = "completed") -> None:
    submitted = answer if isinstance(answer, dict) else answer.json()
    await api.kit.write_documents(submitted["dataset_id"], submitted["version_ordinal"], submitted["revision"])
    await api.kit.end_job(submitted["job_id"], status)


class TestLists:
    @pytest.mark.requirement("A2")
    async def test_assets_are_listed_newest_first_by_page_and_filter(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            for number in range(5):
                refs = {"dataset_id": "floods", "resource_id": f"r{number}", "version_id": "1"}
                await api.submit(platform_refs=refs, parameters={"title": f"Number {number}"})
            uuid = {"uuid": "7f3a", "version": "1"}
            await api.published("public", platform_id="geonode", platform_refs=uuid, request_id="g-1")
            await api.processed(platform_refs={"dataset_id": "fires", "resource_id": "r0", "version_id": "1"})
            path = f"{V1}/assets"
            pages = await pages_of(api.client, path, limit=3)
            names = [asset["dataset_id"] for page in pages for asset in page]

            async def listed(**filters: Any) -> list[str]:
                page = await ok(api.client.get(path, params=filters))
                return [asset["dataset_id"] for asset in page["items"]]

            by_platform = await listed(platform_id="geonode")
            by_clearance = await listed(clearance="public")
            to_review = await listed(to_review="true")
            by_ref = await listed(**{"ref.resource_id": "r0"})
            by_refs = await listed(refs='{"dataset_id": "floods", "resource_id": "r3"}')
            by_text = await listed(q="number 4")
            await ok(api.client.delete(f"{path}/fires-r0"))
            deleted, left = await listed(deleted="true"), await listed()
            bad = await api.client.get(path, params={"refs": "[1]"})

        assert [len(page) for page in pages] == [3, 3, 1]
        assert names == ["fires-r0", "7f3a", *(f"floods-r{number}" for number in reversed(range(5)))]
        assert by_platform == by_clearance == ["7f3a"]
        assert to_review == ["fires-r0"]
        assert by_ref == ["fires-r0", "floods-r0"]
        assert by_refs == ["floods-r3"]
        assert by_text == ["floods-r4"]
        assert (deleted, len(left)) == (["fires-r0"], 6)
        assert (bad.status_code, bad.json()["code"]) == (400, "refs.invalid")


class TestReview:
    @pytest.mark.requirement("A5")
    async def test_a_version_is_approved_cleared_exposed_unpublished_and_deleted(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            submitted = await api.processed()
            uncleared = await api.act("floods-r1", "versions/0/approve")
            approved = await ok(
                api.act("floods-r1", "versions/0/approve", clearance_level="ouo", revision=1, reason="good")
            )
            public = await ok(api.act("floods-r1", "clear", clearance_level="public"))
            exposed = await ok(api.act("floods-r1", "expose", exposure="all-versions"))
            withdrawn = await ok(api.act("floods-r1", "versions/0/unpublish", reason="wrong"))
            again = await ok(api.act("floods-r1", "versions/0/approve"))
            version = await ok(api.client.get(f"{V1}/assets/floods-r1/versions/0"))
            deleted = await ok(api.client.delete(f"{V1}/assets/floods-r1/versions/0", params={"reason": "old"}))
            history = await ok(api.client.get(f"{V1}/assets/floods-r1/history", params={"limit": 100}))
            of_none = await ok(api.client.get(f"{V1}/assets/floods-r1/history", params={"version": 7}))
            missing = await api.client.get(f"{V1}/assets/floods-r1/versions/7")

        assert (uncleared.status_code, uncleared.json()["code"]) == (400, "clearance.required")
        assert (approved["clearance_state"], approved["latest_approved_version_ordinal"]) == ("ouo", 0)
        assert approved["versions"][0]["is_served"]
        assert approved["versions"][0]["reviewer"] == "root"
        assert public["made_public_by"] == "root"
        assert exposed["exposure"] == "all-versions"
        assert (withdrawn["latest_approved_version_ordinal"], withdrawn["versions"][0]["is_served"]) == (None, False)
        assert again["latest_approved_version_ordinal"] == 0
        assert (version["approved_revision"], version["revisions"][0]["job_id"]) == (1, submitted["job_id"])
        assert deleted["versions"][0]["deleted_at"]
        actions = [(event["action"], event["actor"], event["reason"]) for event in reversed(history["items"])]
        assert ("approved", "root", "good") in actions
        assert ("unpublished", "root", "wrong") in actions
        assert actions[-1] == ("deleted", "root", "old")
        assert of_none["items"] == []
        assert missing.json()["code"] == "version.not-found"

    @pytest.mark.requirement("A5")
    async def test_a_revision_that_is_no_longer_the_newest_is_not_approved(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            await api.processed()
            await api.processed(content=b"newer")
            answer = await api.act("floods-r1", "versions/0/approve", clearance_level="ouo", revision=1)

        assert (answer.status_code, answer.json()["code"]) == (409, "version.revised")

    @pytest.mark.requirement("O1")
    @pytest.mark.parametrize(
        ("action", "request_body"),
        [
            ("versions/0/approve", {"clearance_level": "ouo"}),
            ("versions/0/reject", {"reason": "no"}),
            ("versions/0/unpublish", {}),
            ("clear", {"clearance_level": "public"}),
            ("expose", {"exposure": "all-versions"}),
            ("unpublish", {}),
            ("delete", None),
            ("versions/0/delete", None),
        ],
    )
    async def test_a_stale_change_is_refused_and_shows_what_changed(
        self, catalog_database, folder, action, request_body
    ):
        async with opened_api(catalog_database, folder) as api:
            await api.published()
            read = await api.client.get(f"{V1}/assets/floods-r1")
            etag = read.headers["etag"]
            await ok(api.act("floods-r1", "expose", etag=etag, exposure="all-versions", reason="cited"))
            before = await api.asset("floods-r1")
            if request_body is None:
                path = f"{V1}/assets/floods-r1/{action.removesuffix('delete')}".rstrip("/")
                stale = await api.client.delete(path, headers={"If-Match": etag})
            else:
                stale = await api.act("floods-r1", action, etag=etag, **request_body)
            after = await api.asset("floods-r1")

        problem = stale.json()
        assert (stale.status_code, problem["code"]) == (412, "asset.changed")
        assert [(e["action"], e["actor"], e["reason"]) for e in problem["facts"]["events"]] == [
            ("exposed", "root", "cited")
        ]
        assert after == before
        assert etag.strip('"') != after["etag"]

    @pytest.mark.requirement("O1")
    async def test_every_change_returns_the_new_etag(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            await api.processed()
            read = await api.client.get(f"{V1}/assets/floods-r1")
            approved = await api.act(
                "floods-r1", "versions/0/approve", etag=read.headers["etag"], clearance_level="ouo"
            )
            cleared = await api.act("floods-r1", "clear", etag=approved.headers["etag"], clearance_level="public")

        assert (approved.status_code, cleared.status_code) == (200, 200)
        assert cleared.headers["etag"] == f'"{cleared.json()["etag"]}"' != approved.headers["etag"]


class TestVisibility:
    @pytest.fixture
    async def api(self, catalog_database, folder):
        """Three assets of ddh: one `ouo` with a newer revision to review, one `public`, and one never approved."""
        async with opened_api(catalog_database, folder) as api:
            await api.published(request_id="ouo-1")
            await api.processed(content=b"newer", request_id="ouo-2")
            await api.published("public", platform_refs={"dataset_id": "fires", "resource_id": "r1", "version_id": "1"})
            await api.processed(platform_refs={"dataset_id": "storms", "resource_id": "r1", "version_id": "1"})
            yield api

    @pytest.mark.requirement("C3")
    @pytest.mark.parametrize(
        ("caller", "seen"),
        [
            ("admin", {"floods-r1", "fires-r1", "storms-r1"}),
            ("operator", {"floods-r1", "fires-r1", "storms-r1"}),
            ("reviewer", {"floods-r1", "fires-r1", "storms-r1"}),
            ("ddh", {"floods-r1", "fires-r1", "storms-r1"}),
            ("viewer", {"floods-r1", "fires-r1"}),
            ("author", {"fires-r1"}),
            ("geonode", {"fires-r1"}),
        ],
    )
    async def test_a_caller_lists_and_gets_only_assets_that_it_may_read(self, api, caller, seen):
        headers = {"X-Caller": caller}
        page = await ok(api.client.get(f"{V1}/assets", headers=headers))
        visible = {
            name
            for name in ("floods-r1", "fires-r1", "storms-r1")
            if (await api.client.get(f"{V1}/assets/{name}", headers=headers)).status_code == 200
        }
        hidden = [
            await api.client.get(f"{V1}/assets/{name}{path}", headers=headers)
            for name in {"floods-r1", "fires-r1", "storms-r1"} - seen
            for path in ("", "/history", "/versions/0")
        ]

        assert {asset["dataset_id"] for asset in page["items"]} == visible == seen
        assert {(answer.status_code, answer.json()["code"]) for answer in hidden} <= {(404, "asset.not-found")}

    @pytest.mark.requirement("C3")
    async def test_a_viewer_sees_served_revisions_without_internal_fields(self, api):
        asset = await api.asset("floods-r1", "viewer")
        whole = await api.asset("floods-r1")

        (version,) = asset["versions"]
        assert (whole["versions"][0]["revision"], whole["to_review"]) == (2, 1)
        assert (version["revision"], version["approval_state"], asset["to_review"]) == (1, "approved", 0)
        assert [revision["revision"] for revision in version["revisions"]] == [1]
        for hidden in (version["current_job_id"], version["reviewer"], asset["created_by"], asset["cleared_by"]):
            assert hidden is None
        assert version["revisions"][0]["job_id"] is None
        assert version["revisions"][0]["source"] == {}

    @pytest.mark.requirement("C3")
    async def test_a_platform_sees_the_states_of_its_own_versions_without_jobs_and_persons(self, api):
        asset = await api.asset("floods-r1", "ddh")
        submitted = await ok(api.submit(caller="ddh", content=b"newest", request_id="ouo-3"), 202)
        own = await ok(api.client.get(f"{V1}/status/ouo-3", headers={"X-Caller": "ddh"}))
        history = await api.client.get(f"{V1}/assets/floods-r1/history", headers={"X-Caller": "ddh"})

        (version,) = asset["versions"]
        assert (version["revision"], version["approval_state"]) == (2, "pending_review")
        assert version["current_job_id"] is None
        assert {revision["job_id"] for revision in version["revisions"]} == {None}
        assert submitted["job_id"] is None
        assert own["status"] == "received"
        assert (history.status_code, history.json()["code"]) == (403, "history.not-allowed")

    @pytest.mark.requirement("C3")
    async def test_data_of_other_platforms_is_not_found_by_a_platform(self, api):
        headers = {"X-Caller": "geonode"}
        submission = await api.submit(caller="geonode")
        status = await api.client.get(f"{V1}/status/ouo-1", headers=headers)
        platform = await api.client.get(f"{V1}/platforms/ddh", headers=headers)
        platforms = await ok(api.client.get(f"{V1}/platforms", headers=headers))

        assert (submission.status_code, submission.json()["code"]) == (404, "platform.not-found")
        assert (status.status_code, status.json()["code"]) == (404, "submission.not-found")
        assert (platform.status_code, platform.json()["code"]) == (404, "platform.not-found")
        assert [each["platform_id"] for each in platforms["items"]] == ["geonode"]

    @pytest.mark.requirement("X1")
    @pytest.mark.parametrize("caller", ["viewer", "author", "ddh", "anonymous"])
    async def test_only_reviewers_may_review_and_only_operators_may_delete(self, api, caller):
        headers = {"X-Caller": caller}
        path = f"{V1}/assets/fires-r1"
        responses = [
            await api.client.post(f"{path}/versions/0/approve", json={}, headers=headers),
            await api.client.post(f"{path}/versions/0/reject", json={"reason": "no"}, headers=headers),
            await api.client.post(f"{path}/versions/0/unpublish", json={}, headers=headers),
            await api.client.post(f"{path}/clear", json={"clearance_level": "ouo"}, headers=headers),
            await api.client.post(f"{path}/expose", json={"exposure": "all-versions"}, headers=headers),
            await api.client.post(f"{path}/unpublish", json={}, headers=headers),
            await api.client.delete(f"{path}/versions/0", headers=headers),
            await api.client.delete(path, headers=headers),
            await api.client.post(f"{V1}/platforms", json={}, headers=headers),
        ]
        by_reviewer = await api.client.delete(path, headers={"X-Caller": "reviewer"})

        assert {answer.status_code for answer in responses} == {401 if caller == "anonymous" else 403}
        assert by_reviewer.status_code == 403
        assert (await api.asset("fires-r1"))["versions"][0]["is_served"]


class TestPlatforms:
    @pytest.mark.requirement("A1")
    async def test_a_platform_can_submit_as_soon_as_it_is_added(self, catalog_database, folder):
        mine = {
            "platform_id": "mine",
            "display_name": "Mine survey",
            "required_refs": ["site", "edition"],
            "optional_refs": ["contact"],
            "version_ref": "edition",
        }
        async with opened_api(catalog_database, folder) as api:
            shipped = await ok(api.client.get(f"{V1}/platforms"))
            added = await ok(api.client.post(f"{V1}/platforms", json=mine), 201)
            twice = await api.client.post(f"{V1}/platforms", json=mine)
            bad = await api.client.post(f"{V1}/platforms", json={**mine, "platform_id": "m2", "version_ref": "nope"})
            refs = {"site": "north", "edition": "2024"}
            submitted = await ok(api.submit(platform_id="mine", platform_refs=refs), 202)
            closed = await ok(api.client.patch(f"{V1}/platforms/mine", json={"is_active": False}))
            refused = await api.submit(platform_id="mine", platform_refs={**refs, "site": "south"})
            shown = await ok(api.client.get(f"{V1}/platforms/mine"))

        assert [each["platform_id"] for each in shipped["items"]] == ["arcgis", "ddh", "geonode", "legacy", "local"]
        assert (added["required_refs"], added["is_active"]) == (["site", "edition"], True)
        assert (twice.status_code, twice.json()["code"]) == (409, "platform.exists")
        assert (bad.status_code, bad.json()["code"]) == (400, "platform.invalid")
        assert submitted["asset_id"] == asset_id_of("mine", {"site": "north"})
        assert closed == shown
        assert (closed["is_active"], closed["display_name"]) == (False, "Mine survey")
        assert (refused.status_code, refused.json()["code"]) == (409, "platform.inactive")

    async def test_a_stale_change_of_a_platform_is_refused_and_shows_its_current_state(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            path = f"{V1}/platforms/ddh"
            seen = (await api.client.get(path)).headers["etag"]
            first = await api.client.patch(path, json={"display_name": "Hub"}, headers={"If-Match": seen})
            second = await api.client.patch(path, json={"is_active": False}, headers={"If-Match": seen})
            both = await asyncio.gather(
                *(
                    api.client.patch(path, json={"display_name": name}, headers={"If-Match": first.headers["etag"]})
                    for name in ("One", "Two")
                )
            )
            shown = await api.client.get(path)
            bad = await api.client.patch(path, json={"is_active": False}, headers={"If-Match": '"soon"'})
            unknown = await api.client.patch(
                f"{V1}/platforms/none", json={"is_active": False}, headers={"If-Match": seen}
            )

        problem = second.json()
        assert first.status_code == 200
        assert first.headers["etag"] not in (seen, shown.headers["etag"])
        assert (second.status_code, problem["code"]) == (412, "platform.changed")
        facts = problem["facts"]
        assert (facts["platform"]["display_name"], f'"{facts["etag"]}"') == ("Hub", first.headers["etag"])
        assert sorted(answer.status_code for answer in both) == [200, 412]
        assert shown.json()["is_active"] is True
        assert (bad.status_code, bad.json()["code"]) == (400, "etag.invalid")
        assert unknown.status_code == 404

    @pytest.mark.requirement("X3")
    async def test_administrators_read_who_changed_platforms_keys_and_assets(self, catalog_database, folder):
        async with opened_api(catalog_database, folder) as api:
            await ok(api.client.patch(f"{V1}/platforms/ddh", json={"display_name": "Hub", "reason": "renamed"}))
            request = {"name": "hub", "scopes": ["b2b"], "platform_id": "ddh"}
            key = await ok(api.client.post(f"{V1}/keys", json=request), 201)
            submitted = await ok(api.submit(), 202)
            audit = await ok(api.client.get(f"{V1}/audit"))
            of_ddh = await ok(api.client.get(f"{V1}/audit", params={"platform_id": "ddh", "limit": 2}))
            following = await ok(
                api.client.get(f"{V1}/audit", params={"platform_id": "ddh", "limit": 2, "after": of_ddh["next"]})
            )
            of_keys = await ok(
                api.client.get(f"{V1}/audit", params={"action": "key_created", "actor": audit["items"][1]["actor"]})
            )
            of_unknown = await ok(api.client.get(f"{V1}/audit", params={"actor": "unknown"}))

        actions = [event["action"] for event in audit["items"]]
        assert actions == ["submitted", "key_created", "platform_changed"]
        assert audit["items"][0]["asset_id"] == submitted["asset_id"]
        assert [event["action"] for event in (*of_ddh["items"], *following["items"])] == actions
        (created,) = of_keys["items"]
        assert (created["platform_id"], created["detail"]["name"]) == ("ddh", "hub")
        assert key["key"] not in str(audit)
        assert of_unknown["items"] == []
        assert audit["items"][2]["reason"] == "renamed"
