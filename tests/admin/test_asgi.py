"""The site as an ASGI application: mounts, bodies, live figures and their end."""

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from ratebound.admin.asgi import AdminAsgi
from ratebound.admin.calls import Operator
from ratebound.admin.messages import CallError
from ratebound.admin.sign_in import GivenSignIn, TokenSignIn
from ratebound.admin.site import AdminSite
from ratebound.errors import StorageError
from ratebound.flow import Flow
from ratebound.policy import AsyncGate, Gate
from tests.admin.sites import ENTRIES, HOST, READ_TOKEN, SECRET, WRITE_TOKEN, GivenFigures, a_policy, a_site, in_loop
from tests.admin.test_sign_in import Clock


class Client:
    """A client of an ASGI application: it sends a request, and keeps what it is sent until it goes."""

    def __init__(
        self,
        method: str,
        path: str,
        *parts: bytes,
        token: str | None = READ_TOKEN,
        headers: list[tuple[str, str]] | None = None,
        **scope: Any,
    ) -> None:
        sent = [("host", HOST), *(headers or [])] + ([("authorization", f"Bearer {token}")] if token else [])
        before, _, query = path.partition("?")
        self.scope = {
            "type": "http",
            "method": method,
            "path": before,
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent],
            "client": ("198.51.100.1", 1234),
            **scope,
        }
        bodies = parts or (b"",)
        self._parts = [
            {"type": "http.request", "body": part, "more_body": place < len(bodies) - 1}
            for place, part in enumerate(bodies)
        ]
        self.gone = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.news = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()

    async def receive(self) -> dict[str, Any]:
        if self._parts:
            return self._parts.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await self.takes.wait()
        self.sent.append(message)
        self.news.set()

    async def ask(self, app: AdminAsgi) -> "Client":
        await app(self.scope, self.receive, self.send)
        return self

    async def until(self, text: str) -> None:
        """Wait until it has been sent a text."""
        while text not in self.body.decode():
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 20)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]  # type: ignore[no-any-return]

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def an_app(**options: Any) -> AdminAsgi:
    return AdminAsgi(a_site(AsyncGate(a_policy())), **{"every": 0.001, **options})


@in_loop
async def test_a_call_is_answered() -> None:
    client = await Client("GET", "/api/session").ask(an_app())
    assert (client.status, client.json["name"], client.json["live"]) == (200, "bob", True)
    assert client.headers["content-length"] == str(len(client.body))


@pytest.mark.parametrize(
    ("path", "root_path", "expected"),
    [
        ("/limits/api/session", "/limits", 200),  # as the specification of ASGI has it
        ("/api/session", "/limits", 200),  # a server that leaves the root path out
        ("/a/b/api/session", "/a/b", 200),
        ("/a/b/api/session", "/a/b/", 200),
        ("/limitsapi/session", "/limits", 404),
        ("/limits/", "/limits", 200),
        ("/limits", "/limits", 308),
        ("/", "", 200),
        ("", "", 200),
        ("//api/session", "", 404),
        ("/api/session/", "", 404),
        ("/api/../api/session", "", 404),
        ("/%2e/api/session", "", 404),
        ("/index.html", "", 404),
        ("/../operations.py", "", 404),
        ("/\udcff\x00", "", 404),
    ],
)
@in_loop
async def test_paths_are_read_below_the_mount(path: str, root_path: str, expected: int) -> None:
    client = await Client("GET", path, root_path=root_path).ask(an_app())
    assert client.status == expected


@pytest.mark.parametrize(
    ("mount", "location"), [("/limits", "./limits/"), ("/a/b c", "./b%20c/"), ("//evil.example", "./evil.example/")]
)
@in_loop
async def test_a_mount_without_its_slash_is_redirected_within_the_same_host(mount: str, location: str) -> None:
    client = await Client("GET", mount, root_path=mount, token=None).ask(an_app())
    assert (client.status, client.headers["location"]) == (308, location)


@in_loop
async def test_the_cookie_is_for_the_mount_alone() -> None:
    body = json.dumps({"token": READ_TOKEN}).encode()
    headers = [("content-type", "application/json"), ("origin", f"https://{HOST}")]
    client = await Client(
        "POST", "/limits/api/session", body, token=None, headers=headers, root_path="/limits", scheme="https"
    ).ask(an_app())
    assert "; Path=/limits/; " in client.headers["set-cookie"]
    assert client.headers["set-cookie"].endswith("; Secure")


@in_loop
async def test_a_body_comes_in_parts_and_cookies_in_lines() -> None:
    app = an_app()
    kind = ("content-type", "application/json")
    client = await Client(
        "POST", "/api/policy/check", b'{"text": "ru', b'les: []"}', token=WRITE_TOKEN, headers=[kind]
    ).ask(app)
    assert client.json["valid"] is False
    signed = await Client(
        "POST",
        "/api/session",
        json.dumps({"token": READ_TOKEN}).encode(),
        token=None,
        headers=[kind, ("sec-fetch-site", "same-origin")],
    ).ask(app)
    cookie = signed.headers["set-cookie"].partition(";")[0]
    lines = [("cookie", "a=b"), ("cookie", cookie)]
    assert (await Client("GET", "/api/session", token=None, headers=lines).ask(app)).status == 200


@in_loop
async def test_a_header_that_is_sent_twice_is_no_proof() -> None:
    app = an_app()
    twice = [("authorization", f"Bearer {WRITE_TOKEN}")]
    assert (await Client("GET", "/api/session", token=READ_TOKEN, headers=twice).ask(app)).status == 401


@in_loop
async def test_no_more_of_a_body_is_read_than_is_allowed() -> None:
    parts = [b"x" * 400_000] * 10
    client = Client(
        "POST", "/api/policy/check", *parts, token=WRITE_TOKEN, headers=[("content-type", "application/json")]
    )
    await client.ask(an_app())
    assert client.status == 413
    assert len(client._parts) == 7


@in_loop
async def test_a_client_that_goes_while_it_sends_is_not_answered() -> None:
    client = Client("POST", "/api/blocks", token=WRITE_TOKEN)
    client._parts = [{"type": "http.request", "body": b"{", "more_body": True}]
    client.gone.set()
    await client.ask(an_app())
    assert client.sent == []


@in_loop
async def test_live_figures_are_events_until_the_client_goes() -> None:
    app = an_app()
    client = Client("GET", "/api/live")
    task = asyncio.create_task(client.ask(app))
    await client.until("event: history")
    await client.until("event: figures")
    assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "content-length" not in client.headers
    client.gone.set()
    await asyncio.wait_for(task, 20)
    assert app.feed.readers == 0
    assert asyncio.all_tasks() - {asyncio.current_task()} == set() or await settled()


async def settled() -> bool:
    """Let tasks that were cancelled end; True if none is left."""
    for _ in range(10):
        await asyncio.sleep(0)
    return asyncio.all_tasks() == {asyncio.current_task()}


@in_loop
async def test_a_request_that_is_cancelled_leaves_nothing_behind() -> None:
    app = an_app()
    client = Client("GET", "/api/live")
    task = asyncio.create_task(client.ask(app))
    await client.until("event: figures")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert app.feed.readers == 0
    assert await settled()


@in_loop
async def test_a_reader_that_takes_nothing_costs_one_event() -> None:
    figures = GivenFigures()
    app = AdminAsgi(a_site(AsyncGate(a_policy()), figures), every=0.0001)
    client = Client("GET", "/api/live")
    task = asyncio.create_task(client.ask(app))
    await client.until("event: figures")
    client.takes.clear()
    before, read = len(client.sent), len(figures.asked)
    while len(figures.asked) < read + 100:
        await asyncio.sleep(0)
    client.takes.set()
    client.news.clear()
    await asyncio.wait_for(client.news.wait(), 20)
    assert len(client.sent) <= before + 3
    client.gone.set()
    await task


@in_loop
async def test_a_session_that_ends_ends_its_stream() -> None:
    clock = Clock()
    sign_in = TokenSignIn(ENTRIES, SECRET, clock=clock)
    app = AdminAsgi(a_site(AsyncGate(a_policy()), sign_in=sign_in), every=0.001, check=0.0)
    kind = [("content-type", "application/json"), ("sec-fetch-site", "same-origin")]
    body = json.dumps({"token": READ_TOKEN}).encode()
    signed = await Client("POST", "/api/session", body, token=None, headers=kind).ask(app)
    cookie = [("cookie", signed.headers["set-cookie"].partition(";")[0])]
    client = Client("GET", "/api/live", token=None, headers=cookie)
    task = asyncio.create_task(client.ask(app))
    await client.until("event: figures")
    assert not task.done()
    clock.now += 12 * 3600
    await asyncio.wait_for(task, 20)
    assert client.sent[-1]["more_body"] is False
    assert (await Client("GET", "/api/live", token=None, headers=cookie).ask(app)).status == 401


@in_loop
async def test_a_role_that_the_application_takes_away_ends_the_stream() -> None:
    roles: list[Any] = ["read"]
    sign_in = GivenSignIn(lambda scope: roles[0])
    app = AdminAsgi(a_site(AsyncGate(a_policy()), sign_in=sign_in), every=0.001, check=0.0)
    client = Client("GET", "/api/live", token=None)
    task = asyncio.create_task(client.ask(app))
    await client.until("event: figures")
    roles[0] = None
    await asyncio.wait_for(task, 20)
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@in_loop
async def test_an_application_that_raises_to_refuse_an_operator_ends_the_stream_without_an_error() -> None:
    refused: list[Exception] = []

    def auth(scope: Any) -> str:
        if refused:
            raise refused[0]
        return "read"

    app = AdminAsgi(a_site(AsyncGate(a_policy()), sign_in=GivenSignIn(auth)), every=0.001, check=0.0)
    client = Client("GET", "/api/live", token=None)
    task = asyncio.create_task(client.ask(app))
    await client.until("event: figures")
    refused.append(PermissionError("see other: /login"))  # as frameworks do
    await asyncio.wait_for(task, 20)
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    with pytest.raises(PermissionError):
        await Client("GET", "/api/live", token=None).ask(app)


@in_loop
async def test_a_stop_ends_all_streams() -> None:
    app = an_app()
    clients = [Client("GET", "/api/live") for _ in range(3)]
    tasks = [asyncio.create_task(client.ask(app)) for client in clients]
    for client in clients:
        await client.until("event: figures")
    app.stop()
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert all(client.sent[-1]["more_body"] is False for client in clients)
    assert await settled()


@in_loop
async def test_a_stream_whose_history_cannot_be_read_is_a_problem() -> None:
    class Broken(GivenFigures):
        def history(self) -> dict[str, Any]:
            raise StorageError("connection refused")

    app = AdminAsgi(a_site(AsyncGate(a_policy()), Broken()))
    client = await Client("GET", "/api/live").ask(app)
    assert (client.status, client.headers["content-type"]) == (503, "application/problem+json")


@in_loop
async def test_head_of_a_stream_has_no_events() -> None:
    client = await Client("HEAD", "/api/live").ask(an_app())
    assert (client.status, client.body) == (200, b"")


@in_loop
async def test_an_application_signs_in_with_its_own_request_and_may_await() -> None:
    seen: list[Any] = []

    async def auth(request: Any) -> Operator:
        await asyncio.sleep(0)
        seen.append(request)
        return Operator("kim", "read")

    site = a_site(AsyncGate(a_policy()), sign_in=GivenSignIn(auth))
    client = await Client("GET", "/api/session", token=None).ask(AdminAsgi(site))
    assert client.json["name"] == "kim"
    assert seen[0]["path"] == "/api/session"
    app = AdminAsgi(site, native=lambda scope, receive: ("request", scope["method"]))
    await Client("GET", "/api/session", token=None).ask(app)
    assert seen[1] == ("request", "GET")


@in_loop
async def test_steps_that_block_run_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    class Blocking:
        is_blocking = True

        def call(self, name: str, arguments: Mapping[str, Any], operator: Operator) -> Flow[Any]:
            yield lambda: threads.append(threading.current_thread())
            return {"done": True}

    site = a_site()
    site.calls = Blocking()
    await Client("GET", "/api/figures").ask(AdminAsgi(site))
    assert threads != [threading.current_thread()]
    assert (await Client("GET", "/api/blocks").ask(AdminAsgi(a_site(Gate(a_policy()))))).json == {"blocks": []}


@in_loop
async def test_it_can_be_served_by_itself() -> None:
    app = an_app()
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


class SlowCalls:
    """Calls that answer with their number, when they may. `fails` is raised instead."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_answer = asyncio.Event()
        self.fails: CallError | None = None

    def call(self, name: str, arguments: Mapping[str, Any], operator: Operator) -> Flow[Any]:
        self.begun.append(name)
        number = len(self.begun)
        yield self.may_answer.wait
        if self.fails is not None:
            raise self.fails
        return {name: number}


@in_loop
async def test_pages_that_read_the_same_at_once_are_answered_by_one_read() -> None:
    calls = SlowCalls()
    app = AdminAsgi(AdminSite(calls, TokenSignIn(ENTRIES, SECRET)))
    first = asyncio.create_task(Client("GET", "/api/blocks").ask(app))
    await settled()
    # The read under way may have missed a change that these know of: they get the next one
    others = [asyncio.create_task(Client("GET", "/api/blocks").ask(app)) for _ in range(20)]
    apart = asyncio.create_task(Client("GET", "/api/rules", token=WRITE_TOKEN).ask(app))
    await settled()
    assert calls.begun == ["blocks", "rules"]
    others.pop().cancel()
    calls.may_answer.set()
    assert (await first).json == {"blocks": 1}
    assert [(await other).json for other in others] == [{"blocks": 3}] * 19
    assert (await apart).json == {"rules": 2}
    assert (await Client("GET", "/api/blocks").ask(app)).json == {"blocks": 4}
    assert await settled()


@in_loop
async def test_a_shared_read_that_fails_is_a_problem_for_all_and_the_next_one_works() -> None:
    calls = SlowCalls()
    calls.fails = CallError(503, "The storage could not answer.", headers={"Retry-After": "1"})
    app = AdminAsgi(AdminSite(calls, TokenSignIn(ENTRIES, SECRET)))
    pages = [asyncio.create_task(Client("GET", "/api/overrides").ask(app)) for _ in range(3)]
    calls.may_answer.set()
    assert [((await page).status, page.result().headers["retry-after"]) for page in pages] == [(503, "1")] * 3
    calls.fails = None
    assert (await Client("GET", "/api/overrides").ask(app)).status == 200
    assert (await Client("GET", "/api/overrides", token=None).ask(app)).status == 401


@in_loop
async def test_websockets_are_closed() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await an_app()({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
