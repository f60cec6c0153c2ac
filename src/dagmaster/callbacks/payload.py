"""The content of a callback: `{"request_id": …, "status": …, "result_url": …}`."""

from urllib.parse import quote
from uuid import UUID


def payload_of(request_id: str, status: str, job_id: UUID | None, base_url: str | None) -> dict[str, str]:
    """`result_url` is where the submitter finds the result: at the gateway, or, for a job that belongs to no asset, at
    the API. It is a path if `base_url`, the address at which submitters reach both, is not configured."""
    path = f"/api/platform/status/{quote(request_id, safe='')}" if job_id is None else f"/api/v1/jobs/{job_id}"
    return {"request_id": request_id, "status": status, "result_url": f"{(base_url or '').rstrip('/')}{path}"}
