"""Mistakes that type checkers find: each on a line that ends with the mark."""

from fastapi import FastAPI, Request

from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import Operator, RateLimits, RequestView

app = FastAPI()
limits = RateLimits("5/minute", storge="memory://")  # error
RateLimits("5/minute", failure="opne")  # error
RateLimits("5/minute", switch="of")  # error
RateLimits("5/minute", headers="x-rate-limit")  # error
RateLimits("5/minute", headers={"cachable": "omit"})  # error
RateLimits("5/minute", rejection="xml")  # error
RateLimits("5/minute", max_delay="1")  # error
RateLimits("5/minute", key_func=len)  # error
RateLimits(app)  # error
RateLimits(charge={"all": "fail"})  # error


@limits.limit("5/minute")
async def item(number: int) -> str:
    return str(number)


def two(request: RequestView, more: int) -> str:
    return f"{more}"


async def calls() -> None:
    await item("1")  # error
    number: int = await item(1)  # error
    item(1).upper()  # error
    limits.limit(5)  # error
    limits.limit("5/minute", mode="shaddow")  # error
    limits.limit("5/minute", failure="opne")  # error
    limits.limit("5/minute", charge="failures")  # error
    limits.limit("5/minute", keey="user")  # error
    limits.limit("5/minute", key=two)  # error
    limits.limit("5/minute", deduct_when=len)  # error
    limits.limit("5/minute", "user")  # error
    limits.limit()  # error
    limits.gate.switch = "of"  # error
    assert number


def is_operator(request: Request) -> str:
    return request.headers["x-role"]


def nobody() -> None: ...


limits.dashboard()  # error
limits.dashboard(auth=is_operator)  # error
limits.dashboard(auth=nobody)  # error
limits.dashboard(auth=lambda request: "admin")  # error
Operator("ann", "admin")  # error
app.add_middleware(RateLimitMiddleware, policy="5/minute", storge="memory://")  # error
app.add_middleware(RateLimitMiddleware, policy="5/minute", failure="opne")  # error
