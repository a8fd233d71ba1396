"""The dashboard inside an application: who may look is the application's own affair, and operators act on live limits.

`uvicorn dashboard_app:app` in this folder serves it: open http://127.0.0.1:8000/limits/. Run as it is, it asks itself.
"""

import asyncio

import httpx
from fastapi import FastAPI, Request

from ratebound.policy import Match, Policy, Rule
from ratebound.web.fastapi import Operator, RateLimits

policy = Policy(
    rules=[
        Rule("login", "5/minute", match=Match(paths=["/login"], methods=["POST"])),
        Rule("api", "100/minute", default=True),
    ]
)
app = FastAPI()
limits = RateLimits(policy, app=app)


def operator_of(request: Request) -> Operator | None:
    """Return who may act: here everybody on this machine. Ask your own login instead."""
    is_here = request.client is not None and request.client.host == "127.0.0.1"
    return Operator("somebody here", "write") if is_here else None


app.mount("/limits", limits.dashboard(auth=operator_of))


@app.get("/")
async def home() -> str:
    return "hello"


@app.post("/login")
async def login() -> str:
    return "welcome"


async def main() -> None:
    from_the_page = {"Sec-Fetch-Site": "same-origin", "X-Ratebound-CSRF": "given"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        print("seven logins:", [(await client.post("/login")).status_code for _ in range(7)])
        for rule in (await client.get("/limits/api/rules")).json()["rules"]:
            print(f"rule {rule['name']}: {rule['limits']['default']}, {rule['state']}")
        call = {"client": "127.0.0.1", "for": "1 hour", "reason": "guesses passwords"}
        block = await client.post("/limits/api/blocks", json=call, headers=from_the_page)
        print(f"{block.json()['by']} blocks {block.json()['client']}: {block.json()['reason']}")
        print("a request of that client:", (await client.get("/")).status_code)
        print("its dashboard:", (await client.get("/limits/")).status_code)
        await client.delete("/limits/api/blocks", params={"client": "127.0.0.1"}, headers=from_the_page)
        print("and after the block:", (await client.get("/")).status_code)


if __name__ == "__main__":
    asyncio.run(main())
