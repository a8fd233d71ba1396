"""The body of a request of Flask, for rules that look at it: it can be read once, and a hook may have been first."""

from typing import Any

from ratebound.policy.cost import MAX_BODY
from ratebound.web.wsgi import read_body

UNREADABLE = bytes(MAX_BODY + 1)  # costs what nobody has, as a body that is too large


def body_of(request: Any) -> bytes:
    """As far as a rule may look at it; the application reads it again."""
    known = getattr(request, "_cached_data", None)  # what get_data and get_json have read
    if known is not None:
        return bytes(known)
    if "stream" not in vars(request):  # which is made by the first who reads
        return read_body(request.environ)
    environ = request.environ
    length = request.content_length
    if not length and not environ.get("wsgi.input_terminated"):
        return b""
    is_ended = (
        request.stream is environ["wsgi.input"]
    )  # by the server, as gunicorn has it: there is no telling its place
    if (length or 0) > MAX_BODY or not (is_ended or _is_whole(request.stream)):
        return UNREADABLE
    try:
        body = read_body(environ)
    except Exception:  # the client has gone
        return UNREADABLE
    request.__dict__.pop("stream")  # it is made anew, from what can be read again
    is_missing = len(body) < length if length else not body and "HTTP_TRANSFER_ENCODING" in environ
    return UNREADABLE if is_missing else body


def _is_whole(stream: Any) -> bool:
    try:
        return bool(stream.tell() == 0 and stream.limit)  # a form that was parsed has left an empty stream
    except (AttributeError, OSError, ValueError):
        return False
