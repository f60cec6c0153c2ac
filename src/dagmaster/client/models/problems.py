"""Errors as RFC 9457 problem details."""

from typing import Any

from pydantic import BaseModel, Field


class Mistake(BaseModel):
    """One of the errors in a request or in a workflow file."""

    message: str
    at: str | None = Field(None, description="The part of the request, such as body.priority")
    line: int | None = Field(None, description="The line in the file, from 1; 0 means the file as a whole")
    column: int | None = None
    node: str | None = None
    code: str | None = None


class ProblemDetails(BaseModel):
    """What happened, to what, and what to do about it (RFC 9457)."""

    type: str = Field(description="urn:dagmaster:problem: followed by the code")
    title: str
    status: int
    detail: str
    instance: str = Field(description="The path of the request")
    code: str = Field(description="Stable across releases")
    hint: str | None = Field(None, description="What to do")
    facts: dict[str, Any] = Field({}, description="The values that the error is about, by name")
    errors: list[Mistake] = Field([], description="Every error in the request, if there can be more than one")
    request_id: str | None = Field(
        None, description="The value of the X-Request-ID header, to find the request in the log"
    )
