"""The body of a request of Flask, for rules that look at it: it can be read once, and a hook may have been first."""

import io
from typing import Any

from ratekeeper.policy.cost import MAX_BODY
from ratekeeper.web.wsgi import read_body

UNREADABLE = bytes(MAX_BODY + 1)  # costs what nobody has, as a body that is too large


def body_of(request: Any) -> bytes:
    """As far as a rule may look at it; the application reads it again."""
    known = getattr(request, "_cached_data", None)  # what get_data and get_json have read
    if known is not None:
        return bytes(known)
    if "stream" not in vars(request):  # which is made by the first who reads
        return read_body(request.environ)
    length = request.content_length
    if not length and not request.environ.get("wsgi.input_terminated"):
        return b""
    if length is None or length > MAX_BODY or not _is_whole(request.stream):
        return UNREADABLE
    try:
        body: bytes = request.get_data(cache=True)
    except Exception:  # the client has gone, or sends more than the application allows
        return UNREADABLE
    request.stream = io.BytesIO(body)
    return body


def _is_whole(stream: Any) -> bool:
    try:
        return bool(stream.tell() == 0 and stream.limit)  # a form that was parsed has left an empty stream
    except (AttributeError, OSError, ValueError):
        return False
