"""The commands of RESP: redis-cell's, ours, and what clients send by themselves. No sockets: commands in, bytes out."""

import asyncio
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import Limiter, MemoryStorage
from ratebound.policy import read_policy
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.engine import Engine
from ratebound.service.resp_commands import KNOWN, MAX_KEY, RespCommands
from ratebound.testing import FakeClock
from tests.service.resp_server import POLICY, TOKEN

SECOND = 1_000_000
MILLISECOND = 1000


class Caller:
    """One connection to the commands of an engine in memory."""

    def __init__(
        self, clock: FakeClock | None = None, tokens: BearerTokens | None = None, policy: dict[str, Any] = POLICY
    ) -> None:
        self.storage = MemoryStorage(clock=clock)
        self.commands = RespCommands(Engine(read_policy(policy), storage=self.storage), tokens or BearerTokens())
        self.session = self.commands.new_session()

    def wire(self, *words: Any) -> bytes:
        """Return the bytes of the answer to a command."""
        given = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        answer = self.commands.answer(self.session, given)
        return answer if isinstance(answer, bytes) else asyncio.run(answer)

    def ask(self, *words: Any) -> Any:
        """Return the answer as a client reads it; an error as its text."""
        reader = hiredis.Reader(encoding="utf-8")
        reader.feed(self.wire(*words))
        answer = reader.gets()
        assert reader.gets() is False  # exactly one answer
        return str(answer) if isinstance(answer, hiredis.ReplyError) else answer

    def asked(self, *words: Any) -> dict[str, Any]:
        """Return an answer of RESP2 as a mapping."""
        found = self.ask(*words)
        assert isinstance(found, list), found
        return dict(zip(found[::2], found[1::2], strict=True))


@pytest.fixture
def caller(clock: FakeClock) -> Caller:
    return Caller(clock)


# CL.THROTTLE


def test_cl_throttle_answers_as_redis_cell_does(caller: Caller, clock: FakeClock) -> None:
    """Five at once, one more each second: quantity, seconds since the start, and the answer."""
    for quantity, at, answer in [
        (6, 0, [1, 5, 5, -1, 0]),
        (1, 0, [0, 5, 4, -1, 1]),
        (1, 0, [0, 5, 3, -1, 2]),
        (1, 0, [0, 5, 2, -1, 3]),
        (1, 0, [0, 5, 1, -1, 4]),
        (1, 0, [0, 5, 0, -1, 5]),
        (1, 0, [1, 5, 0, 1, 5]),
        (0, 0, [0, 5, 0, -1, 5]),
        (1, 3, [0, 5, 2, -1, 3]),
        (1, 3.1, [0, 5, 1, -1, 4]),
        (1, 4, [0, 5, 1, -1, 4]),
        (1, 8, [0, 5, 4, -1, 1]),
        (1, 9.5, [0, 5, 4, -1, 1]),
        (0, 9.5, [0, 5, 4, -1, 1]),
        (2, 9.5, [0, 5, 2, -1, 3]),
        (5, 9.5, [1, 5, 2, 3, 3]),
    ]:
        clock.now = FakeClock().now + round(at * SECOND)
        assert caller.ask("CL.THROTTLE", "user:42", 4, 1, 1, quantity) == answer


def model(now: int, arrival: int, burst: int, interval: int, quantity: int) -> tuple[int, list[int]]:
    """Return the new arrival time and the answer of redis-cell, all times in microseconds."""
    tolerance = interval * burst
    increment = interval * quantity
    new = max(now, arrival) + increment
    if new - tolerance > now:
        retry = new - tolerance - now if increment <= tolerance else None
        ttl = max(arrival - now, 0)
        limited = 1
    else:
        arrival, ttl, retry, limited = new, new - now, None, 0
    remaining = (tolerance - ttl) // interval
    return arrival, [limited, burst, remaining, -1 if retry is None else -(-retry // SECOND), -(-ttl // SECOND)]


@given(
    st.integers(0, 50),
    st.integers(1, 1000),
    st.integers(1, 100),
    st.sampled_from([1, MILLISECOND]),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 60)), min_size=1, max_size=30),
)
def test_cl_throttle_equals_a_model_of_redis_cell(
    max_burst: int, per_period: int, factor: int, step: int, calls: list[tuple[int, int]]
) -> None:
    clock = FakeClock()
    caller = Caller(clock)
    # A period in which each unit takes whole microseconds: redis-cell rounds other rates down to nanoseconds.
    period = -(-per_period * factor // 1000)
    while period * SECOND % per_period:
        period += 1
    interval = period * SECOND // per_period
    arrival = clock.now
    for pause, quantity in calls:
        clock.now += pause * step * max(interval // 2000, 1)
        arrival, expected = model(clock.now, arrival, max_burst + 1, interval, quantity)
        assert caller.ask("cl.throttle", "k", max_burst, per_period, period, quantity) == expected


def test_cl_throttle_counts_in_the_token_bucket_of_a_limiter_on_the_same_storage(clock: FakeClock) -> None:
    caller = Caller(clock)
    limiter = Limiter("30/minute burst 16", storage=caller.storage)
    assert caller.ask("CL.THROTTLE", "user:42", 15, 30, 60) == [0, 16, 15, -1, 2]
    assert limiter.hit("user:42").remaining == 14
    assert caller.ask("CL.THROTTLE", "user:42", 15, 30, 60, 0) == [0, 16, 14, -1, 4]


def test_a_quantity_of_0_is_denied_only_if_the_bucket_is_overdrawn(clock: FakeClock) -> None:
    caller = Caller(clock)
    limiter = Limiter("1/second burst 5", storage=caller.storage)
    limiter.settle(limiter.hit("k", cost=5), cost=7)
    answer = caller.ask("CL.THROTTLE", "k", 4, 1, 1, 0)
    assert answer[0] == 1
    assert answer[3] == answer[4] - 5 > 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["k", 1, 1], "ERR CL.THROTTLE takes 4 or 5 arguments, not 3. Usage: CL.THROTTLE <key> <max_burst>"),
        (["k", 1, 1, 1, 1, 1], "ERR CL.THROTTLE takes 4 or 5 arguments, not 6."),
        (["k", "x", 1, 1], "ERR max_burst must be a whole number from 0 to 999999999999, not 'x'"),
        (["k", -1, 1, 1], "ERR max_burst must be a whole number from 0 to 999999999999, not '-1'"),
        (["k", 1, 0, 1], "ERR count per period must be a whole number from 1 to 1000000000000, not '0'"),
        (["k", 1, 1, "1.5"], "ERR period must be a whole number from 1 to 315360000, not '1.5'"),
        (["k", 1, 1, 10**12], "ERR period must be a whole number from 1 to 315360000, not '1000000000000'"),
        (["k", 10**11, 1, 10**6], "ERR a burst of 100000000001 takes more than 100 years to refill"),
        (["k", 1, 1, 1, -1], "ERR quantity must be a whole number from 0 to 1000000000000, not '-1'"),
        (
            ["k", 1, 1, 1, "9" * 500],
            f"ERR quantity must be a whole number from 0 to 1000000000000, not '{'9' * 128}...'",
        ),
        (["k", 1, 1, 1, "\r\n-x"], "ERR quantity must be a whole number from 0 to 1000000000000, not '??-x'"),
        (["k", 1, 1, 1, b"\xff"], "ERR quantity must be a whole number from 0 to 1000000000000, not '\ufffd'"),
        (["k" * (MAX_KEY + 1), 1, 1, 1], f"ERR the key has {MAX_KEY + 1} bytes: at most {MAX_KEY} are allowed"),
    ],
)
def test_cl_throttle_says_which_argument_is_wrong(caller: Caller, words: list[Any], error: str) -> None:
    assert caller.ask("CL.THROTTLE", *words).startswith(error)


# RB.HIT, RB.PEEK, RB.RESET


def test_rb_hit_tells_the_decision_as_pairs(caller: Caller, clock: FakeClock) -> None:
    untouched = {
        "allowed": 1,
        "limit": 2,
        "remaining": 1,
        "retry_after": 0,
        "retry_after_ms": 0,
        "reset_after": 60,
        "reset_after_ms": 60_000,
        "delay_ms": 0,
        "name": "2/minute",
        "degraded": 0,
    }
    assert caller.asked("RB.HIT", "user:42", "2/minute") == untouched
    clock.now += SECOND // 2
    assert caller.asked("rb.hit", "user:42", "2/minute")["remaining"] == 0
    denied = caller.asked("RB.HIT", "user:42", "2/minute")
    assert (denied["allowed"], denied["retry_after"], denied["retry_after_ms"]) == (0, 60, 59_500)
    assert caller.asked("RB.HIT", "user:43", "2/minute") == untouched


def test_rb_hit_is_a_map_in_resp3_with_the_same_names_and_values(clock: FakeClock) -> None:
    old, new = Caller(clock), Caller(clock)
    assert new.ask("HELLO", 3)["proto"] == 3
    for words in [
        ("RB.HIT", "k", "2/minute"),
        ("RB.HIT", "k", "2/minute; 100/hour as hourly"),
        ("RB.HIT", "k", "2/minute", "COST", 2),
        ("RB.HIT", "k", "2/minute", "COST", 3),
        ("RB.PEEK", "k", "5/second leaky-bucket burst 10"),
        ("RB.HIT", "k", "5/second leaky-bucket burst 10"),
        ("RB.HIT", "k", "5/second leaky-bucket burst 10"),
        ("RB.DECIDE", "GET", "/orders", "PEER", "203.0.113.7"),
        ("RB.DECIDE", "GET", "/closed"),
    ]:
        pairs, found = old.asked(*words), new.ask(*words)
        if "headers" in pairs:
            headers = pairs["headers"]
            pairs["headers"] = dict(zip(headers[::2], headers[1::2], strict=True))
        assert found == pairs


def test_waits_are_rounded_up_to_seconds_and_to_milliseconds(caller: Caller, clock: FakeClock) -> None:
    caller.asked("RB.HIT", "k", "1/minute")
    clock.now += 30 * SECOND + 1
    found = caller.asked("RB.HIT", "k", "1/minute")
    assert (found["retry_after"], found["retry_after_ms"]) == (30, 30_000)
    clock.now += 2000
    found = caller.asked("RB.HIT", "k", "1/minute")
    assert (found["retry_after"], found["retry_after_ms"]) == (30, 29_998)


def test_a_cost_above_the_limit_never_passes(caller: Caller) -> None:
    found = caller.asked("RB.HIT", "k", "2/minute", "COST", 3)
    assert (found["allowed"], found["retry_after"], found["retry_after_ms"], found["remaining"]) == (0, -1, -1, 2)


def test_the_delay_of_a_leaky_bucket_is_told(caller: Caller) -> None:
    limits = "5/second leaky-bucket burst 10"
    assert caller.asked("RB.HIT", "k", limits)["delay_ms"] == 0
    assert caller.asked("RB.HIT", "k", limits)["delay_ms"] == 200


def test_several_limits_are_all_or_nothing_and_the_decisive_one_is_named(caller: Caller) -> None:
    limits = "1/minute as short; 10/hour as long"
    assert caller.asked("RB.HIT", "k", limits)["name"] == "short"
    denied = caller.asked("RB.HIT", "k", limits)
    assert (denied["allowed"], denied["name"], denied["limit"]) == (0, "short", 1)
    assert caller.asked("RB.PEEK", "k", "10/hour as long")["remaining"] == 9


def test_a_peek_changes_nothing_and_a_reset_forgets(caller: Caller) -> None:
    caller.asked("RB.HIT", "k", "2/minute", "COST", 2)
    for _ in range(3):
        assert caller.asked("RB.PEEK", "k", "2/minute")["allowed"] == 0
    assert caller.ask("RB.RESET", "k", "2/minute") == "OK"
    assert caller.asked("RB.PEEK", "k", "2/minute")["remaining"] == 2
    assert caller.asked("RB.PEEK", "k", "2/minute", "COST", 3)["allowed"] == 0


def test_distinct_values_are_counted(caller: Caller) -> None:
    limits = "2 distinct account/hour"
    allowed = [caller.asked("RB.HIT", "ip", limits, "VALUES", "account", name)["allowed"] for name in "aabcab"]
    assert allowed == [1, 1, 1, 0, 1, 1]


def test_keys_that_are_no_utf8_are_different_keys(caller: Caller) -> None:
    keys = [b"\xff", b"\xfe", b"\xed\xb3\xbf", "ÿ".encode(), b"", b"\xff\xff"]
    assert [caller.asked("RB.HIT", key, "5/minute")["remaining"] for key in keys] == [4] * len(keys)
    assert [caller.asked("RB.HIT", key, "5/minute")["remaining"] for key in keys] == [3] * len(keys)


def test_keys_are_those_of_a_limiter_on_the_same_storage(clock: FakeClock) -> None:
    caller = Caller(clock)
    limiter = Limiter("5/minute", storage=caller.storage)
    limiter.hit("user:ü")
    assert caller.asked("RB.HIT", "user:ü", "5/minute")["remaining"] == 3


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["RB.HIT"], "ERR RB.HIT takes at least 2 arguments, not 0. Usage: RB.HIT <key> <limits> [COST <n>]"),
        (["RB.HIT", "k"], "ERR RB.HIT takes at least 2 arguments, not 1."),
        (["RB.PEEK", "k"], "ERR RB.PEEK takes at least 2 arguments, not 1. Usage: RB.PEEK <key> <limits>"),
        (["RB.RESET", "k"], "ERR RB.RESET takes 2 arguments, not 1. Usage: RB.RESET <key> <limits>"),
        (["RB.HIT", "k", "2/fortnight"], "ERR cannot read limit '2/fortnight': unknown unit 'fortnight'"),
        (["RB.HIT", "k", ""], "ERR cannot read limit ''"),
        (["RB.HIT", "k", "1/minute;" * 200], "ERR the limits have 1800 bytes: at most 1000 are allowed"),
        (["RB.HIT", "k", b"\xff"], "ERR limits must be UTF-8, not '\ufffd'"),
        (
            ["RB.HIT", "k", "1/minute", "COST"],
            "ERR argument 3, 'COST', is no option, or its value is missing. Usage: RB",
        ),
        (["RB.HIT", "k", "1/minute", "COST", 0], "ERR COST must be a whole number from 1 to 1000000000000, not '0'"),
        (["RB.HIT", "k", "1/minute", "COTS", 1], "ERR argument 3, 'COTS', is no option"),
        (["RB.HIT", "k", "1/minute", "VALUES", "a"], "ERR VALUES takes pairs of a name and a value, not 1 words."),
        (
            ["RB.HIT", "k", "1/minute", "VALUES", "a", "b"],
            "ERR unknown value 'a': no limit here counts distinct values",
        ),
        (["RB.HIT", "k", "2 distinct a/hour"], "ERR '2 distinct a/hour' needs a value"),
        (["RB.DECIDE", "GET"], "ERR RB.DECIDE takes at least 2 arguments, not 1. Usage: RB.DECIDE <method> <path>"),
        (["RB.DECIDE", "GET", "x"], "ERR path must be '*' or begin with '/', not with 'x'"),
        (["RB.DECIDE", "GET", "/", "PEER"], "ERR argument 3, 'PEER', is no option, or its value is missing."),
        (
            ["RB.DECIDE", "GET", "/", "PEER", "x:80"],
            "ERR PEER must be an address, for example 203.0.113.7",
        ),
        (["RB.DECIDE", "GET", "/", "HEADER", "a"], "ERR argument 3, 'HEADER', is no option, or its value is missing."),
    ],
)
def test_our_commands_say_which_argument_is_wrong(caller: Caller, words: list[Any], error: str) -> None:
    assert caller.ask(*words).startswith(error)


# RB.DECIDE


def test_a_denial_after_an_allowed_early_stage_tells_that_no_wait_helps() -> None:
    policy = {
        "rules": [
            {"name": "early", "limits": "10/minute", "by": "global", "stage": "early"},
            {"name": "closed", "limits": "deny", "by": "global"},
        ]
    }
    found = Caller(policy=policy).asked("RB.DECIDE", "GET", "/")
    assert (found["allowed"], found["status"], found["rule"]) == (0, 403, "closed")
    assert (found["retry_after"], found["retry_after_ms"]) == (-1, -1)


def test_headers_for_a_script_of_a_browser_are_exposed_to_it(caller: Caller) -> None:
    plain = caller.asked("RB.DECIDE", "GET", "/orders", "PEER", "203.0.113.7")
    script = caller.asked("RB.DECIDE", "GET", "/orders", "PEER", "203.0.113.7", "HEADER", "Origin", "https://a.example")
    assert "access-control-expose-headers" not in plain["headers"]
    assert "access-control-expose-headers" in script["headers"]


def test_rb_decide_asks_the_policy(caller: Caller) -> None:
    first = caller.asked("RB.DECIDE", "GET", "/orders?page=2", "PEER", "203.0.113.7")
    assert (first["allowed"], first["status"], first["rule"], first["remaining"]) == (1, 200, "orders", 1)
    assert first["headers"][::2] == ["ratelimit-policy", "ratelimit"]
    assert first["body"] == ""
    caller.asked("RB.DECIDE", "GET", "/orders", "PEER", "203.0.113.7")
    denied = caller.asked("RB.DECIDE", "GET", "/orders", "PEER", "203.0.113.7")
    headers = dict(zip(denied["headers"][::2], denied["headers"][1::2], strict=True))
    assert (denied["allowed"], denied["status"], denied["retry_after"]) == (0, 429, 60)
    assert (headers["retry-after"], headers["content-type"]) == ("60", "application/problem+json")
    assert '"status":429' in denied["body"].replace(" ", "")
    assert caller.asked("RB.DECIDE", "GET", "/orders", "PEER", "203.0.113.8")["allowed"] == 1


def test_rb_decide_without_a_limit_has_nothing_to_tell(caller: Caller) -> None:
    found = caller.asked("RB.DECIDE", "GET", "/free", "HOST", "a.example", "SCHEME", "https", "HEADER", "X-Key", "1")
    assert (found["allowed"], found["status"], found["limit"], found["remaining"], found["name"]) == (
        1,
        200,
        None,
        None,
        None,
    )
    closed = caller.asked("RB.DECIDE", "GET", "/closed")
    assert (closed["allowed"], closed["status"], closed["retry_after"]) == (0, 403, -1)


def test_rb_decide_describes_the_whole_request() -> None:
    policy = {
        "identities": {"api-key": {"header": "x-api-key", "verify": str}},
        "rules": [
            {"name": "user", "match": {"paths": ["/user"]}, "by": "user", "limits": "1/minute"},
            {"name": "key", "match": {"paths": ["/key"]}, "by": "api-key", "limits": "1/minute"},
            {"name": "host", "match": {"hosts": ["a.example"]}, "by": "address", "limits": "1/minute"},
        ],
    }
    caller = Caller(policy=policy)

    def allowed(*words: str) -> int:
        return int(caller.asked("RB.DECIDE", "POST", *words)["allowed"])

    assert [allowed("/user", "USER", name) for name in ("a", "b", "a")] == [1, 1, 0]
    assert [allowed("/key", "HEADER", "X-Api-Key", name) for name in ("a", "b", "a")] == [1, 1, 0]
    hosts = ("a.example", "b.example", "a.example")
    assert [allowed("/x", "HOST", name, "PEER", "203.0.113.7") for name in hosts] == [1, 1, 0]


# What clients send by themselves


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["PING"], "PONG"),
        (["ping", "hello"], "hello"),
        (["PING", "a", "b"], "ERR wrong number of arguments for 'ping' command"),
        (["ECHO", b"a\r\nb"], "a\r\nb"),
        (["ECHO"], "ERR wrong number of arguments for 'echo' command"),
        (["SELECT", 0], "OK"),
        (["SELECT", 1], "ERR DB index is out of range"),
        (["CLIENT", "SETINFO", "LIB-NAME", "x"], "OK"),
        (["CLIENT", "SETNAME", "worker-1"], "OK"),
        (["CLIENT", "SETNAME", "a b"], "ERR Client names cannot contain spaces, newlines or special characters."),
        (["CLIENT", "GETNAME"], None),
        (["CLIENT", "ID"], 1),
        (["CLIENT", "INFO"], "id=1 name= resp=2\n"),
        (["client", "no-evict", "on"], "OK"),
        (["CLIENT", "KILL", "x"], "ERR unknown subcommand or wrong number of arguments for 'CLIENT KILL'"),
        (["CLIENT"], "ERR unknown subcommand or wrong number of arguments for 'CLIENT '"),
        (["COMMAND", "COUNT"], 15),
        (["COMMAND", "INFO", "rb.hit"], [["rb.hit", -3, ["write", "fast"], 1, 1, 1]]),
        (["COMMAND", "x"], "ERR unknown subcommand 'COMMAND X'"),
        (["QUIT"], "OK"),
        (["RESET"], "RESET"),
        (["HELLO", 4], "NOPROTO unsupported protocol version"),
        (["HELLO", 3, "SETNAME"], "ERR syntax error in HELLO option 'SETNAME'"),
        (["HELLO", 3, "AUTH", "x"], "ERR syntax error in HELLO option 'AUTH'"),
        (["HELLO", 3, "FOO"], "ERR syntax error in HELLO option 'FOO'"),
        (["GET", "x"], f"ERR unknown command 'GET'. {KNOWN}"),
        ([b"\r\n\x00x"], f"ERR unknown command '???x'. {KNOWN}"),
        (["x" * 1000], f"ERR unknown command '{'x' * 128}...'. {KNOWN}"),
        ([b""], f"ERR unknown command ''. {KNOWN}"),
        (
            ["AUTH", "x"],
            "ERR AUTH <password> called without any password configured for the default user."
            " Are you sure your configuration is correct?",
        ),
    ],
)
def test_clients_get_the_answers_that_they_expect(caller: Caller, words: list[Any], answer: Any) -> None:
    assert caller.ask(*words) == answer


def test_hello_chooses_the_protocol_and_describes_the_server(caller: Caller) -> None:
    assert caller.asked("HELLO")["proto"] == 2
    found = caller.ask("HELLO", 3, "SETNAME", "worker-1")
    assert found == {
        "server": "ratebound",
        "version": "7.4.0",
        "proto": 3,
        "id": 1,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }
    assert caller.ask("CLIENT", "GETNAME") == "worker-1"
    assert caller.wire("CLIENT", "GETNAME") == b"$8\r\nworker-1\r\n"
    caller.ask("RESET")
    assert caller.session.protocol == 2
    assert caller.ask("CLIENT", "GETNAME") is None


def test_info_and_command_describe_what_there_is(caller: Caller) -> None:
    assert "loading:0\r\n" in caller.ask("INFO", "everything")
    listed = caller.ask("COMMAND")
    assert len(listed) == caller.ask("COMMAND", "COUNT") == len(caller.ask("COMMAND", "LIST"))
    for name in caller.ask("COMMAND", "LIST"):
        assert "unknown command" not in str(caller.ask(name))
    assert caller.asked("COMMAND", "DOCS")["rb.peek"][1].startswith("Says")
    assert list(caller.asked("COMMAND", "DOCS", "ping", "nothing")) == ["ping"]


def test_without_a_token_nothing_is_answered() -> None:
    caller = Caller(tokens=BearerTokens([TOKEN]))
    for words in (["PING"], ["RB.HIT", "k", "1/minute"], ["nothing"], ["COMMAND"], ["INFO"], ["CLIENT", "ID"]):
        assert caller.ask(*words) == "NOAUTH Authentication required."
    assert caller.ask("HELLO", 3).startswith("NOAUTH HELLO must be called with the client already authenticated")
    assert caller.session.protocol == 2
    assert caller.ask("AUTH", TOKEN[:-1]).startswith("WRONGPASS ")
    assert caller.ask("HELLO", 3, "AUTH", "default", "x").startswith("WRONGPASS ")
    assert caller.ask("AUTH", "default", TOKEN, "x") == "ERR wrong number of arguments for 'auth' command"
    assert caller.ask("PING") == "NOAUTH Authentication required."
    assert caller.ask("AUTH", TOKEN) == "OK"
    assert caller.ask("PING") == "PONG"


def test_a_token_is_given_by_hello_or_auth_with_any_user_and_forgotten_by_reset() -> None:
    for words in (["AUTH", TOKEN], ["AUTH", "default", TOKEN], ["HELLO", 3, "AUTH", "default", TOKEN, "SETNAME", "x"]):
        caller = Caller(tokens=BearerTokens([TOKEN]))
        caller.ask(*words)
        assert caller.ask("PING") == "PONG"
        assert caller.ask("RESET") == "RESET"
        assert caller.ask("PING") == "NOAUTH Authentication required."


WORDS = st.sampled_from(["COST", "VALUES", "HEADER", "PEER", "USER", "HOST", "1", "k", "1/minute", "/orders"])


@given(st.lists(st.one_of(st.binary(max_size=12), WORDS), max_size=6))
def test_any_arguments_have_one_answer(words: list[Any]) -> None:
    caller = Caller()
    for name in ("CL.THROTTLE", "RB.HIT", "RB.PEEK", "RB.RESET", "RB.DECIDE", "CLIENT", "COMMAND", "HELLO", "AUTH"):
        answer = caller.ask(name, *words)
        assert "could not be answered" not in str(answer)
