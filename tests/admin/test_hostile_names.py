"""Names that attack a page are data: they come back as they were, in JSON that holds no markup, in every answer."""

import asyncio
from typing import Any

import pytest

from ratebound.admin.asgi import AdminAsgi
from ratebound.admin.calls import Operator
from ratebound.admin.sign_in import GivenSignIn
from ratebound.policy import AsyncGate
from tests.admin.sites import WRITE_TOKEN, Browser, GivenFigures, a_policy, a_site, ask, in_loop
from tests.admin.test_asgi import Client
from tests.admin.test_live_feed import events

PAYLOADS = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "{{7*7}}${7*7}<%= 7*7 %>",
    "&lt;b&gt;&#60;b&#62;",
    "<!--",
    "]]>",
    "__proto__",
    "\u2028\u2029",
    "\u202eevil",
    "\ufeff<b>",
    "event: figures\ndata: {}\n\n",
    "x\r\nSet-Cookie: a=b",
    "\x00\x1b[31m",
    "😀" * 20,
]
PRINTABLE = [one for one in PAYLOADS if one.isprintable()]
GIVEN = {"x-ratebound-csrf": "given", "origin": "http://limits.example"}


def is_plain(body: bytes) -> bool:
    return body.isascii() and not {*b"<>&\x00\x1b\r"} & {*body}


@pytest.mark.parametrize("payload", PRINTABLE)
def test_a_block_keeps_hostile_names_as_data(payload: str) -> None:
    site = a_site(sign_in=GivenSignIn(lambda request: Operator(payload, "write")))
    made = ask(site, "POST", "api/blocks", {"client": f"user:{payload}", "reason": payload}, headers=GIVEN)
    assert made.status == 200, made
    listed, changes = ask(site, "GET", "api/blocks"), ask(site, "GET", "api/changes")
    assert all(is_plain(answer.body) for answer in (made, listed, changes))
    (block,) = listed.json["blocks"]
    assert (block["client"], block["reason"], block["by"]) == (f"user:{payload}", payload, payload)
    assert changes.json["changes"][0]["by"] == payload


@pytest.mark.parametrize("payload", PAYLOADS)
def test_names_of_clients_in_the_figures_are_data(payload: str) -> None:
    site = a_site(figures=GivenFigures({"00000000000000b1": f"user:{payload}"}))
    answer = ask(site, "GET", "api/top?names=yes", token=WRITE_TOKEN)
    assert is_plain(answer.body)
    assert answer.json["top"][0]["name"] == f"user:{payload}"


@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_is_wrong_is_told_without_markup(payload: str) -> None:
    site = a_site()
    for method, path, body in (
        ("POST", "api/blocks", {payload: payload}),
        ("POST", "api/blocks", {"client": payload}),
        ("PUT", "api/switches", {"rule": payload, "state": payload}),
        ("POST", "api/overrides", {"client": "user:42", "limits": payload}),
        ("POST", "api/policy/check", {"text": payload}),
        ("POST", "api/resets", {"client": payload}),
    ):
        answer = ask(site, method, path, body, token=WRITE_TOKEN)
        assert answer.status in (200, 422), answer
        assert is_plain(answer.body)
        assert all("\n" not in value and "\r" not in value for value in answer.headers.values())


@pytest.mark.parametrize("payload", [one for one in PAYLOADS if "\n" not in one])
def test_headers_that_are_hostile_are_refused_without_being_repeated_as_markup(payload: str) -> None:
    answer = Browser(a_site()).ask("POST", "api/resets", {"client": "user:42"}, origin=payload)
    assert answer.status == 403
    assert is_plain(answer.body)


def test_the_name_of_an_operator_is_one_short_line() -> None:
    site = a_site(sign_in=GivenSignIn(lambda request: Operator("a\nb" + "c" * 500, "write")))
    assert ask(site, "POST", "api/resets", {"client": "user:a\nb"}, headers=GIVEN).status == 200
    (change,) = ask(site, "GET", "api/changes").json["changes"]
    assert change["by"] == ("a\ufffdb" + "c" * 500)[:100]
    assert change["target"] == "user:a\ufffdb"


@pytest.mark.parametrize("payload", PAYLOADS)
@in_loop
async def test_events_cannot_be_forged_by_names(payload: str) -> None:
    class Hostile(GivenFigures):
        def view(self) -> dict[str, Any]:
            return {**super().view(), "rules": [{"rule": payload}]}

    app = AdminAsgi(a_site(AsyncGate(a_policy()), Hostile()), every=0.001)
    client = Client("GET", "/api/live")
    task = asyncio.create_task(client.ask(app))
    await client.until("event: figures")
    client.gone.set()
    await task
    found = [content for name, content in events(client.body) if name == "figures"]
    assert found[0]["rules"] == [{"rule": payload}]
    assert {*client.body} & {*b"<>&"} == set()
