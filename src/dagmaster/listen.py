"""Where a process listens. Light to import: the port is taken before anything else is done."""

import errno
import ipaddress
import socket
from dataclasses import dataclass

from dagmaster.errors import Conflict, InvalidRequest


@dataclass(frozen=True, slots=True)
class Entrance:
    """What listens: `name` begins its settings and the codes of its errors."""

    name: str
    what: str
    hint_when_taken: str


API = Entrance("api", "the API", "another orchestrator? choose a port with --port (0 takes a free one), or --no-api")
SERVING = Entrance("serving", "the map server", "choose another port with --port (0 takes a free one)")
HEALTH = Entrance("health", "the health endpoint", "choose another HEALTH_PORT (0 takes a free one)")


def bind(host: str, port: int, *, is_insecure: bool = False, entrance: Entrance = API) -> socket.socket:
    """Take the port before anything else starts: one that is taken already is told at once."""
    if not is_loopback(host) and not is_insecure:
        setting = entrance.name.upper()
        raise InvalidRequest(
            f"{entrance.what} would listen on {host}, for anyone who reaches this machine, and it asks nobody who they are",
            code=f"{entrance.name}.not-loopback",
            hint=f"set {setting}_HOST=127.0.0.1, or {setting}_INSECURE=true where something in front keeps others out",
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        what = f"{entrance.name.upper()}_HOST: {host}: {error.strerror}"
        raise InvalidRequest(what, code=f"{entrance.name}.bad-host") from None
    # The protocol by name: asyncio sends small answers at once only on sockets that say they are TCP.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        raise _refused(entrance, host, port, error) from None
    return bound


def bind_somewhere(host: str, port: int, *, is_insecure: bool = False, entrance: Entrance = API) -> socket.socket:
    """This port, or any free one where someone else has it: for what several processes of one machine do."""
    try:
        return bind(host, port, is_insecure=is_insecure, entrance=entrance)
    except Conflict:
        return bind(host, 0, is_insecure=is_insecure, entrance=entrance)


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _refused(entrance: Entrance, host: str, port: int, error: OSError) -> Conflict | InvalidRequest:
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            f"port {port} of {host} is taken",
            code=f"{entrance.name}.port-taken",
            hint=entrance.hint_when_taken,
            port=port,
        )
    what = f"{entrance.what} can't listen on {host} port {port}: {error.strerror}"
    return InvalidRequest(what, code=f"{entrance.name}.cannot-listen")
