"""The plain path through the two middleware of an application: no early rules, no user, no body."""

from asyncio import _get_running_loop  # returns None where another kind of loop runs
from typing import Any

from ratebound.policy import RequestView
from ratebound.policy.match.request import Wire
from ratebound.web.asgi_plain_path import is_scripted, peer_of
from ratebound.web.asgi_response import AsgiResponse
from ratebound.web.asgi_types import STATE, Send
from ratebound.web.fastapi.running_request import RunningRequest
from ratebound.web.passed_fields import PassedFields
from ratebound.web.plain_path import PlainPath
from ratebound.web.rejected import Rejected
from ratebound.web.visit import Visit


def begin_plain(gate: Any, key: str, scope: Any, send: Send) -> AsgiResponse | None:
    """Begin a request at the outermost middleware, and return the `send` for all within it. None if it takes more:
    early rules, or an application or a gate around this one."""
    plain: PlainPath = gate.plain
    state = scope.get("state")
    if key in scope or (state and STATE in state) or plain.compiled().has_early:
        return None
    scope["state"] = {**state} if state else {}  # the server's own is for all requests
    visit = Visit()
    scope[key] = visit
    return AsgiResponse(gate, visit, send, scope["method"] == "HEAD")


class PlainEntrance:
    """The plain path at the innermost middleware of one application.

    `known` has the routes that were found, by kind, method, path and host; None while they have to be read again, and
    where hosts matter. `count` is the number of the router's routes.
    """

    __slots__ = ("_app", "_application", "_key", "_limits", "_plain", "count", "known", "wire")

    def __init__(self, application: Any) -> None:
        limits = application.limits
        self._application = application
        self._app = application.app
        self._limits = limits
        self._plain: PlainPath = limits.gate.plain
        self._key: str = limits.key
        self.known: dict[Any, Any] | None = None
        self.count = 0
        self.wire: Wire = application.wire

    def enter(self, scope: Any) -> RunningRequest | Rejected | None:
        """Decide a request and return it as it runs, or its rejection; None if it takes more than this."""
        state, visit, known = scope["state"], scope.get(self._key), self.known
        if known is None or "user" in scope or STATE in state or scope.get("root_path"):
            return None
        if not isinstance(visit, Visit) or visit.answer is not None or len(self._app.router.routes) != self.count:
            return None
        found = known.get(("http", scope["method"], scope["path"], ""))
        if found is None or self._limits.has_user_function or self._limits.keeps_body:
            return None
        template, endpoint = found.template, found.endpoint
        if endpoint is not None and endpoint.spared_path is not None:  # it is made sure that the page is still there
            return None
        rules = self._plain.rules_of(endpoint)
        if rules is None or rules.line is None:
            return None
        method, peer, view = scope["method"], peer_of(scope), None
        if rules.line.only is None:  # the router changes its scope, so that the path is read now and kept
            view = RequestView.on_demand(self.wire, scope, method, peer, None, template)
        answer = self._plain.check(rules, self.wire, scope, method, peer, None, template, is_scripted(scope), view)
        if answer is None:
            return None
        visit.answer = answer
        visit.is_late = True
        if not isinstance(answer, PassedFields):
            return answer
        state[STATE] = answer
        return RunningRequest(
            answer, visit, scope, view, None, self._application, _get_running_loop(), self.wire, template
        )
