"""An unfinished sign-in at an OIDC issuer, as it is stored in a cookie of the browser.

The cookie is not signed: an attacker who could set it could also begin a sign-in and set its cookie. The content is
checked again when it is read.
"""

import base64
import re
import secrets
from dataclasses import asdict, dataclass
from typing import Self
from urllib.parse import urlsplit

import orjson

from dagmaster.errors import InvalidRequest

FLOW_SECONDS = 600
MAX_NEXT_LENGTH = 1024
_TEXT = re.compile(r"[A-Za-z0-9_-]{43}")
# A path of this server. `//` and `/\` begin a host name; browsers drop tabs and line breaks in between.
_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]*")


@dataclass(frozen=True, slots=True)
class Flow:
    """`verifier` proves to the issuer that the code is redeemed for the browser that started the sign-in (PKCE)."""

    state: str
    nonce: str
    verifier: str
    next: str

    def encoded(self) -> str:
        return base64.urlsafe_b64encode(orjson.dumps(asdict(self))).decode().rstrip("=")

    @classmethod
    def decoded(cls, text: str) -> Self | None:
        """None if the text is not that of a flow."""
        try:
            flow = cls(**orjson.loads(base64.urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}")))
        except (ValueError, TypeError):
            return None
        secrets_of_flow = (flow.state, flow.nonce, flow.verifier)
        is_valid = all(isinstance(part, str) and _TEXT.fullmatch(part) for part in secrets_of_flow)
        return flow if is_valid and isinstance(flow.next, str) and is_own_path(flow.next) else None


def is_own_path(text: str) -> bool:
    """Whether a redirect to it stays on this server."""
    if len(text) > MAX_NEXT_LENGTH or not _PATH.fullmatch(text):
        return False
    parts = urlsplit(text)
    return not parts.scheme and not parts.netloc


def new_flow(next_path: str) -> Flow:
    if not is_own_path(next_path):
        raise InvalidRequest(
            "`next` is not a path of this server", code="session.bad-next", hint="pass a path such as /ui/"
        )
    return Flow(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(32), next_path)
