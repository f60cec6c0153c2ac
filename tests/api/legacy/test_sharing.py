"""Which submissions are forwarded to the old system, and how the other ones are translated."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dagmaster.api.legacy.names import OLD_NAMES
from dagmaster.api.legacy.sharing import Shares, bucket_of
from dagmaster.api.legacy.submission import asset_request, dataset_name, job_request, makes_asset, read_submission
from dagmaster.dataset_ids import is_dataset_id, is_reserved
from dagmaster.errors import InvalidRequest
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import load_library
from dagmaster.settings import load

LIBRARY = load_library(load(), installed(), load().known_queues)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
bodies = st.dictionaries(st.text(), json_values, max_size=4)
job_types = st.sampled_from(["echo_test", "process_large_raster", *OLD_NAMES])


def submission(job_type="echo_test", body=None, **options):
    return read_submission(job_type, body or {}, **{"resume": False, "force": False, **options})


@pytest.mark.requirement("O4")
@given(job_types, bodies, st.floats(0, 100), st.floats(0, 100))
def test_the_same_submission_is_always_sent_to_the_same_system(job_type, body, one, other):
    assume(not {"resume", "force", "force_reprocess"} & body.keys())
    low, high = sorted((one, other))
    first = submission(job_type, body)
    shuffled = dict(reversed(json.loads(json.dumps(body)).items()))
    again = submission(job_type, {**shuffled, "resume": True, "an input that is not sent": None})

    assert bucket_of(first) == bucket_of(again)
    assert 0 <= bucket_of(first) < 100
    # With a lower share, submissions only move from the old system to this platform.
    assert Shares({"*": low}).is_forwarded(first) <= Shares({"*": high}).is_forwarded(first)
    assert not Shares({"*": 0.0}).is_forwarded(first)
    assert Shares({"*": 100.0}).is_forwarded(first)


@pytest.mark.requirement("O4")
def test_a_share_of_25_forwards_about_a_quarter_of_the_submissions():
    shares = Shares.read(["echo_test=25"])

    forwarded = sum(shares.is_forwarded(submission(body={"number": number})) for number in range(4000))

    assert 900 < forwarded < 1100


@pytest.mark.requirement("O4")
def test_an_old_name_and_its_workflow_share_one_percentage():
    shares = Shares.read(["process_fathom_stack=100", "*=0"])

    assert shares.is_forwarded(submission("flood_stack"))
    assert not shares.is_forwarded(submission("flood_merge"))
    assert Shares.read(["stac_register=5", "stac_register_manual=5"]).percentages == {"stac_register": 5.0}
    with pytest.raises(InvalidRequest, match="two percentages for 'stac_register'"):
        Shares.read(["stac_register=5", "stac_register_manual=6"])


@pytest.mark.requirement("O4")
@pytest.mark.parametrize(
    "shares", ["x", "x=", "x=101", "x=-1", "x=1e1", "=5", "x=5,x=6", "x=nan", "../x=1", "x=5;y=6", "x=100.01"]
)
def test_invalid_shares_are_refused_at_startup(shares):
    with pytest.raises(InvalidRequest, match="LEGACY_SHARES"):
        load(legacy_shares=shares)


@pytest.mark.requirement("O4")
@pytest.mark.parametrize("url", ["ftp://x", "http://user:pw@x", "http://x?a=1", "x", "http://"])
def test_an_invalid_url_of_the_old_system_is_refused_at_startup(url):
    with pytest.raises(InvalidRequest, match="LEGACY_URL") as error:
        load(legacy_url=url)
    assert "pw" not in str(error.value)


names = st.text(min_size=1, max_size=120)


@pytest.mark.requirement("O3")
@given(st.none() | names, st.none() | names, names | st.lists(names, min_size=1, max_size=3))
def test_every_source_has_a_valid_dataset_name(collection_id, container, blobs):
    name = dataset_name(collection_id, container, blobs)

    assert is_dataset_id(name)
    assert not is_reserved(name)
    assert name == dataset_name(collection_id, container, blobs)


@pytest.mark.requirement("O3")
def test_different_sources_have_different_dataset_names():
    sources = [
        (None, None, "a.tif"),
        (None, None, "A.tif"),
        (None, None, "a"),
        (None, None, "a.img"),
        (None, None, "x/a.tif"),
        (None, None, "x-a.tif"),
        (None, "x", "a.tif"),
        ("x", None, "a.tif"),
        (None, None, ["a.tif"]),
        (None, None, ["a.tif", "b.tif"]),
        (None, None, "ä.tif"),
        (None, None, f"{'a' * 120}1.tif"),
        (None, None, f"{'a' * 120}2.tif"),
        (None, None, f"{'0' * 32}.tif"),
    ]

    assert len({dataset_name(*source) for source in sources}) == len(sources)
    assert dataset_name(*sources[0]) == "a"


REFUSALS = ("inputs.invalid", "request.invalid", "request.contradiction")


def translated(job_type, body):
    """The workflow of the translated submission, or the code of the error if it is refused."""
    try:
        old = submission(job_type, {"blob_name": "a.tif", "blob_names": ["a.tif"], **body})
        workflow = LIBRARY.get(old.workflow_id)
        if makes_asset(workflow):
            return asset_request(old, workflow).workflow_id
        return job_request(old, workflow, submitted_by="x").workflow_id
    except InvalidRequest as error:
        return error.code


@pytest.mark.requirement("O3")
@given(bodies)
def test_any_body_becomes_a_submission_or_is_refused(body):
    for job_type in ("process_large_raster", "raster_collection", "raster_validate", "stac_register"):
        assert translated(job_type, body) in (job_type, *REFUSALS)


@pytest.mark.requirement("O3")
def test_jobs_that_process_rasters_become_submissions_of_assets_and_others_do_not():
    assert {name for name, workflow in LIBRARY.workflows.items() if makes_asset(workflow)} >= {
        "raster_ingest",
        "process_large_raster",
        "raster_collection",
    }
    assert not makes_asset(LIBRARY.get("raster_validate"))
    assert not makes_asset(LIBRARY.get("stac_register"))
