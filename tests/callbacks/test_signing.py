"""Signatures of callbacks follow the specification; changed, copied and old ones are not accepted."""

import base64

import pytest

from dagmaster.callbacks.signing import (
    ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    TOLERANCE_SECONDS,
    new_secret,
    sign,
    verify,
)
from dagmaster.errors import InvalidRequest

pytestmark = pytest.mark.requirement("E24")

# The test vector that the libraries of the Standard Webhooks specification share.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
CALLBACK = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SIGNED_AT = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def headers(**changes):
    given = {ID_HEADER: CALLBACK, TIMESTAMP_HEADER: str(SIGNED_AT), SIGNATURE_HEADER: SIGNATURE}
    return given | {f"webhook-{name}": value for name, value in changes.items()}


def is_genuine(secrets=(SECRET,), body=BODY, now=SIGNED_AT, **changes):
    try:
        verify(secrets, headers(**changes), body, now=now)
    except InvalidRequest as error:
        return error.code != "callback.not-genuine"
    return True


def test_the_signature_matches_the_test_vector_of_the_specification():
    assert sign([SECRET], CALLBACK, SIGNED_AT, BODY) == headers()
    assert is_genuine()


def test_a_callback_that_was_changed_is_not_genuine():
    assert not is_genuine(body=BODY + b" ")
    assert not is_genuine(body=b"")
    assert not is_genuine(id="msg_other")
    assert not is_genuine(timestamp=str(SIGNED_AT + 1))
    assert not is_genuine(signature="v1," + base64.b64encode(bytes(32)).decode())
    assert not is_genuine(secrets=[new_secret()])
    assert not is_genuine(secrets=[])


@pytest.mark.parametrize("signature", ["", "v1", "v1,", SIGNATURE[3:], "v2" + SIGNATURE[2:], "v1,é", "ä ö"])
def test_an_invalid_signature_is_not_accepted(signature):
    assert not is_genuine(signature=signature)


@pytest.mark.parametrize(
    "timestamp", ["", "-1", "1e9", "１６１４２６５３３０", " 1614265330", "now", "9" * 30, "9" * 400]
)
def test_an_invalid_timestamp_is_not_accepted(timestamp):
    assert not is_genuine(timestamp=timestamp)


def test_an_old_callback_cannot_be_sent_again():
    assert is_genuine(now=SIGNED_AT + TOLERANCE_SECONDS)
    assert is_genuine(now=SIGNED_AT - TOLERANCE_SECONDS)
    assert not is_genuine(now=SIGNED_AT + TOLERANCE_SECONDS + 1)
    assert not is_genuine(now=SIGNED_AT - TOLERANCE_SECONDS - 1)


def test_while_a_secret_is_rotated_both_secrets_verify():
    replacement = new_secret()

    both = sign([replacement, SECRET], CALLBACK, SIGNED_AT, BODY)

    assert both[SIGNATURE_HEADER].split()[1] == SIGNATURE
    verify([SECRET], both, BODY, now=SIGNED_AT)
    verify([replacement], both, BODY, now=SIGNED_AT)
    with pytest.raises(InvalidRequest):
        verify([new_secret()], both, BODY, now=SIGNED_AT)


def test_names_of_headers_may_have_capitals():
    verify([SECRET], {name.title(): value for name, value in headers().items()}, BODY, now=SIGNED_AT)


@pytest.mark.parametrize("missing", [ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER])
def test_every_header_is_required(missing):
    with pytest.raises(InvalidRequest, match=f"{missing} is missing"):
        verify([SECRET], {**headers(), missing: ""}, BODY, now=SIGNED_AT)


@pytest.mark.parametrize("secret", ["", "whsec_", SECRET[6:], "whsec_AAAA", "whsec_!!!", "whsec_" + "AAAA" * 30])
def test_a_secret_in_another_form_is_refused(secret):
    with pytest.raises(InvalidRequest) as refusal:
        sign([secret], CALLBACK, SIGNED_AT, BODY)

    assert refusal.value.code == "callback.bad-secret"
    assert not secret or secret not in str(refusal.value).replace("a secret is whsec_", "")


def test_every_new_secret_is_different():
    secrets = {new_secret() for _ in range(100)}

    assert len(secrets) == 100
    assert all(len(base64.b64decode(secret.removeprefix("whsec_"))) == 32 for secret in secrets)
