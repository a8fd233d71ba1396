"""The admin site, without a server: a request goes in, an answer comes out. asgi.py and wsgi.py serve it.

Every request takes the same way: a file of the page, or a call of the table; who sends it; whether another site made
the browser send it; the role; the fields; and then the call. What is wrong with a request is answered as problem+json.
"""

import hmac
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote

from ratebound.admin.call_fields import body_values, query_values, read_fields
from ratebound.admin.calls import AdminCall, Operator, routes
from ratebound.admin.messages import (
    MAX_BODY,
    MAX_SIGN_IN,
    AdminAnswer,
    AdminRequest,
    CallError,
    answer_of,
    json_answer,
    problem_answer,
)
from ratebound.admin.openapi import openapi
from ratebound.admin.page_files import page_files
from ratebound.admin.same_origin import CSRF_HEADER, refuse_other_sites
from ratebound.admin.sign_in import NO_TOKEN, SignedIn, SignIn
from ratebound.flow import Flow

log = logging.getLogger("ratebound.admin")

NO_CSRF = "This call needs the header X-Ratebound-CSRF with the value of `csrf` in api/session."
NOT_LIVE = "This server cannot send events. Ask api/figures once a second instead."
EVENT_STREAM = "text/event-stream; charset=utf-8"
# Calls without fields, whose answer is the same for everybody. All open pages make them when an operator has changed
# something.
SHARED = frozenset({"rules", "blocks", "overrides", "switches", "changes", "policy"})


class OperatorCalls(Protocol):
    """Carries out the calls of operators: `Operations` in this process, or something that asks other processes.

    `is_blocking` may be True if its steps block their thread. `has_ledger` may be True if there is a usage ledger.
    """

    def call(self, name: str, arguments: Mapping[str, Any], operator: Operator) -> Flow[Any]:
        """Carry out a call of the table, and return its answer for JSON. Raises CallError.

        The fields were checked against the table.
        """


class AdminSite:
    """The page and the API for operators. `calls` carries the calls out, and `sign_in` says who sends a request."""

    def __init__(self, calls: OperatorCalls, sign_in: SignIn) -> None:
        self.calls = calls
        self.sign_in = sign_in
        self._files = page_files()
        self._routes = routes()

    def answer(self, request: AdminRequest) -> Flow[AdminAnswer]:
        """Return the answer to a request. Raises only what a function of the application raises."""
        try:
            found = yield from self._answer(request)
        except CallError as error:
            found = problem_answer(error)
        if request.method == "HEAD":
            return AdminAnswer(found.status, found.headers)
        return found

    def check_again(self, request: AdminRequest) -> Flow[None]:
        """Raise CallError if the sender of a request that is still being answered may not call it any more."""
        call = self._call(request)
        yield from self._allowed(request, call)

    def _answer(self, request: AdminRequest) -> Flow[AdminAnswer]:
        if request.path is None:
            # Relative, so that it is right behind a proxy; './' so that no mount can name another host
            where = f"./{quote(request.mount.rpartition('/')[2])}/"
            return answer_of(308, b"", "text/plain; charset=utf-8", [("Location", where)])
        file = self._files.get(request.path)
        if file is not None:
            if request.method not in ("GET", "HEAD"):
                raise CallError(405, "A file can only be read.", headers={"Allow": "GET, HEAD"})
            if not self.sign_in.has_sessions:
                yield from self._signed_in(request)
            return answer_of(200, file.content, file.content_type)
        call = self._call(request)
        if call.name == "sign_in":
            refuse_other_sites(request.headers, needs_proof=True)
            return (yield from self._sign_in(request, call))
        who = yield from self._allowed(request, call)
        arguments = yield from self._arguments(request, call)
        for field in call.fields:
            if field.role == "write" and arguments.get(field.name):
                self._check_role(who, field.role, f"the field {field.name}")
                self._check_csrf(request, who, is_write=False)
        if call.name == "session":
            return json_answer(self._session(request, who))
        if call.name == "sign_out":
            return json_answer({"done": True}, headers=[("Set-Cookie", self.sign_in.sign_out(request))])
        if call.name == "openapi":
            return json_answer(openapi(has_sessions=self.sign_in.has_sessions))
        if call.name == "live":
            if not request.is_live:
                raise CallError(501, NOT_LIVE)
            return answer_of(200, b"", EVENT_STREAM, is_live=True)
        if call.name in SHARED and request.share is not None:
            return answer_of(200, (yield partial(request.share, call.name)))
        return json_answer((yield from self.calls.call(call.name, arguments, who.operator)))

    def _call(self, request: AdminRequest) -> AdminCall:
        methods = self._routes.get(request.path or "")
        if methods is None:
            raise CallError(404, "There is no such path. The paths are in openapi.json.")
        call = methods.get("GET" if request.method == "HEAD" else request.method)
        if call is None:
            allowed = [*methods, *(["HEAD"] if "GET" in methods else [])]
            raise CallError(405, f"Expected {' or '.join(allowed)}.", headers={"Allow": ", ".join(allowed)})
        return call

    def _signed_in(self, request: AdminRequest) -> Flow[SignedIn]:
        who = yield from self.sign_in.who(request)
        if who is None:
            headers = {"WWW-Authenticate": "Bearer"} if self.sign_in.has_sessions else {}
            text = NO_TOKEN if self.sign_in.has_sessions else "Sign in at the application first."
            raise CallError(401, text, headers=headers)
        return who

    def _allowed(self, request: AdminRequest, call: AdminCall) -> Flow[SignedIn]:
        """Return who sends a request. Raises CallError if nobody is known, or may not make this call."""
        who = yield from self._signed_in(request)
        if who.csrf is not None:
            refuse_other_sites(request.headers, needs_proof=call.is_write)
        self._check_role(who, call.role or "read", call.name)
        if call.is_write:
            self._check_csrf(request, who, is_write=True)
        return who

    def _check_role(self, who: SignedIn, role: Any, what: str) -> None:
        if not who.operator.may(role):
            raise CallError(403, f"This takes the role {role}, and you have the role {who.operator.role}: {what}.")

    def _check_csrf(self, request: AdminRequest, who: SignedIn, *, is_write: bool) -> None:
        if who.csrf is None:
            return
        refuse_other_sites(request.headers, needs_proof=is_write)
        if not hmac.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), who.csrf.encode()):
            raise CallError(403, NO_CSRF)

    def _arguments(self, request: AdminRequest, call: AdminCall, most: int = MAX_BODY) -> Flow[dict[str, Any]]:
        """Return the fields of a call. The body is read here, so that nothing is kept of peers that may not call."""
        query = query_values(request.query)
        if not call.has_body:
            return read_fields(call.fields, call.either, query, is_query=True)
        if query:
            wrong = [(name, "belongs into the body, not into the query") for name in query]
            raise CallError(422, "The fields of this call belong into the body.", wrong)
        body = request.body if request.read_body is None else (yield partial(request.read_body, most))
        if len(body) > most:
            raise CallError(413, f"The body is longer than {most} bytes.")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if body and kind != "application/json":
            raise CallError(415, "Expected JSON: send Content-Type: application/json.")
        return read_fields(call.fields, call.either, body_values(body), is_query=False)

    def _sign_in(self, request: AdminRequest, call: AdminCall) -> Flow[AdminAnswer]:
        token = (yield from self._arguments(request, call, MAX_SIGN_IN))["token"]
        who, cookie = self.sign_in.sign_in(request, token)
        log.info("%s signed in with the role %s", who.operator.name or "an operator", who.operator.role)
        return json_answer(self._session(request, who), headers=[("Set-Cookie", cookie)])

    def _session(self, request: AdminRequest, who: SignedIn) -> dict[str, Any]:
        name, role = who.operator
        return {
            "name": name,
            "role": role,
            "csrf": who.csrf or "",
            "live": request.is_live,
            "signs_in": self.sign_in.has_sessions,
            "ledger": bool(getattr(self.calls, "has_ledger", False)),
        }
