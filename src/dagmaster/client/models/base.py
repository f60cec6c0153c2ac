"""The base of the API's models, and how a client reads them."""

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from dagmaster.client.escaping import escaped_value
from dagmaster.errors import Unavailable

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Json = dict[str, Any]
MAX_FIELDS = 200  # of one object in a request
_CLIENT = "client"


class ApiModel(BaseModel):
    """A response, or a part of one. Fields that were added later have a default, so that a client understands older
    servers; the API always sends them, and its description says so."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


class RequestModel(BaseModel):
    """The body of a request. Unknown fields are refused, because they are usually misspelt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_too_many_fields(cls, value: Any) -> Any:
        return few_fields(value)


def few_fields(value: Any) -> Any:
    """The value. An object with too many fields is refused, because reporting an error for each would take seconds."""
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        raise ValueError(f"must have at most {MAX_FIELDS} fields")
    return value


def _keep_unknown(value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    try:
        return validate(value)
    except ValidationError:
        if info.context == _CLIENT and isinstance(value, str):
            return value
        raise


# A choice that later versions may extend. A client keeps a value that it does not know as text.
Extensible = Annotated[T, WrapValidator(_keep_unknown)]


def read(kind: type[M], value: Any) -> M:
    """A response as a model for printing: control characters are escaped."""
    return parse(kind, escaped_value(value))


def parse(kind: type[M], value: Any) -> M:
    """A response as a model. Unknown fields are ignored."""
    try:
        return kind.model_validate(value, extra="ignore", context=_CLIENT)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or kind.__name__
        raise unexpected(f"{where}: {first['msg']}") from None


def read_all(kind: type[M], values: Iterable[Any]) -> list[M]:
    return [read(kind, value) for value in values]


def unexpected(reason: str) -> Unavailable:
    return Unavailable(
        f"the response of the platform is not valid: {reason}",
        code="server.unexpected",
        hint="compare the versions of platform and client: `dagmaster orchestrators ls`, `dagmaster --version`",
    )
