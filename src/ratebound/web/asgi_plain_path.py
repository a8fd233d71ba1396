"""The plain path of a request over ASGI: checked and entered without a coroutine."""

from typing import Any

from ratebound.http.client_ip import GONE
from ratebound.policy.match.request import Wire
from ratebound.web.asgi_response import AsgiResponse
from ratebound.web.asgi_types import STATE, VISIT, Send
from ratebound.web.passed_fields import PassedFields
from ratebound.web.plain_path import PlainPath
from ratebound.web.rejected import Rejected
from ratebound.web.visit import Visit


def is_scripted(scope: Any) -> bool:
    """Return True if a request has an Origin header."""
    for name, _ in scope["headers"]:  # noqa: SIM110 - a loop is faster
        if name == b"origin":
            return True
    return False


def peer_of(scope: Any) -> Any:
    """Return the address of the peer. None if the server does not know it, as on a unix socket, or says so with an
    empty one. GONE if it does not know it although it listens on a port."""
    client = scope.get("client")
    if client:
        return client[0] or None
    server = scope.get("server")
    return GONE if server and server[1] is not None else None


def enter_plain(gate: Any, wire: Wire, scope: Any, send: Send) -> AsgiResponse | Rejected | None:
    """Decide a request by the plain path. Return the `send` for the application, or the rejection; None if it takes
    more: another gate around this one, a user, or a router in front of it."""
    state = scope.get("state")
    if "user" in scope or "path_template" in scope or (state and STATE in state):
        return None
    plain: PlainPath = gate.plain
    rules = plain.rules_of(None)
    if rules is None or rules.line is None:
        return None
    answer = plain.check(rules, wire, scope, scope["method"], peer_of(scope), None, None, is_scripted(scope))
    if answer is None:
        return None
    visit = Visit()
    visit.answer = answer
    scope[VISIT] = visit
    if not isinstance(answer, PassedFields):
        return answer
    scope["state"] = {**state, STATE: answer} if state else {STATE: answer}
    return AsgiResponse(gate, visit, send, scope["method"] == "HEAD")
