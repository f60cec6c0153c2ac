"""Signatures of callbacks, as in the Standard Webhooks specification (https://www.standardwebhooks.com), version 1.

    webhook-id          the id of the callback, the same in each attempt
    webhook-timestamp   when this attempt was made, in seconds since 1970
    webhook-signature   "v1,<base64>" for each secret, separated by spaces

The signature is an HMAC-SHA-256 over "id.timestamp.body". A secret is "whsec_" and the key in base64. While a secret is
being replaced, a callback has a signature of each valid one, so that the receiver may switch at any time.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from typing import Final

from dagmaster.errors import InvalidRequest

PREFIX: Final = "whsec_"
VERSION: Final = "v1"
TOLERANCE_SECONDS: Final = 300
KEY_BYTES: Final = 32
_MAX_TIMESTAMP_DIGITS: Final = 12
# The specification's limits of a key.
_MIN_KEY_LENGTH: Final = 24
_MAX_KEY_LENGTH: Final = 64

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"


def new_secret() -> str:
    return PREFIX + base64.b64encode(os.urandom(KEY_BYTES)).decode()


def sign(secrets: Iterable[str], callback_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that prove the origin of a callback, with one signature for each secret."""
    signatures = (_signature(secret, callback_id, str(timestamp), body) for secret in secrets)
    return {
        ID_HEADER: callback_id,
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: " ".join(signatures),
    }


def verify(secrets: Iterable[str], headers: Mapping[str, str], body: bytes, *, now: float) -> None:
    """Raise unless one of the secrets has signed exactly this body within the last five minutes."""
    received = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER) if not received.get(name)]
    if missing:
        raise _forged(f"the header {missing[0]} is missing")
    timestamp = received[TIMESTAMP_HEADER]
    is_time = timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= _MAX_TIMESTAMP_DIGITS
    if not is_time or abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        raise _forged(f"{TIMESTAMP_HEADER} is not within {TOLERANCE_SECONDS} seconds of the present time")
    signatures = [signature.encode() for signature in received[SIGNATURE_HEADER].split()]
    expected = [_signature(secret, received[ID_HEADER], timestamp, body).encode() for secret in secrets]
    # All pairs are compared, so that the duration does not reveal which of them nearly matches.
    if sum(hmac.compare_digest(computed, sent) for computed in expected for sent in signatures) == 0:
        raise _forged("no signature matches")


def _signature(secret: str, callback_id: str, timestamp: str, body: bytes) -> str:
    content = f"{callback_id}.{timestamp}.".encode() + body
    digest = hmac.new(_key_of(secret), content, hashlib.sha256).digest()
    return f"{VERSION},{base64.b64encode(digest).decode()}"


def _key_of(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not _MIN_KEY_LENGTH <= len(key) <= _MAX_KEY_LENGTH:
        raise InvalidRequest(
            "the secret of the webhook is not valid",
            code="callback.bad-secret",
            hint=f"a secret is {PREFIX} followed by {_MIN_KEY_LENGTH} to {_MAX_KEY_LENGTH} bytes in base64",
        )
    return key


def _forged(problem: str) -> InvalidRequest:
    return InvalidRequest(f"the callback is not genuine: {problem}", code="callback.not-genuine")
