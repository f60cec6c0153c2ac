"""Submissions: their outcomes, the reasons for refusals, and dry runs, which create nothing."""

import asyncio

import pytest

from dagmaster.access.caller import Caller, Scope
from dagmaster.assets.states import Clearance
from dagmaster.client.models.assets import (
    AssetSubmissionRequest,
    AssetSubmissionResult,
    PlatformRequest,
    SourceReference,
)
from dagmaster.errors import Conflict, DagmasterError, InvalidRequest, NotAllowed, NotFound
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.platforms import add_platform, set_platform
from dagmaster.operations.assets.submit import submit_asset
from tests.operations.kit import ADA, BOB, Kit

pytestmark = pytest.mark.requirement("A1", "A2", "A4")

DDH = {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"}
TABLES = ("geospatial_assets", "asset_versions", "asset_revisions", "asset_submissions", "asset_events", "dag_jobs")


async def counts(kit: Kit) -> dict[str, int]:
    return {name: (await kit.rows(f"SELECT count(*) AS n FROM dagapp.{name}"))[0]["n"] for name in TABLES}


# Outcomes


async def test_a_repeated_submission_is_already_processing_then_already_completed_and_with_force_a_new_revision(
    kit: Kit,
):
    first = await kit.submit()
    again = await kit.submit()
    assert (again.outcome, again.job_id, again.revision) == ("already_processing", first.job_id, 1)

    await kit.process(first)
    completed = await kit.submit()
    assert (completed.outcome, completed.job_id, completed.revision) == ("already_completed", first.job_id, 1)

    forced = await kit.submit(force=True)
    assert (forced.outcome, forced.revision) == ("new_revision", 2)
    assert forced.job_id != first.job_id


@pytest.mark.parametrize(
    "change",
    [
        {"content": b"other pixels"},
        {"parameters": {"output_tier": "archive"}},
        {"workflow_id": "process_large_raster"},
    ],
    ids=["source", "parameters", "workflow"],
)
async def test_another_source_or_other_parameters_create_a_new_revision(kit: Kit, change: dict):
    first = await kit.submit()
    await kit.process(first)

    again = await kit.submit(**change)

    assert (again.outcome, again.version_ordinal, again.revision) == ("new_revision", 0, 2)


async def test_parameters_that_are_defaults_or_null_change_nothing(kit: Kit):
    await kit.submit(parameters={"title": "T"})

    again = await kit.submit(parameters={"tile_above_mb": 500, "tile_size": None, "title": "T"})

    assert again.outcome == "already_processing"


async def test_a_new_label_creates_a_version_once_the_previous_one_is_resolved(kit: Kit):
    first = await kit.submit(version_label="2023")
    with pytest.raises(Conflict) as refused:
        await kit.submit(version_label="2024")
    assert (refused.value.code, refused.value.facts["version_ordinal"]) == ("version.unresolved", 0)

    await kit.process(first)
    await kit.execute("UPDATE dagapp.asset_versions SET approval_state = 'approved', approved_revision = 1")
    second = await kit.submit(version_label="2024", content=b"2024")

    assert (second.outcome, second.version_ordinal, second.version_label) == ("new_version", 1, "2024")
    (job,) = await kit.rows("SELECT input_params FROM dagapp.dag_jobs WHERE job_id = %s", second.job_id)
    assert (job["input_params"]["version_ordinal"], job["input_params"]["version_label"]) == (1, "2024")


async def test_identical_content_as_a_new_version_is_allowed_and_reported(kit: Kit):
    await kit.publish(version_label="2023")

    second = await kit.submit(version_label="2024")

    assert (second.outcome, second.same_content_as) == ("new_version", 0)


async def test_the_same_bytes_under_another_name_are_reported_after_they_have_been_read(kit: Kit):
    async def published(label: str, content_hash: str, content: bytes = b"pixels") -> AssetSubmissionResult:
        submitted = await kit.submit(version_label=label, blob=f"{label}.tif", content=content)
        await kit.write_documents("dem", submitted.version_ordinal, 1)
        await kit.end_job(submitted.job_id, content_hash=content_hash)
        await approve(kit.store, "dem", submitted.version_ordinal, caller=BOB, clearance=Clearance.OUO)
        return submitted

    await published("2023", "ab" * 32)
    second = await published("2024", "ab" * 32)
    await published("2025", "cd" * 32, b"others")

    assert second.same_content_as is None, "the objects have different ETags"
    asset = await kit.store.asset("dem")
    assert [version.revisions[0].same_content_as for version in asset.versions] == [None, 0, None]
    events = await kit.store.history(asset.asset_id, limit=20)
    processed = {event.version_ordinal: event.detail for event in events if event.action == "processed"}
    assert [processed[ordinal].get("same_content_as") for ordinal in (0, 1, 2)] == [None, 0, None]
    status = "SELECT same_content_as FROM dagapp_gateway.requests WHERE request_id = %s"
    assert (await kit.rows(status, second.request_id))[0]["same_content_as"] == 0


async def test_a_superseded_job_is_cancelled_and_no_longer_changes_the_asset(kit: Kit):
    first = await kit.submit()

    second = await kit.submit(content=b"other")

    assert second.superseded_job_id == first.job_id
    (job,) = await kit.rows("SELECT cancel_requested_at FROM dagapp.dag_jobs WHERE job_id = %s", first.job_id)
    assert job["cancel_requested_at"] is not None
    await kit.end_job(first.job_id, "cancelled")
    asset = await kit.store.asset("dem")
    assert (asset.versions[0].processing_state, asset.versions[0].revision) == ("queued", 2)
    assert [revision.processing_state for revision in asset.versions[0].revisions] == ["queued", "failed"]


# The request id


async def test_a_repeated_request_gets_the_same_response(kit: Kit):
    await kit.publish(version_label="2023", blob="2023.tif")
    await kit.submit(version_label="2024", blob="2024.tif", content=b"2024")
    first = await kit.submit(version_label="2024", blob="2023.tif", request_id="r-1")
    await kit.process(first)
    before = await counts(kit)

    again = await kit.submit(version_label="2024", blob="2023.tif", request_id="r-1")

    assert again == first
    assert None not in (first.same_content_as, first.superseded_job_id)
    assert await counts(kit) == before


async def test_a_request_id_cannot_be_used_for_another_submission(kit: Kit):
    await kit.submit(request_id="r-1")

    with pytest.raises(Conflict) as refused:
        await kit.submit("other", request_id="r-1")

    assert refused.value.code == "submission.id-taken"
    assert (await counts(kit))["geospatial_assets"] == 1


async def test_a_dry_run_reports_the_submission_that_already_has_the_request_id(kit: Kit):
    """Without the id, the same submission would be refused or would become a new revision."""
    first = await kit.submit(request_id="r-1")
    before = await counts(kit)

    again = await kit.submit(request_id="r-1", dry_run=True)
    other = await kit.submit("other", request_id="r-1", dry_run=True)
    without = await kit.submit(dry_run=True)

    assert (again.outcome, again.version_ordinal, again.revision) == (first.outcome, first.version_ordinal, 1)
    assert other.refusal is not None
    assert (other.outcome, other.refusal["code"]) == (None, "submission.id-taken")
    assert without.outcome != first.outcome
    assert await counts(kit) == before


async def test_requests_without_an_id_get_one(kit: Kit):
    submitted = await kit.submit()

    assert (await kit.store.submission(submitted.request_id)).asset_id == submitted.asset_id
    with pytest.raises(NotFound):
        await kit.store.submission("r-unknown")


# Platforms and references


async def test_the_references_determine_asset_version_and_dataset(kit: Kit):
    submitted = await kit.submit("floods", platform_id="ddh", platform_refs=DDH)

    asset = await kit.store.asset(submitted.asset_id)
    assert submitted.asset_id == "461328a8a54dee1e9a75fcbfc496f249"
    assert (asset.dataset_id, asset.platform_refs) == ("floods-r1", {"dataset_id": "floods", "resource_id": "r1"})
    assert asset.versions[0].version_label == "2024"
    assert asset.versions[0].platform_refs == DDH
    assert [a.asset_id for a in await kit.store.assets(limit=5, refs={"resource_id": "r1"})] == [submitted.asset_id]
    assert await kit.store.assets(limit=5, refs={"resource_id": "r2"}) == []


@pytest.mark.requirement("G4")
async def test_a_number_as_a_reference_is_converted_to_text(kit: Kit):
    """The layers of an item in ArcGIS are numbered."""
    source = {"platform_id": "arcgis", "caller": ADA}
    number = await kit.submit(platform_refs={"item_id": "3a5f", "layer_index": 0, "version": "1"}, **source)
    text = await kit.submit(platform_refs={"item_id": "3a5f", "layer_index": "0", "version": "1"}, **source)

    assert number.asset_id == text.asset_id == "2011f31c8bb6a2fe411399dbef441c4f"
    with pytest.raises(ValueError, match="valid string"):
        await kit.submit(platform_refs={"item_id": "3a5f", "layer_index": True, "version": "1"}, **source)


async def test_a_dataset_id_in_use_is_extended_by_the_beginning_of_the_asset_id(kit: Kit):
    await kit.submit("floods-r1")

    submitted = await kit.submit("x", platform_id="ddh", platform_refs=DDH)

    assert submitted.dataset_id == "floods-r1-461328a8"


async def test_references_without_ascii_letters_and_digits_name_the_dataset_after_the_platform(kit: Kit):
    partner = Caller("hub", frozenset({Scope.B2B}), "ddh")
    refs = [{**DDH, "dataset_id": text, "resource_id": "_"} for text in ("日本語", "-")]
    kit.put("ddh/x.tif", b"pixels")

    submitted = [
        await kit.submit("x", blob="ddh/x.tif", platform_id="ddh", platform_refs=one, caller=caller)
        for one, caller in zip(refs, (partner, ADA), strict=True)
    ]

    assert [each.dataset_id for each in submitted] == [f"ddh-{each.asset_id[:8]}" for each in submitted]


async def test_the_error_for_an_unknown_workflow_lists_the_workflows_for_assets(kit: Kit):
    with pytest.raises(NotFound) as refused:
        await kit.submit(workflow_id="raster_ingst")

    assert refused.value.message == "no workflow is named 'raster_ingst'; did you mean 'raster_ingest'?"
    assert refused.value.hint is not None
    known = refused.value.hint.removeprefix("known: ").split(", ")
    assert {"raster_ingest", "raster_collection"} <= set(known)
    assert not {"hello_world", "unpublish", "external_export"} & set(known)


async def test_a_collection_of_another_program_is_not_overwritten(kit: Kit):
    await kit.execute("""SELECT pgstac.create_collection('{"id": "dem", "extent": {"spatial": {"bbox": [[0, 0, 1, 1]]},
        "temporal": {"interval": [[null, null]]}}}')""")

    submitted = await kit.submit("dem")

    assert submitted.dataset_id.startswith("dem-")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"platform_id": "nowhere"}, "platform.not-found"),
        ({"platform_refs": {}}, "refs.invalid"),
        ({"platform_refs": {"dataset": "dem", "colour": "red"}}, "refs.invalid"),
        ({"platform_refs": {"dataset": "Not A Name"}}, "storage.bad-dataset"),
        ({"platform_refs": {"dataset": "0123456789abcdef0123456789abcdef"}}, "storage.bad-dataset"),
        ({"platform_refs": {"dataset": "dem", "version": "1"}, "version_label": "2"}, "version.labels-differ"),
        ({"version_label": "v\n1"}, "version.bad-label"),
        ({"version_label": "v\x001"}, "version.bad-label"),
        ({"version_label": " "}, "version.bad-label"),
        ({"version_label": "v\u202e1"}, "version.bad-label"),
        ({"workflow_id": "nothing"}, "workflow.not-found"),
        ({"workflow_id": "hello_world"}, "workflow.not-for-assets"),
        ({"workflow_id": "raster_collection"}, "source.invalid"),
        ({"parameters": {"dataset_id": "mine"}}, "inputs.reserved"),
        ({"parameters": {"blob_name": "other.tif"}}, "inputs.reserved"),
        ({"parameters": {"tile_size": "large"}}, "inputs.invalid"),
        ({"source": SourceReference()}, "source.invalid"),
        ({"source": SourceReference(blob="a.tif", blobs=["b.tif"])}, "source.invalid"),
        ({"source": SourceReference(blobs=["a.tif", "a.tif"])}, "source.invalid"),
        ({"source": SourceReference(blob="missing.tif")}, "source.not-found"),
        ({"source": SourceReference(blob="../secret")}, "storage.bad-blob"),
        ({"callback_url": "http://127.0.0.1/x"}, "submission.callback-url"),
    ],
)
async def test_an_invalid_request_is_refused_and_creates_nothing(kit: Kit, change: dict, code: str):
    with pytest.raises(DagmasterError) as refused:
        await kit.submit(**change)

    assert refused.value.code == code
    assert set((await counts(kit)).values()) == {0}


async def test_an_inactive_platform_may_not_submit(kit: Kit):
    await set_platform(kit.store, "local", caller=ADA, is_active=False, reason="moved")

    with pytest.raises(Conflict) as refused:
        await kit.submit()

    assert refused.value.code == "platform.inactive"


async def test_a_partner_may_submit_only_for_its_own_platform(kit: Kit):
    partner = Caller("hub", frozenset({Scope.B2B}), "ddh")

    with pytest.raises(NotAllowed) as refused:
        await kit.submit(caller=partner)
    assert refused.value.code == "platform.not-own"

    submitted = await kit.submit("floods", blob="ddh/floods.tif", platform_id="ddh", platform_refs=DDH, caller=partner)
    (event,) = await kit.store.history(submitted.asset_id, limit=5)
    assert event.actor == "hub"


async def test_a_partner_may_only_name_its_own_objects(kit: Kit):
    partner = Caller("hub", frozenset({Scope.B2B}), "ddh")

    with pytest.raises(InvalidRequest) as refused:
        await kit.submit("x", blob="ddh-private/floods.tif", platform_id="ddh", platform_refs=DDH, caller=partner)

    assert refused.value.code == "source.not-own"


@pytest.mark.parametrize("scope", [Scope.OPERATOR, Scope.ADMIN])
async def test_a_platform_key_with_the_scope_operator_or_admin_may_submit_all_objects_for_all_platforms(
    kit: Kit, scope: Scope
):
    both = Caller("hub", frozenset({Scope.B2B, scope}), "geonode")

    submitted = await kit.submit(
        "floods", blob="elsewhere/floods.tif", platform_id="ddh", platform_refs=DDH, caller=both
    )

    assert submitted.dataset_id == "floods-r1"


async def test_a_platform_can_be_added_and_used(kit: Kit):
    request = PlatformRequest(
        platform_id="ckan", display_name="CKAN", required_refs=["package", "edition"], version_ref="edition"
    )
    added = await add_platform(kit.store, request=request, caller=ADA)

    submitted = await kit.submit("x", platform_id="ckan", platform_refs={"package": "Rivers", "edition": "3"})

    assert added.is_active
    assert (submitted.dataset_id, submitted.version_label) == ("rivers", "3")
    with pytest.raises(Conflict) as refused:
        await add_platform(kit.store, request=request, caller=ADA)
    assert refused.value.code == "platform.exists"
    (event,) = await kit.rows("SELECT action, actor FROM dagapp.asset_events WHERE platform_id = 'ckan'")
    assert event == {"action": "platform_added", "actor": "ada"}
    assert [platform.platform_id for platform in await kit.store.platforms()] == [
        "arcgis",
        "ckan",
        "ddh",
        "geonode",
        "legacy",
        "local",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"required_refs": ["a", "a"]},
        {"required_refs": ["a b"]},
        {"version_ref": "c"},
        {"required_refs": ["v"], "version_ref": "v"},
    ],
)
async def test_a_platform_whose_references_identify_no_asset_is_refused(kit: Kit, change: dict):
    given = {"platform_id": "hub", "display_name": "Hub", "required_refs": ["a"], **change}

    with pytest.raises(InvalidRequest) as refused:
        await add_platform(kit.store, request=PlatformRequest(**given), caller=ADA)

    assert refused.value.code == "platform.invalid"


# The source


async def test_several_files_become_one_collection_and_a_change_of_one_creates_a_revision(kit: Kit):
    for name in ("a.tif", "b.tif"):
        kit.put(name, name.encode())
    request = AssetSubmissionRequest(
        platform_id="local", platform_refs={"dataset": "many"}, source=SourceReference(blobs=["a.tif", "b.tif"])
    )
    first = await submit_asset(kit.store, kit.library, kit.storage, request=request, caller=ADA)
    (job,) = await kit.rows("SELECT workflow_id, input_params FROM dagapp.dag_jobs")
    assert job["workflow_id"] == first.workflow_id == "raster_collection"
    assert job["input_params"]["blob_names"] == ["a.tif", "b.tif"]

    kit.put("b.tif", b"changed")
    again = await submit_asset(kit.store, kit.library, kit.storage, request=request, caller=ADA)

    assert (again.outcome, again.revision) == ("new_revision", 2)


async def test_the_etag_and_the_size_of_the_source_are_recorded(kit: Kit):
    await kit.submit(content=b"123456")

    (revision,) = await kit.rows("SELECT source, source_etag, source_size FROM dagapp.asset_revisions")
    info = kit.storage.head(kit.storage.location("dem.tif"))
    assert revision == {
        "source": {"container": "bronze", "blob": "dem.tif"},
        "source_etag": info.etag,
        "source_size": 6,
    }


# Dry runs


async def test_a_dry_run_reports_what_would_happen_and_creates_nothing(kit: Kit):
    report = await kit.submit(dry_run=True, parameters={"title": "T"})

    assert (report.is_dry_run, report.outcome, report.dataset_id) == (True, "new_asset", "dem")
    assert (report.version_ordinal, report.version_label, report.revision) == (0, "0", 1)
    assert (report.job_id, report.request_id, report.refusal) == (None, None, None)
    assert report.estimate.based_on_runs == 0
    assert report.is_tiled is None
    assert set((await counts(kit)).values()) == {0}


async def test_a_dry_run_reports_why_the_submission_would_be_refused(kit: Kit):
    await kit.submit(version_label="2023")
    before = await counts(kit)

    report = await kit.submit(version_label="2024", dry_run=True)

    assert report.outcome is None
    assert report.refusal["code"] == "version.unresolved"
    assert await counts(kit) == before


async def test_a_dry_run_estimates_the_time_from_past_runs_and_the_size_of_the_source(kit: Kit):
    past = await kit.submit("past", content=b"x" * 1000)
    await kit.process(past, tiles=4)
    await kit.execute(
        "UPDATE dagapp.dag_jobs SET started_at = completed_at - interval '10 s' WHERE job_id = %s", past.job_id
    )

    report = await kit.submit("new", content=b"x" * 2000, dry_run=True)
    large = await kit.submit(
        "large", content=b"x" * 7000, dry_run=True, parameters={"tile_above_mb": 0.002}, blob="large.tif"
    )

    assert report.estimate.model_dump() == {
        "tile_count": 8,
        "size_bytes": 8000,
        "seconds": pytest.approx(20.0),
        "based_on_runs": 1,
    }
    assert report.is_tiled is None
    assert large.is_tiled is True


@pytest.mark.parametrize(
    ("request_fields", "is_tiled"),
    [
        ({"parameters": {"tile_above_mb": 0.001}}, True),
        ({"parameters": {"tile_above_mb": 0.003}}, None),
        ({"parameters": {"tile_above_mb": 100}}, None),
        ({"workflow_id": "process_large_raster"}, True),
    ],
    ids=["larger-than-the-limit", "larger-with-overviews", "small-but-perhaps-across-the-antimeridian", "always"],
)
async def test_a_dry_run_says_whether_there_are_tiles_only_if_the_file_need_not_be_opened(
    kit: Kit, request_fields: dict, is_tiled: bool | None
):
    """A run of a similar file does not decide it: the two may be on different sides of the limit."""
    past = await kit.submit("past", content=b"x" * 4000, parameters={"tile_above_mb": 100})
    await kit.process(past)

    report = await kit.submit("new", content=b"x" * 4000, dry_run=True, blob="new.tif", **request_fields)

    assert report.is_tiled is is_tiled
    assert report.estimate.tile_count in (1, None)


@pytest.mark.parametrize(("blobs", "is_tiled"), [(["a.tif", "b.tif"], True), (["a.tif"], False)])
async def test_a_dry_run_of_a_collection_counts_one_cog_per_file(kit: Kit, blobs: list[str], is_tiled: bool):
    for blob in blobs:
        kit.put(blob, b"pixels")

    report = await kit.submit("many", dry_run=True, source=SourceReference(blobs=blobs))

    assert report.workflow_id == "raster_collection"
    assert (report.is_tiled, report.estimate.tile_count) == (is_tiled, len(blobs))


async def test_equal_past_runs_count_each_in_an_estimate(kit: Kit):
    for name, seconds in (("a", 10), ("b", 10), ("c", 40)):
        past = await kit.submit(name, content=b"x" * 1000, blob=f"{name}.tif")
        await kit.process(past, tiles=4)
        await kit.execute(
            "UPDATE dagapp.dag_jobs SET started_at = completed_at - %s * interval '1 s' WHERE job_id = %s",
            seconds,
            past.job_id,
        )

    report = await kit.submit("new", content=b"x" * 1000, dry_run=True)

    assert report.estimate.seconds == pytest.approx(10.0)
    assert report.estimate.based_on_runs == 3


# Lists


async def test_assets_are_listed_by_page_and_filtered(kit: Kit):
    for number in range(5):
        await kit.submit(f"d{number}")
    await kit.publish("published", parameters={"title": "Rivers of the north"})

    listed, after = [], None
    while page := await kit.store.assets(limit=2, after=after):
        listed += [asset.dataset_id for asset in page]
        after = (page[-1].created_at, page[-1].asset_id)

    async def listed_ids(**filters) -> list[str]:
        return [asset.dataset_id for asset in await kit.store.assets(limit=10, **filters)]

    assert listed == ["published", "d4", "d3", "d2", "d1", "d0"]
    assert await listed_ids(clearance="ouo") == ["published"]
    assert await listed_ids(text="RIVERS") == ["published"]
    assert await listed_ids(text="d_") == []
    assert await listed_ids(platform_id="ddh") == []
    assert await listed_ids(refs={"dataset": "d3"}) == ["d3"]
    assert await listed_ids(is_deleted=True) == []
    assert await listed_ids(to_review=True) == []
    await kit.process(await kit.submit("d2"), tiles=1)
    assert await listed_ids(to_review=True) == ["d2"]


async def test_the_status_of_a_submission_follows_the_review(kit: Kit):
    from dagmaster.assets.states import Clearance
    from dagmaster.operations.assets.approve import approve
    from dagmaster.operations.assets.clear import clear
    from dagmaster.operations.assets.delete import delete
    from dagmaster.operations.assets.unpublish import unpublish

    async def status() -> str:
        return (await kit.store.submission("r-1")).status

    submitted = await kit.submit(request_id="r-1")
    assert await status() == "received"
    await kit.execute("UPDATE dagapp.dag_jobs SET status = 'running' WHERE job_id = %s", submitted.job_id)
    assert await status() == "processing"
    await kit.write_documents("dem", 0, 1)
    await kit.execute("UPDATE dagapp.dag_jobs SET status = 'partial_success' WHERE job_id = %s", submitted.job_id)
    assert await status() == "partial"
    await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO)
    assert await status() == "approved"
    await clear(kit.store, "dem", Clearance.PUBLIC, caller=BOB)
    assert await status() == "published"
    await kit.process(await kit.submit(content=b"2"))
    assert await status() == "published"
    await approve(kit.store, "dem", 0, caller=BOB)
    assert await status() == "unpublished"
    assert (await kit.store.submission("r-1")).reason == "superseded by revision 2"
    await unpublish(kit.store, "dem", caller=BOB)
    await delete(kit.store, "dem", caller=BOB)
    assert (await kit.store.submission("r-1")).reason == "deleted"


async def test_parallel_submissions_of_different_assets_do_not_wait_for_each_other(kit: Kit):
    results = await asyncio.gather(*(kit.submit(f"d{number}") for number in range(8)))

    assert {result.outcome for result in results} == {"new_asset"}
    assert len({result.job_id for result in results}) == 8
