"""The rule for dataset ids: what a dataset is called in storage, in the catalogue and in URLs. What identifies one
revision of a dataset."""

import re
import unicodedata
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dagmaster.errors import InvalidRequest
from dagmaster.quantities import quoted

MAX_ID_LENGTH = 100
RULE = f"lower-case letters and digits, with . _ - between them, at most {MAX_ID_LENGTH} characters"
JOB_PREFIX = "job-"  # followed by the id of a job: the dataset of a job that was not submitted as an asset
_JOB_DATASET_ID = re.compile(rf"{JOB_PREFIX}[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")
_RESERVED = re.compile(rf"[0-9a-f]{{32}}|{_JOB_DATASET_ID.pattern}")
_ID = re.compile(rf"[a-z0-9](?:[a-z0-9._-]{{0,{MAX_ID_LENGTH - 2}}}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class RevisionKey:
    """A revision of a version of a dataset."""

    dataset_id: str
    ordinal: int = 0
    revision: int = 1

    def values(self, **others: Any) -> dict[str, Any]:
        return {"dataset_id": self.dataset_id, "ordinal": self.ordinal, "revision": self.revision, **others}

    def __str__(self) -> str:
        return f"version {self.ordinal}, revision {self.revision} of dataset '{self.dataset_id}'"


def is_dataset_id(text: str) -> bool:
    return bool(_ID.fullmatch(text))


def require_dataset_id(text: str, *, code: str = "storage.bad-dataset") -> None:
    if not is_dataset_id(text):
        raise InvalidRequest(f"{quoted(text)} is not a valid dataset id", code=code, hint=f"use {RULE}")


def is_reserved(dataset_id: str) -> bool:
    """Whether an id has the form of an asset's id, or of the dataset of a job. No asset may have such a dataset id."""
    return bool(_RESERVED.fullmatch(dataset_id))


def job_dataset_id(job_id: UUID) -> str:
    """The dataset of a job that was not submitted as an asset. It is never published, and is deleted with the job."""
    return f"{JOB_PREFIX}{job_id}"


def is_of_job(dataset_id: str) -> bool:
    """Whether an id is one that `job_dataset_id` returns."""
    return bool(_JOB_DATASET_ID.fullmatch(dataset_id))


def dataset_id_from(text: str) -> str:
    """A dataset id from a title, or from a file name without its suffix.

    >>> dataset_id_from("Relevé d'altitude (2024)")
    'releve-d-altitude-2024'
    """
    dataset_id = _plain(text)
    if not dataset_id:
        raise InvalidRequest(
            f"no dataset id can be made from {quoted(text)}", code="storage.bad-dataset", hint="pass a dataset id"
        )
    return dataset_id


def has_dataset_id(text: str) -> bool:
    """Whether `dataset_id_from` makes an id from a text."""
    return bool(_plain(text))


def _plain(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_.]+", "-", plain)[:MAX_ID_LENGTH].strip("-_.")
