"""The Flask extension in the midst of a view: blocks, functions that are called, streams; and who has read the body."""

import gc
import io
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
import pytest

from ratebound.policy import Policy, Rule
from ratebound.policy.cost import MAX_BODY, json_batch_cost
from ratebound.web import RouteLimit, request_limits
from tests.web.flask_site import Site

BATCHES = Policy(rules=[Rule("calls", "10/minute", cost=json_batch_cost)])


def left(response: Any) -> dict[str, int]:
    """What remains, by name of the rule."""
    items = [item.split(";") for item in response.headers["RateLimit"].split(", ")]
    return {item[0].strip('"').partition("/")[0]: int(item[1].removeprefix("r=")) for item in items}


# What a part of a view costs.


def test_a_stream_may_say_at_its_end_what_it_has_cost() -> None:
    def stream() -> flask.Response:
        def parts() -> Any:
            yield "tokens"
            flask.g.ratebound.charge(60)

        return flask.Response(flask.stream_with_context(parts()))

    site = Site()
    site.view("/llm", site.limiter.limit("100/minute", name="tokens"), answer=stream)
    answers = []
    for _ in range(3):
        response = site.get("/llm")
        answers.append((response.status_code, response.text[:6], left(response)["tokens"]))
    assert answers[:2] == [(200, "tokens", 99), (200, "tokens", 39)]
    assert (answers[2][0], answers[2][2]) == (429, 0)


@pytest.mark.parametrize("policy", [None, "1000/minute"])
def test_a_block_may_say_what_it_has_cost(policy: str | None) -> None:
    def view() -> str:
        with site.limiter.limit("100/minute", name="mail") as part:
            part.charge(60)
        return "sent"

    site = Site(policy)
    site.view("/a", answer=view)
    assert [left(site.get("/a"))["mail"] for _ in range(2)] == [40, 0]
    assert site.get("/a").status_code == 429


def test_what_a_block_has_cost_is_nothing_to_the_limits_of_its_view() -> None:
    def view() -> str:
        with site.limiter.limit("100/minute", name="mail") as part:
            part.charge(60)
        return str(part.decision and part.decision.remaining)

    site = Site()
    site.view("/a", site.limiter.limit("5/minute"), answer=view)
    response = site.get("/a")
    assert (left(response), response.text) == ({"site.a": 4, "mail": 40}, "99")


def test_whom_nothing_is_counted_for_is_free_in_blocks_and_functions_too() -> None:
    site = Site("9/minute", exempt_when=lambda: "x-staff" in flask.request.headers)

    @site.limiter.limit("1/minute")
    def called() -> str:
        return "called"

    def block() -> str:
        with site.limiter.limit("1/minute", name="block") as part:
            part.charge(5)
        return str(part.decision)

    site.view("/called", answer=called)
    site.view("/block", answer=block)
    assert [site.passes(path, 5, **{"x-staff": "yes"}) for path in ("/called", "/block")] == [5, 5]
    assert site.get("/block", **{"x-staff": "yes"}).text == "None"
    assert [site.passes(path, 5) for path in ("/called", "/block")] == [1, 1]


def test_a_block_whose_limit_is_for_other_methods_costs_nothing() -> None:
    def view() -> str:
        with site.limiter.limit("1/minute", name="mail", methods=["POST"]) as part:
            part.charge(1)
        return str(part.decision)

    site = Site()
    site.view("/a", answer=view, methods=["GET", "POST"])
    assert [site.get("/a").text for _ in range(3)] == ["None"] * 3
    assert site.passes("/a", method="POST") == 1


def test_a_block_that_a_view_makes_anew_has_its_own_functions_and_leaves_nothing_behind() -> None:
    kept: list[weakref.ref[Any]] = []

    def view() -> str:
        who = flask.request.headers["x-who"]

        def key() -> str:
            return who

        kept.append(weakref.ref(key))
        with site.limiter.limit("1/minute", name="mail", key=key, exempt_when=lambda: who == "staff"):
            return who

    site = Site()
    site.view("/a", answer=view)
    assert [site.get("/a", **{"x-who": who}).status_code for who in ("a", "b", "a", "staff", "staff")] == [
        *(200, 200, 429, 200, 200)
    ]
    gc.collect()
    assert [ref() for ref in kept] == [None] * 5


def test_a_block_tells_its_own_listener_of_a_breach() -> None:
    def view() -> str:
        with site.limiter.limit("1/minute", name="mail", on_breach=lambda refused: ("later", 420)):
            return "now"

    site = Site("10/minute")
    site.view("/a", answer=view)
    assert [(site.get("/a").text, site.get("/a").status_code)] == [("now", 420)]
    assert left(site.get("/a")) == {"mail": 0}


# A block whose limit is another one for each request.


def varied(make: Callable[[Site, int], Any], **options: Any) -> Site:
    """A view whose block is made of the number in its path."""

    def view() -> str:
        number = int((flask.request.view_args or {})["number"])
        with make(site, number) as part:
            return str(part.decision.remaining)

    site = Site(**options)
    site.view("/<int:number>", answer=view)
    return site


@pytest.mark.parametrize(
    "options",
    [
        lambda number: {"cost": number % 7 + 1},
        lambda number: {"charge": lambda outcome: number},
        lambda number: {"message": f"no. {number}"},
        lambda number: {"key": [lambda: f"k{number}", "address"]},
        lambda number: {"name": f"m{number}"},
    ],
)
def test_blocks_that_differ_from_request_to_request_are_not_kept_for_ever(
    options: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "MAX_ENDPOINTS", 10)

    def make(site: Site, number: int) -> Any:
        return site.limiter.limit("999999/minute", **{"name": "mail", **options(number)})

    site = varied(make, user=lambda: "u")
    for number in range(40):
        assert site.get(f"/{number}").status_code == 200
    made = site.app.extensions["ratebound"]
    rules = made.gate._table
    kept = [len(table) for table in (made._parts._cache, rules._alone, rules._named)]
    assert max(kept) <= 10
    assert len(made._parts._varying) <= 1


def test_a_block_may_cost_another_number_for_each_request_and_is_one_quota() -> None:
    site = varied(lambda site, number: site.limiter.limit("20/minute", name="mail", cost=number))
    assert [site.get(f"/{number}").text for number in (3, 5, 3, 1)] == ["17", "12", "9", "8"]
    assert site.get("/9").status_code == 429
    assert len(site.app.extensions["ratebound"]._parts._cache) == 1


def test_a_block_may_have_the_limits_of_the_clients_plan() -> None:
    site = varied(lambda site, number: site.limiter.limit(f"{number}/minute", name="mail", key=lambda: f"k{number}"))
    assert [site.get(f"/{number}").text for number in (2, 100, 2, 100)] == ["1", "99", "0", "98"]
    assert [site.get(f"/{number}").status_code for number in (2, 100, 3)] == [429, 200, 200]
    assert len(site.app.extensions["ratebound"]._parts._cache) == 1


def test_a_block_may_vary_that_has_the_name_of_a_limited_view() -> None:
    site = varied(lambda site, number: site.limiter.limit(f"{number}/minute", name="mail", key=lambda: f"k{number}"))
    site.view("/mail", site.limiter.limit("2/minute", name="mail"))
    assert [site.get(path).status_code for path in ("/mail", "/2", "/3", "/2", "/mail", "/2")] == [200] * 5 + [429]


def test_threads_may_be_the_first_to_vary_a_block() -> None:
    def user() -> str:
        barrier.wait()  # all have found their part, or are about to
        return "u"

    barrier = threading.Barrier(4)
    site = varied(lambda site, number: site.limiter.limit(f"{number}/minute", name="mail", key="user"), user=user)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            responses = list(pool.map(lambda number: site.get(f"/{number}").status_code, (90, 91, 92, 93)))
            assert responses == [200] * 4


def test_functions_in_a_list_of_keys_are_those_of_the_block_that_is_asked_for() -> None:
    site = varied(lambda site, number: site.limiter.limit("2/minute", name="m", key=[lambda: f"k{number}", "address"]))
    assert [site.get(f"/{number}").status_code for number in (1, 1, 1, 2, 2, 2)] == [200, 200, 429, 200, 200, 429]


# What looks at the body, where a hook or the view has read it.


def posts(site: Site, body: Any, times: int = 1, **more: Any) -> list[int]:
    client = site.app.test_client()
    return [client.post("/a", **({"json": body} if body is not None else {}), **more).status_code for _ in range(times)]


def site_with(hook: Callable[[], Any], policy: Any = BATCHES) -> Site:
    app = flask.Flask("tests.site")
    app.before_request(lambda: (hook(), None)[1])
    site = Site(policy, app=app)
    site.view("/a", answer=lambda: flask.request.get_json(silent=True) or "none", methods=["POST"])
    return site


@pytest.mark.parametrize(
    "hook",
    [
        lambda: flask.request.get_json(silent=True),
        lambda: flask.request.get_data(),
        lambda: flask.request.form.get("csrf_token"),
        lambda: flask.request.stream,
        lambda: None,
    ],
)
def test_a_batch_costs_what_it_is_whoever_has_read_it_before(hook: Callable[[], Any]) -> None:
    site = site_with(hook)
    client = site.app.test_client()
    response = client.post("/a", json=[1] * 7)
    assert (response.json, left(response)) == ([1] * 7, {"calls": 3})
    assert posts(site, [1] * 4) == [429]
    assert posts(site, [1] * 3) == [200]


@pytest.mark.parametrize("hook", [lambda: flask.request.stream.read(3), lambda: flask.request.get_data(cache=False)])
def test_a_body_that_cannot_be_read_again_costs_what_nobody_has(hook: Callable[[], Any]) -> None:
    site = site_with(hook)
    assert posts(site, [1]) == [429]
    assert posts(site, None) == [200]  # there is none


def test_a_form_that_was_parsed_costs_what_nobody_has_and_one_that_was_not_is_read() -> None:
    site = site_with(lambda: flask.request.form)
    assert posts(site, None, data={"query": "x"}) == [429]
    assert posts(site, None) == [200]


def test_a_body_that_is_too_large_is_not_read_for_a_rule() -> None:
    site = site_with(lambda: flask.request.stream)
    assert posts(site, None, data=b"[" + b" " * MAX_BODY + b"]") == [429]


def test_nothing_is_read_beyond_the_end_of_a_body_on_a_socket() -> None:
    class Socket(io.BytesIO):
        """Where a server's stream would wait for what never comes."""

        def read(self, size: int | None = -1) -> bytes:
            part = super().read(size)
            assert part or not size, "waits for ever"
            return part

    site = site_with(lambda: flask.request.get_json(silent=True))
    body = b"[1, 2]"
    response = site.app.test_client().post(
        "/a", content_type="application/json", environ_overrides={"wsgi.input": Socket(body), "CONTENT_LENGTH": "6"}
    )
    assert (response.json, left(response)) == ([1, 2], {"calls": 8})


HOOKS: list[Callable[[], Any]] = [
    lambda: flask.request.form.get("csrf_token"),
    lambda: flask.request.values.get("csrf_token"),
    lambda: flask.request.stream,
]


def ended(site: Site, body: bytes, content_type: str = "application/json", **more: str) -> Any:
    """By a server whose stream ends by itself, as that of gunicorn."""
    environ = {"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True, "CONTENT_TYPE": content_type, **more}
    return site.app.test_client().post("/a", environ_overrides=environ)


@pytest.mark.parametrize("most", [None, 1000])
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_batch_costs_what_it_is_where_the_server_ends_the_stream(
    hook: Callable[[], Any], is_chunked: bool, most: int | None
) -> None:
    site = site_with(hook)
    site.app.config["MAX_CONTENT_LENGTH"] = most
    size = {"HTTP_TRANSFER_ENCODING": "chunked"} if is_chunked else {"CONTENT_LENGTH": "9"}
    response = ended(site, b"[1,1,1,1]", **size)
    assert (response.json, left(response)) == ([1] * 4, {"calls": 6})
    assert ended(site, b"[1,1,1,1]", **size).status_code == 200
    assert ended(site, b"[1,1,1,1]", **size).status_code == 429


@pytest.mark.parametrize("hook", HOOKS)
def test_a_request_without_a_body_costs_one_where_the_server_ends_the_stream(hook: Callable[[], Any]) -> None:
    site = site_with(hook)
    assert left(ended(site, b"")) == {"calls": 9}


@pytest.mark.parametrize("size", [{"CONTENT_LENGTH": "9"}, {"HTTP_TRANSFER_ENCODING": "chunked"}])
def test_what_was_read_of_a_stream_that_ends_by_itself_costs_what_nobody_has(size: dict[str, str]) -> None:
    read, parsed = site_with(lambda: flask.request.stream.read()), site_with(lambda: flask.request.form)
    assert ended(read, b"[1,1,1,1]", **size).status_code == 429
    assert ended(parsed, b"a=1&b=234", "application/x-www-form-urlencoded", **size).status_code == 429


def test_a_function_that_a_view_calls_may_look_at_the_body() -> None:
    site = Site()

    @site.limiter.limit("10/minute", cost=json_batch_cost, name="calls")
    def called() -> Any:
        return flask.request.get_json()

    site.view("/a", answer=called, methods=["POST"])
    assert [*posts(site, [1] * 7), *posts(site, [1] * 4), *posts(site, [1] * 3)] == [200, 429, 200]


def test_a_block_may_look_at_the_body_also_when_it_was_read() -> None:
    def view() -> Any:
        read = flask.request.get_json()
        with site.limiter.limit("10/minute", cost=json_batch_cost, name="calls"):
            return read

    site = Site()
    site.view("/a", answer=view, methods=["POST"])
    assert [*posts(site, [1] * 7), *posts(site, [1] * 4), *posts(site, [1] * 3)] == [200, 429, 200]


def test_an_application_that_takes_less_than_a_body_has_is_asked_for_all_the_same() -> None:
    app = flask.Flask("tests.site")
    app.config["MAX_CONTENT_LENGTH"] = 5
    site = Site(default_limits=RouteLimit(limits="10/minute", cost=json_batch_cost), app=app)
    site.view("/a", answer=lambda: flask.request.get_json(), methods=["POST"])
    assert posts(site, [1] * 7) == [413]
    assert posts(site, [1] * 4) == [429]
