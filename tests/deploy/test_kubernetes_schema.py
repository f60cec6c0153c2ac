"""Every manifest is valid for an old and a newer version of Kubernetes: its fields exist and have the right types."""

import kubernetes_validate
import pytest
import yaml

from tests.deploy.manifests import KUBERNETES

pytestmark = pytest.mark.requirement("M5")

# Resources that extensions define, and files of kustomize.
FOREIGN = ("keda.sh/", "kustomize.config.k8s.io/")
DOCUMENTS = {
    f"{file.parent.name}/{file.name}:{document['kind']}:{document['metadata']['name']}": document
    for file in sorted(KUBERNETES.rglob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
    if document and not document["apiVersion"].startswith(FOREIGN)
}


def test_there_are_manifests():
    assert len(DOCUMENTS) > 20


@pytest.mark.parametrize("version", ["1.27", "1.31"])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_manifest_is_valid(name, version):
    kubernetes_validate.validate(DOCUMENTS[name], version, strict=True)


def test_a_misspelt_field_is_detected():
    """Otherwise the tests above prove nothing."""
    (name,) = (each for each in DOCUMENTS if each.endswith(":Deployment:gateway"))
    broken = {**DOCUMENTS[name], "spec": {**DOCUMENTS[name]["spec"], "revisionHistoryLimits": 5}}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.31", strict=True)
