"""The check endpoint: whom it answers, which request it takes a check for, and what it answers."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ratebound import MemoryStorage
from ratebound.errors import StorageError
from ratebound.policy import PolicyFile, RequestView, Verdict, read_policy
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.check import ProxyCheck
from ratebound.service.engine import Engine
from ratebound.service.http1 import HttpRequest
from ratebound.service.proxied_request import WIRE, BadDescription, ProxiedRequest
from ratebound.testing import FakeClock
from tests.proxies import Reply, WatchedEngine
from tests.servers import Server

TWO = """
trusted: [10.0.0.0/8]
rules:
  - {name: all, match: {paths: [/**]}, by: address, limits: 2/hour}
  - {name: post, match: {paths: [/login], methods: [POST]}, by: address, limits: 1/hour}
"""
NGINX = {"x-original-uri": "/a?b=c", "x-original-method": "POST", "x-real-ip": "192.0.2.7", "host": "api.example"}
FORWARDED = {
    "x-forwarded-uri": "/a?b=c",
    "x-forwarded-method": "POST",
    "x-forwarded-host": "api.example",
    "x-forwarded-proto": "https",
    "x-forwarded-for": "192.0.2.7",
    "host": "127.0.0.1:4290",
}
PATH = {"x-forwarded-for": "192.0.2.7", "host": "api.example", "x-forwarded-proto": "https"}
Lines = dict[str, str] | list[tuple[str, str]]


def asked(
    headers: Lines, target: str = "/v1/check", *, method: str = "GET", peer: str | None = "127.0.0.1"
) -> HttpRequest:
    lines = headers.items() if isinstance(headers, dict) else headers
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in lines]
    return HttpRequest(method, target.encode("latin-1"), pairs, b"", peer)


def engine_of(policy: str = TWO, **options: Any) -> WatchedEngine:
    return WatchedEngine(read_policy(policy), storage=MemoryStorage(clock=FakeClock()), **options)


def reply_of(check: ProxyCheck, request: HttpRequest) -> Reply:
    answer = check(request)
    if not isinstance(answer, bytes):
        answer = asyncio.run(_awaited(answer))
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in fields}
    assert len(headers) == len(fields)
    assert int(headers["content-length"]) == len(body)
    return Reply(int(first.split()[1]), headers, body)


async def _awaited(answer: Any) -> bytes:
    found: bytes = await answer
    return found


@pytest.mark.parametrize(
    ("headers", "target", "method", "description"),
    [
        (NGINX, "/v1/check", "GET", "nginx"),
        (FORWARDED, "/v1/check", "GET", "forwarded"),
        (FORWARDED, "/v1/check?client=query", "GET", "forwarded"),
        (PATH, "/v1/check/a?b=c", "POST", "path"),
    ],
)
def test_the_request_is_seen_as_the_proxy_saw_it(
    headers: dict[str, str], target: str, method: str, description: str
) -> None:
    for setting in ("auto", description):
        engine = engine_of()
        reply = reply_of(
            ProxyCheck(engine, headers=setting), asked({**headers, "x-api-key": "k"}, target, method=method)
        )
        assert reply.status == 200
        (seen,) = engine.seen
        assert seen[:4] == ("POST", "/a", "b=c", "api.example")
        assert seen.scheme == ("http" if description == "nginx" else "https")
        assert seen.peer == "192.0.2.7"
        assert seen.headers == [("host", "api.example"), ("x-api-key", "k")]


def without(headers: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in names}


def doubled(headers: dict[str, str], name: str, value: str = "/other") -> Lines:
    return [*headers.items(), (name, value)]


@pytest.mark.parametrize(
    ("headers", "target", "said"),
    [
        ({**NGINX, **FORWARDED}, "/v1/check", "X-Original-URI and X-Forwarded-Uri"),
        ({**FORWARDED, "x-original-uri": "/a?b=c"}, "/v1/check", "X-Original-URI and X-Forwarded-Uri"),
        ({**FORWARDED, "x-original-uri": ""}, "/v1/check", "X-Original-URI and X-Forwarded-Uri"),
        ({**FORWARDED, "x-original-method": "GET"}, "/v1/check", "X-Original-URI and X-Forwarded-Uri"),
        ({**NGINX, "x-forwarded-uri": "/free"}, "/v1/check", "X-Original-URI and X-Forwarded-Uri"),
        ({**NGINX, "x-forwarded-method": "GET"}, "/v1/check", "X-Original-URI and X-Forwarded-Uri"),
        (NGINX, "/v1/check/a", "X-Original-URI and a path below /v1/check"),
        (NGINX, "/v1/check/", "X-Original-URI and a path below /v1/check"),
        (FORWARDED, "/v1/check/a", "X-Forwarded-Uri and a path below /v1/check"),
        ({**PATH, "x-forwarded-method": "GET"}, "/v1/check/a", "X-Forwarded-Uri and a path below /v1/check"),
    ],
)
def test_two_descriptions_are_refused_and_the_setting_is_named(headers: dict[str, str], target: str, said: str) -> None:
    engine = engine_of()
    reply = reply_of(ProxyCheck(engine), asked(headers, target))
    assert (reply.status, engine.seen) == (400, [])
    detail = json.loads(reply.body)["detail"]
    assert said in detail
    assert "Set check_headers to nginx, forwarded or path." in detail
    assert "x-ratelimit-decision" not in reply.headers


@pytest.mark.parametrize(
    ("headers", "target", "said"),
    [
        (doubled(NGINX, "x-original-uri"), "/v1/check", "X-Original-URI was sent twice"),
        (doubled(NGINX, "x-original-method"), "/v1/check", "X-Original-Method was sent twice"),
        (doubled(NGINX, "x-real-ip"), "/v1/check", "X-Real-IP was sent twice"),
        (doubled(NGINX, "host"), "/v1/check", "Host was sent twice"),
        (doubled(FORWARDED, "x-forwarded-uri"), "/v1/check", "X-Forwarded-Uri was sent twice"),
        (doubled(FORWARDED, "x-forwarded-uri", "/a?b=c"), "/v1/check", "X-Forwarded-Uri was sent twice"),
        (doubled(FORWARDED, "x-forwarded-method"), "/v1/check", "X-Forwarded-Method was sent twice"),
        (doubled(FORWARDED, "x-forwarded-host"), "/v1/check", "X-Forwarded-Host was sent twice"),
        (doubled(FORWARDED, "x-forwarded-proto"), "/v1/check", "X-Forwarded-Proto was sent twice"),
        (doubled(PATH, "host"), "/v1/check/a", "Host was sent twice"),
        (without(NGINX, "x-original-method"), "/v1/check", "X-Original-URI and X-Original-Method are both needed"),
        (without(NGINX, "x-original-uri"), "/v1/check", "X-Original-URI and X-Original-Method are both needed"),
        ({**NGINX, "x-original-uri": ""}, "/v1/check", "X-Original-URI and X-Original-Method are both needed"),
        (without(NGINX, "x-real-ip"), "/v1/check", "X-Real-IP is missing"),
        ({**NGINX, "x-real-ip": ""}, "/v1/check", "X-Real-IP is missing"),
        (without(FORWARDED, "x-forwarded-method"), "/v1/check", "X-Forwarded-Uri and X-Forwarded-Method are both"),
        (without(FORWARDED, "x-forwarded-for"), "/v1/check", "X-Forwarded-For is missing"),
        ({**FORWARDED, "x-forwarded-for": "192.0.2.1, "}, "/v1/check", "X-Forwarded-For ends without an address"),
        ({**FORWARDED, "x-forwarded-for": ""}, "/v1/check", "X-Forwarded-For ends without an address"),
        (without(PATH, "x-forwarded-for"), "/v1/check/a", "X-Forwarded-For is missing"),
        ({"host": "x"}, "/v1/check", "No request is described"),
        ({"host": "x"}, "/v1/check?x=/y", "No request is described"),
    ],
)
def test_a_description_that_is_not_whole_is_refused(headers: Lines, target: str, said: str) -> None:
    engine = engine_of()
    reply = reply_of(ProxyCheck(engine), asked(headers, target))
    assert (reply.status, engine.seen) == (400, [])
    assert said in json.loads(reply.body)["detail"]


@pytest.mark.parametrize(
    ("headers", "target"),
    [
        ({**NGINX, "x-original-uri": "/" * 8193}, "/v1/check"),
        ({**FORWARDED, "x-forwarded-uri": "/" * 8193}, "/v1/check"),
        (PATH, "/v1/check" + "/" * 8193),
    ],
)
def test_a_path_that_takes_long_to_read_is_refused(headers: Lines, target: str) -> None:
    engine = engine_of()
    reply = reply_of(ProxyCheck(engine), asked(headers, target))
    assert (reply.status, engine.seen) == (414, [])
    query = {**FORWARDED, "x-forwarded-uri": "/" * 8192 + "?" + "a" * 20_000}
    assert reply_of(ProxyCheck(engine), asked(query)).status == 200


@pytest.mark.parametrize(
    ("setting", "headers", "target"),
    [
        ("nginx", {**FORWARDED, **NGINX, "x-forwarded-uri": "/free"}, "/v1/check/free"),
        ("nginx", doubled({**NGINX, "x-forwarded-uri": "/free"}, "x-forwarded-uri"), "/v1/check"),
        ("forwarded", {**NGINX, **FORWARDED, "x-original-uri": "/free", "x-real-ip": "203.0.113.9"}, "/v1/check/free"),
        ("forwarded", doubled({**FORWARDED, "x-original-uri": "/free"}, "x-original-uri"), "/v1/check"),
        ("path", {**NGINX, **FORWARDED, "x-forwarded-uri": "/free", "x-original-uri": "/free"}, "/v1/check/a?b=c"),
    ],
)
def test_a_setting_makes_other_descriptions_headers_like_others(setting: str, headers: Lines, target: str) -> None:
    engine = engine_of()
    assert reply_of(ProxyCheck(engine, headers=setting), asked(headers, target)).status == 200
    (seen,) = engine.seen
    assert (seen.path, seen.query, seen.peer) == ("/a", "b=c", "192.0.2.7")


@pytest.mark.parametrize("setting", ["nginx", "forwarded", "path"])
def test_a_setting_never_falls_back_on_another_description(setting: str) -> None:
    others = {
        "nginx": (FORWARDED, "/v1/check/a"),
        "forwarded": (NGINX, "/v1/check/a"),
        "path": ({**NGINX, **FORWARDED}, "/v1/check?/a"),
    }
    headers, target = others[setting]
    engine = engine_of()
    assert reply_of(ProxyCheck(engine, headers=setting), asked(headers, target)).status == 400
    assert engine.seen == []


@pytest.mark.parametrize(
    ("description", "sent", "left"),
    [
        ("forwarded", ["203.0.113.9, 10.0.0.1"], ["203.0.113.9"]),
        ("forwarded", ["203.0.113.9", "10.0.0.1"], ["203.0.113.9"]),
        (
            "forwarded",
            ["203.0.113.1, 203.0.113.2", "203.0.113.9,10.0.0.1"],
            ["203.0.113.1, 203.0.113.2", "203.0.113.9"],
        ),
        ("path", ["203.0.113.9,\t10.0.0.1 "], ["203.0.113.9"]),
        ("nginx", ["203.0.113.9"], ["203.0.113.9"]),
    ],
)
def test_the_policy_finds_the_client_behind_its_own_proxies(description: str, sent: list[str], left: list[str]) -> None:
    """The peer 10.0.0.1 is a proxy that the policy trusts: what remains of X-Forwarded-For says for whom it comes."""
    base = {"nginx": {**NGINX, "x-real-ip": "10.0.0.1"}, "forwarded": FORWARDED, "path": PATH}[description]
    lines = [*without(base, "x-forwarded-for").items(), *(("x-forwarded-for", value) for value in sent)]
    engine = engine_of()
    check = ProxyCheck(engine)
    target = "/v1/check/a" if description == "path" else "/v1/check"
    statuses = [reply_of(check, asked(lines, target)).headers["x-ratelimit-decision"] for _ in range(3)]
    assert statuses == ["allow", "allow", "deny"]
    (seen, *_) = engine.seen
    assert seen.peer == "10.0.0.1"
    assert [value for name, value in seen.headers if name == "x-forwarded-for"] == left
    other = [(name, value.replace("203.0.113.9", "203.0.113.10")) for name, value in lines]
    assert reply_of(check, asked(other, target)).status == 200


def test_the_first_address_does_not_count_if_the_proxy_in_front_is_not_trusted() -> None:
    check = ProxyCheck(engine_of())
    lines = [{**FORWARDED, "x-forwarded-for": f"203.0.113.{number}, 192.0.2.7"} for number in range(3)]
    assert [reply_of(check, asked(one)).status for one in lines] == [200, 200, 429]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/a%2Fb", "/a%2Fb", ""),
        ("//x//y?", "//x//y", ""),
        ("/a/../../v1/hit", "/a/../../v1/hit", ""),
        ("/a;b?c?d=e", "/a;b", "c?d=e"),
        ("/", "/", ""),
        ("/\xc3\xbc", "/\xc3\xbc", ""),
    ],
)
@pytest.mark.parametrize("description", ["nginx", "forwarded", "path"])
def test_paths_are_raw(description: str, target: str, path: str, query: str) -> None:
    if description == "path":
        request = asked(PATH, f"/v1/check{target}")
    else:
        names = {"nginx": (NGINX, "x-original-uri"), "forwarded": (FORWARDED, "x-forwarded-uri")}
        headers, name = names[description]
        request = asked({**headers, name: target})
    engine = engine_of()
    reply_of(ProxyCheck(engine), request)
    (seen,) = engine.seen
    assert (seen.path, seen.query) == (path, query)


def test_an_allowed_check_has_no_body_and_tells_the_limits() -> None:
    reply = reply_of(ProxyCheck(engine_of()), asked(FORWARDED))
    assert (reply.status, reply.body) == (200, b"")
    assert without(reply.headers, "date") == {
        "ratelimit-policy": '"all/hour";q=2;w=3600',
        "ratelimit": '"all/hour";r=1;t=3600',
        "x-ratelimit-decision": "allow",
        "content-length": "0",
    }
    scripted = reply_of(ProxyCheck(engine_of()), asked({**FORWARDED, "origin": "https://shop.example"}))
    assert scripted.headers["access-control-expose-headers"] == "RateLimit-Policy, RateLimit"


@pytest.mark.parametrize(
    ("headers", "target", "denied_status", "expected"),
    [
        (NGINX, "/v1/check", None, 403),
        (FORWARDED, "/v1/check", None, 429),
        (PATH, "/v1/check/a", None, 429),
        (NGINX, "/v1/check", 429, 429),
        (FORWARDED, "/v1/check", 403, 403),
    ],
)
def test_a_denial_is_answered_in_full(
    headers: dict[str, str], target: str, denied_status: int | None, expected: int
) -> None:
    check = ProxyCheck(engine_of(), denied_status=denied_status)
    for _ in range(2):
        assert reply_of(check, asked(headers, target)).status == 200
    reply = reply_of(check, asked(headers, target))
    assert reply.status == expected
    assert reply.headers["retry-after"] == "3600"
    assert reply.headers["ratelimit"] == '"all/hour";r=0;t=3600'
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["x-ratelimit-decision"] == "deny"
    assert reply.headers["x-ratelimit-status"] == "429"
    assert json.loads(reply.body)["violated-policies"] == ["all/hour"]


def test_the_status_and_the_format_of_a_denial_are_the_policys() -> None:
    engine = engine_of("rejection: {format: text, status: 420}\nrules: [{name: a, limits: 1/hour}]")
    check = ProxyCheck(engine)
    statuses = [reply_of(check, asked(FORWARDED)) for _ in range(2)]
    assert [reply.status for reply in statuses] == [200, 420]
    assert statuses[1].headers["content-type"].startswith("text/plain")
    blocked = ProxyCheck(engine_of("rules: [{name: a, limits: deny}]"))
    assert reply_of(blocked, asked(FORWARDED)).status == 403


@pytest.mark.parametrize("kind", ["mode: shadow", "mode: shadow, stage: early"])
def test_a_rule_in_shadow_is_told_as_such(kind: str) -> None:
    check = ProxyCheck(engine_of(f"rules: [{{name: a, limits: 1/hour, by: address, {kind}}}]"))
    words = [reply_of(check, asked(FORWARDED)).headers["x-ratelimit-decision"] for _ in range(2)]
    assert words == ["allow", "shadow"]


@pytest.mark.parametrize(
    ("failure", "status", "word"),
    [("open", 200, "failopen"), ("closed", 503, "deny"), ("local", 200, "allow"), ("raise", 503, None)],
)
def test_a_storage_that_is_away_is_told_by_its_failure_mode(failure: str, status: int, word: str | None) -> None:
    """Only where the policy says so is the answer a 5xx, which Envoy takes for an error."""
    policy = f"failure: {failure}\nrules: [{{name: a, limits: 10/hour, by: address}}]"

    async def asking() -> Reply:
        engine = Engine(read_policy(policy), storage="redis://127.0.0.1:1/0", deadline=0.5)
        answer = ProxyCheck(engine)(asked(FORWARDED))
        assert not isinstance(answer, bytes)
        found = await answer
        await engine.close()
        return reply_of(lambda _: found, asked(FORWARDED))  # type: ignore[arg-type]

    reply = asyncio.run(asking())
    assert reply.status == status
    assert reply.headers.get("x-ratelimit-decision") == word
    if status == 503:
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.headers["content-type"] == "application/problem+json"


def test_checks_on_redis_are_awaited_and_answered_alike(redis_url_server: Server) -> None:
    policy = f"rules: [{{name: a{uuid4().hex}, limits: 1/hour, by: address}}]"

    async def asking() -> list[bytes]:
        engine = Engine(read_policy(policy), storage=redis_url_server.url)
        check = ProxyCheck(engine)
        answers = []
        for _ in range(2):
            answer = check(asked(FORWARDED))
            assert not isinstance(answer, bytes)
            answers.append(await answer)
        await engine.close()
        return answers

    first, second = asyncio.run(asking())
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nX-RateLimit-Decision: allow\r\n" in first
    assert second.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")


def test_a_queue_never_makes_a_check_wait() -> None:
    check = ProxyCheck(engine_of("rules: [{name: a, by: address, limits: 1/minute burst 5 leaky-bucket}]"))
    assert [reply_of(check, asked(FORWARDED)).status for _ in range(2)] == [200, 429]


def test_early_and_late_rules_are_both_told() -> None:
    policy = "rules: [{name: a, stage: early, by: address, limits: 5/hour}, {name: b, by: address, limits: 7/hour}]"
    reply = reply_of(ProxyCheck(engine_of(policy)), asked(FORWARDED))
    assert reply.headers["ratelimit"] == '"a/hour";r=4;t=3600, "b/hour";r=6;t=3600'


@pytest.mark.parametrize(
    ("proxies", "peer", "is_trusted"),
    [
        (None, "127.0.0.1", True),
        (None, "127.3.2.1", True),
        (None, "::1", True),
        (None, "::ffff:127.0.0.1", True),
        (None, "10.0.0.1", False),
        (None, None, True),
        (["10.0.0.0/8"], None, False),
        (["10.0.0.0/8"], "10.9.8.7", True),
        (["10.0.0.0/8"], "127.0.0.1", False),
        (["unix"], None, True),
        (["unix"], "127.0.0.1", False),
        ([], "127.0.0.1", False),
    ],
)
def test_only_trusted_proxies_may_ask(proxies: list[str] | None, peer: str | None, is_trusted: bool) -> None:
    engine = engine_of()
    options = {} if proxies is None else {"proxies": proxies}
    check = ProxyCheck(engine, **options)  # type: ignore[arg-type]
    for _ in range(2):
        reply = reply_of(check, asked(FORWARDED, peer=peer))
        assert reply.status == (200 if is_trusted else 403)
    if not is_trusted:
        assert engine.seen == []
        assert reply.headers["content-type"] == "application/problem+json"
        who = "Unix sockets are not trusted" if peer is None else f"{peer} is not a trusted proxy"
        assert json.loads(reply.body)["detail"].startswith(f"{who}. Add ")
        assert "trusted_proxies" in json.loads(reply.body)["detail"]


def test_a_token_is_needed_in_addition_and_never_reaches_the_policy() -> None:
    token = "0123456789abcdef"
    engine = engine_of()
    check = ProxyCheck(engine, tokens=BearerTokens([token]))
    right = {**FORWARDED, "x-ratebound-token": token}
    for wrong in (
        FORWARDED,
        {**FORWARDED, "x-ratebound-token": "x"},
        {**FORWARDED, "authorization": f"Bearer {token}"},
    ):
        reply = reply_of(check, asked(wrong))
        assert (reply.status, engine.seen) == (403, [])
        assert "X-Ratebound-Token" in json.loads(reply.body)["detail"]
        assert token not in reply.body.decode()
    assert reply_of(check, asked(doubled(right, "x-ratebound-token", token))).status == 400
    assert reply_of(check, asked(right, peer="10.0.0.1")).status == 403
    assert engine.seen == []
    assert reply_of(check, asked(right)).status == 200
    assert token not in str(engine.seen)
    assert reply_of(ProxyCheck(engine), asked(right)).status == 200  # none is needed
    assert token not in str(engine.seen)


def test_each_reason_of_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    check = ProxyCheck(engine_of())
    for _ in range(3):
        reply_of(check, asked({}))
        reply_of(check, asked(FORWARDED, peer="10.0.0.1"))
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "a check was refused with status 400",
        "a check was refused with status 403",
    ]


SLOTS = "rules: [{name: a, by: address, limits: 3 concurrent}]"


def test_slots_that_nobody_releases_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    ProxyCheck(engine_of())
    assert caplog.records == []
    ProxyCheck(engine_of(SLOTS))
    assert ["each slot that a check takes ends with its lease" in record.getMessage() for record in caplog.records] == [
        True
    ]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("limits: 3/hour, charge: failure", "charges by result"),
        ("limits: 3 distinct account/hour, distinct: {account: body.name}", "reads the body"),
    ],
)
def test_what_a_proxy_does_not_tell_is_warned_of(rule: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    ProxyCheck(engine_of(f"rules: [{{name: a, by: address, {rule}}}]"))
    (record,) = caplog.records
    assert said in record.getMessage()


def test_a_policy_that_is_loaded_later_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(TWO)
    file = PolicyFile(path, every=0)
    check = ProxyCheck(Engine(file))
    assert caplog.records == []
    path.write_text(SLOTS)
    with caplog.at_level(logging.WARNING):
        file.reload()
    assert any("each slot that a check takes" in record.getMessage() for record in caplog.records)
    assert reply_of(check, asked(FORWARDED)).status == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"headers": "apache"}, "unknown headers 'apache': expected one of auto, nginx, forwarded, path"),
        ({"denied_status": 399}, "the denied status must be an error status, 400 to 599, not 399"),
        ({"denied_status": 600}, "not 600"),
        ({"proxies": ["0.0.0.0/0"]}, "trusts everyone"),
        ({"proxies": "10.0.0.0/8"}, "expected a list"),
        ({"proxies": ["ten"]}, "ten"),
    ],
)
def test_wrong_options_raise(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ProxyCheck(engine_of(), **options)


@pytest.mark.parametrize("status", [400, 599])
def test_every_error_status_may_stand_for_a_denial(status: int) -> None:
    check = ProxyCheck(engine_of("rules: [{name: a, limits: deny}]"), denied_status=status)
    assert reply_of(check, asked(FORWARDED)).status == status


def test_methods_may_be_anything() -> None:
    engine = engine_of()
    reply_of(ProxyCheck(engine), asked({**FORWARDED, "x-forwarded-method": "PURGE"}))
    assert engine.seen[0].method == "PURGE"


def test_other_styles_of_headers_are_sent() -> None:
    policy = "headers: x-ratelimit\nrules: [{name: a, by: address, limits: 3/hour}]"
    reply = reply_of(ProxyCheck(engine_of(policy)), asked(FORWARDED))
    assert (reply.headers["x-ratelimit-limit"], reply.headers["x-ratelimit-remaining"]) == ("3", "2")


def test_the_log_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    check = ProxyCheck(engine_of())
    for number in range(1100):
        assert reply_of(check, asked(FORWARDED, peer=f"10.0.{number // 250}.{number % 250}")).status == 403
    assert len(caplog.records) == 1024


class BrokenEngine(WatchedEngine):
    """An engine whose storage is found away without a pause."""

    def check_now(self, request: RequestView) -> Verdict | None:
        raise StorageError("away")


def test_a_storage_that_is_found_away_at_once_is_a_503() -> None:
    check = ProxyCheck(BrokenEngine(read_policy(TWO)))
    assert reply_of(check, asked(FORWARDED)).status == 503


def test_functions_of_the_policy_see_a_request_without_a_framework() -> None:
    request = ProxiedRequest(asked({**FORWARDED, "origin": "https://shop.example"}), "auto")
    view = RequestView.on_demand(WIRE, request, request.method, request.peer)
    assert (view.path, view.is_scripted, view.path_params, view.session, view.state) == ("/a", True, {}, None, None)
    assert (view.request is request, view.no_user) == (True, "")


def test_headers_are_decoded_only_if_somebody_looks() -> None:
    request = ProxiedRequest(asked({**FORWARDED, "cookie": "a=b"}), "auto")
    assert WIRE.headers(request) == [("host", "api.example"), ("cookie", "a=b")]
    assert (WIRE.scheme(request), WIRE.host(request), WIRE.query(request)) == ("https", "api.example", "b=c")
    assert not WIRE.is_scripted(request)
    with pytest.raises(BadDescription):
        ProxiedRequest(asked({}), "auto")
