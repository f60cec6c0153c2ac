"""An issuer of OIDC tokens on loopback, with its own keys. Users who open its page are signed in at once."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "dagmaster"
CLIENT = "web-ui"
RSA_KEYS = [rsa.generate_private_key(65537, 2048) for _ in range(3)]
WEAK_KEY = rsa.generate_private_key(65537, 1024)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def jwk_of(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    algorithm = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}.get(
        next((kind for kind in (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey) if isinstance(key, kind)), None),
        OKPAlgorithm,
    )
    jwk = algorithm.to_jwk(key.public_key(), as_dict=True)
    return {**jwk, **({"kid": kid} if kid is not None else {}), "use": "sig", **more}


class Issuer:
    """Serves its discovery document, its keys, its page and its tokens. `answers` replaces what a path serves.

    `person` changes the claims of ID tokens, `access_token` is sent with them, and `client_secret` is required if set.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.jwks: list[dict[str, Any]] = [jwk_of(RSA_KEYS[0], "one")]
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.fetches: Counter[str] = Counter()
        self.delay_seconds = 0.0
        self.person: dict[str, Any] = {}
        self.access_token: str | None = None
        self.client_secret: str | None = None
        self.auth_methods = ["client_secret_basic"]
        self.codes: dict[str, dict[str, str]] = {}

    def token(self, key: Any = None, kid: str | None = "one", algorithm: str = "RS256", **changed: Any) -> str:
        headers = changed.pop("headers", {})
        return jwt.encode(
            self.claims(**changed),
            RSA_KEYS[0] if key is None else key,
            algorithm=algorithm,
            headers={**({"kid": kid} if kid is not None else {}), **headers},
        )

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "iat": now,
            "exp": now + 300,
            "roles": ["reviewer"],
            **changed,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def answer(self, path: str) -> tuple[int, bytes]:
        self.fetches[path] += 1
        time.sleep(self.delay_seconds)
        if path in self.answers:
            return self.answers[path]
        if path == "/.well-known/openid-configuration":
            return 200, json.dumps(self.discovery()).encode()
        return (200, json.dumps({"keys": self.jwks}).encode()) if path == "/keys" else (404, b"")

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "token_endpoint_auth_methods_supported": self.auth_methods,
        }

    def authorize(self, query: str) -> str:
        """The URL to which the page of the issuer redirects the browser."""
        parameters = dict(parse_qsl(query))
        assert (parameters["response_type"], parameters["code_challenge_method"]) == ("code", "S256")
        assert (parameters["client_id"], "openid" in parameters["scope"].split()) == (CLIENT, True)
        code = secrets.token_urlsafe(16)
        self.codes[code] = parameters
        back = {"code": code, "state": parameters["state"], "iss": self.url}
        return f"{parameters['redirect_uri']}?{urlencode(back)}"

    def redeem(self, body: str, authorization: str | None) -> tuple[int, bytes]:
        """A code is accepted once, from the client that knows the verifier, and the secret if there is one."""
        self.fetches["/token"] += 1
        if "/token" in self.answers:
            return self.answers["/token"]
        form = dict(parse_qsl(body))
        grant = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        basic = base64.b64encode(f"{CLIENT}:{self.client_secret}".encode()).decode()
        is_client = self.client_secret is None or (
            authorization == f"Basic {basic}"
            if "client_secret_basic" in self.auth_methods
            else form.get("client_secret") == self.client_secret
        )
        if grant is None or challenge != grant["code_challenge"] or form["redirect_uri"] != grant["redirect_uri"]:
            return 400, b'{"error": "invalid_grant"}'
        if not is_client:
            return 401, b'{"error": "invalid_client"}'
        id_token = self.token(**{"aud": CLIENT, "nonce": grant["nonce"], **self.person})
        tokens = {"id_token": id_token, "access_token": self.access_token, "token_type": "Bearer"}
        return 200, json.dumps(tokens).encode()


@contextmanager
def issuer() -> Iterator[Issuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/authorize":
                self.send_response(302)
                self.send_header("Location", running.authorize(parts.query))
                self.end_headers()
                return
            self._send(*running.answer(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._send(*running.redeem(body, self.headers.get("Authorization")))

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if 300 <= status < 400:
                self.send_header("Location", f"{running.url}/keys")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Issuer(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
