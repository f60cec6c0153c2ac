"""The programs of a deployment: the health check of images, SBOMs, units of systemd, and scripts/deploy.sh."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dagmaster import settings
from dagmaster.cli.main import COMMANDS
from tests.deploy.manifests import PORTS, ROLES, ROOT

pytestmark = pytest.mark.requirement("M5")

HEALTHCHECK = ROOT / "deploy" / "images" / "healthcheck.py"
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


@contextmanager
def server(status: int, paths: list[str]) -> Iterator[int]:
    """A server that responds with one status and records the paths; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield http.server_address[1]
    finally:
        http.shutdown()
        http.server_close()


def checked(**variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", str(HEALTHCHECK)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("role", ROLES)
def test_the_health_check_uses_the_port_of_the_role(role):
    paths: list[str] = []
    with server(200, paths) as port:
        finished = checked(RUN_MODE=role, **{PORTS[role]: str(port)})

    assert finished.returncode == 0, finished.stdout
    assert paths == ["/livez"]


def test_the_health_check_fails_if_the_process_is_not_alive_or_does_not_respond():
    with server(503, []) as port:
        assert checked(RUN_MODE="worker", HEALTH_PORT=str(port)).returncode == 1
    assert checked(RUN_MODE="worker", HEALTH_PORT=str(port)).returncode == 1


def test_an_orchestrator_without_the_api_is_checked_at_the_health_port():
    with server(200, []) as port:
        assert checked(RUN_MODE="orchestrator", API_ENABLED="false", HEALTH_PORT=str(port)).returncode == 0


def test_the_health_check_knows_the_default_ports():
    ports = runpy.run_path(str(HEALTHCHECK))["PORTS"]

    assert ports == {role: (name, settings.variables()[name].default) for role, name in PORTS.items()}


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A build context with one wheel of another project, one of ours, and two Debian packages."""
    for folder, name, version, more in (
        ("wheels/worker", "Some.Library", "1.2", "License-Expression: MIT\n"),
        ("dist", "dagmaster", "0.1.0", ""),
    ):
        (tmp_path / folder).mkdir(parents=True)
        with zipfile.ZipFile(tmp_path / folder / f"{name.replace('.', '_')}-{version}-py3-none-any.whl", "w") as wheel:
            metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{more}\nDescription\n"
            wheel.writestr(zipfile.ZipInfo(f"{name.replace('.', '_')}-{version}.dist-info/METADATA"), metadata)
    libc = "Package: libc6\nVersion: 2.36-9+deb12u14\nArchitecture: amd64\n"
    packages = f"{libc}\n\nPackage: tzdata\nVersion: 2025b-0\nArchitecture: all\n"
    (tmp_path / "debian-packages").write_text(packages)
    return tmp_path


def sbom_of(context: Path) -> dict:
    command = [sys.executable, str(ROOT / "scripts" / "write_sbom.py"), "worker", str(context), "--version", "9"]
    subprocess.run(command, check=True, timeout=60)
    return json.loads((context / "sbom" / "worker.cdx.json").read_text())


def test_an_sbom_lists_python_distributions_and_debian_packages(context):
    document = sbom_of(context)
    by_purl = {component["purl"]: component for component in document["components"]}

    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert document["metadata"]["component"]["name"] == "dagmaster-worker"
    assert by_purl.keys() == {
        "pkg:pypi/some-library@1.2",
        "pkg:pypi/dagmaster@0.1.0",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64",
        "pkg:deb/debian/tzdata@2025b-0?arch=all",
    }
    library = by_purl["pkg:pypi/some-library@1.2"]
    assert library["licenses"] == [{"expression": "MIT"}]
    assert re.fullmatch(r"[0-9a-f]{64}", library["hashes"][0]["content"])
    assert document["dependencies"] == [{"ref": "image", "dependsOn": sorted(by_purl)}]


def test_the_same_files_give_the_same_sbom(context):
    assert sbom_of(context) == sbom_of(context)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_and_is_restricted(unit):
    text = unit.read_text()

    commands = re.findall(r"^ExecStart=/opt/dagmaster/bin/dagmaster (\S+)", text, re.MULTILINE)
    assert commands
    assert {*commands} <= COMMANDS.keys()
    for line in ("User=dagmaster", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet="):
        assert f"\n{line}\n" in text
    given = re.findall(r"^Environment=(.*)$", text, re.MULTILINE)
    names = {pair.partition("=")[0] for line in given for pair in line.split()}
    assert names <= settings.variables().keys()


def test_every_role_has_a_unit():
    assert {unit.stem.removeprefix("dagmaster-").rstrip("@") for unit in UNITS} == {*ROLES, "schema"}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path):
    for unit in [*UNITS, ROOT / "deploy" / "systemd" / "dagmaster.target"]:
        copy = tmp_path / unit.name.replace("@.", "@1.")
        copy.write_text(unit.read_text().replace("/opt/dagmaster/bin/dagmaster", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_accepts_the_scripts():
    files = [*(ROOT / "scripts").iterdir(), *(ROOT / ".ci").iterdir()]
    scripts = [str(path) for path in files if path.is_file() and re.match(rb"#!.*\b(ba)?sh\b", path.read_bytes())]
    assert len(scripts) > 4

    assert (
        subprocess.run(
            ["shellcheck", "--severity=warning", *scripts], capture_output=True, text=True, check=False, timeout=60
        ).stdout
        == ""
    )


def deploy(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "scripts" / "deploy.sh"), *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def position(lines: list[str], *words: str) -> int:
    (line_number,) = (number for number, line in enumerate(lines) if all(word in line for word in words))
    return line_number


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_a_deployment_migrates_the_schema_before_it_replaces_roles(tmp_path):
    overlay = copied_overlay(tmp_path)
    finished = deploy(
        *("kubernetes", "--registry", "r.example.org", "--version", "1.2.3", "--overlay", str(overlay), "--dry-run"),
        ENGINE="docker",
    )
    lines = finished.stdout.splitlines()

    assert finished.returncode == 0, finished.stderr
    assert (
        position(lines, "scripts/images", "VERSION=1.2.3")
        < position(lines, "push r.example.org/dagmaster-gateway:1.2.3")
        < position(lines, "apply", "dagmaster/first=true")
        < position(lines, "wait", "job/schema")
        < position(lines, "rollout status", "deployment/orchestrator")
        < position(lines, "rollout status", "deployment/gateway")
    )
    assert not list(overlay.parent.glob(".deploy*"))


def test_a_deployment_on_azure_sets_every_image_explicitly():
    finished = deploy(
        *("azure", "--registry", "reg", "--version", "1.2.3", "--resource-group", "geo", "--dry-run"),
        BASE="python@sha256:0",
    )
    lines = finished.stdout.splitlines()

    assert finished.returncode == 0, finished.stderr
    assert position(lines, "acr build", "Dockerfile.gateway") < position(lines, "job start")
    for app, role in (("orchestrator", "orchestrator"), ("worker-light", "worker"), ("worker-raster", "worker")):
        update = position(lines, "containerapp update", f"dagmaster-{app} ", f"reg.azurecr.io/dagmaster-{role}:1.2.3")
        assert update > position(lines, "job start")


def copied_overlay(folder: Path) -> Path:
    """A copy, because a deployment writes next to its overlay, while other tests read the original manifests."""
    return shutil.copytree(ROOT / "deploy" / "kubernetes", folder / "kubernetes") / "example"


class Kubernetes:
    """A cluster that is simulated by a stand-in of `kubectl`."""

    def __init__(self, folder: Path) -> None:
        self.overlay = copied_overlay(folder)
        self._state_file = folder / "kubernetes.json"
        self._programs = stand_in(folder, "kubectl", "kubernetes_stand_in.py")

    def deploy(self, version: str, broken: str | None = None) -> subprocess.CompletedProcess[str]:
        """Deploy a version; the deployment `broken` never becomes ready."""
        self._state_file.write_text(json.dumps({"done": [], "broken": broken}))
        overlay = ("--overlay", str(self.overlay))
        arguments = ("--registry", "r.example.org/geo", "--version", version, *overlay, "--no-build")
        path = f"{self._programs}:{os.environ['PATH']}"
        return deploy("kubernetes", *arguments, PATH=path, KUBERNETES_STATE=str(self._state_file))

    @property
    def done(self) -> list[list[object]]:
        """The resources that were applied, deleted and waited for, in this order."""
        done: list[list[object]] = json.loads(self._state_file.read_text())["done"]
        return done


def stand_in(folder: Path, program: str, module: str) -> Path:
    """A folder with a program that is a stand-in."""
    programs = folder / "bin"
    programs.mkdir()
    file = programs / program
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "tests" / "deploy" / module} "$@"\n')
    file.chmod(0o755)
    return programs


@pytest.fixture
def kubernetes(tmp_path: Path) -> Kubernetes:
    return Kubernetes(tmp_path)


def test_on_kubernetes_the_new_version_migrates_the_schema_before_any_role_is_replaced(kubernetes):
    finished = kubernetes.deploy("1.1.0")

    assert finished.returncode == 0, finished.stderr
    images = [f"r.example.org/geo/dagmaster-{role}:1.1.0" for role in sorted(ROLES)]
    assert kubernetes.done == [
        ["delete", "job", "schema"],
        ["apply", "dagmaster/first=true", images],
        ["wait", "job/schema"],
        ["apply", None, images],
        *(["wait", f"deployment/{name}"] for name in ("orchestrator", "worker-light", "worker-raster")),
        *(["wait", f"deployment/{name}"] for name in ("serving", "gateway")),
    ]
    assert not list(kubernetes.overlay.parent.glob(".deploy*"))


def test_on_kubernetes_nothing_is_replaced_if_the_schema_was_not_migrated(kubernetes):
    finished = kubernetes.deploy("1.1.0", broken="job/schema")

    assert finished.returncode == 1
    assert "the schema was not migrated, nothing else was changed" in finished.stderr
    assert [what for what, *_ in kubernetes.done] == ["delete", "apply", "wait"]


def test_on_kubernetes_a_deployment_stops_at_a_role_that_does_not_become_healthy(kubernetes):
    finished = kubernetes.deploy("1.1.0", broken="deployment/worker-light")

    assert finished.returncode == 1
    assert "worker-light is not healthy; its old pods still run" in finished.stderr
    assert kubernetes.done[-1] == ["wait", "deployment/worker-light"]


class Azure:
    """A resource group with version 1.0.0 of deploy/azure/main.bicep, simulated by a stand-in of `az`."""

    def __init__(self, folder: Path) -> None:
        self._state_file = folder / "azure.json"
        self._programs = stand_in(folder, "az", "azure_stand_in.py")
        self.set(job=job_of_template("r.azurecr.io", "1.0.0"), job_status="Succeeded", broken_app=None, done=[])

    def set(self, **changes: object) -> None:
        known = json.loads(self._state_file.read_text()) if self._state_file.exists() else {}
        self._state_file.write_text(json.dumps({**known, **changes}))

    def deploy(self, version: str) -> subprocess.CompletedProcess[str]:
        arguments = ("--registry", "r", "--version", version, "--resource-group", "geo", "--no-build", "--timeout", "5")
        path = f"{self._programs}:{os.environ['PATH']}"
        return deploy("azure", *arguments, PATH=path, AZURE_STATE=str(self._state_file))

    @property
    def done(self) -> list[list[object]]:
        """The containers that ran and the images that were set, in this order."""
        done: list[list[object]] = json.loads(self._state_file.read_text())["done"]
        return done


def job_of_template(registry: str, version: str) -> dict[str, list[dict[str, object]]]:
    """The containers of the job that changes the schema."""
    template = (ROOT / "deploy" / "azure" / "main.bicep").read_text()
    job = template.split("resource schema 'Microsoft.App/jobs@")[1].split("\n}\n")[0]
    containers: dict[str, list[dict[str, object]]] = {"initContainers": [], "containers": []}
    for kind, text in re.findall(
        r"^      (initContainers|containers): \[\n(.*?)^      \]", job, re.MULTILINE | re.DOTALL
    ):
        images = re.findall(r"image: '\$\{registry.properties.loginServer\}/([\w-]+):\$\{imageVersion\}'", text)
        commands = re.findall(r"args: \[(.+)\]", text)
        for image, command in zip(images, commands, strict=True):
            arguments = re.findall(r"'([^']+)'", command)
            containers[kind].append({"image": f"{registry}/{image}:{version}", "args": arguments})
    return containers


@pytest.fixture
def azure(tmp_path: Path) -> Azure:
    return Azure(tmp_path)


def test_on_azure_the_new_version_migrates_the_schema_before_any_role_is_replaced(azure):
    finished = azure.deploy("1.1.0")

    assert finished.returncode == 0, finished.stderr
    assert azure.done == [
        ["ran", "r.azurecr.io/dagmaster-orchestrator:1.1.0", ["db", "deploy", "--migrate"]],
        ["set", "dagmaster-orchestrator", "r.azurecr.io/dagmaster-orchestrator:1.1.0"],
        ["set", "dagmaster-worker-light", "r.azurecr.io/dagmaster-worker:1.1.0"],
        ["set", "dagmaster-worker-raster", "r.azurecr.io/dagmaster-worker:1.1.0"],
        ["set", "dagmaster-serving", "r.azurecr.io/dagmaster-serving:1.1.0"],
        ["set", "dagmaster-gateway", "r.azurecr.io/dagmaster-gateway:1.1.0"],
    ]


def test_on_azure_nothing_is_replaced_if_the_schema_was_not_migrated(azure):
    azure.set(job_status="Failed")

    finished = azure.deploy("1.1.0")

    assert finished.returncode == 1
    assert "the schema was not migrated (Failed), nothing else was changed" in finished.stderr
    assert [what for what, *_ in azure.done] == ["ran"]


def test_on_azure_a_deployment_stops_at_a_role_that_does_not_become_healthy(azure):
    azure.set(broken_app="dagmaster-worker-light")

    finished = azure.deploy("1.1.0")

    assert finished.returncode == 1
    assert "dagmaster-worker-light has failed; the old revision still has the traffic" in finished.stderr
    assert [name for what, name, _ in azure.done if what == "set"] == [
        "dagmaster-orchestrator",
        "dagmaster-worker-light",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kubernetes", "--registry", "r"), "--version is required"),
        (("kubernetes", "--registry", "r", "--version", "latest"), "latest"),
        (("kubernetes", "--registry", "r", "--version", "a b"), "cannot be a tag"),
        (("kubernetes", "--registry", "r", "--version"), "--version needs a value"),
        (("kubernetes", "--registry", "r", "--version", "1", "--timeout", "soon"), "--timeout"),
        (("kubernetes", "--registry", "r", "--version", "1", "--overlay", "/none", "--dry-run"), "--overlay"),
        (("azure", "--registry", "r", "--version", "1", "--dry-run"), "--resource-group"),
        (("azure", "--what"), "unknown option --what"),
    ],
)
def test_a_deployment_with_missing_or_unknown_options_is_refused(arguments, message):
    finished = deploy(*arguments)

    assert finished.returncode == 1
    assert message in finished.stderr
    assert "apply" not in finished.stdout


def test_images_are_not_built_on_a_base_whose_content_may_change():
    finished = subprocess.run(
        [
            "bash",
            "-c",
            "source <(sed -n '/^fail()/p; /^require_pinned()/,/^}/p' scripts/images); require_pinned python:3.11-slim",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert finished.returncode == 1
    assert "NAME@sha256:" in finished.stderr
