"""Annotations that are text are looked up in the module of the endpoint, whatever its decorators."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from ratebound.web.fastapi import RateLimits
from tests.web.drivers import fetch

pytestmark = pytest.mark.anyio

app = FastAPI()
limits = RateLimits(app=app)


class Item(BaseModel):
    name: str


@app.get("/async/{name}")
@limits.limit("1/minute")
async def made(name: str, size: int = 1) -> Item:
    return Item(name=name)


@app.get("/plain/{name}")
@limits.limit("1/minute")
def plain(name: str) -> Item:
    return Item(name=name)


@pytest.mark.parametrize("path", ["/async/a", "/plain/a"])
async def test_a_limited_endpoint_keeps_its_annotations(path: str) -> None:
    answers = [await fetch(app, "GET", path) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert answers[0].body == b'{"name":"a"}'
    assert made.__globals__ is plain.__globals__ is globals()
