"""Inputs are checked against their declaration when a job is submitted."""

import pytest

from dagmaster.errors import InvalidRequest
from dagmaster.workflows import inputs
from dagmaster.workflows.inputs import check_inputs, refuse_reserved, refuse_signed_urls

from .builders import a_workflow

WORKFLOW = a_workflow(
    "  start: {type: start, next: end}\n  end: {type: end}\n",
    head="""\
inputs:
  name: {type: string, required: true}
  count: {type: integer, default: 3}
  ratio: {type: number}
  flag: {type: boolean}
  list: {type: array, default: []}
  map: {type: object}
""",
)


@pytest.mark.requirement("W1")
def test_defaults_are_applied_and_optional_inputs_without_default_stay_absent():
    assert check_inputs(WORKFLOW, {"name": "x"}) == {"name": "x", "count": 3, "list": []}
    assert check_inputs(WORKFLOW, {"name": "x", "count": 9})["count"] == 9


@pytest.mark.requirement("W1")
@pytest.mark.parametrize(
    "given",
    [
        {"count": 0},
        {"count": -5},
        {"ratio": 1},
        {"ratio": 1.5},
        {"flag": False},
        {"list": [1]},
        {"map": {"a": 1}},
        {"name": ""},
    ],
)
def test_values_of_the_declared_type_are_not_changed(given):
    assert check_inputs(WORKFLOW, {"name": "x", **given}) == {"name": "x", "count": 3, "list": [], **given}


@pytest.mark.requirement("W1")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"count": True}, "'count' must be an integer, not True"),
        ({"count": 1.0}, "'count' must be an integer, not 1.0"),
        ({"count": "1"}, "'count' must be an integer, not '1'"),
        ({"ratio": True}, "'ratio' must be a number, not True"),
        ({"ratio": float("nan")}, "'ratio' must be a number, not nan"),
        ({"flag": 0}, "'flag' must be true or false, not 0"),
        ({"list": {}}, "'list' must be an array, not an object"),
        ({"map": []}, "'map' must be an object, not an array"),
        ({"name": 5}, "'name' must be a string, not 5"),
        ({"cuont": None}, "'cuont' is not an input; did you mean 'count'?"),
        ({"cuont": 1}, "'cuont' is not an input; did you mean 'count'?"),
    ],
)
def test_invalid_inputs_are_refused_with_the_name_of_the_field(given, words):
    with pytest.raises(InvalidRequest) as refusal:
        check_inputs(WORKFLOW, {"name": "x", **given})

    assert words in refusal.value.message
    assert refusal.value.facts["fields"] == list(given)


@pytest.mark.requirement("W1")
def test_all_invalid_fields_are_reported_together():
    with pytest.raises(InvalidRequest) as refusal:
        check_inputs(WORKFLOW, {"count": "x", "other": 1})

    assert refusal.value.facts["fields"] == ["count", "name", "other"]
    assert refusal.value.code == "inputs.invalid"
    assert "'name' is required (string)" in refusal.value.message


@pytest.mark.requirement("W1", "X2")
def test_many_unknown_inputs_are_refused_without_a_suggestion_for_each(monkeypatch):
    compared = []
    monkeypatch.setattr(inputs, "did_you_mean", lambda name, _known: compared.append(name) or "")
    with pytest.raises(InvalidRequest) as refusal:
        check_inputs(WORKFLOW, {f"other{number}": 1 for number in range(50_000)})

    assert len(refusal.value.facts["fields"]) == len(refusal.value.facts["faults"]) == inputs.MAX_FAULTS
    assert len(compared) < inputs.MAX_FAULTS


@pytest.mark.requirement("W5")
def test_a_template_in_an_input_is_not_rendered():
    assert check_inputs(WORKFLOW, {"name": "{{ job }}"})["name"] == "{{ job }}"


@pytest.mark.requirement("W1")
def test_an_input_submitted_as_null_counts_as_not_submitted():
    workflow = a_workflow(
        "  start: {type: start, next: end}\n  end: {type: end}\n",
        head="inputs:\n  size: {type: integer, default: 5}\n  note: {type: string}\n"
        "  file: {type: string, required: true}\n",
    )

    assert check_inputs(workflow, {"size": None, "note": None, "file": "a"}) == {"size": 5, "file": "a"}
    with pytest.raises(InvalidRequest, match="'file' is required"):
        check_inputs(workflow, {"file": None})


RESERVED = a_workflow(
    "  start: {type: start, next: end}\n  end: {type: end}\n",
    head="""\
inputs:
  name: {type: string}
  place: {type: string, reserved: true}
  number: {type: integer, default: 0, reserved: true}
""",
)


@pytest.mark.requirement("W1")
def test_a_submission_that_sets_reserved_inputs_is_refused_and_all_of_them_are_named():
    with pytest.raises(InvalidRequest, match="are set by the platform: 'number', 'place'") as refused:
        refuse_reserved(RESERVED, {"place": "x", "name": "y", "number": 0})

    assert (refused.value.code, refused.value.facts["fields"]) == ("inputs.reserved", ["number", "place"])
    assert "assets submit" in refused.value.hint


@pytest.mark.requirement("W1")
def test_a_submission_without_reserved_inputs_is_accepted_and_null_sets_nothing():
    refuse_reserved(RESERVED, {"name": "y", "place": None, "unknown": 1})

    assert check_inputs(RESERVED, {"name": "y"}) == {"name": "y", "number": 0}


SIGNED = [
    "https://acct.blob.core.windows.net/c/b.tif?sv=2024&sig=abc",
    "https://acct.blob.core.windows.net/c/b.tif?SIG=abc",
    "https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature=abc",
    "https://b.s3.amazonaws.com/k?x-amz-security-token=abc",
    "https://storage.googleapis.com/b/k?X-Goog-Signature=abc",
    "/vsicurl/https://acct.blob.core.windows.net/c/b.tif?sig=abc",
    "/vsicurl?url=https%3A%2F%2Facct.blob.core.windows.net%2Fb.tif%3Fsv%3D1%26sig%3Dabc",
    "/vsiaz/c/b.tif?sig=abc",
    "see https://user:word@host/x.tif",
    "https%253A%252F%252Fh%252Fb%253Fsig%253Dabc",
    ["a", {"b": ["https://h/x?sig=abc"]}],
    {"https://h/x?sig=abc": 1},
]
PLAIN = [
    "https://host/x.tif?size=3",
    "https://host/x.tif?design=abc&insig=1",
    "https://user@host/x.tif",
    "https://host:8443/a@b",
    "what is ?sig=abc",
    "bronze/x.tif",
    "password=abc",
    ["https://host/x"],
    3,
    None,
]


@pytest.mark.requirement("S3", "X3")
@pytest.mark.parametrize("value", SIGNED)
def test_a_url_that_contains_its_credentials_is_refused_as_input(value):
    with pytest.raises(InvalidRequest, match="would be stored with the job: 'b', 'z'") as refused:
        refuse_signed_urls(RESERVED, {"z": value, "a": "x", "b": value})

    assert (refused.value.code, refused.value.facts["fields"]) == ("inputs.signed-url", ["b", "z"])
    assert "abc" not in str(refused.value)


@pytest.mark.requirement("S3", "X3")
@pytest.mark.parametrize("value", PLAIN)
def test_other_urls_and_texts_are_accepted_as_inputs(value):
    refuse_signed_urls(RESERVED, {"name": value})
