"""The dashboard as a blueprint of Flask."""

from typing import Any

import flask
import pytest
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import Client

from ratebound import MemoryStorage
from ratebound.testing import FakeClock
from ratebound.web.flask import Operator, RateLimits

EARLY_AND_REST = {
    "rules": [
        {"name": "flood", "limits": "1/hour", "by": "address", "stage": "early"},
        {"name": "rest", "limits": "1/hour", "by": "address", "default": True},
    ]
}
WRITE = {"X-Ratebound-CSRF": "given", "Sec-Fetch-Site": "same-origin"}


def options(policy: Any = EARLY_AND_REST) -> Any:
    return {"policy": policy, "storage": MemoryStorage(clock=FakeClock())}


def is_operator() -> Any:
    return flask.request.headers.get("X-Role")


def application(policy: Any = EARLY_AND_REST, url_prefix: str | None = "/limits", **more: Any) -> flask.Flask:
    app = flask.Flask("site")
    limits = RateLimits(app, **options(policy))
    app.register_blueprint(limits.dashboard(auth=is_operator, **more), url_prefix=url_prefix)
    return app


def statuses(app: Any, *paths: str, **headers: str) -> list[int]:
    client = Client(app)
    told = headers or {"X-Role": "read"}
    return [client.get(path, headers=told).status_code for path in paths]


@pytest.mark.parametrize("prefix", ["/limits", "/limits/", "/admin/limits", "/<tenant>/limits"])
def test_wherever_it_is_registered_it_is_not_limited(prefix: str) -> None:
    app = application(url_prefix=prefix)
    below = prefix.rstrip("/").replace("<tenant>", "acme")
    assert statuses(app, *[f"{below}/{file}" for file in ("", "dashboard.js", "api/session") * 2]) == [200] * 6
    assert statuses(app, "/", "/") == [404, 429]


def test_at_the_root() -> None:
    app = application(url_prefix=None)
    assert statuses(app, "/", "/dashboard.js", "/api/session") == [200] * 3


def test_in_a_blueprint() -> None:
    app = flask.Flask("site")
    limits = RateLimits(app, **options())
    admin = flask.Blueprint("admin", "admin")
    admin.register_blueprint(limits.dashboard(auth=is_operator), url_prefix="/limits")
    app.register_blueprint(admin, url_prefix="/admin")
    assert statuses(app, *[f"/admin/limits/{file}" for file in ("", "dashboard.js", "api/session")]) == [200] * 3


def test_registered_before_the_application_has_limits_and_in_several_applications() -> None:
    limits = RateLimits(policy=EARLY_AND_REST)
    blueprint = limits.dashboard(auth=is_operator)
    for _ in range(2):
        app = flask.Flask("site")
        app.register_blueprint(blueprint, url_prefix="/limits")
        limits.init_app(app)
        assert app.extensions["ratebound"].gate.figures is not None
        assert statuses(app, *["/limits/"] * 3) == [200] * 3
        assert statuses(app, "/", "/") == [404, 429]


def test_the_slash_that_is_missing_is_added_relative_to_the_path() -> None:
    app = application()
    behind_prefix = DispatcherMiddleware(flask.Flask("other"), {"/shop": app})
    for served, path in ((app, "/limits"), (behind_prefix, "/shop/limits")):
        answer = Client(served).get(path)
        assert (answer.status_code, answer.headers["Location"]) == (308, "./limits/")
        assert Client(served).get(f"{path}/api/session", headers={"X-Role": "read"}).status_code == 200


def test_behind_a_proxy_that_takes_a_prefix_off() -> None:
    app = application()
    app.wsgi_app = ProxyFix(app.wsgi_app, x_prefix=1)  # type: ignore[method-assign]
    answer = Client(app).get("/limits/api/session", headers={"X-Role": "read", "X-Forwarded-Prefix": "/shop"})
    assert answer.status_code == 200


def test_hooks_of_the_application_come_first_and_auth_sees_what_they_found() -> None:
    app = flask.Flask("site")
    app.secret_key = "for tests"
    limits = RateLimits(app, **options())

    @app.before_request
    def load_user() -> None:
        flask.g.user = flask.request.headers.get("X-User")

    async def operator() -> Any:
        if flask.g.user is None:
            flask.abort(flask.redirect("/login"))
        return Operator(flask.g.user, "write")

    app.register_blueprint(limits.dashboard(auth=operator), url_prefix="/limits")
    client = Client(app)
    answers = [client.get("/limits/") for _ in range(3)]
    assert [(one.status_code, one.headers["Location"]) for one in answers] == [(302, "/login")] * 3
    session = client.get("/limits/api/session", headers={"X-User": "ann"})
    assert (session.json["name"], session.json["role"]) == ("ann", "write")  # type: ignore[index]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("policy", ["2/hour", {"rules": [{"name": "flood", "limits": "2/hour", "stage": "early"}]}])
def test_the_answer_of_a_hook_in_front_of_the_dashboard_is_limited(policy: Any, is_first: bool) -> None:
    app = flask.Flask("site")

    def refuse() -> Any:
        return None if "Authorization" in flask.request.headers else ("no", 401)

    if is_first:
        app.before_request(refuse)
    limits = RateLimits(app, **options(policy))
    if not is_first:
        app.before_request(refuse)
    app.register_blueprint(limits.dashboard(auth=is_operator), url_prefix="/limits")
    assert statuses(app, *["/limits/"] * 4) == [401, 401, 429, 429]
    assert statuses(app, *["/limits/"] * 3, **{"X-Role": "read", "Authorization": "x"}) == [200] * 3


def test_only_the_very_view_is_spared() -> None:
    app = application("1/hour")
    (name,) = [name for name in app.view_functions if "dashboard" in name]
    ordinary: Any = app.view_functions[name]
    app.view_functions[name] = lambda **more: ordinary(**more)
    assert statuses(app, "/limits/", "/limits/") == [200, 429]


def test_two_dashboards_with_names_of_their_own() -> None:
    app = flask.Flask("site")
    limits = RateLimits(app, **options())
    app.register_blueprint(limits.dashboard(auth=is_operator), url_prefix="/limits")
    app.register_blueprint(limits.dashboard(auth=lambda: "read", name="wall"), url_prefix="/wall")
    assert statuses(app, "/limits/", "/wall/", **{"X-Other": "x"}) == [401, 200]


def test_methods_that_the_dashboard_does_not_have_are_limited() -> None:
    app = application("1/hour")
    client = Client(app)
    assert [client.patch("/limits/").status_code for _ in range(2)] == [405, 429]


def test_a_body_that_a_hook_has_read_arrives() -> None:
    app = flask.Flask("site")
    limits = RateLimits(app, **options())
    app.before_request(lambda: flask.request.get_json(silent=True) and None)
    app.register_blueprint(limits.dashboard(auth=is_operator), url_prefix="/limits")
    answer = Client(app).post(
        "/limits/api/policy/check",
        json={"text": "rules: [{name: all, limits: 1/minute}]", "format": "yaml"},
        headers={"X-Role": "write", **WRITE},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json["valid"] is True  # type: ignore[index]
