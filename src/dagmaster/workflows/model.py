"""The workflow language as models: a definition after its YAML has been read and checked.

A `Workflow` is stored as canonical JSON under its content hash, and a job runs on the definition it started with. A
node's id is its key under `nodes`. Templates are kept as written; `expressions` compiles them.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Any, Literal

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveInt,
    Tag,
)

NodeId = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


def _as_tuple(value: Any) -> Any:
    """A single name may stand for a list of one."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _as_share(value: Any) -> Any:
    """'10%' is the share 0.1."""
    if isinstance(value, str) and value.endswith("%"):
        try:
            return float(value[:-1]) / 100
        except ValueError:
            return value
    return value


NodeIds = Annotated[tuple[NodeId, ...], BeforeValidator(_as_tuple)]

# Ten years: a longer time could overflow a date.
Seconds = Annotated[float, Field(gt=0, le=315_360_000)]
Delay = Annotated[float, Field(ge=0, le=315_360_000)]


class Importance(StrEnum):
    CRITICAL = "critical"
    IMPORTANT = "important"
    OPTIONAL = "optional"


class InputType(StrEnum):
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ARRAY = "array"
    OBJECT = "object"


class Aggregation(StrEnum):
    COLLECT = "collect"
    CONCAT = "concat"
    SUM = "sum"
    FIRST = "first"
    LAST = "last"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Input(_Part):
    """Only the platform itself sets a `reserved` input; a submission of a job that sets it is refused."""

    type: InputType = InputType.STRING
    required: bool = False
    reserved: bool = False
    default: Any = None
    description: str = ""

    @property
    def has_default(self) -> bool:
        return "default" in self.model_fields_set


class Retry(_Part):
    """`max_attempts` is the number of retries allowed after the first attempt."""

    max_attempts: Annotated[int, Field(ge=0, le=1000)] = 3
    backoff: Literal["fixed", "exponential"] = "exponential"
    initial_delay_seconds: Delay = 2.0
    max_delay_seconds: Delay = 300.0
    jitter: bool = True


class DependsOn(_Part):
    all_of: NodeIds = ()
    any_of: NodeIds = ()


class Work(_Part):
    """What a worker runs: a handler with its params and limits. Without a queue or a timeout, those that the handler is
    registered with are used, or else the defaults. Without `queue_timeout_seconds`, a task may wait for any time."""

    handler: str
    queue: str | None = None
    params: dict[str, Any] = {}
    timeout_seconds: Seconds | None = None
    queue_timeout_seconds: Seconds | None = None
    retry: Retry = Retry()


class _NodeFields(_Part):
    next: NodeIds = ()
    depends_on: DependsOn | None = None
    stage: str | None = None
    importance: Importance = Importance.CRITICAL
    description: str = ""


class StartNode(_NodeFields):
    type: Literal["start"]


class EndNode(_NodeFields):
    type: Literal["end"]


class TaskNode(_NodeFields, Work):
    type: Literal["task"] = "task"


class Branch(_Part):
    """A branch of a conditional with `condition_field`: taken if `condition` holds for the field, or as the default."""

    condition: str | None = None
    default: bool = False
    next: NodeIds


class ConditionalNode(_NodeFields):
    type: Literal["conditional"]
    condition: str | None = None
    on_true: NodeIds = ()
    on_false: NodeIds = ()
    condition_field: str | None = None
    branches: tuple[Branch, ...] = ()


Tolerance = Annotated[NonNegativeInt | Annotated[float, Field(ge=0, le=1)], BeforeValidator(_as_share)]
"""Failed children allowed: an integer is a number of them, a float a share of all."""


class FanOutNode(_NodeFields):
    type: Literal["fan_out"]
    source: str | tuple[Any, ...] | None = None
    results_of: NodeId | None = None
    task: Work
    batch_size: PositiveInt | None = None
    max_parallel: PositiveInt | None = None
    tolerate: Tolerance = 0
    label: str | None = None


class FanInNode(_NodeFields):
    type: Literal["fan_in"]
    fan_out: NodeId | None = Field(None, description="The fan_out to gather; default is the nearest one upstream")
    aggregation: Aggregation = Aggregation.COLLECT
    handler: str | None = None
    queue: str | None = None
    params: dict[str, Any] = {}
    timeout_seconds: Seconds | None = None
    queue_timeout_seconds: Seconds | None = None
    retry: Retry = Retry()


AnyNode = StartNode | EndNode | TaskNode | ConditionalNode | FanOutNode | FanInNode


def _type_of(node: Any) -> Any:
    """A node with a handler and no type is a task."""
    if not isinstance(node, dict):
        return getattr(node, "type", None)
    return node.get("type", "task" if "handler" in node else None)


Node = Annotated[
    Annotated[StartNode, Tag("start")]
    | Annotated[EndNode, Tag("end")]
    | Annotated[TaskNode, Tag("task")]
    | Annotated[ConditionalNode, Tag("conditional")]
    | Annotated[FanOutNode, Tag("fan_out")]
    | Annotated[FanInNode, Tag("fan_in")],
    Discriminator(_type_of),
]


WorkflowId = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]


class Workflow(_Part):
    workflow_id: WorkflowId
    name: str = ""
    version: str = "1"
    description: str = ""
    timeout_seconds: Seconds = 7200
    idempotent: bool = False
    fail_fast: bool = False
    inputs: dict[str, Input] = {}
    outputs: dict[str, Any] | None = None
    nodes: dict[NodeId, Node]

    def body(self) -> dict[str, Any]:
        """The definition as stored: JSON types, only the fields that were set."""
        return self.model_dump(mode="json", exclude_unset=True)

    def content_hash(self) -> str:
        return hashlib.sha256(orjson.dumps(self.body(), option=orjson.OPT_SORT_KEYS)).hexdigest()


class Alias(_Part):
    """A file that gives a workflow a second name: it runs the same nodes under another workflow_id."""

    workflow_id: WorkflowId
    alias_of: str
    name: str = ""
    description: str = ""


def work_of(node: AnyNode) -> Work | None:
    """The part of a node that a worker runs: of a task, of a fan_out's children, or of a fan_in with a handler."""
    match node:
        case TaskNode():
            return _own_work(node)
        case FanOutNode():
            return node.task
        case FanInNode(handler=str()):
            return _own_work(node)
        case _:
            return None


def _own_work(node: TaskNode | FanInNode) -> Work:
    # Already validated: constructing without validation keeps planning cheap.
    return Work.model_construct(**{name: getattr(node, name) for name in Work.model_fields})
