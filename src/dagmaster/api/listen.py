"""Where the API listens. Light to import: the port is taken before anything else is done."""

import errno
import ipaddress
import socket

from dagmaster.errors import Conflict, InvalidRequest


def bind(host: str, port: int, *, is_insecure: bool = False) -> socket.socket:
    """Take the port before anything else starts: one that is taken already is told at once."""
    if not is_loopback(host) and not is_insecure:
        raise InvalidRequest(
            f"the API would listen on {host}, for anyone who reaches this machine, and it asks nobody who they are",
            code="api.not-loopback",
            hint="set API_HOST=127.0.0.1, or API_INSECURE=true where something in front keeps others out",
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise InvalidRequest(f"API_HOST: {host}: {error.strerror}", code="api.bad-host") from None
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise _refused(host, port, error) from None
    return bound


def _refused(host: str, port: int, error: OSError) -> Conflict | InvalidRequest:
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            f"port {port} of {host} is taken", code="api.port-taken",
            hint="another orchestrator? choose a port with --port (0 takes a free one), or --no-api", port=port,
        )  # fmt: skip
    return InvalidRequest(f"the API can't listen on {host} port {port}: {error.strerror}", code="api.cannot-listen")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
