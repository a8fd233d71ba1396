"""Mistakes that type checkers find: each on a line that ends with the mark."""

from starlette.middleware import Middleware

from ratebound.policy import Policy, RequestView, Rule
from ratebound.web import AsyncWebGate, WebGate
from ratebound.web.asgi import RateLimitMiddleware


async def app(scope: object, receive: object, send: object) -> None: ...


def sleep(seconds: float) -> None: ...


gate = WebGate("5/minute", sleep=sleep)
AsyncWebGate("5/minute", sleep=sleep)  # error
WebGate("5/minute", listner=[print])  # error
WebGate(5)  # error
Rule("all", "5/minute", stage="erly")  # error
Policy(rules=[Rule("all", "5/minute")], switch="of")  # error
gate.before(RequestView("GET", "/"), stage="erly")  # error
Middleware(RateLimitMiddleware, polic="5/minute")  # error
RateLimitMiddleware(app, "5/minute", massages="5/minute")  # error
