"""What FastAPI does not add to an OpenAPI description: the schema of problems, permissions, and how callers
authenticate."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from starlette.routing import BaseRoute

from dagmaster.access.permissions import Permission
from dagmaster.client.models.problems import ProblemDetails
from dagmaster.web.authentication import permission_of, routes_of


def describe_permissions(description: dict[str, Any], routes: Iterable[BaseRoute]) -> None:
    """Add the permission that each operation needs, and how callers authenticate."""
    description["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "An API key (`dgm_…`) or an OIDC token"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "An API key (`dgm_…`)"},
    }
    for route in routes_of(routes):
        permission = permission_of(route)
        for method in route.methods or ():
            operation = description["paths"].get(route.path, {}).get(method.lower())
            if operation is not None and permission is not None:
                operation["x-permission"] = str(permission)
                schemes: list[dict[str, list[str]]] = [{"bearer": []}, {"key": []}]
                operation["security"] = [{}] if permission is Permission.ANYONE else schemes


def describe_models(schemas: dict[str, Any], *models: type[BaseModel]) -> None:
    """Add models that no response has as its body, such as those of streams."""
    for model in models:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema


def describe_problems(schemas: dict[str, Any]) -> None:
    describe_models(schemas, ProblemDetails)
    # FastAPI's own errors, which are never sent.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
