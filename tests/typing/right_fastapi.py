"""FastAPI: endpoints keep their types."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Literal, assert_type

from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from fastapi.responses import PlainTextResponse

from ratebound.policy import Computed, Match, Policy, Rule
from ratebound.web import FinishedResponse, Passed, Rejected, RouteLimit
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import Operator, RateLimitExceeded, RateLimits, RequestView

app = FastAPI()
limits = RateLimits(
    "100/minute",
    app=app,
    by=["user", "address"],
    failure="closed",
    switch="shadow",
    headers={"styles": ["draft-11", "x-ratelimit"], "jitter": 0.2, "cacheable": "send"},
    rejection={"format": "json", "status": 429},
    trusted=["10.0.0.0/8"],
    tiers=["free", "paid"],
    default_tier="free",
    exempt=[Match(paths=["/health"])],
    storage="memory://",
    messages="10/second",
    max_delay=0.5,
)
by_policy = RateLimits(
    Policy(rules=[Rule("all", "100/minute", mode="shadow", stage="early")]), charge={"all": "failure"}
)
plain = RateLimits(headers="none", rejection="jsonapi", by=lambda request: request.header("x-key"))


def from_file() -> RateLimits:
    return RateLimits(Path("policy.yaml"), app=FastAPI(), user=lambda scope: scope.get("user"))


def cost_of(request: RequestView) -> int:
    return len(request.path)


async def plan_of(request: RequestView) -> str:
    return "5/minute"


def charged(outcome: FinishedResponse) -> int:
    return outcome.cost if outcome.status == 200 else 0


def told(refused: Rejected) -> PlainTextResponse:
    return PlainTextResponse(f"wait {refused.retry_after}", refused.status)


@app.get("/items/{number}")
@limits.limit("5/minute", key="user", cost=cost_of, charge=charged, on_breach=told)
async def item(number: int, q: str = "") -> dict[str, int]:
    return {"number": number}


@limits.limit(plan_of, otherwise="5/minute", exempt_when=lambda request: request.path == "/free")
def sync(number: int) -> str:
    return str(number)


@limits.limit({"free": "5/minute", "paid": ["500/minute", "5000/hour"]}, key=["user", cost_of], methods="POST")
@limits.limit(Computed(plan_of, otherwise="5/minute"), mode="shadow", failure="open", keep_defaults=True)
async def stream(websocket: WebSocket) -> AsyncIterator[bytes]:
    yield b""


@limits.exempt
async def free() -> None: ...


@limits.limit("5/minute", name="class", methods=["GET", "POST"])
class Endpoint:
    def __init__(self, number: int) -> None:
        self.number = number


async def current_user(request: Request) -> str:
    return "ann"


router = APIRouter(dependencies=[Depends(limits.limit("5/minute"))])


@router.get("/me")
async def me(passed: Annotated[Passed, Depends(limits.limit("5/minute", user=current_user, key="user"))]) -> float:
    passed.charge(7)
    return 0.0 if passed.decision is None else passed.decision.reset_after


@app.exception_handler(RateLimitExceeded)
async def too_many(request: Request, error: RateLimitExceeded) -> PlainTextResponse:
    return PlainTextResponse(error.detail, error.rejected.status)


async def calls() -> None:
    assert_type(await item(1, q="a"), dict[str, int])
    assert_type(sync(number=1), str)
    assert_type(Endpoint(1).number, int)
    assert_type(await free(), None)


def is_operator(request: Request) -> Operator | None:
    return Operator("ann", "write") if request.headers.get("x-user") == "ann" else None


async def may_look(request: Request) -> Literal["read"] | None:
    return "read"


app.mount("/limits", limits.dashboard(auth=is_operator))
app.mount("/wall", limits.dashboard(auth=may_look))
app.mount("/mine", limits.dashboard(auth=lambda request: "write" if request.client else None))
limits.gate.switch = "off"
around = FastAPI()
around.add_middleware(RateLimitMiddleware, policy="5/minute")
around.add_middleware(
    RateLimitMiddleware, "5/minute", failure="open", messages=RouteLimit(limits="5/second", key="user")
)
