"""The quick ways say what the long ones say: a gate's straight line, and the memory storage's answer at once."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Limit, MemoryStorage
from ratebound.extras import extras_of
from ratebound.limit import MAX_COUNT
from ratebound.policy import AsyncGate, Gate, Identity, Match, Policy, RequestView, Rule, Source, Verdict
from ratebound.policy.model.rule import Mode
from ratebound.testing import FakeClock
from tests.property.strategies import limits, quotas, slot_limits

PATHS = ["/", "/a", "/A", "/a/", "/a/b", "/a%2Fb", "/a//b", "/a/../a/b", "/c", "http://x.test/a", "*", ""]
PATTERNS = st.lists(st.sampled_from(["/", "/a", "/{x}", "/a/{x}", "/a/**", "/**"]), max_size=2, unique=True)
METHODS = st.lists(st.sampled_from(["GET", "POST", "DELETE"]), max_size=2, unique=True)
HOSTS = st.lists(st.sampled_from(["x.test", "*.test", "other.example"]), max_size=1)


def owner_of(api_key: str) -> Identity | str | None:
    """A verifier: it raises for one key, and knows nobody for another."""
    if api_key == "fails":
        raise ConnectionError(api_key)
    return None if api_key == "nobody" else api_key if api_key == "text" else Identity("client", api_key)


def tenant_of(request: RequestView) -> str | None:
    return "acme" if request.host == "x.test" else None


BY = st.sampled_from(
    [
        None,
        "address",
        "user",
        ["user", "address"],
        "global",
        "prefix",
        "address + agent",
        ["user + agent", "address"],
        ["api-key", "address"],
        ["user", "api-key"],
        "api-key + address",
        [tenant_of, "api-key"],
    ]
)
LIMITS = st.sampled_from(
    [
        "2/minute",
        "3/minute; 5/hour",
        "2/minute gcra",
        "unlimited",
        "1/minute burst 3 leaky-bucket",
        "3/calendar-day in Asia/Tokyo; 5/hour",
        "2/day fixed-window over allow",
        "5/minute; 2 concurrent",
        "3 concurrent; 1/minute burst 3 leaky-bucket",
    ]
)


@st.composite
def rules(draw: st.DrawFn, number: int) -> Rule:
    early = draw(st.booleans())
    mode: Mode = draw(st.sampled_from(["enforce", "enforce", "shadow"]))
    return Rule(
        f"rule-{number}",
        draw(LIMITS | st.just("deny")) if draw(st.booleans()) else draw(LIMITS),
        match=Match(paths=draw(PATTERNS), methods=draw(METHODS), hosts=draw(HOSTS)),
        by=draw(st.sampled_from([None, "address", "global", "prefix"])) if early else draw(BY),
        cost=draw(st.sampled_from([1, 1, 2])),
        default=draw(st.booleans()),
        final=mode == "enforce" and draw(st.booleans()),
        mode=mode,
        stage="early" if early else "late",
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    count = draw(st.integers(1, 4))
    made = [draw(rules(number)) for number in range(count)]
    try:
        return Policy(
            rules=made,
            by=draw(st.sampled_from(["address", ("user", "address"), ("api-key", "address")])),
            identities={"api-key": Source(header="x-api-key", verify=owner_of)},
            trusted=draw(st.sampled_from([[], ["10.0.0.0/8"]])),
            exempt=draw(st.sampled_from([[], [], [Match(paths=["/a/b"])], [Match(paths=["/a"], methods=["GET"])]])),
            switch=draw(st.sampled_from(["on", "on", "on", "shadow", "off"])),
        )
    except ValueError:  # a rule that is never reached behind a final one
        return Policy(
            rules=[rule for rule in made if not rule.final] or [Rule("rule", "2/minute")],
            identities={"api-key": Source(header="x-api-key", verify=owner_of)},
        )


@st.composite
def requests(draw: st.DrawFn) -> RequestView:
    headers = [("user-agent", draw(st.sampled_from(["one", "two"])))]
    for name, values in (
        ("x-forwarded-for", ["198.51.100.7", "198.51.100.8, 10.0.0.9"]),
        ("x-http-method-override", ["DELETE"]),
        ("origin", ["https://x.test"]),
        ("access-control-request-method", ["GET"]),
        ("x-api-key", ["ann", "text", "nobody", "fails"]),
        ("x-api-key", ["ann", "ben"]),  # sent twice, it identifies nobody
    ):
        if draw(st.booleans()):
            headers.append((name, draw(st.sampled_from(values))))
    return RequestView(
        draw(st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "get"])),
        draw(st.sampled_from(PATHS)),
        host=draw(st.sampled_from(["x.test", "y.test", ""])),
        headers=headers,
        peer=draw(st.sampled_from(["192.0.2.1", "192.0.2.2", "10.0.0.1", "2001:db8::1", None])),
        user=draw(st.sampled_from([None, None, "ann", 7, Identity("user", "ben")])),
        route=draw(st.sampled_from([None, "/a/{x}", "/{x:path}"])),
    )


def alike(view: RequestView) -> list[RequestView]:
    """The request, and others that differ from it in one thing: what is remembered of one is not for another."""
    changes: list[dict[str, Any]] = [{}, {"host": "y.test"}, {"route": "/a/{x}"}, {"path": "/a/b"}, {"user": "eve"}]
    return [
        RequestView(
            **{
                **{
                    name: getattr(view, name) for name in ("method", "path", "host", "headers", "peer", "user", "route")
                },
                **change,
            }
        )
        for change in changes
    ]


def slow(gate: Any) -> Any:
    """A gate that knows no straight line."""
    gate.current()._lines = {}
    return gate


def told(verdict: Verdict) -> tuple[Any, ...]:
    decision, earlier = verdict.decision, verdict.earlier
    return (
        verdict.kind,
        verdict.stage,
        verdict.allowed,
        verdict.client,
        [rule.name for rule in verdict.asked],
        list(verdict.identities),
        None if decision is None else ([ask[:4] for ask in decision.asks], list(decision.rows)),  # no ids of slots
        [(shadow.rule.name, shadow.allowed) for shadow in verdict.shadows],
        None if earlier is None else told(earlier),
    )


@given(policy=policies(), asked=st.lists(requests(), min_size=1, max_size=4), stages=st.sampled_from([None, "split"]))
def test_the_straight_line_says_what_deliberation_says(
    policy: Policy, asked: list[RequestView], stages: str | None
) -> None:
    clock = FakeClock()
    quick = Gate(policy, storage=MemoryStorage(clock=clock), max_delay=1)
    long = slow(Gate(policy, storage=MemoryStorage(clock=clock), max_delay=1))
    for view in [one for drawn in asked for one in alike(drawn)] * 2:  # the second time from memory
        found = []
        for gate in (quick, long):
            view.found = None
            verdicts = (
                [gate.decide(view)] if stages is None else [gate.decide(view, "early"), gate.decide(view, "late")]
            )
            found.append([told(verdict) for verdict in verdicts])
        assert found[0] == found[1]
        clock.advance(0.7)


@given(policy=policies(), asked=st.lists(requests(), min_size=1, max_size=4))
def test_tasks_and_threads_are_told_the_same(policy: Policy, asked: list[RequestView]) -> None:
    clock = FakeClock()
    sync = Gate(policy, storage=MemoryStorage(clock=clock))
    tasks = AsyncGate(policy, storage=MemoryStorage(clock=clock))

    async def run() -> None:
        for view in asked * 2:
            view.found = None
            first = told(sync.decide(view))
            view.found = None
            assert told(await tasks.decide(view)) == first

    asyncio.run(run())


def test_a_user_that_has_to_be_awaited_is_awaited_once() -> None:
    gate = AsyncGate(Policy(rules=[Rule("all", "5/minute")]))

    async def who() -> str:
        return "ann"

    async def run() -> Verdict:
        return await gate.decide(RequestView("GET", "/", peer="192.0.2.1", user=who()))  # type: ignore[arg-type]

    assert [identity.key for identity in asyncio.run(run()).identities] == ["user:ann"]


@given(
    held=st.lists(st.one_of(limits(), quotas(), slot_limits()), min_size=1, max_size=3),
    asked=st.lists(
        st.tuples(
            st.lists(st.sampled_from(["a", "b", "c" * 300]), min_size=1, max_size=2, unique=True),
            st.sampled_from([1, 2, 5, MAX_COUNT]),
            st.sampled_from([None, 0, 1_000_000]),
            st.sampled_from([0, 1_000, 1_000_000, 10**9]),
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_memory_answers_at_once_what_it_evaluates(held: list[Limit], asked: list[Any]) -> None:
    if len({limit.scope for limit in held}) < len(held):
        held = held[:1]
    clock = FakeClock()
    quick, long = MemoryStorage(clock=clock), MemoryStorage(clock=clock)
    for keys, cost, patience, gap in asked:
        clock.now += gap
        group = []
        for place, key in enumerate(keys):
            kept = tuple(held[place:]) or tuple(held)
            group.append((key, kept, cost, patience, extras_of(key, kept)))
        assert list(quick.at_once(group)) == list(long.evaluate([group])[0])
    assert quick.keys == long.keys
