"""The plain path of a request through a Flask application."""

from collections.abc import Callable, Iterable
from typing import Any

from ratebound.policy.match.request import Wire
from ratebound.web.endpoint_rules import EndpointRules
from ratebound.web.passed import Passed
from ratebound.web.plain_path import PlainPath
from ratebound.web.rejected import Rejected
from ratebound.web.route_limit import Endpoint, RouteLimit
from ratebound.web.visit import Visit
from ratebound.web.wsgi_plain_path import check_plain
from ratebound.web.wsgi_response import track_response


class LimitedRoute:
    """The rules of one endpoint and method, under the policy in force. `is_plain` means that they need nothing of a
    request but its address and its method."""

    __slots__ = ("declared", "endpoint", "is_plain", "rules")

    def __init__(
        self, endpoint: Endpoint | None, declared: tuple[RouteLimit, ...], rules: EndpointRules, is_plain: bool
    ) -> None:
        self.endpoint = endpoint
        self.declared = declared
        self.rules = rules
        self.is_plain = is_plain


class PlainRequests:
    """The plain path of one application. `key` is the key of a visit in its environ, `table` has the routes that were
    met, by the names of their endpoints and by method."""

    __slots__ = ("_gate", "_key", "_plain", "_table", "_wire")

    def __init__(self, gate: Any, key: str, wire: Wire, table: dict[Any, LimitedRoute]) -> None:
        self._gate = gate
        self._plain: PlainPath = gate.plain
        self._key = key
        self._wire = wire
        self._table = table

    def check(self, request: Any) -> Passed | Rejected | None:
        """Decide a request, and note the answer in its visit. None if it takes more than this."""
        environ, rule = request.environ, request.url_rule
        visit = environ.get(self._key)
        if rule is None or not isinstance(visit, Visit) or visit.answer is not None:
            return None
        route = self._table.get((rule.endpoint, request.method))
        if route is None or not route.is_plain or route.rules.base is not self._plain.compiled():
            return None
        answer = check_plain(self._plain, route.rules, self._wire, environ)
        if answer is not None:
            visit.is_late = True
            visit.checked = route.declared
            visit.answer = answer
        return answer

    def responding(self, app: Callable[..., Iterable[bytes]]) -> "Responding":
        """Wrap an application's `wsgi_app`: our headers on every response, and its cost at its end."""
        return Responding(app, self._gate, self._key)


class Responding:
    """An application's `wsgi_app` that notes a visit in each environ, and tracks the response."""

    __slots__ = ("_app", "_gate", "_key")

    def __init__(self, app: Callable[..., Iterable[bytes]], gate: Any, key: str) -> None:
        self._app = app
        self._gate = gate
        self._key = key

    def __call__(self, environ: Any, start_response: Any) -> Any:
        visit = Visit()
        environ[self._key] = visit
        return track_response(self._gate, self._app, visit, environ, start_response)
