"""Sessions of browsers: who has signed in, and how."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from dagmaster.client.models.assets import CallerInfo
from dagmaster.client.models.base import ApiModel, RequestModel


class SignInMethod(ApiModel):
    """`key`: POST the key to `url`. `oidc`: open `url` in the browser; add `next`, the page to open afterwards."""

    method: Literal["key", "oidc"]
    url: str


class SessionInfo(CallerInfo):
    """The caller of the request. `method` is null for anonymous callers and if authentication is disabled; `header`
    for credentials in a header. Requests with the cookie that change something need `csrf_token` in X-CSRF-Token."""

    is_signed_in: bool
    method: Literal["key", "oidc", "header"] | None = None
    expires_at: datetime | None = None
    csrf_token: str | None = None
    sign_in_methods: list[SignInMethod]


class SessionRequest(RequestModel):
    """An API key, `dgm_…`."""

    key: Annotated[str, Field(min_length=1, max_length=200, repr=False)]
