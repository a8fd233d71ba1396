"""The life of a request without a framework: flows of a visit and of its response, in a thread and in a task."""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.flow import Flow, run, run_async
from ratebound.policy import Policy, RequestView, Rule
from ratebound.testing import FakeClock
from ratebound.web import AsyncWebGate, Endpoint, Passed, Rejected, RouteLimit, WebGate
from ratebound.web.response_tracker import ResponseTracker
from ratebound.web.visit import Visit

Drive = Callable[[Flow[Any]], Any]


def drive_async(flow: Flow[Any]) -> Any:
    return asyncio.run(run_async(flow))


class Site:
    """A gate for threads or for tasks, its driver, and what it has slept."""

    def __init__(self, kind: str, policy: Any, **options: Any) -> None:
        self.naps: list[float] = []
        clock = FakeClock()
        if kind == "thread":
            self.gate: Any = WebGate(
                policy, storage=MemoryStorage(clock=clock), sleep=self.naps.append, max_delay=9, **options
            )
            self.drive: Drive = run
        else:
            self.gate = AsyncWebGate(policy, storage=MemoryStorage(clock=clock), sleep=self.nap, max_delay=9, **options)
            self.drive = drive_async

    async def nap(self, seconds: float) -> None:
        self.naps.append(seconds)

    def check(self, visit: Visit, endpoint: Endpoint | None = None, stage: Any = None, **more: Any) -> Any:
        return self.drive(visit.check(self.gate, self.gate.rules_for(endpoint), view(), stage, **more))

    def check_part(self, visit: Visit, endpoint: Endpoint, **more: Any) -> Any:
        return self.drive(visit.check_part(self.gate, self.gate.rules_alone(endpoint), view(), **more))

    def left(self, endpoint: Endpoint) -> int:
        """How much of an endpoint's own limit a request finds, which is given back at once."""
        visit = Visit()
        answer = self.check_part(visit, endpoint)
        assert answer.decision is not None
        self.drive(visit.reject(self.gate, rejection()))
        return int(answer.decision.remaining) + 1 if answer else 0


def view() -> RequestView:
    return RequestView("GET", "/", peer="192.0.2.1")


def rejection() -> Rejected:
    gate = WebGate("1/minute")
    gate.before(view())
    answer = gate.before(view())
    assert isinstance(answer, Rejected)
    return answer


def part(name: str, limits: str = "5/minute", **options: Any) -> Endpoint:
    return Endpoint(name, [RouteLimit(limits=limits, name=name, **options)])


@pytest.fixture(params=["thread", "task"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_early_and_late_rules_are_one_answer_and_each_delay_is_slept_once(kind: str) -> None:
    queue = Rule("queue", "1/second burst 5 leaky-bucket", stage="early")
    site = Site(kind, Policy(rules=[queue, Rule("late", "9/minute")]))
    for _ in range(3):
        visit = Visit()
        early = site.check(visit, stage="early")
        assert not visit.is_late
        assert site.check(visit, stage="late") is early is visit.answer
        assert isinstance(early, Passed)
        assert [verdict.stage for verdict in early.verdicts] == ["early", "late"]
    assert site.naps == [1.0, 2.0]


def test_a_rejection_gives_back_what_a_part_before_it_was_charged(kind: str) -> None:
    site, hook = Site(kind, "1/minute"), part("hook")
    for _ in range(3):
        visit = Visit()
        assert site.check_part(visit, hook)
        answer = site.check(visit)
    assert isinstance(answer, Rejected)
    assert visit.answer is answer
    assert site.left(hook) == 4, "the first request passed, and is charged; those that were rejected are not"


@pytest.mark.parametrize(("status", "left"), [(429, 5), (200, 4)])
def test_the_status_of_the_response_says_whether_a_part_rejects_all_of_it(kind: str, status: int, left: int) -> None:
    view_limit, inner = part("view"), part("inner", "1/hour")
    site = Site(kind, None)
    site.check_part(Visit(), inner)
    visit = Visit()
    passed = site.check(visit, view_limit)
    assert isinstance(site.check_part(visit, inner), Rejected)
    assert visit.answer is passed, "the application may answer without this part"
    site.drive(ResponseTracker(visit).start(site.gate, status))
    assert isinstance(visit.answer, Rejected) == (status == 429)
    assert site.left(view_limit) == left


def test_a_part_after_a_rejection_does_not_lift_it(kind: str) -> None:
    site = Site(kind, "1/minute")
    site.check(Visit())
    visit = Visit()
    rejected = site.check(visit)
    assert site.check_part(visit, part("handler"))
    assert visit.answer is rejected


def test_user_and_body_are_found_only_where_a_rule_needs_them(kind: str) -> None:
    calls: list[str] = []

    def by_body(request: RequestView) -> str:
        return str(request.body)

    by_body.reads_body = True  # type: ignore[attr-defined]
    limits = {"plain": "address", "user": "user", "body": by_body}
    for name, key in limits.items():
        calls.clear()
        site = Site(kind, None)
        found = {"find_user": partial(_noting, calls, "u"), "read_body": partial(_noting, calls, b"b")}
        assert site.check_part(Visit(), part("own", key=key), **found)
        assert calls == {"plain": [], "user": ["u"], "body": [b"b"]}[name]


def _noting(calls: list[Any], value: Any) -> Any:
    calls.append(value)
    return value


def test_an_error_of_a_step_is_raised_in_the_flow(kind: str) -> None:
    seen: list[str] = []

    def fail() -> Any:
        raise KeyError("storage")

    def flow() -> Flow[str]:
        try:
            yield fail
        except KeyError:
            seen.append("caught")
        try:
            yield fail
        finally:
            seen.append("closed")
        return "never"

    with pytest.raises(KeyError):
        (run if kind == "thread" else drive_async)(flow())
    assert seen == ["caught", "closed"]


def test_a_cancelled_task_closes_its_flow() -> None:
    seen: list[str] = []

    def flow() -> Flow[None]:
        try:
            yield partial(asyncio.sleep, 60)
        finally:
            seen.append("closed")

    async def main() -> None:
        task = asyncio.create_task(run_async(flow()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["closed"]


def test_a_start_is_held_back_only_where_the_result_decides_about_the_cost(kind: str) -> None:
    site = Site(kind, Policy(rules=[Rule("login", "5/minute")]), charge={"login": "failure"})
    visit = Visit()
    passed = site.check(visit)
    response = ResponseTracker(visit)
    site.drive(response.start(site.gate, 200, [("Content-Type", "text/plain")], length=3))
    assert response.is_held
    assert [response.add(1), response.add(2)] == [False, True]
    site.drive(response.end(site.gate))
    assert passed.decision.remaining == 5, "what was charged before the result was known is given back"
    with pytest.raises(RuntimeError, match="its cost is settled"):
        passed.charge(1)
    plain = Site(kind, "5/minute")
    visit = Visit()
    plain.check(visit)
    response = ResponseTracker(visit)
    plain.drive(response.start(plain.gate, 200))
    assert not response.is_held


@pytest.mark.parametrize(("counts", "status", "sent"), [(True, 200, 40), (False, 200, 0), (True, 304, 0)])
def test_bytes_are_counted_as_they_are_sent(kind: str, counts: bool, status: int, sent: int) -> None:
    site = Site(kind, Policy(rules=[Rule("bytes", "100/hour")]), charge={"bytes": lambda response: response.sent})
    visit = Visit()
    passed = site.check(visit)
    response = ResponseTracker(visit, counts=counts)
    site.drive(response.start(site.gate, status))
    response.add(40)
    site.drive(response.end(site.gate))
    assert isinstance(passed, Passed)
    assert passed.decision is not None
    assert passed.decision.remaining == 100 - sent


def test_the_gates_for_threads_and_for_tasks_have_the_same_methods() -> None:
    names = [name for name in dir(WebGate) if not name.startswith("_")]
    assert names == [name for name in dir(AsyncWebGate) if not name.startswith("_")]
    for name in names:
        threads, tasks = inspect.getattr_static(WebGate, name), inspect.getattr_static(AsyncWebGate, name)
        if callable(threads):
            assert inspect.signature(threads) == inspect.signature(tasks), name
    parameters = [
        {
            name: (one.kind, one.default if name != "sleep" else None)
            for name, one in inspect.signature(kind).parameters.items()
        }
        for kind in (WebGate, AsyncWebGate)
    ]
    assert parameters[0] == parameters[1]
