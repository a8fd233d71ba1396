"""The examples of those we are compared with, rewritten: they run, do the same, and are no longer."""

import asyncio
import inspect
import re
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.web.drivers import fetch
from tests.web.suite import Answer

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
# Lines of slowapi's two examples, in the README of its repository: the installed one has none any more. Theirs leave
# out the imports of Request and PlainTextResponse, ours do not.
SLOWAPI = {"Starlette": 10, "FastAPI": 10}


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def examples(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", section(name), re.DOTALL | re.MULTILINE)


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


def test_the_example_of_flask_limiters_readme_does_the_same_here() -> None:
    (ours,) = examples("Flask-Limiter")
    client = run(ours)["app"].test_client()
    assert [client.get("/slow").status_code for _ in range(2)] == [200, 429]
    assert [client.get("/fast").status_code for _ in range(2)] == [200, 429]  # 1 per second
    assert [client.get("/ping").text for _ in range(5)] == ["PONG"] * 5
    told = client.get("/fast").headers
    assert told["RateLimit-Policy"] == '"example.fast/minute";q=2;w=60, "example.fast/second";q=1;w=1'
    assert told["Retry-After"] == "1"


@pytest.mark.parametrize(("place", "framework"), [(0, "Starlette"), (1, "FastAPI")])
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


@pytest.mark.parametrize(
    "name", ["Flask-Limiter", "slowapi", "fastapi-limiter", "django-ratelimit", "Gateways and proxies"]
)
def test_every_table_has_three_columns(name: str) -> None:
    rows = [line for line in section(name).splitlines() if line.startswith("|")]
    assert len(rows) > 10
    assert {row.count("|") for row in rows} == {4}


def test_every_option_of_flask_limiter_and_slowapi_is_on_the_page() -> None:
    from flask_limiter import Limiter as FlaskLimiter
    from slowapi import Limiter as SlowLimiter

    def said(option: str, text: str) -> bool:
        begun = re.findall(r"(\w+)…", text)  # `in_memory_fallback…` is all that begins so
        return bool(re.search(rf"\b{option}\b", text)) or any(option.startswith(one) for one in begun)

    for kind, name in ((FlaskLimiter, "Flask-Limiter"), (SlowLimiter, "slowapi")):
        text = section(name)
        for function in (kind.__init__, kind.limit, kind.shared_limit):
            for option in inspect.signature(function).parameters:
                short = re.sub("^(default|application)_limits_.*", r"\1_limits", option)
                if short not in ("self", "limit_value", "app"):
                    assert said(short, text), f"{name}: {option}"
        for method in ("limit", "shared_limit", "exempt"):
            assert f"limiter.{method}" in text
