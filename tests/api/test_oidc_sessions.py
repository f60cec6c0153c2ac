"""Users sign in at an OIDC issuer: the code flow with PKCE, and attacks of other sites on it."""

import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest
import structlog

from dagmaster.observe import log
from dagmaster.web.sign_in_flow import Flow, is_own_path, new_flow
from tests.api.serving import V1, api, ok
from tests.web.issuer import AUDIENCE, CLIENT, RSA_KEYS, issuer
from tests.web.problems import check

pytestmark = pytest.mark.requirement("X1")

SESSION = f"{V1}/session"
START, CALLBACK = f"{SESSION}/oidc/start", f"{SESSION}/oidc/callback"
BROWSER = {"Accept": "text/html,*/*;q=0.8"}


@pytest.fixture
def local():
    with issuer() as local:
        yield local


@asynccontextmanager
async def platform(dsn, local, **settings):
    chosen = {"oidc_issuer": local.url, "oidc_audience": AUDIENCE, "oidc_client_id": CLIENT}
    async with api(dsn, auth_enabled=True, **{**chosen, **settings}) as client:
        yield client


async def began(client, **params):
    """Start a sign-in: the client has its cookie, and the URL of the issuer's page is returned."""
    answer = await client.get(START, params=params)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def at_issuer(url):
    """The path on this server to which the issuer redirects the browser."""
    async with httpx2.AsyncClient() as browser:
        back = urlsplit((await browser.get(url)).headers["location"])
    return f"{back.path}?{back.query}"


def at_address(client, number):
    """Send the requests from a new client address, because attempts are counted by address."""
    client._transport.client = (f"10.0.0.{number}", 1)


def signed_in_by(answer):
    return any(cookie.startswith("dagmaster_session=dgs_") for cookie in answer.headers.get_list("set-cookie"))


def changed(url, **parameters):
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query)), **parameters}
    return f"{parts.path}?{urlencode({name: value for name, value in query.items() if value is not None})}"


async def test_a_user_signs_in_at_the_issuer_and_returns_to_the_page(shared_database, local):
    local.person = {"roles": ["operator"], "exp": int(time.time()) + 200}
    async with platform(shared_database, local) as client:
        before = await ok(client.get(SESSION))
        url = await began(client, next="/ui/jobs?status=failed")
        back = await at_issuer(url)
        answer = await client.get(back, headers={**BROWSER, "Sec-Fetch-Site": "cross-site"})
        seen = await ok(client.get(SESSION))
        jobs = await client.get(f"{V1}/jobs")
        own_page = {"Origin": "http://localhost", "X-CSRF-Token": seen["csrf_token"]}
        await ok(client.delete(SESSION, headers=own_page), 204)
        after = await client.get(f"{V1}/jobs")

    assert [method["method"] for method in before["sign_in_methods"]] == ["key", "oidc"]
    assert dict(parse_qsl(urlsplit(url).query))["redirect_uri"] == f"http://localhost{CALLBACK}"
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs?status=failed")
    assert (seen["name"], seen["scopes"], seen["method"]) == ("oidc:ada", ["operator"], "oidc")
    # The session ends with the token, before SESSION_HOURS.
    assert datetime.fromisoformat(seen["expires_at"]) == datetime.fromtimestamp(local.person["exp"], UTC)
    assert jobs.status_code == 200
    assert after.status_code == 401


async def test_the_session_ends_before_the_token_if_session_hours_is_shorter(shared_database, local):
    local.person = {"exp": int(time.time()) + 1e12}
    async with platform(shared_database, local, session_hours=0.1) as client:
        await client.get(await at_issuer(await began(client)))
        seen = await ok(client.get(SESSION))

    left = datetime.fromisoformat(seen["expires_at"]) - datetime.now(UTC)
    assert 200 < left.total_seconds() <= 360


async def test_the_sign_in_cookie_is_short_lived_hidden_from_scripts_and_used_once(shared_database, local):
    async with platform(shared_database, local) as client:
        answer = await client.get(START)
        back = await at_issuer(answer.headers["location"])
        first = await client.get(back)
        cookie = answer.headers["set-cookie"]
        client.cookies.delete("dagmaster_session")
        again = await client.get(back)
        # This holds even if a client has kept the cookie: the issuer accepts a code once.
        kept = await client.get(back, headers={"Cookie": cookie.split(";")[0]})

    assert {"HttpOnly", "SameSite=Lax", "Max-Age=600", "Path=/"} <= set(cookie.split("; "))
    assert first.status_code == 303
    assert {part.split("=")[0] for part in first.headers.get_list("set-cookie")} == {
        "dagmaster_session",
        "dagmaster_sign_in",
    }
    check(again, 403, "session.bad-state")
    check(kept, 401, "session.refused")


async def test_a_callback_that_does_not_belong_to_this_sign_in_is_refused(shared_database, local):
    cases = [
        ({"state": "x" * 43}, 403, "session.bad-state"),
        ({"state": None}, 403, "session.bad-state"),
        ({"state": "ü"}, 403, "session.bad-state"),
        ({"iss": "https://evil.example"}, 403, "session.bad-state"),
        ({"code": None}, 401, "session.refused"),
        ({"code": "x" * 5000}, 401, "session.refused"),
        ({"code": "of another person"}, 401, "session.refused"),
        ({"error": "access_denied", "error_description": "<script>alert(1)</script>"}, 401, "session.refused"),
    ]
    async with platform(shared_database, local) as client:
        for number, (parameters, status, code) in enumerate(cases):
            at_address(client, number)
            back = changed(await at_issuer(await began(client)), **parameters)
            flow = {"Cookie": f"dagmaster_sign_in={client.cookies['dagmaster_sign_in']}"}
            program = await client.get(back)
            browser = await client.get(back, headers={**BROWSER, **flow})

            check(program, status, code)
            assert (browser.status_code, browser.headers["location"]) == (303, f"/ui/?sign_in_error={code}")
            assert "script" not in program.text
            assert not signed_in_by(program)
            assert not signed_in_by(browser)


async def test_an_id_token_that_is_not_for_this_sign_in_is_refused(shared_database, local):
    cases = [
        ({"nonce": "x" * 43}, "auth.invalid-token"),
        ({"nonce": None}, "auth.invalid-token"),
        ({"iss": "https://evil.example"}, "auth.invalid-token"),
        ({"aud": "another-client"}, "auth.invalid-token"),
        ({"aud": AUDIENCE}, "auth.invalid-token"),
        ({"aud": [CLIENT, "another"]}, "auth.invalid-token"),
        ({"aud": [CLIENT, "another"], "azp": "another"}, "auth.invalid-token"),
        ({"key": RSA_KEYS[1]}, "auth.invalid-token"),
        ({"exp": 1}, "auth.expired"),
        ({"sub": None}, "auth.invalid-token"),
        ({"roles": []}, "session.no-roles"),
        ({"roles": ["unknown"]}, "session.no-roles"),
    ]
    async with platform(shared_database, local) as client:
        for number, (person, code) in enumerate(cases):
            at_address(client, number)
            local.person = person
            answer = await client.get(await at_issuer(await began(client)))

            check(answer, 403 if code == "session.no-roles" else 401, code)
            assert not signed_in_by(answer)


async def test_roles_may_be_in_the_access_token_of_the_same_user(shared_database, local):
    cases = [({}, True), ({"sub": "eve"}, False), ({"aud": "another"}, False), ({"key": RSA_KEYS[1]}, False)]
    async with platform(shared_database, local) as client:
        for changes, is_accepted in cases:
            local.person, local.access_token = {"roles": None}, local.token(roles=["viewer"], **changes)
            answer = await client.get(await at_issuer(await began(client)))
            seen = await ok(client.get(SESSION))
            client.cookies.clear()

            assert (signed_in_by(answer), seen["scopes"]) == (is_accepted, ["viewer"] if is_accepted else [])


@pytest.mark.parametrize("methods", [["client_secret_basic"], ["client_secret_post"]])
async def test_the_client_secret_is_sent_in_the_way_that_the_issuer_supports(shared_database, local, methods):
    local.client_secret, local.auth_methods = "hunter2", methods
    async with platform(shared_database, local, oidc_client_secret="hunter2") as client:
        right = await client.get(await at_issuer(await began(client)))
    async with platform(shared_database, local, oidc_client_secret="wrong") as client:
        wrong = await client.get(await at_issuer(await began(client)))

    assert right.status_code == 303
    check(wrong, 401, "session.refused")


async def test_a_failing_issuer_is_reported_and_never_signs_a_user_in(shared_database, local):
    discovery = "/.well-known/openid-configuration"
    cases = [
        (discovery, (500, b""), "auth.issuer-unavailable"),
        (discovery, (200, b"[]"), "auth.issuer-unavailable"),
        (discovery, (200, b'{"issuer": "https://evil.example"}'), "auth.issuer-unavailable"),
        ("/token", (500, b"{}"), "auth.issuer-unavailable"),
        ("/token", (200, b"not JSON"), "auth.issuer-unavailable"),
        ("/token", (302, b"{}"), "session.refused"),
        ("/token", (200, b"{}"), "session.refused"),
    ]
    async with platform(shared_database, local) as client:
        for path, answer, code in cases:
            local.answers = {path: answer}
            with structlog.testing.capture_logs() as lines:
                response = await client.get(START)
                if path == "/token":
                    response = await client.get(await at_issuer(response.headers["location"]))

            check(response, 503 if code == "auth.issuer-unavailable" else 401, code)
            assert not signed_in_by(response)
            is_logged = any(line["event"] == "the OIDC issuer does not respond" for line in lines)
            assert is_logged is (code == "auth.issuer-unavailable")


OTHER_PLACES = [
    "https://evil.example",
    "//evil.example",
    "/\\evil.example",
    "/\t/evil.example",
    "\\\\evil.example",
    "javascript:alert(1)",
    "ui/",
    "",
    "/ui/\r\nSet-Cookie: a=b",
    "/ü",
    "/" + "x" * 1024,
    " /ui/",
]


@pytest.mark.parametrize("path", OTHER_PLACES)
def test_a_redirect_to_another_site_is_not_accepted(path):
    assert not is_own_path(path)
    forged = Flow("s" * 43, "n" * 43, "v" * 43, path)
    assert Flow.decoded(forged.encoded()) is None  # also from a cookie


@pytest.mark.parametrize("path", ["/", "/ui/", "/ui/jobs?status=failed&after=a~b#top", "/tiles/a/map"])
def test_a_redirect_to_a_path_of_this_server_is_accepted(path):
    flow = new_flow(path)
    assert Flow.decoded(flow.encoded()) == flow


@pytest.mark.parametrize("text", ["", "x", "e30", "W10", "bnVsbA", "ü", "eyJzdGF0ZSI6MX0", "=" * 9])
def test_an_invalid_sign_in_cookie_is_ignored(text):
    assert Flow.decoded(text) is None


async def test_a_sign_in_that_would_redirect_to_another_site_or_has_no_issuer_is_refused(shared_database, local):
    async with platform(shared_database, local) as client:
        foreign = await client.get(START, params={"next": "//evil.example"})
        bad_host = await client.get(START, headers={"Host": "evil.example/?x="})
    async with api(shared_database, auth_enabled=True) as client:
        none = await client.get(START)
        back = await client.get(CALLBACK, headers=BROWSER)
    async with api(shared_database) as client:
        disabled = await client.get(START)

    check(foreign, 400, "session.bad-next")
    assert "set-cookie" not in foreign.headers
    check(bad_host, 400, "request.bad-host")
    check(none, 404, "session.no-oidc")
    assert back.headers["location"] == "/ui/?sign_in_error=session.no-oidc"
    check(disabled, 404, "session.no-oidc")


async def test_failed_sign_ins_are_limited_and_no_secret_is_logged(shared_database, local, capsys):
    before = structlog.get_config()
    log.configure("debug")
    try:
        async with platform(shared_database, local, oidc_client_secret="hunter2") as client:
            back = await at_issuer(await began(client))
            flow = Flow.decoded(client.cookies["dagmaster_sign_in"])
            await client.get(changed(back, code="wrong"))
            responses = [await client.get(f"{CALLBACK}?code=x&state=x") for _ in range(10)]
    finally:
        structlog.configure(**before)
    written = "".join(capsys.readouterr())

    assert [answer.status_code for answer in responses] == [403] * 9 + [429]
    assert "an OIDC sign-in was refused" in written
    code = dict(parse_qsl(urlsplit(back).query))["code"]
    for secret in (flow.verifier, flow.nonce, flow.state, code, "hunter2"):
        assert secret not in written
