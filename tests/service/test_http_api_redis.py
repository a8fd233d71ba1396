"""The HTTP API on Redis: one trip for many hits, the same answers, and what is said while the storage is away."""

import asyncio
import uuid
from typing import Any

from ratebound import AsyncLimiter
from ratebound.policy import Policy, Rule
from ratebound.service.http1 import HttpRequest
from tests.servers import Server
from tests.service.http_calls import JSON, Response, apis, called, run


def a_name() -> str:
    return uuid.uuid4().hex


def scripts(server: Server) -> int:
    """How many scripts a server has run."""
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if "eval" in name or "fcall" in name)


def test_an_array_of_hits_is_one_trip(redis_url_server: Server) -> None:
    async def main() -> None:
        async with apis(redis_url_server.url) as (api,):
            key = a_name()
            await called(api, "/v1/hit", {"key": key, "limits": "100/minute"})
            before = scripts(redis_url_server)
            asked = [{"key": f"{key}{number}", "limits": "100/minute; 9 concurrent"} for number in range(49)]
            found = await called(api, "/v1/hit", [*asked, {"key": 7}, *asked])
            assert [entry.get("remaining") for entry in found.json] == [99] * 49 + [None] + [98] * 49
            assert scripts(redis_url_server) - before == 1

    run(main)


def test_two_instances_and_a_limiter_share_counts_and_tokens(redis_url_server: Server) -> None:
    async def main() -> None:
        async with apis(redis_url_server.url, 2) as (one, two):
            key = a_name()
            asked = {
                "key": key,
                "limits": "100/minute; 5 concurrent; 9 distinct account/hour",
                "values": {"account": "a"},
            }
            reserved = (await called(one, "/v1/reserve", {**asked, "cost": 40})).json["reservation"]
            async with AsyncLimiter("100/minute", storage=redis_url_server.url) as limiter:
                assert (await limiter.hit(key)).remaining == 59
                answers = await asyncio.gather(
                    *(called(api, "/v1/commit", {"reservation": reserved, "cost": 10}) for api in (one, two) * 4)
                )
                assert sorted(answer.status for answer in answers) == [200] + [409] * 7
                assert (await limiter.peek(key)).remaining == 89
            usage = (await called(two, "/v1/usage", {"key": key, "limits": asked["limits"]})).json["usage"]
            assert [entry["used"] for entry in usage] == [11, 0, 1]

    run(main)


def test_a_caller_that_goes_away_does_not_stop_a_commit(redis_url_server: Server) -> None:
    async def main() -> None:
        async with apis(redis_url_server.url) as (api,):
            asked = {"key": a_name(), "limits": "100/minute"}
            token = (await called(api, "/v1/reserve", {**asked, "cost": 40})).json["reservation"]
            task = asyncio.ensure_future(called(api, "/v1/commit", {"reservation": token, "cost": 1}))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            while (remaining := (await called(api, "/v1/peek", asked)).json["remaining"]) == 60:
                await asyncio.sleep(0.005)
            assert remaining == 99

    run(main)


def test_without_the_storage_decisions_go_on_and_the_rest_is_503(fresh_redis: Server) -> None:
    async def main() -> None:
        strict = Policy(rules=[Rule("all", "5/minute", by="address")], failure="raise")
        async with apis(fresh_redis.url, policy=strict, deadline=0.2) as (api,):
            asked = {"key": "k", "limits": "100/minute; 5 concurrent"}
            hit = (await called(api, "/v1/hit", {**asked, "settle": True})).json
            reserved = (await called(api, "/v1/reserve", asked)).json["reservation"]
            fresh_redis.kill()
            alone = (await called(api, "/v1/hit", {**asked, "settle": True})).json
            assert alone["allowed"]
            assert alone["degraded"]
            assert (await called(api, "/v1/settle", {"settle": alone["settle"], "cost": 0})).status == 200
            assert (await called(api, "/v1/settle", {"settle": alone["settle"], "cost": 0})).status == 409
            for path, body in (
                ("/v1/settle", {"settle": hit["settle"], "cost": 1}),
                ("/v1/commit", {"reservation": reserved, "cost": 1}),
                ("/v1/cancel", {"reservation": reserved}),
                ("/v1/reset", {"key": "k", "limits": "100/minute"}),
                ("/v1/reset", {"identity": "203.0.113.7"}),
                ("/v1/decide", {"path": "/", "address": "203.0.113.7"}),
            ):
                away(await called(api, path, body))
                (entry,) = (await called(api, path, [body])).json
                assert entry["status"] == 503
            usage = await called(api, "/v1/usage", asked)
            assert usage.status == 200
            assert usage.json["usage"][0]["degraded"]
            assert (await called(api, "/v1/release", {"release": hit["release"]})).status in (200, 503)

    run(main)


def away(found: Response) -> None:
    assert found.status == 503
    assert found.headers["retry-after"] == "1"
    assert found.headers["content-type"] == "application/problem+json"
    assert "redis" not in found.body.decode().lower()


def test_a_call_that_is_dropped_before_it_begins_leaves_nothing_behind(redis_url_server: Server) -> None:
    async def main() -> None:
        async with apis(redis_url_server.url) as (api,):
            request = HttpRequest("POST", b"/v1/peek", JSON, b'[{"key":"k","limits":"1/minute"},{"key":1}]', None)
            answer = api.routes[b"/v1/peek"](request)
            assert not isinstance(answer, bytes)
            task = asyncio.ensure_future(answer)
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()

    run(main)
