"""Quart: one line, in the place that Quart has for it, so that `app` stays what it was.

`hypercorn quart_app:app` serves it; run as it is, it asks itself.
"""

import asyncio

from quart import Quart, request, websocket

from ratebound.policy import Match, Policy, Rule
from ratebound.web.asgi import RateLimitMiddleware

app = Quart(__name__)


@app.get("/users/<int:number>")
async def user(number: int) -> dict[str, int]:
    return {"number": number, "left": request.scope["state"]["ratebound"].decision.remaining}


@app.post("/login")
async def login() -> tuple[str, int]:
    form = await request.form
    return ("welcome", 200) if form.get("password") == "correct horse" else ("wrong", 401)


@app.websocket("/echo")
async def echo() -> None:
    while True:
        await websocket.send(await websocket.receive())


policy = Policy(
    rules=[
        Rule("users", "3/minute", match=Match(paths=["/users/{number}"])),
        Rule("login", "5/15 minutes", match=Match(paths=["/login"], methods=["POST"])),
        Rule("rest", "100/minute", default=True),
    ]
)
app.asgi_app = RateLimitMiddleware(app.asgi_app, policy, charge={"login": "failure"})  # type: ignore[method-assign]


async def main() -> None:
    client = app.test_client()
    peer = {"client": ("192.0.2.1", 50000)}  # as a server would say
    for number in range(1, 5):
        response = await client.get(f"/users/{number}", scope_base=peer)
        print(f"GET /users/{number}: {response.status_code}  {response.headers['RateLimit']}")
    for password in ["correct horse"] * 2 + ["guess"] * 6:
        response = await client.post("/login", form={"password": password}, scope_base=peer)
        print(f"POST /login {password!r}: {response.status_code}")


if __name__ == "__main__":
    asyncio.run(main())
