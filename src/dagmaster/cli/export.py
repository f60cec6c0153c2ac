"""`dagmaster jobs export`: a job with its whole history in one file."""

import sys
from pathlib import Path

from dagmaster.cli.command import State
from dagmaster.errors import InvalidRequest


def export_job(state: State, job_id: str, output: str | None) -> None:
    """The file appears when it is complete: an interrupted export leaves none behind."""
    if output == "-":
        state.client.export_job(job_id, sys.stdout.buffer)
        return
    path = Path(output or f"job-{job_id}.json")
    partial = path.with_name(f".{path.name}.part")
    try:
        try:
            with partial.open("wb") as file:
                size = state.client.export_job(job_id, file)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}", code="file.not-writable") from None
    state.answer({"job_id": job_id, "file": str(path), "size_bytes": size}, f"{path} ({size:,} bytes)")
