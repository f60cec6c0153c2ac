"""The templates for Azure agree with the code. No compiler of Bicep can be installed here: this reads them as text, and
test_bicep.py with a grammar."""

import re
from datetime import timedelta
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

from dagmaster import settings
from dagmaster.addresses import SERVED_ZONES
from dagmaster.api import health as api_health
from dagmaster.cli.main import COMMANDS
from dagmaster.database.catalog.pgstac import software_version
from dagmaster.database.schema.gateway_role import role_of as gateway_role_of
from dagmaster.orchestrator.job_queue import MAX_AGE
from dagmaster.settings import DEFAULT_QUEUES
from tests.deploy.manifests import PORTS, ROLES, ROOT, megabytes

pytestmark = pytest.mark.requirement("M5")

FOLDER = ROOT / "deploy" / "azure"
TEXTS = {file.name: file.read_text() for file in sorted(FOLDER.glob("*.bicep"))}
MAIN, APP = TEXTS["main.bicep"], TEXTS["app.bicep"]
KNOWN = settings.variables()
# Built-in roles by their ids, as Microsoft documents them.
BUILT_IN = {
    "acrPull": "7f951dda-4ed3-4680-a7ca-43fe172d538d",
    "storageBlobDataContributor": "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
    "storageBlobDataReader": "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1",
    "storageBlobDelegator": "db58b8e5-c6ad-4a2a-8342-4190687cbf4a",
    "serviceBusDataSender": "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39",
    "serviceBusDataReceiver": "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0",
    "serviceBusDataOwner": "090c5cfd-751d-490a-894a-3ce6f1109419",
}
# Settings of the Service Bus transport, which a release without that transport ignores.
OF_SERVICE_BUS = {"TRANSPORT", "SERVICE_BUS_FQDN"}


def variables(text: str) -> dict[str, str]:
    return dict(re.findall(r"\{ name: '([A-Z][A-Z0-9_]+)', value: (.+?) \}", text))


def modules() -> dict[str, str]:
    """The text of each container app, by its name."""
    parts = re.split(r"^module (\w+) 'app.bicep' = ", MAIN, flags=re.MULTILINE)
    return {name: text.split("\n}\n")[0] for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def value(module: str, parameter: str) -> str:
    match = re.search(rf"^    {parameter}: '?([^'\n]+)'?$", module, re.MULTILINE)
    assert match, parameter
    return match[1]


def without_comments(text: str) -> str:
    return re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)


def test_apps_connect_to_each_other_with_tls():
    """Ingress redirects plain requests, which the gateway does not follow."""
    apps = modules()
    served = {name for name, module in apps.items() if "hasIngress: false" not in module}
    is_external = {name: "isExternal: true" in apps[name] for name in served}
    urls = re.findall(r"'(\w+)://\$\{prefix\}-(\w+)(\.internal)?\.\$\{domain\}'", MAIN)

    assert {app for _, app, _ in urls} == {"serving", "orchestrator"}
    assert {(scheme, is_external[app]) for scheme, app, internal in urls if not internal} == {("https", True)}
    assert {(scheme, is_external[app]) for scheme, app, internal in urls if internal} == {("https", False)}
    assert "http://" not in without_comments(MAIN)
    assert re.findall(r"allowInsecure: (.+?) ", APP) == ["false"]


@pytest.mark.parametrize("name", TEXTS)
def test_a_template_is_marked_as_untested(name):
    assert "UNTESTED" in TEXTS[name]


@pytest.mark.parametrize("name", TEXTS)
def test_every_variable_is_a_setting_and_no_value_is_a_secret(name):
    given = variables(TEXTS[name])
    assert given or name == "administrator.bicep"
    assert given.keys() - KNOWN.keys() <= OF_SERVICE_BUS
    for variable, text in given.items():
        field = KNOWN.get(variable)
        if field is not None and not field.repr:
            assert variable.endswith("DATABASE_URL"), variable
            assert "erver" in text  # a URL with a user name and without a password
    assert not re.search(r"postgresql://\S+:[^@\s/]+@", TEXTS[name])
    assert not re.search(r"(?i)password(?!Auth)|secretRef|accountKey", without_comments(TEXTS[name]))


def test_every_database_url_verifies_the_server():
    addresses = re.findall(r"'(postgresql://[^']+)'", MAIN)

    assert len(addresses) == 3
    assert all("sslmode=verify-full" in address for address in addresses)


def test_each_role_is_an_app_with_its_image_and_its_port():
    apps = {value(module, "name").replace("${prefix}-", ""): module for module in modules().values()}

    assert apps.keys() == {"orchestrator", "worker-light", "worker-raster", "serving", "gateway"}
    for name, module in apps.items():
        role = name.partition("-")[0]
        assert role in ROLES
        assert value(module, "image") == f"dagmaster-{role}:${{imageVersion}}"
        assert int(value(module, "port")) == KNOWN[PORTS[role]].default
    script = (ROOT / "scripts" / "deploy.sh").read_text()
    assert f"for app in {' '.join(apps)}; do" in script
    assert "name: '${prefix}-schema'" in MAIN
    assert "latest" not in MAIN.replace("never latest", "")


def test_probes_and_commands_exist():
    served = {route.path for route in api_health.probes.routes}

    assert {*re.findall(r"path: '([^']+)'", APP)} <= served
    assert {arguments.split("'")[1] for arguments in re.findall(r"args: \[([^\]]+)\]", MAIN)} <= set(COMMANDS)


def test_the_templates_respect_documented_limits_of_azure():
    """Mistakes that a compiler or Azure would refuse, as far as they can be found in the text."""
    names = [name for text in TEXTS.values() for name in re.findall(r"^  name: (.+)$", text, re.MULTILINE)]
    changes = r"^(?:resource|module) (\w+) '(?:\S+/flexibleServers/|administrator)"
    server_changes = re.findall(changes, MAIN, re.MULTILINE)

    assert not [
        name for name in names if ".properties." in name
    ]  # values that are known only after the deployment has started
    assert all(1 <= int(count) <= 10 for count in re.findall(r"failureThreshold: (\d+)", APP))
    assert {*re.findall(r"Microsoft\.App/\w+@([\w-]+)", MAIN + APP)} == {
        "2025-01-01"
    }  # this version has `identity` in scale rules
    assert server_changes == ["database", "extensions", "databaseAdmin"]
    for before, change in pairwise(server_changes):  # the server accepts one change at a time
        assert f"  dependsOn: [{before}]\n" in MAIN.split(f" {change} '")[1].split("\n}\n")[0] + "\n"
    assert "-preview" not in MAIN + APP


def test_the_server_allows_the_extensions_that_the_catalogue_creates():
    migrations = Path(str(files("pypgstac"))) / "migrations" / f"pgstac.{software_version()}.sql"
    created = re.findall(r"CREATE EXTENSION IF NOT EXISTS (\w+);", migrations.read_text())
    (allowed,) = re.findall(r"name: 'azure.extensions'\n  properties: \{ value: '([^']+)'", MAIN)

    assert created
    assert sorted(allowed.lower().split(",")) == sorted(created)


def test_queues_have_the_times_that_the_guide_of_service_bus_lists():
    queue = MAIN[MAIN.index("resource busQueues") :].partition("}]")[0]

    assert "lockDuration: 'PT1M'" in queue  # a message is settled when its task is claimed
    assert "defaultMessageTimeToLive: 'P1D'" in queue
    assert "maxDeliveryCount: 10" in queue
    assert "deadLetteringOnMessageExpiration: name == jobQueue" in queue
    assert timedelta(days=1) == MAX_AGE


def test_workers_serve_every_queue_and_have_the_memory_for_their_child_processes():
    workers = [module for name, module in modules().items() if name.startswith("worker")]
    queues = [queue for module in workers for queue in variables(module)["WORKER_QUEUE"].strip("'").split(",")]

    assert sorted(queues) == sorted(DEFAULT_QUEUES)
    for module in workers:
        given = {name: text.strip("'") for name, text in variables(module).items()}
        needed = int(given["WORKER_PROCESSES"]) * int(given["WORKER_MEMORY_MB"]) + 512
        assert megabytes(value(module, "memory")) >= needed
        scaled = re.search(r"scaledQueues: usesServiceBus \? \[([^\]]+)\]", module)
        assert scaled
        assert sorted(re.findall(r"'([\w-]+)'", scaled[1])) == sorted(given["WORKER_QUEUE"].split(","))


def test_identities_have_exactly_the_roles_that_the_guide_lists():
    declared = dict(re.findall(r"^  (\w+): '([0-9a-f-]{36})'$", MAIN, re.MULTILINE))
    assignments = re.findall(
        r"roleAssignments@[^{]+\{.*?scope: (\w+).*?roleDefinitions', roles\.(\w+)\).*?principalId: (\w+)Identity",
        MAIN,
        re.DOTALL,
    )
    guide = Path(ROOT / "docs/guides/azure.md").read_text()
    documented = re.findall(r"^\| `\w+_(\w+)` \| ([\w ]+) \| ([\w ]+) \|", guide, re.MULTILINE)
    scopes = {"registry": "registry", "storage account": "storage", "Service Bus": "bus"}
    scopes |= {"containers silver and external": "zones"}

    assert declared == BUILT_IN
    assert MAIN.count("roleAssignments@") == len(assignments) == len(set(assignments))
    assert {(scopes[scope], _camel(role), identity) for identity, role, scope in documented} == set(assignments)
    assert ("storage", "storageBlobDataContributor", "serving") not in assignments
    assert {scope for scope, _, identity in assignments if identity == "gateway"} == {"registry"}


def test_containers_cannot_use_the_identity_that_reads_the_length_of_queues():
    """That identity can change and delete queues."""
    workers = [module for name, module in modules().items() if name.startswith("worker")]
    others = [module for name, module in modules().items() if not name.startswith("worker")]

    assert "[{ identity: scalerIdentityId, lifecycle: 'None' }]" in APP
    assert re.findall(r"^    identity: (\w+)$", APP, re.MULTILINE) == [
        "scalerIdentityId"
    ]  # the identity of the scale rules
    assert all("scalerIdentityId: usesServiceBus ? scalerIdentity.id : ''" in module for module in workers)
    assert not any("scalerIdentity" in module for module in others)
    assert "scalerIdentity.properties.clientId" not in MAIN


def test_map_servers_can_read_only_the_zones_that_they_serve():
    containers, served = (
        re.findall(r"[\w]+", re.search(rf"^var {name} = \[([^\]]+)\]", MAIN, re.MULTILINE)[1])  # type: ignore[index]
        for name in ("containers", "servedContainers")
    )

    assert [containers[int(index)] for index in served] == [zone.value for zone in SERVED_ZONES]
    assert "scope: zones[index]" in MAIN
    assert "GRANT dagmaster_platform" not in Path(ROOT / "docs/guides/azure.md").read_text()


def _camel(role: str) -> str:
    joined = role.removeprefix("Azure ").replace(" ", "")
    return joined[0].lower() + joined[1:]


def test_the_identity_of_the_gateway_has_the_name_of_its_role_in_the_database():
    database = re.search(r"^var databaseName = '(\w+)'$", MAIN, re.MULTILINE)
    assert database

    assert "name: '${databaseName}_gateway'" in MAIN
    assert gateway_role_of(database[1]) == f"{database[1]}_gateway"
