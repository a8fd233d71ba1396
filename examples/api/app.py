"""An API with limits: what `make run` serves. All that is said about limits is in policy.yaml."""

from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from ratebound.observe.prometheus import PrometheusListener
from ratebound.policy import Identity, PolicyFile
from ratebound.web.fastapi import RateLimits

KEYS = {"key-of-ann": ("ann", "pro"), "key-of-bob": ("bob", "free")}


def find_key(key: str) -> Identity | None:
    """Whose key it is, and of which tier."""
    if key not in KEYS:
        return None
    name, tier = KEYS[key]
    return Identity("client", name, tier)


registry = CollectorRegistry()
metrics = PrometheusListener(registry)
policy = PolicyFile(Path(__file__).with_name("policy.yaml"), functions={"find_key": find_key})

app = FastAPI(title="Ratebound's example")
limits = RateLimits(policy, app=app, listeners=[metrics])


@app.get("/")
def home() -> dict[str, str]:
    return {
        "this": "an API with rate limits",
        "limited": "/items/1, /reports/1, POST /login",
        "documentation": "/docs",
        "metrics": "/metrics",
        "policy": "examples/api/policy.yaml",
    }


@app.get("/health")
def health() -> str:
    return "well"


@app.get("/metrics")
def show_metrics() -> Response:
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@app.post("/login")
async def login(request: Request) -> dict[str, str]:
    raise HTTPException(401, "wrong password")


@app.get("/items/{id}")
async def item(id: int, request: Request) -> dict[str, int]:
    decision = request.state.ratebound.decision
    return {"id": id, "left": decision.remaining}


@app.get("/reports/{id}")
async def report(id: int) -> dict[str, str]:
    return {"report": "its turn has come"}
