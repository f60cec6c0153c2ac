"""The guide on callbacks: its receiver accepts only requests signed by dagmaster or by its own shell commands."""

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from dagmaster.callbacks.signing import new_secret, sign
from tests.docs.pages import ROOT, blocks_in

pytestmark = pytest.mark.requirement("E24")

PAGE = ROOT / "docs/guides/receive-callbacks.md"
SECRET = new_secret()


def block(info: str) -> str:
    (body,) = (each.body for each in blocks_in(PAGE) if each.info == info)
    return body


def is_genuine(headers: Any, body: bytes) -> bool:
    names: dict[str, Any] = {}
    exec(block("python"), names)
    return names["is_genuine"](SECRET, headers, body)


def test_the_snippet_accepts_only_requests_signed_by_dagmaster():
    now, body = int(time.time()), b'{"status": "approved"}'
    headers = sign([new_secret(), SECRET], "id-1", now, body)

    assert is_genuine(headers, body)
    assert not is_genuine(headers, body + b" ")
    assert not is_genuine({**headers, "webhook-id": "id-2"}, body)
    assert not is_genuine(sign([new_secret()], "id-1", now, body), body)
    assert not is_genuine(sign([SECRET], "id-1", now - 400, body), body)
    assert not is_genuine({}, body)


@pytest.mark.parametrize("snippet", ["receive-callbacks.md", "integrate-a-platform.md"])
@pytest.mark.parametrize("text", ["", "²", "-1", "1e9", "9" * 30, "é", "v1,é", "v1,"])
def test_malformed_headers_are_refused_without_an_error(snippet, text):
    """A receiver that fails would be called repeatedly."""
    (body,) = (each.body for each in blocks_in(ROOT / "docs/guides" / snippet) if each.info == "python")
    start = body.index("def is_genuine(")
    names: dict[str, Any] = {"SECRET": SECRET}
    exec("import base64, hashlib, hmac, time\n" + body[start:].split("\n\n\n")[0], names)
    genuine = sign([SECRET], "id-1", int(time.time()), b"{}")
    secret = [SECRET] if snippet == "receive-callbacks.md" else []

    assert names["is_genuine"](*secret, genuine, b"{}")
    for name in genuine:
        assert not names["is_genuine"](*secret, {**genuine, name: text}, b"{}")


@pytest.fixture
def receiver_url() -> Iterator[str]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(204 if is_genuine(self.headers, body) else 401)
            self.end_headers()

        def log_message(self, *_values: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/done"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("change", "is_accepted"), [("", True), (" ", False)])
def test_the_shell_commands_check_a_receiver(receiver_url, change, is_accepted):
    script = block("bash").replace('--data-binary "$body"', f'--data-binary "$body{change}"')
    variables = {**os.environ, "SECRET": SECRET, "URL": receiver_url, "no_proxy": "127.0.0.1"}

    finished = subprocess.run(["bash", "-ec", script], env=variables, capture_output=True, check=False)

    assert (finished.returncode == 0) is is_accepted
