"""A FastAPI site for the tests of real servers, as flask_site.py."""

import os

from fastapi import FastAPI

from ratebound.web.fastapi import RateLimits

app = FastAPI()
RateLimits(os.environ["RATEBOUND_TEST_POLICY"], app=app, storage=os.environ["RATEBOUND_TEST_STORAGE"])


@app.get("/")
async def pid() -> int:
    return os.getpid()
