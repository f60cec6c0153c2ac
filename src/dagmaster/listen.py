"""Bind a port. This module imports little, because a port is bound before anything else starts."""

import errno
import ipaddress
import socket
from dataclasses import dataclass

from dagmaster.errors import Conflict, InvalidRequest


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server of this process. `name` is the prefix of its settings and of its error codes."""

    name: str
    title: str
    hint_if_in_use: str
    hint_on_security: str = "set AUTH_ENABLED=true, "


API = Endpoint("api", "the API", "choose another port with --port (0 takes a free one), or use --no-api")
GATEWAY = Endpoint("gateway", "the gateway", "choose another port with --port (0 takes a free one)")
SERVING = Endpoint("serving", "the map server", "choose another port with --port (0 takes a free one)")
HEALTH = Endpoint("health", "the health endpoint", "choose another HEALTH_PORT (0 takes a free one)", "")


def bind(host: str, port: int, *, may_expose: bool = False, endpoint: Endpoint = API) -> socket.socket:
    """Bind a port. Done before anything else starts, so that a port in use is reported at once. Non-loopback addresses
    are refused, unless `may_expose`: authentication is enabled, or the settings accept the risk."""
    if not is_loopback(host) and not may_expose:
        setting = endpoint.name.upper()
        raise InvalidRequest(
            f"{endpoint.title} would listen on {host}, where other machines could use it without authentication",
            code=f"{endpoint.name}.not-loopback",
            hint=f"{endpoint.hint_on_security}set {setting}_HOST=127.0.0.1, or {setting}_INSECURE=true "
            "behind a proxy or firewall that restricts access",
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        message = f"{endpoint.name.upper()}_HOST: {host}: {error.strerror}"
        raise InvalidRequest(message, code=f"{endpoint.name}.bad-host") from None
    # With an explicit protocol: asyncio sets TCP_NODELAY only on sockets that are declared as TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise _refused(endpoint, host, port, error) from None
    return bound


def bind_or_any(host: str, port: int, *, may_expose: bool = False, endpoint: Endpoint = API) -> socket.socket:
    """Bind this port, or any free one if it is in use: for endpoints of which one machine may have several."""
    try:
        return bind(host, port, may_expose=may_expose, endpoint=endpoint)
    except Conflict:
        return bind(host, 0, may_expose=may_expose, endpoint=endpoint)


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return http_url(host, port)


def http_url(host: str, port: int) -> str:
    """The URL of a server. An IPv6 address is in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _refused(endpoint: Endpoint, host: str, port: int, error: OSError) -> Conflict | InvalidRequest:
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            f"port {port} of {host} is already in use",
            code=f"{endpoint.name}.port-taken",
            hint=endpoint.hint_if_in_use,
            port=port,
        )
    message = f"{endpoint.title} cannot listen on {host} port {port}: {error.strerror}"
    return InvalidRequest(message, code=f"{endpoint.name}.cannot-listen")
