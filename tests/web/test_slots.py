"""Slots of concurrent requests, in every adapter: held until the response ends, however it ends."""

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import collect_and_freeze
from tests.web.running_requests import CONTENT, LIMITED, POLICIES, SITES, AsgiServer, Run, Server, SlotLedger

pytestmark = [
    # Django leaves the body of a request open whose task is cancelled.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]

CLIENTS = 200 if os.environ.get("RATEBOUND_LONG") == "1" else 60


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)  # Django logs each 500
    yield
    logging.disable(logging.NOTSET)
    collect_and_freeze()  # else another test would be blamed


@pytest.fixture
def storage() -> SlotLedger:
    return SlotLedger()


@pytest.fixture(params=SITES.values(), ids=list(SITES))
def server(request: pytest.FixtureRequest, storage: SlotLedger) -> Iterator[Server]:
    with request.param("3 concurrent", storage) as made:
        yield made


def occupied(server: Server, path: str = "/work") -> list[Run]:
    """Three requests that run."""
    runs = [server.start(path) for _ in range(3)]
    assert [run.passed for run in runs] == [True] * 3
    return runs


@pytest.mark.parametrize("path", ["/work", "/stream"])
def test_three_run_at_once_and_a_fourth_when_one_has_ended(server: Server, storage: SlotLedger, path: str) -> None:
    first, *others = occupied(server, path)
    assert len(storage.held) == 3
    assert [server.start("/work").status() for _ in range(2)] == [429, 429]
    answer = first.end()
    assert answer is not None
    assert (answer.status, answer.body) == (200, b"onetwo" if path == "/stream" else b"done")
    later = server.start(path)
    assert later.passed
    assert server.start("/work").status() == 429
    for run in [*others, later]:
        run.end()
    assert storage.is_free()
    assert server.handlers.most == storage.most == 3


def test_a_handler_that_raises_holds_nothing(server: Server, storage: SlotLedger) -> None:
    for run in occupied(server, "/fail"):
        run.end()
    assert storage.is_free()
    for run in occupied(server):
        run.end()


def test_a_client_that_leaves_in_mid_stream_holds_nothing(server: Server, storage: SlotLedger) -> None:
    for run in occupied(server, "/stream"):
        run.leave()
    assert storage.is_free()
    for run in occupied(server):
        run.end()


@pytest.mark.parametrize("path", ["/work", "/stream"])
def test_a_request_that_the_server_cancels_holds_nothing(server: Server, storage: SlotLedger, path: str) -> None:
    if not isinstance(server, AsgiServer):
        pytest.skip("threads are not cancelled")
    runs = occupied(server, path)
    for run in runs:
        run.cancel()
    for run in runs:
        run.end()
    assert storage.is_free()
    for run in occupied(server):
        run.end()


def test_a_file_is_sent_and_holds_nothing(server: Server, storage: SlotLedger) -> None:
    answers = [server.start("/file").end() for _ in range(4)]
    assert [answer and (answer.status, answer.body) for answer in answers] == [(200, CONTENT)] * 4
    assert storage.is_free()
    assert storage.trips.count("spend") == 4


def test_a_head_holds_nothing(server: Server, storage: SlotLedger) -> None:
    for _ in range(4):
        run = server.start("/work", "HEAD")
        answer = run.end()
        assert answer is not None
        assert answer.status in (200, 405)
    assert storage.is_free()


def test_no_more_than_three_of_a_crowd_run_at_once(server: Server, storage: SlotLedger) -> None:
    def visit(_: int) -> None:
        while True:
            run = server.start("/work")
            run.go.set_result(None)
            answer = run.answer.result(30)
            assert answer is not None
            if answer.status == 200:
                return
            assert answer.status == 429

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(visit, range(CLIENTS)))
    assert storage.is_free()
    assert server.handlers.most <= 3
    assert storage.most <= 3


@pytest.mark.parametrize("site", SITES.values(), ids=list(SITES))
def test_the_slot_of_a_long_response_is_renewed_until_it_ends(site: Any, storage: SlotLedger) -> None:
    with site("1 concurrent for 1 second", storage) as server:
        run = server.start("/stream")
        assert run.passed
        assert storage.is_renewed(2)
        assert len(storage.held) == 1
        run.end()
        assert storage.is_free()


@pytest.fixture(params=POLICIES.values(), ids=list(POLICIES))
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def rules(*given: dict[str, Any]) -> dict[str, Any]:
    return {"rules": [{"match": {"paths": LIMITED}, **one} for one in given], "by": "address"}


def test_a_request_that_is_rejected_by_a_late_rule_holds_no_early_slot(make: Any, storage: SlotLedger) -> None:
    early = {"name": "early", "limits": "3 concurrent", "stage": "early"}
    with make(rules(early, {"name": "late", "limits": "1/minute"}), storage) as server:
        run = server.start("/work")
        assert run.passed
        assert len(storage.held) == 1
        assert [server.start("/work").status() for _ in range(5)] == [429] * 5
        assert len(storage.held) == 1
        run.end()
        assert storage.is_free()


def test_a_rejected_request_holds_no_slot_of_a_rule_in_shadow(make: Any, storage: SlotLedger) -> None:
    shadow = {"name": "planned", "limits": "5 concurrent", "mode": "shadow"}
    with make(rules({"name": "work", "limits": "1 concurrent"}, shadow), storage) as server:
        run = server.start("/work")
        assert run.passed
        assert len(storage.held) == 2
        assert server.start("/work").status() == 429
        assert len(storage.held) == 2
        run.end()
        assert storage.is_free()


def test_a_rate_and_a_slot_are_decided_in_one_trip(make: Any, storage: SlotLedger) -> None:
    with make(rules({"name": "work", "limits": "100/minute; 3 concurrent"}), storage) as server:
        run = server.start("/work")
        assert run.passed
        assert storage.trips == ["spend"]
        run.end()
        assert storage.is_free()
        assert storage.trips == ["spend", "force"]


def test_requests_without_slots_ask_once(make: Any, storage: SlotLedger) -> None:
    policy = rules({"name": "work", "limits": "100/minute"})
    policy["rules"].append({"name": "elsewhere", "limits": "3 concurrent", "match": {"paths": ["/elsewhere"]}})
    with make(policy, storage) as server:
        run = server.start("/work")
        assert run.passed
        run.end()
        assert storage.trips == ["spend"]


def test_a_queue_in_front_of_a_slot(make: Any, storage: SlotLedger) -> None:
    with make(rules({"name": "work", "limits": "100/second burst 10 leaky-bucket; 3 concurrent"}), storage) as server:
        for run in occupied(server):
            run.end()
        assert storage.is_free()
