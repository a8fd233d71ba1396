"""The view of a request that adapters create for rules, identities and rejections. It depends on no framework."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from ratebound.http.rejection import is_preflight
from ratebound.policy.match.reading import Paths

ANONYMOUS = 100  # requests in a row without a user, after which the application seems to set no user at all


class Identity(NamedTuple):
    """A verified identity of a client: a kind, a value that stays the same, and a tier if one is known."""

    kind: str
    value: str
    tier: str | None = None

    @property
    def key(self) -> str:
        """Return the key of its state. A kind contains no ':', so two kinds never share a key (law 10)."""
        return f"{self.kind}:{self.value}"


class Wire(NamedTuple):
    """The functions with which an adapter reads, from its server's request, the parts that few rules need."""

    paths: Callable[[Any], Paths]
    query: Callable[[Any], str]
    host: Callable[[Any], str]
    headers: Callable[[Any], Sequence[tuple[str, str]]]
    scheme: Callable[[Any], str]
    is_scripted: Callable[[Any], bool]
    path_params: Callable[[Any], Mapping[str, Any]]
    session: Callable[[Any], Any]
    state: Callable[[Any], Any]
    request: Callable[[Any], Any]
    no_user: Callable[[Any], str]  # why the user cannot be known, and what to do; "" if users are known
    # The number of requests without a user after which `no_user` is reported: many where only users that are logged in
    # are visible.
    anonymous: int = 1


def _on_demand(name: str) -> Any:
    """Return a property that reads a part of the request on first access, and keeps it."""
    slot = f"_{name}"

    def read(view: "RequestView") -> Any:
        try:
            return getattr(view, slot)
        except AttributeError:
            assert view._wire is not None
            value = getattr(view._wire, name)(view._source)
            setattr(view, slot, value)
            return value

    return property(read, lambda view, value: setattr(view, slot, value))


def _each_time(name: str, missing: Any) -> Any:
    """Return a property that reads a part of the request on every access: to keep a framework's request in its view
    would be a reference cycle."""

    def read(view: "RequestView") -> Any:
        if view._wire is None:
            return view._source.get(name, missing)
        return getattr(view._wire, name)(view._source)

    return property(read)


class RequestView:
    """A request before the application handles it, as rules and functions see it.

    `path` is the path as received: percent-encoded, without the query. `paths` holds every path by which the request
    may be routed, see reading.py. Names of headers are in lower case. `peer` is the address of the other end of the
    socket, None on a Unix socket. `user` is the user that the framework has authenticated: text, a whole number or an
    Identity. `route` is the router's template, without any prefix, if the request was routed already. `body` is None
    unless the adapter has read it. `found` is where a gate keeps identities between two stages.

    `path_params` are the parameters of the route, empty if the adapter does not know the route. `session`, `state` and
    `request` belong to the framework: the session or None, the object that holds an application's values for one
    request, and the request object. See docs/web.md for what each adapter provides.
    """

    __slots__ = (
        "_by_name",
        "_headers",
        "_host",
        "_paths",
        "_query",
        "_scheme",
        "_source",
        "_wire",
        "body",
        "found",
        "method",
        "peer",
        "route",
        "user",
    )

    headers: Sequence[tuple[str, str]] = _on_demand("headers")
    host: str = _on_demand("host")
    paths: Paths = _on_demand("paths")
    query: str = _on_demand("query")
    scheme: str = _on_demand("scheme")
    path_params: Mapping[str, Any] = _each_time("path_params", {})
    session: Any = _each_time("session", None)
    state: Any = _each_time("state", None)
    request: Any = _each_time("request", None)
    no_user: str = _each_time("no_user", "")

    def __init__(
        self,
        method: str,
        path: Paths,
        *,
        query: str = "",
        host: str = "",
        headers: Sequence[tuple[str, str]] = (),
        peer: str | None = None,
        scheme: str = "http",
        user: "str | int | Identity | None" = None,
        route: str | None = None,
        body: bytes | None = None,
        path_params: Mapping[str, Any] | None = None,
        session: Any = None,
        state: Any = None,
        request: Any = None,
    ) -> None:
        self.method = method
        self._paths = path
        self._query = query
        self._host = host
        self._headers = headers
        self.peer = peer
        self._scheme = scheme
        self.user: Any = user  # may also be something to await that returns the user
        self.route = route
        self.body = body
        self.found: Any = None
        self._by_name: dict[str, list[str]] | None = None
        self._wire: Wire | None = None
        given = {"path_params": path_params, "session": session, "state": state, "request": request}
        self._source: Any = {name: value for name, value in given.items() if value is not None}

    @classmethod
    def on_demand(
        cls, wire: Wire, source: Any, method: str, peer: str | None, user: Any = None, route: str | None = None
    ) -> Self:
        """Return a view that reads the rest of the request from `source` on access."""
        view = cls.__new__(cls)
        view._wire = wire
        view._source = source
        view.method = method
        view.peer = peer
        view.user = user
        view.route = route
        view.body = view.found = view._by_name = None
        return view

    @property
    def anonymous(self) -> int:
        """Return the number of requests without a user after which `no_user` is reported."""
        return 1 if self._wire is None else self._wire.anonymous

    @property
    def path(self) -> str:
        """Return the path as received, percent-encoded, without the query."""
        paths = self.paths
        return paths if isinstance(paths, str) else paths.target

    def reread(self, paths: Paths) -> None:
        """Replace the readings of the path."""
        self._paths = paths

    def __repr__(self) -> str:
        return f"RequestView({self.method!r}, {self.path!r}, peer={self.peer!r})"

    @property
    def address(self) -> str:
        """Return the client's address by which rules count, as reported by trusted proxies. Until a gate has identified
        the client it is the peer's address."""
        return (self.peer or "") if self.found is None else self.found.client.text

    def header_lines(self, name: str) -> list[str]:
        """Return every line of a header, in order. `name` must be in lower case."""
        by_name = self._by_name
        if by_name is None:
            by_name = self._by_name = {}
            for key, value in self.headers:
                by_name.setdefault(key, []).append(value)
        return by_name.get(name) or []

    @property
    def is_scripted(self) -> bool:
        """Return True if the request has an Origin header, so that it may come from a script in a browser."""
        if self._wire is not None:
            return self._wire.is_scripted(self._source)
        return "origin" in [name for name, _ in self.headers]

    @property
    def is_preflight(self) -> bool:
        """Return True for a CORS preflight. Any client can send one."""
        return self.method == "OPTIONS" and is_preflight(self.method, self.headers)

    def header(self, name: str) -> str | None:
        """Return the first line of a header, None if there is none. `name` must be in lower case."""
        lines = self.header_lines(name)
        return lines[0] if lines else None

    def cookie(self, name: str) -> str | None:
        """Return the cookie of that name; None if there is none, or if there are two: servers differ in which one they
        use."""
        found = None
        for line in self.header_lines("cookie"):
            for part in line.split(";"):
                key, equals, value = part.partition("=")
                if equals and key.strip() == name:
                    if found is not None:
                        return None
                    found = value.strip().strip('"')
        return found
