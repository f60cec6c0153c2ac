"""Keys over HTTP are created, used, rotated and revoked. A change applies to the next request and is recorded."""

import asyncio
from contextlib import asynccontextmanager

import psycopg
import pytest

from dagmaster.access.caller import Scope
from dagmaster.access.keys import new_key
from dagmaster.client.models.assets import KeyRequest
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.operations.keys import create_first_key, create_key
from tests.api.serving import V1, api, ok, pages_of
from tests.web.problems import check

pytestmark = pytest.mark.requirement("X1")


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def rows(database):
    def read(statement):
        with psycopg.connect(database, row_factory=psycopg.rows.dict_row) as connection:
            return connection.execute(statement).fetchall()

    return read


@asynccontextmanager
async def protected(database, **settings):
    """The API with authentication; its client has the key of an administrator."""
    async with KeyStore(database) as keys:
        admin = await create_key(keys, KeyRequest(name="root", scopes=["admin"]), KeyChange("test"))
    async with api(database, auth_enabled=True, **settings) as client:
        client.headers.update(bearer(admin.key))
        yield client


async def created(client, **wanted):
    return await ok(client.post(f"{V1}/keys", json={"name": "a", "scopes": ["viewer"], **wanted}), 201)


async def who(client, key):
    return await client.get(f"{V1}/caller", headers=bearer(key))


async def test_a_created_key_identifies_its_caller(database):
    async with protected(database) as client:
        response = await client.post(f"{V1}/keys", json={"name": "ci", "scopes": ["author", "viewer", "author"]})
        key = response.json()
        caller = await ok(who(client, key["key"]))
        del client.headers["authorization"]
        by_header = await ok(client.get(f"{V1}/caller", headers={"X-API-Key": key["key"]}))
        anonymous = await ok(client.get(f"{V1}/caller"))

    assert response.headers["cache-control"] == "no-store"
    assert (key["name"], key["scopes"], key["created_by"]) == ("ci", ["viewer", "author"], "root")
    assert caller == by_header
    assert (caller["name"], caller["scopes"]) == ("ci", ["author", "viewer"])
    assert {"jobs:submit", "workflows:write"} <= set(caller["permissions"])
    assert "keys:write" not in caller["permissions"]
    assert (anonymous["name"], anonymous["permissions"]) == ("anonymous", ["anyone"])


async def test_the_database_contains_only_hashes_of_keys(database, rows):
    async with protected(database) as client:
        key = await created(client)
        await ok(client.post(f"{V1}/keys/{key['key_id']}/rotate"))

    with psycopg.connect(database) as connection:
        secret = key["key"].split("_", 2)[2]
        for table in ("api_keys", "asset_events"):
            dump = connection.execute(f"SELECT string_agg(t::text, ' ') FROM dagapp.{table} AS t").fetchone()[0]
            assert secret not in dump
            assert key["key_id"] in dump


@pytest.mark.parametrize(
    "credentials",
    [
        {"Authorization": "Bearer dgm_wrong"},
        {"Authorization": "Bearer something"},
        {"Authorization": "Basic YTpi"},
        {"Authorization": "Bearer"},
        {"X-API-Key": "dgm_"},
        {"X-API-Key": ""},
        {"Authorization": f"Bearer {new_key().text}"},
        {"Authorization": f"Bearer {new_key().text}", "X-API-Key": new_key().text},
    ],
    ids=range(8),
)
@pytest.mark.parametrize("path", ["/livez", "/openapi.json", f"{V1}/caller", f"{V1}/jobs", "/none"])
async def test_invalid_credentials_are_refused_on_all_routes(shared_database, credentials, path):
    async with api(shared_database, auth_enabled=True) as client:
        response = await client.get(path, headers=credentials)

    problem = check(response, 401, response.json()["code"])
    assert problem["code"].startswith("auth.")
    assert "www-authenticate" in response.headers
    for value in credentials.values():
        assert value not in response.text or len(value) < 10


async def test_a_wrong_secret_of_an_existing_key_gets_the_same_response_as_an_unknown_key(database):
    async with protected(database) as client:
        key = await created(client)
        wrong = await who(client, new_key(key["key_id"]).text)
        unknown = await who(client, new_key().text)

    assert {**wrong.json(), "request_id": 0} == {**unknown.json(), "request_id": 0}
    assert wrong.status_code == 401


async def test_a_revoked_key_is_refused_from_the_next_request_on(database):
    async with protected(database) as client, api(database, auth_enabled=True) as other_api:
        key = await created(client)
        before = await who(other_api, key["key"])
        revoked = await ok(client.post(f"{V1}/keys/{key['key_id']}/revoke", json={"reason": "lost"}))
        after = [await who(each, key["key"]) for each in (client, other_api)]
        again = await client.post(f"{V1}/keys/{key['key_id']}/revoke")
        rotated = await client.post(f"{V1}/keys/{key['key_id']}/rotate")
        (listed,) = await pages_of(client, f"{V1}/keys")
        (all_keys,) = await pages_of(client, f"{V1}/keys", revoked=True)
        reused = await client.post(f"{V1}/keys", json={"name": key["name"], "scopes": ["viewer"]})

    assert before.status_code == 200
    assert revoked["revoked_at"]
    for response in after:
        check(response, 401, "auth.revoked")
    check(again, 409, "key.revoked")
    check(rotated, 409, "key.revoked")
    assert [each["name"] for each in listed] == ["root"]
    assert [each["name"] for each in all_keys] == ["a", "root"]
    # The name cannot be used again: it is the actor of changes that were made with the revoked key.
    check(reused, 409, "key.name-taken")


async def test_the_previous_secret_is_accepted_during_the_overlap(database):
    async with protected(database) as client:
        first = await created(client)
        url = f"{V1}/keys/{first['key_id']}/rotate"
        second = await ok(client.post(url, json={"overlap_hours": 1}))
        during = [(await who(client, key["key"])).status_code for key in (first, second)]
        third = await ok(client.post(url, json={"overlap_hours": 1}))
        later = [(await who(client, key["key"])).status_code for key in (first, second, third)]
        fourth = await ok(client.post(url, json={"overlap_hours": 0}))
        after_last_rotation = [(await who(client, key["key"])).status_code for key in (second, third, fourth)]

    assert second["previous_until"]
    assert during == [200, 200]
    assert later == [401, 200, 200]
    assert fourth["previous_until"] is None
    assert after_last_rotation == [401, 401, 200]


async def test_the_previous_secret_is_refused_after_the_overlap(database):
    async with protected(database) as client:
        first = await created(client)
        second = await ok(client.post(f"{V1}/keys/{first['key_id']}/rotate", json={"overlap_hours": 1}))
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE dagapp.api_keys SET previous_until = dagapp.clock() WHERE name = 'a'")
        responses = [(await who(client, key["key"])).status_code for key in (first, second)]

    assert responses == [401, 200]


async def test_an_expired_key_is_refused_until_it_is_rotated(database):
    async with protected(database) as client:
        key = await created(client, expires_in_days=1e-6)
        await asyncio.sleep(0.2)
        expired = await who(client, key["key"])
        still = await ok(client.post(f"{V1}/keys/{key['key_id']}/rotate"))
        refused = await who(client, still["key"])
        renewed = await ok(client.post(f"{V1}/keys/{key['key_id']}/rotate", json={"expires_in_days": 1}))
        response = await who(client, renewed["key"])

    check(expired, 401, "auth.expired")
    check(refused, 401, "auth.expired")
    assert response.status_code == 200
    assert renewed["expires_at"] > key["expires_at"]


@pytest.mark.parametrize(
    ("wanted", "status", "code"),
    [
        ({"scopes": ["b2b"]}, 400, "key.platform"),
        ({"scopes": ["viewer"], "platform_id": "local"}, 400, "key.platform"),
        ({"scopes": ["b2b"], "platform_id": "nowhere"}, 404, "platform.not-found"),
        ({"scopes": ["root"]}, 400, "key.scope"),
        ({"scopes": []}, 422, "request.invalid"),
        ({"name": "local"}, 400, "key.name"),
        ({"name": "anonymous"}, 400, "key.name"),
        ({"name": "oidc:me"}, 400, "key.name"),
        ({"name": "two\nlines"}, 400, "key.name"),
        ({"name": " space"}, 400, "key.name"),
        ({"name": new_key().text}, 400, "key.name"),
        ({"name": "x" * 65}, 422, "request.invalid"),
        ({"name": "root"}, 409, "key.name-taken"),
        ({"expires_in_days": 0}, 422, "request.invalid"),
    ],
)
async def test_requests_for_invalid_keys_are_refused(database, wanted, status, code):
    async with protected(database) as client:
        response = await client.post(f"{V1}/keys", json={"name": "a", "scopes": ["viewer"], **wanted})

    check(response, status, code)


async def test_a_b2b_key_belongs_to_its_platform(database):
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO dagapp.platforms (platform_id, display_name, required_refs) VALUES ('hub', 'Hub', '{dataset}')"
        )
    async with protected(database) as client:
        key = await created(client, scopes=["b2b"], platform_id="hub")
        caller = await ok(who(client, key["key"]))

    assert (caller["scopes"], caller["platform_id"]) == (["b2b"], "hub")


async def test_only_administrators_manage_keys(database):
    async with protected(database) as client:
        keys = {
            scope: (await created(client, name=scope, scopes=[scope]))["key"]
            for scope in Scope
            if scope not in ("b2b", "admin")
        }
        responses = [
            await client.request(method, f"{V1}/keys{path}", headers=bearer(key), json=body)
            for key in keys.values()
            for method, path, body in (
                ("GET", "", None),
                ("POST", "", {"name": "mine", "scopes": ["admin"]}),
                ("POST", "/abc/rotate", None),
                ("POST", "/abc/revoke", None),
            )
        ]
        del client.headers["authorization"]
        anonymous = await client.get(f"{V1}/keys")

    for response in responses:
        check(response, 403, "auth.not-allowed")
    check(anonymous, 401, "auth.required")


async def test_a_key_in_the_path_is_not_repeated_in_the_response(database):
    async with protected(database) as client:
        text = new_key().text
        whole = await client.post(f"{V1}/keys/{text}/revoke")
        unknown = await client.post(f"{V1}/keys/{'a' * 12}/revoke")

    check(whole, 404, "key.not-found")
    assert text.split("_", 2)[2] not in whole.text
    check(unknown, 404, "key.not-found")


@pytest.mark.requirement("X3")
async def test_every_change_is_recorded_with_its_actor_and_reason(database, rows):
    async with protected(database) as client:
        key = await created(client)
        await client.post(
            f"{V1}/keys/{key['key_id']}/rotate", json={"reason": "yearly"}, headers={"X-Request-ID": "r-1"}
        )
        await client.post(f"{V1}/keys/{key['key_id']}/revoke", json={"reason": "lost"})

    events = rows("SELECT action, actor, reason, detail->>'key_id' AS key_id, request_id FROM dagapp.asset_events")
    mine = [event for event in events if event["key_id"] == key["key_id"]]
    assert [(event["action"], event["actor"], event["reason"]) for event in mine] == [
        ("key_created", "root", None),
        ("key_rotated", "root", "yearly"),
        ("key_revoked", "root", "lost"),
    ]
    assert mine[1]["request_id"] == "r-1"


async def test_the_last_use_of_a_key_is_recorded_in_the_background_at_most_once_a_minute(database, rows):
    used = "SELECT last_used_at FROM dagapp.api_keys WHERE name = 'root'"
    async with protected(database) as client:
        await ok(client.get(f"{V1}/caller"))
        at_once = rows(used)[0]["last_used_at"]
    (first,) = rows(used)
    async with KeyStore(database) as keys:
        (key,) = rows("SELECT key_id FROM dagapp.api_keys")
        keys.note_use(key["key_id"])
        await keys.record_uses()
        (second,) = rows(used)
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE dagapp.api_keys SET last_used_at = last_used_at - interval '2 minutes'")
        (before,) = rows(used)
        keys.note_use(key["key_id"])
        await keys.record_uses()
        (third,) = rows(used)

    assert at_once is None
    assert first["last_used_at"] is not None
    assert second == first
    assert third == before  # this process noted the key less than a minute ago


async def test_only_one_of_several_processes_that_start_together_creates_the_first_key(database, rows):
    async def start():
        async with KeyStore(database) as keys:
            return await create_first_key(keys, KeyChange("system"))

    created_keys = await asyncio.gather(*(start() for _ in range(8)))
    again = await start()

    assert len([key for key in created_keys if key]) == 1
    assert again is None
    assert [row["scopes"] for row in rows("SELECT scopes FROM dagapp.api_keys")] == [["admin"]]


async def test_keys_are_listed_in_pages_without_their_secrets(database):
    async with protected(database) as client:
        for number in range(4):
            await created(client, name=f"k{number}")
        pages = await pages_of(client, f"{V1}/keys", limit=2)
        bad = await client.get(f"{V1}/keys", params={"after": "nonsense"})

    assert [[key["name"] for key in page] for page in pages] == [["k3", "k2"], ["k1", "k0"], ["root"]]
    assert not {"secret_hash", "previous_hash", "key"} & set(pages[0][0])
    check(bad, 400, "request.bad-cursor")


async def test_without_a_database_a_key_is_not_refused_as_invalid():
    async with api("postgresql://nobody@127.0.0.1:1/none", auth_enabled=True) as client:
        with_key = await client.get(f"{V1}/caller", headers=bearer(new_key().text))
        without = await client.get("/livez")

    assert with_key.status_code == 503
    assert without.status_code == 200
