"""A stand-in of `kubectl` for scripts/deploy.sh: it records what is applied and waited for, in a file.

`kustomize` collects resources and sets the names and tags of images, and supports nothing else.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def main(arguments: list[str]) -> int:
    file = Path(os.environ["KUBERNETES_STATE"])
    state = json.loads(file.read_text())
    if "kustomize" in arguments:
        print(yaml.dump_all(list(built(Path(arguments[-1]))), Dumper=yaml.CSafeDumper))
    elif "apply" in arguments:
        manifests = Path(arguments[arguments.index("--filename") + 1])
        selector = arguments[arguments.index("--selector") + 1] if "--selector" in arguments else None
        state["done"].append(["apply", selector, images_in(manifests)])
    elif "delete" in arguments:
        state["done"].append(["delete", *arguments[arguments.index("delete") + 1 :][:2]])
    else:  # wait, rollout status
        state["done"].append(["wait", next(word for word in arguments if word.startswith(("job/", "deployment/")))])
    file.write_text(json.dumps(state))
    return 1 if state["done"] and state["done"][-1] == ["wait", state["broken"]] else 0


def built(folder: Path) -> Iterator[dict[str, Any]]:
    (kustomization,) = documents_in(folder / "kustomization.yaml")
    images = {image["name"]: f"{image['newName']}:{image['newTag']}" for image in kustomization.get("images", ())}
    for name in kustomization["resources"]:
        path = folder / name
        for document in built(path) if path.is_dir() else documents_in(path):
            for container in containers_of(document):
                # As in the real kustomize, an image is given without its tag.
                container["image"] = images.get(container["image"].partition(":")[0], container["image"])
            yield document


def containers_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


def images_in(manifests: Path) -> list[str]:
    return sorted({each["image"] for document in documents_in(manifests) for each in containers_of(document)})


def documents_in(file: Path) -> list[dict[str, Any]]:
    return list(yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
