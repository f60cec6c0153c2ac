"""compose.yaml is valid for the Compose specification, and its services start in an order that works."""

import copy
import json
import re
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests.deploy.manifests import compose, dockerfile, role_of

pytestmark = pytest.mark.requirement("M5")

# The package check-jsonschema contains the schema of the specification.
SCHEMA = json.loads(files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text())
SERVICES: dict[str, Any] = compose()["services"]
# Services that end when they are done, or that are only for tests.
ONE_TIME = {"deploy", "migrate"}


def test_the_file_is_valid_for_the_compose_specification():
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(compose())


@pytest.mark.parametrize(
    "changes",
    [{"read_onli": True}, {"ports": "8000:8000"}, {"depends_on": {"postgres": {"condition": "healthy"}}}],
)
def test_a_mistake_in_a_service_is_detected(changes):
    """Otherwise the test above proves nothing."""
    broken = copy.deepcopy(compose())
    broken["services"]["orchestrator"] |= changes

    with pytest.raises(ValidationError):
        Draft202012Validator(SCHEMA).validate(broken)


def has_healthcheck(name: str) -> bool:
    role = role_of(SERVICES[name]["image"])
    return "healthcheck" in SERVICES[name] or (role is not None and "HEALTHCHECK" in dockerfile(role).read_text())


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_its_dependencies(name):
    for other, how in SERVICES[name].get("depends_on", {}).items():
        if other in ONE_TIME:
            assert how["condition"] == "service_completed_successfully"
        else:
            assert how["condition"] == "service_healthy"
            assert has_healthcheck(other), f"{other} would never be healthy"


def test_every_role_starts_after_the_schema_is_deployed():
    def before(name: str) -> set[str]:
        direct = set(SERVICES[name].get("depends_on", {}))
        return direct.union(*(before(other) for other in direct))

    ours = {name for name, service in SERVICES.items() if role_of(service["image"])}
    assert {name for name in ours - ONE_TIME if not {"deploy", "migrate", "postgres"} <= before(name)} == set()


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if role_of(service["image"])])
def test_a_role_has_a_read_only_file_system_and_no_capabilities(name):
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert all(volume.split(":")[0] in compose()["volumes"] for volume in service.get("volumes", ()))


def test_ports_are_published_on_this_machine_only():
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_images_are_pinned_to_a_version():
    for name, service in SERVICES.items():
        default = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["image"])
        assert re.search(r":\d", default), f"{name}: {default}"
