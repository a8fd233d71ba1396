"""Fields of a request's body: of JSON, of a form, and of a form in parts (multipart).

Parsers differ in what they accept, and the application has one of its own. If this one found no account where the
application finds one, a client could try any number of accounts. So everything that two parsers may read differently is
unreadable: it raises UnreadableRequest, and the request is denied.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from ratebound.policy.match.request import RequestView

MAX_BODY: Final = 1_000_000  # bytes; a larger body is not looked at
MAX_FIELDS: Final = 1_000  # of a form
FORM: Final = "application/x-www-form-urlencoded"
MULTIPART: Final = "multipart/form-data"
# Of these characters parsers read the same boundary, with and without quotes.
BOUNDARY: Final = re.compile(r"""boundary=(?:"([A-Za-z0-9'()+_./:=?-]{1,70})"|([A-Za-z0-9_.+-]{1,70}))""", re.I)
# `charset*=` and `charset*0=` are charsets, too.
CHARSET: Final = re.compile(r'charset([^=;,"]*)=\s*"?([^\s";,]*)', re.I)
BEFORE_JSON: Final = b"\xef\xbb\xbf\xfe\xff\x00 \t\r\n"  # in any of its encodings
UTF_8: Final = ("utf-8", "utf8", "us-ascii", "ascii")
PART_HEADER: Final = re.compile(r"[A-Za-z0-9-]+:[^\x00-\x1f\x7f]*")
DISPOSITION: Final = re.compile(
    r'content-disposition:[ \t]*form-data;[ \t]*name=(?:"([^"\\]*)"|([A-Za-z0-9_.-]+))'
    r"""(?:;[ \t]*filename=(?:"[^"]*"|[A-Za-z0-9_.-]+))?(?:;[ \t]*filename\*=[A-Za-z0-9_.%'-]+)?[ \t]*""",
    re.I,
)


class UnreadableRequest(ValueError):
    """Raised for a request of which a value cannot be read, or could be read in several ways.

    The message is a sentence for the client. It shows nothing of what the client has sent.
    """


class _Fraction:
    """A number that is not whole. It is no value: 1.0, 1.00 and 1e0 would be three."""


NOT_WHOLE: Final = _Fraction()


def plain_body(request: RequestView) -> bytes:
    """Return the body, without the space around it; empty if there is none or if it was not read.

    Raises UnreadableRequest if it is too long or compressed.
    """
    body = request.body or b""
    if len(body) > MAX_BODY:
        raise UnreadableRequest("The body is too long.")
    body = body.strip()
    if body and any(line.strip().lower() not in ("", "identity") for line in request.header_lines("content-encoding")):
        raise UnreadableRequest("The body is compressed.")
    return body


def parse_json(body: bytes, parse_int: Callable[[str], Any], parse_float: Callable[[str], Any] = float) -> Any:
    """Return the value of a JSON text; None for an empty one. Raises ValueError, also for a key that occurs twice."""
    if not body:
        return None
    try:
        return json.loads(body, parse_int=parse_int, parse_float=parse_float, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ValueError("too deep") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice, and parsers differ in which value they use")
    return found


def field_of_body(request: RequestView, names: Sequence[str]) -> str | None:
    """Return a field of the body as text; None if there is no such field, or no body.

    `names` lead to a field of nested JSON objects. A form is flat: there they are joined by dots. Raises
    UnreadableRequest.
    """
    body = plain_body(request)
    if not body:
        return None
    lines = request.header_lines("content-type")
    if len(lines) > 1:
        raise UnreadableRequest("The request has two content types.")
    content_type = lines[0] if lines else ""
    if not is_utf_8(content_type):
        raise UnreadableRequest("The body must be UTF-8.")
    kind = content_type.partition(";")[0].strip().lower()
    if [one for one in (FORM, MULTIPART) if one in content_type.lower()] not in ([], [kind]):
        raise UnreadableRequest("The content type can be read in several ways.")
    if kind == MULTIPART:
        return _field_of_parts(request.body or b"", content_type, ".".join(names))
    if kind != FORM:  # whatever it says it is: applications read JSON from bodies of any type
        return _field_of_json(_json_of(body), names)
    found = _field_of_form(request.body or b"", ".".join(names))
    if not body.lstrip(BEFORE_JSON).startswith(b"{"):
        return found
    other = _field_of_json(_json_of(body), names)  # an application may read it as JSON anyway
    if found is not None and other is not None and found != other:
        raise UnreadableRequest("The body can be read in several ways.")
    return other if found is None else found


def is_utf_8(head: str) -> bool:
    """Return True if no charset in a head is another one, in whatever form it is written."""
    return all(not form.strip() and charset.lower() in UTF_8 for form, charset in CHARSET.findall(head))


def _json_of(body: bytes) -> Any:
    try:
        return parse_json(body, _whole, lambda _: NOT_WHOLE)
    except ValueError:
        raise UnreadableRequest("The body is not valid JSON, or has a key twice.") from None


def _whole(digits: str) -> str:
    return "0" if digits == "-0" else digits


def _field_of_json(value: Any, names: Sequence[str]) -> str | None:
    for name in names:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise UnreadableRequest("The body is not a JSON object with the expected fields.")
        value = value.get(name)
    if value is None or isinstance(value, str):
        return value
    raise UnreadableRequest("A field of the body has the wrong type: expected text or a whole number.")


def _field_of_form(body: bytes, name: str) -> str | None:
    try:
        text = body.decode("ascii")  # browsers encode everything else, and parsers differ in how they decode raw bytes
        found, other = (_values_in_form(one, name) for one in (text, text.replace(";", "&")))
    except ValueError:
        raise UnreadableRequest("The form cannot be read.") from None
    if found != other:  # some parsers end a field at a semicolon, too
        raise UnreadableRequest("The form can be read in several ways.")
    return _only(found)


def _values_in_form(text: str, name: str) -> list[str]:
    pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    return [value for key, value in pairs if key == name]


def _field_of_parts(body: bytes, content_type: str, name: str) -> str | None:
    found: list[str] = []
    for part_name, head, content in parts_of(body, content_type):
        if part_name != name:
            continue
        if not is_utf_8(head):
            raise UnreadableRequest("The body must be UTF-8.")
        try:
            found.append(content.decode())
        except UnicodeDecodeError:
            raise UnreadableRequest("The body must be UTF-8.") from None
    return _only(found)


def parts_of(body: bytes, content_type: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the head and the content of each part of a form in parts. Raises UnreadableRequest.

    Only what browsers send is accepted: no text around the parts, a boundary only where it ends a part, lines that end
    with CR LF, and a head of plain lines with one name. Parsers find a boundary anywhere, or after any end of a line.
    """
    given = [one.strip(" \t") for one in content_type.split(";") if "boundary" in one.lower()]
    read = BOUNDARY.fullmatch(given[0]) if len(given) == 1 else None
    if read is None or content_type.lower().count("boundary") > 1:
        raise UnreadableRequest("The parts of the body need one boundary.")
    mark = b"--" + (read[1] or read[2]).encode()
    before, *parts = (b"\r\n" + body).split(b"\r\n" + mark, MAX_FIELDS + 2)
    if before or not 1 <= len(parts) <= MAX_FIELDS + 1 or parts.pop().rstrip() != b"--":
        raise UnreadableRequest("The parts of the body cannot be read.")
    if any(mark in part for part in parts):
        raise UnreadableRequest("The parts of the body can be read in several ways.")
    for part in parts:
        head, end, content = part.partition(b"\r\n\r\n")
        first, *lines = head.decode("utf-8", "replace").split("\r\n")
        disposition = [line for line in lines if line.lower().startswith("content-disposition")]
        named = DISPOSITION.fullmatch(disposition[0]) if len(disposition) == 1 else None
        is_plain = end and not first and all(PART_HEADER.fullmatch(line) for line in lines)
        if named is None or not is_plain or any("transfer-encoding" in line.lower() for line in lines):
            raise UnreadableRequest("A part of the body has no plain name.")
        name = named[1] or named[2] or ""
        if name != name.strip():  # some parsers strip it
            raise UnreadableRequest("A part of the body has no plain name.")
        yield name, "\n".join(lines), content


def _only(found: Sequence[str]) -> str | None:
    if len(found) > 1:
        raise UnreadableRequest("A field occurs twice.")
    return found[0] if found else None
