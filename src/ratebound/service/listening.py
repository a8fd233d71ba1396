"""The sockets of the service. The supervisor binds all of them before any worker starts, and workers inherit them.

Workers accept from one socket: connections that wait to be accepted are not lost when a worker dies.
"""

import os
import socket
import ssl
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from ratebound.errors import RateboundError
from ratebound.service.settings import BY_NAME, Listen, ServiceSettings

BACKLOG = 2048
ALPN = {"http": ["http/1.1"], "grpc": ["h2"], "resp": []}


class StartError(RateboundError):
    """The service cannot start."""


def bind_all(listens: Mapping[str, Listen]) -> dict[str, socket.socket]:
    """Return a listening socket for each address. Raises StartError with every address that cannot be used."""
    bound: dict[str, socket.socket] = {}
    mistakes = []
    for name, listen in listens.items():
        try:
            bound[name] = _unix(listen.path) if listen.path else _tcp(listen)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            option = BY_NAME[name].option
            mistakes.append(f"cannot listen on {listen} for {name}: {reason}. Choose another address with {option}")
    if mistakes:
        close_all(bound)
        raise StartError("\n".join(mistakes))
    return bound


def close_all(sockets: Mapping[str, socket.socket]) -> None:
    """Close sockets in this process, and remove Unix sockets from their folders. Those that are closed already are left
    alone: another program may have put its own socket there since."""
    for bound in sockets.values():
        if bound.fileno() >= 0:
            if bound.family == socket.AF_UNIX:
                with suppress(OSError):
                    os.unlink(bound.getsockname())
            bound.close()


def address_of(name: str, bound: socket.socket, *, tls: bool) -> str:
    """Return the URL of a listening socket, with the port that it has."""
    if bound.family == socket.AF_UNIX:
        return f"unix:{bound.getsockname()}"
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    scheme = {"http": "http", "admin": "http", "grpc": "grpc", "resp": "redis"}[name]
    return f"{scheme}{'s' if tls else ''}://{shown}"


def tls_context(settings: ServiceSettings, name: str) -> ssl.SSLContext | None:
    """Return the TLS context of a listener; None without a certificate. Raises StartError."""
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "strerror", None) or error
        raise StartError(
            f"cannot use the certificate {settings.tls_cert} with the key {settings.tls_key}: {reason}"
        ) from None
    if ALPN.get(name):
        context.set_alpn_protocols(ALPN[name])
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted: give a key without a password, in a file that only the service may read")


def _tcp(listen: Listen) -> socket.socket:
    found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    with _listening(family) as bound:
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and listen.host == "::":
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(address)
    return bound


def _unix(path: str) -> socket.socket:
    """Return a Unix socket that its user and its group may use. A left-over socket without a server is replaced."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(None, "there is a file of this name that is no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            else:
                raise OSError(None, "another program serves it")
    with _listening(socket.AF_UNIX) as bound:
        before = os.umask(0o117)
        try:
            bound.bind(path)
        finally:
            os.umask(before)
    return bound


@contextmanager
def _listening(family: int) -> Iterator[socket.socket]:
    """Make a socket that the body binds. It listens at the end, and is closed if the body fails."""
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        yield bound
        bound.listen(BACKLOG)
    except BaseException:
        bound.close()
        raise
    bound.setblocking(False)
