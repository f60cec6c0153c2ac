"""An issuer of OIDC tokens on loopback, with keys of its own."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "dagmaster"
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
    """Serves its discovery document and its keys. `answers` replaces what a path serves."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.jwks: list[dict[str, Any]] = [jwk_of(RSA_KEYS[0], "one")]
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.fetches: Counter[str] = Counter()
        self.delay_seconds = 0.0

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
            return 200, json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"}).encode()
        return (200, json.dumps({"keys": self.jwks}).encode()) if path == "/keys" else (404, b"")


@contextmanager
def issuer() -> Iterator[Issuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = running.answer(self.path)
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
