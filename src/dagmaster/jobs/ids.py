"""Job ids as people type them: complete, or only the first digits."""

from uuid import UUID

from dagmaster.errors import InvalidRequest

_DIGITS = 32


def ids_beginning_with(prefix: str) -> tuple[UUID, UUID]:
    """The smallest and the largest id that begin with this prefix."""
    digits = prefix.replace("-", "").lower()
    if not digits or len(digits) > _DIGITS or any(digit not in "0123456789abcdef" for digit in digits):
        raise InvalidRequest(f"'{prefix}' is not a job id", code="job.bad-id", hint="see `dagmaster jobs ls`")
    return UUID(digits.ljust(_DIGITS, "0")), UUID(digits.ljust(_DIGITS, "f"))
