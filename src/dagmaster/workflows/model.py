"""The workflow language as models: what a definition holds once its YAML has been read and checked.

A `Workflow` is stored as canonical JSON under its content hash, and a job runs on the definition that it started with. A node's
`id` is its key under `nodes`. Templates are kept as written; `expressions` compiles them.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

NodeId = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


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
    type: InputType = InputType.STRING
    required: bool = False
    default: Any = None
    description: str = ""

    @property
    def has_default(self) -> bool:
        return "default" in self.model_fields_set


class Retry(_Part):
    """`max_attempts` is the number of retries allowed after the first attempt."""

    max_attempts: NonNegativeInt = 3
    backoff: Literal["fixed", "exponential"] = "exponential"
    initial_delay_seconds: NonNegativeFloat = 2.0
    max_delay_seconds: NonNegativeFloat = 300.0
    jitter: bool = True


class DependsOn(_Part):
    all_of: tuple[NodeId, ...] = ()
    any_of: tuple[NodeId, ...] = ()


class Work(_Part):
    """What reaches a worker: a handler with its parameters and limits. None means: as registered, then the default."""

    handler: str
    queue: str | None = None
    params: dict[str, Any] = {}
    timeout_seconds: PositiveFloat | None = None
    queue_timeout_seconds: PositiveFloat | None = None
    retry: Retry = Retry()


class _Node(_Part):
    next: tuple[NodeId, ...] = ()
    depends_on: DependsOn | None = None
    stage: str | None = None
    importance: Importance = Importance.CRITICAL
    description: str = ""


class StartNode(_Node):
    type: Literal["start"]


class EndNode(_Node):
    type: Literal["end"]


class TaskNode(_Node, Work):
    type: Literal["task"] = "task"


class Branch(_Part):
    """One arm of the second conditional form: taken if `condition` holds of the field, or as the default."""

    condition: str | None = None
    default: bool = False
    next: tuple[NodeId, ...]


class ConditionalNode(_Node):
    type: Literal["conditional"]
    condition: str | None = None
    on_true: tuple[NodeId, ...] = ()
    on_false: tuple[NodeId, ...] = ()
    condition_field: str | None = None
    branches: tuple[Branch, ...] = ()


class FanOutNode(_Node):
    type: Literal["fan_out"]
    source: str | tuple[Any, ...] | None = None
    results_of: NodeId | None = None
    task: Work
    batch_size: PositiveInt | None = None
    max_parallel: PositiveInt | None = None
    tolerate: NonNegativeInt | Annotated[float, Field(ge=0, le=1)] = 0
    label: str | None = None


class FanInNode(_Node):
    type: Literal["fan_in"]
    fan_out: NodeId | None = Field(None, description="Whose children; by default the nearest fan_out upstream")
    aggregation: Aggregation = Aggregation.COLLECT
    handler: str | None = None
    queue: str | None = None
    params: dict[str, Any] = {}
    timeout_seconds: PositiveFloat | None = None
    queue_timeout_seconds: PositiveFloat | None = None
    retry: Retry = Retry()


Node = Annotated[
    StartNode | EndNode | TaskNode | ConditionalNode | FanOutNode | FanInNode,
    Field(discriminator="type"),
]


class Workflow(_Part):
    workflow_id: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]
    name: str = ""
    version: str = "1"
    description: str = ""
    timeout_seconds: PositiveFloat = 7200
    idempotent: bool = False
    fail_fast: bool = False
    inputs: dict[str, Input] = {}
    outputs: dict[str, Any] | None = None
    nodes: dict[NodeId, Node]

    def body(self) -> dict[str, Any]:
        """The definition as stored: JSON types, only what was said."""
        return self.model_dump(mode="json", exclude_unset=True)

    def content_hash(self) -> str:
        return hashlib.sha256(orjson.dumps(self.body(), option=orjson.OPT_SORT_KEYS)).hexdigest()


def work_of(node: StartNode | EndNode | TaskNode | ConditionalNode | FanOutNode | FanInNode) -> Work | None:
    """What of this node reaches a worker: a task itself, a fan_out's children, a fan_in's own handler."""
    match node:
        case TaskNode():
            return Work(**{name: getattr(node, name) for name in Work.model_fields})
        case FanOutNode():
            return node.task
        case FanInNode(handler=str()):
            return Work(**{name: getattr(node, name) for name in Work.model_fields})
        case _:
            return None
