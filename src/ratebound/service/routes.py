"""The routes of the HTTP data plane: which function answers a path, and who may ask."""

from collections.abc import Callable, Mapping

from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.http1 import Answer, Handle, HttpRequest, first_line, problem, response

CHECK = b"/v1/check"
NO_TOKEN = "This request needs a valid token: Authorization: Bearer TOKEN."
TEXT = [("content-type", "text/plain; charset=utf-8")]


class ServiceRoutes:
    """All routes of a worker.

    `api` has the calls of programs, by path. They are POST requests, and need a token if there are tokens. `check`
    answers proxies, for every method and for each path below /v1/check; it checks by itself which proxies it trusts.
    `is_ready` returns True if the worker can decide now.
    """

    def __init__(
        self, api: Mapping[bytes, Handle], check: Handle, tokens: BearerTokens, is_ready: Callable[[], bool]
    ) -> None:
        self._api = api
        self._check = check
        self._tokens = tokens
        self._is_ready = is_ready

    def has_token(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Return True if the headers of a request have a valid token, or if none is needed."""
        return self._tokens.accepts_header(first_line(headers, b"authorization"))

    def __call__(self, request: HttpRequest) -> Answer:
        path = request.target.partition(b"?")[0]
        if path == CHECK or path.startswith(b"/v1/check/"):
            return self._check(request)
        handle = self._api.get(path)
        if handle is not None:
            if request.method != "POST":
                return problem(405, "This path takes POST requests only.", [("allow", "POST")])
            if not self._tokens.accepts_header(request.header(b"authorization")):
                self._tokens.log_refusal("http", "the header Authorization: Bearer TOKEN")
                return problem(401, NO_TOKEN, [("www-authenticate", "Bearer")])
            return handle(request)
        if path == b"/healthz":
            return response(200, TEXT, b"ok\n")
        if path == b"/readyz":
            return response(200, TEXT, b"ready\n") if self._is_ready() else response(503, TEXT, b"not ready\n")
        return problem(404, "There is no such path. See /openapi.json on the admin port.")
