"""The check endpoint: a proxy asks about a request of its client, and passes it on only if the answer is 200.

proxied_request.py reads the headers that describe the request. A check never sleeps. Its URL has no part in policy, key
or cost.
"""

import logging
from collections.abc import Iterable
from typing import Final

from ratebound.decision import Decision
from ratebound.errors import StorageError
from ratebound.http.client_ip import Proxies
from ratebound.policy import RequestView, Verdict
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.engine import Engine
from ratebound.service.http1 import Answer, HttpRequest, date, problem, response
from ratebound.service.proxied_request import (
    DESCRIPTIONS,
    NGINX,
    WIRE,
    BadDescription,
    ProxiedRequest,
)
from ratebound.service.unkept_rules import UnkeptRules
from ratebound.web.passed import passed_headers
from ratebound.web.verdict_response import shadows_of, told_decision, verdict_response

log = logging.getLogger("ratebound.service")

LOCAL_PROXIES: Final = ("127.0.0.0/8", "::1", "unix")
NGINX_STATUS: Final = 403  # auth_request answers 500 for everything but 2xx, 401 and 403
MAX_KNOWN: Final = 1024  # proxies whose address has been checked already; problems that are in the log already
ALLOWED: Final = "HTTP/1.1 200 OK\r\n"
NO_BODY: Final = "content-length: 0\r\n\r\n"
NO_TOKEN: Final = (
    "X-Ratebound-Token is missing or wrong. The proxy must send one of the tokens of the service in it, once."
)
AWAY: Final = "The storage of the limits is out of reach."


class ProxyCheck:
    """The check endpoint. Only trusted `proxies` may ask: addresses, ranges, and `unix` for Unix sockets.

    `headers` says which description of the request is believed: nginx, forwarded or path; auto takes the only one that
    is there. `denied_status` replaces the status of every denial. By default it is the policy's, and 403 for nginx. The
    policy's own status is always told in X-RateLimit-Status.
    With `tokens`, a proxy must also send one of them in X-Ratebound-Token.

    Raises ValueError if an option is invalid.
    """

    __slots__ = ("_denied_status", "_engine", "_headers", "_known", "_proxies", "_tokens", "_told", "_unkept")

    def __init__(
        self,
        engine: Engine,
        *,
        proxies: Iterable[str] = LOCAL_PROXIES,
        headers: str = "auto",
        denied_status: int | None = None,
        tokens: BearerTokens | None = None,
    ) -> None:
        if headers not in DESCRIPTIONS:
            raise ValueError(f"unknown headers {headers!r}: expected one of {', '.join(DESCRIPTIONS)}")
        if denied_status is not None and not 400 <= denied_status <= 599:
            raise ValueError(f"the denied status must be an error status, 400 to 599, not {denied_status!r}")
        self._engine = engine
        self._proxies = Proxies(proxies)
        self._headers = headers
        self._denied_status = denied_status
        self._tokens = tokens or BearerTokens()
        self._known: set[str | None] = set()  # peers that are trusted
        self._told: set[str] = set()
        self._unkept = UnkeptRules(engine.strict_gate)  # kept alive here: the gate holds it weakly

    def __call__(self, request: HttpRequest) -> Answer:
        if request.peer not in self._known and not self._is_trusted(request.peer):
            return self._refused(403, _untrusted(request.peer))
        try:
            asked = ProxiedRequest(request, self._headers)
        except BadDescription as error:
            return self._refused(error.status, str(error))
        if self._tokens.is_required and not self._tokens.accepts(asked.token or b""):
            return self._refused(403, NO_TOKEN)
        view = RequestView.on_demand(WIRE, asked, asked.method, asked.peer)
        view.reread(asked.path)
        try:
            verdict = self._engine.check_now(view)
        except StorageError:
            return unavailable()
        if verdict is None:
            return self._check(asked, view)
        return allowed(verdict, asked.is_scripted) if verdict.allowed else self._denied(verdict, asked, view)

    async def _check(self, asked: ProxiedRequest, view: RequestView) -> bytes:
        try:
            verdict = await self._engine.check(view)
        except StorageError:
            return unavailable()
        return allowed(verdict, asked.is_scripted) if verdict.allowed else self._denied(verdict, asked, view)

    def _denied(self, verdict: Verdict, asked: ProxiedRequest, view: RequestView) -> bytes:
        rejection = verdict_response(verdict, view)
        status = self._denied_status
        if status is None:
            status = NGINX_STATUS if asked.description == NGINX else rejection.status
        told = [("X-RateLimit-Decision", "deny"), ("X-RateLimit-Status", str(rejection.status))]
        return response(status, [*rejection.headers, *told], rejection.body)

    def _is_trusted(self, peer: str | None) -> bool:
        is_trusted = self._proxies.trusts(peer)
        if is_trusted and len(self._known) < MAX_KNOWN:
            self._known.add(peer)
        return is_trusted

    def _refused(self, status: int, detail: str) -> bytes:
        """Answer a check that cannot be decided. The log has each reason once: the proxy may hide the answer."""
        if detail not in self._told and len(self._told) < MAX_KNOWN:
            self._told.add(detail)
            log.warning("a check was refused with status %d: %s", status, detail)
        return problem(status, detail, [("cache-control", "no-store")])


def allowed(verdict: Verdict, is_scripted: bool) -> bytes:
    """Return the answer that lets a request pass: no body, and the headers for the client."""
    decision, shadows = told_decision(verdict), shadows_of(verdict)
    lines = [ALLOWED, date.line()]
    if decision is not None:
        for name, value in passed_headers(verdict, decision, is_scripted):
            lines.append(f"{name}: {value}\r\n")
    word = "allow"
    if shadows and not all(shadow.allowed for shadow in shadows):
        word = "shadow"
    elif decision is not None and is_open(decision):
        word = "failopen"
    lines.append(f"X-RateLimit-Decision: {word}\r\n")
    lines.append(NO_BODY)
    return "".join(lines).encode("latin-1", "replace")


def is_open(decision: Decision) -> bool:
    """Return True if a request passes because the storage is out of reach and a limit has `failure: open`."""
    return decision.degraded is not None and any(limit.failure == "open" for limit in decision.limits)


def unavailable() -> bytes:
    """Return the answer where the policy raises if the storage is out of reach."""
    return problem(503, AWAY, [("retry-after", "1"), ("cache-control", "no-store")])


def _untrusted(peer: str | None) -> str:
    if peer is None:
        return "Unix sockets are not trusted. Add unix to the setting trusted_proxies."
    return f"{peer} is not a trusted proxy. Add its address to the setting trusted_proxies."
