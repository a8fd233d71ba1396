"""Whatever a client sends beside its request: a check is decided by what the proxy has written, or it is refused.

Each proxy is modelled by the headers that it replaces; it passes on all others, before or after its own.
"""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.service.http1 import HttpRequest
from ratebound.service.proxied_request import WIRE, BadDescription, ProxiedRequest

URI = b"/login?next=%2F"
ADDRESS = b"192.0.2.7"
HOST = b"api.example"


class Model(NamedTuple):
    """A proxy: the headers that it writes, whether it appends to X-Forwarded-For, and the target of its checks."""

    setting: str
    written: dict[bytes, bytes]
    appends: bool
    target: bytes
    method: str


NGINX = {b"x-original-uri": URI, b"x-original-method": b"POST", b"x-real-ip": ADDRESS, b"x-forwarded-proto": b"https"}
FORWARDED = {
    b"x-forwarded-uri": URI,
    b"x-forwarded-method": b"POST",
    b"x-forwarded-host": HOST,
    b"x-forwarded-proto": b"https",
}
MODELS = {
    "nginx": Model("nginx", {**NGINX, b"host": HOST}, False, b"/v1/check", "GET"),
    "traefik": Model("forwarded", {**FORWARDED, b"host": b"127.0.0.1:4290"}, True, b"/v1/check", "GET"),
    "caddy": Model("forwarded", {**FORWARDED, b"host": HOST}, True, b"/v1/check?client=query", "GET"),
    "envoy": Model("path", {b"host": HOST, b"x-forwarded-proto": b"https"}, True, b"/v1/check" + URI, "POST"),
}

NAMES = """
    x-original-uri x-original-method x-original-url x-real-ip x-forwarded-uri x-forwarded-method x-forwarded-host
    x-forwarded-proto x-forwarded-for x-forwarded-prefix forwarded x-ratebound-token x-envoy-original-path x-rewrite-url
    x_original_uri cookie content-length transfer-encoding
"""
VALUES = [b"", b"/free", URI, b"GET", b"POST", b"203.0.113.9", b"203.0.113.9, ", b",", ADDRESS, b"evil", b" "]
names = st.sampled_from([name.encode() for name in NAMES.split()])
values = st.sampled_from(VALUES) | st.binary(max_size=8).filter(lambda value: not set(value) & set(b"\r\n\0"))
Sent = list[tuple[bytes, bytes]]


@pytest.mark.parametrize("setting", ["auto", "set"])
@pytest.mark.parametrize("name", MODELS)
@given(sent=st.lists(st.tuples(names, values), max_size=6), is_first=st.booleans())
def test_a_client_cannot_change_what_a_check_is_about(name: str, setting: str, sent: Sent, is_first: bool) -> None:
    model = MODELS[name]
    written = list(model.written.items())
    passed = [(key, value) for key, value in sent if key not in model.written]
    if model.appends:
        before = [value for key, value in passed if key == b"x-forwarded-for"]
        passed = [pair for pair in passed if pair[0] != b"x-forwarded-for"]
        written.append((b"x-forwarded-for", b", ".join([*before, ADDRESS])))
    lines = [*passed, *written] if is_first else [*written, *passed]
    request = HttpRequest(model.method, model.target, lines, b"", "127.0.0.1")
    described = (b"x-original-uri", b"x-original-method", b"x-forwarded-uri", b"x-forwarded-method")
    has_conflict = any(key in described for key, _ in passed)
    tokens = [value for key, value in passed if key == b"x-ratebound-token"]
    try:
        seen = ProxiedRequest(request, model.setting if setting == "set" else "auto")
    except BadDescription:
        assert len(tokens) > 1 or (setting == "auto" and has_conflict)
        return
    assert not (setting == "auto" and has_conflict)
    assert (seen.method, seen.path, seen.query) == ("POST", "/login", b"next=%2F")
    assert (seen.peer, seen.host, seen.scheme) == (ADDRESS.decode(), HOST.decode(), "https")
    headers = WIRE.headers(seen)
    assert [value for key, value in headers if key == "host"] == [HOST.decode()]
    assert not [key for key, _ in headers if key in ("x-ratebound-token", "content-length", "transfer-encoding")]
    sent_before = b", ".join([value for key, value in sent if key == b"x-forwarded-for"])
    left = [value.encode("latin-1") for key, value in headers if key == "x-forwarded-for"]
    assert b", ".join(left) == sent_before
