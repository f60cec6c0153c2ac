"""Platforms and their references, and the id of an asset.

A platform is an external system that submits data. Its row names the references that a submission must have; adding a
platform is adding a row. The reference that names the version is not part of the identity of the asset.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from dagmaster.errors import Conflict, InvalidRequest

MAX_REF_LENGTH = 200


@dataclass(frozen=True, slots=True)
class RegisteredPlatform:
    """`version_ref` is the reference that names the version. It may be optional, and is never part of the identity."""

    platform_id: str
    display_name: str
    required_refs: tuple[str, ...]
    optional_refs: tuple[str, ...] = ()
    version_ref: str | None = None
    is_active: bool = True

    @property
    def identity_refs(self) -> tuple[str, ...]:
        return tuple(name for name in self.required_refs if name != self.version_ref)


@dataclass(frozen=True, slots=True)
class References:
    """Checked references: those that identify the asset, and the label of the version if one was given."""

    platform_id: str
    identity: Mapping[str, str]
    version_label: str | None
    all: Mapping[str, str]

    @property
    def asset_id(self) -> str:
        return asset_id_of(self.platform_id, self.identity)


def asset_id_of(platform_id: str, identity: Mapping[str, str]) -> str:
    """The first 32 hexadecimal digits of a SHA-256 over the platform and the identifying references.

    >>> asset_id_of("ddh", {"dataset_id": "floods", "resource_id": "r1"})
    '461328a8a54dee1e9a75fcbfc496f249'
    """
    text = f"{platform_id}|{json.dumps(dict(identity), sort_keys=True)}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def check_references(platform: RegisteredPlatform, refs: Mapping[str, str]) -> References:
    """The references of a submission, or an error that names every mistake in them."""
    if not platform.is_active:
        raise Conflict(
            f"the platform '{platform.platform_id}' is not active",
            code="platform.inactive",
            hint="ask an administrator to activate it",
        )
    allowed = {*platform.required_refs, *platform.optional_refs, *filter(None, [platform.version_ref])}
    problems = [f"'{name}' is missing" for name in platform.required_refs if name not in refs]
    problems += [f"'{name}' is not a reference of this platform" for name in sorted(refs.keys() - allowed)]
    problems += [
        f"'{name}' {problem}"
        for name, value in sorted(refs.items())
        if name in allowed and (problem := fault_in(value))
    ]
    if problems:
        raise InvalidRequest(
            f"the references do not fit the platform '{platform.platform_id}': {'; '.join(problems)}",
            code="refs.invalid",
            hint=f"required: {', '.join(platform.required_refs)}",
            problems=problems,
        )
    label = refs.get(platform.version_ref) if platform.version_ref else None
    identity = {name: refs[name] for name in platform.identity_refs}
    return References(platform.platform_id, identity, label, dict(refs))


def fault_in(value: object) -> str | None:
    """Why a value cannot be a reference or a label, or None."""
    if not isinstance(value, str):
        return "must be a string"
    if not value.strip():
        return "is empty"
    if len(value) > MAX_REF_LENGTH:
        return f"has more than {MAX_REF_LENGTH} characters"
    if not value.isprintable() or value != value.strip():
        return "has characters that cannot be printed, or spaces at its ends"
    return None
