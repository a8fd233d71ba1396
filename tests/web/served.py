"""What the tests of real servers serve. RATEBOUND_TEST_STORAGE and RATEBOUND_TEST_POLICY say with what."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse

from ratebound.policy import Match, Policy, Rule
from ratebound.web import wsgi
from ratebound.web.fastapi import RateLimits

RULES = Policy(
    rules=[
        Rule("login", "5/minute", match=Match(paths=["/login"])),
        Rule("bytes", "1000/minute", match=Match(paths=["/endless"])),
        Rule("queue", "5/second burst 10 leaky-bucket", match=Match(paths=["/queue"])),
        Rule("rest", "20/hour", default=True),
    ],
    trusted=["127.0.0.1"],
)
OPTIONS: dict[str, Any] = {
    "policy": os.environ.get("RATEBOUND_TEST_POLICY") or RULES,
    "storage": os.environ.get("RATEBOUND_TEST_STORAGE", "memory://"),
    "deadline": float(os.environ.get("RATEBOUND_TEST_DEADLINE", "0.25")),
}
if OPTIONS["policy"] is RULES:
    OPTIONS["charge"] = {"login": "failure"}


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, str]]:
    yield {"opened": "yes"}


app = FastAPI(lifespan=lifespan)
limits = RateLimits(app=app, messages="3/hour", **OPTIONS)


if os.environ.get("RATEBOUND_TEST_DASHBOARD"):

    def is_operator(request: Request) -> Any:
        return request.headers.get("x-role")

    app.mount("/limits", limits.dashboard(auth=is_operator))


@app.api_route("/", methods=["GET", "HEAD"])
async def home(request: Request) -> dict[str, str]:
    return {"opened": request.state.opened}


@app.get("/pid")
def pid() -> int:
    return os.getpid()


@app.get("/users/{id}")
@limits.limit("3/hour")
def user(id: int) -> int:
    return id


@app.get("/login")
async def login() -> PlainTextResponse:
    await asyncio.sleep(0.05)
    return PlainTextResponse("no", 401)


@app.get("/queue")
async def queue() -> None: ...


@app.get("/endless")
@limits.limit("3/hour", charge="failure", name="endless")
async def endless() -> StreamingResponse:
    async def parts() -> AsyncIterator[str]:
        while True:
            yield "part " * 20
            await asyncio.sleep(0.02)

    return StreamingResponse(parts())


@app.get("/exports")
@limits.limit("2 concurrent", name="exports")
async def exports() -> StreamingResponse:
    return await endless.__wrapped__()  # type: ignore[attr-defined,no-any-return]


@app.get("/download")
@limits.limit("2 concurrent", name="download")
async def download() -> FileResponse:
    return FileResponse(__file__)


@app.websocket("/exports/ws")
@limits.limit("2 concurrent", name="connections")
async def connections(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


@app.get("/stream")
async def stream() -> StreamingResponse:
    async def parts() -> AsyncIterator[str]:
        for part in ("one", "two", "three"):
            yield part
            await asyncio.sleep(0.05)

    return StreamingResponse(parts())


@app.websocket("/ws")
@limits.limit("2/hour")
async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


def plain(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    if path == "/stream":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return streamed()
    body = str(os.getpid()).encode() if path == "/pid" else b"plain"
    status = "401 Unauthorized" if path == "/login" else "200 OK"
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def streamed() -> Iterator[bytes]:
    yield from (b"one", b"two", b"three")


application = wsgi.RateLimitMiddleware(plain, **OPTIONS)
