"""The view of a request that adapters create for rules, identities and rejections. It depends on no framework."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from ratebound.http.rejection import is_preflight
from ratebound.policy.match.reading import Paths

QUOTED = re.compile('"(.*)"')  # the value of a cookie
ESCAPE = re.compile(r"\\(?:([0-3][0-7]{2})|(.))")
ANONYMOUS = 100  # requests in a row without a user, after which the application seems to set no user at all


class Identity(NamedTuple):
    """A verified identity of a client.

    Attributes:
        kind: What it is: "user", "api-key", …. It contains no ':'.
        value: Text that stays the same for this client.
        tier: The tier, if one is known.

    Examples:
        >>> from ratebound.policy import Identity
        >>> Identity("api-key", "acme", tier="pro").key
        'api-key:acme'
    """

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

    `paths` holds every path by which the request may be routed. `found` is where a gate keeps identities between two
    stages. See docs/guides/web.md for what each adapter provides.

    Args:
        method: The method, in capitals.
        path: The path as received: percent-encoded, without the query.
        query: The query as received, without the `?`.
        host: The Host header. Adapters join several by commas.
        headers: The header lines as (name, value). Names are in lower case.
        peer: The address of the other end of the socket; None on a Unix socket.
        scheme: http or https.
        user: The user that the framework has authenticated: text, a whole number or an `Identity`.
        route: The router's template, without any prefix, if the request was routed already.
        body: The body; None unless the adapter has read it.
        path_params: The parameters of the route. None means that the adapter does not know the route.
        session: The framework's session, or None.
        state: The framework's object that holds an application's values for one request.
        request: The framework's request object.

    Examples:
        >>> from ratebound.policy import RequestView
        >>> request = RequestView("GET", "/orders", headers=[("x-api-key", "k1")], peer="203.0.113.7")
        >>> request.header("x-api-key"), request.address
        ('k1', '203.0.113.7')
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
        """Return a view that reads the rest of the request from `source` on access.

        Args:
            wire: The functions that read the parts.
            source: The request of the server or framework.
            method: The method, in capitals.
            peer: The address of the other end of the socket; None on a Unix socket.
            user: The user that the framework has authenticated.
            route: The router's template, without any prefix, if the request was routed already.
        """
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
        """Replace the readings of the path.

        Args:
            paths: The path, or every path by which the request may be routed.
        """
        self._paths = paths

    def __repr__(self) -> str:
        return f"RequestView({self.method!r}, {self.path!r}, peer={self.peer!r})"

    @property
    def address(self) -> str:
        """Return the client's address by which rules count, as reported by trusted proxies. Until a gate has identified
        the client it is the peer's address."""
        return (self.peer or "") if self.found is None else self.found.client.text

    def header_lines(self, name: str) -> list[str]:
        """Return every line of a header, in order.

        Args:
            name: The name, in upper or lower case.
        """
        by_name = self._by_name
        if by_name is None:
            by_name = self._by_name = {}
            for key, value in self.headers:
                by_name.setdefault(key, []).append(value)
        lines = by_name.get(name)
        return lines or by_name.get(name.lower()) or []  # nearly every name is in lower case already

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
        """Return the first line of a header, None if there is none.

        Args:
            name: The name, in upper or lower case.
        """
        lines = self.header_lines(name)
        return lines[0] if lines else None

    def cookie(self, name: str) -> str | None:
        """Return the cookie of that name; None if there is none, or if there are two: servers differ in which one they
        use.

        Args:
            name: The name of the cookie.
        """
        found = cookies_in(self, name)
        return found[0] if len(found) == 1 else None

    def value(self, name: str) -> str | None:
        """Return a value of the request as rules read it, from JSON and forms alike: `"body.username"`, `"path.id"`,
        `"query.q"`, `"header.x-device"` or `"cookie.cart"`. Return None if it is absent, or can be read in several
        ways: rules that count by it deny such a request. A parameter of the path is known once the request is routed.

        A function that reads the body needs the attribute `reads_body = True`: adapters read the body only then.

        Args:
            name: The part of the request, a dot, and the name of the value.

        Raises:
            ValueError: The name is none of these.

        Examples:
            >>> from ratebound.policy import RequestView
            >>> form = [("content-type", "application/x-www-form-urlencoded")]
            >>> RequestView("POST", "/login", headers=form, body=b"username=ann").value("body.username")
            'ann'
        """
        from ratebound.policy.match.request_value import reader_of  # it imports this module

        return reader_of(name).only_value(self)


def cookies_in(request: RequestView, name: str) -> list[str]:
    """Return the values of all cookies of that name, as Python's frameworks read them: without quotes and escapes."""
    parts = [part.partition("=") for line in request.header_lines("cookie") for part in line.split(";")]
    return [_unquoted(value.strip()) for key, equals, value in parts if equals and key.strip() == name]


def _unquoted(value: str) -> str:
    quoted = QUOTED.fullmatch(value)
    return value if quoted is None else ESCAPE.sub(lambda one: one[2] or chr(int(one[1], 8)), quoted[1])
