"""What the parser of a framework finds in a body is what a rule counts, or the request is denied: no body shows the
application an account that the rule has not seen."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIRequest
from litestar._multipart import parse_content_header, parse_multipart_form
from litestar._parsers import parse_query_string
from quart.wrappers import Request as QuartRequest
from starlette.requests import Request as StarletteRequest
from werkzeug.datastructures import Headers
from werkzeug.wrappers import Request as FlaskRequest

from ratebound.policy import RequestView
from ratebound.policy.match.request_body import UnreadableRequest, field_of_body
from tests.web.django_site import MIDDLEWARE

assert MIDDLEWARE  # with its module come the settings that Django needs to read a form

FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=xyz"
NAMED = 'form-data; name="username"'
OTHER = 'form-data; name="other"'


def part(disposition: str, content: str, more: str = "") -> str:
    return f"--xyz\r\nContent-Disposition: {disposition}\r\n{more}\r\n{content}\r\n"


def parts(*given: str) -> str:
    return "".join(given) + "--xyz--\r\n"


def hidden(end: str, line: str = "\r\n") -> str:
    """Return parts of which one is in the content of another, behind this end of a line."""
    return parts(part(OTHER, f"a{end}--xyz{line}Content-Disposition: {NAMED}{line}{line}ann"))


POLYGLOT = '{"username": "bob", "a": "&username=ann&"}'
DECOY = f"X: content-disposition: {OTHER}\r\n"
BODIES = {
    "a form": (FORM, "a=b&username=ann"),
    "parts": (PARTS, parts(part(OTHER, "a"), part(NAMED, "ann"))),
    "quoted boundary": ('multipart/form-data; boundary="xyz"', parts(part(NAMED, "ann"))),
    "behind LF": (PARTS, hidden("\n")),
    "behind LF, with LF": (PARTS, hidden("\n", "\n")),
    "behind CR": (PARTS, hidden("\r")),
    "within a line": (PARTS, hidden("")),
    "a name with space": (PARTS, parts(part('form-data; name=" username"', "ann"))),
    "a continued name": (PARTS, parts(part("form-data; name*10=username", "ann", DECOY))),
    "an extended name": (PARTS, parts(part("form-data; name*=utf-8''username", "ann", DECOY))),
    "a bracket": (PARTS, parts(part("form-data; name=username[", "ann"))),
    "a folded head": (PARTS, parts(part('form-data;\r\n name="username"', "ann", DECOY))),
    "a head with LF": (PARTS, parts(part(f"{NAMED}\n\nann", "bob"))),
    "a name with an escape": (PARTS, parts(part('form-data; name="user\\name"', "ann"))),
    "no form-data": (PARTS, parts(part('attachment; name="username"', "ann"))),
    "parts behind the end": (PARTS, parts(part(OTHER, "a")) + parts(part(NAMED, "ann"))),
    "text before the parts": (PARTS, "a\r\n" + parts(part(NAMED, "ann"))),
    "a longer boundary": ("multipart/form-data; boundary=xyz=a", "--xyz=a\r\n\r\n" + parts(part(NAMED, "ann"))),
    "JSON and form": (FORM, POLYGLOT),
    "a value in the type": (f"{FORM}=1; a=b", POLYGLOT),
    "two types": (f"{FORM}, application/json", POLYGLOT),
    "a semicolon": (FORM, "a=b;username=ann"),
    "an encoded name": (FORM, "user%6Eame=ann"),
}


async def starlette(kind: str, body: bytes) -> list[Any]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", kind.encode())]}
    return list((await StarletteRequest({**scope, "query_string": b""}, receive).form()).getlist("username"))


async def quart(kind: str, body: bytes) -> list[Any]:
    async def push(*_: object) -> None: ...

    headers = Headers([("content-type", kind), ("content-length", str(len(body)))])
    scope: Any = {}
    request = QuartRequest("POST", "http", "/", b"", headers, "", "1.1", scope, send_push_promise=push)
    request.body.append(body)
    request.body.set_complete()
    return list((await request.form).getlist("username"))


async def litestar(kind: str, body: bytes) -> list[Any]:
    async def stream() -> Any:
        yield body

    name, options = parse_content_header(kind)
    if name != "multipart/form-data":
        return [value for key, value in parse_query_string(body) if name == FORM and key == "username"]
    found = (await parse_multipart_form(stream(), options["boundary"].encode())).get("username", [])
    return found if isinstance(found, list) else [found]


def environ(kind: str, body: bytes) -> dict[str, Any]:
    known = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "SERVER_NAME": "a", "SERVER_PORT": "80"}
    sent = {"CONTENT_TYPE": kind, "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}
    return {**known, **sent, "wsgi.url_scheme": "http"}


async def flask(kind: str, body: bytes) -> list[Any]:
    return FlaskRequest(environ(kind, body)).form.getlist("username")


async def django(kind: str, body: bytes) -> list[Any]:
    return list(WSGIRequest(environ(kind, body)).POST.getlist("username"))


READERS = [starlette, quart, litestar, flask, django]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(("kind", "text"), BODIES.values(), ids=list(BODIES))
def test_no_framework_finds_another_value_than_the_one_that_counts(
    read: Callable[[str, bytes], Any], kind: str, text: str
) -> None:
    body = text.encode()
    try:
        counted = field_of_body(RequestView("POST", "/", headers=[("content-type", kind)], body=body), ["username"])
    except UnreadableRequest:
        return
    try:
        found = asyncio.run(read(kind, body))
    except Exception:  # whatever a parser raises, its application finds nothing
        return
    assert [value for value in found if isinstance(value, str)] in ([], [counted])


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("name", ["a form", "parts", "quoted boundary", "an encoded name"])
def test_what_all_of_them_read_alike_is_counted(read: Callable[[str, bytes], Any], name: str) -> None:
    kind, text = BODIES[name]
    view = RequestView("POST", "/", headers=[("content-type", kind)], body=text.encode())
    assert field_of_body(view, ["username"]) == "ann"
    assert asyncio.run(read(kind, text.encode())) == ["ann"]
