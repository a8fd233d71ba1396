"""The request of a client, as a proxy describes it in a check.

A proxy passes on headers of its clients, so a header counts only if the proxy has written it. Three descriptions exist:

| name | who sends it | target, method | host, scheme | address of the client |
|---|---|---|---|---|
| nginx | nginx | X-Original-URI, X-Original-Method | Host, X-Forwarded-Proto | X-Real-IP |
| forwarded | Traefik, Caddy, HAProxy | X-Forwarded-Uri, X-Forwarded-Method | X-Forwarded-Host, X-Forwarded-Proto | last of X-Forwarded-For |
| path | Envoy | the path below /v1/check, the method of the check | Host, X-Forwarded-Proto | last of X-Forwarded-For |

By itself (`auto`) the service takes the only description that is there. Two of them, or one header twice, are refused:
one is a client's. The query of a check is a client's too, and is read only where it belongs to the described path.
"""  # noqa: E501 - a table

from collections.abc import Sequence
from typing import Any, Final

from ratebound.policy.match.request import Wire
from ratebound.service.http1 import HttpRequest

AUTO: Final = "auto"
NGINX: Final = "nginx"
FORWARDED: Final = "forwarded"
PATH: Final = "path"
DESCRIPTIONS: Final = (AUTO, NGINX, FORWARDED, PATH)
PREFIX: Final = len(b"/v1/check")
MAX_PATH: Final = 8192  # bytes. The readings of a path take time with its length, and a proxy may not wait for them

# The headers that are looked for, and their places in what was found.
ORIGINAL_URI: Final = 0
ORIGINAL_METHOD: Final = 1
REAL_IP: Final = 2
FORWARDED_URI: Final = 3
FORWARDED_METHOD: Final = 4
FORWARDED_HOST: Final = 5
FORWARDED_PROTO: Final = 6
HOST: Final = 7
TOKEN: Final = 8
ORIGIN: Final = 9
FORWARDED_FOR: Final = 10
NAMES: Final = (
    "X-Original-URI",
    "X-Original-Method",
    "X-Real-IP",
    "X-Forwarded-Uri",
    "X-Forwarded-Method",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "Host",
    "X-Ratebound-Token",
    "Origin",
    "X-Forwarded-For",
)
PLACES: Final = {name.lower().encode(): place for place, name in enumerate(NAMES)}
NOTHING: Final[list[bytes | None]] = [None] * len(NAMES)
# Headers that may have only one line, by description.
SINGLE: Final = {
    NGINX: (ORIGINAL_URI, ORIGINAL_METHOD, REAL_IP, HOST, FORWARDED_PROTO, TOKEN),
    FORWARDED: (FORWARDED_URI, FORWARDED_METHOD, FORWARDED_HOST, FORWARDED_PROTO, HOST, TOKEN),
    PATH: (HOST, FORWARDED_PROTO, TOKEN),
}
MASKS: Final = {name: sum(1 << place for place in places) for name, places in SINGLE.items()}
# What is about the check, or was added by the proxy: the policy does not see it.
OF_THE_CHECK: Final = frozenset((b"connection", b"content-length", b"host", b"transfer-encoding", b"x-ratebound-token"))
HIDDEN: Final = {
    NGINX: OF_THE_CHECK | {b"x-original-uri", b"x-original-method", b"x-real-ip", b"x-forwarded-proto"},
    FORWARDED: OF_THE_CHECK
    | {b"x-forwarded-" + part for part in (b"uri", b"method", b"host", b"proto", b"port", b"server", b"for")},
    PATH: OF_THE_CHECK | {b"x-forwarded-proto", b"x-forwarded-for"},
}
METHODS: Final = {
    name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE")
}
SET_HEADERS: Final = "Set check_headers to nginx, forwarded or path."


class BadDescription(Exception):
    """A check that does not describe one request. Its text is a sentence for the operator."""

    def __init__(self, detail: str, status: int = 400) -> None:
        super().__init__(detail)
        self.status = status


class ProxiedRequest:
    """The request of a client, as its proxy has received it. Headers are decoded only if a rule looks at them.

    `peer` is the address that the proxy saw. `forwarded_for` is what the client itself has sent as X-Forwarded-For.
    `is_scripted` is True if there is an Origin header. `token` is the proxy's, None if it sent none.
    """

    __slots__ = ("_found", "_lines", "description", "forwarded_for", "is_scripted", "method", "path", "peer", "query")

    def __init__(self, request: HttpRequest, wanted: str) -> None:
        found = NOTHING.copy()
        doubled = 0
        addresses: list[bytes] = []
        lines = request.headers
        for name, value in lines:
            place = PLACES.get(name)
            if place is None:
                continue
            if place == FORWARDED_FOR:
                addresses.append(value)
            elif found[place] is None:
                found[place] = value
            else:
                doubled |= 1 << place
        description = chosen(found, request.target) if wanted == AUTO else wanted
        if doubled & MASKS[description]:
            raise BadDescription(_twice(doubled, description))
        self._found = found
        self._lines = lines
        self.description = description
        self.is_scripted = found[ORIGIN] is not None
        method: bytes | None
        target: bytes | None
        if description == PATH:
            self.method = request.method
            target = request.target[PREFIX:]
            if target[:1] != b"/":
                raise BadDescription("There is no path below /v1/check. Envoy needs path_prefix: /v1/check.")
        else:
            if description == NGINX:
                target, method = found[ORIGINAL_URI], found[ORIGINAL_METHOD]
            else:
                target, method = found[FORWARDED_URI], found[FORWARDED_METHOD]
            if not target or not method:
                raise BadDescription(_incomplete(description))
            self.method = METHODS.get(method) or method.decode("latin-1")
        path, _, query = target.partition(b"?")
        if len(path) > MAX_PATH:
            raise BadDescription(f"The path is longer than {MAX_PATH} bytes.", 414)
        self.path = path.decode("latin-1")
        self.query = query
        if description == NGINX:
            peer = found[REAL_IP]
            if not peer:
                raise BadDescription("X-Real-IP is missing. The proxy must send the address of its client in it.")
            self.peer = peer.decode("latin-1")
            self.forwarded_for = addresses
        else:
            if not addresses:
                raise BadDescription(
                    "X-Forwarded-For is missing. The proxy must append the address of its client to it."
                )
            rest, comma, last = addresses.pop().rpartition(b",")
            if comma:
                addresses.append(rest)
            self.peer = last.strip(b" \t").decode("latin-1")
            if not self.peer:
                raise BadDescription("X-Forwarded-For ends without an address. The proxy must append its client's.")
            self.forwarded_for = addresses

    @property
    def token(self) -> bytes | None:
        """The token that the proxy sent."""
        return self._found[TOKEN]

    @property
    def host(self) -> str:
        """The host that the client asked for; empty if it is not known."""
        host = self._found[FORWARDED_HOST] if self.description == FORWARDED else None
        return (host or self._found[HOST] or b"").decode("latin-1")

    @property
    def scheme(self) -> str:
        """The scheme by which the client reached the proxy; http unless the proxy says otherwise."""
        return (self._found[FORWARDED_PROTO] or b"http").decode("latin-1")

    def headers(self) -> Sequence[tuple[str, str]]:
        """Return the headers of the client, without those of the proxy."""
        hidden = HIDDEN[self.description]
        host = self.host
        pairs = [("host", host)] if host else []
        for name, value in self._lines:
            if name not in hidden and not (self.description == PATH and name.startswith(b"x-envoy-")):
                pairs.append((name.decode("latin-1"), value.decode("latin-1")))
        if self.description != NGINX:
            for value in self.forwarded_for:
                pairs.append(("x-forwarded-for", value.decode("latin-1")))
        return pairs


def chosen(found: list[bytes | None], target: bytes) -> str:
    """Return the only description that is there. Raises BadDescription if there are two, or none."""
    is_nginx = found[ORIGINAL_URI] is not None or found[ORIGINAL_METHOD] is not None
    is_forwarded = found[FORWARDED_URI] is not None or found[FORWARDED_METHOD] is not None
    is_path = target[PREFIX : PREFIX + 1] == b"/"
    if is_nginx + is_forwarded + is_path != 1:
        raise BadDescription(_not_one(is_nginx, is_forwarded, is_path))
    return NGINX if is_nginx else FORWARDED if is_forwarded else PATH


def _not_one(is_nginx: bool, is_forwarded: bool, is_path: bool) -> str:
    forms = ((is_nginx, "X-Original-URI"), (is_forwarded, "X-Forwarded-Uri"), (is_path, "a path below /v1/check"))
    names = [name for is_there, name in forms if is_there]
    if not names:
        return (
            "No request is described. The proxy must send X-Original-URI and X-Original-Method, or X-Forwarded-Uri and"
            " X-Forwarded-Method, or the path below /v1/check."
        )
    return (
        f"The request is described more than once, by {' and '.join(names)}. A client may have sent one of them."
        f" {SET_HEADERS}"
    )


def _twice(doubled: int, description: str) -> str:
    names = [NAMES[place] for place in SINGLE[description] if doubled & 1 << place]
    return f"{names[0]} was sent twice. A client may have sent one of them: the proxy must replace it."


def _incomplete(description: str) -> str:
    names = "X-Original-URI and X-Original-Method" if description == NGINX else "X-Forwarded-Uri and X-Forwarded-Method"
    return f"{names} are both needed, and the proxy has not sent both. {SET_HEADERS}"


def _no_mapping(_: Any) -> dict[str, Any]:
    return {}


def _none(_: Any) -> None:
    return None


def _no_text(_: Any) -> str:
    return ""


def _itself(request: ProxiedRequest) -> ProxiedRequest:
    return request


def _path(request: ProxiedRequest) -> str:
    return request.path


def _query(request: ProxiedRequest) -> str:
    return request.query.decode("latin-1")


def _host(request: ProxiedRequest) -> str:
    return request.host


def _scheme(request: ProxiedRequest) -> str:
    return request.scheme


def _is_scripted(request: ProxiedRequest) -> bool:
    return request.is_scripted


WIRE: Final = Wire(
    paths=_path,
    query=_query,
    host=_host,
    headers=ProxiedRequest.headers,
    scheme=_scheme,
    is_scripted=_is_scripted,
    path_params=_no_mapping,
    session=_none,
    state=_none,
    request=_itself,
    no_user=_no_text,
)
