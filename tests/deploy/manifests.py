"""The contents of the deployment files, with one function for each kind of file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
KUBERNETES = ROOT / "deploy" / "kubernetes"
ROLES = ("orchestrator", "worker", "serving", "gateway")
# The setting with the port of each role.
PORTS = {"orchestrator": "API_PORT", "worker": "HEALTH_PORT", "serving": "SERVING_PORT", "gateway": "GATEWAY_PORT"}


@dataclass(frozen=True)
class Container:
    """One container of dagmaster: `values` are settings with literal values, `secrets` are read from secrets."""

    file: str
    name: str
    role: str
    values: dict[str, str]
    secrets: frozenset[str] = frozenset()
    arguments: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


def dockerfile(role: str) -> Path:
    return ROOT / ("Dockerfile" if role == "orchestrator" else f"Dockerfile.{role}")


def image_environment(role: str) -> dict[str, str]:
    """The settings that an image has; variables that are not settings are left out."""
    (block,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", dockerfile(role).read_text(), re.MULTILINE)
    pairs = dict(pair.split("=", 1) for pair in block.replace("\\\n", " ").split())
    return {name: value for name, value in pairs.items() if name not in ("PATH", "HOME") and "PYTHON" not in name}


def role_of(image: str) -> str | None:
    match = re.search(r"dagmaster-(\w+)", image)
    return match[1] if match else None


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return document


def compose_containers() -> Iterator[Container]:
    for name, service in compose()["services"].items():
        if role := role_of(service["image"]):
            given = {key: str(value) for key, value in service.get("environment", {}).items()}
            secrets = frozenset(key for key, value in given.items() if "${" in value)
            values = {key: value for key, value in given.items() if key not in secrets}
            command = tuple(service.get("command", ()))
            yield Container("compose.yaml", name, role, values, secrets, command, service)


@cache
def kubernetes_documents(*folders: str) -> list[dict[str, Any]]:
    files = sorted(file for folder in folders or ("base", "example") for file in (KUBERNETES / folder).glob("*.yaml"))
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in kubernetes_documents() if each["kind"] == kind}


def config_map() -> dict[str, str]:
    literals = [
        literal
        for document in kubernetes_documents()
        for generator in document.get("configMapGenerator", ())
        for literal in generator["literals"]
    ]
    return dict(literal.split("=", 1) for literal in literals)


def pod_specs() -> dict[str, dict[str, Any]]:
    return {name: each["spec"]["template"]["spec"] for name, each in (of_kind("Deployment") | of_kind("Job")).items()}


def kubernetes_containers() -> Iterator[Container]:
    for name, pod in pod_specs().items():
        for each in [*pod.get("initContainers", ()), *pod["containers"]]:
            role = role_of(each["image"])
            assert role
            variables = each.get("env", ())
            values = {item["name"]: item["value"] for item in variables if "value" in item}
            secrets = frozenset(item["name"] for item in variables if "secretKeyRef" in item.get("valueFrom", {}))
            arguments = tuple(each.get("args", ()))
            yield Container("kubernetes", name, role, config_map() | values, secrets, arguments, each)


def containers() -> list[Container]:
    return [*compose_containers(), *kubernetes_containers()]


def megabytes(text: str) -> float:
    """A size of Kubernetes or of Compose."""
    number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]*)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"Gi": 1024, "Mi": 1, "g": 1024, "m": 1}[unit]
