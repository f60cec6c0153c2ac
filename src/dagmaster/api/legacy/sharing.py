"""Which submissions to the old API run on this platform, and which are forwarded to the old system. Pure.

`bucket_of` computes a number between 0 and 100 for each submission, from its workflow and its parameters alone. The
submission is forwarded if this number is below the percentage of its job type. So the same submission always goes to
the same system, and lowering a percentage only moves submissions from the old system to this one.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dagmaster.api.legacy.names import job_type_of
from dagmaster.api.legacy.submission import OldSubmission
from dagmaster.errors import InvalidRequest

_OTHERS: Final = "*"
_BUCKETS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Shares:
    """Percentages of submissions that are forwarded, by workflow: an old name has the percentage of its workflow."""

    percentages: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, pairs: Iterable[str]) -> "Shares":
        """From `JOB_TYPE=PERCENT`, as in the setting LEGACY_SHARES."""
        percentages: dict[str, float] = {}
        for pair in pairs:
            name, _, percent = pair.partition("=")
            workflow_id = name if name == _OTHERS else job_type_of(name).workflow_id
            if percentages.setdefault(workflow_id, float(percent)) != float(percent):
                raise InvalidRequest(
                    f"LEGACY_SHARES has two percentages for '{workflow_id}', one of them under an old name",
                    code="settings.invalid",
                    hint="name each job type once",
                )
        return cls(percentages)

    def is_forwarded(self, submission: OldSubmission) -> bool:
        percent = self.percentages.get(submission.workflow_id, self.percentages.get(_OTHERS, 0.0))
        return bucket_of(submission) < percent


def bucket_of(submission: OldSubmission) -> float:
    """A number from 0 to below 100. `resume`, `force_reprocess` and parameters that are null do not affect it."""
    parameters = {name: value for name, value in submission.inputs.items() if value is not None}
    canonical = json.dumps([submission.workflow_id, parameters], sort_keys=True, separators=(",", ":"))
    number = int.from_bytes(hashlib.sha256(canonical.encode()).digest()[:8], "big")
    return number % _BUCKETS * 100 / _BUCKETS
