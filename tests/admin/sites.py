"""Sites for the tests: a gate with a policy that has a bit of everything, three operators, and given figures."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, NamedTuple

from ratebound.admin.calls import AdminCall, Role
from ratebound.admin.messages import AdminAnswer, AdminRequest
from ratebound.admin.operations import Operations
from ratebound.admin.sign_in import TokenSignIn
from ratebound.admin.site import AdminSite
from ratebound.flow import run
from ratebound.observe.figures_view import FiguresView
from ratebound.policy import Gate, Match, Policy, Rule
from ratebound.policy.model.descriptor_rule import DescriptorRule

WRITE_TOKEN = "a-token-that-writes-0123456789"
READ_TOKEN = "a-token-that-reads-0123456789"
OTHER_TOKEN = "a-token-of-another-0123456789"
ENTRIES: list[tuple[str, Role, str]] = [
    ("ann", "write", WRITE_TOKEN),
    ("bob", "read", READ_TOKEN),
    ("eve", "write", OTHER_TOKEN),
]
SECRET = b"a secret of the tests"
HOST = "limits.example"
DIGESTS = {
    "00000000000000a1": "address:203.0.113.7",
    "00000000000000a2": "user:42",
    "00000000000000a3": "user+address:2:42,11:203.0.113.7",
    "00000000000000a4": "global:",
    "00000000000000a5": "address:2001:db8::/64",
}
UNSEEN = "00000000000000ff"


def a_policy() -> Policy:
    return Policy(
        rules=[
            Rule(
                "login", "5/minute", by="address", match=Match(paths=["/login"], methods=["POST"]), penalty="guessing"
            ),
            Rule(
                "search", "10/minute", by="user", candidate="3/minute", match=Match(paths=["/search"]), priority="low"
            ),
            Rule("trial", "7/minute", by="address", mode="shadow"),
            Rule("month", "1000/calendar-month", by="user"),
            Rule("export", "3 concurrent", by="user", match=Match(headers={"x-kind": ["a", "b"]})),
            Rule("all", {"free": "100/minute", "default": "1000/minute"}, by=["user", "address"], default=True),
        ],
        penalties={"guessing": "3 strikes/hour block 5 minutes"},
        tiers=["free", "paid"],
        descriptors=[DescriptorRule("edge", "edge", [{"generic_key": "login"}, "remote_address"], "5/minute")],
    )


class EmptyFigures(FiguresView):
    """Figures of no process."""

    def names(self, digests: Sequence[str]) -> dict[str, str]:
        return {}


class GivenFigures(EmptyFigures):
    """Figures of six clients, whose names are known; and one whose name is not."""

    def __init__(self, names: dict[str, str] | None = None) -> None:
        super().__init__()
        self._names = DIGESTS if names is None else names
        self.asked: list[str] = []

    def view(self) -> dict[str, Any]:
        self.asked.append("view")
        top = [{"client": digest, "denials": 7, "error": 0, "blocked": False} for digest in [*self._names, UNSEEN]]
        report = {"rule": "search", "candidate": True, "allowed": 9, "denied": 1, "live_allowed": 10, "live_denied": 0}
        return {**super().view(), "top": top, "shadow_report": [{**report, "since": time.time()}]}

    def names(self, digests: Sequence[str]) -> dict[str, str]:
        return {digest: self._names[digest] for digest in digests if digest in self._names}


def a_site(
    gate: Any = None, figures: Any = None, sign_in: Any = None, policy: Any = None, ledger: Any = None
) -> AdminSite:
    operations = Operations(gate or Gate(a_policy()), figures or GivenFigures(), policy, ledger)
    return AdminSite(operations, sign_in or TokenSignIn(ENTRIES, SECRET))


class Answered(NamedTuple):
    """An answer, read."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def fields(self) -> list[str]:
        return [error["field"] for error in self.json.get("errors", [])]

    @property
    def cookie(self) -> str:
        return self.headers["set-cookie"].partition(";")[0]


def read(answer: AdminAnswer) -> Answered:
    return Answered(answer.status, {name.lower(): value for name, value in answer.headers}, answer.body)


def request_of(
    method: str,
    path: str | None,
    body: Any = None,
    *,
    token: str | None = None,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> AdminRequest:
    """A request as a program sends it: with a bearer token, and JSON."""
    sent = {"host": HOST, **({} if token is None else {"authorization": f"Bearer {token}"})}
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    if content:
        sent["content-type"] = "application/json"
    before, _, query = (path or "").partition("?")
    return AdminRequest(
        method,
        None if path is None else before,
        query,
        {**sent, **{name.lower(): value for name, value in (headers or {}).items()}},
        content,
        **{"peer": "198.51.100.1", **more},
    )


def ask(site: AdminSite, method: str, path: str | None, body: Any = None, **more: Any) -> Answered:
    return read(run(site.answer(request_of(method, path, body, **more))))


class Browser:
    """A browser at the page: it has signed in, and sends what a browser sends for the page."""

    def __init__(self, site: AdminSite, token: str = WRITE_TOKEN, **more: Any) -> None:
        self.site = site
        self.more = more
        self.own = {"origin": f"http://{HOST}"}
        answer = ask(site, "POST", "api/session", {"token": token}, headers=self.own, **more)
        assert answer.status == 200, answer
        self.csrf: str = answer.json["csrf"]
        self.cookie = answer.cookie

    def headers(self, **changed: str | None) -> dict[str, str]:
        found = {"cookie": self.cookie, "x-ratebound-csrf": self.csrf, **self.own}
        named = {name.replace("_", "-"): value for name, value in changed.items()}
        return {name: value for name, value in {**found, **named}.items() if value is not None}

    def ask(self, method: str, path: str, body: Any = None, **changed: str | None) -> Answered:
        return ask(self.site, method, path, body, headers=self.headers(**changed), **self.more)


def path_of(call: AdminCall) -> str:
    """The path of a call, with its example in the query if it belongs there."""
    if call.has_body or not call.example:
        return call.path
    return f"{call.path}?{'&'.join(f'{name}={value}' for name, value in call.example.items())}"


def body_of(call: AdminCall) -> Any:
    return dict(call.example) if call.has_body else None


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine function, which runs in an event loop of its own."""

    @wraps(test)
    def ran(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return ran
