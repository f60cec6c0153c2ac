"""Write the SBOM of an image, a CycloneDX document, from the files that the image installs.

`scripts/images` calls it with the role and the folder of the build context. It contains the wheels of the locked
requirements, the wheel of dagmaster and, if the base is made from Debian's packages, their list. The same files
always result in the same document.
"""

import argparse
import hashlib
import json
import re
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

SPEC_VERSION = "1.5"


def sbom(role: str, context: Path, version: str) -> dict[str, Any]:
    """The document. The image is the subject; its components are Python distributions and Debian packages."""
    wheels = sorted((context / "wheels" / role).glob("*.whl")) + sorted((context / "dist").glob("dagmaster-*.whl"))
    components = [python_component(wheel) for wheel in wheels]
    debian = context / "debian-packages"
    if debian.is_file():
        components += [debian_component(fields) for fields in debian_packages(debian.read_text())]
    components.sort(key=lambda component: component["bom-ref"])
    subject = {"type": "container", "bom-ref": "image", "name": f"dagmaster-{role}", "version": version}
    content = json.dumps([subject, components], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": subject},
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": [component["bom-ref"] for component in components]}],
    }


def python_component(wheel: Path) -> dict[str, Any]:
    metadata = metadata_of(wheel)
    name, version = metadata["Name"], metadata["Version"]
    purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
    }
    if expression := metadata["License-Expression"]:
        component["licenses"] = [{"expression": expression}]
    return component


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        return HeaderParser().parsestr(archive.read(name).decode())


def debian_packages(text: str) -> Iterator[dict[str, str]]:
    """The fields of each package of a list in the format of dpkg."""
    for block in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([\w-]+):\s*(.*)$", block, re.MULTILINE))
        if "Package" in fields:
            yield fields


def debian_component(fields: dict[str, str]) -> dict[str, Any]:
    name, version = fields["Package"], fields["Version"]
    escaped = version.replace("+", "%2B").replace(":", "%3A").replace("~", "%7E")
    purl = f"pkg:deb/debian/{name.replace('+', '%2B')}@{escaped}?arch={fields['Architecture']}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role")
    parser.add_argument("context", type=Path)
    parser.add_argument("--version", required=True)
    options = parser.parse_args()
    target = options.context / "sbom" / f"{options.role}.cdx.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    document = sbom(options.role, options.context, options.version)
    target.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
