"""Bodies that parsers read differently: the gate reads what the application reads, or denies.

Else a client could hide the account that it tries from a limit, and show it to the application.
"""

import asyncio
from typing import Any

import flask
import pytest
from starlette.requests import Request

from ratebound.policy import RequestView
from ratebound.policy.match.request_body import UnreadableRequest, field_of_body
from tests.web import django_site

# isort: split
from django.test import RequestFactory

FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=B"
NAME = b'Content-Disposition: form-data; name="username"'
OTHER = b'Content-Disposition: form-data; name="x"'
FLASK = flask.Flask("parsers")


def part(head: bytes, content: bytes = b"eve") -> bytes:
    return b"--B\r\n" + head + b"\r\n\r\n" + content + b"\r\n--B--\r\n"


def inner(before: bytes, after: bytes = b"\r\n") -> bytes:
    """A part whose content looks like another part, behind something that only some parsers take for its end."""
    return part(OTHER, b"1" + before + b"--B" + after + NAME + after + after + b"eve")


def starlette_names(kind: str, body: bytes) -> list[Any]:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def read() -> list[Any]:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", kind.encode())]}
        async with Request(scope, receive).form() as form:
            return form.getlist("username")

    return asyncio.run(read())


def flask_names(kind: str, body: bytes) -> list[Any]:
    with FLASK.test_request_context("/", method="POST", data=body, content_type=kind):
        return flask.request.form.getlist("username")


def django_names(kind: str, body: bytes) -> list[Any]:
    with django_site.site():
        found: list[Any] = RequestFactory().generic("POST", "/", body, content_type=kind).POST.getlist("username")
        return found


PLAIN = {
    "a form": (FORM, b"username=eve&password=x"),
    "encoded": (FORM, b"user%6eame=%65ve"),
    "a form with spaces": (FORM, b"username=+eve+"),
    "another type in upper case": (FORM.upper(), b"username=eve"),
    "parts": (PARTS, part(NAME)),
    "a quoted boundary": ('multipart/form-data; boundary="B"', part(NAME)),
    "a name without quotes": (PARTS, part(b"Content-Disposition: form-data; name=username")),
    "no space": (PARTS, part(b'content-disposition: form-data;name="username"')),
    "a type": (PARTS, part(NAME + b"\r\nContent-Type: text/plain; charset=utf-8")),
    "a file beside it": (
        PARTS,
        part(OTHER + b'; filename="\xc3\xa9.txt"', b"1\r\n--B\r\n" + NAME + b"\r\n\r\neve"),
    ),
}
ODD = {
    "semicolons": (FORM, b"a=1;username=eve"),
    "a parameter without a name": (PARTS, part(b'content-disposition: form-data;name="username";')),
    "raw UTF-8 in a form": (FORM, "username=\u00e9ve".encode()),
    "raw bytes in a form": (FORM, b"username=\xe9ve"),
    "a boundary after a bare LF": (PARTS, inner(b"\n")),
    "a boundary after bare LFs": (PARTS, inner(b"\n", b"\n")),
    "a boundary after a bare CR": (PARTS, inner(b"\r", b"\r")),
    "a boundary after nothing": (PARTS, inner(b"")),
    "a boundary and a space": (PARTS, inner(b"\r\n", b" \r\n")),
    "a head that ends with bare LFs": (PARTS, part(NAME + b"\n\nann\r\nA: b")),
    "a head with an LF too many": (PARTS, part(NAME + b"\r\n\nann")),
    "a head with a CR too many": (PARTS, part(NAME + b"\r")),
    "a name with a space at its end": (PARTS, part(b'Content-Disposition: form-data; name="username "')),
    "a name with a space in front": (PARTS, part(b'Content-Disposition: form-data; name=" username"')),
    "a name behind a space that is none": (PARTS, part(b'Content-Disposition: form-data; name=\xa0"username"')),
    "a name with a backslash": (PARTS, part(b'Content-Disposition: form-data; name="user\\name"')),
    "a name behind another parameter": (PARTS, part(b'Content-Disposition: form-data; x="; name=y"; name="username"')),
    "an encoded name": (PARTS, part(b"Content-Disposition: form-data; name*=utf-8''username")),
    "two dispositions": (PARTS, part(OTHER + b"\r\n" + NAME)),
    "another disposition": (PARTS, part(b'Content-Disposition: attachment; name="username"')),
    "a charset with its own charset": (f"{PARTS}; charset*=utf-8''utf-7", part(NAME, b"+AGU-ve")),
    "a charset in pieces": (f"{PARTS}; charset*0=utf-7", part(NAME, b"+AGU-ve")),
    "a charset of a part": (PARTS, part(NAME + b"\r\nContent-Type: text/plain; charset*=utf-8''latin-1")),
    "base64": (PARTS, part(NAME + b"\r\nContent-Transfer-Encoding: base64", b"ZXZl")),
    "text in front": (PARTS, b"x\r\n" + part(NAME)),
    "text behind": (PARTS, part(NAME) + b"x"),
    "parts behind the end": (PARTS, b"--B--\r\n" + part(NAME)),
    "a boundary with a comma": ("multipart/form-data; boundary=B,C", part(NAME)),
    "two boundaries": ("multipart/form-data; boundary=B; boundary=C", part(NAME)),
    "an encoded boundary": ("multipart/form-data; boundary*=utf-8''B", part(NAME)),
}


def read(kind: str, body: bytes) -> str | None:
    return field_of_body(RequestView("POST", "/", headers=[("content-type", kind)], body=body), ["username"])


@pytest.mark.parametrize("names", [starlette_names, flask_names, django_names])
@pytest.mark.parametrize(("kind", "body"), PLAIN.values(), ids=list(PLAIN))
def test_a_plain_body_is_read_as_the_application_reads_it(names: Any, kind: str, body: bytes) -> None:
    found = read(kind, body)
    assert names(kind, body) == ([] if found is None else [found])


@pytest.mark.parametrize(("kind", "body"), ODD.values(), ids=list(ODD))
def test_a_body_that_parsers_read_differently_is_unreadable(kind: str, body: bytes) -> None:
    with pytest.raises(UnreadableRequest):
        read(kind, body)
