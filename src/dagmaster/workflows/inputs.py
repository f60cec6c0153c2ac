"""The inputs of a job: the values of a submission are checked against the declarations of the workflow."""

import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from dagmaster.errors import InvalidRequest
from dagmaster.quantities import shortened
from dagmaster.workflows.model import Input, InputType, Workflow
from dagmaster.workflows.nearest import did_you_mean

MAX_FAULTS = 20  # reported for one submission; suggestions for misspelt names take time
# A URL, possibly within another URL or a GDAL path, and the part of it that gives access to anyone who reads it.
_URL = re.compile(r"://|%(?:25)*3a%(?:25)*2f|^/vsi", re.IGNORECASE)
_CREDENTIALS = re.compile(
    r"(?:[?&;]|%(?:25)*(?:3f|26))(?:sig|x-amz-signature|x-amz-security-token|x-goog-signature)(?:=|%(?:25)*3d)"
    r"|://[^\s/?#@:]*:[^\s/?#@]+@",
    re.IGNORECASE,
)


def check_inputs(workflow: Workflow, submitted: dict[str, Any]) -> dict[str, Any]:
    """The inputs with their defaults. An optional one without default stays absent, and is undefined in templates.

    An input that is submitted as null counts as not submitted.
    """
    inputs = {name: value for name, value in submitted.items() if value is not None or name not in workflow.inputs}
    all_faults = ((name, fault) for name in (*workflow.inputs, *inputs) if (fault := _fault(workflow, name, inputs)))
    faults = dict(islice(all_faults, MAX_FAULTS))
    if faults:
        raise InvalidRequest(
            f"the inputs of workflow '{workflow.workflow_id}' are not valid: {'; '.join(faults.values())}",
            code="inputs.invalid",
            fields=sorted(faults),
            faults=faults,
            workflow_id=workflow.workflow_id,
        )
    defaults = {name: declared.default for name, declared in workflow.inputs.items() if declared.has_default}
    return {**defaults, **inputs}


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


def refuse_signed_urls(workflow: Workflow, submitted: dict[str, Any]) -> None:
    """Raise InvalidRequest if an input has a URL with a signature or a password: inputs are stored and shown."""
    if names := sorted(name for name, value in submitted.items() if has_signed_url(value)):
        listed = ", ".join(f"'{name}'" for name in names)
        raise InvalidRequest(
            f"these inputs have a URL with a signature or a password, which would be stored with the job: {listed}",
            code="inputs.signed-url",
            hint="upload the file to the bronze zone, or let workers read its container with their own identity",
            fields=names,
            workflow_id=workflow.workflow_id,
        )


def has_signed_url(value: Any) -> bool:
    """Whether a text in a value has a URL with a signature or a password."""
    return any(map(_is_signed, _texts_in(value)))


def _is_signed(text: str) -> bool:
    return _URL.search(text) is not None and _CREDENTIALS.search(text) is not None


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from (str(name), *_texts_in(part))
    elif isinstance(value, list):
        for part in value:
            yield from _texts_in(part)


def _fault(workflow: Workflow, name: str, inputs: dict[str, Any]) -> str | None:
    declared = workflow.inputs.get(name)
    if declared is None:
        return f"'{name}' is not an input{did_you_mean(name, workflow.inputs)}"
    if name not in inputs:
        return f"'{name}' is required ({declared.type})" if declared.required and not declared.has_default else None
    return value_error(name, declared, inputs[name])


def value_error(name: str, declared: Input, value: Any) -> str | None:
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
    return shortened(repr(value), 60)
