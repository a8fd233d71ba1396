"""The admin site for WSGI servers, without a framework. There are no live events: the page asks again and again."""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from ratebound.admin.messages import MAX_BODY, AdminRequest
from ratebound.admin.site import AdminSite
from ratebound.flow import run

Environ = Mapping[str, Any]
StartResponse = Callable[..., Any]


class AdminWsgi:
    """The site as a WSGI application. `native` makes the framework's own request of an environ, for the function that
    signs in; without it that gets the environ. Raises TypeError if something in the site has to be awaited."""

    def __init__(self, site: AdminSite, *, native: Callable[[Any], Any] | None = None) -> None:
        if getattr(site.calls, "is_async", False) or getattr(site.sign_in, "is_async", False):
            raise TypeError("a WSGI server cannot await: give a Gate, not an AsyncGate, and an auth that is not async")
        self.site = site
        self._native = native

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        answer = run(self.site.answer(self._request(environ)))
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", list(answer.headers))
        return [answer.body]

    def _request(self, environ: Environ) -> AdminRequest:
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if environ.get(name):
                headers[name.replace("_", "-").lower()] = environ[name]
        mount = _decoded(environ.get("SCRIPT_NAME", "")).rstrip("/")
        path = _decoded(environ.get("PATH_INFO", ""))
        return AdminRequest(
            method=environ["REQUEST_METHOD"].upper(),
            path=None if not path and mount else path.removeprefix("/"),
            query=environ.get("QUERY_STRING", ""),
            headers=headers,
            body=_read_body(environ),
            mount=mount,
            is_secure=environ.get("wsgi.url_scheme") == "https",
            peer=environ.get("REMOTE_ADDR", ""),
            native=environ if self._native is None else self._native(environ),
        )


def _decoded(text: str) -> str:
    """Return a path of WSGI, whose bytes stand in text as Latin-1."""
    return text.encode("latin-1", "replace").decode("utf-8", "replace")


def _read_body(environ: Environ) -> bytes:
    """Return the body, or more than MAX_BODY bytes of one that is longer."""
    stream = environ.get("wsgi.input")
    try:
        length = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        length = 0
    if stream is None or (length <= 0 and not environ.get("wsgi.input_terminated")):
        return b""
    body: bytes = stream.read(min(length, MAX_BODY + 1) if length > 0 else MAX_BODY + 1)
    return body
