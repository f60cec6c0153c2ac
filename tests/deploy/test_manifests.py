"""Compose, Kubernetes and the images agree with the code, and have no secrets."""

import re
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest

from dagmaster import __version__, settings
from dagmaster.api import health as api_health
from dagmaster.callbacks.url import PORTS as CALLBACK_PORTS
from dagmaster.cli.main import COMMANDS
from dagmaster.database.schema.gateway_role import ensure_gateway_role
from dagmaster.gateway.app import probes as gateway_probes
from dagmaster.observe.probes import PATHS
from dagmaster.serving import health as serving_health
from dagmaster.settings import DEFAULT_QUEUES, Settings
from tests.deploy.manifests import (
    PORTS,
    ROLES,
    ROOT,
    Container,
    compose,
    containers,
    dockerfile,
    image_environment,
    kubernetes_documents,
    megabytes,
    of_kind,
    pod_specs,
    role_of,
)

pytestmark = pytest.mark.requirement("M5")

CONTAINERS = {f"{each.file}:{each.name}:{' '.join(each.arguments)}": each for each in containers()}
EACH_CONTAINER = pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
KNOWN = settings.variables()
SECRET = {name for name, field in KNOWN.items() if not field.repr}


def probe_paths(role: str) -> set[str]:
    """The paths of the server of a role that need no key."""
    routers = {"orchestrator": api_health.probes, "serving": serving_health.router, "gateway": gateway_probes}
    return {route.path for route in routers[role].routes} if role in routers else {*PATHS}  # type: ignore[attr-defined]


def variables_of(container: Container) -> dict[str, str]:
    return image_environment(container.role) | container.values


@EACH_CONTAINER
def test_every_variable_of_a_container_is_a_setting(container):
    assert {*variables_of(container), *container.secrets} - KNOWN.keys() == set()


@EACH_CONTAINER
def test_the_settings_of_a_container_are_valid(container, monkeypatch):
    secrets = {
        "DATABASE_URL": "postgresql://x@h/d",
        "PUBLIC_URL": "https://h",
        "TRUSTED_PROXIES": "10.0.0.1",
        "STORAGE_BACKEND": "azure",
        "AZURE_STORAGE_ACCOUNT_NAME": settings.AZURITE_ACCOUNT,
        "AZURE_STORAGE_ENDPOINT": "http://azurite:10000/{account}",
    }
    for name, value in {
        **variables_of(container),
        **{name: secrets.get(name, "x") for name in container.secrets},
    }.items():
        monkeypatch.setenv(name, value)

    loaded = settings.load()

    assert loaded.run_mode == container.role
    assert loaded.auth_enabled
    assert loaded.log_format == "json"


@EACH_CONTAINER
def test_secrets_are_not_in_the_files(container):
    assert variables_of(container).keys() & SECRET == set()


@EACH_CONTAINER
def test_a_container_has_only_the_credentials_of_its_role(container):
    """A gateway must not be able to write, so it has only the database URL of its own role."""
    own = {"GATEWAY_DATABASE_URL", "GATEWAY_KEY"} if container.role == "gateway" else {"DATABASE_URL"}
    if container.file == "compose.yaml" and container.role != "gateway" and not container.arguments:
        own |= {"AZURE_STORAGE_ACCOUNT_KEY"}  # the key of Azurite: settings refuse a key for other accounts

    assert container.secrets & SECRET == own


@EACH_CONTAINER
def test_the_arguments_of_a_container_are_commands(container):
    assert not container.arguments or container.arguments[0] in COMMANDS


def test_workers_serve_every_queue():
    for file in ("compose.yaml", "kubernetes"):
        served = [
            queue
            for container in CONTAINERS.values()
            if container.file == file and container.role == "worker"
            for queue in container.values["WORKER_QUEUE"].split(",")
        ]
        assert sorted(served) == sorted(DEFAULT_QUEUES), file


@pytest.mark.parametrize("container", [each for each in CONTAINERS.values() if each.role == "worker"])
def test_the_memory_of_a_worker_is_enough_for_its_child_processes(container):
    processes, memory = (int(container.values[name]) for name in ("WORKER_PROCESSES", "WORKER_MEMORY_MB"))
    limit = container.facts.get("mem_limit") or container.facts["resources"]["limits"]["memory"]

    assert megabytes(limit) >= processes * memory + 512


def test_workers_have_time_to_end_their_tasks_before_they_are_killed():
    grace = KNOWN["SHUTDOWN_GRACE_SEC"].default
    in_compose = [
        each["stop_grace_period"] for name, each in compose()["services"].items() if name.startswith("worker")
    ]
    in_kubernetes = [pod["terminationGracePeriodSeconds"] for name, pod in pod_specs().items() if "worker" in name]

    assert len(in_compose) == len(in_kubernetes) == 2
    assert all(int(text.removesuffix("s")) > grace + 10 for text in in_compose)
    assert all(seconds > grace + 10 for seconds in in_kubernetes)


def test_images_exist_and_have_a_version():
    ours = {role_of(service["image"]) for service in compose()["services"].values()} - {None}
    in_kubernetes = {
        container["image"]
        for pod in pod_specs().values()
        for container in [*pod["containers"], *pod.get("initContainers", ())]
    }
    (overlay,) = (each for each in kubernetes_documents("example") if "images" in each)

    assert ours == {*ROLES}
    assert in_kubernetes == {f"dagmaster-{role}" for role in ROLES} == {each["name"] for each in overlay["images"]}
    assert {each["newTag"] for each in overlay["images"]} == {__version__}
    assert all(dockerfile(role).is_file() for role in ROLES)
    for service in compose()["services"].values():
        default = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["image"])
        assert re.search(r":[\w.-]*\d[\w.-]*$", default), default
        assert not role_of(default) or default.endswith(f":{__version__}")


@pytest.mark.parametrize("file", ["compose.yaml", "deploy", "Dockerfile*", "scripts"])
def test_no_file_names_the_tag_latest_or_a_package_index(file):
    paths = [ROOT / file] if (ROOT / file).is_file() else list(ROOT.glob(file))
    files = [each for path in paths for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file()]
    assert files
    for each in files:
        if each.suffix == ".pyc":
            continue
        text = each.read_text()
        assert not re.search(r":latest\b(?!\|)", text), each
        assert not re.search(r"index-url|pypi\.org|deb\.debian\.org|registry\.npmjs", text), each


@pytest.mark.parametrize("role", ROLES)
def test_ports_and_probes_of_a_role_are_those_of_the_code(role):
    port = KNOWN[PORTS[role]].default
    exposed = re.findall(r"^EXPOSE (\d+)$", dockerfile(role).read_text(), re.MULTILINE)
    assert exposed == [str(port)]

    pods = {name: pod for name, pod in pod_specs().items() if name.partition("-")[0] == role}
    assert pods
    for name, pod in pods.items():
        (container,) = pod["containers"]
        (declared,) = container["ports"]
        assert declared["containerPort"] == port
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            request = container[probe]["httpGet"]
            assert request["port"] == declared["name"]
            assert request["path"] in probe_paths(role)
        (policy,) = (each for key, each in of_kind("NetworkPolicy").items() if key == name)
        assert [rule["ports"] for rule in policy["spec"]["ingress"]] == [[{"protocol": "TCP", "port": port}]]


@pytest.mark.parametrize("role", ROLES)
def test_both_probes_exist_in_the_server_of_a_role(role):
    assert {"/livez", "/readyz"} <= probe_paths(role)


def test_addresses_between_roles_are_services_with_the_port_of_the_role():
    services = of_kind("Service")
    values = [
        container.values.get(name, "")
        for container in CONTAINERS.values()
        for name in ("SERVING_URLS", "ORCHESTRATOR_URLS")
    ]
    addresses = [address for value in values for address in re.findall(r"http://([\w-]+):(\d+)", value)]

    assert {host for host, _ in addresses} == {"serving", "orchestrator"}
    for host, port in addresses:
        assert int(port) == KNOWN[PORTS[host]].default
        assert host in compose()["services"]
        assert services[host]["spec"]["ports"][0]["port"] == int(port)


def test_every_deployment_has_a_disruption_budget_a_network_policy_and_an_account():
    deployments = of_kind("Deployment")
    for kind in ("PodDisruptionBudget", "NetworkPolicy", "ServiceAccount"):
        assert deployments.keys() <= of_kind(kind).keys()
    for name, deployment in deployments.items():
        label = {"app.kubernetes.io/component": name}
        assert deployment["spec"]["selector"]["matchLabels"] == label
        assert deployment["spec"]["template"]["metadata"]["labels"] == label
        assert of_kind("PodDisruptionBudget")[name]["spec"]["selector"]["matchLabels"] == label
        assert of_kind("NetworkPolicy")[name]["spec"]["podSelector"]["matchLabels"] == label
        assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == name


def test_network_policies_allow_the_same_connections_on_both_sides():
    policies = {name: policy["spec"] for name, policy in of_kind("NetworkPolicy").items() if name != "default"}

    def connections(direction: str, side: str) -> set[tuple[str, str, int]]:
        """Source, target and port of the connections between components that one side allows."""
        return {
            (name, other, port["port"]) if direction == "egress" else (other, name, port["port"])
            for name, spec in policies.items()
            for rule in spec[direction]
            for peer in rule.get(side, ())
            for port in rule["ports"]
            if (other := peer.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/component"))
        }

    assert connections("egress", "to") == connections("ingress", "from")
    assert connections("egress", "to") == {
        ("gateway", "orchestrator", 8000),
        ("gateway", "worker-light", 8002),
        ("gateway", "worker-raster", 8002),
        ("orchestrator", "serving", 8003),
    }


def test_callbacks_may_use_every_port_that_they_are_allowed():
    egress = of_kind("NetworkPolicy")["orchestrator"]["spec"]["egress"]
    ports = {port["port"] for rule in egress if "to" not in rule for port in rule["ports"]}

    assert set(CALLBACK_PORTS) <= ports


def test_network_traffic_is_denied_by_default():
    default = of_kind("NetworkPolicy")["default"]["spec"]

    assert default == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize("name", pod_specs())
def test_pods_are_restricted(name):
    pod = pod_specs()[name]

    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


def test_containers_of_compose_are_restricted():
    for name, service in compose()["services"].items():
        if role_of(service["image"]):
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name


@pytest.mark.parametrize("name", ["orchestrator", "worker-light", "worker-raster"])
def test_the_scratch_folder_of_compose_is_in_a_writable_volume(name):
    """With an object store, large files and uploads are written there. The root file system is read-only."""
    service = compose()["services"][name]

    writable = [volume.split(":")[1] for volume in service["volumes"] if not volume.endswith(":ro")]
    assert service["read_only"]
    assert any(Path(service["environment"]["SCRATCH_FOLDER"]).is_relative_to(folder) for folder in writable)


@pytest.mark.parametrize("role", ROLES)
def test_an_image_has_a_pinned_base_and_runs_as_an_unprivileged_user(role):
    text = dockerfile(role).read_text()
    last = text[text.rindex("\nFROM ") :]

    assert re.search(r"^ARG BASE$", text, re.MULTILINE)
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BUILD_BASE}", "${BASE}"]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert 'ENTRYPOINT ["/opt/dagmaster/bin/dagmaster"]' in last
    assert "HEALTHCHECK" in last
    assert not re.search(r"^RUN", last, re.MULTILINE), "the base image has no shell"
    assert image_environment(role)["RUN_MODE"] == role


def test_the_autoscaler_reads_the_length_of_queues_with_the_role_of_the_gateway(database):
    url = ensure_gateway_role(database, with_password=True)
    row = (
        "INSERT INTO dagapp.dag_tasks "
        "(job_id, node_id, attempt, queue, handler, priority, status, timeout_seconds, available_at) "
        "VALUES (gen_random_uuid(), 'a', 1, %s, 'echo', 0, %s, 60, dagapp.clock() + make_interval(secs => %s))"
    )
    with psycopg.connect(database, autocommit=True) as connection:
        for values in [("container-tasks", "queued", -5), ("container-tasks", "queued", 3600), ("other", "queued", 0)]:
            connection.execute(row, values)

    lengths = {}
    with psycopg.connect(url) as connection:
        for name, scaled in of_kind("ScaledObject").items():
            (trigger,) = scaled["spec"]["triggers"]
            ((lengths[name],),) = connection.execute(trigger["metadata"]["query"]).fetchall()
        ((oldest,),) = connection.execute(
            "SELECT oldest_seconds FROM dagapp_gateway.queues WHERE queue = 'container-tasks'"
        ).fetchall()

    assert lengths == {"worker-raster": 1, "worker-light": 0}, "a task that is not due yet needs no worker"
    assert 5 <= oldest < 60


def test_the_autoscaler_queries_the_queues_of_its_workers():
    by_name = {each.name: each for each in CONTAINERS.values() if each.file == "kubernetes"}
    for name, scaled in of_kind("ScaledObject").items():
        (trigger,) = scaled["spec"]["triggers"]
        queues = re.findall(r"'([\w-]+)'", trigger["metadata"]["query"])
        assert scaled["spec"]["scaleTargetRef"]["name"] == name
        assert sorted(queues) == sorted(by_name[name].values["WORKER_QUEUE"].split(","))


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_the_overlay_can_be_built_and_resources_to_apply_first_are_complete():
    import yaml

    command = ["kubectl", "kustomize", str(ROOT / "deploy" / "kubernetes" / "example")]
    built = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    documents = list(yaml.safe_load_all(built))
    first = {
        each["kind"]: each for each in documents if each["metadata"].get("labels", {}).get("dagmaster/first") == "true"
    }

    assert len(documents) > 30
    assert first.keys() == {"Namespace", "ConfigMap", "ServiceAccount", "Job", "NetworkPolicy"}
    (container,) = first["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"configMapRef": {"name": first["ConfigMap"]["metadata"]["name"]}}]


def test_the_settings_class_has_a_default_for_every_port():
    """Otherwise the tests above compare nothing."""
    assert {Settings.model_fields[name.lower()].default for name in PORTS.values()} == {8000, 8001, 8002, 8003}


def test_the_example_env_file_has_only_variables_that_compose_uses():
    names = set(re.findall(r"^#?([A-Z_]+)=", Path(ROOT / "deploy/compose/example.env").read_text(), re.MULTILINE))

    assert names <= set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text()))
