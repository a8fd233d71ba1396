"""Requests and answers of the admin site, without a server: every answer is made here, with the same headers.

Answers are JSON with `<`, `>` and `&` escaped: a browser that takes one for a page finds no tag in it, whatever clients
call themselves.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

MAX_BODY = 1_000_000  # bytes: the text of a policy is the longest that is sent
MAX_SIGN_IN = 10_000  # bytes, from peers that have not signed in
JSON = "application/json"
PROBLEM = "application/problem+json"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
# On every answer. An operator's browser keeps nothing, tells nobody, and shows it in no frame.
HEADERS = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", CSP),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)
ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
Pairs = Iterable[tuple[str, str]]


class WrongField(NamedTuple):
    """A field of a call that is wrong, and why."""

    field: str
    detail: str


class CallError(Exception):
    """A call that was not carried out: a status of HTTP, a sentence, and the fields that are wrong.

    `headers` are for the answer, such as Retry-After.
    """

    def __init__(
        self, status: int, detail: str, errors: Sequence[tuple[str, str]] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = tuple(WrongField(*error) for error in errors)
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """A request for the site.

    `path` is decoded, relative to the mount, and without a slash in front; None if the mount itself was asked for
    without its slash at the end. `query` is as it was sent. The names of `headers` are in lower case; values of one
    name are joined by commas, cookies by semicolons. `body` is longer than MAX_BODY if the rest was not read. If there
    is `read_body`, that reads the body when it is needed: it is given how many bytes may be kept, returns more than
    these if the body is longer, and may have to be awaited. If there is `share`, that makes a read once for all who ask
    for it at the same moment: it is given the name of the call, and returns its answer in JSON, which is to be awaited.

    `mount` is the path of the mount without a slash at the end. It is used only for the cookie and for redirects,
    because a proxy may have taken it from the client. `peer` is the address of the connection. `is_live` is True if the
    server can send events. `native` is the framework's own request, for the function that signs in.
    """

    method: str
    path: str | None
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    mount: str = ""
    is_secure: bool = False
    peer: str = ""
    is_live: bool = False
    native: Any = None
    read_body: Callable[[int], Any] | None = None
    share: Callable[[str], Any] | None = None


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """An answer of the site. `is_live` is True if events follow; then `body` is empty."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    is_live: bool = False


def answer_of(
    status: int, body: bytes, content_type: str = JSON, headers: Pairs = (), *, is_live: bool = False
) -> AdminAnswer:
    """Return an answer with the headers that every answer has."""
    length = () if is_live else (("Content-Length", str(len(body))),)
    return AdminAnswer(status, (("Content-Type", content_type), *length, *HEADERS, *headers), body, is_live)


def json_answer(content: object, headers: Pairs = ()) -> AdminAnswer:
    """Return an answer of JSON."""
    return answer_of(200, encoded(content), JSON, headers)


def problem_answer(error: CallError) -> AdminAnswer:
    """Return the problem details of RFC 9457 for a call that was not carried out."""
    content = problem_document(error.status, error.detail)
    if error.errors:
        content["errors"] = [one._asdict() for one in error.errors]
    return answer_of(error.status, encoded(content), PROBLEM, error.headers.items())


def problem_document(status: int, detail: str) -> dict[str, Any]:
    """Return the members that all problem details have."""
    return {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}


def encoded(content: object) -> bytes:
    """Return JSON in ASCII that contains no markup."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).translate(ESCAPES).encode("ascii")
