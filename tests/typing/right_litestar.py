"""Litestar, and gates by themselves."""

from typing import assert_type

from litestar import Litestar, get
from litestar.middleware import DefineMiddleware

from ratebound.policy import Policy, Rule
from ratebound.web import AsyncWebGate, Passed, Rejected, WebGate
from ratebound.web.asgi import RateLimitMiddleware

gate = AsyncWebGate("5/minute", failure="raise", workers=2, listeners=[print])
threads = WebGate(Policy(rules=[Rule("all", "5/minute", failure="open")]), storage="memory://", deadline=0.1)


@get("/")
async def home() -> str:
    return "home"


app = Litestar([home], middleware=[DefineMiddleware(RateLimitMiddleware, gate=gate)])
around = RateLimitMiddleware(app, "100/minute", switch="shadow")


async def calls() -> None:
    from ratebound.policy import RequestView

    view = RequestView("GET", "/")
    assert_type(await gate.before(view, stage="early"), Passed | Rejected)
    assert_type(threads.before(view), Passed | Rejected)
    threads.switch = None
