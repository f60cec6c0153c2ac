"""The key of the gateway that `dagmaster up` starts: it is private, new at each start, and has only one permission."""

import asyncio
from pathlib import Path

import pytest

from dagmaster.access.keys import parse_key
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.local.gateway_key import FILE, renewed_gateway_key
from dagmaster.operations.keys import revoke_key
from tests.api.serving import V1, api
from tests.gateway.kit import bearer

pytestmark = pytest.mark.requirement("G3", "X1", "X3")


def key_id_of(text: str) -> str:
    key = parse_key(text)
    assert key is not None
    return key.key_id


async def status_with(dsn: str, key: str, method: str, path: str) -> int:
    async with api(dsn, auth_enabled=True) as client:
        body = {"key_ids": [key_id_of(key)]}
        return (await client.request(method, f"{V1}{path}", json=body, headers=bearer(key))).status_code


def test_the_key_is_private_and_gets_a_new_secret_at_each_start(database: str, tmp_path: Path):
    first = renewed_gateway_key(database, tmp_path)
    second = renewed_gateway_key(database, tmp_path)

    file = tmp_path / FILE
    assert file.read_text() == f"{second}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert key_id_of(first) == key_id_of(second)
    assert first != second


def test_the_key_may_only_report_uses_of_keys(database: str, tmp_path: Path):
    key = renewed_gateway_key(database, tmp_path)

    assert asyncio.run(status_with(database, key, "POST", "/keys/uses")) == 200
    for method, path in (("GET", "/keys"), ("GET", "/assets"), ("GET", "/jobs"), ("POST", "/jobs")):
        assert asyncio.run(status_with(database, key, method, path)) == 403


def test_a_start_succeeds_after_one_that_died_before_it_wrote_the_key_file(database: str, tmp_path: Path):
    before = renewed_gateway_key(database, tmp_path)
    renewed_gateway_key(database, tmp_path)
    (tmp_path / FILE).write_text(before)  # the rotation was committed, the file was not replaced
    (tmp_path / f"{FILE}.new").write_text("half")

    key = renewed_gateway_key(database, tmp_path)

    assert asyncio.run(status_with(database, key, "POST", "/keys/uses")) == 200


@pytest.mark.parametrize("damage", ["revoked", "lost", "nonsense", "another database's", "a link"])
def test_a_key_that_cannot_be_used_is_replaced(database: str, tmp_path: Path, damage: str):
    before = renewed_gateway_key(database, tmp_path)
    file = tmp_path / FILE
    match damage:
        case "revoked":
            asyncio.run(revoked(database, before))
        case "lost":
            file.unlink()
        case "nonsense":
            file.write_bytes(b"\xff\x00 not a key" * 100)
        case "another database's":
            file.write_text(before.replace(key_id_of(before), "a" * 12))
        case _:
            other = tmp_path / "other"
            file.rename(other)
            file.symlink_to(other)

    key = renewed_gateway_key(database, tmp_path)

    assert key_id_of(key) != key_id_of(before)
    assert file.read_text() == f"{key}\n"
    assert not file.is_symlink()
    assert asyncio.run(status_with(database, key, "POST", "/keys/uses")) == 200


async def revoked(dsn: str, key: str) -> None:
    async with KeyStore(dsn) as keys:
        await revoke_key(keys, key_id_of(key), KeyChange("test"))
