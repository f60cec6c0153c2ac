"""OIDC tokens of a local issuer: only a valid token that it signed for this platform identifies a caller."""

import asyncio
import base64
import hashlib
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagmaster.access.caller import Scope
from dagmaster.errors import InvalidRequest, NotAuthenticated, Unavailable
from dagmaster.settings import load
from dagmaster.web import tokens
from dagmaster.web.tokens import Roles, TokenVerifier
from tests.web.issuer import AUDIENCE, EC_KEY, ED_KEY, RSA_KEYS, WEAK_KEY, issuer, jwk_of

pytestmark = pytest.mark.requirement("X1")


@pytest.fixture
def local_issuer():
    with issuer() as running:
        yield running


def verifier_of(local_issuer, **changed):
    chosen = load(**{"oidc_issuer": local_issuer.url, "oidc_audience": AUDIENCE, **changed})
    return TokenVerifier.of(chosen, local_issuer.url)


@pytest.fixture
async def verifier(local_issuer):
    verifier_of_issuer = verifier_of(local_issuer)
    yield verifier_of_issuer
    await verifier_of_issuer.close()


async def refused(verifier, token, code="auth.invalid-token"):
    with pytest.raises(NotAuthenticated) as caught:
        await verifier.caller(token)
    assert caught.value.code == code
    assert token not in str(caught.value)
    return caught.value.message


def encoded(part):
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


async def test_a_token_of_the_issuer_makes_a_caller(local_issuer, verifier):
    caller = await verifier.caller(local_issuer.token())

    assert (caller.name, caller.scopes, caller.platform_id) == ("oidc:ada", {Scope.REVIEWER}, None)


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA_KEYS[0], "RS256"), (RSA_KEYS[0], "PS384"), (EC_KEY, "ES256"), (ED_KEY, "EdDSA")]
)
async def test_each_kind_of_key_verifies_its_algorithms(local_issuer, verifier, key, algorithm):
    local_issuer.jwks = [jwk_of(key, "one")]

    assert (await verifier.caller(local_issuer.token(key, algorithm=algorithm))).name == "oidc:ada"


async def test_a_token_signed_by_another_key_is_refused(local_issuer, verifier):
    await refused(verifier, local_issuer.token(RSA_KEYS[1]))


async def test_a_changed_token_is_refused(local_issuer, verifier):
    header, claims, signature = local_issuer.token(roles=["viewer"]).split(".")
    changed = encoded(local_issuer.claims(roles=["admin"]))

    await refused(verifier, f"{header}.{changed}.{signature}")
    await refused(verifier, f"{header}.{claims}.")
    await refused(verifier, f"{header}.{claims}.{signature[:-4]}AAAA")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"aud": "another"}, "another audience"),
        ({"aud": None}, "no claim aud"),
        ({"aud": []}, "no claim aud"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"iss": None}, "no claim iss"),
        ({"exp": None}, "no claim exp"),
        ({"exp": "soon"}, "cannot be verified"),
        ({"sub": None}, "no claim sub"),
        ({"sub": 7}, "cannot be verified"),
        ({"nbf": int(time.time()) + 3600}, "not valid yet"),
        ({"iat": int(time.time()) + 3600}, "not valid yet"),
    ],
)
async def test_a_token_for_another_audience_or_without_required_claims_is_refused(
    local_issuer, verifier, changed, reason
):
    assert reason in await refused(verifier, local_issuer.token(**changed))


async def test_times_have_a_leeway_of_a_minute(local_issuer, verifier):
    now = int(time.time())

    assert await verifier.caller(local_issuer.token(exp=now - 50, nbf=now + 50))
    await refused(verifier, local_issuer.token(exp=now - 70), "auth.expired")
    await refused(verifier, local_issuer.token(nbf=now + 70))


async def test_one_of_several_audiences_is_enough(local_issuer):
    verifier = verifier_of(local_issuer, oidc_audience="a,dagmaster")

    assert await verifier.caller(local_issuer.token(aud=["x", "dagmaster"]))
    await refused(verifier, local_issuer.token(aud=["x"]))


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", None])
async def test_a_token_without_a_signature_is_refused(local_issuer, verifier, name):
    token = f"{encoded({'alg': name, 'typ': 'JWT', 'kid': 'one'})}.{encoded(local_issuer.claims(roles=['admin']))}."

    await refused(verifier, token)


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_the_public_key_is_not_accepted_as_a_shared_secret(local_issuer, verifier, algorithm):
    """The token is signed by an HMAC with the public key, which everyone knows."""
    public = RSA_KEYS[0].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for secret in (public, public.strip(), json.dumps(local_issuer.jwks[0]).encode(), b""):
        signed = f"{encoded({'alg': algorithm, 'kid': 'one'})}.{encoded(local_issuer.claims(roles=['admin']))}"
        digest = getattr(hashlib, f"sha{algorithm[2:]}")
        signature = base64.urlsafe_b64encode(hmac.new(secret, signed.encode(), digest).digest()).rstrip(b"=").decode()

        assert "algorithm" in await refused(verifier, f"{signed}.{signature}")


async def test_a_symmetric_key_of_the_issuer_is_not_used(local_issuer, verifier):
    secret = base64.urlsafe_b64encode(b"s" * 32).decode()
    local_issuer.jwks = [
        {"kty": "oct", "k": secret, "kid": "one", "alg": "RS256"},
        {"kty": "oct", "k": secret, "kid": "two"},
    ]

    await refused(verifier, jwt.encode(local_issuer.claims(), "s" * 32, algorithm="HS256", headers={"kid": "two"}))
    await refused(verifier, local_issuer.token())


async def test_a_key_verifies_only_the_algorithm_that_it_names(local_issuer, verifier):
    local_issuer.jwks = [jwk_of(RSA_KEYS[0], "one", alg="RS256"), jwk_of(EC_KEY, "two")]

    assert await verifier.caller(local_issuer.token())
    assert "algorithm" in await refused(verifier, local_issuer.token(algorithm="RS512"))
    assert "algorithm" in await refused(verifier, local_issuer.token(EC_KEY, "one", "ES256"))
    assert "algorithm" in await refused(verifier, local_issuer.token(RSA_KEYS[0], "two", "RS256"))


async def test_keys_for_encryption_and_short_keys_are_not_used(local_issuer, verifier):
    local_issuer.jwks = [jwk_of(RSA_KEYS[0], "one", use="enc"), jwk_of(WEAK_KEY, "weak")]

    await refused(verifier, local_issuer.token())
    await refused(verifier, local_issuer.token(WEAK_KEY, "weak"))


@pytest.mark.parametrize(
    "header",
    [
        {"kid": "../../../../dev/null"},
        {"kid": "one' OR '1'='1"},
        {"kid": "http://evil.example/key"},
        {"kid": "x" * 10_000},
        {"kid": 7},
        {"kid": ["one"]},
        {"kid": {"a": 1}},
        {"kid": None},
    ],
)
async def test_a_key_id_is_only_used_to_look_up_a_known_key(local_issuer, verifier, header):
    signed = f"{encoded({'alg': 'RS256', **header})}.{encoded(local_issuer.claims())}"
    local_issuer.jwks.append(jwk_of(RSA_KEYS[1], "two"))

    await refused(verifier, f"{signed}.{encoded('x')}")
    assert set(local_issuer.fetches) <= {"/.well-known/openid-configuration", "/keys"}


async def test_a_key_that_a_token_contains_or_refers_to_is_ignored(local_issuer, verifier):
    own = jwk_of(RSA_KEYS[2], "own")
    for header in (
        {"jwk": own},
        {"jku": f"{local_issuer.url}/own"},
        {"x5u": f"{local_issuer.url}/own"},
        {"x5c": ["MII"]},
    ):
        await refused(verifier, local_issuer.token(RSA_KEYS[2], "own", headers=header))
        await refused(verifier, local_issuer.token(RSA_KEYS[2], "one", headers=header))
    assert "/own" not in local_issuer.fetches


async def test_a_token_without_a_key_id_is_accepted_if_there_is_only_one_key(local_issuer, verifier):
    assert await verifier.caller(local_issuer.token(kid=None))

    other = verifier_of(local_issuer)
    local_issuer.jwks.append(jwk_of(RSA_KEYS[1], "two"))
    await refused(other, local_issuer.token(kid=None))


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a.b.c", "eyJ", "x" * 20_000, "ä.ö.ü", "null.null.null", "bnVsbA.e30."]
)
async def test_a_text_that_is_not_a_token_is_refused(verifier, text):
    with pytest.raises(NotAuthenticated):
        await verifier.caller(text)


async def test_tokens_with_unknown_critical_extensions_are_refused(local_issuer, verifier):
    await refused(verifier, local_issuer.token(headers={"crit": ["exp"], "exp": 1}))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(header=st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk"]), st.text() | st.none()))
def test_no_header_makes_an_unsigned_token_valid(header):
    verifier = TokenVerifier(
        tokens.IssuerKeys("http://127.0.0.1:1"), issuer="i", audience=["a"], roles=Roles("roles", {}), name="sub"
    )
    verifier._keys._jwks = {"one": jwk_of(RSA_KEYS[0], "one")}
    verifier._keys._fetched_at = verifier._keys._tried_at = time.monotonic()

    with pytest.raises(NotAuthenticated):
        asyncio.run(
            verifier.caller(f"{encoded(header)}.{encoded({'sub': 'a', 'iss': 'i', 'aud': 'a', 'exp': 2**33})}.")
        )


# Roles


@pytest.mark.parametrize(
    ("chosen", "claims", "scopes", "platform"),
    [
        ({}, {"roles": ["viewer", "dagmaster.operator", "other"]}, {"viewer", "operator"}, None),
        ({}, {"roles": "viewer author"}, {"viewer", "author"}, None),
        ({}, {"roles": None}, set(), None),
        ({}, {"roles": {"admin": True}}, set(), None),
        ({}, {"roles": [1, None, ["admin"]]}, set(), None),
        ({}, {"roles": ["b2b"]}, set(), None),
        ({}, {"roles": ["b2b:"]}, set(), None),
        ({}, {"roles": ["b2b:ddh", "viewer"]}, {"b2b", "viewer"}, "ddh"),
        ({}, {"roles": ["b2b:ddh", "b2b:other", "viewer"]}, {"viewer"}, None),
        ({}, {"groups": ["admin"]}, {"reviewer"}, None),
        ({"oidc_roles_claim": "realm_access.roles"}, {"realm_access": {"roles": ["admin"]}}, {"admin"}, None),
        ({"oidc_roles_claim": "https://x.example/r"}, {"https://x.example/r": ["admin"]}, {"admin"}, None),
        ({"oidc_roles": "staff=reviewer,hub=b2b:ddh"}, {"roles": ["staff", "hub"]}, {"reviewer", "b2b"}, "ddh"),
        ({"oidc_roles": "staff=reviewer"}, {"roles": ["admin", "dagmaster.admin"]}, set(), None),
    ],
)
async def test_roles_give_scopes(local_issuer, chosen, claims, scopes, platform):
    caller = await verifier_of(local_issuer, **chosen).caller(local_issuer.token(**claims))

    assert (caller.scopes, caller.platform_id) == (scopes, platform)


async def test_names_of_callers_are_unique_and_short(local_issuer):
    by_name = verifier_of(local_issuer, oidc_name_claim="upn")
    names = [
        (await by_name.caller(local_issuer.token(**claims))).name
        for claims in (
            {"upn": "ada@example.org"},
            {"upn": ""},
            {"upn": ["x"]},
            {"upn": "x" * 60},
            {"upn": "x" * 61},
            {"upn": "a\nb"},
        )
    ]

    assert names[:3] == ["oidc:ada@example.org", "oidc:ada", "oidc:ada"]
    assert len(set(names[3:])) == 3
    assert all(len(name) <= 64 and name.isprintable() and name.startswith("oidc:") for name in names)


# The keys of the issuer


async def test_keys_are_fetched_once(local_issuer, verifier):
    await asyncio.gather(*(verifier.caller(local_issuer.token()) for _ in range(20)))

    assert local_issuer.fetches == {"/.well-known/openid-configuration": 1, "/keys": 1}


async def test_a_rotated_key_is_fetched_and_a_removed_one_is_refused(local_issuer, verifier, monkeypatch):
    old = local_issuer.token()
    await verifier.caller(old)
    monkeypatch.setattr(tokens, "_REFETCH_SECONDS", 0.0)
    local_issuer.jwks = [jwk_of(RSA_KEYS[1], "two")]

    assert await verifier.caller(local_issuer.token(RSA_KEYS[1], "two"))
    await refused(verifier, old)


async def test_unknown_key_ids_do_not_cause_a_request_to_the_issuer_each_time(local_issuer, verifier):
    await verifier.caller(local_issuer.token())
    for number in range(20):
        await refused(verifier, local_issuer.token(RSA_KEYS[1], f"k{number}"))

    assert local_issuer.fetches["/keys"] == 1


async def test_while_the_issuer_is_down_known_keys_stay_in_use(local_issuer, verifier, monkeypatch):
    await verifier.caller(local_issuer.token())
    monkeypatch.setattr(tokens, "_REFETCH_SECONDS", 0.0)
    monkeypatch.setattr(tokens, "_REFRESH_SECONDS", 0.0)
    local_issuer.answers["/keys"] = (500, b"")

    for _ in range(3):
        assert await verifier.caller(local_issuer.token())
        await asyncio.sleep(0.05)
    with pytest.raises(Unavailable) as caught:
        await verifier.caller(local_issuer.token(RSA_KEYS[1], "two"))

    assert caught.value.code == "auth.issuer-unavailable"
    assert local_issuer.fetches["/keys"] > 1


async def test_keys_that_could_not_be_renewed_for_a_day_are_no_longer_trusted(local_issuer, verifier, monkeypatch):
    await verifier.caller(local_issuer.token())
    monkeypatch.setattr(tokens, "_REFETCH_SECONDS", 0.0)
    monkeypatch.setattr(tokens, "_MAX_OUTAGE_SECONDS", 0.0)
    local_issuer.answers["/keys"] = (500, b"")

    with pytest.raises(Unavailable):
        await verifier.caller(local_issuer.token())


async def test_old_keys_are_renewed_in_the_background(local_issuer, verifier, monkeypatch):
    await verifier.caller(local_issuer.token())
    monkeypatch.setattr(tokens, "_REFETCH_SECONDS", 0.0)
    monkeypatch.setattr(tokens, "_REFRESH_SECONDS", 0.0)
    local_issuer.jwks = [jwk_of(RSA_KEYS[1], "two")]

    assert await verifier.caller(local_issuer.token())
    await verifier._keys._refresh

    assert set(verifier._keys._jwks) == {"two"}


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/keys", (500, b"")),
        ("/keys", (302, b"")),
        ("/keys", (200, b"not JSON")),
        ("/keys", (200, b"[]")),
        ("/keys", (200, b"{}")),
        ("/keys", (200, b'{"keys": [' + b'"x",' * 400_000 + b'"x"]}')),
        ("/.well-known/openid-configuration", (404, b"")),
        (
            "/.well-known/openid-configuration",
            (200, b'{"issuer": "https://evil.example", "jwks_uri": "http://127.0.0.1"}'),
        ),
        ("/.well-known/openid-configuration", (200, b'{"issuer": "ISSUER"}')),
        ("/.well-known/openid-configuration", (200, b'{"issuer": "ISSUER", "jwks_uri": "http://evil.example/keys"}')),
        ("/.well-known/openid-configuration", (200, b'{"issuer": "ISSUER", "jwks_uri": "file:///etc/passwd"}')),
    ],
)
async def test_an_issuer_with_invalid_responses_is_unavailable(local_issuer, verifier, path, answer):
    status, body = answer
    local_issuer.answers[path] = status, body.replace(b"ISSUER", local_issuer.url.encode())

    for _ in range(3):
        with pytest.raises(Unavailable) as caught:
            await verifier.caller(local_issuer.token())
        assert caught.value.code == "auth.issuer-unavailable"
    assert local_issuer.fetches[path] == 1  # no second request is sent soon after


async def test_an_issuer_that_is_slow_or_down_is_unavailable(local_issuer, monkeypatch):
    monkeypatch.setattr(tokens, "_FETCH_SECONDS", 0.2)
    local_issuer.delay_seconds = 1.0
    started = time.monotonic()
    with pytest.raises(Unavailable):
        await verifier_of(local_issuer).caller(local_issuer.token())
    assert time.monotonic() - started < 0.9

    away = verifier_of(local_issuer, oidc_jwks_url="http://127.0.0.1:1/keys")
    with pytest.raises(Unavailable):
        await away.caller(local_issuer.token())


async def test_the_url_of_the_keys_can_be_set(local_issuer):
    local_issuer.answers["/.well-known/openid-configuration"] = (404, b"")

    chosen = verifier_of(local_issuer, oidc_jwks_url=f"{local_issuer.url}/keys")

    assert await chosen.caller(local_issuer.token())


@pytest.mark.parametrize(
    "chosen",
    [
        {"oidc_issuer": "http://issuer.example"},
        {"oidc_issuer": "https://user:password@issuer.example"},
        {"oidc_issuer": "https://issuer.example", "oidc_audience": ""},
        {"oidc_jwks_url": "http://issuer.example/keys"},
        {"oidc_jwks_url": "file:///etc/passwd"},
        {"oidc_roles": "admin"},
        {"oidc_roles": "a=root"},
        {"oidc_roles": "a=b2b"},
        {"oidc_roles": "a=b=viewer"},
    ],
)
def test_unsafe_settings_are_refused(chosen):
    with pytest.raises(InvalidRequest) as caught:
        load(**{"oidc_audience": "a", **chosen})

    assert caught.value.code == "settings.invalid"
