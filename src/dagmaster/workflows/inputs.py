"""The inputs of a job: what a submission gives, held against what the workflow declares."""

import math
from typing import Any

from dagmaster.errors import InvalidRequest
from dagmaster.workflows.model import Input, InputType, Workflow
from dagmaster.workflows.nearest import did_you_mean


def check_inputs(workflow: Workflow, submitted: dict[str, Any]) -> dict[str, Any]:
    """The inputs with their defaults. An optional one without default stays absent, and is undefined in templates.

    An input that is submitted as null counts as not submitted.
    """
    given = {name: value for name, value in submitted.items() if value is not None or name not in workflow.inputs}
    faults = {name: fault for name in (*workflow.inputs, *given) if (fault := _fault(workflow, name, given))}
    if faults:
        raise InvalidRequest(
            f"workflow '{workflow.workflow_id}' cannot take these inputs: {'; '.join(faults.values())}",
            code="inputs.invalid",
            fields=sorted(faults),
            faults=faults,
            workflow_id=workflow.workflow_id,
        )
    defaults = {name: declared.default for name, declared in workflow.inputs.items() if declared.has_default}
    return {**defaults, **given}


def refuse_reserved(workflow: Workflow, submitted: dict[str, Any]) -> None:
    """Raise InvalidRequest if a submission sets an input that only the platform itself sets. Null sets nothing."""
    declared = workflow.inputs
    names = [name for name, value in submitted.items() if value is not None and name in declared]
    if reserved := sorted(name for name in names if declared[name].reserved):
        listed = ", ".join(f"'{name}'" for name in reserved)
        raise InvalidRequest(
            f"these inputs of workflow '{workflow.workflow_id}' are set by the platform: {listed}",
            code="inputs.reserved",
            hint="leave them out, or submit the data as an asset: `dagmaster assets submit` or `dagmaster process`",
            fields=reserved,
            workflow_id=workflow.workflow_id,
        )


def _fault(workflow: Workflow, name: str, given: dict[str, Any]) -> str | None:
    declared = workflow.inputs.get(name)
    if declared is None:
        return f"'{name}' is not an input{did_you_mean(name, workflow.inputs)}"
    if name not in given:
        return f"'{name}' is required ({declared.type})" if declared.required and not declared.has_default else None
    return misfit(name, declared, given[name])


def misfit(name: str, declared: Input, value: Any) -> str | None:
    """Why a value does not fit the declared type, or None."""
    if value is None:
        return f"'{name}' must be {_NOUNS[declared.type]}, not null; leave it out instead"
    if is_a(declared.type, value):
        return None
    return f"'{name}' must be {_NOUNS[declared.type]}, not {_shown(value)}"


def is_a(kind: InputType, value: Any) -> bool:
    # In Python a boolean is an integer; in JSON it is not.
    if isinstance(value, bool):
        return kind is InputType.BOOLEAN
    return isinstance(value, _CLASSES[kind]) and not (isinstance(value, float) and not math.isfinite(value))


_CLASSES: dict[InputType, tuple[type, ...]] = {
    InputType.STRING: (str,),
    InputType.INTEGER: (int,),
    InputType.NUMBER: (int, float),
    InputType.BOOLEAN: (bool,),
    InputType.ARRAY: (list,),
    InputType.OBJECT: (dict,),
}
_NOUNS = {
    InputType.STRING: "a string",
    InputType.INTEGER: "an integer",
    InputType.NUMBER: "a number",
    InputType.BOOLEAN: "true or false",
    InputType.ARRAY: "an array",
    InputType.OBJECT: "an object",
}


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:59] + "…"
