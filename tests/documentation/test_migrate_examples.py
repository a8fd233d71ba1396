"""The examples of web packages in docs/migrate, before and after: they run, do the same, and ours are no longer."""

import asyncio
import inspect
import re
from importlib.metadata import metadata
from typing import Any

import pytest

from tests.documentation.pages import all_blocks, read
from tests.web.drivers import fetch
from tests.web.suite import Answer

# Lines of slowapi's two examples, in the README of its repository: the installed one has none any more. Theirs leave
# out the imports of Request and PlainTextResponse, ours do not.
SLOWAPI = {"Starlette": 10, "FastAPI": 10}


def page(name: str) -> str:
    return f"docs/migrate/{name.lower()}.md"


def examples(name: str, title: str = "After") -> list[str]:
    return [block.text for block in all_blocks(page(name)) if (block.language, block.title) == ("python", title)]


def count(code: str) -> int:
    """Lines that say something."""
    return len([line for line in code.splitlines() if line.strip() and not line.strip().startswith("#")])


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(code, names)
    return names


async def several(app: Any, path: str, times: int, **more: Any) -> list[Answer]:
    return [await fetch(app, "GET", path, **more) for _ in range(times)]


def test_the_example_of_flask_limiters_readme_is_no_longer_here() -> None:
    readme = str(metadata("Flask-Limiter").json["description"])
    theirs = re.search(r"^\.\. code-block:: python\n\n(.*?)\n\n(?=\S)", readme, re.DOTALL | re.MULTILINE)
    assert theirs is not None
    assert "limiter.exempt" in theirs[1]
    (ours,) = examples("Flask-Limiter")
    assert count(ours) <= count(theirs[1])


@pytest.mark.parametrize("title", ["Before", "After"])
def test_the_example_of_flask_limiters_readme_does_the_same_here(title: str) -> None:
    (code,) = examples("Flask-Limiter", title)
    client = run(code)["app"].test_client()
    assert [client.get("/slow").status_code for _ in range(2)] == [200, 429]
    assert [client.get("/fast").status_code for _ in range(2)] == [200, 429]  # 1 per second
    assert [client.get("/ping").text for _ in range(5)] == ["PONG"] * 5


def test_the_example_of_flask_limiters_readme_has_exact_headers_here() -> None:
    (ours,) = examples("Flask-Limiter")
    client = run(ours)["app"].test_client()
    told = [client.get("/fast").headers for _ in range(2)][1]
    assert told["RateLimit-Policy"] == '"example.fast/minute";q=2;w=60, "example.fast/second";q=1;w=1'
    assert told["Retry-After"] == "1"


def test_slowapis_example_before_admits_the_same() -> None:
    (theirs,) = examples("slowapi", "Before")
    answers = asyncio.run(several(run(theirs)["app"], "/home", 6))
    assert [answer.status for answer in answers] == [200] * 5 + [429]


@pytest.mark.parametrize(("place", "framework"), [(0, "FastAPI"), (1, "Starlette")])
def test_the_examples_of_slowapis_readme_are_no_longer_here_and_do_the_same(place: int, framework: str) -> None:
    ours = examples("slowapi")[place]
    assert framework in ours
    assert count(ours) <= SLOWAPI[framework]
    answers = asyncio.run(several(run(ours)["app"], "/home", 6))
    assert [answer.status for answer in answers] == [200] * 5 + [429]
    assert answers[0].body == b"test"


def test_fastapi_limiters_quickstart_gives_each_client_its_own_quota() -> None:  # peers: row 1
    (ours,) = examples("fastapi-limiter")
    app = run(ours)["app"]
    for peer in ("192.0.2.1", "192.0.2.2"):
        answers = asyncio.run(several(app, "/", 3, peer=peer))
        assert [answer.status for answer in answers] == [200, 200, 429]


def test_every_option_of_flask_limiter_and_slowapi_is_on_the_page() -> None:
    from flask_limiter import Limiter as FlaskLimiter
    from slowapi import Limiter as SlowLimiter

    def said(option: str, text: str) -> bool:
        begun = re.findall(r"(\w+)…", text)  # `in_memory_fallback…` is all that begins so
        return bool(re.search(rf"\b{option}\b", text)) or any(option.startswith(one) for one in begun)

    for kind, name in ((FlaskLimiter, "Flask-Limiter"), (SlowLimiter, "slowapi")):
        text = read(page(name))
        for function in (kind.__init__, kind.limit, kind.shared_limit):
            for option in inspect.signature(function).parameters:
                short = re.sub("^(default|application)_limits_.*", r"\1_limits", option)
                if short not in ("self", "limit_value", "app"):
                    assert said(short, text), f"{name}: {option}"
        for method in ("limit", "shared_limit", "exempt"):
            assert f"limiter.{method}" in text


def test_flask_limiter_and_our_shadow_run_in_parallel_and_counts_go_on() -> None:
    import flask
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    from ratebound.web.flask import RateLimits

    app = flask.Flask("example")
    theirs = Limiter(get_remote_address, app=app, storage_uri="memory://")
    ours = RateLimits(app, switch="shadow")

    @app.route("/")
    @theirs.limit("3/hour")
    @ours.limit("6/hour")
    def view() -> str:
        return ""

    client = app.test_client()
    assert [client.get("/").status_code for _ in range(5)] == [200] * 3 + [429] * 2
    theirs.enabled = False
    ours.gate.switch = "on"
    assert [client.get("/").status_code for _ in range(3)] == [200, 429, 429]  # ours has counted all five


def test_slowapi_and_our_shadow_run_in_parallel_and_counts_go_on() -> None:
    from fastapi import FastAPI, Request
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from slowapi.util import get_remote_address

    from ratebound.web.fastapi import RateLimits

    app = FastAPI()
    app.state.limiter = theirs = Limiter(key_func=get_remote_address)
    app.exception_handler(RateLimitExceeded)(_rate_limit_exceeded_handler)
    ours = RateLimits(app=app, switch="shadow")

    @app.get("/")
    @theirs.limit("3/hour")
    @ours.limit("6/hour")
    async def view(request: Request) -> str:
        return ""

    async def statuses(times: int) -> list[int]:
        return [answer.status for answer in await several(app, "/", times)]

    async def all_of_them() -> None:
        assert await statuses(5) == [200] * 3 + [429] * 2
        theirs.enabled = False
        ours.gate.switch = "on"
        assert await statuses(3) == [200, 429, 429]

    asyncio.run(all_of_them())
