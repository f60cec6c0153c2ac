"""Users sign in with a key: the session has the permissions of the key, ends with it, and other sites cannot use it."""

import asyncio
from contextlib import asynccontextmanager

import psycopg
import pytest
import structlog

from dagmaster.access.caller import Scope
from dagmaster.access.permissions import ALLOWED, Permission
from dagmaster.client.models.assets import KeyRequest
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.observe import log
from dagmaster.operations.keys import create_key, revoke_key, rotate_key
from tests.api.serving import V1, api, ok
from tests.api.test_callers import ROUTES, keys_of, url_of
from tests.web.problems import check

pytestmark = pytest.mark.requirement("X1")

SESSION = f"{V1}/session"
SAME_ORIGIN = {"Origin": "http://localhost"}
COOKIE = "dagmaster_session"


@asynccontextmanager
async def platform(dsn, **settings):
    """The API, and the keys of its callers."""
    async with KeyStore(dsn) as store, api(dsn, auth_enabled=True, **settings) as client:
        yield client, store


async def key_of(store, name="ada", scopes=("operator",), **more):
    return await create_key(store, KeyRequest(name=name, scopes=list(scopes), **more), KeyChange("test"))


async def signed_in(client, key):
    """Sign in: the client has the cookie afterwards, and the session is returned."""
    return await ok(client.post(SESSION, json={"key": key}, headers=SAME_ORIGIN), 201)


def own_page(session):
    return {**SAME_ORIGIN, "X-CSRF-Token": session["csrf_token"]}


async def test_a_user_signs_in_sees_the_session_and_signs_out(database):
    async with platform(database) as (client, store):
        key = await key_of(store)
        before = await ok(client.get(SESSION))
        response = await client.post(SESSION, json={"key": key.key}, headers=SAME_ORIGIN)
        session = response.json()
        seen = await ok(client.get(SESSION))
        jobs = await client.get(f"{V1}/jobs")
        stolen = client.cookies[COOKIE]
        await ok(client.delete(SESSION, headers=own_page(session)), 204)
        after = await ok(client.get(SESSION))
        copied = await client.get(f"{V1}/jobs", headers={"Cookie": f"{COOKIE}={stolen}"})

    assert (before["is_signed_in"], before["method"], before["csrf_token"]) == (False, None, None)
    assert before["sign_in_methods"] == [{"method": "key", "url": SESSION}]
    assert before["permissions"] == ["anyone"]
    assert response.status_code == 201
    assert response.headers["cache-control"] == "no-store"
    assert (session["name"], session["scopes"], session["method"]) == ("ada", ["operator"], "key")
    assert set(session["permissions"]) == ALLOWED[Scope.OPERATOR] | {Permission.ANYONE}
    assert seen == session
    assert jobs.status_code == 200
    assert after == before
    check(copied, 401, "auth.session-ended")


async def test_a_session_shows_the_platform_and_the_queues_of_its_key(database):
    names = ("name", "scopes", "platform_id", "queues", "permissions", "is_authentication_enabled")
    async with platform(database) as (client, store):
        for limits in ({"scopes": ["worker"], "queues": ["thin", "gpu"]}, {"scopes": ["b2b"], "platform_id": "ddh"}):
            key = (await key_of(store, f"key of {limits['scopes'][0]}", **limits)).key
            caller = await ok(client.get(f"{V1}/caller", headers={"X-API-Key": key}))
            session = await signed_in(client, key)
            seen = await ok(client.get(SESSION))

            assert {name: session[name] for name in names} == caller
            assert seen == session
            assert (session["queues"], session["platform_id"]) == (
                (["gpu", "thin"], None) if "queues" in limits else (None, "ddh")
            )
            client.cookies.clear()


async def test_the_cookie_is_hidden_from_scripts_and_other_sites(database):
    async with platform(database) as (client, store):
        key = await key_of(store)
        plain = await client.post(SESSION, json={"key": key.key})
        text = client.cookies[COOKIE]
        client.cookies.clear()
        planted = await client.get(f"https://localhost{SESSION}", headers={"Cookie": f"{COOKIE}={text}"})
        secure = await client.post(f"https://localhost{SESSION}", json={"key": key.key})

    parts = plain.headers["set-cookie"].split("; ")
    assert parts[0].startswith(f"{COOKIE}=dgs_")
    assert {"HttpOnly", "Path=/", "SameSite=Strict", "Max-Age=43200"} <= set(parts)
    assert not any(part.startswith("Domain") for part in parts)
    assert secure.headers["set-cookie"].startswith(f"__Host-{COOKIE}=dgs_")
    assert "Secure" in secure.headers["set-cookie"].split("; ")
    # With https, a cookie without the prefix `__Host-` is ignored: a page over plain http could have set it.
    assert planted.json()["is_signed_in"] is False


async def test_every_route_allows_a_session_what_it_allows_the_key_of_the_session(database):
    async with keys_of(database, "b2b", "reviewer", "admin") as keys, api(database, auth_enabled=True) as client:
        for scope, key in keys.items():
            session = await signed_in(client, key)
            for method, path, permission in ROUTES:
                if permission is Permission.SCHEMA_WRITE and scope == "admin":
                    continue  # it would change the schema
                if path.startswith(SESSION):
                    continue  # it would sign out
                url = url_of(path)
                response = await client.request(method, url, headers=own_page(session))
                is_allowed = permission is Permission.ANYONE or permission in ALLOWED[scope]
                assert (response.status_code == 403) == (not is_allowed), (method, path, scope, response.text)
                assert response.status_code != 401
                if method not in ("GET", "HEAD", "OPTIONS"):  # these methods change nothing
                    without = await client.request(method, url, headers=SAME_ORIGIN)
                    assert without.status_code == 403
                    if path.startswith(V1):  # the API of the old system describes errors in its own way
                        check(without, 403, "session.csrf")


async def test_a_page_of_another_origin_cannot_change_anything_with_the_cookie(database):
    cases = [
        ({"Origin": "http://localhost"}, "session.csrf"),
        ({"Origin": "http://localhost", "X-CSRF-Token": "x" * 43}, "session.csrf"),
        ({"Origin": "http://localhost", "X-CSRF-Token": "ü".encode()}, "session.csrf"),
        ({"Origin": "http://localhost:8080"}, "request.foreign-origin"),
        ({"Origin": "http://evil.example"}, "request.foreign-origin"),
        ({"Origin": "null"}, "request.foreign-origin"),
        ({"Origin": "http://[", "Sec-Fetch-Site": "cross-site"}, "request.foreign-origin"),
        ({"Origin": "http://localhost", "Sec-Fetch-Site": "same-site"}, "request.foreign-origin"),
        ({"Sec-Fetch-Site": "none"}, "request.foreign-origin"),
        ({}, "request.foreign-origin"),
    ]
    async with platform(database) as (client, store):
        session = await signed_in(client, (await key_of(store)).key)
        for headers, code in cases:
            # The token of the session does not help a page of another origin.
            token = {"X-CSRF-Token": session["csrf_token"]} if code == "request.foreign-origin" else {}
            check(await client.delete(SESSION, headers={**token, **headers}), 403, code)
        still = await ok(client.get(SESSION))

    assert still["is_signed_in"] is True


async def test_the_csrf_token_of_another_session_is_refused_and_a_browser_behind_a_proxy_is_accepted(database):
    async with platform(database) as (client, store):
        key = await key_of(store)
        first = await signed_in(client, key.key)
        await signed_in(client, key.key)
        other = await client.delete(SESSION, headers=own_page(first))
        second = await ok(client.get(SESSION))
        # The proxy has replaced the Host header: the header Sec-Fetch-Site of the browser counts.
        headers = {"Origin": "https://public.example", "Sec-Fetch-Site": "same-origin"}
        proxied = await client.delete(SESSION, headers={**headers, "X-CSRF-Token": second["csrf_token"]})

    check(other, 403, "session.csrf")
    assert proxied.status_code == 204


async def test_a_session_ends_with_its_key(database):
    async with platform(database) as (client, store):
        key = await key_of(store)
        await signed_in(client, key.key)
        await revoke_key(store, key.key_id, KeyChange("test"))
        refused = await client.get(f"{V1}/jobs")
        public = await client.get(f"{V1}/caller")
        session = await client.get(SESSION)

    check(refused, 401, "auth.session-ended")
    assert public.json()["name"] == "anonymous"
    assert session.json()["is_signed_in"] is False
    assert "Max-Age=0" in session.headers["set-cookie"]


@pytest.mark.parametrize(("overlap_hours", "is_signed_in"), [(0, False), (1, True)])
async def test_a_session_ends_with_the_secret_that_started_it(database, overlap_hours, is_signed_in):
    async with platform(database) as (client, store):
        key = await key_of(store)
        await signed_in(client, key.key)
        await rotate_key(store, key.key_id, KeyChange("test"), overlap_hours=overlap_hours, expires_in_days=None)
        seen = await ok(client.get(SESSION))

    assert seen["is_signed_in"] is is_signed_in


async def test_a_session_ends_when_it_or_its_key_expires(database):
    async with platform(database, session_hours=0.5) as (client, store):
        short = await key_of(store, "short", expires_in_days=0.01)
        session = await signed_in(client, short.key)
        is_of_key = session["expires_at"] == short.expires_at.isoformat().replace("+00:00", "Z")
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE dagapp.api_keys SET expires_at = now() WHERE name = 'short'")
        with_key = await ok(client.get(SESSION))
        await signed_in(client, (await key_of(store)).key)
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE dagapp.web_sessions SET expires_at = now() WHERE name = 'ada'")
        alone = await ok(client.get(SESSION))

    assert is_of_key
    assert (with_key["is_signed_in"], alone["is_signed_in"]) == (False, False)


async def test_a_change_of_the_scopes_of_a_key_applies_to_its_sessions(database):
    async with platform(database) as (client, store):
        key = await key_of(store)
        await signed_in(client, key.key)
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE dagapp.api_keys SET scopes = '{viewer}'")
        seen = await ok(client.get(SESSION))
        jobs = await client.get(f"{V1}/jobs")

    assert seen["scopes"] == ["viewer"]
    check(jobs, 403, "auth.not-allowed")


async def test_signing_in_needs_a_valid_key(shared_database):
    cases = [
        ({"key": "dgm_aaaaaaaaaaaa_" + "b" * 43}, 401, "auth.invalid-key"),
        ({"key": "hunter2"}, 401, "auth.invalid-key"),
        ({"key": "dgm_ü"}, 401, "auth.invalid-key"),
        ({"key": "x" * 201}, 422, "request.invalid"),
        ({"key": ""}, 422, "request.invalid"),
        ({}, 422, "request.invalid"),
        ({"key": "x", "scopes": ["admin"]}, 422, "request.invalid"),
    ]
    async with platform(shared_database) as (client, _store):
        for body, status, code in cases:
            response = await client.post(SESSION, json=body)
            check(response, status, code)
            assert "set-cookie" not in response.headers


async def test_a_page_of_another_origin_cannot_sign_its_visitor_in(database):
    async with platform(database) as (client, store):
        key = await key_of(store)
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "same-site", **SAME_ORIGIN}):
            check(await client.post(SESSION, json={"key": key.key}, headers=headers), 403, "request.foreign-origin")


async def test_failed_sign_ins_are_limited_and_successful_ones_are_not(database):
    async with platform(database) as (client, store):
        key = await key_of(store)
        for _ in range(15):
            await signed_in(client, key.key)
        failed = [await client.post(SESSION, json={"key": f"dgm_{n}"}) for n in range(11)]

    assert [response.status_code for response in failed] == [401] * 10 + [429]
    check(failed[-1], 429, "auth.too-many-attempts")
    assert failed[-1].headers["retry-after"]


async def test_signing_in_and_out_is_recorded_without_key_or_cookie(database, capsys):
    before = structlog.get_config()
    log.configure("debug")
    try:
        async with platform(database) as (client, store):
            key = await key_of(store, scopes=["admin"])
            session = await signed_in(client, key.key)
            cookie = client.cookies[COOKIE]
            await client.get(f"{V1}/jobs/{cookie}")
            await client.post(SESSION, json={"key": "dgm_wrong"})
            audit = await ok(client.get(f"{V1}/audit", params={"actor": "ada"}))
            await client.delete(SESSION, headers=own_page(session))
            signed_out = await ok(
                client.get(f"{V1}/audit", params={"action": "signed_out"}, headers={"X-API-Key": key.key})
            )
    finally:
        structlog.configure(**before)
    written = "".join(capsys.readouterr())
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT w::text FROM dagapp.web_sessions AS w").fetchall()

    assert [event["action"] for event in audit["items"]] == ["signed_in"]
    assert audit["items"][0]["detail"]["key_id"] == key.key_id
    assert [event["actor"] for event in signed_out["items"]] == ["ada"]
    assert "a sign-in was refused" in written
    for text in (written, str(rows), str(audit)):
        assert cookie.split("_", 2)[2] not in text
        assert key.key not in text
        assert session["csrf_token"] not in text


async def test_a_key_in_a_header_is_used_in_place_of_the_cookie(database):
    async with platform(database) as (client, store):
        await signed_in(client, (await key_of(store)).key)
        viewer = {"X-API-Key": (await key_of(store, "vic", ["viewer"])).key}
        seen = await ok(client.get(SESSION, headers=viewer))
        # Neither the CSRF token nor an origin is needed: no browser adds this header.
        changing = await client.post(f"{V1}/workflows/validate", headers=viewer, json={})

    assert (seen["name"], seen["method"], seen["csrf_token"]) == ("vic", "header", None)
    check(changing, 403, "auth.not-allowed")


async def test_a_request_with_an_invalid_session_cookie_is_anonymous(shared_database):
    cookies = [
        "dagmaster_session=",
        "dagmaster_session=nonsense",
        "dagmaster_session=dgs_aaaaaaaaaaaaaaaa_" + "b" * 43,
        "dagmaster_session",
        ";;=;dagmaster_session=\x7f",
        "__Host-dagmaster_session=x; dagmaster_session=y",
        "dagmaster_session=" + "x" * 20_000,
    ]
    async with platform(shared_database) as (client, _store):
        for cookie in cookies:
            seen = await client.get(SESSION, headers={"Cookie": cookie})
            jobs = await client.get(f"{V1}/jobs", headers={"Cookie": cookie})

            assert seen.json()["is_signed_in"] is False
            check(jobs, 401, "auth.session-ended")


async def test_two_session_cookies_in_one_request_are_not_accepted(database):
    async with platform(database) as (client, store):
        await signed_in(client, (await key_of(store)).key)
        both = f"{COOKIE}={client.cookies[COOKIE]}; {COOKIE}=dgs_planted"
        client.cookies.clear()
        response = await client.get(SESSION, headers={"Cookie": both})

    assert response.json()["is_signed_in"] is False


async def test_without_authentication_there_is_no_sign_in(database):
    async with api(database) as client:
        seen = await ok(client.get(SESSION, headers={"Cookie": f"{COOKIE}=dgs_x"}))
        refused = await client.post(SESSION, json={"key": "dgm_x"})
        out = await client.delete(SESSION)
        rebound = await client.get(SESSION, headers={"Host": "evil.example"})
        foreign = await client.get(SESSION, headers={"Origin": "http://evil.example"})

    assert (seen["is_signed_in"], seen["name"], seen["is_authentication_enabled"]) == (True, "local", False)
    assert (seen["method"], seen["csrf_token"], seen["sign_in_methods"]) == (None, None, [])
    check(refused, 409, "auth.disabled")
    assert out.status_code == 204
    check(rebound, 403, "request.foreign-host")
    check(foreign, 403, "request.foreign-origin")


async def test_concurrent_sign_ins_create_separate_sessions_and_expired_ones_are_deleted(database):
    async with platform(database) as (client, store):
        key = (await key_of(store)).key
        responses = await asyncio.gather(*(client.post(SESSION, json={"key": key}) for _ in range(8)))
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE dagapp.web_sessions SET expires_at = now() - interval '2 days'")
        client.cookies.clear()
        await signed_in(client, key)
        with psycopg.connect(database) as connection:
            left = connection.execute("SELECT count(*) FROM dagapp.web_sessions").fetchone()

    assert {response.status_code for response in responses} == {201}
    assert len({response.json()["csrf_token"] for response in responses}) == 8
    assert left == (1,)


async def test_the_root_redirects_browsers_to_the_ui_and_returns_the_list_of_routes_to_programs(shared_database):
    async with platform(shared_database) as (client, _store):
        browser = await client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        program = await client.get("/")

    assert (browser.headers["location"], program.headers["location"]) == ("ui/", "docs")
    assert browser.headers["vary"] == "Accept"


async def test_pages_of_the_ui_need_neither_a_valid_cookie_nor_a_database():
    async with api("postgresql://nobody@127.0.0.1:1/none", auth_enabled=True) as client:
        cookie = {"Cookie": f"{COOKIE}=dgs_aaaaaaaaaaaaaaaa_{'b' * 43}"}
        page = await client.get("/ui/none-of-these.js", headers=cookie)
        data = await client.get(f"{V1}/jobs", headers=cookie)

    assert page.status_code == 404
    assert data.status_code == 503
