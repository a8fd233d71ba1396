"""FastAPI: a policy for all, limits at single endpoints, logins that count only when they fail, exports at once.

`uvicorn fastapi_app:app` serves it; run as it is, it asks itself.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import StreamingResponse

from ratebound.policy import Match, Policy, Rule
from ratebound.web.fastapi import Passed, RateLimits

policy = Policy(
    rules=[
        Rule("api", "100/minute; 10/second burst 20"),
        Rule("reports", "2/second burst 5 leaky-bucket", match=Match(paths=["/reports/{id}"])),
        Rule("planned", "5/minute", match=Match(paths=["/items"]), mode="shadow"),
    ],
    exempt=[Match(paths=["/health"])],
)
app = FastAPI()
limits = RateLimits(policy, app=app, messages="5/second burst 10")


@app.get("/health")
def health() -> str:
    return "well"


@app.get("/users/{id}")
@limits.limit("3/minute")
def user(id: int) -> dict[str, int]:
    return {"id": id}


@app.post("/login")
@limits.limit("5/15 minutes", charge="failure")
async def login(password: str) -> str:
    if password != "correct horse":
        raise HTTPException(401, "wrong")
    return "welcome"


@app.get("/reports/{id}")
async def report(id: int) -> str:
    return "its turn has come"


@app.get("/answer")
@limits.limit("1000/minute", name="tokens")
async def answer(request: Request) -> str:
    words = "as many words as the model has said"
    request.state.ratebound.charge(len(words.split()))
    return words


@app.get("/export")
@limits.limit("2 concurrent")
async def export() -> StreamingResponse:
    async def rows() -> AsyncIterator[str]:
        for number in range(3):
            yield f"row {number}\n"
            await asyncio.sleep(0.01)

    return StreamingResponse(rows())  # holds its slot until the last row


@app.get("/left")
async def left(passed: Annotated[Passed, Depends(limits.limit("10/minute"))]) -> int:
    return passed.decision.remaining if passed.decision else 0


@app.websocket("/echo")
@limits.limit("10/minute")
async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://example.com") as client:
        for number in range(1, 5):
            response = await client.get(f"/users/{number}")
            print(f"GET /users/{number}: {response.status_code}  {response.headers['ratelimit']}")
        for password in ["correct horse"] * 2 + ["guess"] * 6:
            response = await client.post("/login", params={"password": password})
            print(
                f"POST /login {password!r}: {response.status_code}, retry after {response.headers.get('retry-after')}"
            )
        reports = await asyncio.gather(*[client.get(f"/reports/{number}") for number in range(3)])
        print("one every half second:", [response.text for response in reports])
        exports = await asyncio.gather(*[client.get("/export") for _ in range(3)])
        print("three exports at once:", [response.status_code for response in exports])
        print("GET /answer:", (await client.get("/answer")).headers["ratelimit"])


if __name__ == "__main__":
    asyncio.run(main())
