"""Pure ASGI: what goes through is not changed, but for the headers; and what was charged is settled or stays."""

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.policy import Match, Policy, PolicyError, Rule
from ratebound.policy.cost import MAX_BODY, json_batch_cost
from ratebound.policy.model.charge_by_result import FinishedResponse
from ratebound.storage.memory import AsyncMemoryStorage
from ratebound.testing import FakeClock, limiting_off
from ratebound.web.asgi import RateLimitMiddleware, user_of
from ratebound.web.gate import AsyncWebGate
from tests.web.drivers import CountingStorage, answer_of, connect, echo, exchange, fetch, http_scope

Message = MutableMapping[str, Any]
pytestmark = pytest.mark.anyio


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def remaining(answer: Any) -> int:
    values = [value for name, value in answer.headers if name == "ratelimit"]
    assert len(values) == 1, answer
    return int(values[0].partition("r=")[2].partition(";")[0])


async def left(app: Any, **more: Any) -> int:
    """What is left before this request, which takes one."""
    return remaining(await fetch(app, "GET", "/", **more)) + 1


async def test_parts_of_a_stream_are_sent_as_they_come_and_never_kept_back() -> None:
    seen: list[str] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"1", b"2", b"3"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
            seen.append(f"after {part.decode()}")
        await send({"type": "http.response.body", "body": b""})

    app = RateLimitMiddleware(stream, "5/minute")

    async def send(message: Message) -> None:
        seen.append(message["type"] + message.get("body", b"").decode())

    async def receive() -> Message:
        return {"type": "http.request"}

    await app(http_scope("GET", "/"), receive, send)
    body = "http.response.body"
    assert seen == ["http.response.start", f"{body}1", "after 1", f"{body}2", "after 2", f"{body}3", "after 3", body]


async def test_other_messages_go_through_as_they_are() -> None:
    extras: list[Message] = [
        {"type": "http.response.early_hint", "links": []},
        {"type": "http.response.start", "status": 200, "headers": [], "trailers": True},
        {"type": "http.response.body", "body": b"a"},
        {"type": "http.response.trailers", "headers": [(b"x", b"y")]},
    ]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in extras:
            await send(dict(message))

    sent = await exchange(RateLimitMiddleware(app, "5/minute"), http_scope("GET", "/"))
    assert [message["type"] for message in sent] == [message["type"] for message in extras]
    assert [sent[0], sent[2], sent[3]] == [extras[0], extras[2], extras[3]]
    assert sent[1]["trailers"]


async def test_a_file_that_the_server_sends_is_charged_by_its_size(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 30)

    async def send_file(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.pathsend", "path": str(file)})

    policy = Policy(rules=[Rule("bytes", "100/minute")])
    app = RateLimitMiddleware(send_file, policy, charge={"bytes": lambda outcome: outcome.sent})
    assert remaining(answer_of(await exchange(app, http_scope("GET", "/")))) == 70


async def test_bytes_sent_are_charged_at_the_end_of_a_stream() -> None:
    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(4):
            await send({"type": "http.response.body", "body": b"x" * 10, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    policy = Policy(rules=[Rule("bytes", "100/minute")])
    outcomes: list[FinishedResponse] = []

    def by_bytes(outcome: FinishedResponse) -> int:
        outcomes.append(outcome)
        return outcome.sent

    app = RateLimitMiddleware(stream, policy, charge={"bytes": by_bytes})
    assert remaining(await fetch(app, "GET", "/")) == 99  # a stream's start cannot know what will be sent
    assert remaining(await fetch(app, "GET", "/")) == 59
    assert outcomes == [FinishedResponse(200, 40, 1)] * 2


@pytest.mark.parametrize("how", ["crash", "crash in the stream", "disconnect", "cancelled"])
async def test_who_breaks_off_has_paid(how: str) -> None:
    async def breaking(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/":
            return await hello(scope, receive, send)
        if how == "crash":
            raise RuntimeError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        if how == "crash in the stream":
            raise RuntimeError
        if how == "cancelled":
            await asyncio.sleep(3600)
        return None  # the client is gone

    policy = Policy(rules=[Rule("login", "5/minute")])
    app = RateLimitMiddleware(breaking, policy, charge={"login": "failure"})
    task = asyncio.ensure_future(exchange(app, http_scope("GET", "/broken")))
    if how == "cancelled":
        await asyncio.sleep(0.01)
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert remaining(await fetch(app, "GET", "/")) == 4  # its own is given back: what is missing is the broken one's


async def test_a_charge_that_fails_leaves_what_was_charged(caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy(rules=[Rule("login", "5/minute")])

    def broken(outcome: FinishedResponse) -> int:
        raise RuntimeError("as asked")

    app = RateLimitMiddleware(hello, policy, charge={"login": broken})
    assert [remaining(await fetch(app, "GET", "/")) for _ in range(2)] == [4, 3]
    assert "could not be settled" in caplog.text


async def test_the_body_that_a_rule_looks_at_is_there_for_the_application() -> None:
    bodies: list[bytes] = []

    async def read(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        bodies.append(body)
        await hello(scope, receive, send)

    policy = Policy(rules=[Rule("batch", "10/minute", cost=json_batch_cost)])
    app = RateLimitMiddleware(read, policy)
    body = json.dumps([1, 2, 3, 4]).encode()
    assert remaining(await fetch(app, "POST", "/", body=body)) == 6
    assert bodies == [body]
    assert (await fetch(app, "POST", "/", body=json.dumps(list(range(7))).encode())).status == 429
    assert (await fetch(app, "POST", "/", body=b" " * (MAX_BODY + 1))).status == 429
    assert len(bodies) == 1


async def test_a_body_that_comes_in_parts_is_read_whole_and_no_further_than_need_be() -> None:
    parts: list[Message] = [
        {"type": "http.request", "body": b"[1,", "more_body": True},
        {"type": "http.request", "body": b"2]", "more_body": False},
        {"type": "http.disconnect"},
    ]
    got: list[Message] = []

    async def read(scope: Any, receive: Any, send: Any) -> None:
        got.extend([await receive() for _ in range(3)])
        await hello(scope, receive, send)

    async def receive() -> Message:
        return parts.pop(0)

    async def send(message: Message) -> None: ...

    app = RateLimitMiddleware(read, Policy(rules=[Rule("batch", "10/minute", cost=json_batch_cost)]))
    await app(http_scope("POST", "/"), receive, send)
    assert [message.get("body") for message in got] == [b"[1,", b"2]", None]


async def test_an_endless_body_is_read_only_as_far_as_a_rule_may_look() -> None:
    read = 0

    async def receive() -> Message:
        nonlocal read
        read += 100_000
        return {"type": "http.request", "body": b" " * 100_000, "more_body": True}

    async def send(message: Message) -> None: ...

    app = RateLimitMiddleware(hello, Policy(rules=[Rule("batch", "10/minute", cost=json_batch_cost)]))
    await asyncio.wait_for(app(http_scope("POST", "/"), receive, send), 10)
    assert MAX_BODY < read <= MAX_BODY + 100_000


async def test_a_refused_head_has_the_length_of_a_body_and_none() -> None:
    app = RateLimitMiddleware(hello, "1/minute")
    await fetch(app, "GET", "/")
    start, body = await exchange(app, http_scope("HEAD", "/"))
    assert start["status"] == 429
    assert int(dict(start["headers"])[b"content-length"]) > 100
    assert body["body"] == b""


async def test_the_storage_is_closed_with_the_application() -> None:
    storage = CountingStorage(AsyncMemoryStorage())
    seen: list[str] = []

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        for word in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{word}"
            await send({"type": f"lifespan.{word}.complete"})

    app = RateLimitMiddleware(lifespan, "5/minute")
    app.gate.gate.storage = storage  # as if it had been opened here
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        seen.append(message["type"] + " closed" * ("close" in storage.calls))

    await app({"type": "lifespan"}, receive, send)
    assert seen == ["lifespan.startup.complete", "lifespan.shutdown.complete closed"]


async def test_an_application_without_a_lifespan_says_so_itself() -> None:
    async def no_lifespan(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"

    async def nothing(*_: Any) -> Any: ...

    with pytest.raises(AssertionError):
        await RateLimitMiddleware(no_lifespan, "5/minute")({"type": "lifespan"}, nothing, nothing)


async def test_a_storage_that_was_given_is_not_closed() -> None:
    storage = CountingStorage(AsyncMemoryStorage())
    gate = AsyncWebGate("5/minute", storage=storage)
    await gate.close()
    assert storage.calls == []


def test_one_application_serves_several_event_loops() -> None:
    app = RateLimitMiddleware(hello, "5/minute")
    assert [remaining(asyncio.run(fetch(app, "GET", "/"))) for _ in range(3)] == [4, 3, 2]


async def test_two_around_one_another_ask_once() -> None:
    inner = RateLimitMiddleware(hello, "5/minute")
    outer = RateLimitMiddleware(inner, gate=inner.gate)
    assert [remaining(await fetch(outer, "GET", "/")) for _ in range(2)] == [4, 3]


async def test_the_servers_state_is_not_touched() -> None:
    shared: dict[str, Any] = {"pool": 1}
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["state"])
        await hello(scope, receive, send)

    await fetch(RateLimitMiddleware(app, "5/minute"), "GET", "/", state=shared)
    assert shared == {"pool": 1}
    assert seen[0]["pool"] == 1
    assert seen[0]["ratebound"].decision.remaining == 4


async def test_a_new_policy_is_in_force_for_the_next_request(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text('{"rules": [{"name": "all", "limits": "5/minute"}]}')
    app = RateLimitMiddleware(hello, str(file))
    assert remaining(await fetch(app, "GET", "/")) == 4
    app.gate.use(Policy(rules=[Rule("all", "50/minute")]))
    assert remaining(await fetch(app, "GET", "/")) == 48
    app.gate.switch = "off"
    assert (await fetch(app, "GET", "/")).headers == []


async def test_a_queue_that_a_new_policy_brings_is_no_longer_than_max_delay() -> None:
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    clock = FakeClock()
    app = RateLimitMiddleware(hello, "5/minute", storage=MemoryStorage(clock=clock), sleep=sleep, max_delay=2.0)
    await fetch(app, "GET", "/")
    app.gate.use(Policy(rules=[Rule("queue", "1/second burst 10 leaky-bucket; 100/minute")]))
    assert [(await fetch(app, "GET", "/")).status for _ in range(5)] == [200] * 3 + [429] * 2
    assert naps == [1.0, 2.0]
    clock.advance(1)
    assert (await fetch(app, "GET", "/")).status == 200


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("5 per fortnight",), PolicyError),
        (("policy.yaml",), PolicyError),
        ((None,), TypeError),
        ((Policy(rules=[Rule("a", "1/minute")]),), None),
    ],
)
def test_what_is_wrong_raises_at_the_start(arguments: Any, error: Any) -> None:
    if error is None:
        RateLimitMiddleware(hello, *arguments)
        return
    with pytest.raises(error):
        RateLimitMiddleware(hello, *arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"charge": {"nobody": "failure"}},
        {"charge": {"default": "sometimes"}},
        {"charge": {"default": hello}},
        {"max_delay": -1},
        {"messages": "5/fortnight"},
        {"by": "nobody"},
        {"gate": object()},
    ],
)
def test_a_wrong_option_raises_at_the_start(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        RateLimitMiddleware(hello, "5/minute", **options)


def test_settings_do_not_go_with_a_policy() -> None:
    with pytest.raises(TypeError, match="write it in the policy"):
        RateLimitMiddleware(hello, Policy(rules=[Rule("a", "1/minute")]), by="address")


async def test_settings_go_with_limits_as_text() -> None:
    app = RateLimitMiddleware(hello, "5/minute", headers="x-ratelimit", trusted=["127.0.0.1"])
    answer = await fetch(app, "GET", "/", {"x-forwarded-for": "198.51.100.9"})
    assert ("x-ratelimit-remaining", "4") in answer.headers
    assert await fetch(app, "GET", "/", {"x-forwarded-for": "198.51.100.8"})
    other = await fetch(app, "GET", "/", {"x-forwarded-for": "198.51.100.7"})
    assert ("x-ratelimit-remaining", "4") in other.headers


async def test_nothing_is_limited_while_a_test_has_it_off() -> None:
    app = RateLimitMiddleware(hello, "1/minute")
    with limiting_off():
        assert [(await fetch(app, "GET", "/")).status for _ in range(3)] == [200] * 3


class Someone:
    """As Starlette's SimpleUser: authenticated, with a name and no identity."""

    is_authenticated = True
    display_name = "ann"

    @property
    def identity(self) -> str:
        raise NotImplementedError


def test_the_user_is_whom_the_framework_has_authenticated() -> None:
    assert user_of({}) is None
    assert user_of({"user": Someone()}) == "ann"
    assert user_of({"user": "bob"}) == "bob"
    assert user_of({"user": 42}) == 42
    someone = Someone()
    someone.is_authenticated = False
    assert user_of({"user": someone}) is None


async def test_a_user_has_one_quota_whatever_the_address() -> None:
    app = RateLimitMiddleware(hello, "5/minute")
    ann = {"user": Someone()}
    assert [await left(app, peer=f"192.0.2.{n}", **ann) for n in (1, 2)] == [5, 4]
    assert await left(app, peer="192.0.2.1") == 5


async def test_a_path_without_its_raw_form_is_encoded_again() -> None:
    policy = Policy(rules=[Rule("files", "5/minute", match=Match(paths=["/files/{name}"]))])
    app = RateLimitMiddleware(hello, policy)
    scope = http_scope("GET", "/files/a%20b%3Fc")
    del scope["raw_path"]
    assert remaining(answer_of(await exchange(app, scope))) == 4


async def test_connections_are_limited_and_told_of_it() -> None:
    app = RateLimitMiddleware(echo, "2/minute", storage=MemoryStorage(clock=FakeClock()))
    accept, *_ = await connect(app)
    assert (b"ratelimit", b'"default/minute";r=1;t=60') in accept["headers"]
    await connect(app)
    assert await connect(app) == [{"type": "websocket.close", "code": 1008, "reason": "too many connections"}]


async def test_a_refused_connection_has_the_whole_response_where_the_server_can_send_it() -> None:
    app = RateLimitMiddleware(echo, "1/minute", storage=MemoryStorage(clock=FakeClock()))
    await connect(app)
    start, body = await connect(app, extensions={"websocket.http.response": {}})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert (b"retry-after", b"60") in start["headers"]
    assert json.loads(body["body"])["title"] == "Quota Exceeded"


async def test_messages_are_limited_and_too_many_end_the_connection() -> None:
    app = RateLimitMiddleware(echo, "10/minute", messages="3/minute", storage=MemoryStorage(clock=FakeClock()))
    sent = await connect(app, texts="abcde")
    assert [message.get("text") for message in sent[1:4]] == ["a", "b", "c"]
    assert sent[4:] == [{"type": "websocket.close", "code": 1008, "reason": "too many messages"}]
    other = await connect(app, texts="a", peer="192.0.2.2")
    assert other[1]["text"] == "a"


async def test_a_leaky_bucket_holds_messages_back() -> None:
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    clock = FakeClock()
    app = RateLimitMiddleware(
        echo,
        "10/minute",
        messages="2/second burst 5 leaky-bucket",
        storage=MemoryStorage(clock=clock),
        sleep=sleep,
    )
    sent = await connect(app, texts="abc")
    assert [message.get("text") for message in sent[1:]] == ["a", "b", "c"]
    assert naps == [0.5, 1.0]


async def test_a_framework_may_hold_it_among_its_own_middleware() -> None:
    from litestar import Litestar, get
    from litestar.middleware import DefineMiddleware
    from starlette.applications import Starlette

    @get("/users/{id:str}")
    async def user() -> str:
        return "user"

    policy = Policy(rules=[Rule("users", "2/minute", match=Match(paths=["/users/{id}"])), Rule("all", "9/minute")])
    middleware: list[Any] = [DefineMiddleware(RateLimitMiddleware, policy=policy)]
    litestar = Litestar([user], middleware=middleware, openapi_config=None, logging_config=None)
    assert [(await fetch(litestar, "GET", f"/users/{n}")).status for n in range(3)] == [200, 200, 429]
    starlette = Starlette()
    added: Any = RateLimitMiddleware  # Starlette's types do not take options by name that are not spelled out
    starlette.add_middleware(added, policy=policy)
    assert [(await fetch(starlette, "GET", f"/users/{n}")).status for n in range(3)] == [404, 404, 429]


async def test_of_two_different_ones_the_inner_tells_the_client() -> None:
    inner = RateLimitMiddleware(hello, Policy(rules=[Rule("inner", "1/minute")]))
    outer = RateLimitMiddleware(inner, Policy(rules=[Rule("outer", "9/minute")]))
    answers = [await fetch(outer, "GET", "/") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    told = [[value for name, value in answer.headers if name == "ratelimit"] for answer in answers]
    assert [len(values) for values in told] == [1, 1]
    assert all(values[0].startswith('"inner/minute";r=0') for values in told)
